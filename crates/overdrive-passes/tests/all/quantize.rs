//! Quantization against the float graph it came from: what changes, what stays, which method errs
//! less, what is refused.

use overdrive_ir::Granularity::{Channel, Group};
use overdrive_ir::eval::{eval_tensors, philox};
use overdrive_ir::ops::Conv2d;
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{BlockFormat, Builder, DType, Dim, Graph, Init, Tensor, TensorType};
use overdrive_passes::{
    Evidence, Held, KAxis, Layer, MODES, Preparation, Pruning, Quantization, Rounding, Statistic,
    awq, bind, compress, equalize, layers, observe, quantize, smooth, sparsify,
};
use std::collections::BTreeMap;

const K: usize = 64;
const N: usize = 24;

/// Two linear layers with a bias and a rectifier; the batch is a name.
fn model() -> Graph {
    let b = Builder::new("model");
    let mut h = b.input("x", TensorType::new(DType::F32, [Dim::from("batch"), K.into()]));
    for (layer, n) in [("first", K), ("second", N)] {
        let _scope = b.scope(layer);
        let init = Init::Normal { std: 0.2, seed: 3 };
        let w = b.state("weight", TensorType::new(DType::F32, [K, n]), init.clone());
        let bias = b.state("bias", TensorType::new(DType::F32, [n]), init);
        h = h.linear(w, Some(bias)).relu();
    }
    b.output("y", h);
    b.finish().unwrap()
}

/// Correlated rows, with a few channels that are ten times as large: what activations look like.
fn rows(seed: u64, count: usize) -> Tensor {
    let mut normal = philox::normals(seed, 1);
    let mut values = Vec::new();
    for _ in 0..count {
        let shared: Vec<f64> = (0..4).map(|_| normal.next().unwrap()).collect();
        let row = (0..K).map(|k| {
            let x = shared[k % 4] + 0.3 * normal.next().unwrap();
            if k % 16 == 5 { 10.0 * x } else { x }
        });
        values.extend(row);
    }
    Tensor::from_f64(DType::F32, [count, K], &values)
}

fn bound(graph: &Graph, batch: usize) -> Graph {
    bind(graph, &BTreeMap::from([("batch".to_owned(), batch)])).unwrap()
}

fn outputs(graph: &Graph, x: &Tensor) -> Vec<f64> {
    let batch = x.ty().sizes()[0];
    eval_tensors(&bound(graph, batch), std::slice::from_ref(x))[0].to_f64()
}

fn calibrated(graph: &Graph) -> Evidence {
    let observed = observe(&bound(graph, 128), &Statistic::ALL).unwrap();
    let mut evidence = Evidence::default();
    for seed in 10..12 {
        let outputs = eval_tensors(&observed, &[rows(seed, 128)]);
        evidence.add(&observed, &outputs);
    }
    evidence
}

/// Error of a graph's outputs on rows that no calibration saw, relative to their size.
fn error(float: &Graph, other: &Graph) -> f64 {
    let x = rows(99, 64);
    let (expected, found) = (outputs(float, &x), outputs(other, &x));
    let squares = |v: &mut dyn Iterator<Item = f64>| v.map(|x| x * x).sum::<f64>();
    let difference = squares(&mut expected.iter().zip(&found).map(|(a, b)| a - b));
    (difference / squares(&mut expected.iter().copied())).sqrt()
}

fn quantized(graph: &Graph, quantization: &Quantization, evidence: &Evidence) -> Graph {
    let quantized = quantize(graph, quantization, evidence).unwrap();
    assert!(quantized.skipped.is_empty(), "{:?}", quantized.skipped);
    assert_eq!(quantized.layers.len(), 2);
    quantized.graph
}

#[test]
fn every_mode_stays_near_the_float_model() {
    let float = model();
    for mode in MODES.iter().filter(|mode| !mode.is_trained()) {
        let evidence = calibrated(&float);
        let quantization = mode.quantization();
        let prepared = match mode.preparation {
            Preparation::None => float.clone(),
            Preparation::Smooth(strength) => smooth(&float, &evidence, strength).unwrap(),
            Preparation::Awq => awq(&float, &evidence, &quantization.scheme.weights).unwrap(),
            Preparation::Equalize => equalize(&float, &evidence, &|_| true).unwrap().0,
            // Loses by itself: judged with the methods of pruning.
            Preparation::Prune(_) => continue,
        };
        // AWQ cuts off single weights too.
        let changes = if mode.preparation == Preparation::Awq { 0.1 } else { 1e-5 };
        assert!(error(&float, &prepared) < changes, "{}: preparation changes nothing", mode.name);
        let evidence = calibrated(&prepared);
        let found = error(&float, &quantized(&prepared, &quantization, &evidence));
        let limit = if quantization.scheme.weights.element.bits() > 4 { 0.08 } else { 0.25 };
        assert!(found > 1e-6 && found < limit, "{}: {found}", mode.name);
    }
}

#[test]
fn gptq_awq_and_hqq_err_less_than_rounding_to_nearest() {
    let float = model();
    let evidence = calibrated(&float);
    let int4 = Quantization::new(BlockFormat::plain(DType::I4, Group(32)), Activations::Float);
    let nearest = error(&float, &quantized(&float, &int4, &evidence));
    for rounding in [Rounding::Gptq, Rounding::Hqq] {
        let found = error(&float, &quantized(&float, &int4.clone().rounded(rounding), &evidence));
        assert!(found < 0.8 * nearest, "{rounding:?} errs by {found}, to nearest by {nearest}");
    }
    let scaled = awq(&float, &evidence, &int4.scheme.weights).unwrap();
    let found = error(&float, &quantized(&scaled, &int4, &evidence));
    assert!(found < 0.8 * nearest, "AWQ errs by {found}, to nearest by {nearest}");
}

#[test]
fn smoothing_helps_where_channels_differ_and_a_range_is_shared() {
    let float = model();
    let evidence = calibrated(&float);
    let int8 =
        Quantization::new(BlockFormat::plain(DType::I8, Channel), Activations::Static(DType::I8));
    let plain = error(&float, &quantized(&float, &int8, &evidence));
    let smoothed = smooth(&float, &evidence, 0.5).unwrap();
    let found = error(&float, &quantized(&smoothed, &int8, &calibrated(&smoothed)));
    assert!(found < 0.8 * plain, "smoothed {found}, plain {plain}");
}

#[test]
fn states_shrink_and_keep_their_names() {
    let float = model();
    let int4 = Quantization::new(BlockFormat::plain(DType::I4, Group(32)), Activations::Float);
    let quantized = quantize(&float, &int4, &Evidence::default()).unwrap();
    let state = |name: &str| {
        let state = quantized.graph.states().iter().find(|s| s.name == name).unwrap();
        quantized.graph.ty(state.value).to_string()
    };
    assert_eq!(state("first.weight"), format!("i4[{K}, {K}]"));
    assert_eq!(state("second.weight_scale"), format!("f32[{N}, 2]"));
    assert_eq!(state("second.bias"), format!("f32[{N}]"));
    assert_eq!(quantized.layers[0].code_bytes, (K * K / 2) as u64);
    assert_eq!(quantized.layers[0].scale_bytes, (K * K / 32 * 4) as u64);
    assert_eq!(layers(&quantized.graph).unwrap().0, vec![], "nothing is left to quantize");
    let again: Graph = quantized.graph.to_string().parse().unwrap();
    assert_eq!(again, quantized.graph, "text keeps a quantized graph");
}

#[test]
fn what_a_layer_cannot_take_is_skipped_with_the_reason() {
    // Blocks of a format have one size, where groups of integers may be smaller.
    let blocks = BlockFormat { block: Group(48), ..BlockFormat::NVFP4 };
    let four_bits = Quantization::new(blocks, Activations::Float);
    let quantized = quantize(&model(), &four_bits, &Evidence::default()).unwrap();
    assert_eq!(quantized.skipped.len(), 2);
    assert!(quantized.skipped[0].reason.contains("multiple of 48"), "{:?}", quantized.skipped);
    let named = BTreeMap::from([("second".to_owned(), None)]);
    let quantization =
        Quantization { layers: named, ..Quantization::new(BlockFormat::NVFP4, Activations::Float) };
    let quantized = quantize(&model(), &quantization, &Evidence::default()).unwrap();
    assert_eq!(quantized.skipped[0].layer, "second");
    assert!(quantized.skipped[0].reason.contains("recipe"));
}

#[test]
fn users_mistakes_are_errors() {
    let float = model();
    let fixed =
        Quantization::new(BlockFormat::plain(DType::I8, Channel), Activations::Static(DType::I8));
    let error = quantize(&float, &fixed, &Evidence::default()).unwrap_err();
    assert!(error.remedy.contains("calibrate"), "{error}");
    let broken = float.with_initial_values(|_, ty| {
        let values = vec![f64::INFINITY; ty.elements()];
        Init::Value(Tensor::from_f64(ty.dtype, ty.shape.clone(), &values))
    });
    let int8 = Quantization::new(BlockFormat::plain(DType::I8, Channel), Activations::Float);
    let error = quantize(&broken, &int8, &Evidence::default()).unwrap_err();
    assert!(error.expected.contains("finite") && error.scope.contains("first.weight"), "{error}");
}

#[test]
fn convolutions_are_computed_on_what_their_codes_stand_for() {
    let b = Builder::new("conv");
    let x = b.input(
        "x",
        TensorType::new(DType::F32, [Dim::from("batch"), 3.into(), 6.into(), 6.into()]),
    );
    let w = b.state(
        "c.weight",
        TensorType::new(DType::F32, [5usize, 3, 3, 3]),
        Init::Normal { std: 0.2, seed: 1 },
    );
    b.output("y", x.conv2d(w, None, Conv2d::new(1, 1)));
    let float = b.finish().unwrap();
    let x = Tensor::from_f64(
        DType::F32,
        [2usize, 3, 6, 6],
        &philox::normals(1, 1).take(216).collect::<Vec<_>>(),
    );
    let expected = outputs(&float, &x);
    let observed = observe(&bound(&float, 2), &[Statistic::Range]).unwrap();
    let mut evidence = Evidence::default();
    evidence.add(&observed, &eval_tensors(&observed, std::slice::from_ref(&x)));
    for activations in
        [Activations::Float, Activations::Dynamic(DType::I8), Activations::Static(DType::I8)]
    {
        let int8 = Quantization::new(BlockFormat::plain(DType::I8, Channel), activations);
        let quantized = quantize(&float, &int8, &evidence).unwrap();
        assert!(quantized.skipped.is_empty());
        let found = outputs(&quantized.graph, &x);
        let worst = expected.iter().zip(&found).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(worst > 0.0 && worst < 0.1, "{activations:?}: {worst}");
    }
    let blocks = Activations::Blocks(DType::F8E4M3, ScaleFormat::E8m0Up);
    let mx = Quantization::new(BlockFormat::mx(DType::F8E4M3, ScaleFormat::E8m0Up), blocks);
    assert!(quantize(&float, &mx, &evidence).unwrap().skipped[0].reason.contains("window"));
}

/// Correlated images: neighbours are alike, as in what convolutions see.
fn images(seed: u64) -> Tensor {
    let noise: Vec<f64> = philox::normals(seed, 1).take(8 * 4 * 6 * 6).collect();
    let mut values = noise.clone();
    (1..values.len()).for_each(|i| values[i] = 0.9 * values[i - 1] + 0.4 * noise[i]);
    Tensor::from_f64(DType::F32, [8usize, 4, 6, 6], &values)
}

fn convolution(geometry: Conv2d, groups: usize) -> Graph {
    let b = Builder::new("conv");
    let x = b.input(
        "x",
        TensorType::new(DType::F32, [Dim::from("batch"), 4.into(), 6.into(), 6.into()]),
    );
    let kernel = TensorType::new(DType::F32, [6usize, 4 / groups, 3, 3]);
    let w = b.state("c.weight", kernel, Init::Normal { std: 0.2, seed: 1 });
    b.output("y", x.conv2d(w, None, Conv2d { groups, ..geometry }));
    b.finish().unwrap()
}

#[test]
fn gptq_sees_the_windows_of_a_convolution() {
    let int4 = Quantization::new(BlockFormat::plain(DType::I4, Channel), Activations::Float);
    let dilated = Conv2d { dilation: [2, 1], ..Conv2d::new(2, 1) };
    let geometries = [Conv2d::new(1, 1), Conv2d::new(2, 0), dilated];
    for (geometry, groups) in geometries.iter().flat_map(|g| [(g, 1), (g, 2)]) {
        let float = convolution(geometry.clone(), groups);
        let observed = observe(&bound(&float, 8), &[Statistic::Gram]).unwrap();
        let mut evidence = Evidence::default();
        evidence.add(&observed, &eval_tensors(&observed, &[images(1)]));
        let error = |graph: &Graph| {
            let (expected, found) = (outputs(&float, &images(2)), outputs(graph, &images(2)));
            expected.iter().zip(&found).map(|(a, b)| (a - b).powi(2)).sum::<f64>()
        };
        let nearest = quantize(&float, &int4, &evidence).unwrap();
        let gptq = quantize(&float, &int4.clone().rounded(Rounding::Gptq), &evidence).unwrap();
        assert_eq!((gptq.layers.len(), &gptq.simplified), (1, &vec![]));
        let (nearest, gptq) = (error(&nearest.graph), error(&gptq.graph));
        assert!(
            gptq < 0.7 * nearest,
            "{geometry:?} x {groups}: GPTQ errs by {gptq}, to nearest by {nearest}"
        );
    }
}

#[test]
fn a_block_is_the_first_numbered_part_of_a_name() {
    let block = |name: &str| {
        let (name, kind) = (name.to_owned(), overdrive_passes::LayerKind::Linear);
        let (weight, site) = (String::new(), String::new());
        let held = Held { sizes: vec![1, 1], order: KAxis::InputMajor };
        let (shape, parts) = ([1, 1], vec![]);
        Layer { name, weight, site, parts, kind, shape, held, groups: 1 }.block().to_owned()
    };
    assert_eq!(block("block3.ffn.expand"), "block3");
    assert_eq!(block("model.layers.11.self_attn.q_proj"), "model.layers.11");
    assert_eq!(block("conv1"), "conv1");
    assert_eq!(block("head"), "head");
}

#[test]
fn two_of_four_weights_stay_and_what_data_says_helps() {
    let float = model();
    let evidence = calibrated(&float);
    let pruned = |pruning| {
        let sparse = sparsify(&float, pruning, &evidence).unwrap();
        assert_eq!(sparse.layers, ["first", "second"]);
        for layer in layers(&sparse.graph).unwrap().0 {
            let zeros = |four: &[f64]| four.iter().filter(|w| **w == 0.0).count();
            assert!(
                layer.rows(&sparse.graph).chunks(4).all(|four| zeros(four) == 2),
                "{pruning:?}: {}",
                layer.name
            );
        }
        error(&float, &sparse.graph)
    };
    let [magnitude, wanda, sparse_gpt] =
        [Pruning::Magnitude, Pruning::Wanda, Pruning::SparseGpt].map(pruned);
    assert!(wanda < 0.9 * magnitude, "Wanda errs by {wanda}, magnitude by {magnitude}");
    assert!(sparse_gpt < 0.9 * wanda, "SparseGPT errs by {sparse_gpt}, Wanda by {wanda}");
    let int8 =
        Quantization::new(BlockFormat::plain(DType::I8, Channel), Activations::Dynamic(DType::I8));
    let sparse = sparsify(&float, Pruning::SparseGpt, &evidence).unwrap().graph;
    let both = error(&float, &quantized(&sparse, &int8, &evidence));
    assert!(both < 1.2 * sparse_gpt, "with int8 {both}, without {sparse_gpt}");
    assert!(
        sparsify(&float, Pruning::Wanda, &Evidence::default())
            .unwrap_err()
            .remedy
            .contains("calibrate")
    );
}

#[test]
fn what_is_pruned_is_stored_as_what_stays_and_means_the_same() {
    let float = model();
    let evidence = calibrated(&float);
    let sparse = sparsify(&float, Pruning::Wanda, &evidence).unwrap();
    let x = rows(99, 8);
    let int8 =
        Quantization::new(BlockFormat::plain(DType::I8, Channel), Activations::Dynamic(DType::I8));
    let alone = Quantization::new(
        BlockFormat::plain(DType::F32, overdrive_ir::Granularity::Tensor),
        Activations::Float,
    );
    // Values and bits of a mask: 17/32 of f32, 5/8 of i8, where weights were a quarter of it
    // before.
    for (quantization, share) in [(alone, 17.0 / 32.0), (int8, 0.25 * 5.0 / 8.0)] {
        let dense = quantize(&sparse.graph, &quantization, &evidence).unwrap();
        let packed = compress(dense.clone(), &sparse.layers).unwrap();
        assert_eq!(outputs(&dense.graph, &x), outputs(&packed.graph, &x));
        assert!(packed.skipped.is_empty() && packed.layers.len() == 2, "{:?}", packed.layers);
        for layer in &packed.layers {
            let scales = if layer.scheme.is_some() {
                4 * if layer.name == "first" { K } else { N }
            } else {
                0
            };
            let bytes = (layer.code_bytes + layer.scale_bytes) as f64 - scales as f64;
            assert_eq!(bytes, share * layer.float_bytes as f64, "{}", layer.name);
            let of_layer = packed
                .graph
                .states()
                .iter()
                .filter(|s| s.name.starts_with(&format!("{}.weight", layer.name)));
            let held: usize = of_layer.map(|s| packed.graph.ty(s.value).bytes()).sum();
            assert_eq!(held as u64, layer.code_bytes + layer.scale_bytes, "{}", layer.name);
        }
    }
    // Four-bit codes have no such form: the layer stays dense, and it is said.
    let int4 = Quantization::new(BlockFormat::plain(DType::I4, Channel), Activations::Float);
    let dense = quantize(&sparse.graph, &int4, &evidence).unwrap();
    let packed = compress(dense.clone(), &sparse.layers).unwrap();
    assert_eq!(packed.graph.to_string(), compress(dense, &[]).unwrap().graph.to_string());
    assert!(
        packed.skipped.iter().all(|s| s.reason.contains("share a byte"))
            && packed.skipped.len() == 2
    );
    // A weight that only claims to be pruned is no 2:4 matrix.
    let never =
        compress(quantize(&float, &int8_weights(), &evidence).unwrap(), &sparse.layers).unwrap();
    assert!(
        never.skipped.iter().all(|s| s.reason.contains("of four weights are not 0")),
        "{:?}",
        never.skipped
    );
}

fn int8_weights() -> Quantization {
    Quantization::new(BlockFormat::plain(DType::I8, Channel), Activations::Float)
}
