//! SmoothQuant: moves the size of outlying input channels from activations, which share a scale,
//! into the weights.
//!
//! `f_k = max|x_k|^α / max|w_k|^(1 - α)` for each input channel k. Source: Xiao et al.,
//! arXiv:2211.10438, equation 4.

use super::held::LayerKind;
use super::layers::{Layer, Skipped, layers};
use super::rescale::rescale;
use super::streams::{Moved, NO_MAKER, streams};
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
        layer
            .rows(graph)
            .iter()
            .enumerate()
            .for_each(|(i, w)| largest[i % k] = largest[i % k].max(w.abs()));
        factors.insert(layer.name.clone(), of(seen, &largest, strength));
    }
    rescale(graph, &factors)
}

/// Like [`smooth`], for these layers where no node may be added. Factors go into the norm or the
/// gated layer that makes the inputs. The layers that read these inputs share the factors. Layers
/// whose inputs nothing can make smaller stay, and are listed.
///
/// # Errors
/// When the graph is damaged.
pub fn smooth_folded(
    graph: &Graph,
    evidence: &Evidence,
    strength: f64,
    among: &dyn Fn(&Layer) -> bool,
) -> Result<(Graph, Vec<Skipped>), GraphError> {
    let (mut found, _) = layers(graph)?;
    found.retain(among);
    let (mut moved, mut left) = (Moved::new(graph), Vec::new());
    for stream in streams(graph, &found) {
        let first = stream.layers[0];
        let seen = evidence.get(&first.site, Statistic::ChannelMagnitude);
        let (Some(maker), Some(seen)) = (&stream.maker, seen) else {
            let layer =
                |layer: &&Layer| Skipped { layer: layer.name.clone(), reason: NO_MAKER.into() };
            left.extend(stream.layers.iter().map(layer));
            continue;
        };
        let k = first.shape[1];
        let mut largest = vec![0.0f64; k];
        for layer in &stream.layers {
            let rows = moved.rows(layer);
            rows.iter().enumerate().for_each(|(i, w)| largest[i % k] = largest[i % k].max(w.abs()));
        }
        moved.fold(&stream, maker, &of(seen, &largest, strength));
    }
    Ok((moved.finish(), left))
}

/// Factors of channels by what was seen of them, and by the largest weight that reads each.
fn of(seen: &[f64], largest: &[f64], strength: f64) -> Vec<f64> {
    let factor = |(x, w): (&f64, &f64)| match x.powf(strength) / w.powf(1.0 - strength) {
        // A channel that is always 0, or that no weight reads, has nothing to move.
        f if f.is_finite() && f > 0.0 => f,
        _ => 1.0,
    };
    seen.iter().zip(largest).map(factor).collect()
}
