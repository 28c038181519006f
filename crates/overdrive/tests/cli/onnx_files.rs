//! Files of ONNX end to end: exported with free dimensions.

use crate::invocation::Folder;
use overdrive::formats::onnx::Model;
use overdrive::ir::eval::philox;
use overdrive::ir::{DType, Tensor};
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
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-studies/tests/pretrained");
    folder.join(name).to_string_lossy().into_owned()
}

/// Two models give the same outputs for these inputs.
#[track_caller]
fn assert_alike(folder: &Folder, [one, other]: [&str; 2], inputs: &[(&str, Tensor)]) {
    folder.tensors("inputs.npz", inputs);
    let line = |model: &str, rest: &str| format!("eval {model} --device cpu --inputs inputs.npz {rest}");
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
