//! Multiply codes: products of dequantized tensors become products of their codes, summed exactly
//! in i32.
//!
//! Models that were quantized elsewhere arrive as QuantizeLinear and DequantizeLinear around float
//! products (QDQ), and so do our own convolutions of codes. If scale and zero point are constant
//! along the contracted axes, they leave the sum:
//! `Σ (a - za) sa (b - zb) sb = sa sb Σ (a - za)(b - zb)`, which is `Codes`. On real numbers
//! nothing changes; in f32 it is more exact than before. Invariant: what became integer, and what
//! could not, is a note that the plan shows.

use crate::rebuild::{NodeToCopy, rebuild};
use overdrive_ir::ops::quantized_linear::{Activations, WeightScales};
use overdrive_ir::ops::{Conv2d, Dequantize, Linear, QuantizedLinear};
use overdrive_ir::plan::Note;
use overdrive_ir::{
    Codes, Convolution, DType, Expr, Graph, GraphError, Node, Operation, Placement, Prim, Shape,
    Target, Value,
};

/// Takes scales and zero points out of sums, where the device multiplies i8.
pub(crate) fn multiply_codes(
    graph: &Graph,
    target: &dyn Target,
    notes: &mut Vec<Note>,
) -> Result<Graph, GraphError> {
    let dequantizes = |node: &Node| node.op.composite::<Dequantize>().is_some();
    if !target.description().contraction_dtypes.contains(&DType::I8)
        || !graph.nodes().iter().any(dequantizes)
    {
        return Ok(graph.clone());
    }
    rebuild(graph, &Clone::clone, &mut |place| {
        let (op, scope) = (place.node.op.name(), place.node.scope.to_string());
        match CodeProduct::of(graph, place) {
            Some(Ok(product)) => {
                let reason =
                    "both sides are codes: they are multiplied in i8 and summed in i32".to_owned();
                notes.push(Note::Expanded { op, scope, reason });
                Ok(vec![product.build(graph, place)])
            }
            Some(Err(reason)) => {
                let what = format!("integer product of {op}");
                notes.push(Note::Declined { what, scope, reason: reason.to_owned() });
                Ok(place.keep(place.node.regions.clone()))
            }
            None => Ok(place.keep(place.node.regions.clone())),
        }
    })
}

/// A tensor as what it was dequantized from.
#[derive(Copy, Clone)]
struct ScaledCodes<'b> {
    codes: Codes<'b>,
    /// f32, of the codes' rank.
    scale: Expr<'b>,
}

/// Whether a parameter is one number.
fn is_one(parameter: Expr<'_>) -> bool {
    parameter.sizes().iter().product::<usize>() == 1
}

impl<'b> ScaledCodes<'b> {
    /// The numbers behind `value`, if it dequantizes codes of 8 bits or fewer; reshapes and
    /// transposes may stand between.
    fn of(graph: &Graph, place: &NodeToCopy<'b, '_>, value: Value) -> Option<Self> {
        let node = graph.producer(value)?;
        if node.op.composite::<Dequantize>().is_some() {
            let [codes, scale] = [0, 1].map(|i| place.get(node.operands[i]));
            let zero = node.operands.get(2).map(|&zero| place.get(zero));
            let small = |x: Expr<'b>| matches!(x.dtype(), DType::I8 | DType::U8 | DType::I4);
            let fits = small(codes)
                && zero.is_none_or(|zero| small(zero) && zero.dtype() == codes.dtype());
            let wide = scale.dtype().accumulation() == DType::F32;
            let scale = scale.convert(DType::F32);
            return (fits && wide).then_some(Self { codes: Codes { codes, zero }, scale });
        }
        match node.op.prim()? {
            Prim::Reshape { shape } => Self::of(graph, place, node.operands[0])?.reshaped(shape),
            Prim::Transpose { perm } => {
                let inner = Self::of(graph, place, node.operands[0])?;
                Some(inner.each(|x| x.transpose(perm)))
            }
            _ => None,
        }
    }

    fn each(self, change: impl Fn(Expr<'b>) -> Expr<'b>) -> Self {
        let Codes { codes, zero } = self.codes;
        Self {
            codes: Codes { codes: change(codes), zero: zero.map(&change) },
            scale: change(self.scale),
        }
    }

    /// The same elements under another shape, where parameters are one number or one for each
    /// element of the first axis.
    fn reshaped(self, shape: &Shape) -> Option<Self> {
        let old = self.codes.codes.sizes();
        let first = |parameter: Expr<'b>| {
            let mut ones = vec![1usize; shape.rank()];
            if is_one(parameter) {
                return Some(parameter.reshape(ones));
            }
            let kept =
                !ones.is_empty() && parameter.size(0) == old[0] && shape[0].size() == Some(old[0]);
            let only = parameter.sizes()[1..].iter().all(|&n| n == 1);
            (kept && only).then(|| {
                ones[0] = old[0];
                parameter.reshape(ones)
            })
        };
        let zero = match self.codes.zero {
            Some(zero) => Some(first(zero)?),
            None => None,
        };
        let codes = Codes { codes: self.codes.codes.reshape(shape.clone()), zero };
        Some(Self { codes, scale: first(self.scale)? })
    }

    /// Whether each parameter is one number along `axes`, and one or one for each element along the
    /// others.
    fn is_whole(&self, axes: impl Iterator<Item = usize> + Clone) -> bool {
        let codes = self.codes.codes.sizes();
        [Some(self.scale), self.codes.zero].into_iter().flatten().all(|parameter| {
            let sizes = parameter.sizes();
            let simple = |(axis, &n): (usize, &usize)| {
                n == 1 || (n == codes[axis] && !axes.clone().any(|summed| summed == axis))
            };
            sizes.iter().enumerate().all(simple)
        })
    }
}

/// The operation that joins two sides.
enum Meeting {
    Dot { batch: Vec<(usize, usize)>, contract: Vec<(usize, usize)> },
    Convolution(Convolution),
}

/// A product whose sides are codes.
struct CodeProduct<'b> {
    sides: [ScaledCodes<'b>; 2],
    meeting: Meeting,
}

impl<'b> CodeProduct<'b> {
    /// The product that a node is; an error says what keeps codes from being multiplied.
    fn of(graph: &Graph, place: &NodeToCopy<'b, '_>) -> Option<Result<Self, &'static str>> {
        let node = place.node;
        let operands = &node.operands;
        if graph.ty(*node.results.first()?).dtype != DType::F32 {
            return None;
        }
        let meeting = meeting(&node.op, &place.operands)?;
        let left = ScaledCodes::of(graph, place, operands[0])?;
        let right = match node.op.composite::<QuantizedLinear>() {
            Some(linear) => {
                let zero = (linear.weights == WeightScales::Asymmetric).then(|| place.operands[3]);
                let [codes, scale] = [1, 2].map(|i| place.operands[i]);
                let integers =
                    codes.dtype().is_int() && zero.is_none_or(|zero| zero.dtype() == codes.dtype());
                let scale = scale.convert(DType::F32);
                integers.then_some(ScaledCodes { codes: Codes { codes, zero }, scale })?
            }
            None => ScaledCodes::of(graph, place, operands[1])?,
        };
        let product = Self { sides: [left, right], meeting };
        Some(match product.obstacle() {
            None => Ok(product),
            Some(reason) => Err(reason),
        })
    }

    /// Why the scales do not leave the sum, if they do not.
    fn obstacle(&self) -> Option<&'static str> {
        let [left, right] = &self.sides;
        let whole = match &self.meeting {
            Meeting::Dot { contract, .. } => {
                left.is_whole(contract.iter().map(|pair| pair.0))
                    && right.is_whole(contract.iter().map(|pair| pair.1))
            }
            Meeting::Convolution(_) => {
                // Samples may have scales of their own, but they share one zero point, which is
                // also the padding.
                let zero = left.codes.zero.is_none_or(is_one);
                zero && left.is_whole(1..left.codes.codes.rank())
                    && right.is_whole(1..right.codes.codes.rank())
            }
        };
        (!whole).then_some(
            "a scale or zero point changes along what is summed: they are multiplied as floats",
        )
    }

    fn build(self, graph: &Graph, place: &NodeToCopy<'b, '_>) -> Expr<'b> {
        let [left, right] = self.sides;
        let ty = graph.ty(place.node.results[0]);
        let (rank, shape) = (ty.rank(), ty.shape.clone());
        let ranks = [left, right].map(|side| side.codes.codes.rank());
        let (sums, placements) = match &self.meeting {
            Meeting::Dot { batch, contract } => (
                left.codes.dot(right.codes, batch, contract),
                Placement::of_dot(ranks, batch, contract),
            ),
            Meeting::Convolution(conv) => {
                let placements = [0, 1].map(|side| Placement::of_first(ranks[side], side));
                (left.codes.convolve(right.codes, conv), placements)
            }
        };
        let of_left = placements[0].spread(left.scale, &shape);
        let y = sums.convert(DType::F32) * of_left * placements[1].spread(right.scale, &shape);
        match (bias(&place.node.op), place.operands.get(2)) {
            (Some(axis), Some(bias)) => y + bias.broadcast_in(&shape, &[axis.unwrap_or(rank - 1)]),
            _ => y,
        }
    }
}

/// How the first two operands of a float product meet, if it is one.
fn meeting(op: &Operation, operands: &[Expr<'_>]) -> Option<Meeting> {
    let last = operands.first()?.rank().checked_sub(1);
    let dot =
        |axis: usize| Meeting::Dot { batch: vec![], contract: vec![(last.unwrap_or(0), axis)] };
    if op.composite::<Linear>().is_some() {
        return Some(dot(0));
    }
    if let Some(linear) = op.composite::<QuantizedLinear>() {
        let whole =
            linear.activations == Activations::Float && linear.weights != WeightScales::TwoLevel;
        return whole.then(|| dot(1));
    }
    if let Some(conv) = op.composite::<Conv2d>() {
        return Some(Meeting::Convolution(conv.convolution(DType::F32)));
    }
    match op.prim()? {
        Prim::DotGeneral(dot) => {
            Some(Meeting::Dot { batch: dot.batch.clone(), contract: dot.contract.clone() })
        }
        Prim::Convolution(conv) => Some(Meeting::Convolution(conv.clone())),
        _ => None,
    }
}

/// The axis of the result along which the third operand is added, of ops that have a bias; `None`
/// for the last one.
fn bias(op: &Operation) -> Option<Option<usize>> {
    if op.composite::<Conv2d>().is_some() {
        return Some(Some(1));
    }
    op.composite::<Linear>().map(|_| None)
}
