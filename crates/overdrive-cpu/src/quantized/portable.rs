//! A few rows of x, for every format and every CPU. A piece of a row of weights becomes numbers on
//! the stack, and all rows of x are multiplied by it.
#![allow(unsafe_code)] // Sums in a task's own room.

use super::finish::Finish;
use super::matrix::QuantizedMatrix;
use crate::gemm::{ProductOutput, SumsTarget};
use crate::threads::Pool;

/// Elements of a piece.
const PIECE: usize = 512;
/// Sums that run side by side, so that the compiler may keep them in vectors.
const LANES: usize = 16;
/// Rows of weights that a task takes.
const TASK_ROWS: usize = 32;

/// `y = x w^T` for a few rows of x.
pub(super) fn run(
    pool: &Pool,
    x: &[f32],
    weights: &QuantizedMatrix<'_>,
    output: ProductOutput<'_, f32>,
) {
    let [n, k] = [weights.n, weights.k];
    let m = output.shape()[2];
    let target = SumsTarget::new(output);
    pool.run(n.div_ceil(TASK_ROWS), |task, worker| {
        let columns = task * TASK_ROWS..((task + 1) * TASK_ROWS).min(n);
        let sums = Finish::new(worker, &target, (m, columns.clone()), 0);
        let mut piece = [0.0_f32; PIECE];
        for row in columns {
            // SAFETY: `row` is one of the task's columns, so the sum is its own.
            (0..m).for_each(|i| unsafe { *sums.at(i, row) = 0.0 });
            for first in (0..k).step_by(PIECE) {
                let last = (first + PIECE).min(k);
                let piece = &mut piece[..last - first];
                weights.decode(row, first..last, piece);
                for i in 0..m {
                    let sum = dot(&x[i * k + first..i * k + last], piece);
                    // SAFETY: `row` is one of the task's columns, so the sum is its own.
                    unsafe { *sums.at(i, row) += sum }
                }
            }
        }
        // SAFETY: the loops above wrote every sum of the task.
        unsafe { sums.done() }
    });
}

fn dot(x: &[f32], w: &[f32]) -> f32 {
    let (whole_x, x) = x.as_chunks::<LANES>();
    let (whole_w, w) = w.as_chunks::<LANES>();
    let mut sums = [0.0_f32; LANES];
    for (x, w) in whole_x.iter().zip(whole_w) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * w[lane];
        }
    }
    sums.iter().sum::<f32>() + x.iter().zip(w).map(|(x, w)| x * w).sum::<f32>()
}
