//! Compressed sums of gradients: all ranks of the mesh in lockstep, beside the exact sums.

use overdrive_ir::eval::{States, eval_ranks};
use overdrive_ir::plan::Note;
use overdrive_ir::{
    Array, Axis, Builder, DType, Expr, Graph, Init, Mesh, Sharding, Tensor, TensorType, verify,
};
use overdrive_passes::{Compression, Sharded, compress_gradients, shard};
use std::collections::{BTreeMap, BTreeSet};

const SCHEMES: [&str; 6] = ["f32", "bf16", "int8", "fp8", "topk:0.2", "powersgd:4"];

/// Elements of a block of codes.
const BLOCK: usize = 256;

/// The sum of a gradient of this shape over ranks, compressed.
struct Run {
    sharded: Sharded,
    states: Vec<States>,
    shape: Vec<usize>,
}

fn data() -> Axis {
    Axis::from("data")
}

/// Samples of each rank: so many that a sum of gradients is less to send than the samples are.
const ROWS: usize = 8;

/// A gradient is a contraction over samples.
fn sum_of<'b>(b: &'b Builder, name: &str, (ranks, shape): (usize, &[usize])) -> Expr<'b> {
    let samples = ranks * ROWS;
    let g = b.input(name, TensorType::new(DType::F32, [&[samples], shape].concat()));
    b.full(DType::F32, [samples], 1.0).dot(g, &[], &[(0, 0)])
}

fn sum(ranks: usize, shape: &[usize]) -> Graph {
    let b = Builder::new("sum");
    b.output("sum", sum_of(&b, "g", (ranks, shape)));
    b.finish().unwrap()
}

/// A gradient as that of the first of a rank's samples.
fn in_samples(g: &[f64]) -> Vec<f64> {
    let mut all = vec![0.0; g.len() * ROWS];
    all[..g.len()].copy_from_slice(g);
    all
}

impl Run {
    /// Each rank gets the whole sum, or its part of dimension `split`.
    fn new(ranks: usize, shape: &[usize], scheme: &str, split: Option<usize>) -> Self {
        let graph = sum(ranks, shape);
        let (g, total) = (graph.inputs()[0].value, graph.outputs()[0].value);
        let rows = Sharding::whole(1 + shape.len()).and_split(0, &data());
        let mut shardings = BTreeMap::from([(g, rows)]);
        if let Some(dim) = split {
            shardings.insert(total, Sharding::whole(shape.len()).and_split(dim, &data()));
        }
        let sharded = shard(&graph, &Mesh::new([("data", ranks)]), &shardings).unwrap();
        let before = collectives(&sharded.graph);
        let name = if split.is_some() { "reduce_scatter" } else { "all_reduce" };
        assert_eq!(before, BTreeMap::from([(name.to_owned(), 1)]));
        let scheme: Compression = scheme.parse().unwrap();
        let sharded = compress_gradients(sharded, &data(), scheme).unwrap();
        assert_ne!(collectives(&sharded.graph), before);
        verify(&sharded.graph).unwrap();
        assert_eq!(sharded.graph.states().len(), sharded.states.len());
        Self { sharded, states: vec![States::new(); ranks], shape: shape.to_vec() }
    }

    /// The result of a step, which all ranks have with the same bits; joined where each has a part.
    fn step(&mut self, gradients: &[Vec<f64>]) -> Vec<f64> {
        let shape = [&[ROWS], &self.shape[..]].concat();
        let array = |g: &Vec<f64>| vec![Array::from_f64(DType::F32, &shape, in_samples(g))];
        let inputs: Vec<_> = gradients.iter().map(array).collect();
        let Sharded { graph, mesh, outputs, .. } = &self.sharded;
        let found = eval_ranks(graph, mesh, &inputs, &mut self.states);
        let parts: Vec<Tensor> = found.iter().map(|of_rank| of_rank[0].to_tensor()).collect();
        if outputs[0] == Sharding::whole(self.shape.len()) {
            let same = |part: &Tensor| part.bytes() == parts[0].bytes();
            assert!(parts.iter().all(same), "all ranks have the same bits");
            return parts[0].to_f64();
        }
        self.sharded.join(&parts, &outputs[0]).to_f64()
    }

    /// All values of a state on all ranks.
    fn state(&self, name: &str) -> Vec<Vec<f64>> {
        self.states.iter().map(|states| states[name].to_f64()).collect()
    }
}

/// Random gradients of each rank.
fn gradients(ranks: usize, shape: &[usize]) -> Vec<Vec<f64>> {
    let ty = TensorType::new(DType::F32, shape.to_vec());
    let of_rank = |rank| Init::Normal { std: 1e-3, seed: rank as u64 }.tensor("g", &ty).to_f64();
    (0..ranks).map(of_rank).collect()
}

/// The sum over ranks.
fn exact(gradients: &[Vec<f64>]) -> Vec<f64> {
    let add = |sum: Vec<f64>, g: &Vec<f64>| sum.iter().zip(g).map(|(a, b)| a + b).collect();
    gradients[1..].iter().fold(gradients[0].clone(), add)
}

fn largest(x: &[f64]) -> f64 {
    x.iter().fold(0.0, |max, x| max.max(x.abs()))
}

fn furthest(x: &[f64], y: &[f64]) -> f64 {
    x.iter().zip(y).fold(0.0, |max, (a, b)| max.max((a - b).abs()))
}

fn norm(x: impl IntoIterator<Item = f64>) -> f64 {
    x.into_iter().map(|x| x * x).sum::<f64>().sqrt()
}

fn off(x: &[f64], y: &[f64]) -> f64 {
    norm(x.iter().zip(y).map(|(a, b)| a - b))
}

/// The largest code, and the half of the largest step between two codes.
fn code(scheme: &str) -> (f64, f64) {
    if scheme == "int8" { (127.0, 0.5) } else { (448.0, 16.0) }
}

/// How far an element of a block may be from the exact sum. Beside the rounding to codes, f32
/// rounds a scale, a product and a sum a few times.
fn bound(scheme: &str, blocks: &[&[f64]], sum: &[f64]) -> f64 {
    let (most, half) = code(scheme);
    let there: f64 = blocks.iter().map(|block| largest(block) / most * half).sum();
    let back = (largest(sum) + there) / most * half;
    let magnitude: f64 = blocks.iter().map(|block| largest(block)).sum();
    there + back + 8.0 * DType::F32.epsilon() * magnitude
}

fn collectives(graph: &Graph) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let mut channels = BTreeSet::new();
    for prim in graph.nodes().iter().filter_map(|node| node.op.prim()) {
        if let Some(channel) = prim.channel() {
            *counts.entry(prim.name()).or_insert(0) += 1;
            assert!(channels.insert(channel.id), "each collective has a channel of its own");
        }
    }
    counts
}

#[test]
fn codes_err_by_no_more_than_their_steps() {
    for scheme in ["int8", "fp8"] {
        for ranks in [2, 3] {
            // The last block of some rank is padded.
            let shape = [97, 64];
            let mut run = Run::new(ranks, &shape, scheme, None);
            let expected = BTreeMap::from([("all_gather".into(), 2), ("all_to_all".into(), 2)]);
            assert_eq!(collectives(&run.sharded.graph), expected);
            let given = gradients(ranks, &shape);
            let (found, sum) = (run.step(&given), exact(&given));
            for (at, (found, sums)) in found.chunks(BLOCK).zip(sum.chunks(BLOCK)).enumerate() {
                let of_block = |g: &'_ Vec<f64>| g[at * BLOCK..][..sums.len()].to_vec();
                let blocks: Vec<Vec<f64>> = given.iter().map(of_block).collect();
                let blocks: Vec<&[f64]> = blocks.iter().map(Vec::as_slice).collect();
                let bound = bound(scheme, &blocks, sums);
                let worst = furthest(found, sums);
                assert!(worst <= bound, "{scheme} of {ranks}: off by {worst}, bound {bound}");
                assert!(worst > bound / 100.0, "codes of 8 bits are not exact");
            }
        }
    }
}

#[test]
fn floats_err_by_their_rounding() {
    for (scheme, rounding) in [("f32", 0.0), ("bf16", 2f64.powi(-8))] {
        for (ranks, split) in [(2, None), (3, None), (2, Some(1))] {
            let shape = [97, 64];
            let mut run = Run::new(ranks, &shape, scheme, split);
            let mut hops = BTreeMap::from([("all_to_all".to_owned(), 1)]);
            if split.is_none() {
                hops.insert("all_gather".to_owned(), 1);
            }
            assert_eq!(collectives(&run.sharded.graph), hops);
            let given = gradients(ranks, &shape);
            let (found, sum) = (run.step(&given), exact(&given));
            let mut furthest = 0.0f64;
            for (at, (found, sum)) in found.iter().zip(&sum).enumerate() {
                let magnitude: f64 = given.iter().map(|g| g[at].abs()).sum();
                let bound = magnitude * (2.02 * rounding + 4.0 * DType::F32.epsilon());
                let worst = (found - sum).abs();
                assert!(worst <= bound, "{scheme} of {ranks}: off by {worst}, bound {bound}");
                furthest = furthest.max(worst / magnitude);
            }
            assert!(furthest >= rounding / 2.0, "bf16 is not exact");
        }
    }
}

#[test]
fn a_part_of_the_sum_is_one_hop() {
    let shape = [50, 96];
    for (scheme, split) in [("int8", 1), ("fp8", 0), ("topk:1", 1)] {
        let mut run = Run::new(2, &shape, scheme, Some(split));
        let counts = collectives(&run.sharded.graph);
        assert!(!counts.contains_key("reduce_scatter"), "{counts:?}");
        if scheme != "topk:1" {
            assert_eq!(counts, BTreeMap::from([("all_to_all".to_owned(), 2)]));
        }
        let given = gradients(2, &shape);
        let (found, sum) = (run.step(&given), exact(&given));
        let slices: Vec<&[f64]> = given.iter().map(Vec::as_slice).collect();
        let bound = if scheme == "topk:1" { 1e-9 } else { bound(scheme, &slices, &sum) };
        let worst = furthest(&found, &sum);
        assert!(worst <= bound, "{scheme}: off by {worst}, bound {bound}");
    }
}

#[test]
fn all_of_the_largest_are_all() {
    let (ranks, shape) = (3, [97, 64]);
    let mut run = Run::new(ranks, &shape, "topk:1", None);
    let given = gradients(ranks, &shape);
    let sum = exact(&given);
    // Sums of f32 in the order of ranks.
    let within = 2.0 * DType::F32.epsilon() * ranks as f64 * largest(&sum);
    for _ in 0..2 {
        let found = run.step(&given);
        assert!(found.iter().zip(&sum).all(|(a, b)| (a - b).abs() <= within));
        let errors = run.state("compression.0.error");
        assert!(errors.iter().flatten().all(|error| *error == 0.0), "nothing is left");
    }
}

/// A matrix of rank 1.
fn outer(rows: usize, columns: usize, seed: u64) -> Vec<f64> {
    let draw = |name: &str, n: usize| {
        Init::Normal { std: 1.0, seed }.tensor(name, &TensorType::new(DType::F32, [n])).to_f64()
    };
    let (u, v) = (draw("u", rows), draw("v", columns));
    u.iter().flat_map(|u| v.iter().map(move |v| u * v)).collect()
}

/// With more columns than the matrix has dimensions, the others are 0 and no noise.
#[test]
fn a_matrix_of_low_rank_passes_whole() {
    let shape = [64, 96];
    let given = [outer(64, 96, 1), outer(64, 96, 2)];
    for (scheme, scale) in [("powersgd:2", 1.0), ("powersgd:5", 1.0), ("powersgd:5", 1e-25)] {
        let given = given.clone().map(|g| g.iter().map(|x| x * scale).collect::<Vec<f64>>());
        let mut run = Run::new(2, &shape, scheme, None);
        for step in 0..3 {
            let (found, sum) = (run.step(&given), exact(&given));
            let share = off(&found, &sum) / norm(sum);
            // f32 has seven digits, and the columns of P are some hundred times nearer to each
            // other than they are long.
            assert!(share < 1e-4, "{scheme}, step {step}: off by {share}");
        }
    }
}

#[test]
fn zeros_stay_zeros_and_gradients_pass_after_them() {
    let shape = [64, 96];
    for scheme in SCHEMES {
        let mut run = Run::new(2, &shape, scheme, None);
        let zeros = vec![vec![0.0; 64 * 96]; 2];
        for _ in 0..2 {
            assert!(run.step(&zeros).iter().all(|x| *x == 0.0), "{scheme}");
        }
        let given = [outer(64, 96, 1), outer(64, 96, 2)];
        let share = off(&run.step(&given), &exact(&given)) / norm(exact(&given));
        assert!(share < 0.7, "{scheme}: off by {share} of the sum");
    }
}

/// Scaling of the loss and checks of gradients rely on it.
#[test]
fn what_is_not_finite_is_seen_by_all_and_kept_by_none() {
    let (shape, at) = ([64, 96], 1234);
    for scheme in SCHEMES {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut run = Run::new(2, &shape, scheme, None);
            let fine = gradients(2, &shape);
            run.step(&fine);
            let mut given = fine.clone();
            given[1][at] = bad;
            assert!(!run.step(&given)[at].is_finite(), "{scheme} of {bad}");
            let states = run.states.iter().flat_map(|states| states.values());
            assert!(states.flat_map(Array::to_f64).all(f64::is_finite), "{scheme} of {bad}");
            assert!(run.step(&fine).iter().all(|x| x.is_finite()), "{scheme} after {bad}");
        }
    }
}

/// Nothing is lost: results and errors are all that was given. So the mean result converges.
#[test]
fn what_is_not_sent_comes_later() {
    let shape = [64, 64];
    for scheme in ["topk:0.2", "powersgd:8"] {
        let mut run = Run::new(2, &shape, scheme, None);
        let given = gradients(2, &shape);
        let sum = exact(&given);
        let mut total = vec![0.0; sum.len()];
        let mut means = vec![];
        for step in 1..=64 {
            total.iter_mut().zip(run.step(&given)).for_each(|(total, x)| *total += x);
            if step == 16 || step == 64 {
                let mean: Vec<f64> = total.iter().map(|x| x / f64::from(step)).collect();
                means.push(off(&mean, &sum) / norm(sum.clone()));
                let errors = exact(&run.state("compression.0.error"));
                let all: Vec<f64> = total.iter().zip(&errors).map(|(a, b)| a + b).collect();
                let expected: Vec<f64> = sum.iter().map(|x| x * f64::from(step)).collect();
                let share = off(&all, &expected) / norm(expected);
                assert!(share < 1e-5, "{scheme}: {share} of the gradients is lost");
            }
        }
        assert!(means[0] > 0.01, "{scheme} leaves a part for later: {means:?}");
        assert!(means[1] < means[0] / 2.0 && means[1] < 0.2, "{scheme}: {means:?}");
    }
}

#[test]
fn small_sums_and_those_of_other_axes_stay() {
    let b = Builder::new("sums");
    let shapes: [(&str, &[usize]); 4] =
        [("bias", &[100]), ("vector", &[8192]), ("matrix", &[64, 96]), ("count", &[])];
    for (name, shape) in shapes {
        b.output(&format!("{name}.sum"), sum_of(&b, name, (2, shape)));
    }
    let graph = b.finish().unwrap();
    let compressed = |axis: &str, scheme: &str| {
        let rows = graph.inputs().iter().map(|port| {
            let rank = graph.ty(port.value).rank();
            (port.value, Sharding::whole(rank).and_split(0, &axis.into()))
        });
        let sharded = shard(&graph, &Mesh::new([(axis, 2)]), &rows.collect()).unwrap();
        compress_gradients(sharded, &data(), scheme.parse().unwrap()).unwrap()
    };
    let reasons = |sharded: &Sharded| -> Vec<String> {
        let reason = |note: &Note| match note {
            Note::Declined { what, reason, .. } => format!("{what}: {reason}"),
            other => panic!("{other:?}"),
        };
        sharded.notes.iter().map(reason).collect()
    };
    let all_reduces = |sharded: &Sharded| collectives(&sharded.graph)["all_reduce"];
    let int8 = compressed("data", "int8");
    assert_eq!(all_reduces(&int8), 2, "a bias and a count");
    assert_eq!(reasons(&int8), ["compression of [100]: it has fewer than 4096 elements"]);
    let low_rank = compressed("data", "powersgd:4");
    assert_eq!(all_reduces(&low_rank), 3 + 2, "a vector too, and two of factors");
    assert_eq!(reasons(&low_rank).len(), 2);
    let other = compressed("tensor", "int8");
    assert_eq!(collectives(&other.graph), BTreeMap::from([("all_reduce".to_owned(), 4)]));
}

/// Errors differ from rank to rank of the mesh, and factors along the other axes.
#[test]
fn states_are_those_of_all_ranks_of_a_mesh() {
    let shape = [64, 128];
    let graph = sum(2, &shape);
    let mesh = Mesh::new([("tensor", 2), ("data", 2)]);
    let split = Sharding::whole(3).and_split(0, &data()).and_split(1, &"tensor".into());
    let shardings = BTreeMap::from([(graph.inputs()[0].value, split.clone())]);
    let sharded = shard(&graph, &mesh, &shardings).unwrap();
    let scheme = Compression::PowerSgd { rank: 2 };
    let sharded = compress_gradients(sharded, &data(), scheme).unwrap();
    let whole = |at: usize| {
        let state = &sharded.graph.states()[at];
        let own = sharded.graph.ty(state.value);
        (state.name.as_str(), sharded.whole_type(own, &sharded.states[at]).sizes())
    };
    assert_eq!(whole(0), ("compression.0.error", vec![2, 2, 32, 128]));
    assert_eq!(whole(1), ("compression.0.q", vec![2, 2, 128]));
    let given = [outer(64, 128, 1), outer(64, 128, 2)];
    let samples: Vec<f64> = given.iter().flat_map(|g| in_samples(g)).collect();
    let all = Tensor::from_f64(DType::F32, [&[2 * ROWS], &shape[..]].concat(), &samples);
    let of_rank = |rank| vec![Array::from(&sharded.part(&all, &split, rank))];
    let inputs: Vec<_> = (0..4).map(of_rank).collect();
    let found = eval_ranks(&sharded.graph, &mesh, &inputs, &mut vec![States::new(); 4]);
    let parts: Vec<Tensor> = found.iter().map(|of_rank| of_rank[0].to_tensor()).collect();
    let found = sharded.join(&parts, &sharded.outputs[0]).to_f64();
    let sum = exact(&given);
    assert!(off(&found, &sum) < 1e-4 * norm(sum.clone()), "each part has rank 2");
}
