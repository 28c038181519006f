//! The gradients of floats that score functions capture, against the f64 definition; and the bits
//! of attention with its gradients over a hundred runs.

use crate::support::{Session, check, random};
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::ops::{Attention, AttentionGrad, Dropout};
use overdrive_ir::plan::{KernelOp, StepKind};
use overdrive_ir::{Array, Backend, Binary, Builder, Compare, DType, Expr, Graph, Mode};
use testkit::{Tolerance, derivative};

type Score = for<'b> fn(Expr<'b>, [Expr<'b>; 4], &[Expr<'b>]) -> Expr<'b>;

/// Gradients of attention whose score function reads captures.
#[derive(Clone, Copy)]
struct Case {
    dtype: DType,
    /// B, H, Hkv, Tq, Tk.
    sizes: [usize; 5],
    attention: Attention,
    score: Score,
    /// Shapes of the captures.
    captures: &'static [&'static [usize]],
    /// Numbers of the captures whose gradients are outputs.
    wanted: &'static [usize],
    /// Whether a mask function hides every third query and far keys.
    is_masked: bool,
}

/// A bias by head and distance, clamped to a table of nine, and a factor by head.
const BY_HEAD: Score = |score, [_, h, q, k], captures| {
    let far = k - q + k.constant(4.0);
    score * wide(captures[0].at(&[h]), score) + wide(captures[1].at(&[h, far]), score)
};
/// The same for all heads: matrices add to the same elements. The number is no tensor.
const SHARED: Score = |score, [_, _, q, k], captures| {
    let [number, bias] = [captures[0], captures[1].at(&[k - q + k.constant(60.0)])];
    (score * wide(number, score) + wide(bias, score)).tanh() * 3.0
};
/// A bias of all pairs, and one of batch elements. Neither has a part for each head.
const BY_PAIR: Score = |score, [b, h, q, k], captures| {
    score + wide(captures[0].at(&[b, h, q, k]), score) * wide(captures[1].at(&[b, q, q]), score)
};

fn wide<'b>(x: Expr<'b>, score: Expr<'b>) -> Expr<'b> {
    x.convert(score.dtype())
}

const CASE: Case = Case {
    dtype: DType::F32,
    sizes: [2, 2, 1, 24, 140],
    attention: Attention::FULL,
    score: BY_HEAD,
    captures: &[&[2], &[2, 9]],
    wanted: &[0, 1],
    is_masked: false,
};

impl Case {
    /// The gradients, and their operands.
    fn graph(&self) -> (Graph, Vec<Array>) {
        let Self { dtype, sizes: [batch, heads, shared, queries, keys], .. } = *self;
        let (wide, row) = (dtype.accumulation(), [batch, heads, queries]);
        let lse = random(wide, &row, 4);
        let raised = (keys as f64).ln() + 1.0;
        let mut inputs = vec![
            random(dtype, &[batch, heads, queries, 4], 1),
            random(dtype, &[batch, shared, keys, 4], 2),
            random(dtype, &[batch, shared, keys, 3], 3),
            Array::build(wide, &row, |index| 0.2 * lse.at(index) + raised),
            random(dtype, &[batch, heads, queries, 3], 5),
            random(wide, &row, 6),
        ];
        inputs.extend(self.attention.dropout.map(|_| Array::int(DType::U64, &[], vec![77])));
        let captures: Vec<Array> =
            self.captures.iter().zip(8..).map(|(shape, seed)| random(dtype, shape, seed)).collect();
        let types: Vec<_> = captures.iter().map(Array::ty).collect();
        inputs.extend(captures);
        let score = score_region(wide, &types, self.score).unwrap();
        let mask = mask_region(&types, |[_, _, q, k], _| {
            let third =
                q.binary(Binary::Rem, q.constant(3.0)).compare(Compare::Ne, q.constant(1.0));
            let near = (q - k).max(k - q).compare(Compare::Le, q.constant(33.0));
            third.binary(Binary::And, near)
        });
        let regions = [score].into_iter().chain(self.is_masked.then(|| mask.unwrap())).collect();
        let b = Builder::new("captures");
        let x: Vec<_> =
            inputs.iter().enumerate().map(|(i, x)| b.input(&format!("x{i}"), x.ty())).collect();
        let results = b.node(AttentionGrad { attention: self.attention }, &x, regions);
        ["dq", "dk", "dv"].iter().zip(&results).for_each(|(name, dx)| b.output(name, *dx));
        for capture in self.wanted {
            b.output(&format!("of capture {capture}"), results[3 + capture]);
        }
        (b.finish().unwrap(), inputs)
    }

    /// In all modes and by the kernel.
    fn check(&self) {
        let (graph, inputs) = self.graph();
        let [batch, heads, _, queries, keys] = self.sizes;
        let terms = batch * heads * queries * keys;
        check(&graph, &inputs, Tolerance::new(self.dtype, terms, 8.0));
        assert!(has_kernel(&graph, &inputs, "attention_grad"), "{:?}", self.sizes);
        let once = bits(&graph, &inputs, 1, 1);
        assert_eq!(once, bits(&graph, &inputs, 3, 1), "threads change nothing");
    }
}

fn has_kernel(graph: &Graph, inputs: &[Array], kernel: &str) -> bool {
    let tensors: Vec<_> = inputs.iter().map(Array::to_tensor).collect();
    let session = Session::new(graph, Mode::Compile, 1, &tensors).unwrap();
    let steps = &session.compiled.plan().steps;
    steps.iter().any(|step| match &step.kind {
        StepKind::Kernel(call) => {
            matches!(&call.op, KernelOp::Composite(op, _) if op.name() == kernel)
        }
        _ => false,
    })
}

/// The bits of every output, computed by so many threads; those of all `runs` must be the same.
fn bits(graph: &Graph, inputs: &[Array], threads: usize, runs: usize) -> Vec<Vec<u8>> {
    let tensors: Vec<_> = inputs.iter().map(Array::to_tensor).collect();
    let mut session = Session::new(graph, Mode::Compile, threads, &tensors).unwrap();
    let mut run = || -> Vec<Vec<u8>> {
        session.run().unwrap();
        let download = |buffer| session.backend.download(buffer).unwrap().bytes().to_vec();
        session.outputs.iter().map(download).collect()
    };
    let first = run();
    for number in 1..runs {
        assert_eq!(first, run(), "run {number} on {threads} threads");
    }
    first
}

#[test]
fn captures_that_heads_have_parts_of() {
    for dtype in [DType::F32, DType::F64, DType::BF16] {
        Case { dtype, ..CASE }.check();
        Case { dtype, attention: Attention::CAUSAL, is_masked: true, ..CASE }.check();
    }
    // A walk has several tiles of keys, or groups of queries.
    for sizes in [[1, 2, 1, 12, 600], [1, 2, 1, 200, 30]] {
        Case { sizes, ..CASE }.check();
    }
}

#[test]
fn captures_that_all_matrices_share() {
    let case = Case { score: SHARED, captures: &[&[], &[200]], ..CASE };
    case.check();
    Case { attention: Attention::CAUSAL, ..case }.check();
    Case { dtype: DType::F16, is_masked: true, ..case }.check();
    let dropout = Some(Dropout { rate: 0.25, site: 5 });
    Case { attention: Attention { dropout, ..Attention::FULL }, ..case }.check();
}

#[test]
fn captures_of_pairs_and_of_batch_elements() {
    let pairs = Case { sizes: [2, 3, 1, 20, 40], score: BY_PAIR, ..CASE };
    Case { captures: &[&[2, 3, 20, 40], &[2, 20, 20]], ..pairs }.check();
    // Broadcast along the batch, as biases of imported models are.
    let broadcast = Case { captures: &[&[1, 3, 20, 40], &[1, 20, 20]], ..pairs };
    broadcast.check();
    Case { wanted: &[0], ..broadcast }.check();
    Case { wanted: &[1], attention: Attention { mask: Mask::Causal, ..Attention::FULL }, ..pairs }
        .with_captures(&[&[2, 1, 20, 1], &[2, 1, 1]])
        .check();
}

impl Case {
    fn with_captures(self, captures: &'static [&'static [usize]]) -> Self {
        Self { captures, ..self }
    }
}

/// Attention and all its gradients: ties in the order of sums, if there were any, would show.
#[test]
fn a_hundred_runs_give_the_same_bits() {
    let dropout = Some(Dropout { rate: 0.1, site: 3 });
    for attention in [Attention::CAUSAL, Attention { dropout, ..Attention::FULL }] {
        for dtype in [DType::F32, DType::BF16] {
            let [batch, heads, shared, queries, keys] = [2, 2, 1, 20, 140];
            let mut inputs = vec![
                random(dtype, &[batch, heads, queries, 8], 1),
                random(dtype, &[batch, shared, keys, 8], 2),
                random(dtype, &[batch, shared, keys, 8], 3),
                random(dtype, &[9], 4),
            ];
            let types = [inputs[3].ty()];
            let score = score_region(dtype.accumulation(), &types, |score, [_, _, q, k], c| {
                score + wide(c[0].at(&[k - q + k.constant(4.0)]), score)
            });
            inputs.extend(attention.dropout.map(|_| Array::int(DType::U64, &[], vec![7])));
            let b = Builder::new("attention");
            let x: Vec<_> =
                inputs.iter().enumerate().map(|(i, x)| b.input(&format!("x{i}"), x.ty())).collect();
            let rest = [&x[4..], &x[3..4]].concat();
            let regions = vec![score.unwrap()];
            let [out, _] = x[0].attention_with([x[1], x[2]], attention, regions, &rest);
            b.output("out", out);
            let (derived, point) = derivative(&b.finish().unwrap(), &inputs, 3).unwrap();
            assert!(has_kernel(&derived, &point, "attention_grad"));
            let alone = bits(&derived, &point, 1, 1);
            for threads in [2, 3] {
                assert_eq!(alone, bits(&derived, &point, threads, 100), "{dtype} {attention:?}");
            }
        }
    }
}
