//! Layers with codes on both sides.

use crate::bench::{Bench, all, error, line, noise};
use overdrive_ir::backend::CacheState;
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::ops::quantized_linear::{Activations, WeightScales};
use overdrive_ir::{Array, Builder, DType, Graph, Op, Operation, Tensor, TensorType};

/// Extent of every product, in each direction.
const EXTENT: usize = 8192;

fn quantized(
    n: usize,
    activations: Activations,
    codes: DType,
    per_row: usize,
) -> (Graph, Vec<Tensor>) {
    let b = Builder::new("quantized");
    let x = b.input("x", TensorType::new(DType::BF16, [n, n]));
    let types = [TensorType::new(codes, [n, n]), TensorType::new(DType::F32, [per_row, 1])];
    let mut operands: Vec<_> =
        types.iter().enumerate().map(|(i, ty)| b.input(&format!("w{i}"), ty.clone())).collect();
    let mut tensors = vec![noise(&x_type(n), 1), noise(&types[0], 2), all(&types[1], 0.001)];
    if let Activations::Static(dtype) = activations {
        operands.push(b.input("x_scale", TensorType::scalar(DType::F32)));
        tensors.push(Tensor::scalar(DType::F32, if dtype.is_int() { 0.0079 } else { 0.0043 }));
        if dtype.is_int() {
            operands.push(b.input("x_zero", TensorType::scalar(DType::I32)));
            tensors.push(Tensor::scalar(DType::I32, 0.0));
        }
    }
    b.output(
        "y",
        x.quantized_linear(
            QuantizedLinear { weights: WeightScales::Symmetric, activations },
            &operands,
        ),
    );
    (b.finish().expect("well typed"), tensors)
}

fn x_type(n: usize) -> TensorType {
    TensorType::new(DType::BF16, [n, n])
}

/// Results of the first row by the first weights, against the definition.
fn check(name: &str, (graph, tensors): (&Graph, &[Tensor]), y: &Tensor) {
    const COLUMNS: usize = 32;
    let n = y.ty().sizes()[0];
    let Some(node) = graph.nodes().iter().find(|node| node.op.name() == "quantized_linear") else {
        return;
    };
    let Operation::Composite(op) = &node.op else { panic!("no primitive has this name") };
    let op = op.downcast::<QuantizedLinear>().expect("the op of this name");
    let mut arrays: Vec<Array> = tensors[2..].iter().map(Array::from).collect();
    if arrays[0].shape[0] > 1 {
        arrays[0] = Array::from(&all(&TensorType::new(DType::F32, [COLUMNS, 1]), 0.001));
    }
    let first = |tensor: &Tensor, rows: usize| {
        let ty = TensorType::new(tensor.ty().dtype, [rows, n]);
        let bytes = tensor.bytes()[..ty.bytes()].to_vec();
        Array::from(&Tensor::from_bytes(ty, bytes).expect("whole rows"))
    };
    arrays.splice(..0, [first(&tensors[0], 1), first(&tensors[1], COLUMNS)]);
    let expected = op.eval(&arrays, &[]);
    let found = line(y, 0, 1, COLUMNS);
    let pairs: Vec<_> =
        found.into_iter().enumerate().map(|(i, y)| (y, expected[0].get(i))).collect();
    let error = error(&pairs);
    assert!(error < 5e-3, "{name} is off by {error:e}");
    println!("    error {error:.1e}");
}

fn plain(n: usize) -> (Graph, Vec<Tensor>) {
    let b = Builder::new("bf16");
    let [x, w] = ["x", "w"].map(|name| b.input(name, TensorType::new(DType::BF16, [n, n])));
    b.output("y", x.dot_to(w, &[], &[(1, 1)], DType::BF16));
    (b.finish().expect("well typed"), vec![noise(&x_type(n), 1), noise(&x_type(n), 2)])
}

pub(crate) fn run(bench: &Bench<'_>) {
    let n = EXTENT;
    let mut bf16 = None;
    let int8 = |activations| quantized(n, activations, DType::I8, n);
    let fp8 = |activations, rows| quantized(n, activations, DType::F8E4M3, rows);
    for (name, (graph, tensors)) in [
        ("bf16", plain(n)),
        ("int8 dynamic, row scales", int8(Activations::Dynamic(DType::I8))),
        ("int8 static", int8(Activations::Static(DType::I8))),
        ("fp8 dynamic, row scales", fp8(Activations::Dynamic(DType::F8E4M3), n)),
        ("fp8 static, tensor scales", fp8(Activations::Static(DType::F8E4M3), 1)),
    ] {
        let inputs: Vec<_> = tensors.iter().map(|tensor| bench.upload(tensor)).collect();
        let (time, outputs) = bench.time(&graph, &inputs, CacheState::Cold);
        check(name, (&graph, &tensors), &bench.download(&outputs[0]));
        let against = *bf16.get_or_insert(time.median);
        let rate = 2.0 * (n as f64).powi(3) / time.median / 1e3;
        println!("{n}^3 {name:<26} {time} {rate:7.1} TFLOP/s, {:.2}x bf16", against / time.median);
        println!("{}", bench.plan(&graph, &bench.tuned(&graph)));
    }
}
