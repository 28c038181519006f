//! NEON micro-kernels.
#![allow(unsafe_code)] // Vector intrinsics on raw pointers; `simd.rs` says what they point to.

use std::arch::aarch64::*;

use super::simd::{PackedBlock, Simd, SimdTile, kernel, micro_kernel, simd, sweep};
use super::skinny::{self, Skinny};

/// Nothing: the intrinsic is not stable, and these CPUs prefetch well by themselves.
#[inline(always)]
unsafe fn prefetch<T>(_: *const T) {}

/// The forms of operations that NEON has under another name or with its operands in another order.
macro_rules! forms {
    ($zero:ident, $fma:ident: $vector:ty, $splat:ident, $multiply_add:ident) => {
        #[inline(always)]
        unsafe fn $zero() -> $vector {
            // SAFETY: every aarch64 CPU that Rust's standard library runs on has NEON.
            unsafe { $splat(0.0) }
        }

        #[inline(always)]
        unsafe fn $fma(a: $vector, b: $vector, acc: $vector) -> $vector {
            // SAFETY: every aarch64 CPU that Rust's standard library runs on has NEON.
            unsafe { $multiply_add(acc, a, b) }
        }
    };
}

forms!(zero_f32, fma_f32: float32x4_t, vdupq_n_f32, vfmaq_f32);
forms!(zero_f64, fma_f64: float64x2_t, vdupq_n_f64, vfmaq_f64);

simd!(F32x4: f32 => f32, [float32x4_t; 4], zero_f32, vld1q_f32, vdupq_n_f32, fma_f32, vld1q_f32,
      vaddq_f32, vst1q_f32);
simd!(F64x2: f64 => f64, [float64x2_t; 2], zero_f64, vld1q_f64, vdupq_n_f64, fma_f64, vld1q_f64,
      vaddq_f64, vst1q_f64);

kernel! {
    /// f32: 24 accumulators, 3 registers for a row of B and 1 for an element of A, of 32.
    ///
    /// # Safety
    /// The block is as [`PackedBlock`] says, with panels of 8 and 12.
    f32_neon: F32x4, [8, 3], [1 2 3 4 5 6 7 8]
}

kernel! {
    /// f64: the same shape, half as wide.
    ///
    /// # Safety
    /// The block is as [`PackedBlock`] says, with panels of 8 and 6.
    f64_neon: F64x2, [8, 3], [1 2 3 4 5 6 7 8]
}

skinny::kernel! {
    /// Skinny GEMM of f32.
    ///
    /// # Safety
    /// The problem is as [`Skinny`] says.
    f32_neon_skinny: F32x4
}

skinny::kernel! {
    /// Skinny GEMM of f64.
    ///
    /// # Safety
    /// The problem is as [`Skinny`] says.
    f64_neon_skinny: F64x2
}
