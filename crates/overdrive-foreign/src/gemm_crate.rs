//! The `gemm` crate (MIT), with its AVX-512 kernels.

#![allow(unsafe_code)] // The crate's only entry point takes pointers.

use crate::matmul::check;
use gemm::Parallelism;

/// `gemm::gemm` on row-major slices.
pub fn gemm_matmul(threads: usize, a: &[f32], b: &[f32], c: &mut [f32], shape: [usize; 3]) {
    check([a.len(), b.len(), c.len()], shape);
    let [m, n, k] = shape;
    let parallelism = if threads == 1 { Parallelism::None } else { Parallelism::Rayon(threads) };
    let (row_of_a, row_of_b) = (k as isize, n as isize);
    // SAFETY: `check` has found m x k, k x n and m x n elements behind the three pointers.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c.as_mut_ptr(),
            1,
            row_of_b,
            false,
            a.as_ptr(),
            1,
            row_of_a,
            b.as_ptr(),
            1,
            row_of_b,
            0.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}
