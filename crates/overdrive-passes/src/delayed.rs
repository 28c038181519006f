//! Delayed scales of layers on codes of fp8: a state for each tensor, updated at the end of a step.
//!
//! A scale is a power of two. It is at least twice as large as the tensor of the step before
//! needed, so that a tensor may double before it saturates. It falls by half once in [`HOLD`]
//! batches. So observed values stay in range for at least that many batches. A batch with only
//! zeros, or with non-finite values, leaves the scale as it is. Weights change once an update, so
//! that an update is to their scales what a batch is to others.
//!
//! Before the first batch, scales are those of the usual magnitudes of trained models: [`USUAL_X`],
//! [`USUAL_W`], and 1/M for the gradient of a mean over M rows. The first batch replaces them.
//!
//! Invariant: a scale depends on all of a batch, so that it is the same on every rank.

use overdrive_ir::ops::Float8Linear;
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::{Binary, Builder, Compare, DType, Expr, Graph, Init, Origin, TensorType, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Batches after which a scale may fall by half.
const HOLD: u32 = 8;
/// Counts batches.
const COUNT: &str = "float8.count";
/// Magnitude of activations before one was seen.
const USUAL_X: f64 = 16.0;
/// Magnitude of weights before one was seen.
const USUAL_W: f64 = 1.0;
/// How much a tensor may grow from one batch to the next.
const MARGIN: f64 = 2.0;
/// The least scale, 2^-64: a quotient of any magnitude below 2^63 is a number.
const LEAST: f64 = 1.0 / (1u128 << 64) as f64;

/// The scale numbers of layers. Layers with the same x share its scale, and so do layers with the
/// same w.
#[derive(Default)]
pub(crate) struct Numbers {
    layers: usize,
    first: BTreeMap<(&'static str, Value), usize>,
}

impl Numbers {
    /// The scales of the next layer, as states: those of x `[rows, K]`, w and dy.
    pub(crate) fn next<'b>(
        &mut self,
        b: &'b Builder,
        (x, w, rows): (Value, Value, usize),
        formats: Float8Linear,
    ) -> [Expr<'b>; 3] {
        let layer = self.layers;
        self.layers += 1;
        let mut first = |role, value| *self.first.entry((role, value)).or_insert(layer);
        let (of_x, of_w) = (first("x", x), first("w", w));
        let state = |layer: usize, role: &str, usual: f64, to: DType| {
            let name = format!("float8.{layer}.{role}");
            b.find_state(&name).unwrap_or_else(|| {
                let init = Init::Constant(MARGIN * ScaleFormat::E8m0Up.of(usual, to));
                b.state_named(&name, TensorType::scalar(DType::F32), init)
            })
        };
        [
            state(of_x, "x", USUAL_X, formats.forward),
            state(of_w, "w", USUAL_W, formats.forward),
            state(layer, "dy", 1.0 / rows as f64, formats.gradient),
        ]
    }
}

/// The delayed scales of a graph, and the values that new ones come from.
#[derive(Debug)]
pub struct DelayedScales<'g> {
    scales: Vec<Delayed<'g>>,
}

/// The place of a batch among those of an update.
#[derive(Copy, Clone, Debug)]
pub struct OfUpdate {
    /// Batches of an update.
    pub batches: usize,
    /// Whether this one updates the weights.
    pub is_last: bool,
}

/// A scale of a tensor.
#[derive(Debug)]
struct Delayed<'g> {
    /// Name of the state.
    name: &'g str,
    /// Its value.
    state: Value,
    /// Whether the tensor is a weight.
    of_weight: bool,
    /// The type of the codes.
    to: DType,
    /// The largest magnitude of the tensor; that of a gradient is the cotangent of the state.
    largest: Option<Value>,
}

impl<'g> DelayedScales<'g> {
    /// Those of the layers of a graph, each once.
    pub fn of(graph: &'g Graph) -> Self {
        let (mut scales, mut known) = (vec![], BTreeSet::new());
        for node in graph.nodes() {
            let Some(formats) = node.op.composite::<Float8Linear>() else { continue };
            let [x, w] = Float8Linear::LARGEST.map(|i| node.results.get(i).copied());
            let tensors = [(x, formats.forward), (w, formats.forward), (None, formats.gradient)];
            for (at, (largest, to)) in Float8Linear::GIVEN.into_iter().zip(tensors) {
                let Some(&state) = node.operands.get(at) else { continue };
                let Origin::State(number) = graph.origin(state) else { continue };
                if known.insert(state) {
                    let of_weight = at == Float8Linear::GIVEN[1];
                    let name = &graph.states()[number].name;
                    scales.push(Delayed { name, state, of_weight, to, largest });
                }
            }
        }
        // Updates of one format are loops that are alike: one launch does all of them.
        scales.sort_by_key(|scale| scale.to);
        Self { scales }
    }

    /// The scales whose cotangents are the largest magnitudes of gradients.
    pub fn of_gradients(&self) -> Vec<Value> {
        self.scales.iter().filter(|s| s.largest.is_none()).map(|s| s.state).collect()
    }

    /// The names of the scales of weights.
    pub fn of_weights(&self) -> BTreeSet<String> {
        let of_weights = self.scales.iter().filter(|scale| scale.of_weight);
        of_weights.map(|scale| scale.name.to_owned()).collect()
    }

    /// Makes scales new after a batch. The graph is in `b` as `values`; `cotangents` are those of
    /// [`Self::of_gradients`].
    pub fn update<'b>(
        &self,
        (b, values): (&'b Builder, &[Expr<'b>]),
        cotangents: &[Option<Expr<'b>>],
        batch: OfUpdate,
    ) {
        if self.scales.is_empty() {
            return;
        }
        let _scope = b.scope("float8");
        let count = b.state_named(COUNT, TensorType::scalar(DType::I64), Init::ZEROS);
        b.update(COUNT, count + count.constant(1.0));
        let is = |count: Expr<'b>, number: f64| count.compare(Compare::Eq, count.constant(number));
        let number = |value: f64| b.full(DType::F32, overdrive_ir::Shape::default(), value);
        let held = |count: Expr<'b>| {
            let falls = is(count.binary(Binary::Rem, count.constant(f64::from(HOLD))), 0.0);
            let held = falls.select(number(0.5), number(1.0));
            is(count, 0.0).select(number(0.0), held)
        };
        let of_batch = held(count);
        let of_update = match batch.batches {
            1 => of_batch,
            batches => held(count.binary(Binary::Div, count.constant(batches as f64))),
        };
        let mut of_gradients = cotangents.iter();
        for scale in &self.scales {
            let largest = match scale.largest {
                Some(value) => Some(values[value.0 as usize]),
                None => *of_gradients.next().expect("each scale of a gradient has its cotangent"),
            };
            let Some(largest) = largest.filter(|_| batch.is_last || !scale.of_weight) else {
                continue;
            };
            let held = if scale.of_weight { of_update } else { of_batch };
            let old = values[scale.state.0 as usize];
            b.update(scale.name, renewed(old, largest.convert(DType::F32), held, scale.to));
        }
    }
}

/// The scale that follows `old`. It is at least the share `held` of `old`.
fn renewed<'b>(old: Expr<'b>, largest: Expr<'b>, held: Expr<'b>, to: DType) -> Expr<'b> {
    let needed = largest.block_scale(&[], to, ScaleFormat::E8m0Up).convert(DType::F32) * MARGIN;
    let says = |kind, bound: f64| largest.compare(kind, largest.constant(bound));
    let says = says(Compare::Gt, 0.0).binary(Binary::And, says(Compare::Lt, f64::INFINITY));
    says.select(needed.max(old * held).max(old.constant(LEAST)), old)
}
