//! Weights as panels of the f32 product, with AVX-512: sixteen columns at a time, straight from
//! their codes.
//!
//! Sixteen lanes of codes of each of sixteen columns are transposed while they are codes. A lane's
//! codes then come out as sixteen columns side by side, which is a panel's order. Numbers would be
//! four or eight times as much to transpose. Invariant: the numbers are those of
//! `QuantizedMatrix::decode`.
#![allow(unsafe_code)] // Vector intrinsics on raw pointers into codes and panels.

use std::arch::x86_64::*;
use std::ops::Range;

use super::decode::{LANES, is_supported};
use super::matrix::QuantizedMatrix;
use super::x86::{Bytes, Codes, Nibbles};

/// The most groups of a column that a call has room for.
const MOST_GROUPS: usize = 64;

/// Writes element `p` of column `first + c` over `k` to `to[p * width + c]`. `false`, and nothing
/// written, where there is no kernel for the codes or lanes have several scales.
pub(super) fn panel(
    weights: &QuantizedMatrix<'_>,
    [first, width]: [usize; 2],
    k: Range<usize>,
    to: &mut [f32],
) -> bool {
    let Some(per_lane) = weights.codes_per_lane() else { return false };
    let whole_lanes =
        [weights.k, weights.group, k.start, k.len()].iter().all(|x| x.is_multiple_of(per_lane));
    if !is_supported() || !whole_lanes || k.is_empty() || !width.is_multiple_of(LANES) {
        return false;
    }
    let groups = k.start / weights.group..(k.end - 1) / weights.group + 1;
    if groups.len() > MOST_GROUPS {
        return false;
    }
    assert!(
        to.len() >= width * k.len() && first + width <= weights.n,
        "a panel of {width} columns over {k:?}"
    );
    for column in (0..width).step_by(LANES) {
        let columns = PanelColumns {
            weights,
            first: first + column,
            k: k.clone(),
            groups: groups.clone(),
            to: to[column..].as_mut_ptr(),
            width,
        };
        // SAFETY: the CPU has the instructions; the columns exist, and the panel has room for them.
        unsafe {
            if per_lane == Bytes::PER_LANE {
                columns.write::<Bytes>();
            } else {
                columns.write::<Nibbles>();
            }
        }
    }
    true
}

/// Sixteen columns of a panel.
struct PanelColumns<'a> {
    weights: &'a QuantizedMatrix<'a>,
    first: usize,
    k: Range<usize>,
    groups: Range<usize>,
    to: *mut f32,
    width: usize,
}

impl PanelColumns<'_> {
    /// # Safety
    /// [`is_supported`] said yes; the columns exist, in whole lanes with one scale each; `to` has a
    /// row of `width` numbers for each k.
    #[target_feature(enable = "avx512f,avx512bw")]
    unsafe fn write<C: Codes>(&self) {
        let PanelColumns { weights, first, k, groups, .. } = self;
        let (dtype, block) = (weights.codes.dtype(), LANES * C::PER_LANE);
        // For each group, those of the sixteen columns.
        let mut scales = [[[0.0_f32; LANES]; 2]; MOST_GROUPS];
        for column in 0..LANES {
            let (mut of_column, mut zeros) = ([0.0; MOST_GROUPS], [0.0; MOST_GROUPS]);
            let room = [&mut of_column[..groups.len()], &mut zeros[..groups.len()]];
            weights.scales(first + column, groups.clone(), room);
            for (group, scales) in scales[..groups.len()].iter_mut().enumerate() {
                (scales[0][column], scales[1][column]) = (of_column[group], zeros[group]);
            }
        }
        let stride = weights.k * dtype.bits() / 8;
        let codes = weights.codes.from(first * weights.k + k.start).as_ptr();
        // SAFETY: loads of codes are masked to those that exist; a store fills sixteen columns of
        // one k, for which `to` has room.
        unsafe {
            let format = C::new(dtype);
            for (index, at) in (0..k.len()).step_by(block).enumerate() {
                let left = (k.len() - at).min(block);
                let mask = u64::MAX >> (64 - left * 4 / C::PER_LANE);
                let words: [__m512i; LANES] = std::array::from_fn(|column| {
                    let from = codes.wrapping_add(column * stride + index * 64);
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(64).cast());
                    _mm512_maskz_loadu_epi8(mask, from.cast())
                });
                let words = transposed(words);
                for (lane, &word) in words[..left / C::PER_LANE].iter().enumerate() {
                    let at = at + lane * C::PER_LANE;
                    let [scale, zero] = &scales[(k.start + at) / weights.group - groups.start];
                    let [scale, zero] = [scale, zero].map(|of| _mm512_loadu_ps(of.as_ptr()));
                    let mut word = word;
                    for turn in 0..C::PER_LANE {
                        let (numbers, rest) = format.next(word);
                        word = rest;
                        let to = self.to.add((at + C::place(turn)) * self.width);
                        _mm512_storeu_ps(to, _mm512_mul_ps(_mm512_sub_ps(numbers, zero), scale));
                    }
                }
            }
        }
    }
}

/// Element `i` of row `j` as element `j` of row `i`.
#[inline]
#[target_feature(enable = "avx512f")]
pub(super) fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    let zero = _mm512_setzero_si512();
    let (mut pairs, mut fours, mut columns) = ([zero; LANES], [zero; LANES], [zero; LANES]);
    for i in (0..LANES).step_by(2) {
        pairs[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        pairs[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    // Afterwards quarter `q` of `fours[4 g + i]` is column `4 q + i` of rows `4 g` to `4 g + 3`.
    for i in (0..LANES).step_by(4) {
        fours[i] = _mm512_unpacklo_epi64(pairs[i], pairs[i + 2]);
        fours[i + 1] = _mm512_unpackhi_epi64(pairs[i], pairs[i + 2]);
        fours[i + 2] = _mm512_unpacklo_epi64(pairs[i + 1], pairs[i + 3]);
        fours[i + 3] = _mm512_unpackhi_epi64(pairs[i + 1], pairs[i + 3]);
    }
    for i in 0..4 {
        let even = |a, b| _mm512_shuffle_i32x4::<0x88>(a, b);
        let odd = |a, b| _mm512_shuffle_i32x4::<0xdd>(a, b);
        let (a, b) = (even(fours[i], fours[4 + i]), even(fours[8 + i], fours[12 + i]));
        let (c, d) = (odd(fours[i], fours[4 + i]), odd(fours[8 + i], fours[12 + i]));
        columns[i] = even(a, b);
        columns[4 + i] = even(c, d);
        columns[8 + i] = odd(a, b);
        columns[12 + i] = odd(c, d);
    }
    columns
}
