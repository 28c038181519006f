//! AutoRound's descent: a step against its definition in f64, blocks whose rounding to nearest is
//! poor, and what is refused.

use overdrive_ir::Granularity::Group;
use overdrive_ir::eval::{Array, States, eval, eval_tensors, philox};
use overdrive_ir::ops::Conv2d;
use overdrive_ir::ops::quantized_linear::Activations;
use overdrive_ir::{BlockFormat, Builder, DType, Graph, Init, Tensor, TensorType};
use overdrive_passes::{
    AutoRound, Evidence, Quantization, QuantizationMode, Rounding, Statistic, auto_round, observe,
    quantize,
};
use std::collections::BTreeMap;

const ROWS: usize = 96;
const K: usize = 64;
/// Steps of a descent, as many as the driver takes.
const STEPS: usize = 200;

fn normals(seed: u64, shape: &[usize], [mean, std]: [f64; 2]) -> Tensor {
    let count = shape.iter().product();
    let values: Vec<f64> = philox::normals(seed, 1).take(count).map(|x| mean + std * x).collect();
    Tensor::from_f64(DType::F32, shape.to_vec(), &values)
}

/// Rows that share a mean, so that errors of the weights add up.
fn inputs() -> Tensor {
    normals(5, &[ROWS, K], [0.3, 1.0])
}

/// Linear layers one behind the other, with a rectifier between.
fn linears(widths: &[usize]) -> Graph {
    let b = Builder::new("block");
    let mut x = b.input("x", TensorType::new(DType::F32, [ROWS, widths[0]]));
    for (at, pair) in widths.windows(2).enumerate() {
        let ty = TensorType::new(DType::F32, [pair[0], pair[1]]);
        let init = Init::Normal { std: 0.2, seed: 3 + at as u64 };
        let w = b.state_named(&format!("fc{at}.weight"), ty, init);
        x = if at == 0 { x } else { x.relu() }.linear(w, None);
    }
    b.output("y", x);
    b.finish().unwrap()
}

fn evidence(float: &Graph, x: &Tensor) -> Evidence {
    let observed = observe(float, &[Statistic::Gram]).unwrap();
    let mut evidence = Evidence::default();
    evidence.add(&observed, &eval_tensors(&observed, std::slice::from_ref(x)));
    evidence
}

/// Steps towards the outputs of the float block; the error before each, and the weights behind.
fn descend(descent: &AutoRound, x: &Tensor, target: &Tensor, rates: &[f64]) -> (Vec<f64>, States) {
    let mut states = States::new();
    let mut step = |rate: &f64| {
        let rate = Tensor::scalar(DType::F32, *rate);
        let given: Vec<Array> = [x, &rate, target].map(Array::from).to_vec();
        eval(&descent.step, &given, &mut states)[0].to_f64()[0]
    };
    (rates.iter().map(&mut step).collect(), states)
}

fn tensors(states: &States) -> BTreeMap<String, Tensor> {
    states.iter().map(|(name, array)| (name.clone(), array.to_tensor())).collect()
}

/// Rates as the driver has them.
fn rates(steps: usize) -> Vec<f64> {
    (0..steps).map(|done| (1.0 - done as f64 / steps as f64) / steps as f64).collect()
}

/// Mean squared difference of the outputs.
fn error(graph: &Graph, x: &Tensor, target: &Tensor) -> f64 {
    let found = eval_tensors(graph, std::slice::from_ref(x))[0].to_f64();
    let squares = found.iter().zip(target.to_f64()).map(|(a, b)| (a - b).powi(2));
    squares.sum::<f64>() / found.len() as f64
}

fn of_mode(name: &str) -> Quantization {
    QuantizationMode::find(name).unwrap().quantization()
}

#[test]
fn a_step_moves_each_weight_against_its_gradient() {
    const N: usize = 6;
    for mode in ["int4-autoround", "mxfp4-autoround", "nvfp4-autoround"] {
        let (float, x) = (linears(&[K, N]), inputs());
        let target = eval_tensors(&float, std::slice::from_ref(&x))[0].clone();
        let descent = auto_round(&float, &of_mode(mode), &evidence(&float, &x)).unwrap();
        let state = |name: &str| {
            let state = descent.step.states().iter().find(|s| s.name == name).unwrap();
            state.init.tensor(name, descent.step.ty(state.value)).to_f64()
        };
        let (begin, unit) = (state("fc0.weight"), state("fc0.weight.unit"));
        let start = descent.conclude(&BTreeMap::new()).unwrap();
        // The error of the start, which the codes of the quantized graph give.
        let off: Vec<f64> = {
            let found = eval_tensors(&start.graph, std::slice::from_ref(&x))[0].to_f64();
            found.iter().zip(target.to_f64()).map(|(a, b)| a - b).collect()
        };
        let rate = 0.125;
        let (losses, states) = descend(&descent, &x, &target, &[rate]);
        let expected = off.iter().map(|e| e * e).sum::<f64>() / off.len() as f64;
        assert!((losses[0] - expected).abs() < 1e-4 * expected, "{mode}: {losses:?}, {expected}");
        let (moved, x) = (states["fc0.weight"].to_f64(), x.to_f64());
        for (i, moved) in moved.iter().enumerate() {
            let (n, k) = (i / K, i % K);
            let gradient: f64 = (0..ROWS).map(|r| off[r * N + n] * x[r * K + k]).sum();
            let expected = begin[i] - rate * unit[i] * gradient.signum();
            assert!((moved - expected).abs() < 1e-6, "{mode}, {i}: {moved}, not {expected}");
        }
    }
}

#[test]
fn the_descent_errs_less_than_gptq_which_errs_less_than_the_nearest() {
    let modes = ["int4-autoround", "mxfp4-autoround", "nvfp4-autoround"].map(|mode| (mode, None));
    for (mode, rotation) in modes.into_iter().chain([("mxfp4-autoround", Some(16))]) {
        let (float, x) = (linears(&[K, 32, 16]), inputs());
        let target = eval_tensors(&float, std::slice::from_ref(&x))[0].clone();
        let (meant, seen) = (of_mode(mode).rotated(rotation), evidence(&float, &x));
        let nearest = quantize(&float, &meant.clone().rounded(Rounding::Nearest), &seen).unwrap();
        let gptq = quantize(&float, &meant.clone().rounded(Rounding::Gptq), &seen).unwrap();
        let descent = auto_round(&float, &meant, &seen).unwrap();
        let start = descent.conclude(&BTreeMap::new()).unwrap();
        assert_eq!(start.graph, gptq.graph, "{mode}: a descent of no step is GPTQ");
        let (losses, states) = descend(&descent, &x, &target, &rates(STEPS));
        let [nearest, gptq] = [&nearest, &gptq].map(|made| error(&made.graph, &x, &target));
        // The last step is not the best one for so few samples.
        let found = losses.iter().copied().fold(f64::INFINITY, f64::min);
        assert!((losses[0] - gptq).abs() < 1e-4 * gptq, "{mode}: {} of GPTQ {gptq}", losses[0]);
        assert!(gptq < 0.9 * nearest, "{mode}: GPTQ errs by {gptq}, to nearest by {nearest}");
        assert!(found < gptq, "{mode}: the descent errs by {found}, GPTQ by {gptq}");
        let again = descend(&descent, &x, &target, &rates(STEPS));
        assert_eq!(tensors(&again.1), tensors(&states), "{mode}: the same codes each time");
    }
}

#[test]
fn convolutions_with_groups_descend_too() {
    let b = Builder::new("conv");
    let x = b.input("x", TensorType::new(DType::F32, [4usize, 4, 6, 6]));
    let w = b.state_named(
        "c.weight",
        TensorType::new(DType::F32, [6usize, 2, 3, 3]),
        Init::Normal { std: 0.2, seed: 1 },
    );
    b.output("y", x.conv2d(w, None, Conv2d { groups: 2, ..Conv2d::new(1, 1) }).relu());
    let float = b.finish().unwrap();
    let x = normals(2, &[4, 4, 6, 6], [0.2, 1.0]);
    let target = eval_tensors(&float, std::slice::from_ref(&x))[0].clone();
    let symmetric = BlockFormat::plain(DType::I4, Group(9));
    for format in [symmetric, symmetric.asymmetric()] {
        let meant = Quantization::new(format, Activations::Float).rounded(Rounding::AutoRound);
        let descent = auto_round(&float, &meant, &evidence(&float, &x)).unwrap();
        let mut rates = rates(STEPS);
        // A last step that moves nothing tells the error of the end.
        rates.push(0.0);
        let (losses, states) = descend(&descent, &x, &target, &rates);
        let [start, made] = [BTreeMap::new(), tensors(&states)]
            .map(|states| descent.conclude(&states).unwrap().graph);
        for (loss, graph) in [(losses[0], &start), (losses[STEPS], &made)] {
            let expected = error(graph, &x, &target);
            assert!((loss - expected).abs() < 1e-4 * expected, "{format:?}: {loss}, {expected}");
        }
        let [before, after] = [&start, &made].map(|graph| {
            let state = graph.states().iter().find(|state| state.name == "c.weight").unwrap();
            state.init.tensor("c.weight", graph.ty(state.value)).to_f64()
        });
        let furthest = before.iter().zip(&after).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(furthest == 1.0, "{format:?}: a code moved by {furthest}");
    }
}

#[test]
fn a_layer_that_groups_do_not_divide_stays_and_the_others_descend() {
    // 200 inputs are no groups of 128.
    let float = linears(&[K, 200, 16]);
    let x = inputs();
    let seen = evidence(&float, &x);
    let descent = auto_round(&float, &of_mode("int4-autoround"), &seen).unwrap();
    let made = descent.conclude(&BTreeMap::new()).unwrap();
    assert_eq!((made.layers.len(), made.layers[0].name.as_str()), (1, "fc0"));
    assert_eq!((made.skipped.len(), made.skipped[0].layer.as_str()), (1, "fc1"));
    assert!(!descent.is_empty());
}

#[test]
fn inputs_that_are_no_numbers_are_refused() {
    let float = linears(&[K, 16]);
    let mut values = inputs().to_f64();
    values[3] = f64::NAN;
    let x = Tensor::from_f64(DType::F32, [ROWS, K], &values);
    let seen = evidence(&float, &x);
    for mode in ["int4-gptq", "int4-autoround"] {
        let meant = of_mode(mode);
        let refused = auto_round(&float, &meant, &seen).unwrap_err();
        assert!(refused.expected.contains("finite"), "{mode}: {refused}");
        assert!(refused.scope.contains("fc0.weight"), "{mode}: {refused}");
        assert!(quantize(&float, &meant, &seen).is_err());
    }
    let none = auto_round(&float, &of_mode("int4-autoround"), &Evidence::default());
    assert!(none.unwrap_err().remedy.contains("calibrate"));
}
