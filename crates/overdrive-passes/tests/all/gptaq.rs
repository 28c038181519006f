//! GPTAQ: how far inputs have drifted, and layers that make up for it.

use overdrive_ir::eval::{eval_tensors, philox};
use overdrive_ir::ops::Conv2d;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{BlockFormat, Builder, DType, Granularity, Graph, Init, Tensor, TensorType};
use overdrive_passes::{
    Evidence, Quantization, Rounding, Statistic, layers, observe, observe_beside, quantize,
};

const K: usize = 32;
const BATCH: usize = 64;
/// Images are one row of so many pixels, whose channels are rows of the contraction.
const WIDTH: usize = 3;
const LAYERS: [&str; 2] = ["first", "second"];

/// Two layers with a rectifier between them: linear, or convolutions of so many groups.
fn model(groups: Option<usize>) -> Graph {
    let b = Builder::new("model");
    let sizes = if groups.is_some() { vec![BATCH, K, 1, WIDTH] } else { vec![BATCH, K] };
    let mut h = b.input("x", TensorType::new(DType::F32, sizes));
    for (layer, seed) in LAYERS.into_iter().zip(3..) {
        let _scope = b.scope(layer);
        let weight = |sizes: &[usize]| {
            let ty = TensorType::new(DType::F32, sizes.to_vec());
            b.state("weight", ty, Init::Normal { std: 0.3, seed })
        };
        h = match groups {
            Some(groups) => {
                let geometry = Conv2d { groups, ..Conv2d::new(1, 0) };
                h.conv2d(weight(&[K, K / groups, 1, 1]), None, geometry)
            }
            None => h.linear(weight(&[K, K]), None),
        };
        if layer == "first" {
            h = h.relu();
        }
        b.output(layer, h);
    }
    b.finish().unwrap()
}

fn batch(graph: &Graph, seed: u64) -> Tensor {
    let ty = graph.ty(graph.inputs()[0].value);
    let values: Vec<f64> = philox::normals(seed, 0).take(ty.elements()).collect();
    Tensor::from_f64(DType::F32, ty.shape.clone(), &values)
}

fn meant(rounding: Rounding, layer: &str) -> Quantization {
    let format = BlockFormat::plain(DType::I4, Granularity::Channel);
    Quantization::new(format, Activations::Float).rounded(rounding).only(&[layer], &LAYERS)
}

/// Rows that group `group` of the second layer reads.
fn rows(hidden: &Tensor, (groups, group): (Option<usize>, usize)) -> Vec<Vec<f64>> {
    let values = hidden.to_f64();
    let Some(groups) = groups else { return values.chunks(K).map(<[f64]>::to_vec).collect() };
    let channels = group * K / groups..(group + 1) * K / groups;
    let pixels = (0..BATCH).flat_map(|n| (0..WIDTH).map(move |w| (n, w)));
    let row = |(n, w)| channels.clone().map(|c| values[(n * K + c) * WIDTH + w]).collect();
    pixels.map(row).collect()
}

#[test]
fn drift_is_the_sum_of_products_of_what_changed_and_what_is_seen() {
    for groups in [None, Some(1), Some(2)] {
        let float = model(groups);
        let nearest = meant(Rounding::Nearest, "first");
        let coded = quantize(&float, &nearest, &Evidence::default()).unwrap().graph;
        let observed = observe_beside(&coded, &float, &[Statistic::Drift]).unwrap();
        // The inputs of a block may have drifted as well.
        let [seen, exact] = [1, 2].map(|seed| batch(&float, seed));
        let outputs = eval_tensors(&observed, &[seen.clone(), exact.clone()]);
        let mut evidence = Evidence::default();
        evidence.add(&observed, &outputs);
        let own = eval_tensors(&coded, std::slice::from_ref(&seen));
        assert_eq!(outputs[..2], own, "the outputs of the quantized model");
        let expected = &eval_tensors(&float, &[exact])[0];
        let site = layers(&coded).unwrap().0[0].site.clone();
        let drift = evidence.get(&site, Statistic::Drift).unwrap();
        let k = K / groups.unwrap_or(1);
        assert_eq!(drift.len(), k * K);
        for group in 0..groups.unwrap_or(1) {
            let [x, float] = [&own[0], expected].map(|hidden| rows(hidden, (groups, group)));
            for (i, j) in (0..k).flat_map(|i| (0..k).map(move |j| (i, j))) {
                let terms = || x.iter().zip(&float).map(|(x, float)| (float[i] - x[i]) * x[j]);
                let (sum, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                let found = drift[(group * k + i) * k + j];
                // Terms come of f32 values, and as many are summed in f32.
                let tolerance = f64::from(f32::EPSILON) * (x.len() as f64) * (size + 1.0);
                assert!((found - sum).abs() < tolerance, "{groups:?}: {i}, {j}: {found}, {sum}");
            }
        }
        // Beside itself, nothing has drifted.
        let alone = observe(&float, &[Statistic::Drift]).unwrap();
        let outputs = eval_tensors(&alone, &[seen]);
        assert!(outputs[2..].iter().all(|drift| drift.to_f64().iter().all(|x| *x == 0.0)));
    }
}

#[test]
fn the_second_layer_makes_up_for_the_codes_of_the_first() {
    for groups in [None, Some(2)] {
        let float = model(groups);
        let nearest = meant(Rounding::Nearest, "first");
        let coded = quantize(&float, &nearest, &Evidence::default()).unwrap().graph;
        let observed =
            observe_beside(&coded, &float, &[Statistic::Gram, Statistic::Drift]).unwrap();
        let mut evidence = Evidence::default();
        for seed in 1..9 {
            let x = batch(&float, seed);
            evidence.add(&observed, &eval_tensors(&observed, &[x.clone(), x]));
        }
        let error = |rounding: Rounding| -> f64 {
            let made = quantize(&coded, &meant(rounding, "second"), &evidence).unwrap();
            assert_eq!(made.layers.len(), 1);
            let fresh = batch(&float, 99);
            let outputs =
                |graph: &Graph| eval_tensors(graph, std::slice::from_ref(&fresh))[1].to_f64();
            let pairs = outputs(&float).into_iter().zip(outputs(&made.graph));
            pairs.map(|(a, b)| (a - b).powi(2)).sum()
        };
        let [gptq, gptaq] = [Rounding::Gptq, Rounding::Gptaq].map(error);
        assert!(gptaq < 0.95 * gptq, "{groups:?}: GPTAQ errs by {gptaq}, GPTQ by {gptq}");
    }
}
