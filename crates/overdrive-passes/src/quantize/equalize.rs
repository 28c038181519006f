//! Cross-layer equalization: scales the channels between two layers, so that the weights on both
//! sides have ranges of one size.
//!
//! For `W₂ f(W₁ x + b₁)` with a positively homogeneous f, channel i is divided by
//! `s_i = √(r₁ᵢ / r₂ᵢ)` where it is made, and multiplied by it where it is read. There `r₁ᵢ` is the
//! largest weight of row i of `W₁`, and `r₂ᵢ` the largest that reads channel i in `W₂`. Chains of
//! layers take turns until their ranges match. A batch norm behind `W₁` becomes part of it first:
//! its slope moves into the rows and leaves 1 behind, so that no node changes.
//!
//! The method knows weights alone. A channel whose weights are tiny and whose bias is not would
//! grow beyond all others, and the step of static activations with it. So if calibration saw the
//! channels, none becomes larger than the largest of them was. Invariant: the float model computes
//! the same, up to rounding.
//!
//! Source: Nagel et al., "Data-free quantization through weight equalization and bias correction",
//! arXiv:1906.04721, section 4.1, equation 11. There biases that grew are absorbed instead.

use super::held::LayerKind;
use super::homogeneous::Followed;
use super::layers::{Layer, Skipped, layers};
use super::streams::{Moved, norm_behind, own_state, values};
use crate::bind::dimension_names;
use crate::{Evidence, Statistic, bind};
use overdrive_ir::{Graph, GraphError, NodeId, Value};
use std::collections::BTreeMap;

/// Turns that a chain of layers may take.
const TURNS: usize = 20;
/// Ranges match when no factor is further from 1.
const MATCHED: f64 = 0.01;
/// A size for named dimensions: a prime, so that no product of other sizes looks like it.
const ANY_SIZE: usize = 7;

/// The graph with equalized channels between these layers, and the layers whose inputs stay as they
/// are. Without evidence the factors have no bound.
///
/// # Errors
/// When the graph is damaged.
pub fn equalize(
    graph: &Graph,
    evidence: &Evidence,
    among: &dyn Fn(&Layer) -> bool,
) -> Result<(Graph, Vec<Skipped>), GraphError> {
    let sizes = dimension_names(graph).into_iter().map(|name| (name, ANY_SIZE)).collect();
    let bound = bind(graph, &sizes)?;
    let (mut found, _) = layers(&bound)?;
    found.retain(among);
    let boundaries = boundaries(&bound, &found);
    let mut moved = Moved::new(graph);
    let norms = boundaries.iter().filter_map(|boundary| Some((boundary, boundary.norm.as_ref()?)));
    norms.for_each(|(boundary, norm)| norm.fold(boundary, &mut moved));
    let mut seen: Vec<Option<Vec<f64>>> =
        boundaries.iter().map(|boundary| boundary.seen(evidence)).collect();
    let largest = |seen: &Vec<f64>| seen.iter().fold(0.0f64, |most, x| most.max(*x));
    let limits: Vec<Option<f64>> = seen.iter().map(|seen| seen.as_ref().map(largest)).collect();
    for _ in 0..TURNS {
        let mut furthest = 0.0f64;
        for ((boundary, seen), limit) in boundaries.iter().zip(&mut seen).zip(&limits) {
            let mut factors = boundary.factors(&moved);
            if let (Some(seen), Some(limit)) = (seen, limit) {
                for (factor, seen) in factors.iter_mut().zip(seen) {
                    // A channel at the limit whose weights should grow stays.
                    *factor = factor.max(*seen / limit.max(f64::MIN_POSITIVE));
                    *seen /= *factor;
                }
            }
            furthest = factors.iter().fold(furthest, |most, f| most.max((f - 1.0).abs()));
            boundary.scale(&mut moved, &factors);
        }
        if furthest < MATCHED {
            break;
        }
    }
    let is_left = |layer: &&Layer| {
        let reads = |boundary: &Boundary<'_>| boundary.readers.iter().any(|(r, _)| r == layer);
        !boundaries.iter().any(reads)
    };
    let left = found.iter().filter(is_left).map(left_as_it_is).collect();
    Ok((moved.finish(), left))
}

fn left_as_it_is(layer: &Layer) -> Skipped {
    let reason = "its inputs have factors that no layer before it can take (they pass a sum, a \
                  function that is not homogeneous, or another reader): ranges stay as they were";
    Skipped { layer: layer.name.clone(), reason: reason.to_owned() }
}

/// The channels between a layer and those that read them.
struct Boundary<'l> {
    made_by: &'l Layer,
    /// States of one element a channel that are divided with the rows: biases, means.
    vectors: Vec<String>,
    norm: Option<Norm>,
    /// Layers, and how many of their inputs share a channel.
    readers: Vec<(&'l Layer, usize)>,
}

/// A batch norm behind a layer.
struct Norm {
    /// The state of its factors.
    scale: String,
    /// States that its slope moves into: the mean, and the bias of the layer.
    before: Vec<String>,
    /// `√(σ² + ε)`, by which the factors have slope 1.
    deviation: Vec<f64>,
}

/// The boundaries of these layers, in order.
fn boundaries<'l>(graph: &Graph, found: &'l [Layer]) -> Vec<Boundary<'l>> {
    let uses = graph.use_counts();
    let followed = Followed::new(graph);
    let products: BTreeMap<u32, &Layer> = found
        .iter()
        .flat_map(|layer| layer.parts.iter().map(move |part| (part.node.0, layer)))
        .collect();
    let reads = |id: NodeId| {
        let layer = products.get(&id.0)?;
        Some(layer.kind.channel_axis(graph.ty(graph.node(id).operands[0]).rank()))
    };
    let boundary = |layer: &'l Layer| -> Option<Boundary<'l>> {
        let [part] = &layer.parts[..] else { return None };
        let node = graph.node(part.node);
        let own = |value: Value| own_state(graph, &uses, value);
        let mut vectors = Vec::new();
        if let Some(bias) = node.operands.get(2) {
            vectors.push(own(*bias)?);
        }
        let made = node.results[0];
        let axis = layer.kind.channel_axis(graph.ty(made).rank());
        let behind = own_norm(graph, &uses, (layer, made), &mut vectors);
        let (value, norm) = behind.map_or((made, None), |(value, norm)| (value, Some(norm)));
        let mut readers: Vec<(&Layer, usize)> = Vec::new();
        for reader in followed.readers((value, axis), &reads)? {
            let reading = products[&reader.node.0];
            if !readers.iter().any(|(known, _)| *known == reading) {
                readers.push((reading, reader.spread));
            }
        }
        let is_whole = part.rows == (0..layer.shape[0]);
        is_whole.then_some(Boundary { made_by: layer, vectors, norm, readers })
    };
    found.iter().filter_map(boundary).collect()
}

/// The batch norm that alone reads a layer, and its result. Its own vectors join those that are
/// divided.
fn own_norm(
    graph: &Graph,
    uses: &[usize],
    read: (&Layer, Value),
    vectors: &mut Vec<String>,
) -> Option<(Value, Norm)> {
    let (node, eps) = norm_behind(graph, uses, read)?;
    let own = |operand: usize| own_state(graph, uses, node.operands[operand]);
    let (scale, shift, mean) = (own(1)?, own(2)?, own(3)?);
    let variance = values(graph, node.operands[4])?;
    vectors.push(mean);
    let before = vectors.clone();
    vectors.push(shift);
    let deviation = variance.iter().map(|v| (v + eps).sqrt()).collect();
    Some((node.results[0], Norm { scale, before, deviation }))
}

impl Norm {
    /// Moves the slope into the layer before.
    fn fold<'l>(&self, boundary: &Boundary<'l>, moved: &mut Moved<'l>) {
        let inverse: Vec<f64> =
            self.deviation.iter().zip(moved.vector(&self.scale)).map(|(d, s)| d / s).collect();
        // A channel that its norm hides would be divided by 0 twice.
        let inverse: Vec<f64> =
            inverse.iter().map(|f| if f.is_finite() && *f != 0.0 { *f } else { 1.0 }).collect();
        moved.shrink_rows(boundary.made_by, &inverse);
        self.before.iter().for_each(|vector| moved.shrink(vector, &inverse));
        let enlarged: Vec<f64> = inverse.iter().map(|f| 1.0 / f).collect();
        moved.shrink(&self.scale, &enlarged);
    }
}

impl<'l> Boundary<'l> {
    /// The largest magnitude that calibration saw of each channel, if it saw all.
    fn seen(&self, evidence: &Evidence) -> Option<Vec<f64>> {
        let mut largest = vec![0.0f64; self.made_by.shape[0]];
        for (reader, spread) in &self.readers {
            let seen = evidence.get(&reader.site, Statistic::ChannelMagnitude)?;
            if seen.len() != largest.len() * spread {
                return None;
            }
            seen.iter().enumerate().for_each(|(k, x)| {
                let channel = &mut largest[k / spread];
                *channel = channel.max(*x);
            });
        }
        Some(largest)
    }

    /// The divisor of each channel.
    fn factors(&self, moved: &Moved<'l>) -> Vec<f64> {
        let [channels, inputs] = self.made_by.shape;
        let mut made = vec![0.0f64; channels];
        let rows = moved.rows(self.made_by);
        rows.iter().enumerate().for_each(|(i, w)| made[i / inputs] = made[i / inputs].max(w.abs()));
        let mut read = vec![0.0f64; channels];
        for (reader, spread) in &self.readers {
            for (i, w) in moved.rows(reader).iter().enumerate() {
                let channel = &mut read[channel_of(reader, *spread, i)];
                *channel = channel.max(w.abs());
            }
        }
        let factor = |(made, read): (&f64, &f64)| match (made / read).sqrt() {
            // A channel that is always its bias, or that no weight reads, has no range to match.
            f if f.is_finite() && f > 0.0 => f,
            _ => 1.0,
        };
        made.iter().zip(&read).map(factor).collect()
    }

    /// Divides channels where they are made, and multiplies them where they are read.
    fn scale(&self, moved: &mut Moved<'l>, factors: &[f64]) {
        moved.shrink_rows(self.made_by, factors);
        self.vectors.iter().for_each(|vector| moved.shrink(vector, factors));
        for &(reader, spread) in &self.readers {
            let rows = moved.rows(reader);
            let times = |(i, w): (usize, &f64)| w * factors[channel_of(reader, spread, i)];
            let rows = rows.iter().enumerate().map(times).collect();
            moved.set(reader, rows);
        }
    }
}

/// The channel that weight `i` of the rows of a layer reads.
fn channel_of(layer: &Layer, spread: usize, i: usize) -> usize {
    let [n, k] = layer.shape;
    let (row, column) = (i / k, i % k);
    let input = match layer.kind {
        LayerKind::Linear => column,
        LayerKind::Convolution => {
            let per_group = layer.held.sizes[1];
            let taps = k / per_group;
            row / (n / layer.groups) * per_group + column / taps
        }
    };
    input / spread
}
