//! f32 on tiles of bf16 (bf16x3). Each number is the sum of three bf16, its *terms*, and a product
//! is six products of terms.
//!
//! This is "Leveraging the bfloat16 artificial intelligence datatype for higher-precision
//! computations" (Henry, Tang and Heinecke, 2019) with six products of nine. Three times eight bits
//! are the 24 of an f32, so the operands lose nothing. The three products left out are 2^-24 of the
//! whole at most and 2^-27 on average. An f32 multiplication rounds by up to 2^-24. Tiles sum 32 k
//! in a tree before they add them to a sum that is rounded. So sums come out nearer to the exact
//! ones than those of a chain of multiply-adds. A tile is 16 times as fast as vectors, so that six
//! could be 2.7 times. The measured factor is 1.5, since operands pass by three times as fast
//! (docs/notes/performance.md).
//!
//! Tiles cannot handle infinities and values that exceed f32 on the way: both come out as NaN. So
//! the sums of a block are looked at, and where one is not finite they are computed again from the
//! same panels by multiply-adds. Bits below 2^-126 are zeros to tiles. So operands under 2^-108
//! keep fewer than 24 bits, but always those above 2^-126.
//!
//! Weights take six bytes an element instead of four. So few rows, which wait for memory, are for
//! vectors.
//!
//! Long because the functions that split numbers and those that multiply the terms share one form
//! of panels.
#![allow(unsafe_code)] // Inline assembly on raw pointers into panels.

use std::arch::asm;
use std::arch::x86_64::*;

use half::bf16;

use super::amx::{self, After, Dot, Left, PAIR, SIDE, To, near};
use super::pack::pack;
use super::panel::{OperandLines, Panel};
use super::simd::PackedBlock;

/// A step of k.
const DEPTH: usize = 32;
/// The upper halves of the lanes of two vectors.
static UPPER: [u16; DEPTH] = {
    let mut upper = [0; DEPTH];
    let mut lane = 0;
    while lane < DEPTH {
        upper[lane] = 2 * lane as u16 + 1;
        lane += 1;
    }
    upper
};
const INFINITY: u32 = 0x7f80_0000;
/// The bits of an f32 that a bf16 has.
const HIGH: u32 = 0xffff_0000;
/// Half of the last of those: where a number is this near to infinity it would round to it.
const HALF: u32 = 0x8000;
/// Bytes of a panel's step: the first terms of its lines, the second and the third.
const STEP: usize = 3 * PAIR;

/// The terms of a number, the largest first: their sum is the number, down to 2^-126. One that is
/// not finite is its own first.
#[inline(always)]
fn terms(x: f32) -> [bf16; 3] {
    let (bits, size) = (x.to_bits(), x.to_bits() & 0x7fff_ffff);
    let quiet = if size > INFINITY { 0x0040_0000 } else { 0 };
    let first = if size < INFINITY - HALF { bits.wrapping_add(HALF) } else { bits | quiet } & HIGH;
    let rest = if size < INFINITY { x - f32::from_bits(first) } else { 0.0 };
    let second = rest.to_bits().wrapping_add(HALF) & HIGH;
    let third = (rest - f32::from_bits(second)).to_bits().wrapping_add(HALF);
    [first, second, third].map(|bits| bf16::from_bits((bits >> 16) as u16))
}

/// Writes the terms of a run of numbers, each to its own of three runs.
#[inline(always)]
fn split(from: &[f32], [first, second, third]: [&mut [bf16]; 3]) {
    let to = first.iter_mut().zip(second).zip(third);
    for (&x, ((first, second), third)) in from.iter().zip(to) {
        [*first, *second, *third] = terms(x);
    }
}

/// Packs a block: for each step a panel of each term.
///
/// # Safety
/// As for [`pack`]; [`is_supported`] said yes.
pub(super) unsafe fn pack_bf16x3(block: OperandLines<f32>, panel: Panel, to: *mut u8) {
    // SAFETY: `is_supported` said yes, so the CPU has the vectors; the block can be read, and `to`
    // has room.
    unsafe { pack_steps(block, panel, to) }
}

/// [`pack_bf16x3`], for vectors.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn pack_steps(block: OperandLines<f32>, panel: Panel, to: *mut u8) {
    let mut buffer = [[bf16::ZERO; SIDE * DEPTH]; 3];
    for (part, start) in block.panels(panel) {
        for (step, k0) in (0..part.k).step_by(DEPTH).enumerate() {
            let chunk = OperandLines { from: part.at(0, k0), k: (part.k - k0).min(DEPTH), ..part };
            let to = to.wrapping_add(start * 6 + step * STEP);
            // SAFETY: `pack_bf16x3` passes its own contract on: the block can be read, and `to` has
            // room for its panels. A step has room for the chunk, and so has the buffer.
            unsafe {
                if panel.group == DEPTH && chunk.k == DEPTH && chunk.k_stride == 1 {
                    split_lines(chunk, to);
                } else if panel.group == 2 && chunk.lines == SIDE && chunk.line_stride == 1 {
                    split_pairs(chunk, to);
                } else {
                    for (term, chunk) in split_chunk(chunk, &mut buffer).into_iter().enumerate() {
                        pack(chunk, panel, to.wrapping_add(term * PAIR));
                    }
                }
            }
        }
    }
}

/// Splits lines of 32 k that lie side by side straight into their place in panels of A, the last
/// again where none is.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn split_lines(chunk: OperandLines<f32>, to: *mut u8) {
    for line in 0..SIDE {
        let at = |term: usize| to.wrapping_add(term * PAIR + line * 64).cast::<[bf16; DEPTH]>();
        // SAFETY: a chunk of 32 k that lie side by side can be read, and `to` has room for a step.
        // The terms of a line have places of their own.
        unsafe {
            let from = &*chunk.at(line.min(chunk.lines - 1), 0).cast::<[f32; DEPTH]>();
            split_line(from, [&mut *at(0), &mut *at(1), &mut *at(2)]);
        }
    }
}

/// [`split`] of a line, twice as fast where no number is too large to be rounded up.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn split_line(from: &[f32; DEPTH], to: [&mut [bf16; DEPTH]; 3]) {
    let (half, high) = (_mm512_set1_epi32(HALF as i32), _mm512_set1_epi32(HIGH as i32));
    let round = |x: __m512| _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), high);
    let is_large = |x: __m512| {
        let size = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(i32::MAX));
        _mm512_cmpge_epu32_mask(size, _mm512_set1_epi32((INFINITY - HALF) as i32))
    };
    // SAFETY: a line is 32 numbers, two vectors.
    let mut rest = [0, 16].map(|k| unsafe { _mm512_loadu_ps(from.as_ptr().add(k)) });
    if is_large(rest[0]) | is_large(rest[1]) != 0 {
        return split(from, to.map(|term| term.as_mut_slice()));
    }
    // SAFETY: `UPPER` has as many bytes as a vector.
    let upper = unsafe { _mm512_loadu_si512(UPPER.as_ptr().cast()) };
    for term in to {
        let rounded = rest.map(round);
        let packed = _mm512_permutex2var_epi16(rounded[0], upper, rounded[1]);
        // SAFETY: a term is 32 numbers of bf16, one vector.
        unsafe { _mm512_storeu_si512(term.as_mut_ptr().cast(), packed) };
        rest = [0, 1].map(|i| _mm512_sub_ps(rest[i], _mm512_castsi512_ps(rounded[i])));
    }
}

/// Splits 32 lines that lie side by side straight into their place in panels of B, in pairs of k;
/// zeros where k ends.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn split_pairs(chunk: OperandLines<f32>, to: *mut u8) {
    for k in (0..DEPTH).step_by(2) {
        // SAFETY: each k of the chunk has 32 lines side by side, and `to` has room for a step. The
        // pairs of each term have a place of their own.
        unsafe {
            let row = |k: usize| match k < chunk.k {
                true => chunk.at(0, k).cast::<[f32; SIDE]>().read_unaligned(),
                false => [0.0; SIDE],
            };
            let (even, odd) = (row(k), row(k + 1));
            let at = |term: usize| to.add(term * PAIR + k / 2 * 4 * SIDE).cast::<[u32; SIDE]>();
            split_pair([&even, &odd], [&mut *at(0), &mut *at(1), &mut *at(2)]);
        }
    }
}

/// The terms of two rows in pairs, faster where no number is too large to be rounded up.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn split_pair(rows: [&[f32; SIDE]; 2], mut to: [&mut [u32; SIDE]; 3]) {
    let (half, high) = (_mm512_set1_epi32(HALF as i32), _mm512_set1_epi32(HIGH as i32));
    let round = |x: __m512| _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), high);
    let mut large = 0;
    for row in rows {
        for half in row.as_chunks::<16>().0 {
            // SAFETY: an array of 16 numbers is a vector.
            let bits = _mm512_castps_si512(unsafe { _mm512_loadu_ps(half.as_ptr()) });
            let size = _mm512_and_si512(bits, _mm512_set1_epi32(i32::MAX));
            large |= _mm512_cmpge_epu32_mask(size, _mm512_set1_epi32((INFINITY - HALF) as i32));
        }
    }
    if large != 0 {
        for line in 0..SIDE {
            let [even, odd] =
                rows.map(|row| terms(row[line]).map(|term| u32::from(term.to_bits())));
            (0..3).for_each(|term| to[term][line] = even[term] | odd[term] << 16);
        }
        return;
    }
    for at in [0, 16] {
        // SAFETY: a row is 32 numbers, two vectors, and `at` is where one begins.
        let mut rest = rows.map(|row| unsafe { _mm512_loadu_ps(row.as_ptr().add(at)) });
        for term in &mut to {
            let rounded = rest.map(round);
            let both = _mm512_or_si512(_mm512_srli_epi32::<16>(rounded[0]), rounded[1]);
            // SAFETY: a term has 32 pairs, two vectors too, and `at` is where one begins.
            unsafe { _mm512_storeu_si512(term.as_mut_ptr().add(at).cast(), both) };
            rest = [0, 1].map(|i| _mm512_sub_ps(rest[i], _mm512_castsi512_ps(rounded[i])));
        }
    }
}

/// Splits a chunk into `buffer`, in the order that the chunk itself has.
#[inline(always)]
unsafe fn split_chunk(
    chunk: OperandLines<f32>,
    buffer: &mut [[bf16; SIDE * DEPTH]; 3],
) -> [OperandLines<bf16>; 3] {
    let OperandLines { lines, k, .. } = chunk;
    let by_line = chunk.line_stride != 1;
    let (runs, len) = if by_line { (lines, k) } else { (k, lines) };
    let [first, second, third] = buffer;
    for run in 0..runs {
        let here = run * len..(run + 1) * len;
        let to = [&mut first[here.clone()], &mut second[here.clone()], &mut third[here]];
        // SAFETY: the chunk can be read. A run is `len` elements of it, side by side in the first
        // two cases.
        unsafe {
            match (by_line, chunk.k_stride) {
                (false, _) => split(std::slice::from_raw_parts(chunk.at(0, run), len), to),
                (true, 1) => split(std::slice::from_raw_parts(chunk.at(run, 0), len), to),
                (true, _) => {
                    let [first, second, third] = to;
                    for i in 0..len {
                        [first[i], second[i], third[i]] = terms(*chunk.at(run, i));
                    }
                }
            }
        }
    }
    let (line_stride, k_stride) = if by_line { (k, 1) } else { (1, lines) };
    [first, second, third].map(|from| OperandLines {
        from: from.as_ptr(),
        lines,
        line_stride,
        k,
        k_stride,
    })
}

/// f32: panels hold for each 32 k those of their first terms, of their second and of their third,
/// as those of bf16 are.
///
/// # Safety
/// [`is_supported`] said yes; the block is as [`PackedBlock`] says.
pub(super) unsafe fn f32_amx(block: &PackedBlock<f32>) {
    // SAFETY: `is_supported` said yes, so the CPU has the vectors; the block is as `PackedBlock`
    // says.
    unsafe { compute(block) }
}

/// [`f32_amx`], for vectors.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn compute(block: &PackedBlock<f32>) {
    // SAFETY: `f32_amx` passes its own contract on: the CPU has the tiles, and the block is as
    // `PackedBlock` says.
    unsafe { amx::compute::<Bf16x3>(block) }
}

/// Four multiplications of a term of A by a term of B, each after the loads that it waits for.
macro_rules! four {
    ($($before0:expr)?; $($before1:expr)?; $($before2:expr)?; $after:expr) => {
        concat!(
            $($before0,)? "tdpbf16ps tmm0, tmm4, tmm6\n",
            $($before1,)? "tdpbf16ps tmm1, tmm4, tmm7\n",
            $($before2,)? "tdpbf16ps tmm2, tmm5, tmm6\n",
            $after, "tdpbf16ps tmm3, tmm5, tmm7\n",
        )
    };
}

/// Loads the upper or the lower tile of a term of A.
macro_rules! left {
    ($register:literal, $offset:literal) => {
        concat!("tileloadd tmm", $register, ", [{a} + {line} + ", $offset, "]\n")
    };
}

/// Loads the left or the right tile of a term of B.
macro_rules! right {
    ($register:literal, $offset:literal) => {
        concat!("tileloadd tmm", $register, ", [{b} + 2 * {line} + ", $offset, "]\n")
    };
}

/// The prefetches in a sixth of a step. They are a kilobyte of the next step of B, a line of
/// `after`, and two lines of the next tile of C.
macro_rules! ask {
    ($near0:literal, $near1:literal, $after:literal) => {
        concat!(
            near!($near0),
            near!($near1),
            "prefetcht1 [{after} + ",
            $after,
            "]\n",
            "prefetcht0 [{c}]\n",
            "prefetcht0 [{c} + 64]\n",
            "add {c}, {c_line}\n",
        )
    };
}

/// An f32 as three bf16.
struct Bf16x3;

impl Dot for Bf16x3 {
    type Acc = f32;
    const STEP: usize = STEP;
    const LOOKS: bool = true;

    #[inline(always)]
    unsafe fn walk(a: Left, b: *const u8, steps: usize, after: After) {
        // SAFETY: the registers are configured; `a` and `b` have `steps` steps, at least one; a
        // prefetch never faults. The small products come first: a path through the six on which
        // either factor stays.
        unsafe {
            asm!(
                "2:",
                concat!(left!(4, 4096), right!(6, 0)),
                four!(; right!(7, 64); left!(5, 5120); ask!(4096, 4608, 0)),
                left!(4, 2048),
                four!(;; left!(5, 3072); ask!(5120, 5632, 64)),
                right!(6, 2048),
                four!(; right!(7, 2112);; ask!(6144, 6656, 128)),
                left!(4, 0),
                four!(;; left!(5, 1024); ask!(7168, 7680, 192)),
                right!(6, 0),
                four!(; right!(7, 64);; ask!(8192, 8704, 256)),
                right!(6, 4096),
                four!(; right!(7, 4160);; ask!(9216, 9728, 320)),
                "add {a}, 6144",
                "add {b}, 6144",
                "add {after}, {after_step}",
                "dec {steps}",
                "jnz 2b",
                a = inout(reg) a.start => _, b = inout(reg) b => _, line = in(reg) a.line,
                after = inout(reg) after.from => _, after_step = in(reg) after.step,
                c = inout(reg) after.c => _, c_line = in(reg) after.c_line,
                steps = inout(reg) steps => _, options(nostack, readonly),
            );
        }
    }

    #[inline(always)]
    unsafe fn deliver(
        sums: &mut [f32; SIDE * SIDE],
        panels: [*const u8; 2],
        steps: usize,
        to: To<f32>,
    ) {
        // SAFETY: the panels have `steps` steps, and nobody else touches `to`. The CPU has the
        // vectors where it has the tiles, as `is_supported` knows.
        unsafe {
            if !are_finite(sums) {
                multiply_add(sums, panels, steps);
            }
            if to.rows == SIDE && to.cols == SIDE { take(sums, to) } else { to.take(sums) }
        }
    }
}

/// Whether all sums are finite. The compiler makes it no loop of two registers.
#[inline]
#[target_feature(enable = "avx512f")]
fn are_finite(sums: &[f32; SIDE * SIDE]) -> bool {
    let sizes = |at: &[f32; 16]| {
        // SAFETY: an array of 16 numbers is a vector.
        let bits = _mm512_castps_si512(unsafe { _mm512_loadu_ps(at.as_ptr()) });
        _mm512_and_si512(bits, _mm512_set1_epi32(i32::MAX))
    };
    let mut largest = [_mm512_setzero_si512(); 2];
    for row in sums.as_chunks::<16>().0.chunks_exact(2) {
        largest = [0, 1].map(|i| _mm512_max_epu32(largest[i], sizes(&row[i])));
    }
    _mm512_reduce_max_epu32(_mm512_max_epu32(largest[0], largest[1])) < f32::INFINITY.to_bits()
}

/// [`To::take`] of a whole tile.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn take(sums: &[f32; SIDE * SIDE], to: To<f32>) {
    for (i, row) in sums.as_chunks::<16>().0.chunks_exact(2).enumerate() {
        for (half, sums) in row.iter().enumerate() {
            // SAFETY: the part of C is a whole tile, so each row has two vectors, and only this
            // task writes it.
            unsafe {
                let c = to.c.add(i * to.stride + half * 16);
                let sums = _mm512_loadu_ps(sums.as_ptr());
                _mm512_storeu_ps(
                    c,
                    if to.accumulate { _mm512_add_ps(sums, _mm512_loadu_ps(c)) } else { sums },
                );
            }
        }
    }
}

/// The sums of two panels by the definition, from the numbers that their terms are.
#[cold]
unsafe fn multiply_add(sums: &mut [f32; SIDE * SIDE], [a, b]: [*const u8; 2], steps: usize) {
    sums.fill(0.0);
    for k in 0..steps * DEPTH {
        let (step, k) = (k / DEPTH * STEP, k % DEPTH);
        let whole = |panel: *const u8, index: usize| {
            let term = |term: usize| {
                // SAFETY: both panels have `steps` steps, and `index` lies within a term of a step.
                unsafe { panel.add(step + term * PAIR).cast::<bf16>().add(index).read().to_f32() }
            };
            term(0) + (term(1) + term(2))
        };
        let row: [f32; SIDE] =
            std::array::from_fn(|col| whole(b, (k / 2 * SIDE + col) * 2 + k % 2));
        for (line, sums) in sums.chunks_exact_mut(SIDE).enumerate() {
            let x = whole(a, line * DEPTH + k);
            sums.iter_mut().zip(row).for_each(|(sum, y)| *sum += x * y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::InstructionSet;
    use testkit::Needs;

    #[test]
    fn lines_are_split_as_numbers_are() {
        let set = InstructionSet::Amx;
        if !set.is_usable() {
            return testkit::skip(Needs::InstructionSet(set.name()), "this processor lacks it");
        }
        let mut bits = 1_u32;
        for _ in 0..1 << 14 {
            let from: [f32; DEPTH] = std::array::from_fn(|_| {
                bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Now and then a line has one that is too large, or is no number.
                f32::from_bits(if bits % 97 > 1 { bits & 0xbfff_ffff } else { bits | 0x7f00_0000 })
            });
            let mut found = [[bf16::ZERO; DEPTH]; 3];
            let [first, second, third] = &mut found;
            // SAFETY: the CPU has the vectors, as AMX implies.
            unsafe { split_line(&from, [first, second, third]) };
            let mut pairs = [[0; SIDE]; 3];
            let [first, second, third] = &mut pairs;
            let backwards: [f32; SIDE] = std::array::from_fn(|line| from[SIDE - 1 - line]);
            // SAFETY: the CPU has the vectors, as AMX implies.
            unsafe { split_pair([&from, &backwards], [first, second, third]) };
            for (line, (x, y)) in from.iter().zip(backwards).enumerate() {
                let halves = pairs.map(|term| [term[line] as u16, (term[line] >> 16) as u16]);
                assert_eq!(halves.map(|half| half[0]), terms(*x).map(bf16::to_bits));
                assert_eq!(halves.map(|half| half[1]), terms(y).map(bf16::to_bits));
            }
            let bits = |term: usize| found[term].map(bf16::to_bits);
            for (term, of) in
                [0, 1, 2].map(|term| (bits(term), from.map(|x| terms(x)[term].to_bits())))
            {
                assert_eq!(term, of);
            }
        }
    }

    #[test]
    fn terms_are_the_number() {
        let mut bits = 1_u32;
        for _ in 0..1 << 20 {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = f32::from_bits(bits);
            let [first, second, third] = terms(x).map(bf16::to_f32);
            if x.is_nan() {
                assert!(first.is_nan() && second == 0.0 && third == 0.0, "{bits:#x}");
            } else if x.is_infinite() || x.abs() > 1e-30 {
                assert_eq!(first + (second + third), x, "{bits:#x}");
                assert!(
                    second.abs() <= x.abs() / 127.0 && third.abs() <= x.abs() / 65535.0,
                    "{bits:#x}"
                );
            }
        }
        for x in
            [f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, 0.0, f32::from_bits(0x7f7f_8000)]
        {
            let [first, second, third] = terms(x).map(bf16::to_f32);
            assert_eq!(first + (second + third), x);
        }
    }
}
