//! Codes as bf16 panels of the tiles' product, with AVX-512: for each pair of neighbouring k its 32
//! columns.
//!
//! As in `panels`, codes are transposed while they are codes. A code of at most eight bits is a
//! number of bf16. So is its product with a scale where both together have at most eight bits of
//! significand. Then the upper half of an f32 is all of the number. Invariant: the numbers written
//! are exact.
#![allow(unsafe_code)] // Vector intrinsics on raw pointers into codes and panels.

use std::arch::x86_64::*;
use std::ops::Range;

use overdrive_ir::DType;

use super::decode::LANES;
use super::matrix::QuantizedMatrix;
use super::panels::transposed;
use super::x86::{Bytes, Codes, Nibbles};

/// Columns of a panel.
pub(super) const WIDTH: usize = 32;
/// The most groups of a column that a call has room for.
pub(super) const MOST_GROUPS: usize = 64;

/// The place where codes are scaled.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Scaled {
    /// It is multiplied by its scale, without the factor of all.
    Here,
    /// It stays as it is: the scale is for its sum.
    Later,
}

/// Codes of some format as numbers.
///
/// # Safety
/// - `decode::is_supported` said yes.
/// - Codes have a format of `x86::Codes`, and `k` is a range of whole lanes of a row. If codes are
///   scaled, the range touches at most [`MOST_GROUPS`] groups.
/// - `first` is a column, and `to` has [`WIDTH`] numbers for each k.
pub(super) unsafe fn write(
    weights: &QuantizedMatrix<'_>,
    first: usize,
    k: Range<usize>,
    scaled: Scaled,
    to: *mut u16,
) {
    for half in 0..WIDTH / LANES {
        let column = first + half * LANES;
        if column < weights.n {
            let to = to.wrapping_add(2 * half * LANES);
            // SAFETY: the CPU has AVX-512, the column exists, and `to` begins at this half of the
            // first pair.
            unsafe {
                match weights.codes.dtype() {
                    DType::I8 => write_half::<Bytes>(weights, column, k.clone(), scaled, to),
                    _ => write_half::<Nibbles>(weights, column, k.clone(), scaled, to),
                }
            }
        }
    }
}

/// Sixteen columns; where there are fewer, the last again and again.
///
/// # Safety
/// As for [`write`].
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn write_half<C: Codes>(
    weights: &QuantizedMatrix<'_>,
    first: usize,
    k: Range<usize>,
    scaled: Scaled,
    to: *mut u16,
) {
    let (dtype, block) = (weights.codes.dtype(), LANES * C::PER_LANE);
    let row = |column: usize| (first + column).min(weights.n - 1);
    let groups = k.start / weights.group..(k.end - 1) / weights.group + 1;
    // For each group, those of the sixteen columns.
    let mut scales = [[1.0_f32; LANES]; MOST_GROUPS];
    if scaled == Scaled::Here {
        for column in 0..LANES {
            let mut of_column = [0.0; MOST_GROUPS];
            weights.plain_scales(row(column), groups.clone(), &mut of_column[..groups.len()]);
            scales.iter_mut().zip(of_column).for_each(|(scales, scale)| scales[column] = scale);
        }
    }
    let upper = _mm512_set1_epi32(0xffff_0000_u32 as i32);
    // SAFETY: loads of codes are masked to those that exist; a store fills this half of a pair of
    // k, for which `to` has room.
    unsafe {
        let format = C::new(dtype);
        let from: [*const u8; LANES] = std::array::from_fn(|column| {
            weights.codes.from(row(column) * weights.k + k.start).as_ptr()
        });
        for (index, at) in (0..k.len()).step_by(block).enumerate() {
            let left = (k.len() - at).min(block);
            let mask = u64::MAX >> (64 - left * 4 / C::PER_LANE);
            let words = transposed(from.map(|from| {
                let from = from.wrapping_add(index * 64);
                _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(64).cast());
                _mm512_maskz_loadu_epi8(mask, from.cast())
            }));
            for (lane, &word) in words[..left / C::PER_LANE].iter().enumerate() {
                let at = at + lane * C::PER_LANE;
                let mut numbers = [_mm512_setzero_si512(); 8];
                let mut word = word;
                for turn in 0..C::PER_LANE {
                    let (mut number, rest) = format.next(word);
                    word = rest;
                    if scaled == Scaled::Here {
                        let scale = &scales[(k.start + at) / weights.group - groups.start];
                        number = _mm512_mul_ps(number, _mm512_loadu_ps(scale.as_ptr()));
                    }
                    numbers[C::place(turn)] = _mm512_castps_si512(number);
                }
                for pair in 0..C::PER_LANE / 2 {
                    let even = _mm512_srli_epi32::<16>(numbers[2 * pair]);
                    let odd = _mm512_and_si512(numbers[2 * pair + 1], upper);
                    let to = to.add((at / 2 + pair) * 2 * WIDTH);
                    _mm512_storeu_si512(to.cast(), _mm512_or_si512(even, odd));
                }
            }
        }
    }
}
