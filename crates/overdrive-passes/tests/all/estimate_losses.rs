//! Estimates of what layers lose, held against what outputs lose when they alone are rounded.

use overdrive_ir::eval::{eval_tensors, philox};
use overdrive_ir::ops::Conv2d;
use overdrive_ir::{Builder, DType, Expr, Graph, Init, Tensor, TensorType};
use overdrive_passes::{
    Evidence, LayerGroup, OutputLoss, Quantization, QuantizationMode, estimate_losses, layers,
    observe, quantize,
};

const ROWS: usize = 24;
const CLASSES: usize = 10;
/// Layers that read one value.
const TIED: [&str; 3] = ["q", "k", "v"];
/// Passes of an estimate: 384 draws.
const DRAWS: usize = 16;

/// A weight whose products are about `size` times as large as the values that it multiplies; `fan`
/// of them are summed.
fn weight<'b>(
    b: &'b Builder,
    name: &str,
    (sizes, fan): (&[usize], usize),
    (size, seed): (f64, u64),
) -> Expr<'b> {
    let ty = TensorType::new(DType::F32, sizes.to_vec());
    let std = size / (fan as f64).sqrt();
    b.state_named(&format!("{name}.weight"), ty, Init::Normal { std, seed })
}

/// A factor that differs from layer to layer, so that what they lose does too.
fn size(seed: u64, layer: u64) -> f64 {
    philox::normals(seed, layer).map(|x| x.exp()).next().unwrap()
}

/// `[ROWS, 32]` to logits, with queries, keys and values of one input and a residual stream.
fn products(seed: u64, last: usize) -> Graph {
    fn linear<'b>(x: Expr<'b>, (seed, layer): (u64, u64), name: &str, n: usize) -> Expr<'b> {
        let k = x.size(1);
        let at = (size(seed, layer), 100 * seed + layer);
        x.linear(weight(x.builder(), name, (&[k, n], k), at), None)
    }
    let b = Builder::new("products");
    let x = b.input("x", TensorType::new(DType::F32, [ROWS, 32]));
    let h = linear(x, (seed, 1), "begin", 32).tanh();
    let [q, k, v] = [0, 1, 2].map(|i| linear(h, (seed, 2 + i), TIED[i as usize], 32));
    let mixed = h + linear((q * k).tanh() + v, (seed, 5), "out", 32);
    let wide = linear(mixed, (seed, 6), "up", 64).relu();
    let end = mixed + linear(wide, (seed, 7), "down", 32);
    b.output("y", linear(end, (seed, 8), "head", last));
    b.finish().unwrap()
}

/// Images `[ROWS, 3, 5, 5]` to logits; the second and third layers have two groups of channels.
fn convolutions(seed: u64, last: usize) -> Graph {
    let b = Builder::new("convolutions");
    let mut x = b.input("x", TensorType::new(DType::F32, [ROWS, 3, 5, 5]));
    let layers = [("first", 8, 3), ("second", 8, 4), ("third", 8, 4), ("fourth", 8, 8)];
    for (at, (name, outputs, inputs)) in layers.into_iter().enumerate() {
        let groups = x.size(1) / inputs;
        let place = (size(seed, at as u64), 100 * seed + at as u64);
        let w = weight(&b, name, (&[outputs, inputs, 3, 3], 9 * inputs), place);
        x = x.conv2d(w, None, Conv2d { groups, ..Conv2d::new(1, 1) }).relu();
    }
    let w = weight(&b, "head", (&[8, last], 1), (1.0, seed));
    b.output("y", x.global_avg_pool().reshape([ROWS, 8]).linear(w, None));
    b.finish().unwrap()
}

fn input(graph: &Graph) -> Tensor {
    let ty = graph.ty(graph.inputs()[0].value);
    let values: Vec<f64> = philox::normals(7, 1).take(ty.elements()).collect();
    Tensor::from_f64(DType::F32, ty.shape.clone(), &values)
}

fn meant<'a>(modes: &[&'a str]) -> Vec<(&'a str, Quantization)> {
    let of = |mode: &&'a str| (*mode, QuantizationMode::find(mode).unwrap().quantization());
    modes.iter().map(of).collect()
}

fn evidence(graph: &Graph, modes: &[(&str, Quantization)]) -> Evidence {
    let statistics: Vec<_> = modes.iter().flat_map(|(_, meant)| meant.statistics()).collect();
    let observed = observe(graph, &statistics).unwrap();
    let mut evidence = Evidence::default();
    evidence.add(&observed, &eval_tensors(&observed, &[input(graph)]));
    evidence
}

fn group(layers: &[&str]) -> LayerGroup {
    let layers: Vec<String> = layers.iter().map(|layer| (*layer).to_owned()).collect();
    LayerGroup { name: layers[0].clone(), layers }
}

/// The estimate of each group in each mode, mode by mode.
fn estimated(
    (graph, loss): (&Graph, OutputLoss),
    groups: &[LayerGroup],
    modes: &[(&str, Quantization)],
) -> Vec<f64> {
    let made = estimate_losses((graph, loss), groups, modes, &evidence(graph, modes)).unwrap();
    let names = made.parts.iter().map(|part| (part.group.as_str(), part.mode.as_str()));
    let asked = modes.iter().flat_map(|(m, _)| groups.iter().map(move |g| (g.name.as_str(), *m)));
    assert!(names.eq(asked), "{:?}", made.parts);
    let mut means = vec![0.0; made.parts.len()];
    for draw in 0..DRAWS {
        let seed = Tensor::from_ints(DType::U64, [0usize; 0], &[draw as i128]);
        let found = eval_tensors(&made.graph, &[input(graph), seed]);
        means.iter_mut().zip(found[0].to_f64()).for_each(|(sum, x)| *sum += x / DRAWS as f64);
    }
    means
}

/// The mean loss of a row of outputs with these layers rounded and all others in float.
fn measured(
    (graph, y, loss): (&Graph, &[f64], OutputLoss),
    rounded: &[&str],
    (evidence, meant): (&Evidence, &Quantization),
) -> f64 {
    let (found, _) = layers(graph).unwrap();
    let all: Vec<&str> = found.iter().map(|layer| layer.name.as_str()).collect();
    let made = quantize(graph, &meant.only(rounded, &all), evidence).unwrap();
    assert_eq!(made.layers.len(), rounded.len(), "{:?}", made.skipped);
    let coded = eval_tensors(&made.graph, &[input(graph)])[0].to_f64();
    let of = |(a, b): (&[f64], &[f64])| match loss {
        OutputLoss::CrossEntropy => divergence(a, b),
        OutputLoss::SquaredError => a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum(),
        OutputLoss::Cosine => 1.0 - cosine(a, b),
    };
    y.chunks(y.len() / ROWS).zip(coded.chunks(y.len() / ROWS)).map(of).sum::<f64>() / ROWS as f64
}

/// The relative entropy of the classes of two rows of logits.
fn divergence(float: &[f64], found: &[f64]) -> f64 {
    let logs = |row: &[f64]| -> Vec<f64> {
        let sum: f64 = row.iter().map(|x| x.exp()).sum();
        row.iter().map(|x| x - sum.ln()).collect()
    };
    logs(float).iter().zip(&logs(found)).map(|(p, q)| p.exp() * (p - q)).sum()
}

fn cosine(a: &[f64], b: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Spearman's rank correlation of figures that all differ.
fn rank_correlation(a: &[f64], b: &[f64]) -> f64 {
    let rank = |of: &[f64], x: f64| of.iter().filter(|other| **other < x).count() as f64;
    let squares = |(&x, &y): (&f64, &f64)| (rank(a, x) - rank(b, y)).powi(2);
    let n = a.len() as f64;
    1.0 - 6.0 * a.iter().zip(b).map(squares).sum::<f64>() / (n * (n * n - 1.0))
}

#[test]
fn estimates_rank_layers_as_their_rounding_does_and_add_up() {
    // Weights alone; rows, all and blocks of the activations; errors that cancel within a row.
    let of_products = ["bf16", "int8-weights", "int8-dynamic", "int8-static", "mxfp8", "int4-gptq"];
    let losses = [OutputLoss::Cosine, OutputLoss::CrossEntropy, OutputLoss::SquaredError];
    for (seed, loss) in (1..).zip(losses) {
        let last = if loss == OutputLoss::SquaredError { 1 } else { CLASSES };
        let cases = [
            (products(seed, last), meant(&of_products)),
            (convolutions(seed, last), meant(&of_products[1..4])),
        ];
        for (graph, modes) in cases {
            let (found, _) = layers(&graph).unwrap();
            let alone = found.iter().filter(|layer| !TIED.contains(&layer.name.as_str()));
            let mut groups: Vec<LayerGroup> = alone.map(|layer| group(&[&layer.name])).collect();
            if groups.len() < found.len() {
                groups.push(group(&TIED));
            }
            let guesses = estimated((&graph, loss), &groups, &modes);
            let (evidence, y) = (evidence(&graph, &modes), eval_tensors(&graph, &[input(&graph)]));
            let y = y[0].to_f64();
            let mut all = Vec::new();
            for ((mode, meant), guesses) in modes.iter().zip(guesses.chunks(groups.len())) {
                let measured = |layers: &[String]| {
                    let layers: Vec<&str> = layers.iter().map(String::as_str).collect();
                    measured((&graph, &y, loss), &layers, (&evidence, meant))
                };
                let truths = groups.iter().map(|group| measured(&group.layers));
                let truths: Vec<f64> = truths.collect();
                let correlation = rank_correlation(guesses, &truths);
                let case = format!("{} of seed {seed}, {loss:?}, {mode}", graph.name());
                assert!(correlation > 0.9, "{case}: {correlation}, {guesses:?}, {truths:?}");
                // Four bits change some outputs by more than a second order describes.
                let [guess, truth] = [guesses, &truths].map(|all| all.iter().sum::<f64>());
                let is_small = ["bf16", "int8"].iter().any(|bits| mode.starts_with(bits));
                let ratio = guess / truth;
                assert!(!is_small || (0.8..1.25).contains(&ratio), "{case}: {guess}, {truth}");
                all.extend(truths);
            }
            let correlation = rank_correlation(&guesses, &all);
            assert!(correlation > 0.95, "{} of seed {seed}: {correlation}", graph.name());
        }
    }
}

#[test]
fn a_mode_that_a_layer_cannot_take_has_no_estimate() {
    let (graph, modes) = (convolutions(1, CLASSES), meant(&["mxfp8"]));
    let (groups, evidence) = ([group(&["second"])], evidence(&graph, &modes));
    let made = estimate_losses((&graph, OutputLoss::Cosine), &groups, &modes, &evidence);
    let made = made.unwrap();
    assert!(made.parts.is_empty() && made.graph.outputs().is_empty(), "{:?}", made.parts);
}

#[test]
fn a_loss_of_labels_is_of_the_output_that_has_them() {
    let b = Builder::new("unnamed");
    let x = b.input("x", TensorType::new(DType::F32, [ROWS, 32]));
    b.output("logits", x.linear(weight(&b, "head", (&[32, CLASSES], 32), (1.0, 1)), None));
    let (graph, modes) = (b.finish().unwrap(), meant(&["int8-weights"]));
    let made = |loss| {
        let groups = [group(&["head"])];
        estimate_losses((&graph, loss), &groups, &modes, &Evidence::default())
    };
    let refused = made(OutputLoss::CrossEntropy).unwrap_err().to_string();
    assert!(refused.contains("`y`") && refused.contains("logits"), "{refused}");
    assert_eq!(made(OutputLoss::Cosine).unwrap().parts.len(), 1);
}
