//! `dequantize(codes, scale, zero?)`: `(codes - zero) scale`, in the type that sums of the scale
//! use: f32, and f64 of f64.
//!
//! Each element of scale and zero covers a block of consecutive codes. The zero point may be a
//! float (HQQ). Sources: Jacob et al., arXiv:1712.05877; OCP Microscaling Formats 1.0, 6.2.

use super::quantize::check_scale;
use crate::blocks::Blocks;
use crate::{
    Array, Builder, DType, Dim, Expr, Fill, Gradient, Graph, Mismatch, Op, Reducer, Sample,
    TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// Codes back to numbers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Dequantize;

impl<'b> Expr<'b> {
    /// `(self - zero) scale` of blocks with these scales and zero points.
    pub fn dequantize(self, scale: Expr<'b>, zero: Option<Expr<'b>>) -> Expr<'b> {
        let operands: Vec<Expr<'b>> = [self, scale].into_iter().chain(zero).collect();
        self.builder().op1(Dequantize, &operands)
    }
}

/// `codes - zero` in `wide`.
fn centred<'b>(codes: Expr<'b>, zero: Option<Expr<'b>>, wide: DType) -> Expr<'b> {
    let numbers = codes.convert(wide);
    zero.map_or(numbers, |zero| {
        let blocks = Blocks::new(&codes.sizes(), &zero.sizes());
        blocks.join(blocks.split(numbers) - blocks.spread(zero.convert(wide)))
    })
}

/// Cotangents of scale and zero for a cotangent `dy` of the numbers; `None` for types without
/// gradient.
pub(crate) fn gradients<'b>(
    dy: Expr<'b>,
    codes: Expr<'b>,
    scale: Expr<'b>,
    zero: Option<Expr<'b>>,
) -> [Option<Expr<'b>>; 2] {
    let wide = dy.dtype();
    let blocks = Blocks::new(&codes.sizes(), &scale.sizes());
    let to = |x: Expr<'b>, ty: DType| ty.is_arithmetic_float().then(|| x.convert(ty));
    let dscale = blocks.fold(blocks.split(dy * centred(codes, zero, wide)), Reducer::Sum);
    let dzero = zero.and_then(|zero| {
        let scaled = blocks.join(blocks.split(-dy) * blocks.spread(scale.convert(wide)));
        let blocks = Blocks::new(&codes.sizes(), &zero.sizes());
        to(blocks.fold(blocks.split(scaled), Reducer::Sum), zero.dtype())
    });
    [to(dscale, scale.dtype()), dzero]
}

impl Op for Dequantize {
    const NAME: &'static str = "dequantize";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        check_scale(types.operands)?;
        let [codes, scale] = [&types.operands[0], &types.operands[1]];
        if codes.dtype == DType::Bool {
            return Err(Mismatch::new("codes that are numbers", codes.to_string()));
        }
        Ok(vec![codes.with_dtype(scale.dtype.accumulation())])
    }

    fn eval(&self, args: &[Array], _regions: &[Graph]) -> Vec<Array> {
        let codes = &args[0];
        let under =
            |small: &Array, at: &[usize]| small.at(&Blocks::new(&codes.shape, &small.shape).at(at));
        vec![Array::build(args[1].dtype.accumulation(), &codes.shape, |at| {
            (codes.at(at) - args.get(2).map_or(0.0, |zero| under(zero, at))) * under(&args[1], at)
        })]
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], _regions: &[Graph]) -> Vec<Expr<'b>> {
        let scale = args[1].widen();
        let blocks = Blocks::new(&args[0].sizes(), &scale.sizes());
        let numbers = centred(args[0], args.get(2).copied(), scale.dtype());
        vec![blocks.join(blocks.split(numbers) * blocks.spread(scale))]
    }

    fn grad<'b>(&self, g: &Gradient<'b, '_>) -> Option<Vec<Option<Expr<'b>>>> {
        let Some(dy) = g.cotangents[0] else { return Some(vec![None; g.inputs.len()]) };
        let [dscale, dzero] = gradients(dy, g.inputs[0], g.inputs[1], g.inputs.get(2).copied());
        Some([None, dscale, dzero].into_iter().take(g.inputs.len()).collect())
    }

    fn samples() -> Vec<Sample> {
        let codes = |dtype, columns: usize, values: &[f64]| {
            let ty = TensorType::new(dtype, ["N".into(), Dim::Size(columns)]);
            Sample::new(Dequantize).operand(ty, Fill::Values(values.to_vec()))
        };
        let groups = |columns: usize| ["N".into(), Dim::Size(columns)];
        vec![
            codes(DType::I8, 5, &[-128.0, 127.0, 0.0, 3.0]).uniform(groups(1), 0.01, 0.02),
            codes(DType::I4, 12, &[-8.0, 7.0, 0.0, 3.0, -1.0])
                .uniform(groups(3), 0.1, 0.2)
                .normal(groups(3)),
            codes(DType::U8, 6, &[0.0, 255.0, 7.0, 128.0])
                .uniform(groups(2), 0.1, 0.2)
                .operand(TensorType::new(DType::U8, groups(2)), Fill::Values(vec![128.0, 100.0])),
            codes(DType::F6E3M2, 64, &[-28.0, 0.0625, 1.25, 3.0, -0.5]).operand(
                TensorType::new(DType::E8M0, groups(2)),
                Fill::Values(vec![0.25, 2.0, 0.0078125]),
            ),
            codes(DType::F4E2M1, 32, &[-6.0, 0.5, 1.5, 3.0, -0.5]).operand(
                TensorType::new(DType::F8E4M3, groups(2)),
                Fill::Values(vec![0.25, 2.5, 448.0]),
            ),
        ]
    }
}
