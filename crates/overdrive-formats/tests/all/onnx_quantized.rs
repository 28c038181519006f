//! Quantized layers as ONNX: written as QDQ where opset 23 can say so, and meaning the same when
//! they are read back.

use overdrive_formats::onnx::{self, Binding, Dialect, Model};
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::ops::quantized_linear::{Activations, WeightScales};
use overdrive_ir::{Builder, DType, Graph, Init, Overflow, Tensor, TensorType, eval};
use std::path::Path;

/// So many that the codes are not computed with while the file is read, as shapes are.
const N: usize = 96;
const K: usize = 12;

fn state(tensor: Tensor) -> (TensorType, Init) {
    (tensor.ty().clone(), Init::Value(tensor))
}

fn numbers(dtype: DType, shape: &[usize], first: f64, step: f64) -> Tensor {
    let count: usize = shape.iter().product();
    let values: Vec<f64> = (0..count).map(|i| first + step * ((i * 7) % 11) as f64).collect();
    Tensor::from_f64(dtype, shape.to_vec(), &values)
}

/// A layer of `codes`, scaled in `groups` along K.
fn layer(codes: DType, groups: usize, op: QuantizedLinear) -> Graph {
    let b = Builder::new("layer");
    let x = b.input("x", TensorType::new(DType::F32, [2, 3, K]));
    let mut operands = vec![
        ("codes", numbers(codes, &[N, K], -5.0, 1.0)),
        ("scale", numbers(DType::F32, &[N, groups], 0.05, 0.01)),
    ];
    if op.weights == WeightScales::Asymmetric {
        operands.push(("zero", numbers(codes, &[N, groups], -3.0, 1.0)));
    }
    if let Activations::Static(dtype) = op.activations {
        operands.push(("x_scale", Tensor::scalar(DType::F32, 0.0313)));
        operands.push(("x_zero", Tensor::scalar(dtype, 5.0)));
    }
    let states: Vec<_> = operands
        .into_iter()
        .map(|(name, tensor)| {
            let (ty, init) = state(tensor);
            b.state_named(name, ty, init)
        })
        .collect();
    b.output("y", x.quantized_linear(op, &states));
    b.finish().expect("a layer that fits")
}

/// A layer in blocks of `block` along K, of `codes` with scales of type `scale`.
fn in_blocks((codes, scale, block): (DType, DType, usize), op: QuantizedLinear) -> Graph {
    const K: usize = 64;
    let b = Builder::new("layer");
    let x = b.input("x", TensorType::new(DType::F32, [2, 3, K]));
    let count = N * K;
    // Every value that the type has, up to its largest.
    let all: Vec<f64> = (0..count)
        .map(|i| codes.round(((i * 7) % 61) as f64 * 0.25 - 7.5, Overflow::Saturate))
        .collect();
    let scales: Vec<f64> = (0..N * K / block).map(|i| 2f64.powi((i % 5) as i32 - 4)).collect();
    let mut operands = vec![
        ("codes", Tensor::from_f64(codes, [N, K], &all)),
        ("scale", Tensor::from_f64(scale, [N, K / block], &scales)),
    ];
    if op.weights == WeightScales::TwoLevel {
        operands.push(("tensor_scale", Tensor::scalar(DType::F32, 0.3)));
    }
    let state =
        |(name, tensor): (&str, Tensor)| b.state(name, tensor.ty().clone(), Init::Value(tensor));
    let states: Vec<_> = operands.into_iter().map(state).collect();
    b.output("y", x.quantized_linear(op, &states));
    b.finish().expect("a layer that fits")
}

/// Microscaling formats, in types that every engine has: what is written means the same to the last
/// code.
#[test]
fn layers_in_blocks_of_small_floats_are_written_in_types_that_engines_have() {
    let float = |weights| QuantizedLinear { weights, activations: Activations::Float };
    let blocks = |element, scale| QuantizedLinear {
        weights: WeightScales::Symmetric,
        activations: Activations::Blocks(element, scale),
    };
    let e8m0 = |codes| (codes, DType::E8M0, 32);
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (name, kind, op) in [
        ("mxfp8", e8m0(DType::F8E4M3), blocks(DType::F8E4M3, ScaleFormat::E8m0Up)),
        ("mxint8", e8m0(DType::I8), blocks(DType::I8, ScaleFormat::E8m0Floor)),
        ("mxfp6_e2m3", e8m0(DType::F6E2M3), float(WeightScales::Symmetric)),
        ("mxfp6_e3m2", e8m0(DType::F6E3M2), float(WeightScales::Symmetric)),
        ("mxfp4", e8m0(DType::F4E2M1), float(WeightScales::Symmetric)),
        ("nvfp4", (DType::F4E2M1, DType::F8E4M3, 16), float(WeightScales::TwoLevel)),
    ] {
        let graph = in_blocks(kind, op);
        let path = folder.join(format!("layer_{name}.onnx"));
        onnx::write(&path, &graph, Dialect::Standard).unwrap();
        let back = Model::open(&path).unwrap().graph(&Binding::default()).unwrap();
        if op.activations == Activations::Float && op.weights == WeightScales::Symmetric {
            let found = back.nodes().iter().find_map(|node| node.op.composite::<QuantizedLinear>());
            assert_eq!(found, Some(&op), "{name} is read as a product of codes");
        }
        // Rows of zeros, of the smallest numbers, of powers of two and beside them.
        let mut values: Vec<f64> = numbers(DType::F32, &[2, 3, 64], -1.03, 0.217).to_f64();
        values[..64].fill(0.0);
        values[64..128].iter_mut().for_each(|x| *x *= 1e-38);
        values[128..192]
            .iter_mut()
            .enumerate()
            .for_each(|(i, x)| *x = 448.0 * 2f64.powi(i as i32 / 32));
        let x = Tensor::from_f64(DType::F32, [2, 3, 64], &values);
        let [before, after] =
            [&graph, &back].map(|g| eval::eval_tensors(g, std::slice::from_ref(&x))[0].to_f64());
        for (a, b) in before.iter().zip(&after) {
            assert!((a - b).abs() <= 1e-5 * (1e-30 + a.abs()), "{name}: {a} became {b}");
        }
    }
}

#[test]
fn layers_are_written_with_their_codes_and_mean_the_same() {
    let op = |weights, activations| QuantizedLinear { weights, activations };
    let cases = [
        (
            "int8 per channel",
            DType::I8,
            1,
            op(WeightScales::Symmetric, Activations::Float),
            "DequantizeLinear",
        ),
        (
            "int4 in blocks",
            DType::I4,
            3,
            op(WeightScales::Symmetric, Activations::Float),
            "DequantizeLinear",
        ),
        (
            "int4 with zero points",
            DType::I4,
            3,
            op(WeightScales::Asymmetric, Activations::Float),
            "DequantizeLinear",
        ),
        (
            "int8 static",
            DType::I8,
            1,
            op(WeightScales::Symmetric, Activations::Static(DType::I8)),
            "QuantizeLinear",
        ),
        (
            "int8 dynamic",
            DType::I8,
            1,
            op(WeightScales::Symmetric, Activations::Dynamic(DType::I8)),
            "MatMulInteger",
        ),
        (
            "int8 dynamic in blocks",
            DType::I8,
            3,
            op(WeightScales::Symmetric, Activations::Dynamic(DType::I8)),
            "MatMulInteger",
        ),
    ];
    for (what, codes, groups, op, word) in cases {
        let graph = layer(codes, groups, op);
        let path = Path::new("layer.onnx");
        let bytes = onnx::encode(path, &graph, Dialect::Standard).unwrap();
        assert!(bytes.windows(word.len()).any(|w| w == word.as_bytes()), "{what} has a {word}");
        let back = Model::decode(path, bytes.into()).unwrap().graph(&Binding::default()).unwrap();
        if op.activations == Activations::Float {
            let found = back.nodes().iter().find_map(|node| node.op.composite::<QuantizedLinear>());
            assert_eq!(found, Some(&op), "{what} is read as a product of codes");
        }
        let x = numbers(DType::F32, &[2, 3, K], -1.03, 0.217);
        let [before, after] =
            [&graph, &back].map(|g| eval::eval_tensors(g, std::slice::from_ref(&x))[0].to_f64());
        for (a, b) in before.iter().zip(&after) {
            assert!((a - b).abs() <= 1e-5 * (1.0 + a.abs()), "{what}: {a} became {b}");
        }
    }
}

/// Zero points that are fractions, as HQQ finds them: no op of ONNX takes them, and the codes stay
/// codes all the same.
#[test]
fn layers_with_fractional_zero_points_come_back_with_their_codes() {
    let op = QuantizedLinear { weights: WeightScales::Asymmetric, activations: Activations::Float };
    for groups in [1, 3, 12] {
        let b = Builder::new("layer");
        let x = b.input("x", TensorType::new(DType::F32, [2, 3, K]));
        let state =
            |name: &str, tensor: Tensor| b.state(name, tensor.ty().clone(), Init::Value(tensor));
        let codes = state("codes", numbers(DType::I4, &[N, K], -5.0, 1.0));
        let scale = state("scale", numbers(DType::F32, &[N, groups], 0.05, 0.01));
        let zero = state("zero", numbers(DType::F32, &[N, groups], -3.3, 0.71));
        b.output("y", x.quantized_linear(op, &[codes, scale, zero]));
        let graph = b.finish().unwrap();
        let path = Path::new("layer.onnx");
        let bytes = onnx::encode(path, &graph, Dialect::Standard).unwrap();
        let back = Model::decode(path, bytes.into()).unwrap().graph(&Binding::default()).unwrap();
        let layer =
            back.nodes().iter().find(|node| node.op.composite::<QuantizedLinear>() == Some(&op));
        let layer = layer.expect("a product of codes");
        assert_eq!(back.ty(layer.operands[1]), &TensorType::new(DType::I4, [N, K]));
        assert_eq!(back.ty(layer.operands[3]), &TensorType::new(DType::F32, [N, groups]));
        let held =
            back.states().iter().filter(|state| back.ty(state.value).dtype == DType::I4).count();
        assert_eq!(held, 1, "codes are held once");
        let x = numbers(DType::F32, &[2, 3, K], -1.03, 0.217);
        let [before, after] =
            [&graph, &back].map(|g| eval::eval_tensors(g, std::slice::from_ref(&x))[0].to_f64());
        for (a, b) in before.iter().zip(&after) {
            assert!((a - b).abs() <= 1e-5 * (1.0 + a.abs()), "{groups} groups: {a} became {b}");
        }
    }
}

/// Engines that fuse ops of codes take a zero point that is left out for one of u8.
#[test]
fn codes_of_a_whole_tensor_say_their_zero_point() {
    let b = Builder::new("codes");
    let x = b.input("x", TensorType::new(DType::F32, [4, 8]));
    let scale = b.constant(Tensor::from_f32([1, 1], &[0.05]));
    let codes = x.quantize(scale, None, DType::I8);
    b.output("y", codes.dequantize(scale, None));
    let graph = b.finish().unwrap();
    let path = Path::new("codes.onnx");
    let bytes = onnx::encode(path, &graph, Dialect::Standard).unwrap();
    let has = |word: &str| bytes.windows(word.len()).any(|w| w == word.as_bytes());
    assert!(
        has("QuantizeLinear") && !has("output_dtype"),
        "the zero point says the type of the codes"
    );
    let back = Model::decode(path, bytes.into()).unwrap().graph(&Binding::default()).unwrap();
    let x = numbers(DType::F32, &[4, 8], -1.03, 0.217);
    let [before, after] = [&graph, &back].map(|g| eval::eval_tensors(g, std::slice::from_ref(&x)));
    assert_eq!(before, after);
}

/// A table of codes is written as one, and its rows become numbers where they are read.
#[test]
fn a_table_of_codes_comes_back_with_its_codes() {
    let b = Builder::new("table");
    let ids = b.input("ids", TensorType::new(DType::I32, [2, 3]));
    let state =
        |name: &str, tensor: Tensor| b.state(name, tensor.ty().clone(), Init::Value(tensor));
    let codes = state("words", numbers(DType::I8, &[N, K], -5.0, 1.0));
    let scale = state("words_scale", numbers(DType::F32, &[N, 1], 0.05, 0.01));
    let at = ids.reshape([2usize, 3, 1]);
    b.output("y", codes.gather(at, &[0]).dequantize(scale.gather(at, &[0]), None));
    let graph = b.finish().unwrap();
    let path = Path::new("table.onnx");
    let bytes = onnx::encode(path, &graph, Dialect::Standard).unwrap();
    let back = Model::decode(path, bytes.into()).unwrap().graph(&Binding::default()).unwrap();
    let held: Vec<_> = back
        .states()
        .iter()
        .map(|state| back.ty(state.value))
        .filter(|ty| ty.sizes() == [N, K])
        .map(|ty| ty.dtype)
        .collect();
    assert_eq!(held, [DType::I8]);
    let ids = Tensor::from_ints(DType::I32, [2, 3], &[0, 95, 7, 7, 41, 2]);
    let [before, after] =
        [&graph, &back].map(|g| eval::eval_tensors(g, std::slice::from_ref(&ids)));
    assert_eq!(before, after);
}
