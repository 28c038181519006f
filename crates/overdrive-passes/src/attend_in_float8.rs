//! Attention of long sequences multiplies codes of fp8.
//!
//! Queries, keys and values are rounded to e4m3 (`overdrive_ir::ops::float8_attention`). Each query
//! and each channel of the values has a scale of its own, and blocks of keys share one. Attention
//! of a few queries, as in decoding, stays as it is. Invariant: so does attention that drops
//! weights or skips tiles.
//!
//! Gradients are those of the numbers that the codes stand for, in the type of the operands.
//! Backward makes the weights again from the log-sum-exp of forward. From other numbers than those
//! of forward, weights of a query would not sum to one, the less the larger its scores are. Their
//! products are not of codes: cuDNN's backward is slower in fp8 than in 16 bits, and five products
//! would need eight casts.

use crate::recognise;
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::ops::float8_attention::Float8Codes;
use overdrive_ir::ops::{Attention, AttentionGrad, Float8Attention};
use overdrive_ir::{DType, Expr, Graph, GraphError, Reducer};

/// Fewest queries and keys: casts of fewer take longer than products in fp8 save.
const FEWEST: [usize; 2] = [128, 256];
/// Keys that share a scale, where this divides their number; else all do.
const KEYS: usize = 128;

/// A bound graph whose attention multiplies codes, where it has enough queries and keys. Also says
/// of how many ops that is.
///
/// # Errors
/// None of a graph that is well typed.
pub fn attend_in_float8(graph: &Graph) -> Result<(Graph, usize), GraphError> {
    let mut count = 0;
    let graph = recognise(graph)?.rewrite(&mut |b, node, operands| {
        let grad = node.op.composite::<AttentionGrad>();
        let attention = grad.map(|grad| grad.attention).or(node.op.composite().copied())?;
        let [q, k, v, rest @ ..] = operands else { return None };
        let coded = coded(&attention, [*q, *k, *v])?;
        if grad.is_some() {
            let numbers = coded.map(|x| x.codes.dequantize(x.scales, None).convert(q.dtype()));
            let operands = [&numbers, rest].concat();
            return Some(b.node(node.op.clone(), &operands, node.regions.clone()));
        }
        count += 1;
        let [q_codes, k_codes, v_codes] = coded;
        let [codes, scales] = [v_codes.codes, v_codes.scales].map(|x| x.transpose(&[0, 1, 3, 2]));
        let codes = [q_codes, k_codes, Float8Codes { codes, scales }];
        let op = Float8Attention { attention, to: q.dtype() };
        Some(op.of(codes, node.regions.clone(), rest).to_vec())
    })?;
    Ok((graph, count))
}

/// Codes of queries, keys and values, where attention is of codes.
fn coded<'b>(attention: &Attention, [q, k, v]: [Expr<'b>; 3]) -> Option<[Float8Codes<'b>; 3]> {
    let keys = k.size(2);
    let is_long = [q.size(2), keys].iter().zip(FEWEST).all(|(&size, least)| size >= least);
    if attention.dropout.is_some() || attention.threshold.is_some() || !is_long {
        return None;
    }
    let shared = if keys.is_multiple_of(KEYS) { KEYS } else { keys };
    Some([codes(q, 1), codes(k, shared), codes_of_channels(v)])
}

/// Codes of `[B, H, R, C]`, where so many rows share a scale.
fn codes(x: Expr<'_>, rows: usize) -> Float8Codes<'_> {
    let [b, h, r, c] = [0, 1, 2, 3].map(|d| x.size(d));
    // Rows of one scale are one row: a loop then reads them once.
    let blocks = x.reshape([b, h, r / rows, rows * c]);
    let block = [Some(1), Some(1), Some(1), None];
    let scales = blocks.block_scale(&block, DType::F8E4M3, ScaleFormat::Wide);
    let codes = blocks.quantize(scales, None, DType::F8E4M3).reshape([b, h, r, c]);
    Float8Codes { codes, scales }
}

/// Codes of `[B, H, T, C]`, where each channel has a scale.
fn codes_of_channels(x: Expr<'_>) -> Float8Codes<'_> {
    let [b, h, t, c] = [0, 1, 2, 3].map(|d| x.size(d));
    // In two steps, so that columns are read in order, and by all of a device where there are few
    // heads.
    let some = if t.is_multiple_of(KEYS) { KEYS } else { t };
    let parts = x.reshape([b, h, t / some, some, c]);
    let block = [Some(1), Some(1), Some(1), None, Some(1)];
    let scales = parts.block_scale(&block, DType::F8E4M3, ScaleFormat::Wide);
    let scales = scales.reduce_keep(Reducer::Max, &[2]).reshape([b, h, 1, c]);
    Float8Codes { codes: x.quantize(scales, None, DType::F8E4M3), scales }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differentiate;
    use overdrive_ir::eval::eval_tensors;
    use overdrive_ir::eval::philox;
    use overdrive_ir::ops::Dropout;
    use overdrive_ir::{Builder, Tensor, TensorType};

    /// Causal attention of so many queries and keys, with this rate of dropped weights.
    fn graph([queries, keys]: [usize; 2], rate: Option<f64>) -> Graph {
        let b = Builder::new("attention");
        let [q, k, v] = [("q", queries), ("k", keys), ("v", keys)]
            .map(|(name, rows)| b.input(name, TensorType::new(DType::F32, [1, 2, rows, 8])));
        let seed = rate.map(|_| b.input("seed", Dropout::SEED));
        let dropout = rate.map(|rate| Dropout { rate, site: 0 });
        let attention = Attention { dropout, ..Attention::CAUSAL };
        let rest: Vec<_> = seed.into_iter().collect();
        b.output("y", q.attention_with([k, v], attention, vec![], &rest)[0]);
        b.finish().expect("the test's graph is well typed")
    }

    #[test]
    fn long_attention_is_of_codes() {
        for (sizes, rate, expected) in [
            ([128, 256], None, 1),
            ([1, 4096], None, 0),
            ([128, 255], None, 0),
            ([256, 256], Some(0.1), 0),
        ] {
            let (found, count) = attend_in_float8(&graph(sizes, rate)).expect("it is well typed");
            assert_eq!(count, expected, "{sizes:?}");
            let is_of_codes =
                |op: &overdrive_ir::Operation| op.composite::<Float8Attention>().is_some();
            let ops = found.nodes().iter().filter(|node| is_of_codes(&node.op)).count();
            assert_eq!(ops, expected, "{found}");
        }
    }

    /// Attention stays the same if one vector is added to all keys. So gradients of keys sum to
    /// zero, where backward has the weights of forward. Scores are so large here that those of
    /// other numbers are far off.
    #[test]
    fn gradients_are_of_the_numbers_of_forward() {
        let plain = graph([256, 256], None);
        let inputs: Vec<_> = plain.inputs().iter().map(|port| port.value).collect();
        let plain = differentiate(&plain, &[plain.outputs()[0].value], &inputs)
            .expect("attention has gradients");
        let (coded, _) = attend_in_float8(&plain).expect("it is well typed");
        let drawn = |seed: u64, scale: f64| {
            let values = philox::normals(seed, 0).take(2 * 256 * 8).map(|x| x * scale);
            Tensor::from_f64(DType::F32, [1, 2, 256, 8], &values.collect::<Vec<_>>())
        };
        let inputs = [drawn(1, 4.0), drawn(2, 4.0), drawn(3, 1.0), drawn(4, 1.0)];
        let of_keys = eval_tensors(&coded, &inputs)[2].to_f64();
        let rows: Vec<&[f64]> = of_keys.chunks(8).take(256).collect();
        for channel in 0..8 {
            let sum = rows.iter().map(|row| row[channel]).sum::<f64>();
            let all = rows.iter().map(|row| row[channel].abs()).sum::<f64>();
            assert!(sum.abs() < 1e-4 * all, "channel {channel}: {sum} of {all}");
        }
    }

    /// Codes have three bits of mantissa. Keys of a block share a scale, and those of another block
    /// may be a thousand times as large.
    #[test]
    fn codes_stand_for_the_numbers() {
        for keys in [256, 300] {
            let sizes = [128, keys];
            let drawn = |seed: u64, rows: usize| -> Vec<f64> {
                philox::normals(seed, 0).take(2 * rows * 8).collect()
            };
            let large = |i: usize| if i / 8 % keys < 128 { 1e-3 } else { 1.0 };
            let k: Vec<f64> =
                drawn(2, keys).iter().enumerate().map(|(i, x)| x * large(i)).collect();
            let inputs = [(sizes[0], drawn(1, sizes[0])), (keys, k), (keys, drawn(3, keys))]
                .map(|(rows, values)| Tensor::from_f64(DType::F32, [1, 2, rows, 8], &values));
            let plain = graph(sizes, None);
            let (coded, _) = attend_in_float8(&plain).expect("it is well typed");
            let [expected, found] =
                [&plain, &coded].map(|graph| eval_tensors(graph, &inputs)[0].to_f64());
            let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let error: Vec<f64> = expected.iter().zip(&found).map(|(a, b)| a - b).collect();
            let share = norm(&error) / norm(&expected);
            assert!(share > 0.0 && share < 0.08, "{share}");
        }
    }
}
