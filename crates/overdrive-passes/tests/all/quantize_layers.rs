//! Weights that a graph reads transposed, sliced or shared: which layers they are, and that codes
//! mean what the weights meant.

use overdrive_ir::eval::eval_tensors;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{
    BlockFormat, Builder, DType, Expr, Granularity, Graph, Init, Tensor, TensorType,
};
use overdrive_passes::{
    Additions, Evidence, KAxis, MODES, Quantization, QuantizationMode, Scheme, Statistic, declare,
    layers, observe, quantize,
};
use std::collections::BTreeMap;

const K: usize = 32;
const W: usize = 64;

fn weight<'b>(b: &'b Builder, name: &str, sizes: [usize; 2]) -> Expr<'b> {
    b.state_named(name, TensorType::new(DType::F32, sizes), Init::Normal { std: 0.3, seed: 7 })
}

/// `[out, in]` as published checkpoints have it, `[in, out]` fused of three, and a head that is the
/// table of rows.
fn model() -> Graph {
    let b = Builder::new("model");
    let x = b.input("x", TensorType::new(DType::F32, [3usize, K]));
    let plain = x.linear(weight(&b, "h.0.up.weight", [W, K]).t(), None);
    let fused = weight(&b, "h.0.qkv.weight", [W, 3 * K]);
    let bias = weight(&b, "h.0.qkv.bias", [3, K]).reshape([3 * K]);
    let part = |i: usize| {
        let w = fused.slice_axis(1, i * K, (i + 1) * K);
        plain.linear(w, Some(bias.slice_axis(0, i * K, (i + 1) * K)))
    };
    let [q, k, v] = [0, 1, 2].map(part);
    let table = weight(&b, "table.weight", [40, K]);
    let rows = table.slice_axis(0, 0, 3);
    b.output("y", (q * k + v + rows).linear(table.t(), None));
    b.finish().unwrap()
}

fn input() -> Tensor {
    let values: Vec<f64> = (0..3 * K).map(|i| ((i * 7919) % 97) as f64 / 50.0 - 1.0).collect();
    Tensor::from_f64(DType::F32, [3, K], &values)
}

#[test]
fn weights_are_found_behind_transposes_and_slices() {
    let graph = model();
    let (found, skipped) = layers(&graph).unwrap();
    let named: Vec<(&str, [usize; 2], KAxis, usize)> =
        found.iter().map(|l| (l.name.as_str(), l.shape, l.held.order, l.parts.len())).collect();
    let expected =
        [("h.0.up", [W, K], KAxis::OutputMajor, 1), ("h.0.qkv", [3 * K, W], KAxis::InputMajor, 3)];
    assert_eq!(named, expected);
    assert_eq!(found[1].parts[2].rows, 2 * K..3 * K);
    assert_eq!(skipped.len(), 1, "{skipped:?}");
    assert!(skipped[0].layer == "table" && skipped[0].reason.contains("read or updated elsewhere"));
    // Rows are of the weight, whatever the order of the state.
    let state = graph.states().iter().find(|s| s.name == "h.0.qkv.weight").unwrap();
    let stored = state.init.tensor(&state.name, graph.ty(state.value)).to_f64();
    assert_eq!(found[1].rows(&graph)[5 * W + 3], stored[3 * 3 * K + 5]);
}

#[test]
fn a_product_of_two_activations_is_named_by_what_it_gives() {
    let b = Builder::new("products");
    let x = b.input("x", TensorType::new(DType::F32, [4usize, 4]));
    b.output("y", x.linear(x, None));
    let (_, skipped) = layers(&b.finish().unwrap()).unwrap();
    assert_eq!(skipped[0].layer, "the product that gives `y`");
}

#[test]
fn every_mode_keeps_what_such_a_model_means() {
    let graph = model();
    let observed = observe(&graph, &Statistic::ALL).unwrap();
    let mut evidence = Evidence::default();
    evidence.add(&observed, &eval_tensors(&observed, &[input()]));
    let float = eval_tensors(&graph, &[input()])[0].to_f64();
    let size: f64 = float.iter().map(|x| x * x).sum();
    for mode in MODES.iter().filter(|mode| !mode.is_trained()) {
        let made = quantize(&graph, &mode.quantization(), &evidence).unwrap();
        let scheme = mode.quantization().scheme;
        // In 16 bits every matrix is a weight: the table and the biases too.
        let expected = match scheme.half() {
            Some(_) => 4,
            None if scheme.weights.element == DType::F32 => 0,
            None => 2,
        };
        assert_eq!(made.layers.len(), expected, "{}: {:?}", mode.name, made.skipped);
        let found = eval_tensors(&made.graph, &[input()])[0].to_f64();
        let error: f64 = float.iter().zip(&found).map(|(a, b)| (a - b).powi(2)).sum();
        assert!((error / size).sqrt() < 0.5, "{}: {}", mode.name, (error / size).sqrt());
        // The same graph, before there are codes.
        let schemes: BTreeMap<String, Scheme> =
            made.layers.iter().map(|layer| (layer.name.clone(), layer.scheme.unwrap())).collect();
        let declared = declare(&graph, &schemes).unwrap();
        let begin: BTreeMap<&str, &Init> =
            made.graph.states().iter().map(|s| (s.name.as_str(), &s.init)).collect();
        assert_eq!(
            declared.with_initial_values(|name, _| begin[name].clone()),
            made.graph,
            "{}",
            mode.name
        );
    }
}

#[test]
fn groups_of_published_models_become_as_small_as_divides_the_inputs() {
    let b = Builder::new("odd");
    let x = b.input("x", TensorType::new(DType::F32, [2usize, 160]));
    b.output("y", x.linear(weight(&b, "layer.weight", [8, 160]).t(), None));
    let int4 = Quantization::new(
        BlockFormat::plain(DType::I4, Granularity::Group(128)),
        Activations::Float,
    );
    let graph = b.finish().unwrap();
    let refused = quantize(&graph, &int4, &Evidence::default()).unwrap();
    assert!(refused.skipped[0].reason.contains("multiple of 128"), "{:?}", refused.skipped);
    let int4 = Quantization { additions: Additions::None, ..int4 };
    let made = quantize(&graph, &int4, &Evidence::default()).unwrap();
    assert_eq!(made.layers[0].scheme.unwrap().weights.block, Granularity::Group(32));
    assert!(made.simplified[0].reason.contains("groups of 32: 128 do not divide its 160 inputs"));
}

#[test]
fn a_declaration_of_what_is_no_layer_is_refused() {
    let schemes = |name: &str| {
        let scheme = QuantizationMode::find("int8-dynamic").unwrap().quantization().scheme;
        BTreeMap::from([(name.to_owned(), scheme)])
    };
    let error = declare(&model(), &schemes("h.9.up")).unwrap_err().to_string();
    assert!(error.contains("h.9.up") && error.contains("no such layer"), "{error}");
    let error = declare(&model(), &schemes("table")).unwrap_err().to_string();
    assert!(error.contains("read or updated elsewhere"), "{error}");
}
