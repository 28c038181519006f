//! Weights of int4 and int8 in blocks, written as MatMulNBits: bytes that are packed here by hand,
//! and codes that come back bit for bit.

use crate::fields::*;
use overdrive_formats::onnx::{self, Binding, Dialect, Free, Model};
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::ops::quantized_linear::{Activations, WeightScales};
use overdrive_ir::{Builder, DType, Graph, Init, Tensor, TensorType, eval};
use std::collections::BTreeMap;
use std::path::Path;

const UINT8: i64 = 2;

/// A layer of random codes: `y = x W^T` of `[rows, 3, K]`.
struct Layer {
    codes: Tensor,
    scale: Tensor,
    zero: Option<Tensor>,
}

/// Numbers that differ from their neighbours, within a type.
fn mixed(dtype: DType, shape: [usize; 2], by: usize) -> Tensor {
    let (low, high) = dtype.int_range().unwrap();
    let count = shape.iter().product::<usize>();
    let values: Vec<i128> =
        (0..count).map(|i| low + ((i * i * 31 + i * by) as i128 % (high - low + 1))).collect();
    Tensor::from_ints(dtype, shape, &values)
}

impl Layer {
    fn new(dtype: DType, [n, k]: [usize; 2], block: usize, with_zeros: bool) -> Self {
        let blocks = k / block;
        let scales: Vec<f32> = (0..n * blocks).map(|i| (i * 7 % 13 + 1) as f32 / 128.0).collect();
        Self {
            codes: mixed(dtype, [n, k], 3),
            scale: Tensor::from_f32([n, blocks], &scales),
            zero: with_zeros.then(|| mixed(dtype, [n, blocks], 11)),
        }
    }

    fn op(&self) -> QuantizedLinear {
        let weights =
            if self.zero.is_some() { WeightScales::Asymmetric } else { WeightScales::Symmetric };
        QuantizedLinear { weights, activations: Activations::Float }
    }

    fn graph(&self, rows: usize) -> Graph {
        let b = Builder::new("layer");
        let k = self.codes.ty().sizes()[1];
        let x = b.input("x", TensorType::new(DType::F32, [rows, 3, k]));
        let state = |name: &str, tensor: &Tensor| {
            b.state_named(name, tensor.ty().clone(), Init::Value(tensor.clone()))
        };
        let mut operands = vec![state("codes", &self.codes), state("scale", &self.scale)];
        operands.extend(self.zero.as_ref().map(|zero| state("zero", zero)));
        b.output("y", x.quantized_linear(self.op(), &operands));
        b.finish().unwrap()
    }
}

/// Rows of unsigned codes, each from a new byte on, the first code in the lowest bits.
fn packed(tensor: &Tensor) -> Vec<u8> {
    let bits = tensor.ty().dtype.bits();
    let mut bytes = Vec::new();
    for row in tensor.to_ints().chunks(tensor.ty().sizes()[1]) {
        let from = bytes.len();
        bytes.resize(from + (row.len() * bits).div_ceil(8), 0u8);
        for (i, code) in row.iter().enumerate() {
            let unsigned = code + (1 << (bits - 1));
            bytes[from + i * bits / 8] |= (unsigned as u8) << (i * bits % 8);
        }
    }
    bytes
}

fn has(file: &[u8], part: &[u8]) -> bool {
    file.windows(part.len()).any(|window| window == part)
}

const CASES: [(DType, [usize; 2], usize); 4] = [
    (DType::I4, [5, 96], 32),
    (DType::I4, [3, 16], 16),
    (DType::I4, [4, 512], 256),
    (DType::I8, [5, 96], 32),
];

#[test]
fn a_layer_has_the_bytes_that_the_op_asks_for() {
    for (dtype, [n, k], block) in CASES {
        for with_zeros in [false, true] {
            let layer = Layer::new(dtype, [n, k], block, with_zeros);
            let file = onnx::encode(Path::new("m.onnx"), &layer.graph(2), Dialect::Microsoft);
            let file = file.unwrap();
            let (blocks, bits) = (k / block, dtype.bits());
            let sizes = |dims: &[usize]| dims.iter().map(|&n| n as i64).collect::<Vec<i64>>();
            let held = |name: &str, dims: &[usize], tensor: &Tensor| {
                let raw = bytes(9, &packed(tensor));
                has(&file, &bytes(5, &tensor_of(name, &sizes(dims), raw)))
            };
            let what = format!("{dtype} [{n}, {k}] in blocks of {block}, zeros {with_zeros}");
            let codes = [n, blocks, block * bits / 8];
            assert!(held("codes", &codes, &layer.codes), "{what}: codes");
            if let Some(zero) = &layer.zero {
                assert!(held("zero", &[n, (blocks * bits).div_ceil(8)], zero), "{what}: zeros");
            }
            let numbers =
                [("K", k), ("N", n), ("accuracy_level", 0), ("bits", bits), ("block_size", block)];
            for (name, value) in numbers {
                assert!(has(&file, &int_attribute(name, value as i64)), "{what}: {name}");
            }
            assert!(has(&file, &bytes(4, b"MatMulNBits")), "{what}");
            assert!(has(&file, &bytes(8, &[bytes(1, b"com.microsoft"), number(2, 1)].concat())));
            let standard = onnx::encode(Path::new("m.onnx"), &layer.graph(2), Dialect::Standard);
            assert!(!has(&standard.unwrap(), b"MatMulNBits"), "{what}");
        }
    }
}

fn tensor_of(name: &str, dims: &[i64], raw: Vec<u8>) -> Vec<u8> {
    tensor(name, UINT8, dims, &[raw])
}

#[test]
fn codes_come_back_bit_for_bit() {
    for (dtype, sizes, block) in CASES {
        for with_zeros in [false, true] {
            let layer = Layer::new(dtype, sizes, block, with_zeros);
            let graph = layer.graph(2);
            let file = onnx::encode(Path::new("m.onnx"), &graph, Dialect::Microsoft).unwrap();
            let back = Model::decode(Path::new("m.onnx"), file.into()).unwrap();
            let back = back.graph(&Binding::default()).unwrap();
            let what = format!("{dtype} {sizes:?} in blocks of {block}, zeros {with_zeros}");
            let node = |node: &&overdrive_ir::Node| node.op.composite() == Some(&layer.op());
            let node = back.nodes().iter().find(node).expect("a product of codes");
            let held = |at: usize| {
                let of = |state: &&overdrive_ir::StateDecl| state.value == node.operands[at];
                let state = back.states().iter().find(of).expect("the operand is a state");
                state.init.tensor(&state.name, back.ty(state.value))
            };
            assert_eq!(held(1), layer.codes, "{what}");
            assert_eq!(held(2), layer.scale, "{what}");
            if let Some(zero) = &layer.zero {
                assert_eq!(&held(3), zero, "{what}");
            }
        }
    }
}

/// Whatever MatMulNBits cannot say, or ONNX Runtime has no kernel for, is a DequantizeLinear.
#[test]
fn other_layers_are_written_as_before() {
    let written = |graph: &Graph| {
        let file = onnx::encode(Path::new("m.onnx"), graph, Dialect::Microsoft).unwrap();
        assert!(!has(&file, b"MatMulNBits") && !has(&file, b"com.microsoft"));
    };
    for (dtype, sizes, block) in [
        (DType::I4, [4, 24], 8),
        (DType::I4, [4, 96], 48),
        (DType::I4, [4, 512], 512),
        (DType::I8, [4, 64], 64),
    ] {
        written(&Layer::new(dtype, sizes, block, false).graph(2));
    }
    // Codes that something else reads too.
    let layer = Layer::new(DType::I4, [4, 64], 32, false);
    let b = Builder::new("twice");
    let x = b.input("x", TensorType::new(DType::F32, [2, 64]));
    let codes = b.state("codes", layer.codes.ty().clone(), Init::Value(layer.codes.clone()));
    let scale = b.state("scale", layer.scale.ty().clone(), Init::Value(layer.scale.clone()));
    b.output("y", x.quantized_linear(layer.op(), &[codes, scale]));
    b.output("w", codes.dequantize(scale, None));
    written(&b.finish().unwrap());
}

#[test]
fn a_file_of_any_batch_has_the_same_layer() {
    let layer = Layer::new(DType::I4, [6, 64], 16, true);
    let free = Free::new([("batch", None)]);
    let graphs: Vec<Graph> =
        free.corners().iter().map(|sizes| layer.graph(sizes["batch"])).collect();
    let file = free.made(Path::new("m.onnx"), &graphs, Dialect::Microsoft).unwrap();
    let file = file.to_bytes().unwrap();
    assert!(has(&file, b"MatMulNBits"));
    let model = Model::decode(Path::new("m.onnx"), file.into()).unwrap();
    let sizes = BTreeMap::from([("batch".to_owned(), 2)]);
    let back = model.graph(&Binding { sizes, ..Binding::default() }).unwrap();
    let values: Vec<f32> = (0..2 * 3 * 64).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let x = [Tensor::from_f32([2, 3, 64], &values)];
    let [before, after] =
        [&layer.graph(2), &back].map(|graph| eval::eval_tensors(graph, &x)[0].to_f64());
    assert_eq!(before, after);
}
