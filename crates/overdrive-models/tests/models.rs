//! The models are what the design says: parameters, shapes, work, and outputs that obey the
//! formula.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::{Array, DType, Graph, Tensor, TensorType, verify};
use overdrive_models::{BuiltInModel, MODELS, find};
use overdrive_passes::bind;
use std::collections::BTreeMap;

fn build(name: &str) -> Graph {
    let model: &BuiltInModel = find(name).unwrap_or_else(|e| panic!("{e}"));
    (model.build)().unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The graph with its batch bound.
fn bound(name: &str, batch: usize) -> Graph {
    bind(&build(name), &[("batch".to_owned(), batch)].into())
        .unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn parameters(graph: &Graph) -> usize {
    graph.states().iter().map(|s| graph.ty(s.value).elements()).sum()
}

/// Weights and biases of a block of width D: 4 D x D and 2 of D x 4D, their biases, two norms.
fn block(d: usize) -> usize {
    12 * d * d + 13 * d
}

#[test]
fn every_model_verifies_binds_and_reads_back() {
    for model in MODELS {
        let graph = build(model.name);
        assert_eq!(graph.name(), model.name);
        verify(&graph).unwrap();
        assert_eq!(graph.inputs().iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["x"]);
        assert_eq!(graph.outputs().iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["y"]);
        assert!(!graph.is_bound() && bound(model.name, 3).is_bound());
        assert_eq!(graph.to_string().parse::<Graph>().unwrap(), graph);
        let is_ids = !graph.ty(graph.inputs()[0].value).dtype.is_float();
        assert_eq!(is_ids, model.vocabulary.is_some(), "{}", model.name);
    }
}

#[test]
fn parameter_counts_follow_from_the_sizes() {
    let gpt =
        |v: usize, t: usize, d: usize, layers: usize| 2 * v * d + t * d + layers * block(d) + 2 * d;
    let llama = |[v, d, layers, keys, hidden]: [usize; 5], tables: usize| {
        tables * v * d + layers * (2 * d * (d + keys) + 3 * d * hidden + 2 * d) + d
    };
    for (name, count) in [
        ("mlp", 512 * 2048 + 2048 + 2048 * 2048 + 2048 + 2048 * 10 + 10),
        ("conv", 64 * 3 * 9 + 4 * 64 + 128 * 64 * 9 + 4 * 128 + 128 * 10 + 10),
        ("transformer", 6 * block(512)),
        ("quick-inference", block(256)),
        ("quick-memory", block(512)),
        ("gpt-125m", gpt(50_304, 1024, 768, 12)),
        ("gpt-350m", gpt(50_304, 1024, 1024, 24)),
        ("gpt-1.3b", gpt(50_304, 1024, 2048, 24)),
        ("gpt-6.7b", gpt(50_304, 1024, 4096, 32)),
        ("llama-135m", llama([49_152, 576, 30, 3 * 64, 1536], 1)),
        ("llama-1.1b", llama([32_000, 2048, 22, 4 * 64, 5632], 2)),
        ("digits-mlp", 64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10),
        ("digits-conv", 16 * 9 + 16 + 32 * 16 * 9 + 32 + 32 * 32 * 9 + 32 + 512 * 10 + 10),
        ("text-transformer", gpt(256, 128, 128, 5)),
    ] {
        assert_eq!(parameters(&build(name)), count, "{name}");
    }
    assert_eq!(MODELS.len(), 14);
    // The figures that the names promise; the untied head of gpt-125m adds 50,304 x 768 to GPT-2's
    // 124 M.
    assert_eq!(parameters(&build("gpt-125m")), 163_109_376);
    assert_eq!(parameters(&build("gpt-6.7b")) / 100_000_000, 68);
    assert_eq!(parameters(&build("text-transformer")) / 100_000, 10);
    // As SmolLM-135M and TinyLlama are published.
    assert_eq!(parameters(&build("llama-135m")), 134_515_008);
    assert_eq!(parameters(&build("llama-1.1b")), 1_100_048_384);
}

#[test]
fn shapes_follow_the_batch() {
    for (name, batch, x, y) in [
        ("mlp", 32, "f32[32, 512]", "f32[32, 10]"),
        ("conv", 32, "f32[32, 3, 64, 64]", "f32[32, 10]"),
        ("transformer", 8, "f32[8, 128, 512]", "f32[8, 128, 512]"),
        ("quick-inference", 2, "f32[2, 128, 256]", "f32[2, 128, 256]"),
        ("quick-memory", 4, "f32[4, 256, 512]", "f32[4, 256, 512]"),
        ("gpt-125m", 3, "i32[3, 1024]", "f32[3, 1024, 50304]"),
        ("llama-135m", 2, "i32[2, 2048]", "f32[2, 2048, 49152]"),
        ("digits-conv", 0, "f32[0, 1, 8, 8]", "f32[0, 10]"),
        ("text-transformer", 5, "i32[5, 128]", "f32[5, 128, 256]"),
    ] {
        let graph = bound(name, batch);
        let ty = |value| graph.ty(value).to_string();
        assert_eq!(
            (ty(graph.inputs()[0].value).as_str(), ty(graph.outputs()[0].value).as_str()),
            (x, y),
            "{name}"
        );
    }
}

#[test]
fn work_is_that_of_the_closed_formulas() {
    let (b, t, d, layers, v) = (2u64, 1024u64, 768u64, 12u64, 50_304u64);
    let graph = bound("gpt-125m", b as usize);
    let linear: u64 = graph
        .nodes()
        .iter()
        .filter(|n| n.op.name() == "linear")
        .map(|n| graph.node_cost(n).flops)
        .sum();
    // Two FLOPs a weight and token, one a bias and token.
    assert_eq!(linear, b * t * (2 * (layers * 12 * d * d + v * d) + layers * 9 * d));
    let attention = layers * 4 * b * d * (t * (t + 1) / 2);
    let total = graph.cost().flops;
    let products = linear + attention;
    assert!(total > products && total < products + products / 20, "{total} against {products}");

    let conv = bound("conv", 2).cost().flops;
    let products = 2 * 2 * (64 * 64 * 64 * 27 + 128 * 32 * 32 * 576 + 1280);
    assert!(conv > products && conv < products + products / 20, "{conv} against {products}");
}

fn normal(shape: &[usize]) -> Array {
    let count = shape.iter().product();
    Array::float(DType::F32, shape, overdrive_ir::eval::philox::normals(7, 1).take(count).collect())
}

fn output(graph: &Graph, x: &Array) -> Vec<f64> {
    eval(graph, std::slice::from_ref(x), &mut States::new())[0].to_f64()
}

#[test]
fn digits_mlp_computes_its_formula() {
    let graph = bound("digits-mlp", 3);
    let x = normal(&[3, 64]);
    let state: BTreeMap<&str, Tensor> = graph
        .states()
        .iter()
        .map(|s| (s.name.as_str(), s.init.tensor(&s.name, graph.ty(s.value))))
        .collect();
    let mut h = x.to_f64();
    for (layer, inputs, outputs) in [(1, 64, 128), (2, 128, 128), (3, 128, 10)] {
        let w = state[format!("fc{layer}.weight").as_str()].to_f64();
        let bias = state[format!("fc{layer}.bias").as_str()].to_f64();
        let product = |row: usize, column: usize| -> f64 {
            (0..inputs).map(|i| h[row * inputs + i] * w[i * outputs + column]).sum::<f64>()
                + bias[column]
        };
        let gelu =
            |z: f64| if layer == 3 { z } else { z * 0.5 * (1.0 + libm::erf(z / 2f64.sqrt())) };
        h = (0..3 * outputs).map(|i| gelu(product(i / outputs, i % outputs))).collect();
    }
    for (found, expected) in output(&graph, &x).iter().zip(&h) {
        assert!((found - expected).abs() < 1e-10, "{found} against {expected}");
    }
}

#[test]
fn digits_conv_sees_its_whole_input_and_keeps_images_apart() {
    let x = normal(&[2, 1, 8, 8]);
    let y = output(&bound("digits-conv", 2), &x);
    let mut changed = x.to_f64();
    changed[63] += 1.0;
    let z = output(&bound("digits-conv", 2), &Array::float(DType::F32, &[2, 1, 8, 8], changed));
    assert!(y[..10].iter().zip(&z[..10]).all(|(a, b)| a != b));
    assert_eq!(y[10..], z[10..]);
}

#[test]
fn attention_looks_back_and_never_ahead() {
    let graph = bound("quick-inference", 1);
    let x = normal(&[1, 128, 256]);
    let y = output(&graph, &x);
    let mut changed = x.to_f64();
    changed[64 * 256] += 1.0;
    let z = output(&graph, &Array::float(DType::F32, &[1, 128, 256], changed));
    assert_eq!(y[..64 * 256], z[..64 * 256]);
    for position in 64..128 {
        let row = position * 256..(position + 1) * 256;
        assert!(
            y[row.clone()].iter().zip(&z[row]).any(|(a, b)| (a - b).abs() > 1e-12),
            "position {position}"
        );
    }
}

#[test]
fn a_language_model_reads_ids_in_their_order() {
    let graph = bound("text-transformer", 1);
    let ids = |swap: bool| {
        let mut ids: Vec<i128> = (0..128).map(|i| (i * 37) % 256).collect();
        if swap {
            ids.swap(10, 11);
        }
        Array::int(DType::I32, &[1, 128], ids)
    };
    let (y, z) = (output(&graph, &ids(false)), output(&graph, &ids(true)));
    assert_eq!(y[..10 * 256], z[..10 * 256]);
    assert!(
        y[12 * 256..].iter().zip(&z[12 * 256..]).any(|(a, b)| (a - b).abs() > 1e-9),
        "positions matter"
    );
    // Initial logits are small: the loss of the first step is near that of guessing, ln 256.
    let mean_square = y.iter().map(|v| v * v).sum::<f64>() / y.len() as f64;
    assert!(mean_square > 1e-4 && mean_square < 0.5, "{mean_square}");
}

#[test]
fn the_same_name_gives_the_same_weights() {
    let first = |name: &str| {
        let graph = build(name);
        let state = &graph.states()[0];
        state.init.tensor(&state.name, graph.ty(state.value))
    };
    assert_eq!(first("quick-inference"), first("quick-inference"));
    assert_ne!(
        first("mlp").bytes()[..64],
        first("digits-mlp").bytes()[..64],
        "initial values depend on the sizes"
    );
    let graph = build("quick-inference");
    let value = |name: &str| {
        let state = graph.states().iter().find(|s| s.name == name).expect("the state exists");
        state.init.tensor(name, graph.ty(state.value))
    };
    assert_ne!(value("block0.attention.query.weight"), value("block0.attention.key.weight"));
    assert_eq!(value("block0.norm1.scale").ty(), &TensorType::new(DType::F32, [256usize]));
}

#[test]
fn an_unknown_name_is_answered_with_the_nearest() {
    for (name, nearest) in
        [("tranformer", "transformer"), ("gpt125m", "gpt-125m"), ("digit-mlp", "digits-mlp")]
    {
        let error = find(name).unwrap_err();
        assert_eq!(error.nearest, Some(nearest));
        let message = error.to_string();
        assert!(message.contains(name) && message.contains("quick-memory"), "{message}");
    }
    assert_eq!(find("zzz").unwrap_err().nearest, None);
}

#[test]
fn a_size_that_is_missing_or_misnamed_is_named() {
    let model = build("mlp");
    let missing = bind(&model, &[].into()).unwrap_err().to_string();
    assert!(missing.contains("`batch`") && missing.contains("mlp"), "{missing}");
    let misnamed = [("batch".to_owned(), 2), ("bacth".to_owned(), 2)].into();
    let unknown = bind(&model, &misnamed).unwrap_err().to_string();
    assert!(unknown.contains("`bacth`") && unknown.contains("did you mean `batch`"), "{unknown}");
}
