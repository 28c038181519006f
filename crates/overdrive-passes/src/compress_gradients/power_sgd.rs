//! PowerSGD: two thin factors of each matrix, with error feedback.
//!
//! A gradient of more dimensions is a matrix `[n, m]` of its first and all others. With `M_r = g_r
//! + e_r` on rank r and the factor Q `[m, rank]` of the step before:
//!
//! 1. `P = orthonormal(sum over r of M_r Q)`, an all-reduce of `[n, rank]`;
//! 2. `Q_r = M_r^T P`, and `Q' = sum over r of Q_r`, an all-reduce of `[m, rank]`;
//! 3. the result is `P Q'^T = P P^T (sum over r of M_r)`, the sum on the span of P;
//! 4. `e_r' = M_r - P Q_r^T`, the part of this rank's matrix outside that span.
//!
//! The paper has means over ranks: the same, divided by the number of ranks in 2 and 3. Its
//! Algorithm 2 has the local error of 4 too. An error against the mean (`M_r - P Q'^T / ranks`)
//! would have the same sum, but each rank's would keep how much its batch differs from others, and
//! grow. Source: Vogels et al., "PowerSGD: practical low-rank gradient compression for distributed
//! optimization", arXiv:1905.13727.
//!
//! Factors stand transposed, `[rank, n]` and `[rank, m]`, so that a column is contiguous. The span
//! of Q alone matters, so Q is kept with 1 as its largest element: squares of small gradients would
//! be 0. A column that is 0 or not finite stays as it was before, or it would be 0 for ever.

use super::wire::{Differs, Wire, keep};
use overdrive_ir::{Binary, Compare, Expr, Init, Reducer, TensorType, Unary};

/// Share of its squared length that a column must keep without the columns before it; less is
/// rounding, no direction of its own.
const INDEPENDENT: f64 = 1e-10;

/// The sum over ranks, on the span of `rank` columns.
pub(super) fn sum<'b>(
    wire: &mut Wire<'_>,
    (number, x): (usize, Expr<'b>),
    rank: usize,
) -> Expr<'b> {
    let (b, sizes, wide) = (x.builder(), x.sizes(), x.widen());
    let [n, m] = [sizes[0], sizes[1..].iter().product()];
    let state = |role: &str| format!("compression.{number}.{role}");
    let [error, factor] = ["error", "q"].map(state);
    let old = wire.state(b, &error, &wide.ty(), (Init::ZEROS, Differs::OnAllRanks));
    let random = Init::Normal { std: 1.0, seed: 0 };
    let ty = TensorType::new(wide.dtype(), [rank, m]);
    let q = wire.state(b, &factor, &ty, (random, Differs::AlongOtherAxes));
    let matrix = (wide + old).reshape([n, m]);
    let p = orthonormal(wire.all_reduce(q.dot(matrix, &[], &[(1, 1)])));
    let own = p.dot(matrix, &[], &[(1, 0)]);
    let all = wire.all_reduce(own);
    let product = |q: Expr<'b>| p.dot(q, &[], &[(0, 0)]);
    keep(&error, [old, (matrix - product(own)).reshape(sizes.clone())]);
    let largest = magnitude(all);
    let is = |kind, bound: f64| largest.compare(kind, largest.constant(bound));
    let is_direction = is(Compare::Gt, 0.0).binary(Binary::And, is(Compare::Lt, f64::INFINITY));
    keep(&factor, [q, is_direction.select(all / largest, q)]);
    product(all).reshape(sizes)
}

/// The largest magnitude of each row of `[rows, n]`, as `[rows, 1]`.
fn magnitude(rows: Expr<'_>) -> Expr<'_> {
    rows.unary(Unary::Abs).reduce_keep(Reducer::Max, &[1])
}

/// Rows with the same span, orthogonal and of length 1; 0 in place of a row that depends on those
/// before it. Gram-Schmidt, each projection twice: once would leave rounding of the size of what is
/// left. Source: Giraud et al., "Rounding error analysis of the classical Gram-Schmidt
/// orthogonalization process", 2005. NaN stays NaN.
fn orthonormal<'b>(rows: Expr<'b>) -> Expr<'b> {
    let (b, largest) = (rows.builder(), magnitude(rows));
    let is_zero = largest.compare(Compare::Eq, largest.constant(0.0));
    let rows = rows / is_zero.select(largest.constant(1.0), largest);
    let square = |row: Expr<'b>| (row * row).reduce_keep(Reducer::Sum, &[1]);
    let mut found: Vec<Expr<'b>> = vec![];
    for at in 0..rows.size(0) {
        let whole = rows.slice_axis(0, at, at + 1);
        let mut rest = whole;
        if !found.is_empty() {
            let before = b.concat(&found, 0);
            for _ in 0..2 {
                let along = before.dot(rest, &[], &[(1, 1)]);
                rest = rest - along.dot(before, &[], &[(0, 0)]);
            }
        }
        let left = square(rest);
        let depends = left.compare(Compare::Le, square(whole) * INDEPENDENT);
        found.push(depends.select(rest.constant(0.0), rest * left.rsqrt()));
    }
    b.concat(&found, 0)
}
