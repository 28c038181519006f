//! Quantized layers as ONNX: written as QDQ where opset 23 can say so, and meaning the same when they are read back.

use overdrive_formats::onnx::{self, Binding, Model};
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::ops::quantized_linear::{Activations, Weights};
use overdrive_ir::{Builder, DType, Graph, Init, Tensor, TensorType, eval};
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
    if op.weights == Weights::Asymmetric {
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

#[test]
fn layers_are_written_with_their_codes_and_mean_the_same() {
    let op = |weights, activations| QuantizedLinear { weights, activations };
    let cases = [
        ("int8 per channel", DType::I8, 1, op(Weights::Symmetric, Activations::Float), "DequantizeLinear"),
        ("int4 in blocks", DType::I4, 3, op(Weights::Symmetric, Activations::Float), "DequantizeLinear"),
        (
            "int4 with zero points",
            DType::I4,
            3,
            op(Weights::Asymmetric, Activations::Float),
            "DequantizeLinear",
        ),
        (
            "int8 static",
            DType::I8,
            1,
            op(Weights::Symmetric, Activations::Static(DType::I8)),
            "QuantizeLinear",
        ),
        (
            "int8 dynamic",
            DType::I8,
            1,
            op(Weights::Symmetric, Activations::Dynamic(DType::I8)),
            "MatMulInteger",
        ),
        (
            "int8 dynamic in blocks",
            DType::I8,
            3,
            op(Weights::Symmetric, Activations::Dynamic(DType::I8)),
            "MatMulInteger",
        ),
    ];
    for (what, codes, groups, op, word) in cases {
        let graph = layer(codes, groups, op);
        let path = Path::new("layer.onnx");
        let bytes = onnx::encode(path, &graph).unwrap();
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
