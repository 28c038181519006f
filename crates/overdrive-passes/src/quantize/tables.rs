//! Tables of embeddings in codes: rows that an index picks, each with a scale of its own.
//!
//! No product sums over such a table, so no sample tells how to round it. It takes the format that
//! the quantization has for tables, whatever layers take. Small ones stay: they would save little.
//! A decoder may multiply by its table too (a tied head). Then codes serve both. Invariant: a
//! table's state is read by embeddings and by one layer at most, and nothing updates it.

use super::held::{Held, KAxis, LayerKind, Weight};
use super::layers::{Layer, LayerPart, Skipped, name_of};
use super::quantized::Quantized;
use super::rewrite::{conclude, rounded};
use super::{Quantization, Scheme, Tables};
use crate::Evidence;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::ops::{Embedding, Linear};
use overdrive_ir::{DType, Graph, GraphError, Node, NodeId, Origin};
use std::collections::BTreeSet;

/// A table: its rows as those of a layer, and whether a product reads them too.
pub(super) struct Table {
    /// Named after the state; its parts are embeddings, and products of the tied head.
    pub(super) layer: Layer,
    is_tied: bool,
}

/// The tables of a graph.
pub(super) fn tables(graph: &Graph) -> Vec<Table> {
    let uses = graph.use_counts();
    let read: BTreeSet<usize> =
        graph.nodes().iter().filter_map(|node| picked(graph, node)).collect();
    read.into_iter().filter_map(|state| table(graph, &uses, state)).collect()
}

/// The table that a state is, if its readers are embeddings and one layer.
fn table(graph: &Graph, uses: &[usize], state: usize) -> Option<Table> {
    let declared = &graph.states()[state];
    let ty = graph.ty(declared.value);
    let sizes: [usize; 2] = ty.shape.known()?.try_into().ok()?;
    if declared.update.is_some() || ty.dtype != DType::F32 || sizes.contains(&0) {
        return None;
    }
    let (mut parts, mut views, mut products) = (Vec::new(), Vec::new(), Vec::new());
    for (index, node) in graph.nodes().iter().enumerate() {
        let part = |rows| LayerPart { node: NodeId(index as u32), rows };
        if picked(graph, node) == Some(state) {
            parts.push(part(0..sizes[0]));
        } else if node.op.composite::<Linear>().is_some()
            && let Some(weight) = Weight::of(graph, node.operands[1], LayerKind::Linear)
            && weight.state == state
        {
            if weight.order != KAxis::OutputMajor {
                return None;
            }
            weight.views.iter().for_each(|view| {
                if !views.contains(view) {
                    views.push(*view);
                }
            });
            products.push(part(weight.rows));
        }
    }
    let input = |part: &LayerPart| graph.node(part.node).operands[0];
    let is_one_layer = products.windows(2).all(|pair| input(&pair[0]) == input(&pair[1]));
    let read: usize = views.iter().chain([&declared.value]).map(|view| uses[view.0 as usize]).sum();
    let is_known = read == views.len() + parts.len() + products.len();
    if !is_one_layer || !is_known {
        return None;
    }
    let is_tied = !products.is_empty();
    parts.extend(products);
    let layer = Layer {
        name: declared.name.clone(),
        weight: declared.name.clone(),
        site: String::new(),
        parts,
        kind: LayerKind::Linear,
        shape: sizes,
        held: Held { sizes: sizes.to_vec(), order: KAxis::OutputMajor },
        groups: 1,
    };
    Some(Table { layer, is_tied })
}

/// The state that is the table of an embedding.
fn picked(graph: &Graph, node: &Node) -> Option<usize> {
    node.op.composite::<Embedding>()?;
    match graph.origin(node.operands[0]) {
        Origin::State(state) => Some(state),
        _ => None,
    }
}

impl Table {
    /// The scheme that a quantization has for it.
    fn scheme(&self, quantization: &Quantization) -> Option<Scheme> {
        let Tables { format: weights, least } = quantization.tables?;
        let stays = matches!(quantization.layers.get(&self.layer.name), Some(None));
        if stays || self.layer.shape.iter().product::<usize>() < least {
            return None;
        }
        let activations = match quantization.scheme.activations {
            // No calibration has seen what a tied head multiplies.
            Activations::Dynamic(element) if self.is_tied && element == weights.element => {
                Activations::Dynamic(element)
            }
            _ => Activations::Float,
        };
        Some(Scheme::new(weights, activations))
    }
}

/// `made` with its tables in codes, if the quantization says so.
///
/// # Errors
/// When a number of a table is not finite.
pub(super) fn code_tables(
    made: Quantized,
    quantization: &Quantization,
) -> Result<Quantized, GraphError> {
    let taken: Vec<(Layer, Scheme)> = tables(&made.graph)
        .into_iter()
        .filter_map(|table| {
            let scheme = table.scheme(quantization)?;
            Some((table.layer, scheme))
        })
        .collect();
    if taken.is_empty() {
        return Ok(made);
    }
    // Each to the nearest, which looks at no evidence.
    let prepared = rounded(&made.graph, taken, quantization, &Evidence::default())?;
    let Quantized { graph, mut layers, mut skipped, simplified } = made;
    // A head whose weights were not its own has codes now.
    let heads: BTreeSet<&str> = prepared.iter().map(|table| name_of(&table.layer.weight)).collect();
    skipped.retain(|Skipped { layer, .. }| !heads.contains(layer.as_str()));
    let coded = conclude(&graph, prepared, [skipped, simplified])?;
    layers.extend(coded.layers);
    Ok(Quantized { layers, ..coded })
}
