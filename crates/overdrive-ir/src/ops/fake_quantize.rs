//! `fake_quantize(x, scale, zero)`: `(clamp(round(x / scale) + zero, qmin, qmax) - zero) scale`,
//! the values that integer codes could hold.
//!
//! scale and zero broadcast to x: one number, or one per channel. `round` is to nearest, ties to
//! even, of a true quotient: a multiplication by `1 / scale` would move ties.
//!
//! The gradient is straight-through: it is that of the op with the rounding error held constant.
//! - x: dx passes inside the range and stops outside.
//! - scale: `round(x / scale) - x / scale` inside, and the clamped code outside.
//! - zero point: 0 inside, and `-scale` outside.
//!
//! Sources: Jacob et al., arXiv:1712.05877; straight-through: Bengio et al., arXiv:1308.3432;
//! scale: Esser et al., "Learned step size quantization", arXiv:1902.08153; zero point: Bhalgat et
//! al., "LSQ+", arXiv:2004.09576.

use crate::{
    Array, Binary, Builder, Compare, Dim, Expr, Fill, Gradient, Graph, Mismatch, Op, Sample, Shape,
    TensorType, Types, Unary,
};
use serde::{Deserialize, Serialize};

/// Rounds to a grid of integer codes, and back.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct FakeQuantize {
    /// Smallest code.
    pub qmin: i64,
    /// Largest code.
    pub qmax: i64,
}

impl<'b> Expr<'b> {
    /// The values that codes `qmin..=qmax` hold; scale and zero (a whole number) broadcast to self.
    pub fn fake_quantize(
        self,
        scale: Expr<'b>,
        zero: Expr<'b>,
        [qmin, qmax]: [i64; 2],
    ) -> Expr<'b> {
        self.builder().op1(FakeQuantize { qmin, qmax }, &[self, scale, zero])
    }
}

/// Whether `small` broadcasts to `shape`, trailing dimensions aligned.
fn broadcasts(small: &Shape, shape: &Shape) -> bool {
    let aligned = small.0.iter().rev().zip(shape.0.iter().rev());
    small.rank() <= shape.rank() && aligned.into_iter().all(|(s, d)| *s == Dim::Size(1) || s == d)
}

/// The sum of `x` over the axes along which `shape` was broadcast.
fn sum_to<'b>(x: Expr<'b>, shape: &Shape) -> Expr<'b> {
    let lead = x.rank() - shape.rank();
    let stretched =
        |axis: usize| axis < lead || (shape[axis - lead] == Dim::Size(1) && x.size(axis) != 1);
    let axes: Vec<usize> = (0..x.rank()).filter(|&axis| stretched(axis)).collect();
    x.sum(&axes).reshape(shape.clone())
}

/// Values that the expansion and the gradient share.
struct Codes<'b> {
    /// `x / scale`
    quotient: Expr<'b>,
    /// The quotient rounded.
    rounded: Expr<'b>,
    /// Rounded, shifted by zero, clamped, shifted back.
    clamped: Expr<'b>,
}

impl FakeQuantize {
    fn codes<'b>(&self, [x, scale, zero]: [Expr<'b>; 3]) -> Codes<'b> {
        let quotient = x / scale;
        let rounded = quotient.unary(Unary::Round);
        let shifted = rounded + zero;
        let low = shifted.max(shifted.constant(self.qmin as f64));
        let clamped = low.min(shifted.constant(self.qmax as f64)) - zero;
        Codes { quotient, rounded, clamped }
    }
}

impl Op for FakeQuantize {
    const NAME: &'static str = "fake_quantize";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x, scale, zero] = types.exactly()?;
        types.same_float(types.operands)?;
        if self.qmin >= self.qmax {
            return Err(Mismatch::new("qmin below qmax", format!("{}..={}", self.qmin, self.qmax)));
        }
        if !broadcasts(&scale.shape, &x.shape) || !broadcasts(&zero.shape, &x.shape) {
            let expected = format!("scale and zero that broadcast to {x}");
            let remedy = "give one number, or [C, 1, ...] for channels";
            return Err(Mismatch::new(expected, format!("{scale} and {zero}")).remedy(remedy));
        }
        Ok(vec![x.clone()])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let x = &args[0];
        let under = |small: &Array, at: &[usize]| {
            let trailing = &at[at.len() - small.shape.len()..];
            let index =
                trailing.iter().zip(&small.shape).map(|(&i, &n)| if n == 1 { 0 } else { i });
            small.at(&index.collect::<Vec<_>>())
        };
        vec![Array::build(x.dtype, &x.shape, |at| {
            let (scale, zero) = (under(&args[1], at), under(&args[2], at));
            let code = (x.at(at) / scale).round_ties_even() + zero;
            (code.max(self.qmin as f64).min(self.qmax as f64) - zero) * scale
        })]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let [x, scale, zero] = [args[0], args[1], args[2]].map(Expr::widen);
        vec![(self.codes([x, scale, zero]).clamped * scale).convert(args[0].dtype())]
    }

    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        let Some(cotangent) = g.cotangents[0] else { return Some(vec![None; 3]) };
        let [x, scale, zero] = [g.inputs[0], g.inputs[1], g.inputs[2]].map(Expr::widen);
        let Codes { quotient, rounded, clamped } = self.codes([x, scale, zero]);
        let code = rounded + zero;
        let above = code.compare(Compare::Ge, code.constant(self.qmin as f64));
        let below = code.compare(Compare::Le, code.constant(self.qmax as f64));
        let inside = above.binary(Binary::And, below);
        let (dy, none) = (cotangent.widen(), x.constant(0.0));
        let dscale = sum_to(dy * inside.select(rounded - quotient, clamped), &scale.shape());
        let dzero = sum_to(inside.select(none, -dy * scale), &zero.shape());
        let grads = [inside.select(dy, none), dscale, dzero];
        Some(grads.map(|grad| Some(grad.convert(cotangent.dtype()))).to_vec())
    }

    fn samples() -> Vec<Sample> {
        let zero = |values: &[f64], shape: Shape| {
            (TensorType::new(crate::DType::F32, shape), Fill::Values(values.to_vec()))
        };
        let sample = |range: [i64; 2]| Sample::new(FakeQuantize { qmin: range[0], qmax: range[1] });
        let (one, channels) =
            (zero(&[3.0], Shape::default()), zero(&[0.0, -1.0, 2.0], [3usize, 1].into()));
        let nothing = zero(&[0.0], Shape::default());
        vec![
            // Clips on both sides.
            sample([-8, 7])
                .normal(["M", "N"])
                .uniform(Shape::default(), 0.1, 0.2)
                .operand(one.0, one.1),
            sample([0, 255])
                .normal([2usize, 3, 5])
                .uniform([3usize, 1], 0.01, 0.02)
                .operand(channels.0, channels.1),
            // Ties round to even.
            sample([-128, 127])
                .operand(
                    TensorType::new(crate::DType::F32, [6usize]),
                    Fill::Values(vec![0.25, 0.75, -0.25, 1.25, 0.0, -99.0]),
                )
                .operand(TensorType::scalar(crate::DType::F32), Fill::Values(vec![0.5]))
                .operand(nothing.0, nothing.1),
        ]
    }
}
