//! `quantized_attention(q, k, v, k_scale, v_scale, captures...)`: `attention` over keys and values
//! held as codes, as a cache of 8 bits has them.
//!
//! k `[B, Hkv, Tk, D]` and v `[B, Hkv, Tk, Dv]` are codes of i8 or f8e4m3. Each row, one token of
//! one head, is its codes times its scale. The scales are `[B, Hkv, Tk, 1]`, in the type in which
//! scores of q are summed. These are codes and scales of `quantize_rows`. Everything else is that
//! of `attention`, results included, but no weights are dropped.
//!
//! A kernel widens codes where it reads them, so that the time of long caches is that of their
//! bytes. Sources: those of `attention` and `quantize_rows`; one scale for each token: Hooper et
//! al., "KVQuant", arXiv:2401.18079 (values).

use super::Attention;
use super::attention::{Mask, mask_region, score_region};
use crate::{
    Array, Builder, Compare, Cost, DType, Expr, Fill, Graph, Mismatch, Op, Sample, Shape,
    TensorType, Types,
};
use serde::{Deserialize, Serialize};

/// Scaled dot-product attention over codes.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct QuantizedAttention {
    /// The same over numbers.
    pub attention: Attention,
}

/// Keys or values as codes `[B, Hkv, T, D]`, with a scale for each row `[B, Hkv, T, 1]`.
#[derive(Copy, Clone, Debug)]
pub struct CodedRows<'b> {
    /// The codes.
    pub codes: Expr<'b>,
    /// The scales.
    pub scales: Expr<'b>,
}

impl<'b> Expr<'b> {
    /// Attention of the queries self `[B, H, Tq, D]` over keys and values held as codes, with score
    /// and mask functions as [`Expr::attention_with`] takes them. Returns `[out, log-sum-exp]`.
    pub fn quantized_attention(
        self,
        [k, v]: [CodedRows<'b>; 2],
        attention: Attention,
        regions: Vec<Graph>,
        captures: &[Expr<'b>],
    ) -> [Expr<'b>; 2] {
        let operands = [&[self, k.codes, v.codes, k.scales, v.scales], captures].concat();
        let results = self.builder().node(QuantizedAttention { attention }, &operands, regions);
        [results[0], results[1]]
    }
}

impl QuantizedAttention {
    /// Operands before the captures.
    pub const OPERANDS: usize = 5;

    /// Whether keys and values may be codes of this type.
    pub const fn takes(dtype: DType) -> bool {
        matches!(dtype, DType::I8 | DType::F8E4M3)
    }
}

impl Op for QuantizedAttention {
    const NAME: &'static str = "quantized_attention";

    fn infer(&self, types: &Types<'_>) -> Result<Vec<TensorType>, Mismatch> {
        let Some((rows, captures)) = types.operands.split_at_checked(Self::OPERANDS) else {
            let found = format!("{} operands", types.operands.len());
            return Err(Mismatch::new("q, k, v, scales of k and v, and captures", found));
        };
        let [q, k, v, k_scale, v_scale] = rows else { unreachable!("as many were split off") };
        let dtype = types.same_float(std::slice::from_ref(q))?;
        if self.attention.threshold.is_some() {
            return Err(Mismatch::new("attention that skips no tiles", "a threshold".to_owned())
                .remedy("set a threshold of `attention`, over keys that are no codes"));
        }
        if self.attention.dropout.is_some() {
            return Err(Mismatch::new("attention that drops no weights", "dropout".to_owned())
                .remedy("drop weights of `attention`, before keys and values are codes"));
        }
        if !Self::takes(k.dtype) || k.dtype != v.dtype {
            let found = format!("k {k}, v {v}");
            return Err(Mismatch::new("k and v of one type, i8 or f8e4m3", found)
                .remedy("make their codes by `quantize_rows`"));
        }
        let numbers = [q.clone(), k.with_dtype(dtype), v.with_dtype(dtype)];
        let numbers = Types { operands: &numbers, regions: types.regions };
        let lse = self.attention.check(&numbers, captures)?;
        for (name, rows, scale) in [("k", k, k_scale), ("v", v, v_scale)] {
            let mut shape = rows.shape.clone();
            shape.0[3] = 1.into();
            let expected = TensorType::new(dtype.accumulation(), shape);
            if *scale != expected {
                return Err(Mismatch::new(
                    format!("a scale of each row of {name}, {expected}"),
                    scale.to_string(),
                ));
            }
        }
        let mut out = q.clone();
        out.shape.0[3] = v.shape[3].clone();
        Ok(vec![out, lse])
    }

    fn eval(&self, args: &[Array], regions: &[Graph]) -> Vec<Array> {
        let rows = |codes: &Array, scale: &Array| {
            Array::build(DType::F64, &codes.shape, |at| {
                codes.at(at) * scale.at(&[at[0], at[1], at[2], 0])
            })
        };
        let mut operands = vec![args[0].clone(), rows(&args[1], &args[3])];
        operands.push(rows(&args[2], &args[4]));
        operands.extend_from_slice(&args[Self::OPERANDS..]);
        self.attention.eval(&operands, regions)
    }

    fn expand<'b>(&self, _: &'b Builder, args: &[Expr<'b>], regions: &[Graph]) -> Vec<Expr<'b>> {
        let [k, v] = [1, 2].map(|i| args[i].dequantize(args[i + 2], None));
        let captures = &args[Self::OPERANDS..];
        let wide = args[0].widen();
        let [out, lse] = wide.attention_with([k, v], self.attention, regions.to_vec(), captures);
        vec![out.convert(args[0].dtype()), lse]
    }

    fn cost(&self, operands: &[TensorType], results: &[TensorType]) -> Option<Cost> {
        self.attention.cost(operands, results)
    }

    fn samples() -> Vec<Sample> {
        let codes = |dtype: DType, shape: Shape| {
            let values = match dtype {
                DType::I8 => vec![-127.0, 127.0, 0.0, 3.0, -41.0, 88.0, 17.0],
                _ => vec![-448.0, 448.0, 0.0, 0.013671875, -36.0, 208.0, 15.0],
            };
            (TensorType::new(dtype, shape), Fill::Values(values))
        };
        // Rows of about one, whose largest code is the largest of the type.
        let rows = |sample: Sample, dtype: DType, [k, v]: [[crate::Dim; 4]; 2]| {
            let largest = dtype.max_value();
            let [scales_k, scales_v] = [&k, &v].map(|shape| {
                let [b, h, t, _] = shape.clone();
                Shape(vec![b, h, t, 1.into()])
            });
            let (k, v) = (codes(dtype, Shape(k.to_vec())), codes(dtype, Shape(v.to_vec())));
            sample
                .operand(k.0, k.1)
                .operand(v.0, v.1)
                .uniform(scales_k, 0.5 / largest, 2.0 / largest)
                .uniform(scales_v, 0.5 / largest, 2.0 / largest)
        };
        let named = |names: [&str; 4]| names.map(crate::Dim::from);
        let sized = |sizes: [usize; 4]| sizes.map(crate::Dim::from);
        let of = |attention| Sample::new(QuantizedAttention { attention });
        let length = TensorType::new(DType::I64, [2usize]);
        let score = score_region(DType::F32, std::slice::from_ref(&length), |score, _, _| {
            (score * 0.5).tanh() * 2.0
        });
        let mask = mask_region(std::slice::from_ref(&length), |[b, _, _, k], captures| {
            k.convert(DType::I64).compare(Compare::Lt, captures[0].at(&[b]))
        });
        let [score, mask] =
            [score, mask].map(|region| region.expect("the sample's regions are well typed"));
        let decoding = |q: DType, codes: DType, depth: usize| {
            let shape = [2usize, 6, 1, depth];
            let sample = of(Attention { mask: Mask::Full, ..Attention::FULL })
                .operand(TensorType::new(q, shape), Fill::Normal);
            let rows = rows(sample, codes, [sized([2, 2, 9, depth]), sized([2, 2, 9, depth])]);
            // The second sequence is empty: its row sees no key.
            rows.operand(length.clone(), Fill::Values(vec![5.0, 0.0])).region(mask.clone())
        };
        let plain = |attention, dtype, keys: &str| {
            let sample = of(attention).normal(named(["B", "H", "T", "D"]));
            rows(sample, dtype, [named(["B", "H", keys, "D"]), named(["B", "H", keys, "D"])])
        };
        vec![
            plain(Attention::FULL, DType::I8, "S"),
            plain(Attention::CAUSAL, DType::F8E4M3, "T"),
            // Values of other channels than keys, and more queries than one.
            rows(
                of(Attention::CAUSAL).normal([1usize, 4, 3, 8]),
                DType::I8,
                [sized([1, 2, 7, 8]), sized([1, 2, 7, 5])],
            ),
            decoding(DType::F32, DType::I8, 8),
            decoding(DType::F32, DType::F8E4M3, 8).region(score),
            decoding(DType::BF16, DType::I8, 32),
            decoding(DType::BF16, DType::F8E4M3, 32),
            decoding(DType::F16, DType::I8, 32),
        ]
    }
}
