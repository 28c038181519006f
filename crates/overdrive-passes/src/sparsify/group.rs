//! Groups of four weights; two of each are kept.

/// Weights that are chosen from together.
pub(super) const GROUP: usize = 4;
/// Weights that stay of them.
pub(super) const KEPT: usize = 2;

/// The places of the largest scores of a group.
pub(super) fn largest(scores: impl Iterator<Item = f64>) -> [bool; GROUP] {
    let mut order: Vec<(usize, f64)> = scores.enumerate().collect();
    order.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut kept = [false; GROUP];
    order.iter().take(KEPT).for_each(|(i, _)| kept[*i] = true);
    kept
}

/// Zeros for what does not stay.
pub(super) fn zero(w: &mut [f64], kept: [bool; GROUP]) {
    w.iter_mut().zip(kept).for_each(|(w, kept)| *w = if kept { *w } else { 0.0 });
}
