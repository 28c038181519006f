//! Packing of operands whose k lie side by side: an 8 x 8 transposition of 32-bit units in AVX2
//! registers.
//!
//! A unit is an f32 or a pair of bf16; a transposition moves bits, so that one serves both.
#![allow(unsafe_code)] // Vector intrinsics on raw pointers.

use std::arch::x86_64::*;

use super::panel::OperandLines;
use crate::isa::InstructionSet;

/// Writes unit `k` of line `i` to `to[k * width + i]`, for as many k as fill blocks of eight.
/// Returns how many that were. Past the last line it writes that line again. `block` counts bytes
/// in its strides and units in its `k`.
///
/// # Safety
/// Every unit of `block` can be read, and `to` has room for `block.k * width` units.
pub(super) unsafe fn transpose_units(block: OperandLines<u8>, width: usize, to: *mut u32) -> usize {
    if !InstructionSet::Avx2.is_usable() {
        return 0;
    }
    let whole = block.k / 8 * 8;
    for first in (0..width).step_by(8) {
        // The last eight overlap those before, where there are: a whole store is cheaper than a
        // masked one.
        let first = first.min(width.saturating_sub(8));
        let line = first.min(block.lines - 1);
        let part =
            OperandLines { from: block.at(line, 0), lines: (block.lines - line).min(8), ..block };
        // SAFETY: the CPU has AVX2; the lines can be read, and `to` has room for these lanes at
        // each unit.
        unsafe { transpose_eight(part, [whole, (width - first).min(8), width], to.add(first)) }
    }
    whole
}

/// Up to eight lines: `[k, used, width]` are the units to move, the lanes to write and the panel's
/// width.
#[target_feature(enable = "avx2")]
unsafe fn transpose_eight(block: OperandLines<u8>, [k, used, width]: [usize; 3], to: *mut u32) {
    let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(used as i32), lanes);
    let offsets: [usize; 8] =
        std::array::from_fn(|line| line.min(block.lines - 1) * block.line_stride);
    for k in (0..k).step_by(8) {
        if k % 16 == 0 {
            // Prefetches the same place in the next panel, while there is time.
            for line in 0..used {
                block.prefetch([line + width, k], 1);
            }
        }
        // SAFETY: eight units of each line can be read.
        let columns =
            unsafe { transpose(offsets.map(|offset| block.from.add(offset + 4 * k).cast())) };
        for (i, column) in columns.into_iter().enumerate() {
            // SAFETY: the panel has room for `used` lanes at each k.
            unsafe {
                let to = to.add((k + i) * width);
                if used == 8 {
                    _mm256_storeu_ps(to.cast(), column);
                } else {
                    _mm256_maskstore_ps(to.cast(), mask, column);
                }
            }
        }
    }
}

/// Eight units of each of eight lines, as columns, in three rounds: pairs of units, pairs of pairs,
/// halves.
#[target_feature(enable = "avx2")]
unsafe fn transpose(lines: [*const f32; 8]) -> [__m256; 8] {
    // SAFETY: each of the lines has eight units to read.
    let r = lines.map(|line| unsafe { _mm256_loadu_ps(line) });
    let lo = |i: usize| _mm256_unpacklo_ps(r[i], r[i + 1]);
    let hi = |i: usize| _mm256_unpackhi_ps(r[i], r[i + 1]);
    let t = [lo(0), hi(0), lo(2), hi(2), lo(4), hi(4), lo(6), hi(6)];
    let low = |a: usize, b: usize| _mm256_shuffle_ps::<0b01_00_01_00>(t[a], t[b]);
    let high = |a: usize, b: usize| _mm256_shuffle_ps::<0b11_10_11_10>(t[a], t[b]);
    let s = [
        low(0, 2),
        high(0, 2),
        low(1, 3),
        high(1, 3),
        low(4, 6),
        high(4, 6),
        low(5, 7),
        high(5, 7),
    ];
    let front = |i: usize| _mm256_permute2f128_ps::<0x20>(s[i], s[i + 4]);
    let back = |i: usize| _mm256_permute2f128_ps::<0x31>(s[i], s[i + 4]);
    [front(0), front(1), front(2), front(3), back(0), back(1), back(2), back(3)]
}
