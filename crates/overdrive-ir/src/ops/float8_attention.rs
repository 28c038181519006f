//! `float8_attention(q, k, v, q_scale, k_scale, v_scale, captures...)`: `attention` whose products
//! are of fp8 codes.
//!
//! q `[B, H, Tq, D]`, k `[B, Hkv, Tk, D]` and v `[B, Hkv, Dv, Tk]` are codes of f8e4m3. Values come
//! with keys last, since tensor cores read the contracted index contiguously. Numbers are codes
//! times scales, in the type in which scores are summed:
//! - Each query has its own, `[B, H, Tq, 1]`, and each channel of the values, `[B, Hkv, Dv, 1]`.
//!   Both stay out of the sums: one is a factor of scores, the other of the output.
//! - Blocks of keys share one, `[B, Hkv, n, 1]`, where n divides Tk.
//!
//! Everything else is that of `attention`, results included, but neither are weights dropped nor
//! tiles skipped. The output is of type `to`. A kernel may round weights to f8e4m3 too, once they
//! are relative to about the largest of their query.
//!
//! Sources: those of `attention`; Shah et al., "FlashAttention-3", arXiv:2407.08608 (fp8, blocks);
//! Zhang et al., "SageAttention2", arXiv:2411.10958 (a scale for each channel of values).

use super::Attention;
use super::attention::{Mask, mask_region, score_region};
use crate::blocks::covers;
use crate::{
    Array, Builder, Compare, Cost, DType, Dim, Expr, Fill, Graph, Mismatch, Op, Sample, Shape,
    TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// Scaled dot-product attention of codes.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Float8Attention {
    /// The same of numbers.
    pub attention: Attention,
    /// The type of the output.
    pub to: DType,
}

/// Codes of f8e4m3 and their scales.
#[derive(Copy, Clone, Debug)]
pub struct Float8Codes<'b> {
    /// The codes.
    pub codes: Expr<'b>,
    /// The scales.
    pub scales: Expr<'b>,
}

impl Float8Attention {
    /// Operands before the captures.
    pub const OPERANDS: usize = 6;

    /// Attention of codes q `[B, H, Tq, D]`, k `[B, Hkv, Tk, D]` and v `[B, Hkv, Dv, Tk]`, with
    /// score and mask functions as [`Expr::attention_with`] takes them. Returns `[out,
    /// log-sum-exp]`.
    pub fn of<'b>(
        self,
        [q, k, v]: [Float8Codes<'b>; 3],
        regions: Vec<Graph>,
        captures: &[Expr<'b>],
    ) -> [Expr<'b>; 2] {
        let operands = [q.codes, k.codes, v.codes, q.scales, k.scales, v.scales];
        let results = q.codes.builder().node(self, &[&operands, captures].concat(), regions);
        [results[0], results[1]]
    }

    /// The type of v as `[B, Hkv, Tk, Dv]`.
    fn by_key(v: &TensorType) -> TensorType {
        let mut shape = v.shape.clone();
        if shape.rank() == 4 {
            shape.0.swap(2, 3);
        }
        TensorType::new(v.dtype, shape)
    }
}

impl Op for Float8Attention {
    const NAME: &'static str = "float8_attention";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let Some((rows, captures)) = types.operands.split_at_checked(Self::OPERANDS) else {
            let found = format!("{} operands", types.operands.len());
            return Err(Mismatch::new("q, k, v, a scale of each, and captures", found));
        };
        let [q, k, v, scales @ ..] = rows else { unreachable!("as many were split off") };
        if self.attention.threshold.is_some() || self.attention.dropout.is_some() {
            let expected = "attention that keeps all tiles and weights";
            return Err(Mismatch::new(expected, format!("{:?}", self.attention))
                .remedy("skip tiles or drop weights of `attention`, of numbers"));
        }
        if !self.to.is_arithmetic_float() {
            return Err(Mismatch::new("an output of f64, f32, f16 or bf16", self.to.to_string()));
        }
        if [q, k, v].iter().any(|ty| ty.dtype != DType::F8E4M3) {
            let found = format!("q {q}, k {k}, v {v}");
            return Err(Mismatch::new("q, k and v of f8e4m3", found)
                .remedy("make codes by `quantize`"));
        }
        let numbers = [q.clone(), k.clone(), Self::by_key(v)].map(|ty| ty.with_dtype(self.to));
        let numbers = Types { operands: &numbers, regions: types.regions };
        let lse = self.attention.check(&numbers, captures)?;
        // A row is a query, a key, or a channel of the values.
        for ((name, of), scale) in [("q", q), ("k", k), ("v", v)].into_iter().zip(scales) {
            let mut shape = of.shape.clone();
            shape.0[3] = Dim::Size(1);
            let fits = match name {
                "k" => scale.shape.0.last() == Some(&Dim::Size(1)) && covers(&scale.shape, &shape),
                _ => scale.shape == shape,
            };
            if !fits || scale.dtype != lse.dtype {
                let expected = TensorType::new(lse.dtype, shape);
                let blocks = if name == "k" { ", or of blocks of them" } else { "" };
                return Err(Mismatch::new(
                    format!("a scale of each row of {name}, {expected}{blocks}"),
                    scale.to_string(),
                ));
            }
        }
        let mut out = q.with_dtype(self.to);
        out.shape.0[3] = v.shape[2].clone();
        Ok(vec![out, lse])
    }

    fn eval(&self, args: &[Array], regions: &[Graph]) -> Vec<Array> {
        let number = |i: usize, [b, h, row, column]: [usize; 4]| {
            let (codes, scale) = (&args[i], &args[i + 3]);
            let rows = codes.shape[2] / scale.shape[2].max(1);
            codes.at(&[b, h, row, column]) * scale.at(&[b, h, row / rows, 0])
        };
        let rows = |i: usize| {
            Array::build(self.to, &args[i].shape, |at| number(i, [at[0], at[1], at[2], at[3]]))
        };
        let by_key = Self::by_key(&args[2].ty()).sizes();
        let v = Array::build(self.to, &by_key, |at| number(2, [at[0], at[1], at[3], at[2]]));
        let operands = [&[rows(0), rows(1), v], &args[Self::OPERANDS..]].concat();
        self.attention.eval(&operands, regions)
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], regions: &[Graph]) -> Vec<Expr<'b>> {
        let [q, k, v] = [0, 1, 2].map(|i| args[i].dequantize(args[i + 3], None));
        let (v, captures) = (v.transpose(&[0, 1, 3, 2]), &args[Self::OPERANDS..]);
        let [out, lse] = q.attention_with([k, v], self.attention, regions.to_vec(), captures);
        vec![out.convert(self.to), lse]
    }

    fn cost(&self, operands: &[TensorType], results: &[TensorType]) -> Option<Cost> {
        let bytes = operands.iter().chain(results).map(|t| t.bytes() as u64).sum();
        let numbers = [operands[0].clone(), operands[1].clone(), Self::by_key(&operands[2])];
        Some(Cost { bytes, ..self.attention.cost(&numbers, results)? })
    }

    fn samples() -> Vec<Sample> {
        let codes = vec![-448.0, 448.0, 0.0, 0.013671875, -36.0, 208.0, 15.0, -3.5, 96.0, 1.125];
        // Numbers of about one, whose largest code is the largest of the type.
        let scale = |shape: &Shape, rows: Option<Dim>| {
            let mut shape = shape.clone();
            shape.0[3] = Dim::Size(1);
            if let Some(rows) = rows {
                shape.0[2] = rows;
            }
            shape
        };
        let of = |attention, to, [q, k, v]: [Shape; 3], blocks: Option<usize>| {
            let mut sample = Sample::new(Float8Attention { attention, to });
            for shape in [&q, &k, &v] {
                let ty = TensorType::new(DType::F8E4M3, shape.clone());
                sample = sample.operand(ty, Fill::Values(codes.clone()));
            }
            let scales = [scale(&q, None), scale(&k, blocks.map(Dim::Size)), scale(&v, None)];
            scales.into_iter().fold(sample, |sample, shape| {
                sample.uniform(shape, 0.5 / 448.0, 2.0 / 448.0)
            })
        };
        let named = |names: [&str; 4]| Shape::from(names);
        let sized = |sizes: [usize; 4]| Shape::from(sizes);
        let length = TensorType::new(DType::I64, [2usize]);
        let score = score_region(DType::F32, std::slice::from_ref(&length), |score, _, _| {
            (score * 0.5).tanh() * 2.0
        });
        let mask = mask_region(std::slice::from_ref(&length), |[b, _, _, k], captures| {
            k.convert(DType::I64).compare(Compare::Lt, captures[0].at(&[b]))
        });
        let [score, mask] =
            [score, mask].map(|region| region.expect("the sample's regions are well typed"));
        let heads = [[2, 6, 8, 8], [2, 2, 12, 8], [2, 2, 8, 12]].map(sized);
        vec![
            of(
                Attention::FULL,
                DType::F32,
                [["B", "H", "T", "D"], ["B", "H", "S", "D"], ["B", "H", "D", "S"]].map(named),
                Some(1),
            ),
            of(
                Attention { mask: Mask::Causal, ..Attention::FULL },
                DType::BF16,
                [["B", "H", "T", "D"], ["B", "H", "T", "D"], ["B", "H", "D", "T"]].map(named),
                None,
            ),
            of(Attention::CAUSAL, DType::F16, heads.clone(), Some(3)),
            // The second sequence is empty: none of its rows sees a key.
            of(Attention::FULL, DType::F32, heads, Some(2))
                .operand(length.clone(), Fill::Values(vec![9.0, 0.0]))
                .region(score)
                .region(mask),
        ]
    }
}
