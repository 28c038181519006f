//! Skip tiles: attention leaves out tiles of scores far below the largest.
//!
//! `overdrive_ir::ops::attention::threshold` defines the tiles. Attention of a few queries, as in
//! decoding, keeps its kernels, which share out the keys of one query. Invariant: attention that
//! drops weights stays as it is, since it is trained.

use crate::recognise;
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::threshold::{TILE, kept_tiles};
use overdrive_ir::{DType, Expr, Graph, GraphError, Node, Shape};

/// The attention of a node, if it has a tile of queries and more keys than a tile.
fn of_tiles(node: &Node, operands: &[Expr<'_>]) -> Option<Attention> {
    let attention = node.op.composite::<Attention>()?;
    let [queries, keys] = [0, 1].map(|operand| operands[operand].size(2));
    let is_skipped = attention.dropout.is_none() && queries >= TILE[0] && keys > TILE[1];
    is_skipped.then_some(*attention)
}

/// A bound graph whose attention has this threshold, where it has a tile of queries and more keys
/// than a tile. Also says of how many ops that is.
///
/// # Errors
/// If the threshold is not between 0 and 1.
pub fn skip_tiles(graph: &Graph, threshold: f64) -> Result<(Graph, usize), GraphError> {
    let mut count = 0;
    let graph = recognise(graph)?.rewrite(&mut |b, node, operands| {
        let attention = of_tiles(node, operands)?;
        count += 1;
        let skipping = Attention { threshold: Some(threshold), ..attention };
        Some(b.node(skipping, operands, node.regions.clone()))
    })?;
    Ok((graph, count))
}

/// Outputs of [`count_tiles`] begin so; the number of the attention follows.
pub const KEPT_TILES: &str = "tiles.kept.";
/// The same for tiles where a query sees a key.
pub const VISIBLE_TILES: &str = "tiles.visible.";

/// The graph with two more outputs for each attention that has a threshold. They are the tiles that
/// it keeps and the tiles that have a score, in f32. All scores are stored.
///
/// # Errors
/// If an output has such a name.
pub fn count_tiles(graph: &Graph) -> Result<Graph, GraphError> {
    let mut count = 0;
    graph.rewrite(&mut |b, node, operands| {
        let attention = node.op.composite::<Attention>()?;
        let threshold = attention.threshold?;
        let (_, captures) = attention.seed_and_captures(&operands[3..]);
        let scores = attention.all_scores([operands[0], operands[1]], (&node.regions, captures));
        // No score that a query sees is below the largest times the least number.
        for (name, threshold) in [(KEPT_TILES, threshold), (VISIBLE_TILES, f64::MIN_POSITIVE)] {
            let kept = kept_tiles(scores, threshold).convert(DType::F32).sum(&[0, 1, 2, 3]);
            b.output(&format!("{name}{count}"), kept);
        }
        count += 1;
        None
    })
}

/// The graph with two more outputs for each attention that [`skip_tiles`] would give a threshold.
/// They are the tiles that it would keep at each of these, `[thresholds]`, and the tiles that have
/// a score, in f32. Nothing is skipped, and all scores are stored.
///
/// # Errors
/// If an output has such a name.
pub fn count_at_thresholds(graph: &Graph, thresholds: &[f64]) -> Result<Graph, GraphError> {
    let mut count = 0;
    recognise(graph)?.rewrite(&mut |b, node, operands| {
        let attention = of_tiles(node, operands)?;
        let (_, captures) = attention.seed_and_captures(&operands[3..]);
        let scores = attention.all_scores([operands[0], operands[1]], (&node.regions, captures));
        let kept = |&threshold: &f64| {
            let kept = kept_tiles(scores, threshold).convert(DType::F32);
            kept.sum(&[0, 1, 2, 3]).reshape([1usize])
        };
        let all: Vec<Expr<'_>> = thresholds.iter().map(kept).collect();
        b.output(&format!("{KEPT_TILES}{count}"), b.concat(&all, 0));
        let visible = kept(&f64::MIN_POSITIVE).reshape(Shape::default());
        b.output(&format!("{VISIBLE_TILES}{count}"), visible);
        count += 1;
        None
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::eval::{eval_tensors, philox};
    use overdrive_ir::ops::Dropout;
    use overdrive_ir::{Builder, Tensor, TensorType};

    /// Attention of so many queries and keys, dropped weights or none.
    fn graph([queries, keys]: [usize; 2], rate: Option<f64>) -> Graph {
        let b = Builder::new("attention");
        let [q, k] = [("q", queries), ("k", keys)]
            .map(|(name, rows)| b.input(name, TensorType::new(DType::F32, [1, 2, rows, 8])));
        let seed = rate.map(|_| b.input("seed", Dropout::SEED));
        let dropout = rate.map(|rate| Dropout { rate, site: 0 });
        let attention = Attention { dropout, ..Attention::CAUSAL };
        let rest: Vec<_> = seed.into_iter().collect();
        b.output("y", q.attention_with([k, k], attention, vec![], &rest)[0]);
        b.finish().expect("the test's graph is well typed")
    }

    #[test]
    fn attention_of_several_tiles_has_the_threshold() {
        let (found, count) = skip_tiles(&graph([64, 129], None), 0.25).expect("it is in range");
        let attention = found.nodes().iter().find_map(|node| node.op.composite::<Attention>());
        assert_eq!(attention.and_then(|attention| attention.threshold), Some(0.25));
        assert_eq!(count, 1);
        for (sizes, rate) in [([63, 500], None), ([500, 128], None), ([500, 500], Some(0.1))] {
            let (found, count) = skip_tiles(&graph(sizes, rate), 0.25).expect("it is in range");
            assert_eq!(count, 0);
            assert!(!found.to_string().contains("threshold"));
        }
    }

    #[test]
    fn tiles_are_counted() {
        // Two heads of three tiles of queries and two of keys. Under the causal mask the first two
        // tiles of queries see the first of keys alone.
        let (skipping, _) = skip_tiles(&graph([192, 192], None), 0.5).expect("it is in range");
        let counting = count_tiles(&skipping).expect("names are new");
        let names: Vec<&str> = counting.outputs().iter().map(|port| port.name.as_str()).collect();
        assert_eq!(names, ["tiles.kept.0", "tiles.visible.0", "y"]);
        let x = |key: f64| {
            // The last 64 positions have products that are larger than the others.
            let values: Vec<f64> =
                (0..2 * 192 * 8).map(|i| if i / 8 % 192 < 128 { key } else { 2.0 }).collect();
            Tensor::from_f64(DType::F32, [1, 2, 192, 8], &values)
        };
        let count = |key: f64| -> Vec<f64> {
            let found = eval_tensors(&counting, &[x(2.0), x(key)]);
            found[..2].iter().map(|count| count.to_f64()[0]).collect()
        };
        assert_eq!(count(2.0), [8.0, 8.0]);
        assert_eq!(count(-2.0), [6.0, 8.0]);
    }

    #[test]
    fn counts_at_thresholds_are_those_of_attention_that_skips() {
        let own = graph([192, 192], None);
        let inputs: Vec<Tensor> = (0..2u64)
            .map(|site| {
                // The last 64 positions have products that are larger than the others.
                let raised = |(i, x)| if i / 8 % 192 < 128 { x } else { x + 2.0 };
                let drawn = philox::normals(3, site).take(2 * 192 * 8).enumerate();
                let drawn: Vec<f64> = drawn.map(raised).collect();
                Tensor::from_f64(DType::F32, [1, 2, 192, 8], &drawn)
            })
            .collect();
        let thresholds = [0.9, 0.3, 0.01];
        let counting = count_at_thresholds(&own, &thresholds).expect("names are new");
        let all = eval_tensors(&counting, &inputs);
        let expected: Vec<[f64; 2]> = thresholds
            .iter()
            .map(|&threshold| {
                let (skipping, _) = skip_tiles(&own, threshold).expect("it is in range");
                let found = eval_tensors(&count_tiles(&skipping).expect("new names"), &inputs);
                [0, 1].map(|output| found[output].to_f64()[0])
            })
            .collect();
        assert_eq!(all[0].to_f64(), expected.iter().map(|[kept, _]| *kept).collect::<Vec<_>>());
        assert!(expected.iter().all(|[_, visible]| all[1].to_f64() == [*visible]));
        let [kept, visible] = expected[0];
        assert!(kept < visible, "{expected:?}");
    }

    #[test]
    fn thresholds_out_of_range_are_errors() {
        let error = skip_tiles(&graph([64, 129], None), 1.5).unwrap_err().to_string();
        assert!(error.contains("a threshold between 0 and 1"), "{error}");
    }
}
