//! Files of ONNX end to end: exported with free dimensions, quantized to a file and to a folder.

use crate::invocation::{Folder, Outcome};
use overdrive::formats::onnx::{Binding, Model};
use overdrive::ir::eval::philox;
use overdrive::ir::{DType, Tensor};
use std::fs;
use std::path::Path;

fn normals(shape: &[usize], seed: u64) -> Tensor {
    let values: Vec<f64> = philox::normals(seed, 1).take(shape.iter().product()).collect();
    Tensor::from_f64(DType::F32, shape.to_vec(), &values)
}

/// Token ids and a mask that lets all of them through.
fn tokens(batch: usize, tokens: usize) -> [(&'static str, Tensor); 2] {
    let ids: Vec<i128> = (0..batch * tokens).map(|at| (at * 7 % 23) as i128).collect();
    let of = |values: &[i128]| Tensor::from_ints(DType::I32, [batch, tokens], values);
    [("x", of(&ids)), ("mask", of(&vec![1; batch * tokens]))]
}

/// Names of the free dimensions of a file.
fn free(path: &Path) -> Vec<String> {
    Model::open(path).unwrap().dimensions().unwrap().into_iter().collect()
}

fn pretrained(name: &str) -> String {
    let folder =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-studies/tests/pretrained");
    folder.join(name).to_string_lossy().into_owned()
}

/// Two models give the same outputs for these inputs.
#[track_caller]
fn assert_alike(folder: &Folder, [one, other]: [&str; 2], inputs: &[(&str, Tensor)]) {
    folder.tensors("inputs.npz", inputs);
    let line =
        |model: &str, rest: &str| format!("eval {model} --device cpu --inputs inputs.npz {rest}");
    folder.line(&line(one, "-o outputs.npz --force")).ends(0, &[]);
    folder.line(&line(other, "--expect outputs.npz --rtol 1e-3 --atol 1e-4")).ends(0, &["agrees"]);
}

#[test]
fn an_exported_model_is_free_in_every_dimension_without_a_size() {
    let folder = Folder::new();
    folder.line("export digits-conv --onnx any.onnx").ends(0, &["any batch"]);
    assert_eq!(free(&folder.path("any.onnx")), ["batch"]);
    assert_alike(&folder, ["digits-conv", "any.onnx"], &[("x", normals(&[5, 1, 8, 8], 3))]);
    folder.line("export digits-conv --onnx four.onnx --shape batch=4").ends(0, &["fixed sizes"]);
    assert_eq!(free(&folder.path("four.onnx")), Vec::<String>::new());
    // A file of the user's is freed again.
    folder.line("export any.onnx --onnx again.onnx").ends(0, &["any batch"]);
    assert_alike(&folder, ["any.onnx", "again.onnx"], &[("x", normals(&[7, 1, 8, 8], 3))]);
    folder.line("export digits-conv --onnx none.onnx --shape rows=4").ends(2, &["`rows`"]);
    assert!(!folder.path("none.onnx").exists());
}

#[test]
fn weights_stand_beside_a_file_where_that_is_asked_for() {
    let folder = Folder::new();
    let line = "export digits-mlp --onnx apart.onnx --external-data";
    folder.line(line).ends(0, &["any batch"]);
    assert_eq!(folder.files(), ["apart.onnx", "apart.onnx.data"]);
    let bytes = |name| fs::metadata(folder.path(name)).unwrap().len();
    assert!(bytes("apart.onnx") < 10_000 && bytes("apart.onnx.data") > 60_000);
    assert_alike(&folder, ["digits-mlp", "apart.onnx"], &[("x", normals(&[5, 64], 3))]);
    // A server gets both, and data of another file stay.
    folder
        .line("export apart.onnx --triton served --shape batch=4")
        .ends(0, &["batches of up to 4"]);
    let served = folder.path("served/digits-mlp/1/model.onnx");
    assert_alike(&folder, ["digits-mlp", served.to_str().unwrap()], &[("x", normals(&[3, 64], 3))]);
    fs::remove_file(folder.path("apart.onnx")).unwrap();
    folder.line(line).ends(2, &["apart.onnx.data", "exists", "--force"]);
    assert!(!folder.path("apart.onnx").exists());
    folder.line(&format!("{line} --force")).ends(0, &[]);
    fs::remove_file(folder.path("apart.onnx.data")).unwrap();
    folder.tensors("x.npz", &[("x", normals(&[2, 64], 3))]);
    folder
        .line("eval apart.onnx --device cpu --inputs x.npz")
        .ends(2, &["apart.onnx.data", "keep it beside the model"]);
}

#[test]
fn published_models_are_free_in_batch_and_tokens() {
    for name in ["llama", "bert"] {
        let folder = Folder::new();
        let model = pretrained(name);
        folder.line(&format!("export {model} --onnx any.onnx")).ends(0, &["any batch, any tokens"]);
        assert_eq!(free(&folder.path("any.onnx")), ["batch", "tokens"]);
        for (batch, length) in [(1, 3), (3, 9)] {
            let [ids, mask] = tokens(batch, length);
            let inputs = if name == "bert" { vec![ids, mask] } else { vec![ids] };
            assert_alike(&folder, [&model, "any.onnx"], &inputs);
        }
    }
}

/// Quantizes with few samples of the latency.
#[track_caller]
fn quantize(folder: &Folder, arguments: &str) -> Outcome {
    folder.line(&format!("quantize {arguments} --device cpu --threads 1 --trials 5 --batches 2"))
}

#[test]
fn a_file_is_quantized_to_a_file_of_any_batch() {
    let folder = Folder::new();
    folder.line("export digits-mlp --onnx model.onnx").ends(0, &[]);
    folder.tensors("samples.npz", &[("x", normals(&[64, 64], 7))]);
    for mode in ["int8-dynamic", "int8-static", "int8-weights", "int4-gptq", "fp8"] {
        let words = [
            "any batch",
            "held-out samples",
            "the file",
            "bench, eval, profile and export take it",
        ];
        quantize(
            &folder,
            &format!("model.onnx --mode {mode} --data samples.npz -o small.onnx --force"),
        )
        .ends(0, &words);
        assert_eq!(free(&folder.path("small.onnx")), ["batch"], "{mode}");
        let bytes = |name| fs::metadata(folder.path(name)).unwrap().len();
        let [small, whole] = ["small.onnx", "model.onnx"].map(bytes);
        assert!((small as f64) < 0.45 * whole as f64, "{mode}: {small} of {whole}");
    }
    // At another batch it is what the folder of the same model is.
    quantize(&folder, "digits-mlp --mode int8-weights -o same").ends(0, &[]);
    let words = ["random inputs", "batches of 8"];
    quantize(&folder, "model.onnx --mode int8-weights -o weights.onnx").ends(0, &words);
    assert_alike(&folder, ["same", "weights.onnx"], &[("x", normals(&[5, 64], 3))]);
}

#[test]
fn a_file_is_quantized_to_a_folder_that_has_a_file_too() {
    let folder = Folder::new();
    folder.line("export digits-conv --onnx model.onnx").ends(0, &[]);
    let to_folder = |mode: &str, rest: &str| {
        quantize(&folder, &format!("model.onnx --mode {mode} --shape batch=4 -o small {rest}"))
    };
    to_folder("int8-static", "").ends(0, &["files of the folder", "`model.onnx` takes any batch"]);
    assert_eq!(free(&folder.path("small/model.onnx")), ["batch"]);
    assert_alike(&folder, ["small", "small/model.onnx"], &[("x", normals(&[4, 1, 8, 8], 3))]);
    // It is listed as ours, so that it may be replaced.
    to_folder("int8-weights", "--force").ends(0, &[]);
    let read = Model::open(&folder.path("small/model.onnx")).unwrap();
    let sizes = [("batch".to_owned(), 2)].into();
    assert!(read.graph(&Binding { sizes, ..Binding::default() }).is_ok());
}

#[test]
fn every_kind_of_model_is_quantized_to_a_file() {
    let folder = Folder::new();
    quantize(&folder, "digits-mlp --mode int8-weights -o mlp.onnx").ends(0, &["any batch"]);
    let bert = pretrained("bert");
    let words = ["any batch, any tokens"];
    quantize(&folder, &format!("{bert} --mode int8-dynamic -o bert.onnx")).ends(0, &words);
    assert_eq!(free(&folder.path("bert.onnx")), ["batch", "tokens"]);
    let [ids, mask] = tokens(3, 5);
    folder.tensors("inputs.npz", &[ids, mask]);
    folder.line("eval bert.onnx --device cpu --inputs inputs.npz").ends(0, &["f32[3, 5"]);
}

#[test]
fn what_cannot_be_quantized_is_refused_and_leaves_nothing() {
    let folder = Folder::new();
    let bert = pretrained("bert");
    folder.line(&format!("export {bert} --onnx bert.onnx")).ends(0, &[]);
    let refused = |arguments: &str, words: &[&str]| {
        quantize(&folder, &format!("{arguments} -o small.onnx")).ends(2, words);
    };
    // The length of a text has no size that anybody could guess.
    refused("bert.onnx --mode int8-weights", &["--shape tokens=1"]);
    refused("bert.onnx --mode int8-weights --shape tokens=3 --shape length=3", &["length"]);
    fs::write(folder.path("broken.onnx"), "no model").unwrap();
    refused("broken.onnx --mode int8-weights", &["broken.onnx"]);
    refused("absent.onnx --mode int8-weights", &["absent.onnx"]);
    folder.line("export digits-mlp --onnx model.onnx").ends(0, &[]);
    // The user's own file stays unless she says otherwise.
    let itself = quantize(&folder, "model.onnx --mode int8-weights -o model.onnx");
    itself.ends(2, &["model.onnx"]);
    folder.tensors("wrong.npz", &[("x", normals(&[64, 3], 1))]);
    refused("model.onnx --mode int8-weights --data wrong.npz", &["f32[64, 3]"]);
    let lost = quantize(&folder, "model.onnx --mode int8-static --max-loss 0 -o small.onnx");
    lost.ends(4, &["nothing was written"]);
    assert!(!folder.files().iter().any(|name| name.contains("small")), "{:?}", folder.files());
}
