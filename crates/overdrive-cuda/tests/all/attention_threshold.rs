//! Attention with a threshold against the f64 definition, on each kernel that skips tiles and by
//! the expansion. Every call is made twice, and both give the same bits.
//!
//! Each tile of keys has a channel of its own, and each tile of queries has those of about half of
//! the tiles. So scores are about 2 or about 0, and a threshold of 1/e lies far from both. A tile
//! of scores of 0 has weights of 0.14: a tile too many or too few changes the log-sum-exp by more
//! than its tolerance.

use crate::support::{gpu, outputs_of};
use overdrive_ir::eval::{States, eval, philox};
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::threshold::{TILE, kept_tiles};
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::{Array, Builder, Compare, DType, Graph};
use testkit::{Tolerance, compare};

const SCORE: f64 = 2.0;
const THRESHOLD: f64 = 0.36787944117144233;

#[derive(Clone, Copy, Debug)]
struct Case {
    dtype: DType,
    /// B, H, Hkv, Tq, Tk, D, Dv.
    sizes: [usize; 7],
    mask: Mask,
    /// Scores through `4 tanh(score / 4)`.
    is_capped: bool,
    /// Only documents of 200 keys, and no key for every seventh query.
    hides: bool,
    threshold: Option<f64>,
}

impl Case {
    fn new(dtype: DType, sizes: [usize; 7], mask: Mask) -> Self {
        let threshold = Some(THRESHOLD);
        Self { dtype, sizes, mask, is_capped: false, hides: false, threshold }
    }

    fn inputs(self) -> Vec<Array> {
        let [b, h, shared, queries, keys, d, dv] = self.sizes;
        let size = (SCORE * (d as f64).sqrt()).sqrt();
        let attends = |head: usize, tile: usize, channel: usize| {
            philox::uniforms(11, (head * 1000 + tile) as u64).nth(channel).unwrap() < 0.5
        };
        let shapes = [[b, h, queries, d], [b, shared, keys, d], [b, shared, keys, dv]];
        (0..3)
            .map(|operand| {
                let shape = shapes[operand];
                let noise = philox::normals(5, operand as u64).take(shape.iter().product());
                let noise = Array::from_f64(DType::F64, &shape, noise.collect());
                let values = Array::build(self.dtype, &shape, |at| {
                    let is_attended = match operand {
                        0 => attends(at[1], at[2] / TILE[0], at[3]),
                        _ => at[2] / TILE[1] == at[3],
                    };
                    let channels = keys.div_ceil(TILE[1]);
                    match operand {
                        2 => noise.at(at),
                        _ if is_attended && at[3] < channels => size + 0.1 * noise.at(at),
                        _ => 0.1 * noise.at(at),
                    }
                });
                Array::from(&values.to_tensor())
            })
            .collect()
    }

    fn attention(self) -> Attention {
        Attention { mask: self.mask, threshold: self.threshold, ..Attention::FULL }
    }

    fn regions(self) -> Vec<Graph> {
        let capped = score_region(DType::F32, &[], |score, _, _| (score / 4.0).tanh() * 4.0);
        let shown = mask_region(&[], |[_, _, q, k], _| {
            let seventh = (q - q / q.constant(7.0) * 7.0).compare(Compare::Ne, q.constant(3.0));
            let [q, k] = [q, k].map(|at| at / at.constant(200.0));
            seventh.select(q.compare(Compare::Eq, k), seventh)
        });
        let capped = self.is_capped.then(|| capped.unwrap());
        capped.into_iter().chain(self.hides.then(|| shown.unwrap())).collect()
    }

    fn graph(self, inputs: &[Array]) -> Graph {
        let b = Builder::new(&format!("{self:?}"));
        let x: Vec<_> =
            inputs.iter().enumerate().map(|(i, x)| b.input(&format!("x{i}"), x.ty())).collect();
        let [out, lse] = x[0].attention_with([x[1], x[2]], self.attention(), self.regions(), &[]);
        b.output("out", out);
        b.output("lse", lse);
        b.finish().unwrap()
    }

    /// The tiles that are skipped, and all.
    fn skipped(self, inputs: &[Array]) -> [usize; 2] {
        let b = Builder::new("kept");
        let pair = [b.input("q", inputs[0].ty()), b.input("k", inputs[1].ty())];
        let scores = self.attention().all_scores(pair, (&self.regions(), &[]));
        b.output("kept", kept_tiles(scores, THRESHOLD));
        let kept = eval(&b.finish().unwrap(), &inputs[..2], &mut States::new()).remove(0);
        [kept.ints().iter().filter(|&&kept| kept == 0).count(), kept.len()]
    }

    fn check(self) {
        // Without a GPU too.
        let inputs = self.inputs();
        let [skipped, all] = self.skipped(&inputs);
        assert!(skipped > 0 && skipped < all, "{self:?}: {skipped} of {all}");
        let Some(backend) = gpu() else { return };
        let expected = eval(&self.graph(&inputs), &inputs, &mut States::new());
        let [found, again] = [(); 2].map(|()| outputs_of(&backend, &self.graph(&inputs), &inputs));
        let tolerance = |dtype| Tolerance::new(dtype, self.sizes[4], 4.0);
        for ((expected, found), again) in expected.iter().zip(&found).zip(&again) {
            assert!(found.bytes() == again.bytes(), "{self:?}: a second run gives other bits");
            compare(expected, &Array::from(found), tolerance(expected.dtype))
                .unwrap_or_else(|e| panic!("{self:?}: {e}"));
        }
    }
}

use DType::{BF16, F16, F32};
use Mask::{Causal, Full};

/// Two warpgroups, which skip other tiles; the last tiles in part.
const NARROW: [usize; 7] = [1, 4, 2, 300, 700, 64, 64];
const WIDE: [usize; 7] = [1, 4, 2, 300, 700, 128, 128];
/// Three warpgroups.
const THREE: [usize; 7] = [1, 1, 1, 2100, 500, 64, 48];
/// Two sequences, and more queries than keys: the first see nothing under a causal mask.
const TALL: [usize; 7] = [2, 2, 1, 450, 300, 80, 96];

#[test]
fn tiles_are_skipped_on_hopper() {
    Case::new(BF16, NARROW, Causal).check();
    Case::new(F16, NARROW, Full).check();
    Case::new(F16, WIDE, Causal).check();
    Case::new(BF16, WIDE, Full).check();
    Case::new(BF16, THREE, Full).check();
    Case::new(BF16, TALL, Causal).check();
}

#[test]
fn tiles_are_skipped_beside_a_mask_function() {
    for (sizes, mask) in [(NARROW, Full), (WIDE, Causal), (TALL, Causal)] {
        Case { hides: true, ..Case::new(F16, sizes, mask) }.check();
    }
}

/// More tasks than multiprocessors, so that blocks of the grid go on with the next.
#[test]
fn many_heads_skip_tiles_of_their_own() {
    Case::new(BF16, [1, 60, 1, 260, 520, 16, 16], Causal).check();
}

#[test]
fn tiles_are_skipped_by_the_portable_kernel() {
    // Too few queries for Hopper's kernel, one block of keys in shared memory, or two.
    Case::new(F16, [2, 4, 2, 100, 700, 128, 112], Causal).check();
    Case::new(BF16, [2, 4, 2, 70, 600, 64, 64], Full).check();
    // One query, aligned with the last key.
    Case::new(BF16, [1, 16, 1, 1, 900, 64, 64], Causal).check();
    // Score functions.
    for sizes in [NARROW, WIDE] {
        Case { is_capped: true, ..Case::new(F16, sizes, Causal) }.check();
        Case { is_capped: true, hides: true, ..Case::new(BF16, sizes, Full) }.check();
    }
}

#[test]
fn tiles_are_skipped_where_attention_is_expanded() {
    Case::new(F32, [1, 2, 1, 150, 400, 16, 16], Causal).check();
    Case::new(BF16, [1, 2, 1, 150, 400, 144, 24], Full).check();
}

/// A threshold below all weights gives plain attention, but for the order of sums.
#[test]
fn a_threshold_that_skips_nothing_gives_plain_attention() {
    let Some(backend) = gpu() else { return };
    for (dtype, sizes, mask) in [(BF16, WIDE, Causal), (F16, NARROW, Full), (BF16, TALL, Causal)] {
        let case = Case { threshold: Some(1e-30), ..Case::new(dtype, sizes, mask) };
        let inputs = case.inputs();
        let [found, plain] = [case, Case { threshold: None, ..case }].map(|case| {
            outputs_of(&backend, &case.graph(&inputs), &inputs)
                .iter()
                .map(Array::from)
                .collect::<Vec<_>>()
        });
        for (found, plain) in found.iter().zip(&plain) {
            let tolerance = Tolerance::new(found.dtype, case.sizes[4], 4.0);
            compare(plain, found, tolerance).unwrap_or_else(|e| panic!("{case:?}: {e}"));
        }
    }
}
