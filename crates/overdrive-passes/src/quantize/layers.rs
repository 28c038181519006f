//! The layers of a graph whose weights can be quantized, and why the others cannot.
//!
//! Invariant: a layer's weight is a state that this layer alone reads and nothing updates, so that nobody else misses it.

use crate::bind::dimension_names;
use crate::{bind, sites};
use overdrive_ir::ops::{Conv2d, Linear};
use overdrive_ir::{DType, Graph, GraphError, Node, NodeId, Origin, StateDecl};
use std::collections::BTreeMap;

/// How a layer contracts.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum LayerKind {
    /// `x w`, w `[K, N]`.
    Linear,
    /// A convolution with w `[O, C/groups, kernel]`: N is O, K the rest.
    Convolution,
}

/// A layer with weights.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Layer {
    /// The name of its weight without the last part.
    pub name: String,
    /// The state that holds its weight.
    pub weight: String,
    /// Its name in [`Evidence`](crate::Evidence).
    pub site: String,
    /// Its node.
    pub node: NodeId,
    /// How it contracts.
    pub kind: LayerKind,
    /// `[N, K]` of its weight.
    pub shape: [usize; 2],
    /// Extents of its weight as the state has it.
    pub sizes: Vec<usize>,
    /// Groups of channels that see only each other; 1 but for some convolutions.
    pub groups: usize,
}

/// A layer that stays as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Skipped {
    /// Its name, or the scope of its node.
    pub layer: String,
    /// Why.
    pub reason: String,
}

impl Layer {
    /// The part of the model that it belongs to: its name up to the first numbered part with more behind it, as
    /// `block3` of `block3.ffn.expand`; a layer outside of any is a part of its own.
    pub fn block(&self) -> &str {
        let numbered = |part: &str| part.ends_with(|c: char| c.is_ascii_digit());
        let mut from = 0;
        for (at, _) in self.name.match_indices('.') {
            if numbered(&self.name[from..at]) {
                return &self.name[..at];
            }
            from = at + 1;
        }
        &self.name
    }

    /// Its weight as rows of K, whatever the order in which the state has it.
    pub fn rows(&self, graph: &Graph) -> Vec<f64> {
        let state = self.state(graph);
        let stored = state.init.tensor(&state.name, graph.ty(state.value)).to_f64();
        let [n, k] = self.shape;
        match self.kind {
            LayerKind::Convolution => stored,
            LayerKind::Linear => (0..n * k).map(|i| stored[i % k * n + i / k]).collect(),
        }
    }

    /// The state of what static activations are quantized with.
    pub(crate) fn input(&self, what: &str) -> String {
        format!("{}.input_{what}", self.name)
    }

    /// Rows of K in the order of the state.
    pub(crate) fn stored(&self, rows: &[f64]) -> Vec<f64> {
        let [n, k] = self.shape;
        match self.kind {
            LayerKind::Convolution => rows.to_vec(),
            LayerKind::Linear => (0..n * k).map(|i| rows[i % n * k + i / n]).collect(),
        }
    }

    pub(crate) fn state<'g>(&self, graph: &'g Graph) -> &'g StateDecl {
        graph.states().iter().find(|s| s.name == self.weight).expect("the layer was found in this graph")
    }
}

/// Contractions with weights, in order, and those that cannot be quantized.
///
/// # Errors
/// When the graph cannot be bound, which says that it is damaged.
pub fn layers(graph: &Graph) -> Result<(Vec<Layer>, Vec<Skipped>), GraphError> {
    let uses = graph.use_counts();
    let names = site_names(graph)?;
    let (mut found, mut skipped) = (Vec::new(), Vec::new());
    for (index, node) in graph.nodes().iter().enumerate() {
        let Some(kind) = kind(node) else { continue };
        let mut skip =
            |layer: &str, reason: String| skipped.push(Skipped { layer: layer.to_owned(), reason });
        let Origin::State(state) = graph.origin(node.operands[1]) else {
            skip(&node.scope, "its second operand is no parameter".to_owned());
            continue;
        };
        let state = &graph.states()[state];
        let name = state.name.rsplit_once('.').map_or(state.name.as_str(), |(layer, _)| layer);
        let ty = graph.ty(state.value);
        if state.update.is_some() || uses[state.value.0 as usize] != 1 {
            skip(name, format!("`{}` is read or updated elsewhere too", state.name));
        } else if ty.dtype != DType::F32 {
            skip(name, format!("`{}` is {ty}: only f32 weights are quantized", state.name));
        } else if let Some(shape) = matrix(kind, &ty.sizes()) {
            let site = names.get(&state.name).cloned().unwrap_or_default();
            let (name, weight) = (name.to_owned(), state.name.clone());
            found.push(Layer {
                name,
                weight,
                site,
                node: NodeId(index as u32),
                kind,
                shape,
                sizes: ty.sizes(),
                groups: node.op.composite::<Conv2d>().map_or(1, |conv| conv.groups),
            });
        } else {
            skip(name, format!("`{}` {ty} is no matrix", state.name));
        }
    }
    Ok((found, skipped))
}

fn kind(node: &Node) -> Option<LayerKind> {
    let linear = node.op.composite::<Linear>().map(|_| LayerKind::Linear);
    linear.or_else(|| node.op.composite::<Conv2d>().map(|_| LayerKind::Convolution))
}

fn matrix(kind: LayerKind, sizes: &[usize]) -> Option<[usize; 2]> {
    match (kind, sizes) {
        (LayerKind::Linear, &[k, n]) => Some([n, k]),
        (LayerKind::Convolution, &[o, ref rest @ ..]) => Some([o, rest.iter().product()]),
        _ => None,
    }
}

/// The site in evidence of each weight. Sites are named in bound graphs, so dimensions are given a size here; which one
/// changes no name.
fn site_names(graph: &Graph) -> Result<BTreeMap<String, String>, GraphError> {
    let sizes = dimension_names(graph).into_iter().map(|name| (name, 1)).collect();
    let bound = bind(graph, &sizes)?;
    let name = |site: &crate::Site| {
        let weight = *bound.node(site.node).operands.get(1)?;
        match bound.origin(weight) {
            Origin::State(state) => Some((bound.states()[state].name.clone(), site.name.clone())),
            _ => None,
        }
    };
    Ok(sites(&bound).iter().filter_map(name).collect())
}
