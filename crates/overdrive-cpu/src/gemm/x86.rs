//! AVX-512, AVX-512 BF16 and AVX2 micro-kernels.
#![allow(unsafe_code)] // Vector intrinsics on raw pointers; `simd.rs` says what they point to.

use std::arch::x86_64::*;

use super::few_rows::{self, FewRows};
use super::simd::{PackedBlock, Simd, Tile, micro_kernel, sweep};

/// Calls the micro-kernel with as many rows as the tile has.
macro_rules! by_rows {
    ($simd:ty, $mr:literal, $nv:literal, $tile:expr, [$($rows:literal)*]) => {
        match $tile.rows {
            $($rows => micro_kernel::<$simd, $mr, $rows, $nv>($tile),)*
            rows => unreachable!("a tile has 1 to {} rows, not {rows}", $mr),
        }
    };
}

/// Implements [`Simd`] from the names of an instruction set's intrinsics.
macro_rules! simd {
    ($name:ident: $unit:ty => $acc:ty, [$vector:ty; $lanes:literal],
     $zero:ident, $load:expr, $splat:expr, $fma:expr, $load_acc:ident, $add:ident, $store:ident) => {
        #[derive(Clone, Copy)]
        struct $name;

        impl Simd for $name {
            type Unit = $unit;
            type Acc = $acc;
            type Vector = $vector;
            const LANES: usize = $lanes;

            #[inline(always)]
            unsafe fn zero() -> Self::Vector {
                // SAFETY: the kernels below run only where the instructions exist; so for each that follows.
                unsafe { $zero() }
            }
            #[inline(always)]
            unsafe fn load(from: *const Self::Unit) -> Self::Vector {
                // SAFETY: the caller's pointer has a vector behind it.
                unsafe { $load(from) }
            }
            #[inline(always)]
            unsafe fn splat(from: *const Self::Unit) -> Self::Vector {
                // SAFETY: the caller's pointer has a unit behind it.
                unsafe { $splat(*from) }
            }
            #[inline(always)]
            unsafe fn fma(a: Self::Vector, b: Self::Vector, acc: Self::Vector) -> Self::Vector {
                // SAFETY: see `zero`.
                unsafe { $fma(a, b, acc) }
            }
            #[inline(always)]
            unsafe fn add_to(acc: Self::Vector, to: *mut Self::Acc) {
                // SAFETY: the caller's pointer has a vector of accumulators behind it.
                unsafe { $store(to, $add($load_acc(to), acc)) }
            }
            #[inline(always)]
            unsafe fn store(acc: Self::Vector, to: *mut Self::Acc) {
                // SAFETY: the caller's pointer has room for a vector of accumulators.
                unsafe { $store(to, acc) }
            }
            #[inline(always)]
            unsafe fn prefetch<T>(from: *const T) {
                // SAFETY: a prefetch never faults.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
            }
        }
    };
}

simd!(F32x16: f32 => f32, [__m512; 16], _mm512_setzero_ps, _mm512_loadu_ps, _mm512_set1_ps,
      _mm512_fmadd_ps, _mm512_loadu_ps, _mm512_add_ps, _mm512_storeu_ps);
simd!(F64x8: f64 => f64, [__m512d; 8], _mm512_setzero_pd, _mm512_loadu_pd, _mm512_set1_pd,
      _mm512_fmadd_pd, _mm512_loadu_pd, _mm512_add_pd, _mm512_storeu_pd);
simd!(F32x8: f32 => f32, [__m256; 8], _mm256_setzero_ps, _mm256_loadu_ps, _mm256_set1_ps,
      _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_add_ps, _mm256_storeu_ps);
simd!(F64x4: f64 => f64, [__m256d; 4], _mm256_setzero_pd, _mm256_loadu_pd, _mm256_set1_pd,
      _mm256_fmadd_pd, _mm256_loadu_pd, _mm256_add_pd, _mm256_storeu_pd);

simd!(Bf16x16: i32 => f32, [__m512; 16], _mm512_setzero_ps, load_pairs, splat_pair,
      dot_pairs, _mm512_loadu_ps, _mm512_add_ps, _mm512_storeu_ps);

/// Sixteen pairs of bf16; the micro-kernel's vectors are all of one type, so that they travel as f32.
#[inline(always)]
unsafe fn load_pairs(from: *const i32) -> __m512 {
    // SAFETY: as the caller promised.
    unsafe { _mm512_loadu_ps(from.cast()) }
}

#[inline(always)]
unsafe fn splat_pair(pair: i32) -> __m512 {
    // SAFETY: called where AVX-512 is.
    unsafe { _mm512_castsi512_ps(_mm512_set1_epi32(pair)) }
}

/// Adds the dot products of pairs.
#[inline(always)]
unsafe fn dot_pairs(a: __m512, b: __m512, acc: __m512) -> __m512 {
    // SAFETY: called where AVX512-BF16 is; a vector of pairs has the bits of a vector of f32.
    unsafe {
        let [a, b] = [a, b].map(|pairs| std::mem::transmute::<__m512, __m512bh>(pairs));
        _mm512_dpbf16_ps(acc, a, b)
    }
}

/// f32 with AVX-512: 28 accumulators, 2 registers for a row of B and 1 for an element of A, of 32.
///
/// # Safety
/// The CPU has AVX-512F; the block is as [`PackedBlock`] says, with panels of 14 and 32.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn f32_avx512(block: &PackedBlock<f32>) {
    // SAFETY: as the caller promised.
    unsafe {
        sweep::<F32x16, 14, 2>(
            block,
            |tile: Tile<'_, F32x16>| by_rows!(F32x16, 14, 2, tile, [14 1 2 3 4 5 6 7 8 9 10 11 12 13]),
        );
    }
}

/// bf16 with AVX512-BF16: the same shape, with a pair of k where f32 has one.
///
/// # Safety
/// The CPU has AVX-512F and BF16; the block is as [`PackedBlock`] says, with panels of 14 and 32 in pairs of k.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(super) unsafe fn bf16_avx512(block: &PackedBlock<f32>) {
    // SAFETY: as the caller promised.
    unsafe {
        sweep::<Bf16x16, 14, 2>(
            block,
            |tile: Tile<'_, Bf16x16>| by_rows!(Bf16x16, 14, 2, tile, [14 1 2 3 4 5 6 7 8 9 10 11 12 13]),
        );
    }
}

/// f64 with AVX-512: the same shape, half as wide.
///
/// # Safety
/// The CPU has AVX-512F; the block is as [`PackedBlock`] says, with panels of 14 and 16.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn f64_avx512(block: &PackedBlock<f64>) {
    // SAFETY: as the caller promised.
    unsafe {
        sweep::<F64x8, 14, 2>(
            block,
            |tile: Tile<'_, F64x8>| by_rows!(F64x8, 14, 2, tile, [14 1 2 3 4 5 6 7 8 9 10 11 12 13]),
        );
    }
}

/// f32 with AVX2: 12 accumulators, 2 for B and 1 for A, of 16.
///
/// # Safety
/// The CPU has AVX2 and FMA; the block is as [`PackedBlock`] says, with panels of 6 and 16.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn f32_avx2(block: &PackedBlock<f32>) {
    // SAFETY: as the caller promised.
    unsafe {
        sweep::<F32x8, 6, 2>(block, |tile: Tile<'_, F32x8>| by_rows!(F32x8, 6, 2, tile, [6 1 2 3 4 5]));
    }
}

/// f64 with AVX2: the same shape, half as wide.
///
/// # Safety
/// The CPU has AVX2 and FMA; the block is as [`PackedBlock`] says, with panels of 6 and 8.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn f64_avx2(block: &PackedBlock<f64>) {
    // SAFETY: as the caller promised.
    unsafe {
        sweep::<F64x4, 6, 2>(block, |tile: Tile<'_, F64x4>| by_rows!(F64x4, 6, 2, tile, [6 1 2 3 4 5]));
    }
}

/// A few rows with AVX-512F.
///
/// # Safety
/// The CPU has AVX-512F; the problem is as [`FewRows`] says.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn f32_avx512_few_rows(problem: FewRows<f32>) {
    // SAFETY: as the caller promised.
    unsafe { few_rows::few_rows!(F32x16, problem) }
}

/// A few rows with AVX-512F.
///
/// # Safety
/// The CPU has AVX-512F; the problem is as [`FewRows`] says.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn f64_avx512_few_rows(problem: FewRows<f64>) {
    // SAFETY: as the caller promised.
    unsafe { few_rows::few_rows!(F64x8, problem) }
}

/// A few rows with AVX2 and FMA.
///
/// # Safety
/// The CPU has AVX2 and FMA; the problem is as [`FewRows`] says.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn f32_avx2_few_rows(problem: FewRows<f32>) {
    // SAFETY: as the caller promised.
    unsafe { few_rows::few_rows!(F32x8, problem) }
}

/// A few rows with AVX2 and FMA.
///
/// # Safety
/// The CPU has AVX2 and FMA; the problem is as [`FewRows`] says.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn f64_avx2_few_rows(problem: FewRows<f64>) {
    // SAFETY: as the caller promised.
    unsafe { few_rows::few_rows!(F64x4, problem) }
}
