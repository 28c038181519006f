//! NEON micro-kernels.
#![allow(unsafe_code)] // Vector intrinsics on raw pointers; `simd.rs` says what they point to.

use std::arch::aarch64::*;

use super::simd::{PackedBlock, Simd, Tile, micro_kernel, sweep};
use super::skinny::{self, Skinny};

/// Implements [`Simd`] from the names of the intrinsics of one format.
macro_rules! simd {
    ($name:ident: $scalar:ty, [$vector:ty; $lanes:literal], $splat:ident, $load:ident, $fma:ident,
        $add:ident,
     $store:ident) => {
        #[derive(Clone, Copy)]
        struct $name;

        impl Simd for $name {
            type Unit = $scalar;
            type Acc = $scalar;
            type Vector = $vector;
            const LANES: usize = $lanes;
            const HEAD: bool = false;

            #[inline(always)]
            unsafe fn zero() -> Self::Vector {
                // SAFETY: every aarch64 CPU that Rust's standard library runs on has NEON; so for
                // each that follows.
                unsafe { $splat(0.0) }
            }
            #[inline(always)]
            unsafe fn load(from: *const Self::Unit) -> Self::Vector {
                // SAFETY: the caller's pointer has a vector behind it.
                unsafe { $load(from) }
            }
            #[inline(always)]
            unsafe fn splat(from: *const Self::Unit) -> Self::Vector {
                // SAFETY: the caller's pointer has an element behind it.
                unsafe { $splat(*from) }
            }
            #[inline(always)]
            unsafe fn fma(a: Self::Vector, b: Self::Vector, acc: Self::Vector) -> Self::Vector {
                // SAFETY: the kernels below run only where the instructions exist.
                unsafe { $fma(acc, a, b) }
            }
            #[inline(always)]
            unsafe fn add_to(acc: Self::Vector, to: *mut Self::Acc) {
                // SAFETY: the caller's pointer has a vector behind it.
                unsafe { $store(to, $add($load(to), acc)) }
            }
            #[inline(always)]
            unsafe fn store(acc: Self::Vector, to: *mut Self::Acc) {
                // SAFETY: the caller's pointer has room for a vector.
                unsafe { $store(to, acc) }
            }
            /// Nothing: the intrinsic is not stable, and these CPUs prefetch well by themselves.
            #[inline(always)]
            unsafe fn prefetch<T>(_: *const T) {}
        }
    };
}

simd!(F32x4: f32, [float32x4_t; 4], vdupq_n_f32, vld1q_f32, vfmaq_f32, vaddq_f32, vst1q_f32);
simd!(F64x2: f64, [float64x2_t; 2], vdupq_n_f64, vld1q_f64, vfmaq_f64, vaddq_f64, vst1q_f64);

/// Calls the micro-kernel with as many rows as the tile has.
macro_rules! by_rows {
    ($simd:ty, $tile:expr) => {
        match $tile.rows {
            1 => micro_kernel::<$simd, 8, 1, 3>($tile),
            2 => micro_kernel::<$simd, 8, 2, 3>($tile),
            3 => micro_kernel::<$simd, 8, 3, 3>($tile),
            4 => micro_kernel::<$simd, 8, 4, 3>($tile),
            5 => micro_kernel::<$simd, 8, 5, 3>($tile),
            6 => micro_kernel::<$simd, 8, 6, 3>($tile),
            7 => micro_kernel::<$simd, 8, 7, 3>($tile),
            _ => micro_kernel::<$simd, 8, 8, 3>($tile),
        }
    };
}

/// f32: 24 accumulators, 3 registers for a row of B and 1 for an element of A, of 32.
///
/// # Safety
/// The block is as [`PackedBlock`] says, with panels of 8 and 12.
pub(super) unsafe fn f32_neon(block: &PackedBlock<f32>) {
    // SAFETY: as the caller promised.
    unsafe { sweep::<F32x4, 8, 3>(block, |tile: Tile<'_, F32x4>| by_rows!(F32x4, tile)) }
}

/// f64: the same shape, half as wide.
///
/// # Safety
/// The block is as [`PackedBlock`] says, with panels of 8 and 6.
pub(super) unsafe fn f64_neon(block: &PackedBlock<f64>) {
    // SAFETY: as the caller promised.
    unsafe { sweep::<F64x2, 8, 3>(block, |tile: Tile<'_, F64x2>| by_rows!(F64x2, tile)) }
}

/// Skinny GEMM of f32.
///
/// # Safety
/// The problem is as [`Skinny`] says.
pub(super) unsafe fn f32_neon_skinny(problem: Skinny<f32>) {
    // SAFETY: as the caller promised.
    unsafe { skinny::skinny!(F32x4, problem) }
}

/// Skinny GEMM of f64.
///
/// # Safety
/// The problem is as [`Skinny`] says.
pub(super) unsafe fn f64_neon_skinny(problem: Skinny<f64>) {
    // SAFETY: as the caller promised.
    unsafe { skinny::skinny!(F64x2, problem) }
}
