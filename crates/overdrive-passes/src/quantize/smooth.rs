//! SmoothQuant: moves the size of outlying input channels from activations, which share a scale, into the weights.
//!
//! `f_k = max|x_k|^α / max|w_k|^(1 - α)` for each input channel k. Source: Xiao et al., arXiv:2211.10438, equation 4.

use super::layers::{LayerKind, layers};
use super::rescale::rescale;
use crate::{Evidence, Statistic};
use overdrive_ir::{Graph, GraphError};
use std::collections::BTreeMap;

/// The graph with smoothed linear layers, `strength` being α, 0 to 1. Layers without evidence stay.
///
/// # Errors
/// When the graph is damaged.
pub fn smooth(graph: &Graph, evidence: &Evidence, strength: f64) -> Result<Graph, GraphError> {
    let (found, _) = layers(graph)?;
    let mut factors = BTreeMap::new();
    for layer in found.iter().filter(|layer| layer.kind == LayerKind::Linear) {
        let Some(seen) = evidence.get(&layer.site, Statistic::ChannelMagnitude) else { continue };
        let k = layer.shape[1];
        let mut largest = vec![0.0f64; k];
        layer.rows(graph).iter().enumerate().for_each(|(i, w)| largest[i % k] = largest[i % k].max(w.abs()));
        let factor = |(x, w): (&f64, &f64)| match x.powf(strength) / w.powf(1.0 - strength) {
            // A channel that is always 0, or that no weight reads, has nothing to move.
            f if f.is_finite() && f > 0.0 => f,
            _ => 1.0,
        };
        factors.insert(layer.name.clone(), seen.iter().zip(&largest).map(factor).collect());
    }
    rescale(graph, &factors)
}
