//! Attention with a threshold against its definition, written out tile by tile: which tiles are
//! kept, and the softmax over their keys.

use overdrive_ir::eval::{States, eval, philox};
use overdrive_ir::ops::attention::threshold::{TILE, kept_tiles};
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::ops::{Attention, Dropout};
use overdrive_ir::{Array, Builder, Compare, DType, Graph, Operation, TensorType};

const D: usize = 4;
const HEADS: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Case {
    /// Tq, Tk.
    sizes: [usize; 2],
    mask: Mask,
    /// Scores through `9 tanh(score / 9)`, and no key for every third query.
    has_regions: bool,
    threshold: f64,
}

fn inputs([queries, keys]: [usize; 2]) -> [Array; 3] {
    // Positions as angles, so that scores fall with the distance.
    let of = |site: u64, heads: usize, length: usize| {
        let noise: Vec<f64> = philox::normals(3, site).take(heads * length * D).collect();
        let mut noise = noise.into_iter();
        Array::build(DType::F64, &[1, heads, length, D], |at| {
            let angle = at[2] as f64 / [90.0, 240.0][at[3] / 2];
            let value = if at[3] % 2 == 0 { angle.cos() } else { angle.sin() };
            2.5 * value + 0.2 * noise.next().unwrap()
        })
    };
    [of(0, HEADS, queries), of(1, 1, keys), of(2, 1, keys)]
}

fn regions(case: Case) -> Vec<Graph> {
    if !case.has_regions {
        return vec![];
    }
    let capped = score_region(DType::F64, &[], |score, _, _| (score / 9.0).tanh() * 9.0);
    let rows = mask_region(&[], |[_, _, q, _], _| {
        (q - q / q.constant(3.0) * 3.0).compare(Compare::Ne, q.constant(1.0))
    });
    vec![capped.unwrap(), rows.unwrap()]
}

/// The kept tiles, `out` and the log-sum-exp, by the op or by its expansion.
fn graph(case: Case, inputs: &[Array], is_expanded: bool) -> Graph {
    let b = Builder::new("attention");
    let x: Vec<_> =
        inputs.iter().enumerate().map(|(i, x)| b.input(&format!("x{i}"), x.ty())).collect();
    let attention =
        Attention { mask: case.mask, threshold: Some(case.threshold), ..Attention::FULL };
    let regions = regions(case);
    let scores = attention.all_scores([x[0], x[1]], (&regions, &[]));
    b.output("kept", kept_tiles(scores, case.threshold));
    let results = match is_expanded {
        false => x[0].attention_with([x[1], x[2]], attention, regions, &[]).to_vec(),
        true => Operation::from(attention).expand(&b, &x, &regions),
    };
    b.output("out", results[0]);
    b.output("lse", results[1]);
    b.finish().unwrap()
}

/// The same by the definition.
fn by_definition(case: Case, [q, k, v]: &[Array; 3]) -> [Vec<f64>; 3] {
    let [queries, keys] = case.sizes;
    let score = |h: usize, i: usize, j: usize| {
        let causal = case.mask == Mask::Full || j + queries <= i + keys;
        if !causal || case.has_regions && i % 3 == 1 {
            return f64::NEG_INFINITY;
        }
        let product: f64 = (0..D).map(|c| q.at(&[0, h, i, c]) * k.at(&[0, 0, j, c])).sum();
        let score = product / (D as f64).sqrt();
        if case.has_regions { 9.0 * (score / 9.0).tanh() } else { score }
    };
    let [mut kept, mut out, mut lse] = [const { vec![] }; 3];
    for h in 0..HEADS {
        for tile in 0..queries.div_ceil(TILE[0]) {
            let rows = tile * TILE[0]..queries.min((tile + 1) * TILE[0]);
            let mut largest = vec![f64::NEG_INFINITY; rows.len()];
            let mut visible: Vec<Vec<usize>> = vec![vec![]; rows.len()];
            let mut of_tile = vec![0.0; keys.div_ceil(TILE[1])];
            for block in (0..of_tile.len()).rev() {
                let columns = block * TILE[1]..keys.min((block + 1) * TILE[1]);
                let most = |i: usize| {
                    columns.clone().map(|j| score(h, i, j)).fold(f64::NEG_INFINITY, f64::max)
                };
                let most: Vec<f64> = rows.clone().map(most).collect();
                let asks = |(most, largest): (&f64, &f64)| {
                    *most > f64::NEG_INFINITY && *most >= largest + case.threshold.ln()
                };
                if most.iter().zip(&largest).any(asks) {
                    of_tile[block] = 1.0;
                    visible.iter_mut().for_each(|visible| visible.extend(columns.clone()));
                    largest.iter_mut().zip(most).for_each(|(l, m)| *l = l.max(m));
                }
            }
            kept.extend(of_tile);
            for (i, visible) in rows.zip(visible) {
                let weights: Vec<f64> = visible.iter().map(|&j| score(h, i, j).exp()).collect();
                let sum: f64 = weights.iter().sum();
                out.extend((0..D).map(|c| {
                    let terms = visible.iter().zip(&weights).map(|(&j, w)| w * v.at(&[0, 0, j, c]));
                    if sum > 0.0 { terms.sum::<f64>() / sum } else { 0.0 }
                }));
                lse.push(sum.ln());
            }
        }
    }
    [kept, out, lse]
}

#[test]
fn tiles_are_skipped_as_defined() {
    let mut skipped = [0, 0];
    // Grouped heads, and fewer keys than queries.
    for sizes in [[150, 390], [64, 128], [300, 200], [1, 257], [70, 1]] {
        for mask in [Mask::Full, Mask::Causal] {
            for has_regions in [false, true] {
                let case = Case { sizes, mask, has_regions, threshold: 0.01 };
                let inputs = inputs(sizes);
                let expected = by_definition(case, &inputs);
                for is_expanded in [false, true] {
                    let graph = graph(case, &inputs, is_expanded);
                    let found = eval(&graph, &inputs, &mut States::new());
                    for (expected, found) in expected.iter().zip(&found) {
                        assert_eq!(expected.len(), found.len());
                        for (i, e) in expected.iter().enumerate() {
                            let f = found.get(i);
                            assert!(*e == f || (e - f).abs() < 1e-12, "{case:?}: {e}, found {f}");
                        }
                    }
                }
                skipped[0] += expected[0].iter().filter(|kept| **kept == 0.0).count();
                skipped[1] += expected[0].len();
            }
        }
    }
    assert!(skipped[0] > 20 && skipped[0] * 4 < skipped[1] * 3, "{skipped:?}");
}

#[test]
fn a_threshold_that_skips_nothing_is_none() {
    for mask in [Mask::Full, Mask::Causal] {
        let case = Case { sizes: [150, 390], mask, has_regions: false, threshold: 1e-30 };
        let inputs = inputs(case.sizes);
        let found = eval(&graph(case, &inputs, false), &inputs, &mut States::new());
        let b = Builder::new("plain");
        let x: Vec<_> =
            inputs.iter().enumerate().map(|(i, x)| b.input(&format!("x{i}"), x.ty())).collect();
        let [out, lse] = x[0].attention(x[1], x[2], Attention { mask, ..Attention::FULL });
        b.output("out", out);
        b.output("lse", lse);
        let plain = eval(&b.finish().unwrap(), &inputs, &mut States::new());
        assert_eq!(found[1].floats(), plain[0].floats());
        assert_eq!(found[2].floats(), plain[1].floats());
    }
}

#[test]
fn wrong_thresholds_are_errors() {
    let error = |build: &dyn Fn(&Builder)| {
        let b = Builder::new("wrong");
        build(&b);
        b.finish().unwrap_err().to_string()
    };
    let ty = TensorType::new(DType::F32, [1usize, 1, 2, 4]);
    let of = |threshold| Attention { threshold: Some(threshold), ..Attention::FULL };
    for threshold in [0.0, 1.0, -0.5, f64::NAN] {
        let error = error(&|b| {
            let q = b.input("q", ty.clone());
            b.output("y", q.attention(q, q, of(threshold))[0]);
        });
        assert!(error.contains("a threshold between 0 and 1"), "{error}");
    }
    let dropping = error(&|b| {
        let (q, seed) = (b.input("q", ty.clone()), b.input("seed", Dropout::SEED));
        let attention = Attention { dropout: Some(Dropout { rate: 0.5, site: 0 }), ..of(0.5) };
        b.output("y", q.attention_with([q, q], attention, vec![], &[seed])[0]);
    });
    assert!(dropping.contains("train without a threshold"), "{dropping}");
}
