//! `eval` end to end: the model's outputs against the f64 definition, and every way in which inputs
//! can be wrong.

use crate::invocation::{Folder, Outcome};
use overdrive::formats;
use overdrive::ir::eval::{eval_tensors, philox};
use overdrive::ir::{Builder, DType, Init, Tensor, TensorType};
use std::fs;

const BATCH: usize = 3;

fn x() -> Tensor {
    let values: Vec<f64> = philox::normals(5, 1).take(BATCH * 64).collect();
    Tensor::from_f64(DType::F32, [BATCH, 64], &values)
}

/// `digits-mlp` of [`x`] by the evaluator, with `change` added to one value.
fn y(change: f64) -> Tensor {
    let template = (overdrive::models::find("digits-mlp").unwrap().build)().unwrap();
    let trained = overdrive::train::trained("digits-mlp").unwrap();
    let template = template.with_initial_values(|name, _| Init::Value(trained[name].clone()));
    let graph = overdrive::passes::bind(&template, &[("batch".to_owned(), BATCH)].into()).unwrap();
    let mut values = eval_tensors(&graph, &[x()])[0].to_f64();
    values[7] += change;
    Tensor::from_f64(DType::F32, [BATCH, 10], &values)
}

/// A folder with `x.npz`.
fn prepared() -> Folder {
    let folder = Folder::new();
    folder.tensors("x.npz", &[("x", x())]);
    folder
}

/// Runs `eval digits-mlp` on one thread, with an output that must appear only where it succeeds.
#[track_caller]
fn eval(folder: &Folder, arguments: &str) -> Outcome {
    let before = folder.files();
    let outcome =
        folder.line(&format!("eval digits-mlp --threads 1 --output out.npz --force {arguments}"));
    if outcome.code == 2 || outcome.code == 3 {
        assert_eq!(folder.files(), before, "a failure leaves nothing: {outcome:?}");
    }
    outcome
}

#[test]
fn outputs_are_those_of_the_definition_in_every_mode_and_format() {
    let folder = prepared();
    folder.tensors("x.safetensors", &[("x", x())]);
    folder.tensors("y.npz", &[("y", y(0.0))]);
    for (mode, inputs) in [("eager", "x.npz"), ("jit", "x.safetensors"), ("compile", "x.npz")] {
        let arguments = format!("--mode {mode} --inputs {inputs} --expect y.npz");
        eval(&folder, &arguments).ends(0, &["y: ", "agrees"]);
        let written = &formats::read(&folder.path("out.npz")).unwrap()["y"];
        let close = |(a, b): (&f64, &f64)| (a - b).abs() <= 1e-5 + 1e-4 * b.abs();
        assert!(written.to_f64().iter().zip(&y(0.0).to_f64()).all(close), "{mode}");
        fs::remove_file(folder.path("out.npz")).unwrap();
    }
    let names = ["x.npz", "x.safetensors", "y.npz"];
    assert_eq!(folder.files(), names, "no drafts are left");
}

#[test]
fn disagreement_ends_with_its_own_code() {
    let folder = prepared();
    folder.tensors("off.npz", &[("y", y(0.5))]);
    folder.tensors("nan.npz", &[("y", y(f64::NAN))]);
    folder.tensors("shape.npz", &[("y", Tensor::from_f32([10], &[0.0; 10]))]);
    for expected in ["off", "nan", "shape"] {
        eval(&folder, &format!("--inputs x.npz --expect {expected}.npz")).ends(4, &["DISAGREES"]);
    }
    eval(&folder, "--inputs x.npz --expect off.npz --atol 1").ends(0, &["agrees"]);
}

#[test]
fn an_expectation_that_compares_nothing_is_no_agreement() {
    let folder = prepared();
    folder.tensors("other.npz", &[("z", y(0.0))]);
    folder.tensors("empty.safetensors", &[]);
    eval(&folder, "--inputs x.npz --expect other.npz").ends(2, &["`z`", "gives y"]);
    eval(&folder, "--inputs x.npz --expect empty.safetensors").ends(2, &["empty.safetensors", "y"]);
}

#[test]
fn inputs_of_another_name_shape_or_type_are_refused() {
    let folder = prepared();
    let file = |name: &str, tensor: Tensor| folder.tensors("bad.npz", &[(name, tensor)]);
    let refused = |name: &str, tensor: Tensor, words: &[&str]| {
        file(name, tensor);
        eval(&folder, "--inputs bad.npz").ends(2, words);
    };
    refused("X", x(), &["`x`", "missing", "X"]);
    refused("x", Tensor::from_f32([64], &[0.0; 64]), &["`x`", "f32[64]"]);
    refused("x", Tensor::from_f32([2, 63], &[0.0; 126]), &["`x`", "f32[2, 64]", "f32[2, 63]"]);
    refused("x", x().convert(DType::F64), &["`x`", "f32", "f64", "nothing is cast silently"]);
    refused("x", Tensor::from_ints(DType::I32, [1, 64], &[1; 64]), &["`x`", "i32[1, 64]"]);
}

#[test]
fn parameters_from_a_file_are_used_and_must_fit() {
    let folder = prepared();
    let template = (overdrive::models::find("digits-mlp").unwrap().build)().unwrap();
    let zeros: Vec<(&str, Tensor)> = template
        .states()
        .iter()
        .map(|s| {
            let ty = template.ty(s.value);
            (
                s.name.as_str(),
                Tensor::from_f64(ty.dtype, ty.shape.clone(), &vec![0.0; ty.elements()]),
            )
        })
        .collect();
    folder.tensors("zeros.safetensors", &zeros);
    folder.tensors("few.safetensors", &zeros[1..]);
    let more: Vec<_> = zeros.iter().cloned().chain([("stray", y(0.0))]).collect();
    folder.tensors("more.safetensors", &more);
    folder.tensors(
        "none.npz",
        &[("y", Tensor::from_f64(DType::F32, [BATCH, 10], &[0.0; 10 * BATCH]))],
    );

    let with = |name: &str| {
        eval(&folder, &format!("--inputs x.npz --expect none.npz --parameters {name}"))
    };
    with("few.safetensors").ends(2, &[zeros[0].0, "missing"]);
    with("more.safetensors").ends(2, &["`stray` is not a parameter"]);
    with("absent.npz").ends(2, &["absent.npz"]);
    with("zeros.safetensors").ends(0, &["agrees"]);
}

#[test]
fn an_output_that_cannot_be_written_is_bad_input() {
    let folder = prepared();
    for place in ["x.npz/below.npz", "absent/out.npz", "out.txt"] {
        folder.line(&format!("eval digits-mlp --inputs x.npz -o {place}")).ends(2, &[place]);
    }
    assert_eq!(folder.files(), ["x.npz"]);
}

/// A graph in a file of ONNX.
fn onnx(folder: &Folder, build: impl FnOnce(&Builder)) {
    let b = Builder::new("model");
    build(&b);
    let (path, graph) = (folder.path("model.onnx"), b.finish().unwrap());
    formats::onnx::write(&path, &graph, formats::onnx::Dialect::Standard).unwrap();
}

#[test]
fn an_index_that_does_not_exist_is_refused() {
    let folder = Folder::new();
    let ids = |values: [i128; 3]| {
        folder.tensors("ids.npz", &[("ids", Tensor::from_ints(DType::I64, [3], &values))]);
        folder.line("eval model.onnx --device cpu --threads 1 --inputs ids.npz -o out.npz")
    };
    // Ten rows of four, read by Gather alone: our own exporter writes the clamp of our gather with
    // it.
    fs::write(folder.path("model.onnx"), include_bytes!("gather.onnx")).unwrap();
    ids([0, 9, 5]).ends(0, &["f32[3, 4]"]);
    fs::remove_file(folder.path("out.npz")).unwrap();
    // ONNX counts negative indices from the end.
    ids([0, -10, -1]).ends(0, &["f32[3, 4]"]);
    fs::remove_file(folder.path("out.npz")).unwrap();
    ids([0, 99, 5]).ends(2, &["`ids`", "10", "99 as element 1"]);
    ids([0, 9, -11]).ends(2, &["`ids`", "10", "-11 as element 2"]);
    assert!(!folder.path("out.npz").exists());
    let tokens: Vec<i128> = (0..128).map(|i| if i == 7 { 256 } else { i }).collect();
    folder.tensors("tokens.npz", &[("x", Tensor::from_ints(DType::I32, [1, 128], &tokens))]);
    let text = "--device cpu --threads 1 --inputs tokens.npz";
    folder.line(&format!("eval text-transformer {text}")).ends(2, &["`x`", "256 as element 7"]);
    folder
        .line(&format!("bench text-transformer {text} --trials 5"))
        .ends(2, &["`x`", "256 as element 7"]);
    let quantized =
        "quantize text-transformer --device cpu --mode int8-static --data tokens.npz -o none";
    folder.line(quantized).ends(2, &["tokens.npz"]);
}

#[test]
fn integers_and_infinities_are_expected_exactly() {
    let folder = Folder::new();
    onnx(&folder, |b| {
        let n = b.input("n", TensorType::new(DType::I64, [2usize]));
        let x = b.input("x", TensorType::new(DType::F32, [2usize]));
        b.output("m", n + n.constant(0.0));
        b.output("y", x.log());
    });
    let ints = |values: [i128; 2]| Tensor::from_ints(DType::I64, [2], &values);
    let floats = |values: [f32; 2]| Tensor::from_f32([2], &values);
    folder.tensors("in.npz", &[("n", ints([1_000_000, 2])), ("x", floats([0.0, -1.0]))]);
    let eval = |m: [i128; 2], y: [f32; 2]| {
        folder.tensors("expected.npz", &[("m", ints(m)), ("y", floats(y))]);
        folder
            .line("eval model.onnx --device cpu --threads 1 --inputs in.npz --expect expected.npz")
    };
    let (inf, nan) = (f32::NEG_INFINITY, f32::NAN);
    eval([1_000_000, 2], [inf, nan])
        .ends(0, &["all 2 values are equal", "1 NaN where NaN is expected", "warning: output `y`"]);
    eval([1_000_003, 2], [inf, nan])
        .ends(4, &["1 of 2 values differ", "expected 1000003, found 1000000"]);
    eval([1_000_000, 2], [f32::MIN, nan]).ends(4, &["NaN or infinite in one"]);
    eval([1_000_000, 2], [inf, 0.0]).ends(4, &["NaN or infinite in one"]);
}

#[test]
fn a_benchmark_takes_inputs_where_random_ones_say_nothing() {
    let folder = Folder::new();
    onnx(&folder, |b| {
        let x = b.input("x", TensorType::new(DType::F32, [4usize, 8]));
        b.output("y", x.log());
    });
    let bench = |more: &str| {
        folder.line(&format!(
            "bench model.onnx --backends cpu --threads 1 --modes compile --trials 5 {more}"
        ))
    };
    bench("").ends(3, &["the reference itself", "not finite on these inputs", "--inputs"]);
    folder.tensors("x.npz", &[("x", Tensor::from_f32([4, 8], &[0.5; 32]))]);
    folder.tensors("y.npz", &[("x", Tensor::from_f32([4, 9], &[0.5; 36]))]);
    bench("--inputs x.npz").ends(0, &[]);
    bench("--inputs y.npz").ends(2, &["`x`", "f32[4, 8]", "f32[4, 9]"]);
    bench("--inputs x.npz --batch 2").ends(2, &["--inputs"]);
}
