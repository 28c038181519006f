//! Block masks of attention on Hopper: tiles that a mask function hides are skipped, forward and
//! backward. The results are those of the f64 definition, for tensors that change from call to
//! call. Every call is made twice, and both give the same bits.
//!
//! Each test compiles two or three kernels, since a compilation takes seconds.
//!
//! Long because all functions are held to the definition by one check, forward and backward.

mod definition;
use crate::support::{gpu, poisoned};
use definition::{Results, Sizes};
use overdrive_ir::eval::{States, eval, philox};
use overdrive_ir::ops::attention::{Mask, mask_region, score_region};
use overdrive_ir::ops::{Attention, AttentionGrad, Dropout};
use overdrive_ir::{
    Array, Backend, Buffer, Builder, Compare, DType, Expr, Graph, Mode, State, Tensor, Tuning,
};
use testkit::{Tolerance, compare};

/// Queries and keys of a square of a block-sparse mask.
const SQUARE: usize = 128;

/// A third of the weights is dropped.
const DROPOUT: Dropout = Dropout { rate: 1.0 / 3.0, site: 0x1234_5678_9abc };

/// A seed that needs all of its bits.
fn seed() -> Array {
    Array::int(DType::U64, &[], vec![0xfedc_ba98_7654_3210])
}

/// The tensors that mask functions read.
struct Given {
    /// Ids of documents `[B, T]`.
    ids: Array,
    /// Visible squares `[H, T / 128, T / 128]`.
    squares: Array,
    /// Visible keys `[B]`.
    lengths: Array,
}

impl Given {
    /// Those of a call, which differ from call to call.
    fn of(call: u64, [batch, heads, _, queries, keys, ..]: Sizes) -> Self {
        let longest = queries.max(keys);
        let uniforms = |count: usize, site: u64| philox::uniforms(call + 1, site).take(count);
        // Documents of random lengths, in a random order of ids.
        let ids = (0..batch).flat_map(|b| {
            let starts: Vec<usize> =
                uniforms(4, b as u64).map(|u| (u * longest as f64) as usize).collect();
            (0..longest).map(move |at| {
                let before = starts.iter().filter(|&&start| start <= at).count() as i128;
                before * 7919 % 11 - 5
            })
        });
        let side = longest.div_ceil(SQUARE);
        let squares = uniforms(heads * side * side, 8).map(|u| i128::from(u < 0.5));
        // The last sequence of several is empty.
        let length = |b: usize| if b > 0 && b + 1 == batch { 0 } else { keys / 2 + call as usize };
        let lengths = (0..batch).map(|b| length(b) as i128);
        Self {
            ids: Array::int(DType::I32, &[batch, longest], ids.collect()),
            squares: Array::int(DType::Bool, &[heads, side, side], squares.collect()),
            lengths: Array::int(DType::I32, &[batch], lengths.collect()),
        }
    }

    fn arrays(&self) -> [&Array; 3] {
        [&self.ids, &self.squares, &self.lengths]
    }
}

/// A mask function, as a graph and as the definition.
#[derive(Clone, Copy)]
struct Function {
    graph: for<'b> fn([Expr<'b>; 4], &[Expr<'b>]) -> Expr<'b>,
    shown: fn([usize; 4], &Given) -> bool,
}

const WINDOW: Function = Function {
    graph: |[_, _, q, k], _| (q - k).compare(Compare::Lt, q.constant(60.0)),
    shown: |[_, _, q, k], _| q < k + 60,
};
const DOCUMENTS: Function = Function {
    graph: |[b, _, q, k], captures| {
        captures[0].at(&[b, q]).compare(Compare::Eq, captures[0].at(&[b, k]))
    },
    shown: |[b, _, q, k], given| given.ids.at(&[b, q]) == given.ids.at(&[b, k]),
};
const SQUARES: Function = Function {
    graph: |[_, h, q, k], captures| {
        let square = q.constant(SQUARE as f64);
        captures[1].at(&[h, q / square, k / square])
    },
    shown: |[_, h, q, k], given| given.squares.at(&[h, q / SQUARE, k / SQUARE]) != 0.0,
};
/// A prefix is seen by all, the rest by later queries.
const PREFIX: Function = Function {
    graph: |[b, _, q, k], captures| {
        let is_prefix = k.compare(Compare::Lt, captures[2].at(&[b]));
        is_prefix.select(is_prefix, k.compare(Compare::Le, q))
    },
    shown: |[b, _, q, k], given| (k as f64) < given.lengths.at(&[b]) || k <= q,
};
/// Every tenth row sees a part of the keys, and no other row sees any.
const ROWS: Function = Function {
    graph: |[b, _, q, k], captures| {
        let row = (q - q / q.constant(10.0) * 10.0).compare(Compare::Eq, q.constant(3.0));
        let inside = k.compare(Compare::Lt, captures[2].at(&[b]));
        row.select(inside, row)
    },
    shown: |[b, _, q, k], given| q % 10 == 3 && (k as f64) < given.lengths.at(&[b]),
};

/// Scores as they are, or capped by a score function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scores {
    Plain,
    Capped,
}

impl Scores {
    /// A score and its derivative by the scaled product.
    fn of(self, product: f64) -> [f64; 2] {
        let y = (product / 2.0).tanh();
        if self == Scores::Capped { [y * 2.0, 1.0 - y * y] } else { [product, 1.0] }
    }
}

/// A call: its function, whether it is causal too, and what becomes of scores and weights.
struct Case {
    function: Function,
    mask: Mask,
    scores: Scores,
    dropout: Option<Dropout>,
    dtype: DType,
    sizes: Sizes,
}

impl Case {
    fn new(function: Function, mask: Mask, dtype: DType, sizes: Sizes) -> Self {
        Self { function, mask, scores: Scores::Plain, dropout: None, dtype, sizes }
    }

    fn shown(&self, given: &Given, at: [usize; 4]) -> bool {
        let [_, _, _, queries, keys, ..] = self.sizes;
        let is_before = self.mask == Mask::Full || at[3] + queries <= at[2] + keys;
        is_before && (self.function.shown)(at, given)
    }

    /// Random q, k, v and dout.
    fn heads(&self) -> [Array; 4] {
        let [b, h, shared, queries, keys, d, dv] = self.sizes;
        let shapes = [[b, h, queries, d], [b, shared, keys, d], [b, shared, keys, dv]];
        let shapes = [shapes[0], shapes[1], shapes[2], [b, h, queries, dv]];
        let mut site = 0;
        shapes.map(|shape| {
            site += 1;
            let values = philox::normals(7, site).take(shape.iter().product()).collect();
            Array::from(&Array::from_f64(self.dtype, &shape, values).to_tensor())
        })
    }

    fn results(&self, given: &Given, [q, k, v, dout]: &[Array; 4]) -> Results {
        let factors = self.dropout.map(|dropout| self.factors(dropout));
        let kept = |at: [usize; 4]| factors.as_ref().map_or(1.0, |factors| factors.at(&at));
        let shown = |at| self.shown(given, at);
        definition::attention([q, k, v, dout], shown, kept, |x| self.scores.of(x))
    }

    /// Factors on all weights.
    fn factors(&self, dropout: Dropout) -> Array {
        let ([batch, heads, _, queries, keys, ..], b) = (self.sizes, Builder::new("factors"));
        let ones = b.full(DType::F64, [batch, heads, queries, keys], 1.0);
        b.output("factors", b.op1(dropout, &[ones, b.input("seed", Dropout::SEED)]));
        eval(&b.finish().unwrap(), &[seed()], &mut States::new()).remove(0)
    }

    /// The operands of a part, whose log-sum-exps and delta are those of the results.
    fn inputs(&self, part: Part, given: (&[Array; 4], &Given), results: &Results) -> Vec<Array> {
        let ([q, k, v, dout], captures) = given;
        let mut inputs = vec![q.clone(), k.clone(), v.clone()];
        if part == Part::Backward {
            let rows = |values: &[f64]| definition::rows(self.sizes, values);
            inputs.extend([rows(&results.lse), dout.clone(), rows(&results.delta)]);
        }
        let seed = self.dropout.map(|_| seed());
        inputs.into_iter().chain(seed).chain(captures.arrays().map(Clone::clone)).collect()
    }

    /// The graph of outputs and log-sum-exps, or of gradients.
    fn graph(&self, part: Part, inputs: &[Array]) -> Graph {
        let b = Builder::new("block masks");
        let x: Vec<Expr<'_>> =
            inputs.iter().enumerate().map(|(i, a)| b.input(&format!("x{i}"), a.ty())).collect();
        let captures = inputs[inputs.len() - 3..].iter().map(|a| a.ty()).collect::<Vec<_>>();
        let mut regions = vec![mask_region(&captures, self.function.graph).unwrap()];
        if self.scores == Scores::Capped {
            let capped =
                score_region(DType::F32, &captures, |score, _, _| (score / 2.0).tanh() * 2.0);
            regions.insert(0, capped.unwrap());
        }
        let attention = Attention { mask: self.mask, dropout: self.dropout, ..Attention::FULL };
        let results: Vec<Expr<'_>> = match part {
            Part::Forward => x[0].attention_with([x[1], x[2]], attention, regions, &x[3..]).into(),
            Part::Backward => b.node(AttentionGrad { attention }, &x, regions),
        };
        results.iter().enumerate().for_each(|(i, y)| b.output(&format!("y{i}"), *y));
        b.finish().unwrap()
    }

    /// Two calls with other tensors, each made twice.
    fn check(&self, part: Part) {
        let Some(backend) = gpu() else { return };
        let heads = self.heads();
        let mut compiled = None;
        for call in 0..2 {
            let given = Given::of(call, self.sizes);
            let expected = self.results(&given, &heads);
            let inputs = self.inputs(part, (&heads, &given), &expected);
            let (graph, session, state) = compiled.get_or_insert_with(|| {
                let graph = self.graph(part, &inputs);
                let executable = backend.compile(&graph, Mode::Compile, &Tuning::default());
                let session = executable.and_then(|executable| executable.session()).unwrap();
                let state = State::initial(&graph, &backend).unwrap();
                (graph, session, state)
            });
            let uploaded: Vec<Buffer> =
                inputs.iter().map(|x| backend.upload(&x.to_tensor()).unwrap()).collect();
            let types: Vec<_> = graph.outputs().iter().map(|port| graph.ty(port.value)).collect();
            let mut run = || -> Vec<Tensor> {
                let mut outputs: Vec<Buffer> =
                    types.iter().map(|ty| poisoned(&backend, ty)).collect();
                session.run(state.with(&uploaded, &mut outputs)).unwrap().wait().unwrap();
                outputs.iter().map(|output| backend.download(output).unwrap()).collect()
            };
            let (found, again) = (run(), run());
            for (one, other) in found.iter().zip(&again) {
                assert!(one.bytes() == other.bytes(), "call {call}: a second run gives other bits");
            }
            let found: Vec<Array> = found.iter().map(Array::from).collect();
            self.compare(part, &expected, &found).unwrap_or_else(|e| panic!("call {call}: {e}"));
        }
    }

    fn compare(&self, part: Part, expected: &Results, found: &[Array]) -> Result<(), String> {
        let [_, heads, shared, queries, keys, ..] = self.sizes;
        if part == Part::Backward {
            let mut named = ["dq", "dk", "dv"].into_iter().zip(&expected.gradients).zip(found);
            return named.try_for_each(|((name, sums), found)| {
                let count = if name == "dq" { keys } else { heads / shared * queries };
                sums.compare(found, count).map_err(|e| format!("{name} {e}"))
            });
        }
        expected.out.compare(&found[0], keys).map_err(|e| format!("out {e}"))?;
        // A key more or less changes it by about a hundredth.
        let lse = definition::rows(self.sizes, &expected.lse);
        let tolerance = Tolerance::new(DType::F32, keys, 16.0);
        compare(&lse, &found[1], tolerance).map_err(|e| format!("lse {e}"))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Forward,
    Backward,
}

/// Queries and keys of several tiles, the last ones in part.
const NARROW: Sizes = [1, 4, 2, 300, 500, 64, 64];
const WIDE: Sizes = [1, 4, 2, 300, 500, 128, 128];
/// Two sequences, more queries than keys.
const TALL: Sizes = [2, 2, 1, 450, 300, 128, 128];
/// Few tiles of keys, so that each is split among tasks.
const SPLIT: Sizes = [1, 8, 1, 700, 300, 64, 64];
/// More tasks of a tile than query heads.
const LONG: Sizes = [1, 2, 1, 1500, 200, 64, 64];

use DType::{BF16, F16};
use Mask::{Causal, Full};
use Part::{Backward, Forward};

#[test]
fn windows() {
    Case::new(WINDOW, Causal, BF16, NARROW).check(Forward);
    Case::new(WINDOW, Full, F16, WIDE).check(Forward);
}

#[test]
fn documents() {
    Case::new(DOCUMENTS, Causal, F16, WIDE).check(Forward);
    Case::new(DOCUMENTS, Full, BF16, NARROW).check(Forward);
}

#[test]
fn squares() {
    Case::new(SQUARES, Full, BF16, WIDE).check(Forward);
    Case::new(SQUARES, Causal, F16, NARROW).check(Forward);
}

#[test]
fn prefixes() {
    Case::new(PREFIX, Full, F16, NARROW).check(Forward);
    Case::new(PREFIX, Full, BF16, TALL).check(Forward);
}

#[test]
fn rows_that_see_nothing() {
    Case::new(ROWS, Full, BF16, WIDE).check(Forward);
    Case::new(ROWS, Causal, F16, TALL).check(Forward);
}

#[test]
fn documents_beside_a_score_function() {
    let case = Case::new(DOCUMENTS, Causal, F16, WIDE);
    Case { scores: Scores::Capped, ..case }.check(Forward);
}

#[test]
fn documents_beside_dropped_weights() {
    let case = Case::new(DOCUMENTS, Causal, F16, WIDE);
    Case { dropout: Some(DROPOUT), ..case }.check(Forward);
    let case = Case::new(DOCUMENTS, Causal, F16, NARROW);
    Case { dropout: Some(DROPOUT), ..case }.check(Backward);
}

#[test]
fn wider_heads() {
    Case::new(DOCUMENTS, Causal, F16, [1, 2, 1, 300, 500, 144, 192]).check(Forward);
    Case::new(SQUARES, Full, F16, [1, 2, 1, 300, 500, 256, 256]).check(Forward);
}

#[test]
fn gradients_of_windows() {
    Case::new(WINDOW, Causal, F16, NARROW).check(Backward);
    Case::new(WINDOW, Full, BF16, WIDE).check(Backward);
    // Every key is hidden from every query that sees its position.
    Case::new(WINDOW, Causal, BF16, LONG).check(Backward);
}

#[test]
fn gradients_of_documents() {
    Case::new(DOCUMENTS, Causal, F16, WIDE).check(Backward);
    Case::new(DOCUMENTS, Full, BF16, SPLIT).check(Backward);
}

#[test]
fn gradients_of_squares() {
    Case::new(SQUARES, Full, BF16, WIDE).check(Backward);
    Case::new(SQUARES, Causal, F16, SPLIT).check(Backward);
}

#[test]
fn gradients_of_prefixes() {
    Case::new(PREFIX, Full, F16, NARROW).check(Backward);
    Case::new(PREFIX, Full, BF16, TALL).check(Backward);
}

#[test]
fn gradients_of_rows_that_see_nothing() {
    Case::new(ROWS, Full, F16, LONG).check(Backward);
    Case::new(ROWS, Causal, BF16, TALL).check(Backward);
}

#[test]
fn gradients_of_documents_beside_a_score_function() {
    for sizes in [NARROW, WIDE] {
        let case = Case::new(DOCUMENTS, Causal, F16, sizes);
        Case { scores: Scores::Capped, ..case }.check(Backward);
    }
}

/// Tiles of 128 queries and keys of a case by the pairs that they show: none, some, all.
fn classes(case: &Case, given: &Given) -> [usize; 3] {
    let [batch, heads, _, queries, keys, ..] = case.sizes;
    let mut classes = [0; 3];
    let firsts = |length: usize| (0..length).step_by(SQUARE);
    for (b, h) in (0..batch).flat_map(|b| (0..heads).map(move |h| (b, h))) {
        for (row, column) in firsts(queries).flat_map(|r| firsts(keys).map(move |c| (r, c))) {
            let pairs = (row..queries.min(row + SQUARE))
                .flat_map(|q| (column..keys.min(column + SQUARE)).map(move |k| (q, k)));
            let shown: Vec<bool> = pairs.map(|(q, k)| case.shown(given, [b, h, q, k])).collect();
            let (any, all) = (shown.contains(&true), !shown.contains(&false));
            classes[usize::from(any) + usize::from(all)] += 1;
        }
    }
    classes
}

/// The cases have several tiles of each class: hidden, hidden in part, and whole.
#[test]
fn cases_have_tiles_of_each_class() {
    for (function, mask, sizes) in
        [(SQUARES, Causal, NARROW), (PREFIX, Full, NARROW), (SQUARES, Causal, SPLIT)]
    {
        let case = Case::new(function, mask, BF16, sizes);
        let found = classes(&case, &Given::of(0, sizes));
        assert!(found[1] > 1 && found[2] > 1, "{sizes:?}: {found:?}");
        assert!(found[0] > 1 || case.mask == Full, "{sizes:?}: {found:?}");
    }
    let hidden = |function| classes(&Case::new(function, Causal, BF16, WIDE), &Given::of(1, WIDE));
    assert!(hidden(WINDOW)[0] > 1 && hidden(DOCUMENTS)[0] > 1 && hidden(SQUARES)[0] > 1);
}

/// The quick definition gives what the evaluator gives, for each function.
#[test]
fn the_definition_is_that_of_the_evaluator() {
    let sizes = [2, 2, 1, 30, 40, 4, 3];
    let functions = [WINDOW, DOCUMENTS, SQUARES, PREFIX, ROWS];
    for (function, mask) in functions.into_iter().zip([Causal, Full, Causal, Full, Causal]) {
        for scores in [Scores::Plain, Scores::Capped] {
            let dropout = (scores == Scores::Capped).then_some(DROPOUT);
            let case = Case { scores, dropout, ..Case::new(function, mask, F16, sizes) };
            let (given, heads) = (Given::of(0, sizes), case.heads());
            let expected = case.results(&given, &heads);
            for part in [Forward, Backward] {
                let inputs = case.inputs(part, (&heads, &given), &expected);
                let found = eval(&case.graph(part, &inputs), &inputs, &mut States::new());
                case.compare(part, &expected, &found).unwrap();
            }
        }
    }
}
