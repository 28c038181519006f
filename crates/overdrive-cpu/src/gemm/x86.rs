//! AVX-512, AVX-512 BF16 and AVX2 micro-kernels.
#![allow(unsafe_code)] // Vector intrinsics on raw pointers; `simd.rs` says what they point to.

use std::arch::x86_64::*;

use super::simd::{PackedBlock, Simd, SimdTile, kernel, micro_kernel, simd, sweep};
use super::skinny::{self, Skinny};

/// Asks for a line.
#[inline(always)]
unsafe fn prefetch<T>(from: *const T) {
    // SAFETY: a prefetch never faults.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
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

simd!(I8x64: i32 => i32, [__m512i; 16], _mm512_setzero_si512, _mm512_loadu_epi32, _mm512_set1_epi32,
      dot_bytes, _mm512_loadu_epi32, _mm512_add_epi32, _mm512_storeu_epi32, head: true);
simd!(I16x16: i32 => i32, [__m256i; 8], _mm256_setzero_si256, load_eight, _mm256_set1_epi32,
      dot_words, load_eight, _mm256_add_epi32, store_eight);

/// Adds the dot products of groups of four: u8 of A, i8 of B. Sums wrap, which nothing short of
/// 131,072 products does.
#[inline(always)]
unsafe fn dot_bytes(a: __m512i, b: __m512i, acc: __m512i) -> __m512i {
    // SAFETY: only `i8_vnni` calls this, where AVX512-VNNI is.
    unsafe { _mm512_dpbusd_epi32(acc, a, b) }
}

/// Adds the dot products of pairs of i16.
#[inline(always)]
unsafe fn dot_words(a: __m256i, b: __m256i, acc: __m256i) -> __m256i {
    // SAFETY: only `i8_avx2` calls this, where AVX2 is.
    unsafe { _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)) }
}

#[inline(always)]
unsafe fn load_eight(from: *const i32) -> __m256i {
    // SAFETY: micro-kernels pass only pointers with a vector behind them, where AVX2 is.
    unsafe { _mm256_loadu_si256(from.cast()) }
}

#[inline(always)]
unsafe fn store_eight(to: *mut i32, vector: __m256i) {
    // SAFETY: micro-kernels pass only pointers with room for a vector, where AVX2 is.
    unsafe { _mm256_storeu_si256(to.cast(), vector) }
}

/// Sixteen pairs of bf16; the micro-kernel's vectors are all of one type, so that they travel as
/// f32.
#[inline(always)]
unsafe fn load_pairs(from: *const i32) -> __m512 {
    // SAFETY: micro-kernels pass only pointers with a vector behind them, where AVX-512 is.
    unsafe { _mm512_loadu_ps(from.cast()) }
}

#[inline(always)]
unsafe fn splat_pair(pair: i32) -> __m512 {
    // SAFETY: only `bf16_avx512` calls this, where AVX-512 is.
    unsafe { _mm512_castsi512_ps(_mm512_set1_epi32(pair)) }
}

/// Adds the dot products of pairs.
#[inline(always)]
unsafe fn dot_pairs(a: __m512, b: __m512, acc: __m512) -> __m512 {
    // SAFETY: only `bf16_avx512` calls this, where AVX512-BF16 is; a vector of pairs has the bits
    // of a vector of f32.
    unsafe {
        let [a, b] = [a, b].map(|pairs| std::mem::transmute::<__m512, __m512bh>(pairs));
        _mm512_dpbf16_ps(acc, a, b)
    }
}

kernel! {
    /// f32 with AVX-512: 28 accumulators, 2 registers for a row of B and 1 for an element of A, of
    /// 32.
    ///
    /// # Safety
    /// The CPU has AVX-512F; the block is as [`PackedBlock`] says, with panels of 14 and 32.
    #[target_feature(enable = "avx512f")]
    f32_avx512: F32x16, [14, 2], [14 1 2 3 4 5 6 7 8 9 10 11 12 13]
}

kernel! {
    /// bf16 with AVX512-BF16: the same shape, with a pair of k where f32 has one.
    ///
    /// # Safety
    /// The CPU has AVX-512F and BF16; the block is as [`PackedBlock`] says, with panels of 14 and
    /// 32 in pairs of k.
    #[target_feature(enable = "avx512f,avx512bf16")]
    bf16_avx512: Bf16x16, [14, 2], [14 1 2 3 4 5 6 7 8 9 10 11 12 13]
}

kernel! {
    /// i8 with AVX512-VNNI: the same shape, with four k where f32 has one.
    ///
    /// # Safety
    /// The CPU has AVX-512F and VNNI. The block is as [`PackedBlock`] says, in groups of four k.
    /// Panels of A are 14 wide and shifted by 128. Panels of B are 32 wide, with heads that take
    /// the shift back.
    #[target_feature(enable = "avx512f,avx512vnni")]
    i8_vnni: I8x64, [14, 2], [14 1 2 3 4 5 6 7 8 9 10 11 12 13]
}

kernel! {
    /// i8 with AVX2: pairs of i16, whose products no instruction saturates.
    ///
    /// # Safety
    /// The CPU has AVX2; the block is as [`PackedBlock`] says, with panels of 6 and 16 in pairs of
    /// i16.
    #[target_feature(enable = "avx2")]
    i8_avx2: I16x16, [6, 2], [6 1 2 3 4 5]
}

kernel! {
    /// f64 with AVX-512: the same shape, half as wide.
    ///
    /// # Safety
    /// The CPU has AVX-512F; the block is as [`PackedBlock`] says, with panels of 14 and 16.
    #[target_feature(enable = "avx512f")]
    f64_avx512: F64x8, [14, 2], [14 1 2 3 4 5 6 7 8 9 10 11 12 13]
}

kernel! {
    /// f32 with AVX2: 12 accumulators, 2 for B and 1 for A, of 16.
    ///
    /// # Safety
    /// The CPU has AVX2 and FMA; the block is as [`PackedBlock`] says, with panels of 6 and 16.
    #[target_feature(enable = "avx2,fma")]
    f32_avx2: F32x8, [6, 2], [6 1 2 3 4 5]
}

kernel! {
    /// f64 with AVX2: the same shape, half as wide.
    ///
    /// # Safety
    /// The CPU has AVX2 and FMA; the block is as [`PackedBlock`] says, with panels of 6 and 8.
    #[target_feature(enable = "avx2,fma")]
    f64_avx2: F64x4, [6, 2], [6 1 2 3 4 5]
}

skinny::kernel! {
    /// Skinny GEMM with AVX-512F.
    ///
    /// # Safety
    /// The CPU has AVX-512F; the problem is as [`Skinny`] says.
    #[target_feature(enable = "avx512f")]
    f32_avx512_skinny: F32x16
}

skinny::kernel! {
    /// Skinny GEMM with AVX-512F.
    ///
    /// # Safety
    /// The CPU has AVX-512F; the problem is as [`Skinny`] says.
    #[target_feature(enable = "avx512f")]
    f64_avx512_skinny: F64x8
}

skinny::kernel! {
    /// Skinny GEMM with AVX2 and FMA.
    ///
    /// # Safety
    /// The CPU has AVX2 and FMA; the problem is as [`Skinny`] says.
    #[target_feature(enable = "avx2,fma")]
    f32_avx2_skinny: F32x8
}

skinny::kernel! {
    /// Skinny GEMM with AVX2 and FMA.
    ///
    /// # Safety
    /// The CPU has AVX2 and FMA; the problem is as [`Skinny`] says.
    #[target_feature(enable = "avx2,fma")]
    f64_avx2_skinny: F64x4
}
