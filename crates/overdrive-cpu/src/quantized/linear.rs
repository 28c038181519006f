//! The choice of a way by the number of rows.

use super::matrix::QuantizedMatrix;
use super::portable;
use crate::gemm::{MicroKernel, ProductOutput, Rhs, View};
use crate::threads::Pool;

/// The most rows of x that weights stream past for. Beyond, multiply-adds and no longer memory
/// bound the product, and those of the packed product are better scheduled.
pub(super) const SKINNY_ROWS: usize = 12;

/// Numbers of room that [`linear`] wants for `m` rows of x, of `k` elements each.
pub fn room_floats(m: usize, k: usize) -> usize {
    // The larger of the arrangements of x: blocks of 64, and a sum for each four.
    if m > SKINNY_ROWS { 0 } else { m * k.next_multiple_of(128) / 4 * 5 }
}

/// `y = x w^T`, stored or handed to an epilogue: x `[.., M, K]`, row after row, and y `[.., M, N]`.
/// `room` holds [`room_floats`] for the rows of x and anything.
///
/// # Panics
/// If the lengths do not fit each other.
pub fn linear(
    pool: &Pool,
    x: &[f32],
    weights: &QuantizedMatrix<'_>,
    output: ProductOutput<'_, f32>,
    room: &mut [f32],
) {
    let ([outer, inner, m, n], k) = (output.shape(), weights.k);
    let rows = outer * inner * m;
    if rows * n == 0 {
        return;
    }
    assert_eq!((x.len(), n), (rows * k, weights.n), "x is [{rows}, {k}] and y [{rows}, {n}]");
    if rows > SKINNY_ROWS || rows > m {
        #[cfg(target_arch = "x86_64")]
        if let Some(split) = super::split::Split::of(weights) {
            split.run(pool, x, output);
            return;
        }
        let x = View::new(x, [outer, inner, m, k], [inner * m * k, m * k, k, 1]);
        MicroKernel::best().gemm(pool, x, Rhs::Made(weights), output);
        return;
    }
    assert!(room.len() >= room_floats(m, k), "room for {m} rows");
    #[cfg(target_arch = "x86_64")]
    if let Some(strips) = super::strips::Strips::of(weights) {
        strips.run(pool, x, output, room);
        return;
    }
    let _ = room;
    portable::run(pool, x, weights, output);
}
