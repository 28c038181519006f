//! Folds factors of activations into the norm or layer that computes the activations, so that they
//! need no node of their own. [`Moved`] has the weights that change as factors move.
//!
//! Layers that read one value share its factors, so that the value is made smaller once. Sources:
//! SmoothQuant folds into norms (arXiv:2211.10438, section 4). AWQ also folds into the other half
//! of a gated layer (arXiv:2306.00978, its program).

use super::held::LayerKind;
use super::layers::Layer;
use overdrive_ir::ops::batch_norm::Statistics;
use overdrive_ir::ops::{BatchNorm, LayerNorm, Linear, RmsNorm};
use overdrive_ir::{Binary, Graph, Init, Node, Operation, Origin, Prim, Tensor, Value};
use std::collections::BTreeMap;

/// Linear layers that read one value, and the producer of the value.
pub(super) struct SharedInput<'l> {
    pub(super) layers: Vec<&'l Layer>,
    /// The producer that takes the inverse of the factors; `None` where nothing can.
    pub(super) maker: Option<Maker<'l>>,
}

/// The producer of a value that can scale it.
pub(super) enum Maker<'l> {
    /// Scale and shift of a norm: states of one element a channel.
    Norm(Vec<String>),
    /// The rows of a layer that one factor of a product comes from, and its bias.
    Layer(&'l Layer, Option<String>),
}

/// The streams of these layers, in order.
pub(super) fn streams<'l>(graph: &Graph, found: &'l [Layer]) -> Vec<SharedInput<'l>> {
    let uses = graph.use_counts();
    let mut of_value: Vec<(Value, Vec<&Layer>)> = Vec::new();
    for layer in found.iter().filter(|layer| layer.kind == LayerKind::Linear) {
        let x = graph.node(layer.parts[0].node).operands[0];
        match of_value.iter_mut().find(|(value, _)| *value == x) {
            Some((_, layers)) => layers.push(layer),
            None => of_value.push((x, vec![layer])),
        }
    }
    let stream = |(x, layers): (Value, Vec<&'l Layer>)| {
        let read: usize = layers.iter().map(|layer| layer.parts.len()).sum();
        // A value with other readers must not be scaled.
        let alone = uses[x.0 as usize] == read;
        let maker = alone.then(|| maker(graph, (&uses, found), x)).flatten();
        SharedInput { layers, maker }
    };
    of_value.into_iter().map(stream).collect()
}

fn maker<'l>(graph: &Graph, (uses, found): (&[usize], &'l [Layer]), x: Value) -> Option<Maker<'l>> {
    let node = graph.producer(x)?;
    let own = |value: Value| own_state(graph, uses, value);
    if node.op.composite::<RmsNorm>().is_some() || node.op.composite::<LayerNorm>().is_some() {
        return node.operands[1..].iter().map(|v| own(*v)).collect::<Option<_>>().map(Maker::Norm);
    }
    let is_product = matches!(node.op, Operation::Prim(Prim::Binary { kind: Binary::Mul, .. }));
    if !is_product {
        return None;
    }
    let layer_of = |factor: &Value| {
        let made_by = graph.producer(*factor).filter(|_| uses[factor.0 as usize] == 1)?;
        let layer = found.iter().find(|layer| is_whole(graph, layer, made_by))?;
        let same = graph.ty(*factor) == graph.ty(x);
        let bias = made_by.operands.get(2).map(|bias| own(*bias));
        match bias {
            _ if !same => None,
            Some(None) => None,
            bias => Some(Maker::Layer(layer, bias.flatten())),
        }
    };
    node.operands.iter().find_map(layer_of)
}

/// Whether a node is all of a layer.
fn is_whole(graph: &Graph, layer: &Layer, node: &Node) -> bool {
    let only = layer.parts.len() == 1 && layer.kind == LayerKind::Linear;
    only && node.op.composite::<Linear>().is_some()
        && std::ptr::eq(graph.node(layer.parts[0].node), node)
}

/// The state that a value is, if nobody else reads it and nothing updates it.
pub(super) fn own_state(graph: &Graph, uses: &[usize], value: Value) -> Option<String> {
    let Origin::State(state) = graph.origin(value) else { return None };
    let state = &graph.states()[state];
    (uses[value.0 as usize] == 1 && state.update.is_none()).then(|| state.name.clone())
}

/// The batch norm of inference that alone reads the result of a layer, and its ε.
pub(super) fn norm_behind<'g>(
    graph: &'g Graph,
    uses: &[usize],
    (layer, made): (&Layer, Value),
) -> Option<(&'g Node, f64)> {
    let node = graph.nodes().iter().find(|node| node.operands.first() == Some(&made))?;
    let op = node.op.composite::<BatchNorm>().filter(|op| op.statistics == Statistics::Given)?;
    // A norm has its channels on axis 1.
    let on_channels = layer.kind.channel_axis(graph.ty(made).rank()) == 1;
    (uses[made.0 as usize] == 1 && on_channels).then_some((node, op.eps))
}

/// The elements of a state that nothing updates.
pub(super) fn values(graph: &Graph, value: Value) -> Option<Vec<f64>> {
    let Origin::State(state) = graph.origin(value) else { return None };
    let state = &graph.states()[state];
    let values = || state.init.tensor(&state.name, graph.ty(value)).to_f64();
    state.update.is_none().then(values)
}

/// Weights that change as factors move, by state; others are those of the graph.
pub(super) struct Moved<'g> {
    graph: &'g Graph,
    /// Rows of K, or elements of a vector.
    changed: BTreeMap<String, (Option<&'g Layer>, Vec<f64>)>,
}

impl<'g> Moved<'g> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        Self { graph, changed: BTreeMap::new() }
    }

    /// The present rows of a layer.
    pub(super) fn rows(&self, layer: &Layer) -> Vec<f64> {
        let known = self.changed.get(&layer.weight).map(|(_, rows)| rows.clone());
        known.unwrap_or_else(|| layer.rows(self.graph))
    }

    /// Puts rows in place of those of a layer.
    pub(super) fn set(&mut self, layer: &'g Layer, rows: Vec<f64>) {
        self.changed.insert(layer.weight.clone(), (Some(layer), rows));
    }

    /// Makes the inputs of a stream smaller by factors `[K]`, and its weights as much larger.
    pub(super) fn fold(&mut self, stream: &SharedInput<'g>, maker: &Maker<'g>, factors: &[f64]) {
        let k = factors.len();
        for &layer in &stream.layers {
            let rows =
                self.rows(layer).iter().enumerate().map(|(i, w)| w * factors[i % k]).collect();
            self.set(layer, rows);
        }
        match maker {
            Maker::Norm(states) => states.iter().for_each(|state| self.shrink(state, factors)),
            &Maker::Layer(layer, ref bias) => {
                self.shrink_rows(layer, factors);
                bias.iter().for_each(|bias| self.shrink(bias, factors));
            }
        }
    }

    /// Makes the outputs of a layer smaller by factors `[N]`, its bias left aside.
    pub(super) fn shrink_rows(&mut self, layer: &'g Layer, factors: &[f64]) {
        let inputs = layer.shape[1];
        let rows = self.rows(layer);
        let rows = rows.iter().enumerate().map(|(i, w)| w / factors[i / inputs]).collect();
        self.set(layer, rows);
    }

    /// Makes the elements of a vector smaller by factors.
    pub(super) fn shrink(&mut self, name: &str, factors: &[f64]) {
        let smaller = self.vector(name).iter().zip(factors).map(|(x, f)| x / f).collect();
        self.set_vector(name, smaller);
    }

    /// The present elements of a vector.
    pub(super) fn vector(&self, name: &str) -> Vec<f64> {
        let begin = || {
            let state =
                self.graph.states().iter().find(|s| s.name == name).expect("a state of this graph");
            state.init.tensor(name, self.graph.ty(state.value)).to_f64()
        };
        self.changed.get(name).map_or_else(begin, |(_, values)| values.clone())
    }

    /// Puts elements in place of those of a vector.
    pub(super) fn set_vector(&mut self, name: &str, values: Vec<f64>) {
        self.changed.insert(name.to_owned(), (None, values));
    }

    /// The graph with what has moved.
    pub(super) fn finish(self) -> Graph {
        let inits: BTreeMap<&str, &Init> =
            self.graph.states().iter().map(|s| (s.name.as_str(), &s.init)).collect();
        self.graph.clone().with_initial_values(|name, ty| match self.changed.get(name) {
            Some((layer, values)) => {
                let stored = layer.map_or_else(|| values.clone(), |layer| layer.stored(values));
                Init::Value(Tensor::from_f64(ty.dtype, ty.shape.clone(), &stored))
            }
            None => inits[name].clone(),
        })
    }
}

/// Why the layers of a stream without a maker keep the inputs that they have.
pub(super) const NO_MAKER: &str = "nothing before it can take the factors of its inputs (no norm \
                                   or gated layer of its own): rounded as it was";
