//! AVX-512: codes become numbers in registers.
//!
//! Four bits index a table of sixteen numbers in a register. `vpermps` looks at the low four bits
//! of each lane and at nothing else. So any format of four bits costs a shift and a permutation for
//! sixteen weights. Bytes are sign-extended and converted. A scale multiplies the sum of a lane's
//! products.
#![allow(unsafe_code)] // Vector intrinsics on raw pointers; `Strip` says what they point to.

use std::arch::x86_64::*;

use overdrive_ir::DType;

use super::decode::LANES;
use super::matrix::QuantizedMatrix;
use super::numbers::DecodeTable;

/// A few rows of weights and of x.
pub(super) struct Strip {
    pub codes: *const u8,
    /// Bytes from one row of weights to the next.
    pub code_stride: usize,
    /// For each row of weights, `groups` numbers.
    pub scales: *const f32,
    pub zeros: Option<*const f32>,
    pub groups: usize,
    /// Arranged; rows lie `x_stride` numbers apart, and the sums of lanes `sums` behind a row's
    /// start.
    pub x: *const f32,
    pub x_stride: usize,
    pub sums: usize,
    pub y: *mut f32,
    pub y_stride: usize,
    pub k: usize,
    pub group: usize,
}

/// In which turn each code of a lane comes out: as `Codes::place`, which is its own inverse.
pub(super) fn places(per_lane: usize) -> [usize; 8] {
    let place = if per_lane == Bytes::PER_LANE { Bytes::place } else { Nibbles::place };
    std::array::from_fn(|i| if i < per_lane { place(i) } else { i })
}

/// As many rows of x as a strip takes at once, of `m`.
pub(super) fn most_rows(m: usize) -> usize {
    match m {
        0..=1 => 1,
        2..=3 => 2,
        _ => 4,
    }
}

/// Scales and zeros of as many rows from `row` on as there is room for.
pub(super) fn scales(weights: &QuantizedMatrix<'_>, row: usize, [scales, zeros]: [&mut [f32]; 2]) {
    #[target_feature(enable = "avx512f,avx512bw")]
    fn wide(weights: &QuantizedMatrix<'_>, row: usize, [scales, zeros]: [&mut [f32]; 2]) {
        let groups = weights.groups();
        for (i, (scales, zeros)) in
            scales.chunks_mut(groups).zip(zeros.chunks_mut(groups)).enumerate()
        {
            weights.scales(row + i, 0..groups, [scales, zeros]);
        }
    }
    // SAFETY: strips are made only where `is_supported` said yes.
    unsafe { wide(weights, row, [scales, zeros]) }
}

/// A format of codes.
pub(super) trait Codes: Copy {
    /// Codes of a lane.
    const PER_LANE: usize;

    /// The code of a lane that is decoded at a turn.
    fn place(turn: usize) -> usize;

    unsafe fn new(dtype: DType) -> Self;

    /// The numbers of the codes whose turn it is, and the lanes for the next turn.
    unsafe fn next(self, lanes: __m512i) -> (__m512, __m512i);
}

/// Four bits, of any format.
#[derive(Clone, Copy)]
pub(super) struct Nibbles(__m512);

impl Codes for Nibbles {
    const PER_LANE: usize = 8;

    #[inline(always)]
    fn place(turn: usize) -> usize {
        turn
    }

    #[inline(always)]
    unsafe fn new(dtype: DType) -> Self {
        // SAFETY: the kernels below run only where the instructions exist; so for each that
        // follows.
        Self(unsafe { _mm512_loadu_ps(DecodeTable::of(dtype).0.as_ptr()) })
    }

    #[inline(always)]
    unsafe fn next(self, lanes: __m512i) -> (__m512, __m512i) {
        // SAFETY: the kernels below run only where the instructions exist.
        unsafe { (_mm512_permutexvar_ps(lanes, self.0), _mm512_srli_epi32::<4>(lanes)) }
    }
}

/// i8, the last of a lane first.
#[derive(Clone, Copy)]
pub(super) struct Bytes;

impl Codes for Bytes {
    const PER_LANE: usize = 4;

    #[inline(always)]
    fn place(turn: usize) -> usize {
        3 - turn
    }

    #[inline(always)]
    unsafe fn new(_: DType) -> Self {
        Self
    }

    #[inline(always)]
    unsafe fn next(self, lanes: __m512i) -> (__m512, __m512i) {
        // SAFETY: the kernels below run only where the instructions exist.
        unsafe {
            (_mm512_cvtepi32_ps(_mm512_srai_epi32::<24>(lanes)), _mm512_slli_epi32::<8>(lanes))
        }
    }
}

/// `rows` rows of x (1, 2 or 4) times `count` rows of weights (1 or 4).
///
/// # Safety
/// [`is_supported`] said yes; the strip's pointers are to as much as it says.
pub(super) unsafe fn run(strip: &Strip, dtype: DType, [rows, count]: [usize; 2]) {
    // SAFETY: `is_supported` checked the instructions; the match gives `multiply` the strip's own
    // numbers of rows.
    unsafe {
        match (dtype == DType::I8, rows, count) {
            (false, 1, 1) => multiply::<Nibbles, 1, 1>(strip, dtype),
            (false, 2, 1) => multiply::<Nibbles, 2, 1>(strip, dtype),
            (false, 4, 1) => multiply::<Nibbles, 4, 1>(strip, dtype),
            (false, 1, 4) => multiply::<Nibbles, 1, 4>(strip, dtype),
            (false, 2, 4) => multiply::<Nibbles, 2, 4>(strip, dtype),
            (false, 4, 4) => multiply::<Nibbles, 4, 4>(strip, dtype),
            (true, 1, 1) => multiply::<Bytes, 1, 1>(strip, dtype),
            (true, 2, 1) => multiply::<Bytes, 2, 1>(strip, dtype),
            (true, 4, 1) => multiply::<Bytes, 4, 1>(strip, dtype),
            (true, 1, 4) => multiply::<Bytes, 1, 4>(strip, dtype),
            (true, 2, 4) => multiply::<Bytes, 2, 4>(strip, dtype),
            (true, 4, 4) => multiply::<Bytes, 4, 4>(strip, dtype),
            _ => unreachable!("strips are of 1, 2 or 4 rows of x by 1 or 4 of weights"),
        }
    }
}

/// # Safety
/// As for [`run`], with `M` rows of x and `R` of weights.
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn multiply<C: Codes, const M: usize, const R: usize>(s: &Strip, dtype: DType) {
    let block = LANES * C::PER_LANE;
    let zero = _mm512_setzero_ps();
    // The lane of a block's scales that each lane of codes has.
    let of_lane = |lane: usize| if s.group < block { lane * C::PER_LANE / s.group } else { 0 };
    let lanes: [i32; LANES] = std::array::from_fn(|lane| of_lane(lane) as i32);
    // SAFETY: loads of codes and of scales are masked to those that exist; arranged rows of x are
    // whole blocks.
    unsafe {
        let lanes = _mm512_loadu_epi32(lanes.as_ptr());
        let codes = C::new(dtype);
        let mut sums = [[zero; R]; M];
        for (index, k) in (0..s.k).step_by(block).enumerate() {
            let left = (s.k - k).min(block);
            let bytes = (left * 32 / C::PER_LANE).div_ceil(8);
            let mask = u64::MAX >> (64 - bytes);
            let first = k / s.group;
            let wanted = u16::MAX >> (16 - ((left - 1) / s.group.min(block) + 1));
            let mut words = [_mm512_setzero_si512(); R];
            for (r, words) in words.iter_mut().enumerate() {
                let from = s.codes.add(r * s.code_stride + index * 64);
                *words = _mm512_maskz_loadu_epi8(mask, from.cast());
                // Prefetches the same place in the next strip: one line with each that is used.
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(R * s.code_stride).cast());
            }
            let mut parts = [[zero; R]; M];
            for turn in 0..C::PER_LANE {
                for r in 0..R {
                    let (numbers, rest) = codes.next(words[r]);
                    words[r] = rest;
                    for (m, parts) in parts.iter_mut().enumerate() {
                        let x = s.x.add(m * s.x_stride + index * block + turn * LANES);
                        parts[r] = _mm512_fmadd_ps(numbers, _mm512_loadu_ps(x), parts[r]);
                    }
                }
            }
            let spread = |from: *const f32, r: usize| {
                let numbers = _mm512_maskz_loadu_ps(wanted, from.add(r * s.groups + first));
                _mm512_permutexvar_ps(lanes, numbers)
            };
            for r in 0..R {
                let scales = spread(s.scales, r);
                let zeros = s.zeros.map(|zeros| spread(zeros, r));
                for m in 0..M {
                    if let Some(zeros) = zeros {
                        let x = _mm512_loadu_ps(s.x.add(m * s.x_stride + s.sums + index * LANES));
                        parts[m][r] = _mm512_fnmadd_ps(zeros, x, parts[m][r]);
                    }
                    sums[m][r] = _mm512_fmadd_ps(parts[m][r], scales, sums[m][r]);
                }
            }
        }
        for (m, sums) in sums.into_iter().enumerate() {
            for (r, sum) in sums.into_iter().enumerate() {
                *s.y.add(m * s.y_stride + r) = _mm512_reduce_add_ps(sum);
            }
        }
    }
}
