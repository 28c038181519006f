//! `quantize` end to end: the folder is a smaller model that other commands take, and every way in
//! which it is refused.

use crate::invocation::{Folder, Outcome};
use overdrive::ir::eval::philox;
use overdrive::ir::{DType, Tensor};
use std::fs;

/// Runs `quantize digits-mlp` with few samples of its latency.
#[track_caller]
fn quantize(folder: &Folder, arguments: &str) -> Outcome {
    folder.line(&format!(
        "quantize digits-mlp --device cpu --threads 1 --trials 5 --batches 1 {arguments}"
    ))
}

fn x(rows: usize) -> Tensor {
    let values: Vec<f64> = philox::normals(5, 1).take(rows * 64).collect();
    Tensor::from_f64(DType::F32, [rows, 64], &values)
}

#[test]
fn what_it_writes_is_a_smaller_model() {
    let folder = Folder::new();
    quantize(&folder, "--mode int8-dynamic -o small")
        .ends(0, &["scales", "cosine", "latency", "unquantized"]);
    let bytes = fs::metadata(folder.path("small/model.safetensors")).unwrap().len();
    let float = 4 * (64 * 128 + 128 * 128 + 128 * 10 + 266);
    assert!((bytes as f64) < 0.35 * f64::from(float), "{bytes} of {float}");
    folder.tensors("x.npz", &[("x", x(3))]);
    folder.line("eval small --device cpu --inputs x.npz -o once.npz").ends(0, &["f32[3, 10]"]);
    folder
        .line("eval small --device cpu --inputs x.npz --expect once.npz --rtol 0 --atol 0")
        .ends(0, &["agrees"]);
    // A quantized model has nothing left to quantize.
    let again = folder.line("quantize small --mode int8-weights --device cpu -o smaller");
    again.ends(2, &["no layer", "nothing was written"]);
    assert!(!folder.path("smaller").exists());
}

#[test]
fn four_bits_in_groups_and_layers_that_cannot_take_them() {
    let folder = Folder::new();
    quantize(&folder, "--mode int4-gptq --group 32 -o small")
        .ends(0, &["error relative to their size"]);
    // 128 columns have no groups of 48: those layers stay, and it is said.
    let skipped = quantize(&folder, "--mode int4-rtn --group 48 -o none");
    skipped.ends(2, &["multiple of 48", "no layer"]);
    assert!(!folder.path("none").exists());
}

#[test]
fn the_users_own_samples_calibrate_and_judge() {
    let folder = Folder::new();
    folder.tensors("many.npz", &[("x", x(256))]);
    folder.tensors("few.npz", &[("x", x(70))]);
    folder.tensors("wrong.npz", &[("x", Tensor::from_f32([4, 8], &[0.0; 32]))]);
    quantize(&folder, "--mode int8-static --data many.npz -o small").ends(0, &["held-out samples"]);
    for (file, words) in [
        ("few.npz", "at least 192 samples"),
        ("wrong.npz", "f32[4, 8]"),
        ("absent.npz", "absent.npz"),
    ] {
        let refused = quantize(&folder, &format!("--mode int8-static --data {file} -o none"));
        refused.ends(2, &[words]);
        assert!(!folder.path("none").exists());
    }
}

#[test]
fn limits_and_names_are_kept() {
    let folder = Folder::new();
    quantize(&folder, "--mode int9 -o none")
        .ends(2, &["unknown mode `int9`", "int8-static", "nvfp4"]);
    quantize(&folder, "--mode int4-rtn --max-loss 0.0001 -o none")
        .ends(4, &["--max-loss", "nothing was written"]);
    assert_eq!(folder.files(), Vec::<String>::new());
}

#[test]
fn labelled_samples_judge_by_what_they_say() {
    let folder = Folder::new();
    let words = ["trained weights", "top1_percent", "lost, paired (points)", "360 test samples"];
    quantize(&folder, "--mode int8-static --data digits --max-loss 2 -o small").ends(0, &words);
    let refused =
        quantize(&folder, "--mode int4-rtn --data digits --metric perplexity --max-loss 0 -o none");
    refused.ends(4, &["perplexity", "--max-loss allows 0", "nothing was written"]);
    quantize(&folder, "--mode int8-static --metric top1 -o none")
        .ends(2, &["--metric top1 needs labels", "no --data"]);
    quantize(&folder, "--mode int8-static --data text -o none")
        .ends(2, &["at most 10 classes", "found 256"]);
    assert!(!folder.path("none").exists());
}

#[test]
fn a_scan_says_what_each_layer_costs_and_a_search_mixes_modes() {
    let folder = Folder::new();
    let scan = quantize(&folder, "--sensitivity --mode int4-rtn --data digits");
    scan.ends(0, &["perplexity lost (%) by each layer, alone", "fc1", "fc2", "fc3", "95 %"]);
    assert_eq!(folder.files(), Vec::<String>::new());
    let found =
        quantize(&folder, "--search --data digits --max-loss 1 --max-slowdown 1000 -o mixed");
    found.ends(0, &["front", "taken:", "all float", "`mixed` is a model"]);
    let config = fs::read_to_string(folder.path("mixed/config.json")).unwrap();
    assert!(config.contains("search of int8-dynamic, int4-gptq"), "{config}");
    quantize(&folder, "--search --mode int4-awq -o none").ends(2, &["int4-awq", "alone"]);
    quantize(&folder, "--mode int4-rtn,fp8 -o none").ends(2, &["expected one --mode, found 2"]);
    assert!(!folder.path("none").exists());
}

#[test]
fn a_damaged_model_is_refused() {
    let folder = Folder::new();
    quantize(&folder, "--mode mxfp4 -o small").ends(0, &["cosine"]);
    folder.tensors("x.npz", &[("x", x(3))]);
    let states = folder.path("small/model.safetensors");
    let good = fs::read(&states).unwrap();
    fs::write(&states, &good[..good.len() - 7]).unwrap();
    folder.line("eval small --device cpu --inputs x.npz").ends(2, &["model.safetensors"]);
    let graph = folder.path("small/graph.txt");
    fs::write(&states, &good).unwrap();
    // Mislabelled: the graph says i8 where the file has four bits.
    let text = fs::read_to_string(&graph).unwrap().replace("f4e2m1", "i8");
    fs::write(&graph, text).unwrap();
    folder.line("eval small --device cpu --inputs x.npz").ends(2, &["small"]);
}

#[test]
fn what_cannot_be_trained_is_refused_before_the_first_step() {
    let folder = Folder::new();
    for mode in ["int8-dynamic", "int4-rtn"] {
        folder
            .line(&format!("quantize digits-mlp --mode {mode} --trials 5 -o {mode}"))
            .ends(0, &[]);
        let train = format!("train {mode} --data digits --steps 1 -o again");
        folder.line(&train).ends(2, &["expected weights in f32", "train the float model"]);
        assert!(!folder.path("again").exists());
    }
}
