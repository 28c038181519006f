//! AutoRound looks for the roundings of all weights of a block together, by descent on the error of
//! the block's outputs.
//!
//! A weight w of step s becomes `s · code((w + v) / s)`. The offset v stays within half a distance
//! between two codes. [`auto_round`] gives the graph of one step of the descent. It has the block
//! with such weights, and its error against the outputs of the float block. The gradients of the
//! offsets pass through the rounding. Offsets move by the sign of their gradients, so that
//! no learning rate has to fit the size of a layer. Its distance falls from step to step.
//!
//! The descent begins at the codes of GPTQ with the offsets that GPTQ left, and keeps its steps s.
//! A convolution is a layer like any other: that is AdaRound's problem, without its relaxation.
//! Invariant: a code moves by at most one.
//!
//! Sources: Cheng et al., "Optimize weight rounding via signed gradient descent", arXiv:2309.05516;
//! convolutions: Nagel et al., "Up or down? Adaptive rounding", arXiv:2004.10568.

use super::Quantization;
use super::held::{KAxis, LayerKind};
use super::layers::Skipped;
use super::quantized::Quantized;
use super::rewrite::{Prepared, conclude, prepare};
use crate::Evidence;
use overdrive_ir::ops::quantize::code;
use overdrive_ir::{
    BlockIndex, Builder, DType, Encoded, Expr, Graph, GraphError, Init, Tensor, TensorType, Unary,
    Value, gradients,
};
use std::collections::BTreeMap;

/// Furthest that a weight moves, in distances between two codes.
const REACH: f64 = 0.5;

/// A block whose weights look for their roundings.
#[derive(Clone, Debug)]
pub struct AutoRound {
    /// A step of the descent. Inputs: those of the block, `rate` `[]`, and `target.NAME` for each
    /// float output NAME of the block. States: those of the block, its weights being those that
    /// move. Output: `loss`, the mean squared error before the step, summed over the outputs.
    pub step: Graph,
    float: Graph,
    layers: Vec<Prepared>,
    remarks: [Vec<Skipped>; 2],
}

/// The descent of a bound graph, for every layer that `quantization` gives a scheme.
///
/// # Errors
/// When a weight is not finite, or the evidence lacks what a scheme needs.
pub fn auto_round(
    graph: &Graph,
    quantization: &Quantization,
    evidence: &Evidence,
) -> Result<AutoRound, GraphError> {
    let (layers, remarks) = prepare(graph, quantization, evidence)?;
    Ok(AutoRound { step: step(graph, &layers)?, float: graph.clone(), layers, remarks })
}

impl AutoRound {
    /// True when no layer's scheme asks for a descent.
    pub fn is_empty(&self) -> bool {
        self.layers.iter().all(|prepared| prepared.meant.is_none())
    }

    /// The quantized block of states that the descent gave, by the names of [`AutoRound::step`];
    /// of none, the block that the descent begins at.
    ///
    /// # Errors
    /// When a graph is damaged.
    ///
    /// # Panics
    /// When a state has another shape than the weight of its name.
    pub fn conclude(&self, moved: &BTreeMap<String, Tensor>) -> Result<Quantized, GraphError> {
        let mut layers = self.layers.clone();
        for prepared in &mut layers {
            let moved = moved.get(&prepared.layer.weight).filter(|_| prepared.meant.is_some());
            let Some(rows) = moved else { continue };
            let (element, shape) = (prepared.scheme.weights.element, prepared.layer.shape);
            let Steps { steps, index, .. } = Steps::of(prepared);
            let zeros = prepared.encoded.zero.as_ref().map(Tensor::to_f64);
            let code_of = |(i, w): (usize, &f32)| {
                let block = index.at(i);
                // By the arithmetic of the ops: quotients are rounded to f32 first.
                let quotient = f64::from(w / steps[block]);
                code(element, quotient, zeros.as_ref().map_or(0.0, |zeros| zeros[block]))
            };
            let codes: Vec<f64> = rows.to_f32().iter().enumerate().map(code_of).collect();
            prepared.encoded.codes = Tensor::from_f64(element, shape.to_vec(), &codes);
        }
        conclude(&self.float, layers, self.remarks.clone())
    }
}

/// The steps of a layer, those of the tensor included.
struct Steps {
    steps: Vec<f32>,
    counts: [usize; 2],
    index: BlockIndex,
}

impl Steps {
    fn of(prepared: &Prepared) -> Self {
        let Encoded { scale, tensor_scale, .. } = &prepared.encoded;
        let all = tensor_scale.as_ref().map_or(1.0, |scale| scale.to_f64()[0]);
        let steps = scale.to_f64().iter().map(|step| (step * all) as f32).collect();
        let shape = prepared.layer.shape;
        let counts = prepared.scheme.weights.block.counts(shape);
        let counts = counts.expect("the layer was prepared with this format");
        Self { steps, counts, index: BlockIndex::new(shape, counts) }
    }
}

/// Distance of the codes around a quotient.
fn spacing(element: DType, quotient: f64) -> f64 {
    let Some(format) = element.float_format() else { return 1.0 };
    let largest = quotient.abs().min(format.max());
    let exponent = (largest.log2().floor() as i32).max(1 - format.bias);
    2f64.powi(exponent - format.mantissa_bits as i32)
}

/// A weight of the graph of a step.
struct MovingWeight<'a, 'b> {
    prepared: &'a Prepared,
    /// The value of the float graph that it takes the place of.
    value: Value,
    /// `[N, K]`, before its rounding.
    rows: Expr<'b>,
    begin: Expr<'b>,
    /// Distance of the codes around each weight.
    unit: Expr<'b>,
}

impl<'a, 'b> MovingWeight<'a, 'b> {
    fn new(b: &'b Builder, value: Value, (prepared, start): (&'a Prepared, &[f64])) -> Self {
        let (weight, [n, k]) = (&prepared.layer.weight, prepared.layer.shape);
        let element = prepared.scheme.weights.element;
        let Steps { steps, index, .. } = Steps::of(prepared);
        let unit = |(i, w): (usize, &f64)| {
            let step = f64::from(steps[index.at(i)]);
            step * spacing(element, w / step)
        };
        let unit: Vec<f64> = start.iter().enumerate().map(unit).collect();
        let state = |name: &str, values: &[f64]| {
            let tensor = Tensor::from_f64(DType::F32, [n, k], values);
            b.state_named(name, tensor.ty().clone(), Init::Value(tensor))
        };
        let rows = state(weight, start);
        let begin = state(&format!("{weight}.begin"), start);
        let unit = state(&format!("{weight}.unit"), &unit);
        Self { prepared, value, rows, begin, unit }
    }

    /// The rounded weight as the float graph holds it, its gradient that of the rows.
    fn rounded(&self, b: &'b Builder) -> Expr<'b> {
        let Prepared { layer, scheme, encoded, .. } = self.prepared;
        let Steps { steps, counts, .. } = Steps::of(self.prepared);
        let step = b.constant(Tensor::from_f32(counts.to_vec(), &steps));
        let zero = encoded.zero.clone().map(|zero| b.constant(zero));
        let codes = self.rows.quantize(step, zero, scheme.weights.element);
        let value = scheme.rotated(codes.dequantize(step, zero).straight_through(self.rows));
        match (layer.kind, layer.held.order) {
            (LayerKind::Convolution, _) => value.reshape(layer.held.sizes.clone()),
            (LayerKind::Linear, KAxis::InputMajor) => value.t(),
            (LayerKind::Linear, KAxis::OutputMajor) => value,
        }
    }

    /// The rows after a step along the gradient of the rounded weight.
    fn moved(&self, gradient: Expr<'b>, rate: Expr<'b>) -> Expr<'b> {
        let Prepared { layer, scheme, .. } = self.prepared;
        let gradient = match (layer.kind, layer.held.order) {
            (LayerKind::Convolution, _) => gradient.reshape(layer.shape),
            (LayerKind::Linear, KAxis::InputMajor) => gradient.t(),
            (LayerKind::Linear, KAxis::OutputMajor) => gradient,
        };
        let gradient = scheme.rotated(gradient);
        let rate = rate.broadcast_in(&self.unit.shape(), &[]);
        let reach = self.unit * REACH;
        let moved = self.rows - gradient.unary(Unary::Sign) * (self.unit * rate);
        moved.max(self.begin - reach).min(self.begin + reach)
    }
}

fn step(graph: &Graph, layers: &[Prepared]) -> Result<Graph, GraphError> {
    let b = Builder::new(graph.name());
    let mut map: Vec<Option<Expr<'_>>> = vec![None; graph.value_count()];
    for port in graph.inputs() {
        map[port.value.0 as usize] = Some(b.input(&port.name, graph.ty(port.value).clone()));
    }
    let mut weights = Vec::new();
    for state in graph.states() {
        let ty = graph.ty(state.value).clone();
        let own = |init: Init| b.state_named(&state.name, ty.clone(), init);
        let prepared = layers.iter().find(|prepared| prepared.layer.weight == state.name);
        let moves = prepared.and_then(|prepared| Some((prepared, prepared.meant.as_ref()?)));
        map[state.value.0 as usize] = Some(match (prepared, moves) {
            (_, Some((prepared, start))) => {
                let weight = MovingWeight::new(&b, state.value, (prepared, start));
                let rounded = weight.rounded(&b);
                weights.push(weight);
                rounded
            }
            (Some(Prepared { layer, scheme, encoded, .. }), None) => {
                let stored = layer.stored(&scheme.rotate(encoded.decode()));
                own(Init::Value(Tensor::from_f64(ty.dtype, ty.shape.clone(), &stored)))
            }
            (None, None) => own(state.init.clone()),
        });
    }
    for node in graph.nodes() {
        let known = |v: &Value| map[v.0 as usize].expect("values are computed in order");
        let results = b.again(node, &node.operands.iter().map(known).collect::<Vec<_>>());
        node.results.iter().zip(results).for_each(|(v, result)| map[v.0 as usize] = Some(result));
    }
    let map: Vec<Expr<'_>> = map.into_iter().map(|e| e.expect("all were computed")).collect();
    let rate = b.input("rate", TensorType::scalar(DType::F32));
    let (mut losses, mut seeds) = (Vec::new(), Vec::new());
    for port in graph.outputs().iter().filter(|port| graph.ty(port.value).dtype == DType::F32) {
        let y = map[port.value.0 as usize];
        let error = y - b.input(&format!("target.{}", port.name), y.ty());
        let share = 1.0 / y.sizes().iter().product::<usize>().max(1) as f64;
        losses.push((error * error).sum(&(0..y.rank()).collect::<Vec<_>>()) * share);
        seeds.push((port.value, error * (2.0 * share)));
    }
    if let Some(loss) = losses.into_iter().reduce(|sum, loss| sum + loss) {
        b.output("loss", loss);
    }
    let wrt: Vec<Value> = weights.iter().map(|weight| weight.value).collect();
    let found = gradients(&b, graph, &map, &seeds, &wrt);
    for (weight, gradient) in weights.iter().zip(found) {
        if let Some(gradient) = gradient {
            b.update(&weight.prepared.layer.weight, weight.moved(gradient, rate));
        }
    }
    b.finish()
}
