//! Attention with a threshold against the f64 definition.
//!
//! A tile is skipped or not by one number: how far its scores lie above the largest so far. It does
//! not depend on the threshold. So tests choose thresholds in the middle of a gap between
//! these numbers, where rounding decides nothing.

use crate::support::{Session, agrees, check, random};
use overdrive_ir::eval::{States, eval};
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::threshold::TILE;
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::plan::{KernelOp, StepKind};
use overdrive_ir::{Array, Builder, Compare, DType, Graph, Mode};
use proptest::prelude::*;
use testkit::Tolerance;

#[derive(Clone, Copy, Debug)]
struct Case {
    dtype: DType,
    /// B, H / Hkv, Hkv, Tq, Tk, D, Dv.
    sizes: [usize; 7],
    mask: Mask,
    /// Negative scales turn the order of products around.
    scale: Option<f64>,
    /// Scores through `9 tanh(score / 9)`.
    is_capped: bool,
    /// No key for every third query, and squares of 100 for the others.
    hides: bool,
}

impl Case {
    fn new(dtype: DType, sizes: [usize; 7], mask: Mask) -> Self {
        Self { dtype, sizes, mask, scale: None, is_capped: false, hides: false }
    }

    /// Positions as angles, so that scores fall with the distance, and noise.
    fn inputs(self) -> [Array; 3] {
        let [b, group, kv, tq, tk, d, dv] = self.sizes;
        let shapes = [[b, group * kv, tq, d], [b, kv, tk, d], [b, kv, tk, dv]];
        let mut seed = 0;
        shapes.map(|shape| {
            seed += 1;
            let noise = random(DType::F64, &shape, seed);
            let values = Array::build(self.dtype, &shape, |at| {
                let angle = at[2] as f64 / (60.0 * (1 + at[3] / 2) as f64) + at[1] as f64;
                let value = if at[3] % 2 == 0 { angle.cos() } else { angle.sin() };
                2.5 * value + 0.2 * noise.at(at)
            });
            Array::from(&values.to_tensor())
        })
    }

    fn regions(self) -> Vec<Graph> {
        let dtype = self.dtype.accumulation();
        let capped = score_region(dtype, &[], |score, _, _| (score / 9.0).tanh() * 9.0).unwrap();
        let shown = mask_region(&[], |[_, _, q, k], _| {
            let rows = (q - q / q.constant(3.0) * 3.0).compare(Compare::Ne, q.constant(1.0));
            let [q, k] = [q, k].map(|at| at / at.constant(100.0));
            rows.select((q + k - (q + k) / 3.0 * 3.0).compare(Compare::Ne, q.constant(0.0)), rows)
        });
        let capped = self.is_capped.then_some(capped);
        capped.into_iter().chain(self.hides.then(|| shown.unwrap())).collect()
    }

    fn attention(self, threshold: Option<f64>) -> Attention {
        Attention { scale: self.scale, mask: self.mask, threshold, ..Attention::FULL }
    }

    fn graph(self, inputs: &[Array], threshold: Option<f64>) -> Graph {
        let b = Builder::new(&format!("{self:?} {threshold:?}"));
        let x: Vec<_> =
            inputs.iter().enumerate().map(|(i, x)| b.input(&format!("x{i}"), x.ty())).collect();
        let attention = self.attention(threshold);
        let [out, lse] = x[0].attention_with([x[1], x[2]], attention, self.regions(), &[]);
        b.output("out", out);
        b.output("lse", lse);
        b.finish().unwrap()
    }

    /// For each tile with a score how far it lies above the largest so far, at most: infinity where
    /// a query sees its first key.
    fn heights(self, [q, k, _]: &[Array; 3]) -> Vec<f64> {
        let [batch, group, kv, queries, keys, ..] = self.sizes;
        let b = Builder::new("scores");
        let pair = [b.input("q", q.ty()), b.input("k", k.ty())];
        let attention = self.attention(None);
        b.output("scores", attention.all_scores(pair, (&self.regions(), &[])));
        let scores = eval(&b.finish().unwrap(), &[q.clone(), k.clone()], &mut States::new());
        let scores = scores[0].floats();
        let mut heights = vec![];
        for matrix in 0..batch * group * kv {
            for start in (0..queries).step_by(TILE[0]) {
                let rows = start..queries.min(start + TILE[0]);
                let mut largest = vec![f64::NEG_INFINITY; rows.len()];
                for first in (0..keys).step_by(TILE[1]).rev() {
                    let mut height = f64::NEG_INFINITY;
                    for (row, largest) in rows.clone().zip(&mut largest) {
                        let row = &scores[(matrix * queries + row) * keys..][..keys];
                        let tile = &row[first..keys.min(first + TILE[1])];
                        let most = tile.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                        if most > f64::NEG_INFINITY {
                            height = height.max(most - *largest);
                            *largest = largest.max(most);
                        }
                    }
                    heights.extend((height > f64::NEG_INFINITY).then_some(height));
                }
            }
        }
        heights
    }

    /// A threshold that rounding does not touch, which skips about half of the tiles below the
    /// largest. Also says how many it skips of those that have a score. None where no tile is
    /// below.
    fn threshold(self, inputs: &[Array; 3]) -> Option<(f64, [usize; 2])> {
        let all = self.heights(inputs);
        let mut heights: Vec<f64> = all.iter().copied().filter(|&height| height < 0.0).collect();
        heights.push(0.0);
        heights.sort_by(f64::total_cmp);
        let third = heights.len() / 3;
        let middle = &heights[third..heights.len() - third];
        let gaps = middle.windows(2).map(|pair| (pair[1] - pair[0], pair[0] / 2.0 + pair[1] / 2.0));
        let (gap, middle) = gaps.max_by(|a, b| a.0.total_cmp(&b.0))?;
        let skipped = all.iter().filter(|&&height| height < middle).count();
        (gap > 1e-3).then_some((middle.exp(), [skipped, all.len()]))
    }
}

/// Checks a case. Returns the tiles that it skips, and all that have a score.
fn skips(case: Case) -> [usize; 2] {
    let inputs = case.inputs();
    let (threshold, skipped) = case.threshold(&inputs).unwrap();
    let graph = case.graph(&inputs, Some(threshold));
    check(&graph, &inputs, Tolerance::new(case.dtype, case.sizes[4], 16.0));
    let tensors: Vec<_> = inputs.iter().map(Array::to_tensor).collect();
    let session = Session::new(&graph, Mode::Compile, 1, &tensors).unwrap();
    let has_kernel = session.compiled.plan().steps.iter().any(|step| match &step.kind {
        StepKind::Kernel(call) => {
            matches!(&call.op, KernelOp::Composite(op, _) if op.name() == "attention")
        }
        _ => false,
    });
    assert!(has_kernel, "{case:?}");
    skipped
}

use DType::{BF16, F16, F32, F64};
use Mask::{Causal, Full};

#[test]
fn tiles_are_skipped_in_every_type() {
    for dtype in [F64, F32, BF16, F16] {
        for mask in [Full, Causal] {
            let [skipped, all] = skips(Case::new(dtype, [1, 2, 1, 330, 700, 6, 5], mask));
            assert!(skipped > 4 && skipped < all, "{dtype} {mask:?}: {skipped} of {all}");
        }
    }
}

#[test]
fn tiles_are_skipped_beside_functions_and_scales() {
    let case = Case::new(F32, [1, 1, 2, 130, 390, 4, 3], Full);
    let cases = [
        Case { is_capped: true, ..case },
        Case { hides: true, mask: Causal, ..case },
        Case { is_capped: true, hides: true, ..case },
        Case { scale: Some(-0.4), ..case },
        // The first queries see no key.
        Case { sizes: [1, 2, 1, 400, 300, 4, 3], mask: Causal, ..case },
    ];
    for case in cases {
        let [skipped, all] = skips(case);
        assert!(skipped > 0 && skipped < all, "{case:?}: {skipped} of {all}");
    }
}

#[test]
fn a_threshold_that_skips_nothing_gives_plain_attention() {
    for mask in [Full, Causal] {
        let case = Case::new(F32, [1, 2, 1, 150, 390, 6, 5], mask);
        let inputs = case.inputs();
        let [tiny, plain] = [Some(1e-30), None].map(|threshold| case.graph(&inputs, threshold));
        let [expected, found] =
            [&plain, &tiny].map(|graph| eval(graph, &inputs, &mut States::new()));
        assert_eq!(expected, found);
        check(&tiny, &inputs, Tolerance::new(F32, 390, 16.0));
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes = (1usize..3, 1usize..3, 1usize..2, 1usize..180, 1usize..400, 1usize..8, 1usize..6)
        .prop_map(|(b, group, kv, tq, tk, d, dv)| [b, group, kv, tq, tk, d, dv]);
    let dtype = proptest::sample::select(&[F64, F32, BF16, F16]);
    let mask = prop_oneof![Just(Full), Just(Causal)];
    (dtype, sizes, mask, any::<bool>(), any::<bool>()).prop_map(
        |(dtype, sizes, mask, is_capped, hides)| Case {
            is_capped,
            hides,
            ..Case::new(dtype, sizes, mask)
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn random_shapes_agree_with_the_definition(case in cases()) {
        let inputs = case.inputs();
        let threshold = case.threshold(&inputs).map_or(0.9, |(threshold, _)| threshold);
        let graph = case.graph(&inputs, Some(threshold));
        let tolerance = Tolerance::new(case.dtype, case.sizes[4], 16.0);
        agrees(&graph, &inputs, tolerance).map_err(TestCaseError::fail)?;
    }
}
