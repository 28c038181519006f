//! `quantize` to 16 bits: half of the bytes, in every place that a model is written to, and read
//! again by every command.

use crate::invocation::{Folder, Outcome};
use crate::quantize_published::{config, fixture, quantize, states};
use overdrive::ir::eval::philox;
use overdrive::ir::{DType, Tensor};
use std::fs;

#[track_caller]
fn briefly(folder: &Folder, arguments: &str) -> Outcome {
    folder.line(&format!("quantize {arguments} --device cpu --threads 1 --trials 5 --batches 1"))
}

fn x(rows: usize) -> Tensor {
    let values: Vec<f64> = philox::normals(5, 1).take(rows * 64).collect();
    Tensor::from_f64(DType::F32, [rows, 64], &values)
}

#[test]
fn a_built_in_model_and_a_file_have_half_of_the_bytes() {
    // Two units of an output, which is between 8 and 16. Products of a file round their results,
    // and ours keep sums.
    for (mode, units) in [("bf16", "0.125"), ("f16", "0.016")] {
        let folder = Folder::new();
        folder.line("export digits-mlp --onnx float.onnx").ends(0, &[]);
        briefly(&folder, &format!("digits-mlp --mode {mode} -o small")).ends(0, &["is a model"]);
        briefly(&folder, &format!("float.onnx --mode {mode} -o small.onnx"))
            .ends(0, &["any batch"]);
        let bytes = |name: &str| fs::metadata(folder.path(name)).unwrap().len() as f64;
        for name in ["small/model.safetensors", "small.onnx"] {
            let share = bytes(name) / bytes("float.onnx");
            assert!((0.45..0.6).contains(&share), "{mode} {name}: {share}");
        }
        folder.tensors("x.npz", &[("x", x(3))]);
        folder
            .line("eval small --device cpu --threads 1 --inputs x.npz -o once.npz")
            .ends(0, &["f32[3, 10]"]);
        for (model, tolerance) in [("small", "0"), ("small.onnx", units)] {
            let asked = format!("--expect once.npz --rtol 0 --atol {tolerance}");
            folder
                .line(&format!("eval {model} --device cpu --threads 1 --inputs x.npz {asked}"))
                .ends(0, &["agrees"]);
        }
        // Nothing is left to quantize.
        let again = folder.line("quantize small --mode int8-weights --device cpu -o smaller");
        again.ends(2, &["no layer", "nothing was written"]);
    }
}

#[test]
fn a_search_mixes_sixteen_bits_with_fewer() {
    let folder = Folder::new();
    let asked = "digits-mlp --search --mode bf16,int4-rtn --data digits --max-loss 2";
    briefly(&folder, &format!("{asked} --max-slowdown 100 -o mixed"))
        .ends(0, &["taken: ", "is a model"]);
}

/// A folder in 16 bits is a plain checkpoint, which every command takes.
#[test]
fn sixteen_bits_are_a_plain_checkpoint() {
    for (mode, name, half) in
        [("bf16", "llama", DType::BF16), ("f16", "gpt2", DType::F16), ("bf16", "bert", DType::BF16)]
    {
        let folder = Folder::new();
        let made =
            quantize(&folder, &fixture(name), &format!("--mode {mode} --data words.txt -o small"));
        made.ends(0, &["is a model"]);
        let config = config(&folder, "small");
        assert!(config.get("quantization_config").is_none(), "{name}: {config}");
        let matrices =
            states(&folder, "small").into_values().filter(|weight| weight.ty().rank() > 1);
        assert!(matrices.map(|weight| weight.ty().dtype).all(|found| found == half), "{name}");
        let ids = Tensor::from_ints(DType::I32, [1usize, 3], &[1, 2, 3]);
        let mask = Tensor::from_ints(DType::I32, [1usize, 3], &[1; 3]);
        let inputs = [("x", ids), ("mask", mask)];
        folder.tensors("x.npz", &inputs[..if name == "bert" { 2 } else { 1 }]);
        folder.line("eval small --inputs x.npz --device cpu --threads 1").ends(0, &["f32[1"]);
        folder
            .line("bench small --trials 5 --modes compile --backends cpu --threads 1 -o report")
            .ends(0, &[]);
        if name != "bert" {
            folder
                .line("generate small --prompt hand --max-tokens 3 --device cpu --threads 1")
                .ends(0, &["3 made", &format!("{half} weights")]);
        }
        quantize(&folder, &folder.path("small"), "--mode fp8 --data words.txt -o again")
            .ends(2, &["is quantized already", mode]);
    }
}
