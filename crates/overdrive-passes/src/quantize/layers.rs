//! The layers of a graph whose weights can be quantized, and why the others cannot.
//!
//! How a state holds a weight is read off the graph: transposes and slices between the state and
//! the product are followed. So `[in, out]` and `[out, in]` are both weights, and products of one
//! input with parts of one state are one layer. Invariant: a layer's weight is a state that this
//! layer alone reads and nothing updates, so that nobody else misses it.

use super::held::{Held, KAxis, LayerKind, Weight};
use crate::bind::dimension_names;
use crate::{bind, sites};
use overdrive_ir::ops::{Conv2d, Linear};
use overdrive_ir::{DType, Graph, GraphError, Node, NodeId, StateDecl, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// A layer with weights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layer {
    /// The name of its weight without the last part.
    pub name: String,
    /// The state that holds its weight.
    pub weight: String,
    /// Its name in [`Evidence`](crate::Evidence).
    pub site: String,
    /// Its products, in order: one, or several of one input where its weight is fused of several.
    pub parts: Vec<LayerPart>,
    /// How it contracts.
    pub kind: LayerKind,
    /// `[N, K]` of its weight.
    pub shape: [usize; 2],
    /// How the state holds it.
    pub held: Held,
    /// Groups of channels that see only each other; 1 but for some convolutions.
    pub groups: usize,
}

/// A product of a layer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LayerPart {
    /// Its node.
    pub node: NodeId,
    /// The rows of N that it multiplies by.
    pub rows: Range<usize>,
}

/// A layer that is left unchanged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skipped {
    /// Its name, or the scope of its node.
    pub layer: String,
    /// Why.
    pub reason: String,
}

/// The reason of a product of two activations.
pub(super) const NO_PARAMETER: &str = "its second operand is no parameter";

impl Layer {
    /// The part of the model that the layer belongs to. It is the name up to the first numbered
    /// part with more behind it, as `block3` of `block3.ffn.expand`. A layer outside of any such
    /// part is a part of its own.
    pub fn block(&self) -> &str {
        block(&self.name)
    }

    /// Its weight as rows of K, whatever the order in which the state has it.
    pub fn rows(&self, graph: &Graph) -> Vec<f64> {
        let state = self.state(graph);
        let stored = state.init.tensor(&state.name, graph.ty(state.value)).to_f64();
        self.held.rows(stored, self.shape)
    }

    /// The state of what static activations are quantized with.
    pub(crate) fn input(&self, what: &str) -> String {
        format!("{}.input_{what}", self.name)
    }

    /// Rows of K in the order of the state.
    pub(crate) fn stored(&self, rows: &[f64]) -> Vec<f64> {
        self.held.stored(rows, self.shape)
    }

    pub(crate) fn state<'g>(&self, graph: &'g Graph) -> &'g StateDecl {
        graph
            .states()
            .iter()
            .find(|s| s.name == self.weight)
            .expect("the layer was found in this graph")
    }
}

/// The first parts of a name, up to the first numbered one with more behind it; all of a name
/// without one.
pub(crate) fn block(name: &str) -> &str {
    let numbered = |part: &str| part.ends_with(|c: char| c.is_ascii_digit());
    let mut from = 0;
    for (at, _) in name.match_indices('.') {
        if numbered(&name[from..at]) {
            return &name[..at];
        }
        from = at + 1;
    }
    name
}

/// The name of the layer whose weight is the state of this name.
pub(super) fn name_of(state: &str) -> &str {
    state.rsplit_once('.').map_or(state, |(layer, _)| layer)
}

/// Products with weights of one state.
struct Reader {
    kind: LayerKind,
    order: KAxis,
    parts: Vec<LayerPart>,
    /// Views between the state and the products.
    views: BTreeSet<Value>,
}

/// Contractions with weights, in order, and those that cannot be quantized.
///
/// # Errors
/// When the graph cannot be bound, which says that it is damaged.
pub fn layers(graph: &Graph) -> Result<(Vec<Layer>, Vec<Skipped>), GraphError> {
    let names = site_names(graph)?;
    let (mut found, mut skipped) = (Vec::new(), Vec::new());
    let mut readers: Vec<(usize, Reader)> = Vec::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        let Some(kind) = kind(node) else { continue };
        let Some(Weight { state, order, rows, views }) = Weight::of(graph, node.operands[1], kind)
        else {
            let reason = NO_PARAMETER.to_owned();
            skipped.push(Skipped { layer: place(graph, node), reason });
            continue;
        };
        let part = LayerPart { node: NodeId(index as u32), rows };
        let input = |part: &LayerPart| graph.node(part.node).operands[0];
        let alike = |(known, reader): &&mut (usize, Reader)| {
            *known == state
                && (reader.kind, reader.order) == (kind, order)
                && input(&reader.parts[0]) == input(&part)
        };
        match readers.iter_mut().find(alike) {
            Some((_, reader)) if kind == LayerKind::Linear => {
                reader.parts.push(part);
                reader.views.extend(views);
            }
            _ => readers.push((
                state,
                Reader { kind, order, parts: vec![part], views: views.into_iter().collect() },
            )),
        }
    }
    let uses = graph.use_counts();
    for (state, reader) in readers {
        match layer(graph, &uses, (state, reader), &names) {
            Ok(layer) => found.push(layer),
            Err(reason) => skipped.push(reason),
        }
    }
    Ok((found, skipped))
}

fn layer(
    graph: &Graph,
    uses: &[usize],
    (state, reader): (usize, Reader),
    names: &BTreeMap<String, String>,
) -> Result<Layer, Skipped> {
    let Reader { kind, order, parts, views } = reader;
    let state = &graph.states()[state];
    let name = name_of(&state.name);
    let ty = graph.ty(state.value);
    let skip = |reason: String| Err(Skipped { layer: name.to_owned(), reason });
    // Each view and each product is one use of the state or of another view.
    let read: usize = views.iter().chain([&state.value]).map(|view| uses[view.0 as usize]).sum();
    if state.update.is_some() || read != views.len() + parts.len() {
        return skip(format!("`{}` is read or updated elsewhere too", state.name));
    }
    if ty.dtype != DType::F32 {
        return skip(format!("`{}` is {ty}: only f32 weights are quantized", state.name));
    }
    let sizes = ty.sizes();
    let Some(shape) = order.matrix(kind, &sizes) else {
        return skip(format!("`{}` {ty} is no matrix", state.name));
    };
    let first = &graph.node(parts[0].node);
    let groups = first.op.composite::<Conv2d>().map_or(1, |conv| conv.groups);
    let site = names.get(&state.name).cloned().unwrap_or_default();
    let (name, weight) = (name.to_owned(), state.name.clone());
    Ok(Layer { name, weight, site, parts, kind, shape, held: Held { sizes, order }, groups })
}

fn kind(node: &Node) -> Option<LayerKind> {
    let linear = node.op.composite::<Linear>().map(|_| LayerKind::Linear);
    linear.or_else(|| node.op.composite::<Conv2d>().map(|_| LayerKind::Convolution))
}

/// Name of a product without a parameter: its scope, or the output that it computes.
fn place(graph: &Graph, node: &Node) -> String {
    let gives = || graph.outputs().iter().find(|port| node.results.contains(&port.value));
    match (&*node.scope, gives()) {
        ("", Some(port)) => format!("the product that gives `{}`", port.name),
        ("", None) => "a product outside of any scope".to_owned(),
        (scope, _) => scope.to_owned(),
    }
}

/// The site in evidence of each weight. Sites are named in bound graphs, so dimensions are given a
/// size here; which one changes no name.
fn site_names(graph: &Graph) -> Result<BTreeMap<String, String>, GraphError> {
    let sizes = dimension_names(graph).into_iter().map(|name| (name, 1)).collect();
    let bound = bind(graph, &sizes)?;
    let mut names = BTreeMap::new();
    for site in sites(&bound) {
        let node = bound.node(site.node);
        let weight = kind(node).and_then(|kind| Weight::of(&bound, *node.operands.get(1)?, kind));
        // Parts of a weight see one input: the first tells what all see.
        if let Some(weight) = weight {
            names.entry(bound.states()[weight.state].name.clone()).or_insert(site.name);
        }
    }
    Ok(names)
}

/// The error of rounded weights, relative to their norm.
pub(super) fn relative_error(values: &[f64], rounded: &[f64]) -> f64 {
    let squares = |of: &mut dyn Iterator<Item = f64>| of.map(|x| x * x).sum::<f64>();
    let error = squares(&mut values.iter().zip(rounded).map(|(a, b)| a - b));
    (error / squares(&mut values.iter().copied()).max(f64::MIN_POSITIVE)).sqrt()
}
