//! A file for any batch says for a third one what the model says.
#![allow(clippy::unwrap_used)] // Helpers of tests.

use overdrive_formats::onnx::{Binding, Model, encode_batched};
use overdrive_ir::eval::eval_tensors;
use overdrive_ir::{Builder, DType, Graph, Tensor, TensorType};
use std::collections::BTreeMap;
use std::path::Path;

fn built_in(name: &str, rows: usize) -> Graph {
    let model = overdrive_models::find(name).unwrap();
    let mut sizes: BTreeMap<String, usize> =
        model.dimensions.iter().map(|&(name, size)| (name.to_owned(), size)).collect();
    sizes.insert("batch".to_owned(), rows);
    overdrive_passes::bind(&(model.build)().unwrap(), &sizes).unwrap()
}

fn inputs(graph: &Graph) -> Vec<Tensor> {
    let draw = |ty: &TensorType| {
        let values: Vec<f64> = (0..ty.elements()).map(|i| ((i * 37 % 101) as f64 - 50.0) / 50.0).collect();
        Tensor::from_f64(ty.dtype, ty.shape.clone(), &values)
    };
    graph.inputs().iter().map(|port| draw(graph.ty(port.value))).collect()
}

#[test]
fn built_in_models_are_written_for_any_batch() {
    for name in ["digits-mlp", "digits-conv", "quick-inference"] {
        let path = Path::new(name);
        let bytes = encode_batched(path, [&built_in(name, 1), &built_in(name, 2)]).unwrap();
        let model = Model::decode(path, bytes.into()).unwrap();
        assert_eq!(model.dimensions().unwrap().into_iter().collect::<Vec<_>>(), ["batch"]);
        let sizes = BTreeMap::from([("batch".to_owned(), 5)]);
        let read = model.graph(&Binding { sizes, ..Binding::default() }).unwrap();
        let ours = built_in(name, 5);
        let (found, expected) = (eval_tensors(&read, &inputs(&ours)), eval_tensors(&ours, &inputs(&ours)));
        for (found, expected) in found.iter().zip(&expected) {
            assert_eq!(found.ty(), expected.ty());
            let worst =
                found.to_f64().iter().zip(expected.to_f64()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(worst < 1e-4, "{name}: {worst:e}");
        }
    }
}

#[test]
fn what_mixes_rows_is_refused_where_it_does() {
    let sum = |rows: usize| {
        let b = Builder::new("sum");
        let x = b.input("x", TensorType::new(DType::F32, [rows, 3]));
        b.output("y", x.sum(&[0]));
        b.finish().unwrap()
    };
    let error = encode_batched(Path::new("sum"), [&sum(1), &sum(2)]).unwrap_err().to_string();
    assert!(error.contains("`y`") && error.contains("fixed batch"), "{error}");
    let error = encode_batched(Path::new("sum"), [&sum(2), &sum(2)]).unwrap_err().to_string();
    assert!(error.contains("`x`"), "{error}");
}
