//! Products of dequantized tensors run as integer products, with the meaning that the graph gives
//! them.

use crate::support::{MODES, Session, check};
use overdrive_formats::onnx::{Binding, Model};
use overdrive_formats::read;
use overdrive_ir::ops::Conv2d;
use overdrive_ir::plan::{Plan, StepKind};
use overdrive_ir::{Array, Builder, DType, Expr, Graph, Init, Mode, Tensor, TensorType};
use std::fs;
use std::path::Path;
use testkit::Tolerance;

/// Numbers away from the middle between two codes of `scale`, so that an engine's last bit decides
/// nothing.
fn clear_of_ties(shape: &[usize], scale: f64) -> Array {
    let at = |index: &[usize]| index.iter().fold(3usize, |sum, i| sum * 31 + i);
    Array::build(DType::F32, shape, |index| {
        (((at(index) * 37) % 251) as f64 - 120.0 + [-0.25, 0.0, 0.25][at(index) % 3]) * scale
    })
}

/// A parameter of the model.
fn state<'b>(
    b: &'b Builder,
    name: &str,
    dtype: DType,
    shape: &[usize],
    value: impl Fn(usize) -> f64,
) -> Expr<'b> {
    let values: Vec<f64> = (0..shape.iter().product()).map(value).collect();
    let tensor = Tensor::from_f64(dtype, shape.to_vec(), &values);
    b.state(name, tensor.ty().clone(), Init::Value(tensor))
}

/// x through codes of `dtype` and back.
fn activations<'b>(b: &'b Builder, x: Expr<'b>, dtype: DType) -> Expr<'b> {
    let ones = vec![1usize; x.rank()];
    let scale = state(b, "x_scale", DType::F32, &ones, |_| 0.03);
    let zero = state(b, "x_zero", dtype, &ones, |_| if dtype == DType::U8 { 117.0 } else { -9.0 });
    x.quantize(scale, Some(zero), dtype).dequantize(scale, Some(zero))
}

/// Weights of `shape` with scales, and zero points where `zeros`, along `axis`.
fn weights<'b>(
    b: &'b Builder,
    (dtype, zeros): (DType, bool),
    shape: &[usize],
    axis: usize,
) -> Expr<'b> {
    let (low, high) = dtype.int_range().unwrap();
    let codes = state(b, "w", dtype, shape, |i| (low + (i as i128 * 77) % (high - low + 1)) as f64);
    let mut along = vec![1; shape.len()];
    along[axis] = shape[axis];
    let scale = state(b, "w_scale", DType::F32, &along, |i| 0.01 + 0.001 * (i % 7) as f64);
    let zero = state(b, "w_zero", dtype, &along, |i| (low + high) as f64 / 2.0 + (i % 5) as f64);
    codes.dequantize(scale, zeros.then_some(zero))
}

fn graph(
    name: &str,
    shape: &[usize],
    build: impl for<'b> Fn(&'b Builder, Expr<'b>) -> Expr<'b>,
) -> Graph {
    let b = Builder::new(name);
    let x = b.input("x", TensorType::new(DType::F32, shape.to_vec()));
    b.output("y", build(&b, x));
    b.finish().unwrap()
}

/// The element types that its products are of.
fn products(plan: &Plan) -> Vec<DType> {
    let product = |kind: &StepKind| match kind {
        StepKind::Gemm(call) => Some(plan.slot(call.lhs.slot).ty.dtype),
        StepKind::Convolution(call) => Some(call.input.ty.dtype),
        _ => None,
    };
    plan.steps.iter().filter_map(|step| product(&step.kind)).collect()
}

/// Checks every mode, and that all products are of `dtype`.
fn holds(graph: &Graph, shape: &[usize], dtype: DType) {
    let x = clear_of_ties(shape, 0.03);
    let session = Session::new(graph, Mode::Compile, 1, &[x.to_tensor()]).unwrap();
    let found = products(session.compiled.plan());
    assert!(!found.is_empty() && found.iter().all(|f| *f == dtype), "{}: {found:?}", graph.name());
    check(graph, &[x], Tolerance::new(DType::F32, 64, 30.0));
}

const KINDS: [(DType, DType, bool); 4] = [
    (DType::I8, DType::I8, false),
    (DType::U8, DType::I8, false),
    (DType::U8, DType::U8, true),
    (DType::I8, DType::I8, true),
];

#[test]
fn matrix_products_of_codes_are_integer() {
    for (of_x, of_w, zeros) in KINDS {
        // A layer with a bias, a product of weights `[K, N]`, and one of weights that are
        // transposed.
        let layer = graph("linear", &[5, 33], |b, x| {
            let bias = state(b, "bias", DType::F32, &[20], |i| i as f64 * 0.1);
            let w = weights(b, (of_w, zeros), &[33, 20], 1);
            activations(b, x, of_x).linear(w, Some(bias)).relu()
        });
        holds(&layer, &[5, 33], DType::I8);
        let product = graph("matmul", &[2, 3, 33], |b, x| {
            activations(b, x, of_x).matmul(weights(b, (of_w, zeros), &[20, 33], 0).t())
        });
        holds(&product, &[2, 3, 33], DType::I8);
    }
}

#[test]
fn convolutions_of_codes_are_integer() {
    for (of_x, of_w, zeros) in KINDS {
        for geometry in
            [Conv2d::new(2, 1), Conv2d { groups: 2, dilation: [1, 2], ..Conv2d::new(1, 2) }]
        {
            let conv = graph("conv", &[2, 4, 9, 8], |b, x| {
                let bias = state(b, "bias", DType::F32, &[6], |i| i as f64 * 0.1);
                let w = weights(b, (of_w, zeros), &[6, 4 / geometry.groups * 9], 0);
                let w = w.reshape([6, 4 / geometry.groups, 3, 3]);
                activations(b, x, of_x).conv2d(w, Some(bias), geometry.clone()).relu()
            });
            holds(&conv, &[2, 4, 9, 8], DType::I8);
        }
    }
}

#[test]
fn scales_that_change_along_the_sum_keep_the_product_in_floats_and_say_so() {
    let blocks = graph("blocks", &[5, 32], |b, x| {
        let codes = state(b, "w", DType::I8, &[32, 20], |i| (i % 100) as f64);
        let scale = state(b, "w_scale", DType::F32, &[4, 20], |i| 0.01 + 0.001 * (i % 7) as f64);
        activations(b, x, DType::I8).matmul(codes.dequantize(scale, None))
    });
    holds(&blocks, &[5, 32], DType::F32);
    let x = clear_of_ties(&[5, 32], 0.03).to_tensor();
    let session = Session::new(&blocks, Mode::Compile, 1, &[x]).unwrap();
    let notes = format!("{:?}", session.compiled.plan().notes);
    assert!(notes.contains("changes along what is summed"), "{notes}");
}

/// Models of ONNX Runtime's quantizer: every product of theirs is an integer product here, and the
/// outputs are its own.
#[test]
fn models_that_onnx_runtime_quantized_are_integer() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-formats/tests/onnx");
    let mut seen = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let case = entry.unwrap().path();
        let name = case.file_name().unwrap().to_str().unwrap().to_owned();
        if !name.starts_with("static_") {
            continue;
        }
        seen += 1;
        let graph =
            Model::open(&case.join("model.onnx")).unwrap().graph(&Binding::default()).unwrap();
        let x = &read(&case.join("inputs.safetensors")).unwrap()["x"];
        let wanted = read(&case.join("expected.safetensors")).unwrap()["y"].to_f64();
        for mode in MODES {
            let mut session = Session::new(&graph, mode, 2, std::slice::from_ref(x)).unwrap();
            // Two convolutions, which are one more each where weights have zero points, a layer and
            // two matrix products.
            let found = products(session.compiled.plan());
            let count = if name.ends_with("_unsigned") { 7 } else { 5 };
            assert_eq!(found, vec![DType::I8; count], "{name}, {mode}");
            session.run().unwrap();
            let y = session.outputs()[0].to_tensor().to_f64();
            let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 * b.abs();
            assert!(y.iter().zip(&wanted).all(close), "{name}, {mode}: {y:?} is not {wanted:?}");
        }
    }
    assert_eq!(seen, 7, "cases of every format and type");
}
