//! Code caches: attention over a whole sequence reads its keys and values as a cache of codes gives
//! them.
//!
//! Every token but those of a prompt is predicted so while tokens are decoded. So the loss by whole
//! sequences is that of decoding with such a cache. It takes one call in place of one for each
//! token. Sums of rounded products may differ.

use crate::recognise;
use overdrive_ir::ops::{Attention, QuantizeRows};
use overdrive_ir::{Expr, Graph, GraphError};

/// The graph whose attention reads its keys and values through this op, a row of a token and a head
/// at a time. Also says of how many ops that is.
///
/// # Errors
/// If the op takes no such rows.
pub fn code_caches(graph: &Graph, op: QuantizeRows) -> Result<(Graph, usize), GraphError> {
    let mut count = 0;
    let graph = recognise(graph)?.rewrite(&mut |b, node, operands| {
        let attention = node.op.composite::<Attention>()?;
        count += 1;
        let mut operands = operands.to_vec();
        for at in [1, 2] {
            operands[at] = read(operands[at], op);
        }
        Some(b.node(*attention, &operands, node.regions.clone()))
    })?;
    Ok((graph, count))
}

/// Codes of the rows of x times their scales, in the type of x.
fn read(x: Expr<'_>, op: QuantizeRows) -> Expr<'_> {
    let (codes, scales) = x.quantize_rows(op);
    let numbers = scales.map_or(codes, |scales| codes.dequantize(scales, None));
    numbers.convert(x.dtype())
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::eval::eval_tensors;
    use overdrive_ir::ops::block_scale::ScaleFormat;
    use overdrive_ir::{Builder, DType, Tensor, TensorType};

    fn graph() -> Graph {
        let b = Builder::new("attention");
        let [q, k, v] =
            ["q", "k", "v"].map(|name| b.input(name, TensorType::new(DType::F32, [1, 2, 3, 4])));
        b.output("y", q.attention(k, v, Attention::CAUSAL)[0]);
        b.finish().expect("the test's graph is well typed")
    }

    /// Numbers between -2 and 2 in no order.
    fn drawn(seed: u64) -> Tensor {
        let values: Vec<f64> =
            (0..24).map(|i| (37 * (i + 29 * seed) % 101) as f64 / 25.0 - 2.0).collect();
        Tensor::from_f64(DType::F32, [1, 2, 3, 4], &values)
    }

    /// Rows of four by the formula: the largest magnitude is code 127.
    fn rounded(x: &Tensor) -> Tensor {
        let values: Vec<f64> = x.to_f64();
        let rows = values.chunks(4).flat_map(|row| {
            let scale = row.iter().fold(0.0f64, |a, x| a.max(x.abs())) / 127.0;
            row.iter().map(move |x| (x / scale).round() * scale).collect::<Vec<_>>()
        });
        Tensor::from_f64(DType::F32, [1, 2, 3, 4], &rows.collect::<Vec<_>>())
    }

    #[test]
    fn keys_and_values_are_codes_times_scales() {
        let op = QuantizeRows { block: None, element: DType::I8, scale: ScaleFormat::Wide };
        let (coded, count) = code_caches(&graph(), op).expect("there are such codes");
        assert_eq!(count, 1);
        let [q, k, v] = [1, 2, 3].map(drawn);
        let found = eval_tensors(&coded, &[q.clone(), k.clone(), v.clone()]);
        let expected = eval_tensors(&graph(), &[q.clone(), rounded(&k), rounded(&v)]);
        let plain = eval_tensors(&graph(), &[q, k, v]);
        let distance = |a: &[Tensor], b: &[Tensor]| {
            a[0].to_f64().iter().zip(b[0].to_f64()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
        };
        assert!(distance(&found, &expected) < 1e-6);
        assert!(distance(&found, &plain) > 1e-4);
    }
}
