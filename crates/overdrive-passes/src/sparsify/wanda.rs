//! Wanda: of each four weights the two stay that are largest by the size of what they multiply,
//! `|w_k| · |x_k|₂`.
//!
//! Source: Sun et al., "A simple and effective pruning approach for large language models",
//! arXiv:2306.11695, equation 1.

use super::group::{GROUP, largest, zero};

/// Prunes rows of `k`; `gram` is `[K, K]`.
pub(super) fn prune(rows: &mut [f64], k: usize, gram: &[f64]) {
    for row in rows.chunks_mut(k) {
        for (at, w) in row.chunks_mut(GROUP).enumerate() {
            let seen = |i: usize| gram[(at * GROUP + i) * (k + 1)].sqrt();
            let kept = largest(w.iter().enumerate().map(|(i, w)| w.abs() * seen(i)));
            zero(w, kept);
        }
    }
}
