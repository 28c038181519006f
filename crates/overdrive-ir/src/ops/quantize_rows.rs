//! `quantize_rows(x)`: narrow numbers for x `[..., K]`, and a scale of each row, as products by
//! quantized weights take them.
//!
//! The type of `scale` decides the numbers:
//! - Wide: codes `quantize(x, s)` of the element type, with `s = block_scale(x)` `[..., 1]` of
//!   whole rows.
//! - Narrower: bf16 numbers `code s`, with a scale s of each `block` elements of a row.
//! - Narrower, and e4m3: as before, but x is first divided by a wide scale of its row,
//!   `block_scale(x) / 448` `[..., 1]`, the second result. The largest of a row then gets the
//!   largest scale.
//!
//! With a narrower scale, nothing is rounded twice, because bf16 has enough bits for `code s`. This
//! holds for a code of at most 8 significant bits and a power of two. It also holds for a code of
//! at most 4 and an e4m3 number. A product of such numbers is exact in f32.
//!
//! Codes are steps, so their gradient is 0. The products that take them define their own. Sources:
//! those of `block_scale` and `quantize`.

use super::block_scale::ScaleFormat;
use super::quantize::code;
use crate::{
    Array, Builder, DType, Dim, Expr, Fill, Gradient, Graph, Mismatch, Op, Sample, TensorType,
    Types,
};
use serde::{Deserialize, Serialize};

/// Rows of x in few bits.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct QuantizeRows {
    /// Elements of a row that share a scale; `None` is the whole row, with a wide scale.
    pub block: Option<usize>,
    /// The type of the codes.
    pub element: DType,
    /// The type of the scales.
    pub scale: ScaleFormat,
}

impl<'b> Expr<'b> {
    /// Numbers of the rows of self, and their scales where there are any.
    pub fn quantize_rows(self, op: QuantizeRows) -> (Expr<'b>, Option<Expr<'b>>) {
        let results = self.builder().op(op, &[self]);
        (results[0], op.scales_rows().then(|| results[1]))
    }
}

impl QuantizeRows {
    /// Whether each row has a wide scale, the second result.
    pub fn scales_rows(&self) -> bool {
        matches!(self.scale, ScaleFormat::Wide | ScaleFormat::F8e4m3)
    }

    /// Whether bf16 holds a code of `element` times a scale of type `scale`.
    pub fn is_exact(element: DType, scale: DType) -> bool {
        let bits = |dtype: DType| match dtype.float_format() {
            Some(format) => format.mantissa_bits + 1,
            None => dtype.bits() as u32,
        };
        let narrow = |dtype: DType| dtype.bits() <= 8 && dtype != DType::Bool;
        narrow(element)
            && element != DType::E8M0
            && match scale {
                DType::E8M0 => true,
                DType::F8E4M3 => bits(element) <= 4,
                _ => false,
            }
    }

    /// The wide scale of a row whose largest magnitude is `a`.
    fn of_row(&self, a: f64) -> f64 {
        let wide = ScaleFormat::Wide.of(a, self.element);
        if self.scale == ScaleFormat::F8e4m3 { wide / DType::F8E4M3.max_value() } else { wide }
    }

    /// A row as numbers, and its scale, 1 where rows have none.
    pub(crate) fn row(&self, x: &[f64]) -> (Vec<f64>, f64) {
        // `f64::max` would forget a NaN.
        let larger = |a: f64, x: f64| if a.is_nan() || x.is_nan() { f64::NAN } else { a.max(x) };
        let largest = |x: &[f64]| x.iter().fold(0.0, |a, x| larger(a, x.abs()));
        let row = if self.scales_rows() { self.of_row(largest(x)) } else { 1.0 };
        let of = |x: f64, scale: f64| code(self.element, x / scale, 0.0);
        let Some(block) = self.block else {
            return (x.iter().map(|&x| of(x, row)).collect(), row);
        };
        let numbers = x.chunks(block.max(1)).flat_map(|x| {
            let x: Vec<f64> = x.iter().map(|x| x / row).collect();
            let scale = self.scale.of(largest(&x), self.element);
            x.into_iter().map(|x| of(x, scale) * scale).collect::<Vec<_>>()
        });
        (numbers.collect(), row)
    }
}

impl Op for QuantizeRows {
    const NAME: &'static str = "quantize_rows";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let [x] = types.exactly()?;
        types.same_float(types.operands)?;
        let k = x.shape.0.last().ok_or_else(|| Mismatch::new("x of [..., K]", x.to_string()))?;
        let scale = self.scale.dtype(x.dtype);
        let numbers = match (self.block, k) {
            (None, _)
                if self.scale == ScaleFormat::Wide
                    && !matches!(self.element, DType::Bool | DType::E8M0) =>
            {
                x.with_dtype(self.element)
            }
            (Some(block), Dim::Size(k))
                if block > 0 && k.is_multiple_of(block) && Self::is_exact(self.element, scale) =>
            {
                x.with_dtype(DType::BF16)
            }
            _ => {
                let found = format!(
                    "{} with {:?} scales of {:?} elements of {x}",
                    self.element, self.scale, self.block
                );
                let remedy = "a wide scale of the whole row, or narrow scales of blocks that \
                              divide it";
                return Err(Mismatch::new(
                    "codes whose scaled values bf16 holds",
                    found,
                )
                .remedy(remedy));
            }
        };
        let mut rows = TensorType { dtype: x.dtype.accumulation(), shape: x.shape.clone() };
        *rows.shape.0.last_mut().expect("seen above") = Dim::Size(1);
        Ok([Some(numbers), self.scales_rows().then_some(rows)].into_iter().flatten().collect())
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let x = &args[0];
        let k = *x.shape.last().expect("x has a last dimension");
        let mut shape = x.shape.clone();
        *shape.last_mut().expect("x has a last dimension") = 1;
        let rows: usize = shape.iter().product();
        let (mut numbers, mut scales) = (Vec::with_capacity(x.len()), Vec::with_capacity(rows));
        for row in 0..rows {
            let values: Vec<f64> = (0..k).map(|i| x.get(row * k + i)).collect();
            let (row, scale) = self.row(&values);
            numbers.extend(row);
            scales.push(scale);
        }
        let dtype = if self.block.is_some() { DType::BF16 } else { self.element };
        let numbers = Array::from_f64(dtype, &x.shape, numbers);
        let scales = Array::float(x.dtype.accumulation(), &shape, scales);
        if self.scales_rows() { vec![numbers, scales] } else { vec![numbers] }
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let x = args[0];
        let last = x.rank() - 1;
        let whole: Vec<Option<usize>> =
            (0..x.rank()).map(|axis| (axis < last).then_some(1)).collect();
        let Some(block) = self.block else {
            let scale = x.block_scale(&whole, self.element, self.scale);
            return vec![x.quantize(scale, None, self.element), scale];
        };
        let mut blocks = whole.clone();
        blocks[last] = Some(block);
        let numbers = |x: Expr<'b>| {
            let scale = x.block_scale(&blocks, self.element, self.scale);
            x.quantize(scale, None, self.element).dequantize(scale, None).convert(DType::BF16)
        };
        if !self.scales_rows() {
            return vec![numbers(x)];
        }
        let row = x.block_scale(&whole, self.element, ScaleFormat::Wide)
            * (1.0 / DType::F8E4M3.max_value());
        vec![numbers(x.convert(row.dtype()) / row), row]
    }

    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        Some(vec![None; g.inputs.len()])
    }

    fn samples() -> Vec<Sample> {
        // No element is half of another, which in i8 is a tie that the rounding of a scale decides.
        let apart = Fill::Values(vec![1.0, -0.3, 0.7, 0.11, -0.9, 0.0, 0.41]);
        let rows =
            |element| Sample::new(QuantizeRows { block: None, element, scale: ScaleFormat::Wide });
        let blocks = |block, element, scale| {
            let shape: [Dim; 2] = ["M".into(), Dim::Size(2 * block)];
            Sample::new(QuantizeRows { block: Some(block), element, scale }).normal(shape)
        };
        vec![
            rows(DType::I8).operand(TensorType::new(DType::F32, ["B", "T", "K"]), apart),
            rows(DType::I4).normal(["M".into(), Dim::Size(12)]),
            rows(DType::F8E4M3).normal(["B", "T", "K"]),
            rows(DType::F8E5M2).normal(["M", "K"]),
            blocks(32, DType::F8E4M3, ScaleFormat::E8m0Up),
            blocks(32, DType::F4E2M1, ScaleFormat::E8m0Floor),
            blocks(6, DType::F6E2M3, ScaleFormat::E8m0Up),
            blocks(32, DType::F6E3M2, ScaleFormat::E8m0Floor),
            blocks(32, DType::I8, ScaleFormat::E8m0Floor),
            blocks(16, DType::F4E2M1, ScaleFormat::F8e4m3),
        ]
    }
}
