//! `float8_linear(x, w)`: `y = Q(x) Q(w)`, with x `[..., K]` and w `[K, N]`, on codes of fp8,
//! forward and in both gradients.
//!
//! `Q(a) = s round(a / s)` rounds to an fp8 format and saturates. Gradients are straight-through,
//! of the rounded values: `dx = Q'(dy) Q(w)ᵀ` and `dw = Q(x)ᵀ Q'(dy)`. `Q'` rounds to the format of
//! gradients. The granularity says how much one scale covers:
//! - A tensor, by current or delayed scaling. Current: `s` is the least power of two that keeps the
//!   largest magnitude of the tensor in range. Scaling itself is exact, and nothing saturates. Each
//!   tensor is read twice. Delayed: three more operands are `s` of x, w and dy, as steps before
//!   found them. Each tensor is read once, and its largest magnitude is found on the way. Those of
//!   x and w are results. That of dy exists only in the gradient: it is the cotangent of the scale
//!   of dy.
//! - A row: a current scale for each row of both operands of a product, along the contracted axis.
//!   So each of the three products has scales of its own.
//! - A block: current scales. One covers 128 elements of x or dy along the contracted axis of a
//!   product. One covers 128 by 128 elements of w, in both of its products. The last block of an
//!   axis may be smaller.
//! - Mx: current scales (MXFP8). One covers 32 elements of x, w or dy along the contracted axis of
//!   a product. So each operand of each product has codes of its own, made from its numbers.
//!
//! The results after y are for the gradients, and for later scales. They are the codes of x as
//! `[K, ...]`, the codes of w as `[K, N]`, and the scales of both. If a scale covers a tensor, the
//! largest magnitudes of both follow. Under rows and blocks, codes and scales are those of the
//! gradients' products. Some tensor cores read the contracted index contiguously. In these layouts
//! it is contiguous in all three products. Sources: Micikevicius et al., "FP8 formats for deep
//! learning", arXiv:2209.05433 (e4m3 forward, e5m2 gradients). DeepSeek-V3, arXiv:2412.19437 (e4m3
//! for both, blocks, scales that are powers of two). The `rowwise` recipe of torchao (rows). OCP
//! Microscaling Formats 1.0, and Mishra et al., "Recipes for pre-training LLMs with MXFP8",
//! arXiv:2506.08027 (blocks of 32, e4m3 for all, scales rounded up). Flax also returns magnitudes
//! as cotangents, which overwrite instead of adding up ("fp8 meta").

mod granularity;

pub use granularity::Float8Granularity;

use super::cast_transpose::largest_magnitude;
use super::quantize::code;
use crate::{
    Array, Builder, DType, Dim, Expr, Fill, Gradient, Graph, Mismatch, Op, Sample, Shape,
    TensorType, Types,
};
use granularity::{SCALE, ScaleBlock};
use serde::{Deserialize, Serialize};

/// A product on codes of fp8 in training.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Float8Linear {
    /// The type of the codes of x and w.
    pub forward: DType,
    /// The type of the codes of dy.
    pub gradient: DType,
    /// How much one scale covers.
    #[serde(default)]
    pub granularity: Float8Granularity,
}

/// Numbers of results.
const TURNED_X: usize = 1;
const CODES_W: usize = 2;
const SCALES: [usize; 2] = [3, 4];

impl Float8Linear {
    /// Which results are the largest magnitudes of x and of w, where a scale covers a tensor.
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
    let [codes, turned, largest] = matrix(x).cast_transpose(scale, to);
    [codes.reshape(x.shape()), turned, largest]
}

/// The sizes of x `[..., K]` as `[K, ...]`.
fn turned<T: Clone>(sizes: &[T]) -> Vec<T> {
    let (k, leading) = sizes.split_last().expect("x has a last dimension");
    [std::slice::from_ref(k), leading].concat()
}

/// Scales of rows and of blocks.
impl Float8Linear {
    /// The types of the scales of x turned and of w.
    fn scales_of_blocks(
        [x, w]: [&TensorType; 2],
        blocks: [ScaleBlock; 2],
    ) -> Result<[TensorType; 2], Mismatch> {
        let [k, n] = [&w.shape.0[0], &w.shape.0[1]].map(|size| Some(size.clone()));
        let leading = Shape(x.shape.0[..x.rank() - 1].to_vec()).known();
        let rows = leading.map(|sizes| Dim::Size(sizes.iter().product()));
        let type_of = |(block, sizes): (ScaleBlock, [Option<Dim>; 2])| {
            let Some(scales) = block.scales(sizes) else {
                let found = format!("{x} and {w}");
                let remedy = "bind the named dimensions first";
                return Err(Mismatch::new("known sizes, which blocks cut", found).remedy(remedy));
            };
            Ok(TensorType::new(DType::E8M0, scales))
        };
        Ok([type_of((blocks[0], [k.clone(), rows]))?, type_of((blocks[1], [k, n]))?])
    }

    fn eval_blocks(self, [x, w]: [&Array; 2], blocks: [ScaleBlock; 2]) -> Vec<Array> {
        let turn = |a: &Array| {
            Array::build(a.dtype, &[a.shape[1], a.shape[0]], |at| a.at(&[at[1], at[0]]))
        };
        let (leading, [k, n]) = (&x.shape[..x.shape.len() - 1], [w.shape[0], w.shape[1]]);
        let rows = x.reshaped(&[leading.iter().product(), k]);
        let numbers =
            |a: &Array, block: ScaleBlock| block.eval_decode(&block.eval_code(a, self.forward));
        let (lhs, rhs) = (numbers(&rows, blocks[0]), numbers(&turn(w), blocks[1]));
        let y = Array::build(x.dtype, &[rows.shape[0], n], |at| {
            (0..k).map(|i| lhs.at(&[at[0], i]) * rhs.at(&[at[1], i])).sum()
        });
        let [turned_x, scale_x] = blocks[0].eval_code(&turn(&rows), self.forward);
        let [codes_w, scale_w] = blocks[1].eval_code(w, self.forward);
        let y = y.reshaped(&[leading, &[n]].concat());
        vec![y, turned_x.reshaped(&turned(&x.shape)), codes_w, scale_x, scale_w]
    }

    fn expand_blocks<'b>(self, [x, w]: [Expr<'b>; 2], blocks: [ScaleBlock; 2]) -> Vec<Expr<'b>> {
        let [codes_x, [turned_x, scale_x]] = blocks[0].code_both(matrix(x), self.forward);
        let [[codes_w, scale_w], turned_w] = blocks[1].code_both(w, self.forward);
        let y = self.product([codes_x, turned_w], blocks, x.dtype());
        let mut sizes = x.sizes();
        *sizes.last_mut().expect("x has a last dimension") = w.size(1);
        vec![y.reshape(sizes), turned_x.reshape(turned(&x.sizes())), codes_w, scale_x, scale_w]
    }

    /// The cotangents of x and w, from what the forward kept of both for these products.
    fn grad_blocks<'b>(
        self,
        [x, w, dy]: [Expr<'b>; 3],
        [[turned_x, scale_x], [codes_w, scale_w]]: [[Expr<'b>; 2]; 2],
        blocks: [ScaleBlock; 2],
    ) -> Vec<Option<Expr<'b>>> {
        let (of_x, rows) = (blocks[0], matrix(dy));
        let [codes, turned] = of_x.code_both(rows, self.gradient);
        let dx = self.product([codes, [codes_w, scale_w]], blocks, x.dtype());
        let turned_x = turned_x.reshape([w.size(0), rows.size(0)]);
        let dw = self.product([[turned_x, scale_x], turned], [of_x; 2], w.dtype());
        vec![Some(dx.reshape(x.shape())), Some(dw)]
    }

    /// The product of codes along the last axis of both matrices, summed in the type of sums.
    fn product<'b>(
        self,
        [lhs, rhs]: [[Expr<'b>; 2]; 2],
        blocks: [ScaleBlock; 2],
        dtype: DType,
    ) -> Expr<'b> {
        let sum = dtype.accumulation();
        // Tensor cores sum codes in f32: a layer in f64 multiplies in f64.
        let exact = |x: Expr<'b>| if sum == DType::F64 { x.convert(sum) } else { x };
        let dot = |lhs, rhs| exact(lhs).dot_to(exact(rhs), &[], &[(1, 1)], sum);
        let y = if self.granularity.multiplies_numbers() {
            dot(blocks[0].decode(lhs), blocks[1].decode(rhs))
        } else {
            // Scales of whole rows leave the sum.
            dot(lhs[0], rhs[0]) * lhs[1].convert(sum) * rhs[1].t().convert(sum)
        };
        y.convert(dtype)
    }
}

/// x `[..., K]` as a matrix.
fn matrix(x: Expr<'_>) -> Expr<'_> {
    let sizes = x.sizes();
    let (k, leading) = sizes.split_last().expect("x has a last dimension");
    x.reshape([leading.iter().product(), *k])
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
        if !scales.is_empty() && !self.granularity.may_be_delayed() {
            let found = format!("scales of x, w and dy beside {:?}", self.granularity);
            let remedy = "leave them out: only a scale for each tensor may come from steps before";
            return Err(Mismatch::new("x and w alone", found).remedy(remedy));
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
        let mut results = vec![
            y,
            x.with_shape(Shape(turned(&x.shape.0))).with_dtype(self.forward),
            w.with_dtype(self.forward),
        ];
        match self.granularity.blocks() {
            Some(blocks) => results.extend(Self::scales_of_blocks([x, w], blocks)?),
            None => {
                let largest = |ty: &TensorType| TensorType::scalar(ty.dtype.accumulation());
                results.extend([TensorType::scalar(DType::F32), TensorType::scalar(DType::F32)]);
                results.extend([largest(x), largest(w)]);
            }
        }
        Ok(results)
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let (x, w) = (&args[0], &args[1]);
        if let Some(blocks) = self.granularity.blocks() {
            return self.eval_blocks([x, w], blocks);
        }
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
        if let Some(blocks) = self.granularity.blocks() {
            return self.expand_blocks([x, w], blocks);
        }
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
        if let Some(blocks) = self.granularity.blocks() {
            let kept = [[turned_x, scale_x], [codes_w, scale_w]];
            return Some(self.grad_blocks([g.inputs[0], g.inputs[1], dy], kept, blocks));
        }
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
            Sample::new(Float8Linear {
                forward: DType::F8E4M3,
                gradient,
                granularity: Float8Granularity::Tensor,
            })
        };
        let under = |granularity| {
            let gradient = DType::F8E4M3;
            Sample::new(Float8Linear { forward: DType::F8E4M3, gradient, granularity })
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
            sample(DType::F8E4M3)
                .normal([3usize, 4])
                .operand(TensorType::new(DType::F32, [4usize, 2]), Fill::Values(vec![0.0; 8])),
            under(Float8Granularity::Row).normal(["B", "T", "K"]).normal(["K", "N"]),
            // One block and a part of another along each axis that has blocks.
            under(Float8Granularity::Block).normal([2usize, 65, 130]).normal([130usize, 129]),
            under(Float8Granularity::Block).normal([3usize, 5]).normal([5usize, 0]),
            // Two blocks and a part along K, and a part alone along N and the rows.
            under(Float8Granularity::Mx).normal([2usize, 5, 70]).normal([70usize, 20]),
        ]
    }
}
