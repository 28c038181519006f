//! `cast_transpose(x, scale)`: `[M, N]` as codes of a small float, row after row and column after
//! column, and `max |x|`.
//!
//! The codes are those of `quantize`: `x / scale`, rounded and saturated. One pass over x gives all
//! results: codes `[M, N]`, codes `[N, M]`, and the magnitude `[]` in the type that sums use. If
//! `sums` is set, the sums of bands of x follow: `[ceil(M / 128), N]`, each of 128 rows.
//!
//! If `lines` is set, each line of a product has a scale of its own: `cast_transpose(x, rows,
//! columns)`. The codes `[M, N]` are under the scales of rows, `[M, 1]`. The codes `[N, M]` are
//! under those of columns, `[1, N]`.
//!
//! x may be computed on the way: a region makes it of other tensors, element by element. Then these
//! stand in its place: `cast_transpose(a, b, scale)`.
//!
//! Training in fp8 needs both orders. Its products contract rows in one pass and columns in the
//! other, but the tensor cores of some devices read the contracted index contiguously. Training
//! also needs the largest magnitude, for the scale of a later step (delayed scaling), and sums of
//! columns, the gradients of biases. Source: Micikevicius et al., "FP8 formats for deep learning",
//! arXiv:2209.05433.

use super::quantize::code;
use crate::eval::eval_region;
use crate::{
    Array, Builder, DType, Dim, Expr, Fill, Graph, Mismatch, Op, Pad, Reducer, Sample, Shape,
    TensorType, Types, Unary,
};
use serde::{Deserialize, Serialize};

/// Codes in both orders.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CastTranspose {
    /// The type of the codes: a float of one byte.
    pub to: DType,
    /// Whether the sums of bands are a result too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sums: bool,
    /// Whether each row has a scale, and each column another.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lines: bool,
}

impl CastTranspose {
    /// Codes of type `to` under one scale, without sums.
    pub fn new(to: DType) -> Self {
        Self { to, sums: false, lines: false }
    }

    /// How many of the operands, the last ones, are scales.
    pub fn scales(&self) -> usize {
        1 + usize::from(self.lines)
    }

    /// Rows of a band.
    pub const BAND: usize = 128;
    /// The number of the result that is the sums of bands.
    pub const SUMS: usize = 3;
}

impl<'b> Expr<'b> {
    /// Codes of self `[M, N]` by a scalar scale: `[M, N]`, `[N, M]`, and the largest magnitude.
    pub fn cast_transpose(self, scale: Expr<'b>, to: DType) -> [Expr<'b>; 3] {
        let results = self.builder().op(CastTranspose::new(to), &[self, scale]);
        [results[0], results[1], results[2]]
    }

    /// Codes of self `[M, N]`: `[M, N]` by scales of rows `[M, 1]`, and `[N, M]` by scales of
    /// columns `[1, N]`.
    pub fn cast_lines(self, scales: [Expr<'b>; 2], to: DType) -> [Expr<'b>; 2] {
        let op = CastTranspose { lines: true, ..CastTranspose::new(to) };
        let results = self.builder().op(op, &[self, scales[0], scales[1]]);
        [results[0], results[1]]
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
        let [operands, regions] = [types.operands.len(), types.regions.len()];
        let found = || format!("{operands} operands, {regions} regions");
        let (of, scales) =
            types.operands.split_at(types.operands.len().saturating_sub(self.scales()));
        let x = match (of, types.regions) {
            ([x], []) => x,
            ([_, ..], [region]) => {
                let inputs = region.inputs().iter().map(|port| region.ty(port.value));
                let [output] = region.outputs() else {
                    return Err(Mismatch::new("a region that gives x alone", found()));
                };
                if !inputs.eq(of) || !region.states().is_empty() {
                    return Err(Mismatch::new("the operands that the region takes", found()));
                }
                region.ty(output.value)
            }
            _ => return Err(Mismatch::new("x and its scales, and at most one region", found())),
        };
        types.same_float(std::slice::from_ref(x))?;
        let one = || Dim::Size(1);
        let is_scale =
            |dtype: DType| dtype.is_arithmetic_float() || (self.lines && dtype == DType::E8M0);
        let shapes = match &x.shape.0[..] {
            [m, n] if self.lines => vec![vec![m.clone(), one()], vec![one(), n.clone()]],
            [_, _] => vec![vec![]],
            _ => vec![],
        };
        if !scales.iter().map(|scale| &scale.shape.0).eq(&shapes)
            || !scales.iter().all(|scale| is_scale(scale.dtype))
        {
            let found = [x].into_iter().chain(scales).map(ToString::to_string);
            let found: Vec<String> = found.collect();
            let (expected, remedy) = match self.lines {
                true => ("x of [M, N] and scales of [M, 1] and [1, N]", "reshape x to a matrix"),
                false => (
                    "x of [M, N] and a scalar scale",
                    "reshape x to a matrix; one scale covers all of it",
                ),
            };
            return Err(Mismatch::new(expected, found.join(", ")).remedy(remedy));
        }
        if !self.to.is_fp8() {
            return Err(Mismatch::new("codes of f8e4m3 or f8e5m2", self.to.to_string()));
        }
        let codes = x.with_dtype(self.to);
        let transposed = codes.with_shape(Shape(x.shape.0.iter().rev().cloned().collect()));
        let sum = x.dtype.accumulation();
        let mut results = vec![codes, transposed, TensorType::scalar(sum)];
        if self.sums {
            let Some(sizes) = x.shape.known() else {
                let remedy = "bind the named dimensions first";
                return Err(Mismatch::new("known sizes, of which bands are cut", x.to_string())
                    .remedy(remedy));
            };
            results.push(TensorType::new(sum, [sizes[0].div_ceil(Self::BAND), sizes[1]]));
        }
        Ok(results)
    }

    fn eval(&self, args: &[Array], regions: &[Graph]) -> Vec<Array> {
        let (of, scales) = args.split_at(args.len() - self.scales());
        let made = regions.first().map(|region| eval_region(region, of).swap_remove(0));
        let x = made.as_ref().unwrap_or(&args[0]);
        // Under the scale of a row, or of a column.
        let under = |axis: usize, at: &[usize]| match scales {
            [scale] => scale.get(0),
            lines => lines[axis].get(at[axis]),
        };
        let of = |axis: usize, at: &[usize]| code(self.to, x.at(at) / under(axis, at), 0.0);
        let largest = largest_magnitude(x);
        let [rows, columns] = [x.shape[0], x.shape[1]];
        let sum = x.dtype.accumulation();
        let mut results = vec![
            Array::build(self.to, &x.shape, |at| of(0, at)),
            Array::build(self.to, &[columns, rows], |at| of(1, &[at[1], at[0]])),
            Array::float(sum, &[], vec![largest]),
        ];
        if self.sums {
            results.push(Array::build(sum, &[rows.div_ceil(Self::BAND), columns], |at| {
                let first = at[0] * Self::BAND;
                (first..rows.min(first + Self::BAND)).map(|row| x.at(&[row, at[1]])).sum()
            }));
        }
        results
    }

    fn expand<'b>(&self, b: &'b Builder, args: &[Expr<'b>], regions: &[Graph]) -> Vec<Expr<'b>> {
        let (of, scales) = args.split_at(args.len() - self.scales());
        let x = regions.first().map_or(args[0], |region| b.inline(region, of)[0]);
        let under = |scale| x.quantize(scale, None, self.to);
        let [codes, turned] = match *scales {
            [rows, columns] => [under(rows), under(columns)],
            _ => [under(scales[0].reshape([1usize, 1])); 2],
        };
        let magnitude = x.widen().unary(Unary::Abs).reduce(Reducer::Max, &[0, 1]);
        // Without elements it is 0, not the identity of the maximum.
        let magnitude = magnitude.max(magnitude.constant(0.0));
        let mut results = vec![codes, turned.transpose(&[1, 0]), magnitude];
        if self.sums {
            let [rows, columns] = [x.size(0), x.size(1)];
            let bands = rows.div_ceil(Self::BAND);
            let after = |high: usize| Pad { low: 0, high: high as i64, interior: 0 };
            let pads = vec![after(bands * Self::BAND - rows), after(0)];
            let padded = x.widen().pad(pads, 0.0);
            let banded = padded.reshape([bands, Self::BAND, columns]);
            results.push(banded.reduce(Reducer::Sum, &[1]));
        }
        results
    }

    fn fold(&self, result: usize) -> Option<Reducer> {
        (result == 2).then_some(Reducer::Max)
    }

    fn samples() -> Vec<Sample> {
        let scaled = |sample: Sample, scale| {
            let scale = (TensorType::scalar(DType::F32), Fill::Values(vec![scale]));
            sample.operand(scale.0, scale.1)
        };
        let sample = |to, scale| {
            scaled(Sample::new(CastTranspose::new(to)).normal(["M", "N"]), scale)
        };
        // A band and a part of another, and x of two tensors, which is exact in every format.
        let summed = Sample::new(CastTranspose { sums: true, ..CastTranspose::new(DType::F8E5M2) });
        let (region, ty) = (Builder::new("x"), TensorType::new(DType::F32, [130usize, 20]));
        let (a, b) = (region.input("a", ty.clone()), region.input("b", ty.clone()));
        region.output("x", a.max(b).max(a.constant(0.5).broadcast_in(&a.shape(), &[])));
        let region = region.finish().expect("the sample is well typed");
        let lines = CastTranspose { lines: true, ..CastTranspose::new(DType::F8E4M3) };
        // Powers of two, as codes of e8m0 hold them.
        let scales = |shape: [usize; 2]| {
            let powers = (0..shape[0] * shape[1]).map(|i| 2f64.powi(i as i32 % 5 - 9));
            (TensorType::new(DType::E8M0, shape), Fill::Values(powers.collect()))
        };
        let [rows, columns] = [[130, 1], [1, 20]].map(scales);
        let of_two = summed.clone().normal([130usize, 20]).normal([130usize, 20]);
        vec![
            sample(DType::F8E4M3, 0.0078125),
            sample(DType::F8E4M3, 0.013),
            sample(DType::F8E5M2, 0.00003),
            scaled(summed.normal([130usize, 20]), 0.001),
            scaled(of_two, 0.0078125).region(region),
            Sample::new(lines)
                .normal([130usize, 20])
                .operand(rows.0, rows.1)
                .operand(columns.0, columns.1),
        ]
    }
}
