//! The mean error that rounding leaves in each output channel of a layer, as a graph.
//!
//! [`OutputErrors`] has both models side by side on one input. Behind each layer the quantized
//! branch goes on without the mean error of its batch. So no layer makes up for the errors of
//! another, and one call for each batch is enough, where the paper corrects layer after layer.
//! Invariant: the error of a layer is that of its own product, bias included, before any function
//! behind it.

use super::held::LayerKind;
use super::layers::{Layer, layers};
use overdrive_ir::ops::Conv2d;
use overdrive_ir::ops::quantized_linear::QuantizedLinear;
use overdrive_ir::{Builder, DType, Expr, Graph, GraphError, Init, Node, Origin, Tensor, Value};
use std::collections::BTreeMap;

/// Mean errors of each output channel, by layer.
pub type MeanErrors = BTreeMap<String, Vec<f64>>;

/// A graph whose outputs are the mean errors of quantized layers on a batch.
#[derive(Clone, Debug)]
pub struct OutputErrors {
    /// The graph, with the inputs of the model.
    pub graph: Graph,
    /// For each output, its layer and the first of its channels.
    outputs: Vec<(String, usize)>,
}

impl OutputErrors {
    /// The errors of those layers of `float` that have codes in `quantized`. Both graphs are bound
    /// to the same sizes.
    ///
    /// # Errors
    /// When a graph is damaged.
    pub fn of(float: &Graph, quantized: &Graph) -> Result<Self, GraphError> {
        let (found, _) = layers(float)?;
        let products = products(quantized, &found);
        let b = Builder::new("output-errors");
        let mut exact = Branch::new(float);
        let mut coded = Branch::new(quantized);
        for (value, expr) in b.declare(float) {
            exact.map[value.0 as usize] = Some(expr);
        }
        coded.share_inputs(&exact);
        coded.share_states((&b, "codes"), &exact);
        let mut outputs = Vec::new();
        for index in 0..quantized.nodes().len() {
            coded.compute(&b, index + 1);
            let Some((layer, part)) = products.get(&index) else { continue };
            let part = &layer.parts[*part];
            exact.compute(&b, part.node.0 as usize + 1);
            let node = float.node(part.node);
            let (x, value) = (&node.results[0], &quantized.nodes()[index].results[0]);
            let (expected, found) = (exact.get(x), coded.get(value));
            let axis = layer.kind.channel_axis(found.rank());
            // The bias of a quantized linear layer stands behind its product.
            let bias = node.operands.get(2).filter(|_| layer.kind == LayerKind::Linear);
            let bias = bias.map(|bias| exact.get(bias));
            let whole = bias.map_or(found, |bias| found + bias);
            let others: Vec<usize> = (0..found.rank()).filter(|a| *a != axis).collect();
            let count: usize = others.iter().map(|a| found.size(*a)).product();
            let error = (whole - expected).convert(DType::F32).sum(&others);
            let mean = error * (1.0 / count.max(1) as f64);
            b.output(&format!("{}#{}", layer.name, part.rows.start), mean);
            outputs.push((layer.name.clone(), part.rows.start));
            let moved = mean.convert(found.dtype()).broadcast_in(&found.shape(), &[axis]);
            coded.map[value.0 as usize] = Some(found - moved);
        }
        Ok(Self { graph: b.finish()?, outputs })
    }

    /// True when no layer has codes.
    pub fn is_empty(&self) -> bool {
        self.outputs.is_empty()
    }

    /// The means over the results of these calls, which have batches of one size.
    pub fn means(&self, calls: &[Vec<Tensor>]) -> MeanErrors {
        let mut means = MeanErrors::new();
        for tensors in calls {
            for ((layer, first), tensor) in self.outputs.iter().zip(tensors) {
                let of_layer = means.entry(layer.clone()).or_default();
                let errors = tensor.to_f64();
                of_layer.resize(of_layer.len().max(first + errors.len()), 0.0);
                for (mean, error) in of_layer[*first..].iter_mut().zip(errors) {
                    *mean += error / calls.len() as f64;
                }
            }
        }
        means
    }
}

/// A model that is computed beside another.
pub(super) struct Branch<'b, 'g> {
    graph: &'g Graph,
    pub(super) map: Vec<Option<Expr<'b>>>,
    /// Nodes that are computed.
    done: usize,
}

impl<'b, 'g> Branch<'b, 'g> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        Self { graph, map: vec![None; graph.value_count()], done: 0 }
    }

    /// Takes inputs from another branch.
    fn share_inputs(&mut self, other: &Branch<'b, '_>) {
        for port in self.graph.inputs() {
            let same = other.graph.inputs().iter().find(|known| known.name == port.name);
            let same = same.expect("quantizing keeps the inputs of a model");
            self.map[port.value.0 as usize] = Some(other.get(&same.value));
        }
    }

    /// Takes states from another branch; declares the states that it lacks, named after `own`.
    pub(super) fn share_states(&mut self, (b, own): (&'b Builder, &str), other: &Branch<'b, '_>) {
        let graph = self.graph;
        for state in graph.states() {
            let ty = graph.ty(state.value);
            let mut same = other.graph.states().iter();
            let same = same.find(|s| s.name == state.name && other.graph.ty(s.value) == ty);
            let name = || free_name(b, &format!("{own}.{}", state.name));
            // A drawn weight depends on the name that it is drawn for.
            let init = || match &state.init {
                Init::Value(_) | Init::Widened(_) => state.init.clone(),
                drawn => Init::Value(drawn.tensor(&state.name, ty)),
            };
            let declared = || b.state_named(&name(), ty.clone(), init());
            let shared = same.map_or_else(declared, |same| other.get(&same.value));
            self.map[state.value.0 as usize] = Some(shared);
        }
    }

    /// Computes the first nodes, as many as `until`.
    pub(super) fn compute(&mut self, b: &'b Builder, until: usize) {
        let graph = self.graph;
        for node in &graph.nodes()[self.done.min(until)..until] {
            let operands: Vec<Expr<'b>> = node.operands.iter().map(|v| self.get(v)).collect();
            for (v, result) in node.results.iter().zip(b.again(node, &operands)) {
                self.map[v.0 as usize] = Some(result);
            }
        }
        self.done = self.done.max(until);
    }

    pub(super) fn get(&self, value: &Value) -> Expr<'b> {
        self.map[value.0 as usize].expect("values are computed in order")
    }
}

/// This name, or one like it that no state has.
pub(super) fn free_name(b: &Builder, name: &str) -> String {
    let mut free = name.to_owned();
    while b.find_state(&free).is_some() {
        free.push('_');
    }
    free
}

/// The products of layers in a graph of codes, by node: the layer, and which of its products.
pub(super) fn products<'l>(
    graph: &Graph,
    found: &'l [Layer],
) -> BTreeMap<usize, (&'l Layer, usize)> {
    let mut parts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut products = BTreeMap::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        let weight = codes_of(graph, node);
        let Some(layer) = found.iter().find(|layer| Some(&*layer.weight) == weight) else {
            continue;
        };
        let part = parts.entry(&layer.weight).or_default();
        products.insert(index, (layer, *part));
        *part += 1;
    }
    products
}

/// The state of the codes that a product multiplies by.
fn codes_of<'g>(graph: &'g Graph, node: &Node) -> Option<&'g str> {
    let convolves = node.op.composite::<Conv2d>().is_some();
    if !convolves && node.op.composite::<QuantizedLinear>().is_none() {
        return None;
    }
    let mut value = node.operands[1];
    loop {
        match graph.origin(value) {
            Origin::State(state) => {
                let coded = !graph.ty(value).dtype.is_arithmetic_float();
                return coded.then(|| graph.states()[state].name.as_str());
            }
            Origin::Input(_) => return None,
            // Codes are the first operand of whatever stands between them and the product.
            Origin::Node(..) => value = *graph.producer(value)?.operands.first()?,
        }
    }
}
