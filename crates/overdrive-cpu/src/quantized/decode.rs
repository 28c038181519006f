//! Codes become numbers, sixteen at a time, with AVX-512.
#![allow(unsafe_code)] // Vector intrinsics on arrays of their length.

use std::arch::x86_64::*;

use overdrive_ir::DType;

use super::numbers::{DecodeTable, PackedNumbers};
use crate::isa::InstructionSet;

/// Lanes of a block.
pub(super) const LANES: usize = 16;

/// Whether the CPU has the vectors.
pub(super) fn is_supported() -> bool {
    InstructionSet::Avx512.is_usable()
}

/// Writes numbers `(code - zero) * scale` from element `first` on, as many as this CPU and the
/// format allow. Returns how many that were.
pub(super) fn decode(
    codes: PackedNumbers<'_>,
    first: usize,
    scale: [f32; 2],
    to: &mut [f32],
) -> usize {
    let dtype = codes.dtype();
    if !is_supported() || !(first * dtype.bits()).is_multiple_of(8) {
        return 0;
    }
    let (from, to) = (codes.from(first), to.as_chunks_mut().0);
    match dtype {
        // SAFETY: here and below, the CPU has the instructions: `is_supported` said so.
        DType::I8 => unsafe { decode_bytes(from.as_chunks().0, scale, to) },
        // SAFETY: as for bytes, `is_supported` said that the CPU has the instructions.
        _ if dtype.bits() == 4 => unsafe {
            decode_nibbles(from.as_chunks().0, DecodeTable::of(dtype), scale, to)
        },
        _ => 0,
    }
}

#[target_feature(enable = "avx512f")]
fn decode_nibbles(
    codes: &[[u8; 8]],
    table: &DecodeTable,
    [zero, scale]: [f32; 2],
    to: &mut [[f32; LANES]],
) -> usize {
    // SAFETY: the table has 256 numbers, and a vector is 16.
    let table = unsafe { _mm512_loadu_ps(table.0.as_ptr()) };
    let [zero, scale] = [zero, scale].map(|x| _mm512_set1_ps(x));
    // Eight codes are in the low half of each 64 bits, and eight in the high half.
    let halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    let shifts = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
    for (codes, to) in codes.iter().zip(&mut *to) {
        let both = _mm512_set1_epi64(i64::from_le_bytes(*codes));
        let lanes = _mm512_srlv_epi32(_mm512_permutexvar_epi32(halves, both), shifts);
        let numbers = _mm512_permutexvar_ps(lanes, table);
        // SAFETY: `to` is an array of sixteen numbers, one vector.
        unsafe {
            _mm512_storeu_ps(to.as_mut_ptr(), _mm512_mul_ps(_mm512_sub_ps(numbers, zero), scale))
        };
    }
    codes.len().min(to.len()) * LANES
}

#[target_feature(enable = "avx512f")]
fn decode_bytes(codes: &[[u8; LANES]], [zero, scale]: [f32; 2], to: &mut [[f32; LANES]]) -> usize {
    let [zero, scale] = [zero, scale].map(|x| _mm512_set1_ps(x));
    for (codes, to) in codes.iter().zip(&mut *to) {
        // SAFETY: sixteen codes are there, and room for as many numbers.
        unsafe {
            let numbers =
                _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(codes.as_ptr().cast())));
            _mm512_storeu_ps(to.as_mut_ptr(), _mm512_mul_ps(_mm512_sub_ps(numbers, zero), scale));
        }
    }
    codes.len().min(to.len()) * LANES
}
