//! Right answers of graphs that round to codes pass on every seed, and a wrong part of a quantized
//! layer does not.

use super::*;
use crate::Workload;
use crate::referee::Referee;
use overdrive_bench::deviation::Deviation;
use overdrive_cpu::CpuBackend;
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::ops::quantized_linear::{Activations, QuantizedLinear, WeightScales};
use overdrive_ir::{Backend, Builder, Expr, Mode, State, Tuning};

const SEEDS: u64 = 12;

/// A layer `k -> n` like `op`, its bias outside.
fn layer<'b>(x: Expr<'b>, name: &str, [n, k]: [usize; 2], op: QuantizedLinear) -> Expr<'b> {
    let groups = if op.weights == WeightScales::Asymmetric { k / 32 } else { 1 };
    let state = |part: &str, ty: TensorType, of: &dyn Fn(f64) -> f64| {
        let name = format!("{name}.{part}");
        let values: Vec<f64> =
            philox::uniforms(7, philox::site_of(&name)).take(ty.elements()).map(of).collect();
        let value = Tensor::from_f64(ty.dtype, ty.shape.clone(), &values);
        x.builder().state(&name, ty, Init::Value(value))
    };
    let (dtype, half) = if groups > 1 { (DType::I4, 7.4) } else { (DType::I8, 127.0) };
    let size = 1.7 / (half * (k as f64).sqrt());
    let codes =
        state("codes", TensorType::new(dtype, [n, k]), &|u| ((2.0 * u - 1.0) * half).round());
    let scale =
        state("scale", TensorType::new(DType::F32, [n, groups]), &|u| size * (0.7 + 0.6 * u));
    let mut operands = vec![codes, scale];
    if op.weights == WeightScales::Asymmetric {
        let ty = TensorType::new(dtype, [n, groups]);
        operands.push(state("zero", ty, &|u| (6.0 * u - 3.0).round()));
    }
    if op.activations == Activations::Static(DType::I8) {
        operands.push(state("x_scale", TensorType::scalar(DType::F32), &|_| 0.03));
        operands.push(state("x_zero", TensorType::scalar(DType::I32), &|_| -9.0));
    }
    let bias = state("bias", TensorType::new(DType::F32, [n]), &|u| 0.4 * (2.0 * u - 1.0));
    x.quantized_linear(op, &operands) + bias
}

/// Three layers `64 -> 96 -> 96 -> 32` like `op`, with a GELU between them, on 16 rows; zero points
/// go with groups of 32.
fn model(op: QuantizedLinear) -> Graph {
    let b = Builder::new("layers");
    let x = b.input("x", TensorType::new(DType::F32, [16usize, 64]));
    let h = layer(x, "first", [96, 64], op).gelu(Approximation::Erf);
    let h = layer(h, "second", [96, 96], op).gelu(Approximation::Erf);
    b.output("y", layer(h, "third", [32, 96], op));
    b.finish().unwrap()
}

fn kinds() -> [QuantizedLinear; 3] {
    let of = |weights, activations| QuantizedLinear { weights, activations };
    [
        of(WeightScales::Symmetric, Activations::Dynamic(DType::I8)),
        of(WeightScales::Asymmetric, Activations::Dynamic(DType::I8)),
        of(WeightScales::Symmetric, Activations::Static(DType::I8)),
    ]
}

/// Outputs of `graph` on the processor in f32.
pub(super) fn outputs(backend: &CpuBackend, graph: &Graph, inputs: &[Tensor]) -> Vec<f64> {
    let mut session =
        backend.compile(graph, Mode::Compile, &Tuning::default()).unwrap().session().unwrap();
    let mut state = State::initial(graph, backend).unwrap();
    let inputs: Vec<_> = inputs.iter().map(|t| backend.upload(t).unwrap()).collect();
    let mut outputs = vec![backend.output(graph.ty(graph.outputs()[0].value)).unwrap()];
    session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
    backend.download(&outputs[0]).unwrap().to_f64()
}

/// Errors of the outputs that `of` gives for a seed and its inputs, as shares of the tolerance of
/// `right`. For every seed: the tolerance with codes, and that of rounding alone.
fn shares(right: &Graph, of: &dyn Fn(u64, &[Tensor]) -> Vec<f64>) -> [Vec<f64>; 2] {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let workload = Workload::new("layers", [], right.clone());
    let oracle = workload.judged_by(Referee::host(&backend));
    let limit = tolerance(DType::F32, right, (&oracle, 0)).unwrap();
    let expected = |seed| oracle.expected(seed).unwrap();
    let rounding = Tolerance::of_elements(limit.rtol, limit.rtol * typical_size(&expected(0)));
    let mut found = [vec![], vec![]];
    for seed in 0..SEEDS {
        let outputs = of(seed, &oracle.inputs(seed));
        for (found, limit) in found.iter_mut().zip([limit, rounding]) {
            let deviation = Deviation::between(&outputs, &expected(seed)[0], limit).unwrap();
            found.push(deviation.share_of_tolerance);
        }
    }
    found
}

/// `graph` with one state changed.
pub(super) fn damaged(graph: &Graph, name: &str, change: &dyn Fn(&mut Vec<f64>)) -> Graph {
    let before: Vec<Init> = graph.states().iter().map(|state| state.init.clone()).collect();
    let mut before = before.into_iter();
    let mut is_found = false;
    let changed = graph.clone().with_initial_values(|state: &str, ty: &TensorType| {
        let init = before.next().unwrap();
        if state != name {
            return init;
        }
        is_found = true;
        let mut values = init.tensor(state, ty).to_f64();
        change(&mut values);
        Init::Value(Tensor::from_f64(ty.dtype, ty.shape.clone(), &values))
    });
    assert!(is_found, "no state {name}");
    changed
}

/// The number that one zero point of x beside another adds to each result: the sum of its weights,
/// times the scale of x.
fn with_other_zero(graph: &Graph, layer: &str) -> Graph {
    let of = |part: &str| {
        let name = format!("{layer}.{part}");
        let state = graph.states().iter().find(|state| state.name == name).unwrap();
        state.init.tensor(&name, graph.ty(state.value)).to_f64()
    };
    let (codes, scale, x_scale) = (of("codes"), of("scale"), of("x_scale")[0]);
    let k = codes.len() / scale.len();
    let sums: Vec<f64> = codes
        .chunks(k)
        .zip(&scale)
        .map(|(row, scale)| row.iter().sum::<f64>() * scale * x_scale)
        .collect();
    damaged(graph, &format!("{layer}.bias"), &|bias| {
        bias.iter_mut().zip(&sums).for_each(|(b, s)| *b += s)
    })
}

#[test]
fn codes_that_rounding_decides_are_no_fault() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let mut rejected_before = 0;
    for op in kinds() {
        let graph = model(op);
        assert!(rounds_to_codes(&graph));
        let [in_f32, _] = shares(&graph, &|_, inputs| outputs(&backend, &graph, inputs));
        assert!(in_f32.iter().all(|&share| share <= 1.0), "{op:?}: {in_f32:?}");
        // Inputs that an f32 layer before the graph left some units off: as right, the same on
        // every machine.
        let [moved, rounding_alone] = shares(&graph, &|seed, inputs| {
            let by = Perturbation { relative: 5e-6, twin: 100 + seed };
            overdrive_ir::eval::eval_tensors(&graph, &perturbed(inputs, by))[0].to_f64()
        });
        assert!(moved.iter().all(|&share| share <= 1.0), "{op:?}: {moved:?}");
        rejected_before += rounding_alone.iter().filter(|&&share| share > 1.0).count();
    }
    assert!(
        rejected_before > 0,
        "no value of these seeds lies between two codes: the test shows nothing"
    );
}

#[test]
fn a_wrong_part_of_a_layer_is_a_fault() {
    let [rows, groups, fixed] = kinds().map(model);
    let wrong_scale = |values: &mut Vec<f64>| values.iter_mut().for_each(|x| *x *= 1.05);
    let one_row = |values: &mut Vec<f64>| values[3] *= 1.5;
    let next_code = |values: &mut Vec<f64>| values.iter_mut().for_each(|x| *x += 1.0);
    let swapped = |values: &mut Vec<f64>| values.chunks_mut(2).for_each(|pair| pair.swap(0, 1));
    let missing = |values: &mut Vec<f64>| values.fill(0.0);
    let cases = [
        ("the scale of a first layer", &rows, damaged(&rows, "first.scale", &wrong_scale)),
        ("the scale of a last layer", &rows, damaged(&rows, "third.scale", &wrong_scale)),
        ("the scale of a row", &rows, damaged(&rows, "third.scale", &one_row)),
        ("no bias", &rows, damaged(&rows, "second.bias", &missing)),
        ("swapped groups", &groups, damaged(&groups, "first.scale", &swapped)),
        ("the zero points of weights", &groups, damaged(&groups, "second.zero", &next_code)),
        ("the scale of x", &fixed, damaged(&fixed, "second.x_scale", &wrong_scale)),
        ("the zero point of x", &fixed, with_other_zero(&fixed, "second")),
        ("no bias, x static", &fixed, damaged(&fixed, "third.bias", &missing)),
    ];
    let backend = CpuBackend::new(Some(1)).unwrap();
    for (fault, graph, wrong) in cases {
        let [found, _] = shares(graph, &|_, inputs| outputs(&backend, &wrong, inputs));
        assert!(found.iter().all(|&share| share > 1.0), "{fault} passes: {found:?}");
    }
}

#[test]
fn weights_in_codes_alone_have_the_tolerance_of_rounding() {
    let graph = model(QuantizedLinear {
        weights: WeightScales::Symmetric,
        activations: Activations::Float,
    });
    assert!(!rounds_to_codes(&graph));
    let backend = CpuBackend::new(Some(1)).unwrap();
    let workload = Workload::new("layers", [], graph);
    let limit =
        tolerance(DType::F32, &workload.graph, (&workload.judged_by(Referee::host(&backend)), 0))
            .unwrap();
    assert_eq!(limit.rms, f64::INFINITY);
}
