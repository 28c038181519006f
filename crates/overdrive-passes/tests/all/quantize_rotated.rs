//! Layers whose inputs and weights are rotated have the codes of a graph that was rotated by hand.
//! Blocks fit the inputs of each layer.

use overdrive_ir::eval::{eval_tensors, philox};
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::ops::{Conv2d, Hadamard};
use overdrive_ir::{BlockFormat, Builder, DType, Granularity, Graph, Init, Tensor, TensorType};
use overdrive_passes::{
    Evidence, Quantization, Quantized, Rounding, Scheme, Statistic, declare, observe, quantize,
};
use std::collections::BTreeMap;

const N: usize = 24;
const K: usize = 64;
const ROWS: usize = 128;
const BLOCK: usize = 32;

fn normals(seed: u64, count: usize) -> Vec<f64> {
    philox::normals(seed, 0).take(count).collect()
}

/// A weight `[N, K]` with an outlier in each row.
fn weight() -> Vec<f64> {
    let mut rows = normals(3, N * K);
    rows.chunks_mut(K).enumerate().for_each(|(n, row)| row[n % K] *= 12.0);
    rows
}

/// A layer, of weights and inputs that are rotated here, or not.
fn model(weight: &[f64], rotation: Option<usize>) -> Graph {
    let b = Builder::new("model");
    let x = b.input("x", TensorType::new(DType::F32, [ROWS, K]));
    let x = rotation.map_or(x, |block| x.hadamard(block));
    let value = Tensor::from_f64(DType::F32, [N, K], weight);
    let w = b.state_named("layer.weight", value.ty().clone(), Init::Value(value));
    b.output("y", x.linear(w.t(), None));
    b.finish().unwrap()
}

/// Inputs with a part that all channels share, so that GPTQ has something to make up with.
fn inputs() -> Tensor {
    let (own, shared) = (normals(7, ROWS * K), normals(8, ROWS));
    let values: Vec<f64> = own.iter().enumerate().map(|(i, x)| x + 2.0 * shared[i / K]).collect();
    Tensor::from_f64(DType::F32, [ROWS, K], &values)
}

fn made(graph: &Graph, quantization: &Quantization) -> Quantized {
    let observed = observe(graph, &[Statistic::Gram, Statistic::Drift]).unwrap();
    let mut evidence = Evidence::default();
    evidence.add(&observed, &eval_tensors(&observed, &[inputs()]));
    quantize(graph, quantization, &evidence).unwrap()
}

fn codes(graph: &Graph) -> Vec<f64> {
    let state = graph.states().iter().find(|state| state.name == "layer.weight").unwrap();
    state.init.tensor(&state.name, graph.ty(state.value)).to_f64()
}

/// Squared error of the outputs, relative to those of the float model.
fn error(float: &Graph, graph: &Graph) -> f64 {
    let [expected, found] =
        [float, graph].map(|graph| eval_tensors(graph, &[inputs()])[0].to_f64());
    let squares: f64 = expected.iter().zip(&found).map(|(a, b)| (a - b).powi(2)).sum();
    squares / expected.iter().map(|y| y * y).sum::<f64>()
}

fn meant(rounding: Rounding) -> Quantization {
    let format = BlockFormat::plain(DType::I4, Granularity::Group(BLOCK));
    Quantization::new(format, Activations::Float).rounded(rounding)
}

#[test]
fn codes_are_those_of_a_graph_that_was_rotated_before() {
    let mut rotated = weight();
    Hadamard { block: BLOCK }.transform(&mut rotated);
    let (float, by_hand) = (model(&weight(), None), model(&rotated, Some(BLOCK)));
    assert!(error(&float, &by_hand) < 1e-10);
    for rounding in [Rounding::Nearest, Rounding::Gptq] {
        let expected = made(&by_hand, &meant(rounding));
        let found = made(&float, &meant(rounding).rotated(Some(BLOCK)));
        let both = [&found, &expected].map(|made| codes(&made.graph));
        let others = both[0].iter().zip(&both[1]).filter(|(a, b)| a != b).count();
        // Sums of rotated inputs are those of inputs, rotated: but for the last bits.
        assert!(others <= N * K / 200, "{rounding:?}: {others} codes differ");
        let [lost, known] = [found, expected].map(|made| (made.layers[0].weight_error, made.graph));
        assert!((lost.0 - known.0).abs() < 1e-3, "{rounding:?}: {} and {}", lost.0, known.0);
        let [turned, plain] = [lost.1, made(&float, &meant(rounding)).graph];
        let [turned, plain] = [&turned, &plain].map(|graph| error(&float, graph));
        assert!(turned < 0.5 * plain, "{rounding:?}: rotated errs by {turned}, else by {plain}");
    }
}

#[test]
fn a_declared_graph_is_that_of_its_codes() {
    let (float, quantization) = (model(&weight(), None), meant(Rounding::Nearest));
    let made = made(&float, &quantization.rotated(Some(BLOCK)));
    let schemes: BTreeMap<String, Scheme> =
        made.layers.iter().map(|layer| (layer.name.clone(), layer.scheme.unwrap())).collect();
    let declared = declare(&float, &schemes).unwrap();
    let empty = |graph: Graph| graph.with_initial_values(|_, _| Init::ZEROS);
    assert_eq!(empty(declared), empty(made.graph));
    let scheme = serde_json::to_value(schemes["layer"]).unwrap();
    assert_eq!(scheme["rotation"], BLOCK);
    let plain = serde_json::to_value(meant(Rounding::Gptq).scheme).unwrap();
    assert_eq!(plain.get("rotation"), None, "folders without rotations stay as they were");
}

#[test]
fn blocks_fit_the_inputs_of_each_layer() {
    let b = Builder::new("layers");
    let mut outputs = Vec::new();
    for k in [96usize, 48, 45] {
        let x = b.input(&format!("x{k}"), TensorType::new(DType::F32, [2usize, k]));
        let ty = TensorType::new(DType::F32, [k, 8]);
        let name = format!("of{k}.weight");
        outputs.push(x.linear(b.state_named(&name, ty, Init::Normal { std: 1.0, seed: 1 }), None));
    }
    let x = b.input("x", TensorType::new(DType::F32, [1usize, 32, 4, 4]));
    let ty = TensorType::new(DType::F32, [8usize, 32, 1, 1]);
    let w = b.state_named("conv.weight", ty, Init::Normal { std: 1.0, seed: 1 });
    outputs.push(x.conv2d(w, None, Conv2d::new(1, 0)));
    outputs.iter().enumerate().for_each(|(i, y)| b.output(&format!("y{i}"), *y));
    let graph = b.finish().unwrap();
    let format = BlockFormat::plain(DType::I8, Granularity::Channel);
    let quantization = Quantization::new(format, Activations::Float).rotated(Some(32));
    let made = quantize(&graph, &quantization, &Evidence::default()).unwrap();
    let of = |name: &str| {
        let layer = made.layers.iter().find(|layer| layer.name == name).unwrap();
        let said = made.simplified.iter().find(|remark| remark.layer == name);
        (layer.scheme.unwrap().rotation, said.map(|remark| remark.reason.as_str()))
    };
    assert_eq!(of("of96"), (Some(32), None));
    let smaller = "rotated in blocks of 16: 32 do not divide its 48 inputs";
    assert_eq!(of("of48"), (Some(16), Some(smaller)));
    assert_eq!(of("of45"), (None, Some("not rotated: its 45 inputs have no blocks")));
    let of_conv = "a rotation turns the inputs of linear layers only: rounded as it was";
    assert_eq!(of("conv"), (None, Some(of_conv)));
    let odd = Quantization::new(format, Activations::Float).rotated(Some(24));
    let skipped = quantize(&graph, &odd, &Evidence::default()).unwrap().skipped;
    assert!(skipped.iter().any(|s| s.layer == "of96" && s.reason.contains("power of two")));
    // No calibration has seen the range of rotated inputs.
    let fixed = Quantization::new(format, Activations::Static(DType::I8)).rotated(Some(32));
    let made = quantize(
        &graph,
        &fixed.only(&["of96"], &["of96", "of48", "of45", "conv"]),
        &Evidence::default(),
    );
    let skipped = made.unwrap().skipped;
    assert!(skipped.iter().any(|s| s.layer == "of96" && s.reason.contains("not observed")));
}
