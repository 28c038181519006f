//! Attention over keys and values that are codes. It is held against its definition on random codes
//! and against the float kernel on the same numbers. A bound says how far codes may move a result.

use crate::support::{EXACT, MODES, Session, check, graph, random};
use overdrive_ir::eval::philox;
use overdrive_ir::ops::attention::{mask_region, score_region};
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::ops::quantized_attention::CodedRows;
use overdrive_ir::ops::{Attention, QuantizeRows};
use overdrive_ir::plan::{KernelOp, StepKind};
use overdrive_ir::{Array, Compare, DType, Expr, Graph, Mode, Prim, TensorType};
use testkit::{Tolerance, compare};

/// Sequences, query heads and key heads: groups of three.
const S: usize = 2;
const HEADS: usize = 6;
const SHARED: usize = 2;
const CODES: [DType; 2] = [DType::I8, DType::F8E4M3];

/// A query of each head, codes and scales of so many keys, and the position of each sequence.
fn inputs(q: DType, codes: DType, [keys, depth]: [usize; 2], seed: u64) -> Vec<Array> {
    let rows = [S, SHARED, keys];
    let largest = codes.max_value();
    let of = |seed: u64| {
        let count = rows.iter().product::<usize>() * depth;
        let drawn = philox::uniforms(seed, 1).take(count).map(|u| (2.0 * u - 1.0) * largest);
        Array::from_f64(codes, &[&rows[..], &[depth]].concat(), drawn.collect())
    };
    let scales = |seed: u64| {
        let drawn = philox::uniforms(seed, 2).take(rows.iter().product());
        let drawn = drawn.map(|u| (0.25 + 2.0 * u) / largest).collect();
        Array::from_f64(DType::F32, &[&rows[..], &[1]].concat(), drawn)
    };
    let positions = vec![keys as i128 - 2, keys as i128 / 3];
    let given = [
        random(q, &[S, HEADS, 1, depth], seed),
        of(seed + 1),
        of(seed + 2),
        scales(seed + 3),
        scales(seed + 4),
        Array::int(DType::I64, &[S], positions),
    ];
    given.iter().map(|x| Array::from(&x.to_tensor())).collect()
}

/// Keys up to each sequence's position are visible; scores are capped.
fn regions() -> Vec<Graph> {
    let position = [TensorType::new(DType::I64, [S])];
    let mask = mask_region(&position, |[s, _, _, k], captures| {
        k.convert(DType::I64).compare(Compare::Le, captures[0].at(&[s]))
    });
    let score = score_region(DType::F32, &position, |score, _, _| (score * 0.2).tanh() * 5.0);
    vec![score.unwrap(), mask.unwrap()]
}

fn over_codes<'b>(x: &[Expr<'b>], attention: Attention, regions: Vec<Graph>) -> Vec<Expr<'b>> {
    let rows =
        [(1, 3), (2, 4)].map(|(codes, scales)| CodedRows { codes: x[codes], scales: x[scales] });
    let captures = if regions.is_empty() { &[] } else { &x[5..] };
    x[0].quantized_attention(rows, attention, regions, captures).to_vec()
}

fn runs_as(graph: &Graph, inputs: &[Array], kernel: &str) {
    let tensors: Vec<_> = inputs.iter().map(Array::to_tensor).collect();
    for mode in MODES {
        let session = Session::new(graph, mode, 1, &tensors).unwrap();
        let steps = &session.compiled.plan().steps;
        let is_it = |kind: &StepKind| match kind {
            StepKind::Kernel(call) => {
                matches!(&call.op, KernelOp::Composite(op, _) if op.name() == kernel)
            }
            _ => false,
        };
        assert!(steps.iter().any(|step| is_it(&step.kind)), "{mode}: {steps:?}");
    }
}

#[test]
fn random_codes_give_what_the_definition_gives() {
    // Several blocks of keys, heads of every kind of part, and a single key.
    for [keys, depth] in [[600, 64], [257, 128], [300, 80], [40, 19], [1, 16]] {
        for codes in CODES {
            for q in [DType::F32, DType::BF16, DType::F16] {
                let given = inputs(q, codes, [keys, depth], 7);
                let made = graph("coded", &given, |_, x| over_codes(x, Attention::FULL, regions()));
                check(&made, &given, Tolerance::new(q, keys.max(depth), 8.0));
                runs_as(&made, &given, "quantized_attention");
            }
        }
    }
    // Without functions, by a causal mask, and with a scale that reverses the order.
    let given = inputs(DType::F32, DType::I8, [300, 32], 9);
    for attention in [Attention::CAUSAL, Attention { scale: Some(-0.5), ..Attention::FULL }] {
        let made = graph("coded", &given, |_, x| over_codes(x, attention, vec![]));
        check(&made, &given, Tolerance::new(DType::F32, 300, 8.0));
    }
}

/// The float kernel on the numbers that the codes stand for.
#[test]
fn results_are_those_of_float_attention_over_the_same_numbers() {
    for codes in CODES {
        let given = inputs(DType::F32, codes, [530, 64], 11);
        let made = graph("coded", &given, |_, x| over_codes(x, Attention::FULL, regions()));
        let rows = |codes: &Array, scales: &Array| {
            Array::build(DType::F32, &codes.shape, |at| {
                codes.at(at) * scales.at(&[at[0], at[1], at[2], 0])
            })
        };
        let numbers = [
            given[0].clone(),
            rows(&given[1], &given[3]),
            rows(&given[2], &given[4]),
            given[5].clone(),
        ];
        let float = graph("float", &numbers, |_, x| {
            x[0].attention_with([x[1], x[2]], Attention::FULL, regions(), &x[3..]).to_vec()
        });
        let [found, expected] = [(&made, &given[..]), (&float, &numbers[..])].map(|(graph, x)| {
            let tensors: Vec<_> = x.iter().map(Array::to_tensor).collect();
            let mut session = Session::new(graph, Mode::Compile, 2, &tensors).unwrap();
            session.run().unwrap();
            session.outputs()
        });
        for (expected, found) in expected.iter().zip(&found) {
            compare(expected, found, Tolerance::new(DType::F32, 530, 8.0)).unwrap();
        }
    }
}

/// A number moves by at most half a step of its row's scale in i8. In f8e4m3 it moves by 2^-4 of
/// itself, or by half the smallest step. If no score moves by more than d, no weight changes by
/// more than the factor e^(2 d).
#[test]
fn rounding_moves_results_within_the_bound_of_its_steps() {
    const KEYS: usize = 300;
    const DEPTH: usize = 64;
    for codes in CODES {
        let q = random(DType::F32, &[S, HEADS, 1, DEPTH], 1);
        // Rows of very different sizes, with an outlier each.
        let rows = |seed: u64| {
            let x = random(DType::F32, &[S, SHARED, KEYS, DEPTH], seed);
            Array::build(DType::F32, &x.shape, |at| {
                let outlier = if at[3] == at[2] % DEPTH { 12.0 } else { 1.0 };
                (x.at(at) * outlier * 2f64.powi((at[2] % 5) as i32 - 3)) as f32 as f64
            })
        };
        let given = [q, rows(2), rows(3)];
        let made = graph("coded", &given, |_, x| {
            let op = QuantizeRows { block: None, element: codes, scale: ScaleFormat::Wide };
            let [k, v] = [x[1], x[2]].map(|x| {
                let (codes, scales) = x.quantize_rows(op);
                CodedRows { codes, scales: scales.unwrap() }
            });
            vec![x[0].quantized_attention([k, v], Attention::FULL, vec![], &[])[0]]
        });
        let tensors: Vec<_> = given.iter().map(Array::to_tensor).collect();
        let mut session = Session::new(&made, Mode::Compile, 2, &tensors).unwrap();
        session.run().unwrap();
        let found = session.outputs().remove(0);
        let error_of = |x: &Array, at: [usize; 4]| {
            let row = (0..DEPTH).map(|c| x.at(&[at[0], at[1], at[2], c]).abs());
            let largest = row.fold(0.0, f64::max);
            match codes {
                DType::I8 => largest / 127.0 / 2.0,
                _ => (x.at(&at).abs() / 16.0).max(largest / 448.0 * 2f64.powi(-10)),
            }
        };
        let [q, k, v] = &given;
        let mut moved = 0.0f64;
        for (s, h) in (0..S).flat_map(|s| (0..HEADS).map(move |h| (s, h))) {
            let head = h / (HEADS / SHARED);
            let sum = |f: &dyn Fn(usize) -> f64| (0..DEPTH).map(f).sum::<f64>() / 8.0;
            let query = |c: usize| q.at(&[s, h, 0, c]);
            let score = |j: usize| sum(&|c| query(c) * k.at(&[s, head, j, c]));
            let shift = |j: usize| sum(&|c| query(c).abs() * error_of(k, [s, head, j, c]));
            let (scores, shifts): (Vec<f64>, Vec<f64>) =
                (0..KEYS).map(|j| (score(j), shift(j))).unzip();
            let most = shifts.into_iter().fold(0.0, f64::max);
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            for c in 0..DEPTH {
                let mean = |f: &dyn Fn(usize) -> f64| {
                    weights.iter().enumerate().map(|(j, w)| w * f(j)).sum::<f64>() / total
                };
                let expected = mean(&|j| v.at(&[s, head, j, c]));
                let grown = (2.0 * most).exp();
                let bound = (grown - 1.0) * mean(&|j| v.at(&[s, head, j, c]).abs())
                    + grown * mean(&|j| error_of(v, [s, head, j, c]));
                let error = (found.at(&[s, h, 0, c]) - expected).abs();
                assert!(error <= bound + 1e-5, "{codes} {s} {h} {c}: {error:e} over {bound:e}");
                moved = moved.max(error);
            }
        }
        assert!(moved > 1e-4, "{codes}: codes that round nothing would prove nothing");
    }
}

/// New rows are scattered into the cache of several sequences, whatever the type of codes. The
/// reference evaluator would copy the whole cache for a row.
#[test]
fn codes_are_scattered_by_a_kernel() {
    for codes in CODES {
        let given = inputs(DType::F32, codes, [40, 16], 5);
        let rows = Array::int(DType::I64, &[S, 2], vec![0, 7, 1, 39]);
        let new = Array::build(codes, &[S, SHARED, 16], |at| (at[1] * 16 + at[2]) as f64);
        let given = [given[1].clone(), rows, new];
        let made = graph("written", &given, |b, x| {
            vec![b.op1(Prim::Scatter { axes: vec![0, 2], reducer: None }, x)]
        });
        check(&made, &given, EXACT);
        let tensors: Vec<_> = given.iter().map(Array::to_tensor).collect();
        let session = Session::new(&made, Mode::Compile, 1, &tensors).unwrap();
        let steps = &session.compiled.plan().steps;
        let on_the_host = steps.iter().any(|step| matches!(step.kind, StepKind::Host(_)));
        assert!(!on_the_host, "{codes}: {steps:?}");
    }
}
