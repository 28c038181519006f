//! `quantized_linear(x, codes, scale, ...)`: `y = x W^T`, with x `[..., K]` and `W [N, K]` held as
//! codes and scales.
//!
//! `W = (codes - zero) scale`. Each scale covers K/G consecutive codes of a row: scale and zero are
//! `[N, G]` or `[1, G]`. The operands after x are:
//! - codes and scale;
//! - by `weights`, the zero `[.., G]`, or a tensor scale `[]` that multiplies all;
//! - by `activations`, the scale `[]` of x and, of integers, its zero point `[]`.
//!
//! `activations` says how x is taken:
//! - `float`: as it is.
//! - `dynamic`: quantized row by row, symmetric, by the row's largest magnitude, so that no row
//!   depends on another.
//! - `blocks`: quantized in the groups of the weights, with scales of a block format. e4m3 scales
//!   come after a wide scale per row.
//! - `static`: quantized with the given scale and zero point, from a calibration.
//!
//! Products of codes are exact: integers are summed in i32, floats in f32. Rounding of x is
//! straight-through in the gradient, which is that of `float`. Bias and activation stand outside,
//! where they fuse as an epilogue. Sources: Jacob et al., arXiv:1712.05877; OCP Microscaling
//! Formats 1.0; row scales: Dettmers et al., arXiv:2208.07339.
//!
//! Long because weights of three kinds meet activations of four, each pair with its sample.

use super::block_scale::ScaleFormat;
use super::dequantize::gradients;
use super::quantize::{check_scale, code};
use super::quantize_rows::QuantizeRows;
use crate::blocks::Blocks;
use crate::{
    Array, Builder, Cost, DType, Dim, Expr, Fill, Gradient, Graph, Mismatch, Op, Overflow, Prim,
    Sample, Shape, TensorType, Types, Unary,
};
use serde::{Deserialize, Serialize};

/// Scales that accompany the codes of the weights.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightScales {
    /// A scale.
    #[default]
    Symmetric,
    /// A scale and a zero point of the same shape.
    Asymmetric,
    /// A scale and an f32 scale of the tensor: NVFP4.
    TwoLevel,
}

/// The form of x in the product.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activations {
    /// As it is: only the weights are quantized.
    #[default]
    Float,
    /// Codes of this type with a wide scale for each row.
    Dynamic(DType),
    /// Codes of this type with a scale for each group of the weights in each row.
    Blocks(DType, ScaleFormat),
    /// Codes of this type with one scale for all, an operand.
    Static(DType),
}

/// A linear layer with quantized weights.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct QuantizedLinear {
    /// Scales that accompany the codes of the weights.
    pub weights: WeightScales,
    /// The form of x in the product.
    pub activations: Activations,
}

impl<'b> Expr<'b> {
    /// `self W^T` of quantized weights; `operands` are codes, scale and what `op` asks for after
    /// them.
    pub fn quantized_linear(self, op: QuantizedLinear, operands: &[Expr<'b>]) -> Expr<'b> {
        self.builder().op1(op, &[&[self], operands].concat())
    }
}

/// The operands by name.
#[derive(Copy, Clone)]
struct Named<T> {
    x: T,
    codes: T,
    scale: T,
    zero: Option<T>,
    tensor_scale: Option<T>,
    x_scale: Option<T>,
    x_zero: Option<T>,
}

impl QuantizedLinear {
    /// The names of the operands, in order.
    pub fn operands(&self) -> Vec<&'static str> {
        let mut names = vec!["x", "codes", "scale"];
        names.extend(match self.weights {
            WeightScales::Symmetric => None,
            WeightScales::Asymmetric => Some("zero"),
            WeightScales::TwoLevel => Some("tensor_scale"),
        });
        if let Activations::Static(dtype) = self.activations {
            names.extend(if dtype.is_int() { vec!["x_scale", "x_zero"] } else { vec!["x_scale"] });
        }
        names
    }

    fn named<T: Clone>(&self, operands: &[T]) -> Named<T> {
        let names = self.operands();
        let find = |name| names.iter().position(|n| *n == name).map(|i| operands[i].clone());
        let always = |name| find(name).expect("always an operand");
        Named {
            x: always("x"),
            codes: always("codes"),
            scale: always("scale"),
            zero: find("zero"),
            tensor_scale: find("tensor_scale"),
            x_scale: find("x_scale"),
            x_zero: find("x_zero"),
        }
    }

    /// The type of the codes of x, if it has codes.
    fn element(&self) -> Option<DType> {
        match self.activations {
            Activations::Float => None,
            Activations::Dynamic(dtype)
            | Activations::Blocks(dtype, _)
            | Activations::Static(dtype) => Some(dtype),
        }
    }

    fn check(&self, n: &Named<&TensorType>) -> Result<(), Mismatch> {
        let (x, codes) = (n.x, n.codes);
        if codes.rank() != 2 || x.rank() < 1 || x.shape.0.last() != Some(&codes.shape[1]) {
            let remedy = "codes are output-major: the last dimension of x is their second";
            return Err(Mismatch::new(
                "x of [..., K] and codes of [N, K]",
                format!("x {x} and codes {codes}"),
            )
            .remedy(remedy));
        }
        let scaled: Vec<TensorType> =
            [Some(codes), Some(n.scale), n.zero].into_iter().flatten().cloned().collect();
        check_scale(&scaled)?;
        if n.zero.is_some_and(|zero| zero.shape != n.scale.shape) {
            return Err(Mismatch::new(
                format!(
                    "a zero point of {}",
                    n.scale.shape
                ),
                n.zero.map_or(String::new(), ToString::to_string),
            ));
        }
        for scalar in [n.tensor_scale, n.x_scale, n.x_zero].into_iter().flatten() {
            if scalar.rank() != 0 {
                return Err(Mismatch::new(
                    "a scalar for what covers a whole tensor",
                    scalar.to_string(),
                ));
            }
        }
        let Some(element) = self.element() else { return Ok(()) };
        let integers = [codes.dtype, element].map(DType::is_int);
        let exact = match integers {
            _ if let Activations::Blocks(element, format) = self.activations => {
                QuantizeRows::is_exact(element, format.dtype(x.dtype))
            }
            [true, true] => element == DType::I8 && matches!(codes.dtype, DType::I8 | DType::I4),
            [false, false] => element != DType::E8M0 && !element.is_arithmetic_float(),
            _ => false,
        };
        let whole = n.zero.is_none_or(|zero| zero.dtype.is_int());
        if !exact || (integers[0] && !whole) {
            let found = format!(
                "x in {element}, codes {codes}{}",
                n.zero.map_or(String::new(), |zero| format!(", zero {zero}"))
            );
            let expected = "i8 activations with i8 or i4 weights and whole zero points, or small \
                            floats on both sides";
            return Err(Mismatch::new(expected, found)
                .remedy("keep the activations in float, or quantize both alike"));
        }
        Ok(())
    }

    /// `W` in the type that sums use.
    fn dequantized<'b>(n: &Named<Expr<'b>>) -> Expr<'b> {
        let w = n.codes.dequantize(n.scale, n.zero).convert(n.x.dtype().accumulation());
        n.tensor_scale.map_or(w, |scale| w * scale.convert(w.dtype()))
    }

    /// How rows of x become codes, if they do.
    fn rows(&self, block: usize) -> Option<QuantizeRows> {
        match self.activations {
            Activations::Float | Activations::Static(_) => None,
            Activations::Dynamic(element) => {
                Some(QuantizeRows { block: None, element, scale: ScaleFormat::Wide })
            }
            Activations::Blocks(element, scale) => {
                Some(QuantizeRows { block: Some(block), element, scale })
            }
        }
    }

    /// x as codes with one scale for all. x is multiplied by the reciprocal of the scale, which is
    /// taken once. A quotient within half an ulp of a tie may therefore fall to the other side of
    /// it, as in [`QuantizeRows`].
    fn static_codes<'b>(n: &Named<Expr<'b>>, element: DType) -> (Expr<'b>, Expr<'b>) {
        let scale = n.x_scale.expect("a static scale is an operand");
        let x = n.x.widen();
        let ones = vec![1usize; x.rank()];
        let inverse = scale.convert(x.dtype()).unary(Unary::Reciprocal);
        let quotient = x * inverse.reshape(ones.clone());
        let rounded = if element.is_int() { quotient.unary(Unary::Round) } else { quotient };
        let rounded =
            n.x_zero.map_or(rounded, |zero| rounded + zero.convert(x.dtype()).reshape(ones));
        let to_codes = Prim::Convert { to: element, overflow: Overflow::Saturate };
        (x.builder().op1(to_codes, &[rounded]), scale.convert(n.x.dtype().accumulation()))
    }

    /// The product of integer codes, summed exactly in each group, then scaled.
    fn integer_product<'b>((codes, scale): (Expr<'b>, Expr<'b>), n: &Named<Expr<'b>>) -> Expr<'b> {
        let wide = n.x.dtype().accumulation();
        let (rank, groups) = (codes.rank(), n.scale.size(1));
        let [outputs, k] = [n.codes.size(0), n.codes.size(1)];
        let exact = if n.zero.is_some() { DType::I32 } else { DType::I8 };
        let mut weights = n.codes.convert(exact);
        if let Some(zero) = n.zero {
            let blocks = Blocks::new(&[outputs, k], &zero.sizes());
            weights = blocks.join(blocks.split(weights) - blocks.spread(zero.convert(exact)));
        }
        let product =
            |x: Expr<'b>, w: Expr<'b>, batch: Vec<(usize, usize)>, contract: (usize, usize)| {
                let dot = crate::DotGeneral {
                    batch,
                    contract: vec![contract],
                    accumulate: DType::I32,
                    out: DType::I32,
                    precision: crate::Precision::Exact,
                };
                x.builder().op1(crate::Prim::DotGeneral(dot), &[x, w])
            };
        // Scales are applied one after the other: with a bias, the second is a multiply-add.
        if groups == 1 {
            // Without a batch axis the rows stay in place, and later ops fuse with the product.
            let mut sums = product(codes.convert(exact), weights, vec![], (rank - 1, 1));
            if let Some(zero) = n.x_zero {
                sums = sums - weights.convert(DType::I32).sum(&[1]) * zero.convert(DType::I32);
            }
            return sums.convert(wide) * scale * n.scale.convert(wide).reshape([n.scale.size(0)]);
        }
        let group = k / groups.max(1);
        let rows: Vec<usize> = codes.sizes()[..rank - 1].to_vec();
        let x = codes.convert(exact).reshape([&rows[..], &[groups, group]].concat());
        let w = weights.reshape([outputs, groups, group]);
        // [G, rows..., N]
        let mut sums = product(x, w, vec![(rank - 1, 1)], (rank, 2));
        let of_columns = |per_column: Expr<'b>| {
            let sizes = per_column.sizes();
            let shape = [&[sizes[1]][..], &vec![1; rank - 1], &[sizes[0]]].concat();
            per_column.transpose(&[1, 0]).reshape(shape)
        };
        if let Some(zero) = n.x_zero {
            let column_sums = w.convert(DType::I32).sum(&[2]);
            sums = sums - of_columns(column_sums) * zero.convert(DType::I32);
        }
        // [1, rows..., 1]
        let of_rows =
            if scale.rank() == 0 { scale } else { scale.reshape([&[1][..], &rows, &[1]].concat()) };
        (sums.convert(wide) * of_rows * of_columns(n.scale.convert(wide))).sum(&[0])
    }

    /// The product of float codes in the type that sums use.
    fn float_product<'b>((codes, scale): (Expr<'b>, Expr<'b>), n: &Named<Expr<'b>>) -> Expr<'b> {
        let wide = n.x.dtype().accumulation();
        let last = codes.rank() - 1;
        // Scales of whole rows are applied outside the sum, so that the product is of the codes
        // themselves.
        let whole_rows = n.scale.size(1) == 1;
        if whole_rows && wide == DType::F32 && n.zero.is_none() && codes.dtype() == n.codes.dtype()
        {
            let product = codes.dot_to(n.codes, &[], &[(last, 1)], DType::F32).convert(wide);
            let y = product * scale * n.scale.convert(wide).reshape([n.scale.size(0)]);
            return n.tensor_scale.map_or(y, |tensor| y * tensor.convert(wide));
        }
        (codes.convert(wide) * scale).dot(Self::dequantized(n), &[], &[(last, 1)])
    }

    /// The product of scaled codes in bf16: exact, and summed in f32, where bf16 holds the weights
    /// too.
    fn block_product<'b>(
        (numbers, row): (Expr<'b>, Option<Expr<'b>>),
        n: &Named<Expr<'b>>,
    ) -> Expr<'b> {
        let wide = n.x.dtype().accumulation();
        let contract = [(numbers.rank() - 1, 1)];
        let exact = wide == DType::F32
            && n.zero.is_none()
            && QuantizeRows::is_exact(n.codes.dtype(), n.scale.dtype());
        let w = n.codes.dequantize(n.scale, n.zero);
        let product = if exact {
            numbers.dot_to(w.convert(DType::BF16), &[], &contract, wide)
        } else {
            numbers.convert(wide).dot(w.convert(wide), &[], &contract)
        };
        let scales = [row, n.tensor_scale].into_iter().flatten();
        scales.fold(product, |y, scale| y * scale.convert(wide))
    }
}

impl Op for QuantizedLinear {
    const NAME: &'static str = "quantized_linear";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let names = self.operands();
        if types.operands.len() != names.len() {
            return Err(Mismatch::new(
                names.join(", "),
                format!("{} operands", types.operands.len()),
            ));
        }
        types.same_float(&types.operands[..1])?;
        let named = self.named(&types.operands.iter().collect::<Vec<_>>());
        self.check(&named)?;
        let mut shape = named.x.shape.clone();
        *shape.0.last_mut().expect("x has a last dimension") = named.codes.shape[0].clone();
        Ok(vec![named.x.with_shape(shape)])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let n = self.named(&args.iter().collect::<Vec<_>>());
        let (outputs, k) = (n.codes.shape[0], n.codes.shape[1]);
        let blocks = Blocks::new(&n.codes.shape, &n.scale.shape);
        let scalar = |a: Option<&Array>, otherwise: f64| a.map_or(otherwise, |a| a.get(0));
        let weight = |row: usize, column: usize| {
            let at = blocks.at(&[row, column]);
            let numbers = n.codes.at(&[row, column]) - n.zero.map_or(0.0, |zero| zero.at(&at));
            numbers * n.scale.at(&at) * scalar(n.tensor_scale, 1.0)
        };
        let rows =
            n.x.len()
                .checked_div(k)
                .unwrap_or_else(|| n.x.shape[..n.x.shape.len() - 1].iter().product());
        let mut y = Vec::with_capacity(rows * outputs);
        for row in 0..rows {
            let x: Vec<f64> = (0..k).map(|i| n.x.get(row * k + i)).collect();
            let x =
                self.rounded(&x, n.scale.shape[1], [scalar(n.x_scale, 1.0), scalar(n.x_zero, 0.0)]);
            y.extend(
                (0..outputs)
                    .map(|o| x.iter().enumerate().map(|(i, x)| x * weight(o, i)).sum::<f64>()),
            );
        }
        let shape = [&n.x.shape[..n.x.shape.len() - 1], &[outputs]].concat();
        vec![Array::float(n.x.dtype, &shape, y)]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let n = self.named(args);
        let x = n.x;
        let Some(element) = self.element() else {
            return vec![x.dot(
                Self::dequantized(&n).convert(x.dtype()),
                &[],
                &[(x.rank() - 1, 1)],
            )];
        };
        let rows =
            self.rows(n.codes.size(1) / n.scale.size(1).max(1)).map(|op| x.quantize_rows(op));
        if rows.is_some_and(|(numbers, _)| numbers.is_poison()) {
            // Types that this op takes and a part of it does not: the builder holds the error, and
            // a poison has no axes.
            return rows.map(|(numbers, _)| numbers).into_iter().collect();
        }
        let product = match (self.activations, rows) {
            (Activations::Blocks(..), Some(rows)) => Self::block_product(rows, &n),
            (_, rows) => {
                let by_rows = rows.and_then(|(codes, scale)| Some((codes, scale?)));
                let codes = by_rows.unwrap_or_else(|| Self::static_codes(&n, element));
                if codes.0.is_poison() {
                    return vec![codes.0];
                }
                if element.is_int() {
                    let product = Self::integer_product(codes, &n);
                    n.tensor_scale
                        .map_or(product, |tensor| product * tensor.convert(product.dtype()))
                } else {
                    Self::float_product(codes, &n)
                }
            }
        };
        vec![product.convert(x.dtype())]
    }

    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        let Some(dy) = g.cotangents[0] else { return Some(vec![None; g.inputs.len()]) };
        let n = self.named(g.inputs);
        let wide = n.x.dtype().accumulation();
        let (dy, x) = (dy.convert(wide), n.x.convert(wide));
        let last = x.rank() - 1;
        let rows: Vec<(usize, usize)> = (0..last).map(|axis| (axis, axis)).collect();
        let dx = dy.dot(Self::dequantized(&n), &[], &[(last, 0)]).convert(n.x.dtype());
        let dw = dy.dot(x, &[], &rows);
        let below = n.tensor_scale.map_or(dw, |scale| dw * scale.convert(wide));
        let [dscale, dzero] = gradients(below, n.codes, n.scale, n.zero);
        let dtensor = n.tensor_scale.map(|scale| {
            (dw * n.codes.dequantize(n.scale, n.zero).convert(wide))
                .sum(&[0, 1])
                .convert(scale.dtype())
        });
        let by_name = |name: &&str| match *name {
            "x" => Some(dx),
            "scale" => dscale,
            "zero" => dzero,
            "tensor_scale" => dtensor,
            _ => None,
        };
        Some(self.operands().iter().map(by_name).collect())
    }

    fn cost(&self, operands: &[TensorType], results: &[TensorType]) -> Option<Cost> {
        let bytes = operands.iter().chain(results).map(|ty| ty.bytes() as u64).sum();
        let k = operands[1].sizes()[1] as u64;
        Some(Cost { flops: (2 * results[0].elements() as u64).saturating_mul(k), bytes })
    }

    fn samples() -> Vec<Sample> {
        samples()
    }
}

impl QuantizedLinear {
    /// A row of x as the product sees it: rounded to codes and scaled back.
    fn rounded(&self, x: &[f64], groups: usize, [scale, zero]: [f64; 2]) -> Vec<f64> {
        if let Activations::Static(element) = self.activations {
            return x.iter().map(|x| (code(element, x / scale, zero) - zero) * scale).collect();
        }
        let Some(rows) = self.rows((x.len() / groups.max(1)).max(1)) else { return x.to_vec() };
        let (numbers, row) = rows.row(x);
        numbers.into_iter().map(|x| x * row).collect()
    }
}

fn samples() -> Vec<Sample> {
    let all = [samples_of_i8(), samples_of_i4(), samples_of_f8(), samples_of_blocks()];
    all.into_iter().flatten().collect()
}

/// x of any number of rows of `k`, and a `dtype` code for each of 5 rows of weights.
fn sample(
    (weights, activations): (WeightScales, Activations),
    (dtype, k): (DType, usize),
) -> Sample {
    let rows: Shape = ["M".into(), Dim::Size(k)].into();
    let codes = TensorType::new(dtype, [5, k]);
    let sample = Sample::new(QuantizedLinear { weights, activations }).normal(rows);
    sample.operand(codes, Fill::Uniform(-7.9, 7.9))
}

fn scalar(sample: Sample, dtype: DType, value: f64) -> Sample {
    sample.operand(TensorType::scalar(dtype), Fill::Values(vec![value]))
}

fn samples_of_i8() -> Vec<Sample> {
    let of = |activations| (WeightScales::Symmetric, activations);
    let dynamic = Activations::Dynamic(DType::I8);
    let weights = TensorType::new(DType::I8, ["N", "K"]);
    let scales: Shape = ["N".into(), Dim::Size(1)].into();
    let calibrated = sample(of(Activations::Static(DType::I8)), (DType::I8, 6));
    let calibrated = calibrated.uniform([1usize, 1], 0.01, 0.02);
    vec![
        sample(of(Activations::Float), (DType::I8, 7)).uniform([5usize, 1], 0.01, 0.02),
        sample(of(dynamic), (DType::I8, 7)).uniform([5usize, 1], 0.01, 0.02),
        Sample::new(QuantizedLinear { weights: WeightScales::Symmetric, activations: dynamic })
            .normal(["B", "T", "K"])
            .operand(weights, Fill::Uniform(-127.0, 127.0))
            .uniform(scales, 0.01, 0.02),
        scalar(scalar(calibrated, DType::F32, 0.03), DType::I32, -20.0),
    ]
}

fn samples_of_i4() -> Vec<Sample> {
    let whole = TensorType::new(DType::I4, [5usize, 3]);
    let of = |scales, activations| {
        sample((scales, activations), (DType::I4, 12)).uniform([5usize, 3], 0.1, 0.2)
    };
    vec![
        of(WeightScales::Symmetric, Activations::Float),
        of(WeightScales::Asymmetric, Activations::Dynamic(DType::I8))
            .operand(whole, Fill::Values(vec![0.0, -3.0, 2.0])),
        of(WeightScales::Asymmetric, Activations::Float).normal([5usize, 3]),
    ]
}

fn samples_of_f8() -> Vec<Sample> {
    let of = |activations| sample((WeightScales::Symmetric, activations), (DType::F8E4M3, 9));
    let calibrated = of(Activations::Static(DType::F8E4M3)).uniform([1usize, 1], 0.1, 0.2);
    vec![
        of(Activations::Dynamic(DType::F8E4M3)).uniform([5usize, 1], 0.1, 0.2),
        scalar(calibrated, DType::F32, 0.01),
    ]
}

fn samples_of_blocks() -> Vec<Sample> {
    let f8_up = Activations::Blocks(DType::F8E4M3, ScaleFormat::E8m0Up);
    let i8_floor = Activations::Blocks(DType::I8, ScaleFormat::E8m0Floor);
    let f4 = Activations::Blocks(DType::F4E2M1, ScaleFormat::F8e4m3);
    let e8m0 = |activations, dtype| {
        sample((WeightScales::Symmetric, activations), (dtype, 64))
            .operand(TensorType::new(DType::E8M0, [5usize, 2]), Fill::Values(vec![0.25, 1.0, 0.5]))
    };
    let e4m3 = TensorType::new(DType::F8E4M3, [5usize, 2]);
    let two_level = sample((WeightScales::TwoLevel, f4), (DType::F4E2M1, 32))
        .operand(e4m3, Fill::Values(vec![0.25, 1.125, 48.0]));
    vec![
        e8m0(f8_up, DType::F4E2M1),
        e8m0(Activations::Float, DType::F6E2M3),
        e8m0(i8_floor, DType::I8),
        scalar(two_level, DType::F32, 0.01),
    ]
}
