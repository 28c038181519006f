//! `float8_linear(x, w)`: `y = Q(x) Q(w)`, with x `[M, K]` and w `[K, N]`, on codes of fp8, forward
//! and in both gradients.
//!
//! `Q(a) = s round(a / s)` rounds to an fp8 format. `s` is the least power of two that keeps the
//! largest magnitude of the tensor in range, so that scaling itself is exact. This is current
//! scaling, with a scale for each tensor. Gradients are straight-through, of the rounded values:
//! `dx = Q'(dy) Q(w)ᵀ` and `dw = Q(x)ᵀ Q'(dy)`. `Q'` rounds to the format of gradients.
//!
//! The results beside y are for the gradients: codes of x as `[K, M]`, codes of w as `[K, N]`, and
//! both scales. Some tensor cores read the contracted index contiguously. In these layouts it is
//! contiguous in all three products. Sources: Micikevicius et al., "FP8 formats for deep learning",
//! arXiv:2209.05433 (e4m3 forward, e5m2 gradients); DeepSeek-V3, arXiv:2412.19437 (e4m3 for both,
//! scales that are powers of two).

use super::block_scale::ScaleFormat;
use super::cast_transpose::largest_magnitude;
use super::quantize::code;
use crate::{
    Array, Builder, DType, Expr, Fill, Gradient, Graph, Mismatch, Op, Sample, TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// A product on codes of fp8 in training.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Float8Linear {
    /// The type of the codes of x and w.
    pub forward: DType,
    /// The type of the codes of dy.
    pub gradient: DType,
}

impl Float8Linear {
    /// What a recipe of these formats is called.
    pub fn title(&self) -> &'static str {
        if self.gradient == self.forward { "fp8-e4m3" } else { "fp8" }
    }
}

impl<'b> Expr<'b> {
    /// The product of self `[M, K]` by `w [K, N]` on codes of fp8.
    pub fn float8_linear(self, w: Expr<'b>, formats: Float8Linear) -> Expr<'b> {
        self.builder().op(formats, &[self, w])[0]
    }
}

/// How scales are rounded: up to a power of two, so that nothing is clipped.
const SCALE: ScaleFormat = ScaleFormat::E8m0Up;

/// The scale of a tensor for codes of type `to`.
fn scale_of(x: Expr<'_>, to: DType) -> Expr<'_> {
    x.block_scale(&[None, None], to, SCALE).convert(DType::F32).reshape(crate::Shape::default())
}

/// The product of codes along the last axis of both, in the type of their sums.
fn product<'b>(lhs: Expr<'b>, rhs: Expr<'b>, scales: [Expr<'b>; 2], like: Expr<'b>) -> Expr<'b> {
    let sum = like.dtype().accumulation();
    let scale = (scales[0] * scales[1]).convert(sum);
    (lhs.dot_to(rhs, &[], &[(1, 1)], sum) * scale).convert(like.dtype())
}

impl Op for Float8Linear {
    const NAME: &'static str = "float8_linear";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x, w] = types.exactly()?;
        for ty in [x, w] {
            types.same_float(std::slice::from_ref(ty))?;
        }
        if x.rank() != 2 || w.rank() != 2 || x.shape[1] != w.shape[0] {
            let remedy = "reshape x to a matrix; its columns are the rows of w";
            let found = format!("{x} and {w}");
            return Err(Mismatch::new("x of [M, K] and w of [K, N]", found).remedy(remedy));
        }
        if let Some(other) =
            [self.forward, self.gradient].iter().find(|to| to.bits() != 8 || !to.is_float())
        {
            return Err(Mismatch::new("codes of f8e4m3 or f8e5m2", other.to_string()));
        }
        let ([m, k], n) = ([&x.shape[0], &x.shape[1]], &w.shape[1]);
        let of = |ty: &TensorType, rows: &crate::Dim, columns: &crate::Dim| {
            ty.with_shape(crate::Shape(vec![rows.clone(), columns.clone()]))
        };
        let scale = TensorType::scalar(DType::F32);
        Ok(vec![
            of(x, m, n),
            of(x, k, m).with_dtype(self.forward),
            w.with_dtype(self.forward),
            scale.clone(),
            scale,
        ])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let (x, w) = (&args[0], &args[1]);
        let (m, [k, n]) = (x.shape[0], [w.shape[0], w.shape[1]]);
        let scales = [x, w].map(|a| SCALE.of(largest_magnitude(a), self.forward));
        let codes = |a: &Array, scale: f64| {
            Array::build(self.forward, &a.shape, |at| code(self.forward, a.at(at) / scale, 0.0))
        };
        let (cx, cw) = (codes(x, scales[0]), codes(w, scales[1]));
        let mut y = Vec::with_capacity(m * n);
        for row in 0..m {
            for column in 0..n {
                let products = (0..k).map(|i| cx.get(row * k + i) * cw.get(i * n + column));
                y.push(products.sum::<f64>() * scales[0] * scales[1]);
            }
        }
        let turned = Array::build(self.forward, &[k, m], |at| cx.at(&[at[1], at[0]]));
        let number = |scale: f64| Array::float(DType::F32, &[], vec![scale]);
        let [scale_x, scale_w] = scales.map(number);
        vec![Array::float(x.dtype, &[m, n], y), turned, cw, scale_x, scale_w]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let (x, w) = (args[0], args[1]);
        let scales = [x, w].map(|a| scale_of(a, self.forward));
        let [codes_x, turned_x, _] = x.cast_transpose(scales[0], self.forward);
        let [codes_w, turned_w, _] = w.cast_transpose(scales[1], self.forward);
        let y = product(codes_x, turned_w, scales, x);
        vec![y, turned_x, codes_w, scales[0], scales[1]]
    }

    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        let Some(dy) = g.cotangents[0] else { return Some(vec![None; 2]) };
        let [turned_x, codes_w, scale_x, scale_w] = [1, 2, 3, 4].map(|i| g.outputs[i]);
        let scale = scale_of(dy, self.gradient);
        let [codes, turned, _] = dy.cast_transpose(scale, self.gradient);
        let dx = product(codes, codes_w, [scale, scale_w], g.inputs[0]);
        let dw = product(turned_x, turned, [scale_x, scale], g.inputs[1]);
        Some(vec![Some(dx), Some(dw)])
    }

    fn samples() -> Vec<Sample> {
        let sample = |gradient| {
            Sample::new(Float8Linear { forward: DType::F8E4M3, gradient })
        };
        vec![
            sample(DType::F8E5M2).normal(["M", "K"]).normal(["K", "N"]),
            // The scale of a tensor of zeros is the least there is.
            sample(DType::F8E4M3).normal([3usize, 4]).operand(
                TensorType::new(DType::F32, [4usize, 2]),
                Fill::Values(vec![0.0; 8]),
            ),
        ]
    }
}
