//! Quantization-aware training: the model as its codes compute it, with gradients that pass through
//! the rounding.
//!
//! [`learn`] gives a graph to train. Its forward values are bit for bit those of the quantized
//! graph. It holds the very nodes of that graph, on codes that it makes from the float weights.
//! Gradients go along a path beside these nodes (`straight_through`). On this path, a tensor x with
//! step s is LSQ's `x̂ = s · clip(x / s)`, its rounding taken for the identity:
//! - `∂x̂/∂x` is 1 inside the range and 0 outside.
//! - `∂x̂/∂s` is `round(x/s) - x/s` inside and the end of the range outside.
//! - The gradient that reaches s is divided by `√(elements · largest code)`.
//!
//! A step is its first value times a factor that is trained, so that an optimizer's step is
//! relative to it. Power-of-two scales are rounded, straight through again. Source: Esser et al.,
//! "Learned step size quantization", arXiv:1902.08153, equations 1 to 3 and section 2.2.

use super::coded::{LayerProduct, rounded, rows_of, shared};
use super::held::{KAxis, LayerKind};
use super::layers::Skipped;
use super::quantized::Quantized;
use super::rewrite::{Prepared, conclude, prepare, rebuild};
use super::{Quantization, Scheme};
use crate::Evidence;
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::ops::quantize::code;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{
    Binary, BlockIndex, Builder, Compare, DType, Encoded, Expr, Graph, GraphError, Init, Overflow,
    Prim, Symmetry, Tensor, TensorType,
};
use std::collections::BTreeMap;

/// Steps are at least this: a scale of 0 has no quotient.
const SMALLEST: f32 = f32::MIN_POSITIVE;

/// A model that learns to be quantized.
#[derive(Clone, Debug)]
pub struct Learning {
    /// To train: the float model's interface, weights and states, with a factor a step besides.
    pub graph: Graph,
    /// Layers that are left unchanged, and why.
    pub skipped: Vec<Skipped>,
    float: Graph,
    layers: Vec<Prepared>,
}

/// The graph to train, for every layer that `quantization` gives a scheme; steps begin as those
/// that err least.
///
/// # Errors
/// When a weight is not finite, or the evidence lacks what a scheme needs.
pub fn learn(
    graph: &Graph,
    quantization: &Quantization,
    evidence: &Evidence,
) -> Result<Learning, GraphError> {
    let (mut layers, [mut skipped, _]) = prepare(graph, quantization, evidence)?;
    layers.retain(|prepared| {
        let reason = not_learnt(&prepared.scheme);
        skipped.extend(reason.map(|reason| Skipped { layer: prepared.layer.name.clone(), reason }));
        not_learnt(&prepared.scheme).is_none()
    });
    let learners: Vec<_> =
        layers.iter().map(|prepared| (&prepared.layer, Learner { prepared, graph })).collect();
    let trained = rebuild(graph, &learners, &|learner, product| learner.build(product))?;
    Ok(Learning { graph: trained, skipped, float: graph.clone(), layers })
}

/// Why steps of a scheme are not learnt, if they are not.
fn not_learnt(scheme: &Scheme) -> Option<String> {
    let reason = match (scheme.weights.symmetry, scheme.weights.scale, scheme.activations) {
        _ if scheme.rotation.is_some() => "weights are not learnt as a rotation turns them",
        (Symmetry::Asymmetric, _, _) => "zero points of weights are not learnt",
        (_, ScaleFormat::F8e4m3, _) => "scales in two levels are not learnt",
        (_, _, Activations::Blocks(..)) => "activations in blocks have no step to learn",
        _ => return None,
    };
    Some(reason.to_owned())
}

impl Learning {
    /// True when no layer takes its scheme: there is nothing to train.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The quantized graph of the trained states, by the names of [`Learning::graph`].
    ///
    /// # Errors
    /// With a state that is missing, or a weight or a step that is not finite.
    pub fn conclude(&self, trained: &BTreeMap<String, Tensor>) -> Result<Quantized, GraphError> {
        let given = |name: &str| {
            trained.get(name).ok_or_else(|| GraphError {
                op: "learn".into(),
                scope: name.to_owned(),
                expected: "the trained value of every state".into(),
                found: "none".into(),
                remedy: "give what training this very graph gave".into(),
            })
        };
        let mut begin: BTreeMap<&str, Init> = self
            .float
            .states()
            .iter()
            .map(|state| (state.name.as_str(), state.init.clone()))
            .collect();
        for (name, init) in begin.iter_mut().filter(|(name, _)| trained.contains_key(**name)) {
            *init = Init::Value(trained[*name].clone());
        }
        let float = self.float.clone().with_initial_values(|name, _| begin[name].clone());
        let mut layers = self.layers.clone();
        for prepared in &mut layers {
            given(&prepared.layer.weight)?;
            prepared.encoded =
                encoded(prepared, &float, given(&factor_of(&prepared.weight_step()))?);
            if let Some((grid, _)) = &mut prepared.input {
                let factor = given(&factor_of(&prepared.layer.input("scale")))?.to_f32()[0];
                grid.scale = f64::from((grid.scale as f32 * factor).max(SMALLEST));
            }
        }
        conclude(&float, layers, [self.skipped.clone(), vec![]])
    }
}

/// The state that a step is multiplied by.
fn factor_of(step: &str) -> String {
    format!("{step}_factor")
}

/// Codes of the trained weights, by the arithmetic of the ops: quotients are rounded to f32 first.
fn encoded(prepared: &Prepared, float: &Graph, factor: &Tensor) -> Encoded {
    let (format, shape) = (&prepared.scheme.weights, prepared.layer.shape);
    let counts = format.block.counts(shape).expect("the layer was prepared with this format");
    let narrow = |base: f32, factor: f32| f64::from((base * factor).max(SMALLEST));
    let bases = prepared.encoded.scale.to_f32();
    let wide: Vec<f64> =
        bases.iter().zip(factor.to_f32()).map(|(&base, factor)| narrow(base, factor)).collect();
    let scale = Tensor::from_f64(format.scale.dtype(DType::F32), counts.to_vec(), &wide);
    let (stored, index) = (scale.to_f32(), BlockIndex::new(shape, counts));
    let quotient = |(i, &w): (usize, &f64)| f64::from(w as f32 / stored[index.at(i)]);
    let rows = prepared.layer.rows(float);
    let codes: Vec<f64> = rows
        .iter()
        .enumerate()
        .map(quotient)
        .map(|quotient| code(format.element, quotient, 0.0))
        .collect();
    Encoded {
        codes: Tensor::from_f64(format.element, shape.to_vec(), &codes),
        scale,
        zero: None,
        tensor_scale: None,
    }
}

/// A step in the graph.
#[derive(Copy, Clone)]
struct StepSize<'b> {
    /// In the stored format, which codes are computed with.
    stored: Expr<'b>,
    /// The same number in f32, whose gradient reaches the factor.
    learnt: Expr<'b>,
}

impl<'b> StepSize<'b> {
    /// The step `name`, which begins as `base`; `covered` elements share it.
    fn new(
        b: &'b Builder,
        name: &str,
        base: &Tensor,
        (format, element, covered): (ScaleFormat, DType, usize),
    ) -> Self {
        let ty = base.ty().with_dtype(DType::F32);
        let base = Tensor::from_f32(ty.sizes(), &base.to_f32());
        // Flat, since optimizers shrink matrices, and a step has no reason to be small.
        let flat = TensorType::new(DType::F32, [ty.elements()]);
        let factor = shared(b, &factor_of(name), &flat, || Init::Constant(1.0)).reshape(ty.shape);
        let wide = b.constant(base) * factor;
        let wide = wide.max(wide.constant(f64::from(SMALLEST)));
        let to = format.dtype(DType::F32);
        let stored = if to == DType::F32 {
            wide
        } else {
            b.op1(Prim::Convert { to, overflow: Overflow::Saturate }, &[wide])
        };
        let share = 1.0 / (covered as f64 * element.max_value()).sqrt();
        Self { stored, learnt: stored.convert(DType::F32).straight_through(wide * share) }
    }
}

/// `number · step`, with the gradients of LSQ; `number` is the code of `x / step`, which lies
/// inside `ends` or is cut.
fn lsq<'b>(x: Expr<'b>, step: Expr<'b>, number: Expr<'b>, ends: [Expr<'b>; 2]) -> Expr<'b> {
    let quotient = x / step;
    let (above, below) =
        (quotient.compare(Compare::Ge, ends[0]), quotient.compare(Compare::Le, ends[1]));
    let inside = above.binary(Binary::And, below);
    number.straight_through(inside.select(quotient, quotient.constant(0.0))) * step
}

/// The ends of the range of a type, as numbers in f32.
fn ends<'b>(b: &'b Builder, element: DType) -> [Expr<'b>; 2] {
    let range = element.int_range().map(|(low, high)| [low as f64, high as f64]);
    let range = range.unwrap_or([-element.max_value(), element.max_value()]);
    range.map(|end| b.constant(Tensor::scalar(DType::F32, end)))
}

/// A layer of the graph that is trained.
struct Learner<'a> {
    prepared: &'a Prepared,
    graph: &'a Graph,
}

impl Learner<'_> {
    fn build<'b>(
        &self,
        LayerProduct { node, rows: part, x, bias }: LayerProduct<'b, '_>,
    ) -> Expr<'b> {
        let (b, layer, scheme) = (x.builder(), &self.prepared.layer, &self.prepared.scheme);
        let state = layer.state(self.graph);
        let w = shared(b, &state.name, self.graph.ty(state.value), || state.init.clone());
        let [n, k] = layer.shape;
        let rows = match (layer.kind, layer.held.order) {
            (LayerKind::Convolution, _) => w.reshape([n, k]),
            (LayerKind::Linear, KAxis::InputMajor) => w.t(),
            (LayerKind::Linear, KAxis::OutputMajor) => w,
        };
        let rows = rows_of(rows, part);
        let [of, groups] =
            scheme.weights.block.counts(layer.shape).expect("the layer was prepared with it");
        let covered = n * k / (of * groups).max(1);
        let like = (scheme.weights.scale, scheme.weights.element, covered);
        let step =
            StepSize::new(b, &self.prepared.weight_step(), &self.prepared.encoded.scale, like);
        let step =
            StepSize { stored: rows_of(step.stored, part), learnt: rows_of(step.learnt, part) };
        let n = part.len();
        let codes = rows.quantize(step.stored, None, scheme.weights.element);
        let apart = |x: Expr<'b>| x.reshape([n, groups, k / groups.max(1)]);
        let numbers = apart(codes.convert(DType::F32));
        let spread = step.learnt.reshape([if of == 1 { 1 } else { n }, groups, 1]);
        let weights =
            lsq(apart(rows), spread, numbers, ends(b, scheme.weights.element)).reshape([n, k]);
        let input = self.input_step(b);
        let seen = self.activations(x, input);
        match node.op.composite::<overdrive_ir::ops::Conv2d>() {
            Some(geometry) => {
                seen.conv2d(weights.reshape(layer.held.sizes.clone()), bias, geometry.clone())
            }
            None => {
                let beside = input.map(|(step, zero)| (step.stored, zero));
                let y = x.quantized_linear(
                    self.prepared.coded().op(),
                    &operands([codes, step.stored], beside),
                );
                let y = y.straight_through(seen.linear(weights.t(), None));
                bias.map_or(y, |bias| y + bias)
            }
        }
    }

    /// Step and zero point of static activations.
    fn input_step<'b>(&self, b: &'b Builder) -> Option<(StepSize<'b>, Option<Expr<'b>>)> {
        let (grid, element) = self.prepared.input?;
        let layer = &self.prepared.layer;
        let base = Tensor::scalar(DType::F32, grid.scale);
        let step = StepSize::new(
            b,
            &layer.input("scale"),
            &base,
            (ScaleFormat::Wide, element, layer.shape[1]),
        );
        let zero = element.is_int().then(|| b.constant(Tensor::scalar(element, grid.zero)));
        Some((step, zero))
    }

    /// x as its codes stand for it, with its gradient.
    fn activations<'b>(
        &self,
        x: Expr<'b>,
        input: Option<(StepSize<'b>, Option<Expr<'b>>)>,
    ) -> Expr<'b> {
        let b = x.builder();
        let Some((step, zero)) = input else {
            // A scale of the moment covers every element: nothing is cut, and there is nothing to
            // learn.
            let value = rounded((self.prepared.layer.kind, &self.prepared.scheme), x, None);
            return if self.prepared.scheme.activations == Activations::Float {
                x
            } else {
                value.straight_through(x)
            };
        };
        let element = self.prepared.input.expect("there is a step").1;
        let ones = vec![1usize; x.rank()];
        let reshaped = zero.map(|zero| zero.reshape(ones.clone()));
        let codes = x.quantize(step.stored.reshape(ones), reshaped, element).convert(DType::F32);
        let centred = |x: Expr<'b>| zero.map_or(x, |zero| x - zero.convert(DType::F32));
        lsq(x, step.learnt, centred(codes), ends(b, element).map(centred))
    }
}

/// Operands of a quantized product after x.
fn operands<'b>(
    weights: [Expr<'b>; 2],
    input: Option<(Expr<'b>, Option<Expr<'b>>)>,
) -> Vec<Expr<'b>> {
    let of_input = input.into_iter().flat_map(|(scale, zero)| [Some(scale), zero]).flatten();
    weights.into_iter().chain(of_input).collect()
}
