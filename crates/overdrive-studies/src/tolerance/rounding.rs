//! Right answers in bf16 and f32 pass whatever the order of their sums, and a wrong tile, key or
//! scale does not. This holds for rows that differ in size, and behind many layers.

use super::tests::{damaged, outputs};
use super::*;
use crate::Workload;
use crate::referee::Referee;
use overdrive_bench::deviation::Deviation;
use overdrive_cpu::CpuBackend;
use overdrive_ir::ops::attention::Attention;
use overdrive_ir::{Backend, Builder, Mode, State, Tuning};
use overdrive_passes::{Recipe, bind, precision};

/// Causal attention: heads, keys, width of a head.
const SHAPE: [usize; 3] = [2, 1024, 16];
/// Keys that a kernel takes at once.
const BLOCK: usize = 64;

fn bf16(x: f64) -> f64 {
    DType::BF16.round(x, overdrive_ir::Overflow::Ieee)
}

/// Faults of an attention kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    /// The last blocks of keys first: as right.
    Backwards,
    /// One key is never seen.
    DroppedKey,
    /// One tile of values is read a block too early.
    WrongTile,
    /// The scale of scores is 5 % off.
    WrongScale,
    /// A row sees the key after its own.
    MaskOffByOne,
}

/// A kernel in bf16: blocks of keys against a running maximum, weights rounded before they meet the
/// values, sums in f32.
fn kernel(inputs: &[Tensor], fault: Fault) -> Vec<f64> {
    let [heads, length, width] = SHAPE;
    let [q, k, v] = [0, 1, 2].map(|i| inputs[i].to_f32());
    let scale = if fault == Fault::WrongScale { 1.05 } else { 1.0 } / (width as f32).sqrt();
    let mut found = Vec::with_capacity(heads * length * width);
    for (head, row) in (0..heads).flat_map(|head| (0..length).map(move |row| (head, row))) {
        let at = |key: usize| (head * length + key) * width;
        let seen = if fault == Fault::MaskOffByOne { (row + 2).min(length) } else { row + 1 };
        let mut blocks: Vec<usize> = (0..seen).step_by(BLOCK).collect();
        if fault == Fault::Backwards {
            blocks.reverse();
        }
        let (mut max, mut sum, mut acc) = (f32::NEG_INFINITY, 0f32, vec![0f32; width]);
        for start in blocks {
            let keys: Vec<usize> = (start..seen.min(start + BLOCK)).collect();
            let keys = keys
                .into_iter()
                .filter(|&key| fault != Fault::DroppedKey || key != 40 || row == 40);
            let keys: Vec<usize> = keys.collect();
            let dot = |key: usize| {
                (0..width).map(|d| q[at(row) + d] * k[at(key) + d]).sum::<f32>() * scale
            };
            let scores: Vec<f32> = keys.iter().map(|&key| dot(key)).collect();
            let new = scores.iter().copied().fold(max, f32::max);
            let shrink = (max - new).exp();
            sum *= shrink;
            acc.iter_mut().for_each(|x| *x *= shrink);
            for (&key, score) in keys.iter().zip(&scores) {
                let weight = (score - new).exp();
                sum += weight;
                let rounded = bf16(f64::from(weight)) as f32;
                let is_wrong = fault == Fault::WrongTile
                    && head == 1
                    && row / BLOCK == 9
                    && start == 8 * BLOCK;
                let from = if is_wrong { key - BLOCK } else { key };
                acc.iter_mut().enumerate().for_each(|(d, x)| *x += rounded * v[at(from) + d]);
            }
            max = new;
        }
        found.extend(acc.iter().map(|x| bf16(f64::from(x / sum))));
    }
    found
}

fn causal() -> Graph {
    let [heads, length, width] = SHAPE;
    let b = Builder::new("attention");
    let [q, k, v] = ["q", "k", "v"]
        .map(|name| b.input(name, TensorType::new(DType::BF16, [1, heads, length, width])));
    let [y, _] = q.attention(k, v, Attention::CAUSAL);
    b.output("y", y);
    b.finish().unwrap()
}

#[test]
fn rows_of_causal_attention_have_each_their_own_scale() {
    let (graph, backend) = (causal(), CpuBackend::new(Some(1)).unwrap());
    let workload = Workload::new("attention", [], graph.clone());
    let oracle = workload.judged_by(Referee::host(&backend));
    let limit = tolerance(DType::BF16, &graph, (&oracle, 0)).unwrap();
    let inputs = oracle.inputs(0);
    let share = |fault| {
        oracle.compare_values(0, &[kernel(&inputs, fault)], limit).unwrap().share_of_tolerance
    };
    for right in [Fault::None, Fault::Backwards] {
        assert!((0.1..0.8).contains(&share(right)), "{right:?}: {}", share(right));
    }
    for wrong in [Fault::DroppedKey, Fault::WrongTile, Fault::WrongScale, Fault::MaskOffByOne] {
        assert!(share(wrong) > 1.0, "{wrong:?}: {}", share(wrong));
    }
    // One scale for all outputs: the right kernel seems many times worse in rows of few keys. The
    // error grows with the root of the length, past 1 at 4,096 keys.
    let expected = oracle.expected(0).unwrap();
    let one = Tolerance::of_elements(0.0, 8.0 * DType::BF16.epsilon() * typical_size(&expected));
    let found = kernel(&inputs, Fault::None);
    let of_rows = |rows: std::ops::Range<usize>| {
        let part = rows.start * SHAPE[2]..rows.end * SHAPE[2];
        Deviation::between(&found[part.clone()], &expected[0][part], one)
            .unwrap()
            .share_of_tolerance
    };
    let (early, late) = (of_rows(0..64), of_rows(SHAPE[1] - 64..SHAPE[1]));
    assert!(early > 5.0 * late, "{early} against {late}");
}

/// Outputs of a graph on the processor in bf16.
fn in_bf16(backend: &CpuBackend, graph: &Graph, inputs: &[Tensor]) -> Vec<f64> {
    let graph = precision(graph, &Recipe { contractions: DType::BF16 }).unwrap();
    let mut session =
        backend.compile(&graph, Mode::Compile, &Tuning::default()).unwrap().session().unwrap();
    let mut state = State::initial(&graph, backend).unwrap();
    let inputs: Vec<_> = inputs.iter().map(|t| backend.upload(t).unwrap()).collect();
    let mut outputs = vec![backend.output(graph.ty(graph.outputs()[0].value)).unwrap()];
    session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
    backend.download(&outputs[0]).unwrap().to_f64()
}

#[test]
fn a_wrong_tile_or_scale_is_a_fault_behind_many_layers() {
    let tile = |values: &mut Vec<f64>| {
        let part = values.len() / 8;
        values[..part].fill(0.0);
    };
    let scale = |values: &mut Vec<f64>| values.iter_mut().for_each(|x| *x *= 1.1);
    let backend = CpuBackend::new(Some(1)).unwrap();
    for (name, vocabulary) in [("digits-mlp", 2), ("digits-conv", 2), ("text-transformer", 256)] {
        let template = (overdrive_models::find(name).unwrap().build)().unwrap();
        let graph = bind(&template, &[("batch".to_owned(), 2)].into()).unwrap();
        let workload = Workload { vocabulary, ..Workload::new(name, [], graph.clone()) };
        let oracle = workload.judged_by(Referee::host(&backend));
        let inputs = oracle.inputs(0);
        let share = |dtype, found: Vec<f64>| {
            let limit = tolerance(dtype, &graph, (&oracle, 0)).unwrap();
            oracle.compare_values(0, &[found], limit).unwrap().share_of_tolerance
        };
        let right = [
            share(DType::F32, outputs(&backend, &graph, &inputs)),
            share(DType::BF16, in_bf16(&backend, &graph, &inputs)),
        ];
        assert!(right.iter().all(|share| *share < 0.8), "{name}: {right:?}");
        // The largest weights are those of products; half of them come after the middle one.
        let elements = |state: &overdrive_ir::StateDecl| graph.ty(state.value).elements();
        let largest = graph.states().iter().map(elements).max();
        let weights = graph.states().iter().filter(|state| Some(elements(state)) == largest);
        let weights: Vec<&str> = weights.map(|state| state.name.as_str()).collect();
        let middle = weights[weights.len() / 2];
        for wrong in [damaged(&graph, middle, &tile), damaged(&graph, middle, &scale)] {
            let found = [
                share(DType::F32, outputs(&backend, &wrong, &inputs)),
                share(DType::BF16, in_bf16(&backend, &wrong, &inputs)),
            ];
            assert!(found.iter().all(|share| *share > 1.0), "{name}, `{middle}`: {found:?}");
        }
    }
}

#[test]
fn a_reference_that_is_not_finite_is_said_to_be_one() {
    let b = Builder::new("logarithm");
    let x = b.input("x", TensorType::new(DType::F32, [4usize, 8]));
    b.output("y", x.log());
    let (graph, backend) = (b.finish().unwrap(), CpuBackend::new(Some(1)).unwrap());
    let workload = Workload::new("logarithm", [], graph.clone());
    let oracle = workload.judged_by(Referee::host(&backend));
    let limit = tolerance(DType::F32, &graph, (&oracle, 0)).unwrap();
    let found = outputs(&backend, &graph, &oracle.inputs(0));
    let failure = oracle.compare_values(0, &[found], limit).unwrap_err();
    assert_eq!(failure.kind, overdrive_bench::failure::FailureKind::Skipped);
    for word in ["reference itself is not finite", "--inputs"] {
        assert!(failure.reason.contains(word), "{failure}");
    }
}
