//! `cast_transpose(x, scale)`: `[M, N]` as codes of a small float, row after row and column after
//! column, and `max |x|`.
//!
//! The codes are those of `quantize`: `x / scale`, rounded and saturated. One pass over x gives all
//! three results: codes `[M, N]`, codes `[N, M]`, and the magnitude `[]` in the type that sums use.
//!
//! Training in fp8 needs both orders. Its products contract rows in one pass and columns in the
//! other, but the tensor cores of some devices read the contracted index contiguously. Training
//! also needs the largest magnitude, for the scale of a later step (delayed scaling). Source:
//! Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433.

use super::quantize::code;
use crate::{
    Array, Builder, DType, Expr, Fill, Graph, Mismatch, Op, Reducer, Sample, Shape, TensorType,
    Types, Unary,
};
use serde::{Deserialize, Serialize};

/// Codes in both orders.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CastTranspose {
    /// The type of the codes: a float of one byte.
    pub to: DType,
}

impl<'b> Expr<'b> {
    /// Codes of self `[M, N]` by a scalar scale: `[M, N]`, `[N, M]`, and the largest magnitude.
    pub fn cast_transpose(self, scale: Expr<'b>, to: DType) -> [Expr<'b>; 3] {
        let results = self.builder().op(CastTranspose { to }, &[self, scale]);
        [results[0], results[1], results[2]]
    }
}

/// `max |x|`, 0 of no elements and NaN where any is.
pub(super) fn largest_magnitude(x: &Array) -> f64 {
    let mut magnitudes = (0..x.len()).map(|i| x.get(i).abs());
    magnitudes.try_fold(0.0, |a: f64, x| (!x.is_nan()).then_some(a.max(x))).unwrap_or(f64::NAN)
}

impl Op for CastTranspose {
    const NAME: &'static str = "cast_transpose";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x, scale] = types.exactly()?;
        types.same_float(&types.operands[..1])?;
        if x.rank() != 2 || scale.rank() != 0 || !scale.dtype.is_arithmetic_float() {
            let remedy = "reshape x to a matrix; one scale covers all of it";
            return Err(Mismatch::new(
                "x of [M, N] and a scalar scale",
                format!("{x} and {scale}"),
            )
            .remedy(remedy));
        }
        if !matches!(self.to, DType::F8E4M3 | DType::F8E5M2) {
            return Err(Mismatch::new("codes of f8e4m3 or f8e5m2", self.to.to_string()));
        }
        let codes = x.with_dtype(self.to);
        let transposed = codes.with_shape(Shape(x.shape.0.iter().rev().cloned().collect()));
        Ok(vec![codes, transposed, TensorType::scalar(x.dtype.accumulation())])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let (x, scale) = (&args[0], args[1].get(0));
        let of = |at: &[usize]| code(self.to, x.at(at) / scale, 0.0);
        let largest = largest_magnitude(x);
        vec![
            Array::build(self.to, &x.shape, of),
            Array::build(self.to, &[x.shape[1], x.shape[0]], |at| of(&[at[1], at[0]])),
            Array::float(x.dtype.accumulation(), &[], vec![largest]),
        ]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let (x, scale) = (args[0], args[1].reshape([1usize, 1]));
        let codes = x.quantize(scale, None, self.to);
        let magnitude = x.widen().unary(Unary::Abs).reduce(Reducer::Max, &[0, 1]);
        // Without elements it is 0, not the identity of the maximum.
        vec![codes, codes.transpose(&[1, 0]), magnitude.max(magnitude.constant(0.0))]
    }

    fn fold(&self, result: usize) -> Option<Reducer> {
        (result == 2).then_some(Reducer::Max)
    }

    fn samples() -> Vec<Sample> {
        let sample = |to, scale| {
            let scale = (TensorType::scalar(DType::F32), Fill::Values(vec![scale]));
            Sample::new(CastTranspose { to }).normal(["M", "N"]).operand(scale.0, scale.1)
        };
        vec![
            sample(DType::F8E4M3, 0.0078125),
            sample(DType::F8E4M3, 0.013),
            sample(DType::F8E5M2, 0.00003),
        ]
    }
}
