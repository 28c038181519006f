//! Runs of numbers from one format to another: operands become wider, sums narrower.
#![allow(unsafe_code)] // One function of AVX-512.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::kernel::Element;
#[cfg(target_arch = "x86_64")]
use crate::isa::InstructionSet;
use crate::loops::half::to_bf16;

/// A format that sums can be rounded to.
pub(crate) trait Narrow: Element {
    /// Rounds a run of sums.
    fn narrow(from: &[Self::Acc], to: &mut [Self]);
}

/// A format whose every value `W` has too.
pub(crate) trait Widen<W>: Copy {
    /// Converts a run of elements.
    fn widen(from: &[Self], to: &mut [W]);
}

impl Narrow for f32 {
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}

impl Narrow for f64 {
    fn narrow(from: &[f64], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}

impl Narrow for f16 {
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

impl Narrow for bf16 {
    fn narrow(from: &[f32], to: &mut [Self]) {
        #[cfg(target_arch = "x86_64")]
        if InstructionSet::Avx512.is_usable() {
            // SAFETY: the CPU has AVX-512, as the line above asked.
            return unsafe { round_to_bf16_avx512(from, to) };
        }
        round_to_bf16(from, to);
    }
}

/// Rounds to nearest even.
#[inline(always)]
fn round_to_bf16(from: &[f32], to: &mut [bf16]) {
    for (from, to) in from.iter().zip(to) {
        *to = bf16::from_bits(to_bf16(*from));
    }
}

/// [`round_to_bf16`] in longer vectors.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn round_to_bf16_avx512(from: &[f32], to: &mut [bf16]) {
    round_to_bf16(from, to);
}

impl Widen<f32> for f32 {
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

impl Widen<f32> for f16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
}

impl Widen<f32> for bf16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        for (from, to) in from.iter().zip(to) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }
}

impl Widen<i16> for i8 {
    fn widen(from: &[Self], to: &mut [i16]) {
        from.iter().zip(to).for_each(|(&from, to)| *to = from.into());
    }
}

impl Widen<i32> for i8 {
    fn widen(from: &[Self], to: &mut [i32]) {
        from.iter().zip(to).for_each(|(&from, to)| *to = from.into());
    }
}
