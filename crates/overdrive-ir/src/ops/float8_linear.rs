//! `float8_linear(x, w)`: `y = Q(x) Q(w)`, with x `[..., K]` and w `[K, N]`, on codes of fp8,
//! forward and in both gradients.
//!
//! `Q(a) = s round(a / s)` rounds to an fp8 format and saturates. Gradients are straight-through,
//! of the rounded values: `dx = Q'(dy) Q(w)ᵀ` and `dw = Q(x)ᵀ Q'(dy)`. `Q'` rounds to the format of
//! gradients. There is a scale for each tensor:
//! - Current scaling: `s` is the least power of two that keeps the largest magnitude of the tensor
//!   in range. Scaling itself is exact, and nothing saturates. Each tensor is read twice.
//! - Delayed scaling: three more operands are `s` of x, w and dy, as steps before found them. Each
//!   tensor is read once, and its largest magnitude is found on the way. Those of x and w are
//!   results. That of dy exists only in the gradient: it is the cotangent of the scale of dy.
//!
//! The results after y are for the gradients, and for later scales. They are the codes of x as
//! `[K, ...]`, the codes of w as `[K, N]`, both scales, both largest magnitudes. Some tensor cores
//! read the contracted index contiguously. In these layouts it is contiguous in all three products.
//! Sources: Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433 (e4m3 forward,
//! e5m2 gradients). DeepSeek-V3, arXiv:2412.19437 (e4m3 for both, scales that are powers of two).
//! Flax also returns magnitudes as cotangents, which overwrite instead of adding up ("fp8 meta").

use super::block_scale::ScaleFormat;
use super::cast_transpose::largest_magnitude;
use super::quantize::code;
use crate::{
    Array, Builder, DType, Expr, Fill, Gradient, Graph, Mismatch, Op, Sample, Shape, TensorType,
    Types,
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

/// Numbers of results.
const TURNED_X: usize = 1;
const CODES_W: usize = 2;
const SCALES: [usize; 2] = [3, 4];

impl Float8Linear {
    /// Numbers of the results that are the largest magnitudes of x and w.
    pub const LARGEST: [usize; 2] = [5, 6];
    /// Numbers of the operands that are the scales of x, w and dy, for delayed scaling.
    pub const GIVEN: [usize; 3] = [2, 3, 4];
}

impl<'b> Expr<'b> {
    /// The product of self `[..., K]` by `w [K, N]` on codes of fp8. `scales` are those of self, w
    /// and the gradient of the product; `None` means current scaling.
    pub fn float8_linear(
        self,
        w: Expr<'b>,
        scales: Option<[Expr<'b>; 3]>,
        formats: Float8Linear,
    ) -> Expr<'b> {
        let scales = scales.into_iter().flatten();
        let operands: Vec<Expr<'b>> = [self, w].into_iter().chain(scales).collect();
        self.builder().op(formats, &operands)[0]
    }
}

/// How scales are rounded: up to a power of two, so that nothing is clipped.
const SCALE: ScaleFormat = ScaleFormat::E8m0Up;

/// The scale of a tensor for codes of type `to`.
fn scale_of(x: Expr<'_>, to: DType) -> Expr<'_> {
    x.block_scale(&vec![None; x.rank()], to, SCALE).convert(DType::F32).reshape(Shape::default())
}

/// The product of codes along the last axis of both, in the type of their sums.
fn product<'b>(lhs: Expr<'b>, rhs: Expr<'b>, scales: [Expr<'b>; 2], like: Expr<'b>) -> Expr<'b> {
    let sum = like.dtype().accumulation();
    let scale = (scales[0] * scales[1]).convert(sum);
    let last = (lhs.rank() - 1, rhs.rank() - 1);
    (lhs.dot_to(rhs, &[], &[last], sum) * scale).convert(like.dtype())
}

/// Codes of x `[..., K]` and of x turned, `[K, ...]` as a matrix, and the largest magnitude.
fn cast<'b>(x: Expr<'b>, scale: Expr<'b>, to: DType) -> [Expr<'b>; 3] {
    let sizes = x.sizes();
    let (k, leading) = sizes.split_last().expect("x has a last dimension");
    let rows = x.reshape([leading.iter().product(), *k]);
    let [codes, turned, largest] = rows.cast_transpose(scale, to);
    [codes.reshape(x.shape()), turned, largest]
}

/// The sizes of x `[..., K]` as `[K, ...]`.
fn turned<T: Clone>(sizes: &[T]) -> Vec<T> {
    let (k, leading) = sizes.split_last().expect("x has a last dimension");
    [std::slice::from_ref(k), leading].concat()
}

impl Op for Float8Linear {
    const NAME: &'static str = "float8_linear";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let (x, w, scales) = match types.operands {
            [x, w] => (x, w, &[][..]),
            [x, w, scales @ ..] if scales.len() == Self::GIVEN.len() => (x, w, scales),
            other => {
                let found = format!("{} operands", other.len());
                return Err(Mismatch::new("x and w, and no scale or three", found));
            }
        };
        for ty in [x, w] {
            types.same_float(std::slice::from_ref(ty))?;
        }
        let is_scale =
            |ty: &TensorType| ty.rank() == 0 && matches!(ty.dtype, DType::F32 | DType::F64);
        if let Some(other) = scales.iter().find(|ty| !is_scale(ty)) {
            let expected = "scalars of f32 or f64 as scales of x, w and dy";
            return Err(Mismatch::new(expected, other.to_string()));
        }
        if w.rank() != 2 || x.rank() < 1 || x.shape.0.last() != Some(&w.shape[0]) {
            let remedy = "the last dimension of x must be the first of w";
            let found = format!("{x} and {w}");
            return Err(Mismatch::new("x of [..., K] and w of [K, N]", found).remedy(remedy));
        }
        if let Some(other) =
            [self.forward, self.gradient].iter().find(|to| to.bits() != 8 || !to.is_float())
        {
            return Err(Mismatch::new("codes of f8e4m3 or f8e5m2", other.to_string()));
        }
        let mut y = x.clone();
        *y.shape.0.last_mut().expect("x has a last dimension") = w.shape[1].clone();
        let scale = TensorType::scalar(DType::F32);
        let largest = |ty: &TensorType| TensorType::scalar(ty.dtype.accumulation());
        Ok(vec![
            y,
            x.with_shape(Shape(turned(&x.shape.0))).with_dtype(self.forward),
            w.with_dtype(self.forward),
            scale.clone(),
            scale,
            largest(x),
            largest(w),
        ])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let (x, w) = (&args[0], &args[1]);
        let ([k, n], last) = ([w.shape[0], w.shape[1]], x.shape.len() - 1);
        let largest = [x, w].map(largest_magnitude);
        let scales = std::array::from_fn(|i| match args.get(Self::GIVEN[i]) {
            Some(scale) => scale.get(0),
            None => SCALE.of(largest[i], self.forward),
        });
        let codes = |a: &Array, scale: f64| {
            Array::build(self.forward, &a.shape, |at| code(self.forward, a.at(at) / scale, 0.0))
        };
        let (cx, cw) = (codes(x, scales[0]), codes(w, scales[1]));
        let mut y = vec![];
        for row in 0..x.shape[..last].iter().product() {
            for column in 0..n {
                let products = (0..k).map(|i| cx.get(row * k + i) * cw.get(i * n + column));
                y.push(products.sum::<f64>() * scales[0] * scales[1]);
            }
        }
        let back = |at: &[usize]| cx.at(&[&at[1..], &at[..1]].concat());
        let turned = Array::build(self.forward, &turned(&x.shape), back);
        let shape = [&x.shape[..last], &[n]].concat();
        let number = |dtype: DType, value: f64| Array::float(dtype, &[], vec![value]);
        let [scale_x, scale_w] = scales.map(|scale| number(DType::F32, scale));
        let of = |i: usize| number(args[i].dtype.accumulation(), largest[i]);
        let [largest_x, largest_w] = [0, 1].map(of);
        vec![Array::float(x.dtype, &shape, y), turned, cw, scale_x, scale_w, largest_x, largest_w]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let (x, w) = (args[0], args[1]);
        let scales = std::array::from_fn(|i| match args.get(Self::GIVEN[i]) {
            Some(scale) => scale.convert(DType::F32),
            None => scale_of(args[i], self.forward),
        });
        let [codes_x, turned_x, largest_x] = cast(x, scales[0], self.forward);
        let [codes_w, turned_w, largest_w] = cast(w, scales[1], self.forward);
        let y = product(codes_x, turned_w, scales, x);
        let turned_x = turned_x.reshape(turned(&x.sizes()));
        vec![y, turned_x, codes_w, scales[0], scales[1], largest_x, largest_w]
    }

    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        let none = vec![None; g.inputs.len()];
        let Some(dy) = g.cotangents[0] else { return Some(none) };
        let (turned_x, codes_w) = (g.outputs[TURNED_X], g.outputs[CODES_W]);
        let [scale_x, scale_w] = SCALES.map(|i| g.outputs[i]);
        let given = g.inputs.get(Self::GIVEN[2]).copied();
        let scale = given.map_or_else(|| scale_of(dy, self.gradient), |s| s.convert(DType::F32));
        let [codes, turned, largest] = cast(dy, scale, self.gradient);
        let turned_x = turned_x.reshape([turned_x.size(0), turned.size(1)]);
        let mut cotangents = none;
        cotangents[0] = Some(product(codes, codes_w, [scale, scale_w], g.inputs[0]));
        cotangents[1] = Some(product(turned_x, turned, [scale_x, scale], g.inputs[1]));
        if let Some(given) = given {
            cotangents[Self::GIVEN[2]] = Some(largest.convert(given.dtype()));
        }
        Some(cotangents)
    }

    fn samples() -> Vec<Sample> {
        let sample = |gradient| {
            Sample::new(Float8Linear { forward: DType::F8E4M3, gradient })
        };
        vec![
            sample(DType::F8E5M2).normal(["B", "T", "K"]).normal(["K", "N"]),
            // The first scale clips a third of x. That of dy is for the gradient.
            sample(DType::F8E5M2)
                .normal(["M", "K"])
                .normal(["K", "N"])
                .operand(TensorType::scalar(DType::F32), Fill::Values(vec![0.001953125]))
                .operand(TensorType::scalar(DType::F32), Fill::Values(vec![0.0625]))
                .operand(TensorType::scalar(DType::F32), Fill::Values(vec![1.0])),
            // The scale of a tensor of zeros is the least there is.
            sample(DType::F8E4M3).normal([3usize, 4]).operand(
                TensorType::new(DType::F32, [4usize, 2]),
                Fill::Values(vec![0.0; 8]),
            ),
        ]
    }
}
