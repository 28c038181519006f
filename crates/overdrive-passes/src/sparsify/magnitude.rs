//! Magnitude: the two largest weights of each four stay, whatever they multiply.
//!
//! Source: Mishra et al., "Accelerating sparse deep neural networks", arXiv:2104.08378.

use super::group::{GROUP, largest, zero};

/// Prunes rows of K.
pub(super) fn prune(rows: &mut [f64]) {
    rows.chunks_mut(GROUP).for_each(|w| {
        let kept = largest(w.iter().map(|w| w.abs()));
        zero(w, kept);
    });
}
