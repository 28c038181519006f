//! The choice of a way by the number of rows.

use super::rows;
use super::weights::Weights;
use crate::gemm::{Kernel, Output, Rhs, View, ViewMut};
use crate::threads::Pool;

/// The most rows of x that weights stream past for. Beyond, multiply-adds and no longer memory bound the product, and
/// those of the packed product are better scheduled.
pub(super) const FEW_ROWS: usize = 12;

/// Numbers of room that [`product`] wants for `m` rows of x, of `k` elements each.
pub fn room_floats(m: usize, k: usize) -> usize {
    // The larger of the arrangements of x: blocks of 64, and a sum for each four.
    if m > FEW_ROWS { 0 } else { m * k.next_multiple_of(128) / 4 * 5 }
}

/// `y = x w^T`: x `[M, K]` and y `[M, N]`, row after row; `room` holds [`room_floats`] and anything.
///
/// # Panics
/// If the lengths do not fit each other.
pub fn product(pool: &Pool, x: &[f32], weights: &Weights<'_>, y: &mut [f32], room: &mut [f32]) {
    let [n, k] = [weights.n, weights.k];
    if y.is_empty() {
        return;
    }
    let m = y.len() / n;
    assert_eq!((x.len(), y.len()), (m * k, m * n), "x is [M, {k}] and y [M, {n}]");
    if m > FEW_ROWS {
        let (x, y) = (View::matrix(x, m, k), ViewMut::matrix(y, m, n));
        Kernel::best().gemm(pool, x, Rhs::Made(weights), Output::Store(y));
        return;
    }
    assert!(room.len() >= room_floats(m, k), "room for {m} rows");
    #[cfg(target_arch = "x86_64")]
    if let Some(strips) = super::strips::Strips::of(weights) {
        strips.run(pool, x, y, room);
        return;
    }
    let _ = room;
    rows::run(pool, m, x, weights, y);
}

/// A pointer that tasks share; each writes to places of its own.
#[derive(Clone, Copy)]
pub(super) struct Shared(pub(super) *mut f32);

#[allow(unsafe_code)]
// SAFETY: see above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(super) fn at(&self, offset: usize) -> *mut f32 {
        self.0.wrapping_add(offset)
    }
}
