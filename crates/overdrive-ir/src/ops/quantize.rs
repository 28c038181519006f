//! `quantize(x, scale, zero?)`: codes of a small type: `clamp(round(x / scale) + zero)` for
//! integers, `x / scale` rounded and saturated for floats.
//!
//! Each element of scale and zero covers a block of consecutive elements of x. Rounding is to
//! nearest, ties to even, of a true quotient; the clamp is to the range of the integer type. A NaN
//! has the integer code 0. Codes are steps, so their gradient is 0: training through them is
//! `fake_quantize`. Sources: Jacob et al., arXiv:1712.05877; OCP Microscaling Formats 1.0, 6.3.

use crate::blocks::{Blocks, covers};
use crate::{
    Array, Builder, DType, Dim, Expr, Fill, Gradient, Graph, Mismatch, Op, Overflow, Prim, Sample,
    TensorType, Types, Unary,
};
use serde::{Deserialize, Serialize};

/// Rounds to codes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Quantize {
    /// The type of the codes.
    pub to: DType,
}

impl<'b> Expr<'b> {
    /// Codes of type `to`, of blocks with these scales and zero points.
    pub fn quantize(self, scale: Expr<'b>, zero: Option<Expr<'b>>, to: DType) -> Expr<'b> {
        let operands: Vec<Expr<'b>> = [self, scale].into_iter().chain(zero).collect();
        self.builder().op1(Quantize { to }, &operands)
    }
}

/// The code nearest to `quotient`, as a number.
pub fn code(to: DType, quotient: f64, zero: f64) -> f64 {
    if to.is_float() {
        return to.round(quotient, Overflow::Saturate);
    }
    // Models have billions of weights, and each is rounded many times while a scale is sought: no
    // library call, no wide integer.
    let [low, high] = to.ends();
    let steps = nearest(quotient) + zero;
    if steps.is_nan() { 0.0 } else { steps.trunc().clamp(low, high) + 0.0 }
}

/// The integer nearest to `x`, ties to even. Adding 2^52 leaves no bits for a fraction.
fn nearest(x: f64) -> f64 {
    const WHOLE: f64 = (1u64 << 52) as f64;
    if x.abs() < WHOLE { ((x.abs() + WHOLE) - WHOLE).copysign(x) } else { x }
}

/// Errs unless `operands` are a tensor, a scale that covers it, and at most a zero point that
/// covers it as well.
pub(crate) fn check_scale(operands: &[TensorType]) -> Result<(), Mismatch> {
    let (x, scale, zero) = match operands {
        [x, scale] => (x, scale, None),
        [x, scale, zero] => (x, scale, Some(zero)),
        _ => {
            let found = format!("{} operands", operands.len());
            return Err(Mismatch::new("a tensor, a scale and at most a zero point", found));
        }
    };
    let number = |ty: &TensorType| ty.dtype.is_arithmetic_float() || ty.dtype.is_int();
    if !scale.dtype.is_float() || zero.is_some_and(|zero| !number(zero)) {
        let found = operands.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ");
        return Err(Mismatch::new("a float scale and a zero point that is a number", found));
    }
    let covered =
        covers(&scale.shape, &x.shape) && zero.is_none_or(|zero| covers(&zero.shape, &x.shape));
    if !covered {
        let found = zero.map_or_else(|| scale.to_string(), |zero| format!("{scale} and {zero}"));
        let remedy = "each extent of scale and zero must divide that of the tensor";
        return Err(Mismatch::new(format!("a scale of blocks of {x}"), found).remedy(remedy));
    }
    Ok(())
}

impl Op for Quantize {
    const NAME: &'static str = "quantize";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        check_scale(types.operands)?;
        let x = &types.operands[0];
        types.same_float(&types.operands[..1])?;
        if self.to == DType::Bool || self.to == DType::E8M0 {
            return Err(Mismatch::new(
                "codes of a type that holds signed numbers",
                self.to.to_string(),
            ));
        }
        if types.operands.len() == 3 && self.to.is_float() {
            return Err(Mismatch::new(
                "no zero point: floats are symmetric",
                types.operands[2].to_string(),
            ));
        }
        Ok(vec![x.with_dtype(self.to)])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let x = &args[0];
        let under =
            |small: &Array, at: &[usize]| small.at(&Blocks::new(&x.shape, &small.shape).at(at));
        vec![Array::build(self.to, &x.shape, |at| {
            code(
                self.to,
                x.at(at) / under(&args[1], at),
                args.get(2).map_or(0.0, |zero| under(zero, at)),
            )
        })]
    }

    fn expand<'b>(&self, b: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let x = args[0].widen();
        let scale = Blocks::new(&x.sizes(), &args[1].sizes());
        let quotient = scale.join(scale.split(x) / scale.spread(args[1].convert(x.dtype())));
        let rounded = match args.get(2) {
            Some(zero) => {
                let blocks = Blocks::new(&x.sizes(), &zero.sizes());
                let zero = blocks.spread(zero.convert(x.dtype()));
                blocks.join(blocks.split(quotient.unary(Unary::Round)) + zero)
            }
            None if self.to.is_float() => quotient,
            None => quotient.unary(Unary::Round),
        };
        vec![b.op1(Prim::Convert { to: self.to, overflow: Overflow::Saturate }, &[rounded])]
    }

    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        Some(vec![None; g.inputs.len()])
    }

    fn samples() -> Vec<Sample> {
        let sample = |to| Sample::new(Quantize { to });
        let ties = Fill::Values(vec![0.25, 0.75, -0.25, 1.25, 0.0, -99.0, 99.0, 3.1]);
        vec![
            sample(DType::I8).normal(["M", "K"]).uniform(["M".into(), Dim::Size(1)], 0.01, 0.02),
            sample(DType::I4).normal(["M".into(), Dim::Size(12)]).uniform(
                ["M".into(), Dim::Size(3)],
                0.2,
                0.4,
            ),
            sample(DType::U8)
                .normal(["M", "K"])
                .uniform([1usize, 1], 0.01, 0.02)
                .operand(TensorType::new(DType::I32, [1usize, 1]), Fill::Values(vec![128.0])),
            sample(DType::I4)
                .operand(TensorType::new(DType::F32, [8usize]), ties.clone())
                .operand(TensorType::new(DType::F32, [1usize]), Fill::Values(vec![0.5])),
            sample(DType::F8E4M3).normal(["M".into(), Dim::Size(64)]).operand(
                TensorType::new(DType::E8M0, ["M".into(), Dim::Size(2)]),
                Fill::Values(vec![0.25, 2.0, 0.0078125]),
            ),
            sample(DType::F4E2M1)
                .operand(TensorType::new(DType::F32, [8usize]), ties)
                .operand(TensorType::new(DType::F8E4M3, [2usize]), Fill::Values(vec![0.5, 1.125])),
        ]
    }
}
