//! The graph that learns to be quantized: its gradients against LSQ's formula, computed here in f64
//! from the paper, and what is refused.

use overdrive_ir::eval::{eval_tensors, philox};
use overdrive_ir::{Builder, DType, Graph, Init, Tensor, TensorType, gradients};
use overdrive_passes::{
    Evidence, Learning, QuantizationMode, Rounding, Statistic, learn, observe, quantize,
};
use std::collections::BTreeMap;

const B: usize = 3;
const K: usize = 256;
const N: usize = 5;

fn model() -> Graph {
    let b = Builder::new("model");
    let x = b.input("x", TensorType::new(DType::F32, [B, K]));
    let w = b.state_named(
        "layer.weight",
        TensorType::new(DType::F32, [K, N]),
        Init::Normal { std: 0.2, seed: 3 },
    );
    b.output("y", x.linear(w, None));
    b.finish().unwrap()
}

fn normals(seed: u64, shape: [usize; 2], std: f64) -> Tensor {
    let values: Vec<f64> =
        philox::normals(seed, 1).take(shape[0] * shape[1]).map(|x| x * std).collect();
    Tensor::from_f64(DType::F32, shape, &values)
}

fn evidence(float: &Graph) -> Evidence {
    let observed = observe(float, &Statistic::ALL).unwrap();
    let mut evidence = Evidence::default();
    evidence.add(&observed, &eval_tensors(&observed, &[normals(7, [B, K], 0.8)]));
    evidence
}

/// A few percent around 1, so that no quotient is a tie.
fn factors(name: &str, count: usize) -> Tensor {
    let noise = philox::normals(philox::site_of(name), 2).take(count);
    Tensor::from_f64(DType::F32, [count], &noise.map(|x| 1.0 + 0.05 * x).collect::<Vec<_>>())
}

/// The graph of the layer with steps away from where they begin.
fn learning(mode: &str) -> (Learning, Graph) {
    let float = model();
    let quantization = QuantizationMode::find(mode).unwrap().quantization();
    let learning = learn(&float, &quantization, &evidence(&float)).unwrap();
    assert!(!learning.is_empty() && learning.skipped.is_empty(), "{mode}");
    let begin: BTreeMap<String, Init> =
        learning.graph.states().iter().map(|s| (s.name.clone(), s.init.clone())).collect();
    let graph = learning.graph.clone().with_initial_values(|name, ty| {
        if name.ends_with("_factor") {
            Init::Value(factors(name, ty.elements()))
        } else {
            begin[name].clone()
        }
    });
    (learning, graph)
}

/// Gradients of `Σ y dy` by name: of x and of every state.
fn found(graph: &Graph, x: &Tensor, dy: &Tensor) -> BTreeMap<String, Vec<f64>> {
    let b = Builder::new("gradients");
    let map = b.append(graph).unwrap();
    let seed = b.input("dy", dy.ty().clone());
    let named: Vec<_> = graph
        .inputs()
        .iter()
        .map(|port| (port.name.clone(), port.value))
        .chain(graph.states().iter().map(|state| (state.name.clone(), state.value)))
        .collect();
    let wrt: Vec<_> = named.iter().map(|(_, value)| *value).collect();
    let grads = gradients(&b, graph, &map, &[(graph.outputs()[0].value, seed)], &wrt);
    for ((name, _), grad) in named.iter().zip(grads) {
        b.output(name, grad.expect("everything has a gradient"));
    }
    let outputs = eval_tensors(&b.finish().unwrap(), &[x.clone(), dy.clone()]);
    named.into_iter().map(|(name, _)| name).zip(outputs.iter().map(Tensor::to_f64)).collect()
}

/// The positive numbers of a type, by the definitions of OCP FP8 and MX.
fn magnitudes(mode: &str) -> Vec<f64> {
    let floats = |exponents: i32, mantissas: i32, bias: i32, last: f64| {
        let value = move |e: i32, m: i32| match e {
            0 => f64::from(m) / f64::from(mantissas) * 2f64.powi(1 - bias),
            _ => (1.0 + f64::from(m) / f64::from(mantissas)) * 2f64.powi(e - bias),
        };
        let all = (0..exponents).flat_map(move |e| (0..mantissas).map(move |m| value(e, m)));
        all.filter(|&v| v <= last).collect()
    };
    if mode == "qat-fp8" { floats(16, 8, 7, 448.0) } else { floats(4, 2, 1, 6.0) }
}

/// The code of a quotient as a number, and the ends of the range.
fn rounded(mode: &str, quotient: f64) -> (f64, [f64; 2]) {
    let ends = match mode {
        "qat-int8" => [-128.0, 127.0],
        "qat-int4" => [-8.0, 7.0],
        "qat-fp8" => [-448.0, 448.0],
        _ => [-6.0, 6.0],
    };
    let inside = quotient.clamp(ends[0], ends[1]);
    if mode.starts_with("qat-int") {
        return (inside.round_ties_even(), ends);
    }
    let near = |v: &f64| (v - inside.abs()).abs();
    let best = magnitudes(mode).into_iter().min_by(|a, b| near(a).total_cmp(&near(b))).unwrap();
    (best.copysign(inside), ends)
}

/// LSQ's x̂, ∂x̂/∂x and ∂x̂/∂s (equations 1 to 3).
fn lsq(mode: &str, x: f64, step: f64, zero: f64) -> [f64; 3] {
    let v = x / step;
    let (_, ends) = rounded(mode, 0.0);
    let [low, high] = ends.map(|end| end - zero);
    let number = rounded(mode, v.clamp(low, high) + zero).0 - zero;
    if low < v && v < high {
        [number * step, 1.0, number - v]
    } else {
        [number * step, 0.0, number]
    }
}

fn close(what: &str, found: &[f64], expected: &[f64]) {
    let size = expected.iter().map(|x| x.abs()).fold(0.0, f64::max);
    assert!(size > 0.0, "{what}: nothing to compare");
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!((a - b).abs() <= 2e-5 * size, "{what}[{i}]: {a}, expected {b} of {size}");
    }
}

#[test]
fn gradients_are_those_of_the_formula() {
    for (mode, group, largest) in [
        ("qat-int8", K, 127.0),
        ("qat-int4", 128, 7.0),
        ("qat-fp8", K, 448.0),
        ("qat-mxfp4", 32, 6.0),
    ] {
        let (learning, graph) = learning(mode);
        // Larger than what calibration saw, so that some activations are cut.
        let (x, dy) = (normals(8, [B, K], 1.1), normals(9, [B, N], 1.0));
        let found = found(&graph, &x, &dy);
        let float = model();
        let state = &float.states()[0];
        let w = state.init.tensor(&state.name, float.ty(state.value)).to_f64();
        let ones = learning
            .graph
            .states()
            .iter()
            .map(|s| (s.name.clone(), s.init.tensor(&s.name, learning.graph.ty(s.value))));
        let first = learning.conclude(&ones.collect()).unwrap().graph;
        let begun = |name: &str| {
            let state = first.states().iter().find(|s| s.name == name)?;
            Some(state.init.tensor(name, first.ty(state.value)).to_f64())
        };
        // Activations first: x̂ and its derivatives.
        let x_zero = begun("layer.input_zero_point").map_or(0.0, |zero| zero[0]);
        let x_base = begun("layer.input_scale").map(|scale| scale[0]);
        let x_step = x_base.map(|base| base * factors("layer.input_scale_factor", 1).to_f64()[0]);
        let xs = x.to_f64();
        let of_x: Vec<[f64; 3]> = (0..B * K)
            .map(|i| match (mode, x_step) {
                (_, Some(step)) => lsq(mode, xs[i], step, x_zero),
                ("qat-fp8", None) => {
                    let row = &xs[i / K * K..(i / K + 1) * K];
                    let step = row.iter().fold(0.0f64, |a, x| a.max(x.abs())) / 448.0;
                    [lsq(mode, xs[i], step, 0.0)[0], 1.0, 0.0]
                }
                _ => [xs[i], 1.0, 0.0],
            })
            .collect();
        // Then weights.
        let (base, groups) = (begun("layer.weight_scale").unwrap(), K / group);
        let factor = factors("layer.weight_scale_factor", N * groups).to_f64();
        let of_w: Vec<[f64; 3]> = (0..K * N)
            .map(|i| {
                let (k, n) = (i / N, i % N);
                let at = n * groups + k / group;
                let step = base[at] * factor[at];
                let step = if mode == "qat-mxfp4" { 2f64.powf(step.log2().round()) } else { step };
                lsq(mode, w[i], step, 0.0)
            })
            .collect();
        let dys = dy.to_f64();
        let dw_hat =
            |k: usize, n: usize| (0..B).map(|b| of_x[b * K + k][0] * dys[b * N + n]).sum::<f64>();
        let dx_hat =
            |b: usize, k: usize| (0..N).map(|n| of_w[k * N + n][0] * dys[b * N + n]).sum::<f64>();
        let dw: Vec<f64> = (0..K * N).map(|i| of_w[i][1] * dw_hat(i / N, i % N)).collect();
        let dx: Vec<f64> = (0..B * K).map(|i| of_x[i][1] * dx_hat(i / K, i % K)).collect();
        close(&format!("{mode}: weight"), &found["layer.weight"], &dw);
        close(&format!("{mode}: x"), &found["x"], &dx);
        assert!(of_w.iter().any(|w| w[1] == 0.0), "{mode}: no weight is cut");
        let share = 1.0 / (group as f64 * largest).sqrt();
        let mut dfactor = vec![0.0; N * groups];
        for (i, w) in of_w.iter().enumerate() {
            let at = i % N * groups + i / N / group;
            dfactor[at] += share * base[at] * w[2] * dw_hat(i / N, i % N);
        }
        close(&format!("{mode}: factors"), &found["layer.weight_scale_factor"], &dfactor);
        if let Some(base) = x_base {
            let sum: f64 = (0..B * K).map(|i| of_x[i][2] * dx_hat(i / K, i % K)).sum();
            let share = 1.0 / (K as f64 * largest).sqrt();
            close(
                &format!("{mode}: input"),
                &found["layer.input_scale_factor"],
                &[share * base * sum],
            );
            assert!(of_x.iter().any(|x| x[1] == 0.0), "{mode}: no activation is cut");
        }
    }
}

#[test]
fn what_is_not_learnt_is_refused_or_said() {
    let float = model();
    let int4 = QuantizationMode::find("qat-int4").unwrap().quantization();
    assert_eq!(int4.scheme.rounding, Rounding::Learned);
    let refused = quantize(&float, &int4, &Evidence::default()).unwrap_err().to_string();
    assert!(refused.contains("learnt"), "{refused}");
    for mode in ["nvfp4", "mxfp8"] {
        let quantization = QuantizationMode::find(mode).unwrap().quantization();
        let learning = learn(&float, &quantization, &Evidence::default()).unwrap();
        assert!(
            learning.is_empty() && learning.skipped.len() == 1,
            "{mode}: {:?}",
            learning.skipped
        );
    }
    let int8 = QuantizationMode::find("qat-int8").unwrap().quantization();
    let uncalibrated = learn(&float, &int8, &Evidence::default()).unwrap_err().to_string();
    assert!(uncalibrated.contains("calibrate"), "{uncalibrated}");
    let learning = learn(&float, &int4, &Evidence::default()).unwrap();
    let missing = learning.conclude(&BTreeMap::new()).unwrap_err().to_string();
    assert!(missing.contains("layer.weight"), "{missing}");
}
