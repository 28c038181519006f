//! Less memory than a user's sizes ask for: an error with both sizes before it is taken, and never
//! an abort.

use crate::invocation::Folder;
use overdrive::ir::{DType, Tensor};
use std::fs;

/// Address space of the process: the program itself fits, and little beside it.
const KIBIBYTES: u32 = 1 << 20;

#[test]
fn inputs_that_cannot_be_drawn_are_refused_with_their_size() {
    let folder = Folder::new();
    // 4,000,000 rows of 64 numbers are 1 GB.
    let line = "profile digits-mlp --batch 4000000 --calls 1 --threads 1 --device cpu";
    folder.within(KIBIBYTES, line).ends(2, &["out of memory", "need"]);
    assert!(folder.files().is_empty());
}

#[test]
fn a_file_that_no_memory_holds_is_named() {
    let folder = Folder::new();
    let bytes: u64 = 4 << 30;
    let header =
        format!(r#"{{"x":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[0,{bytes}]}}}}"#);
    let mut start = (header.len() as u64).to_le_bytes().to_vec();
    start.extend(header.bytes());
    fs::write(folder.path("big.safetensors"), &start).unwrap();
    // Its end is a hole, which takes no room on the disk.
    let sparse = |name: &str, bytes: u64| {
        let file = fs::File::options().create(true).append(true).open(folder.path(name)).unwrap();
        file.set_len(bytes).unwrap();
    };
    sparse("big.safetensors", start.len() as u64 + bytes);
    sparse("big.onnx", bytes);
    let line = "eval digits-mlp --inputs big.safetensors --device cpu --threads 1";
    folder.within(KIBIBYTES, line).ends(2, &["out of memory for `big.safetensors`", "found"]);
    folder
        .within(KIBIBYTES, "export big.onnx --stablehlo y")
        .ends(2, &["out of memory for `big.onnx`"]);
}

#[test]
fn outputs_that_cannot_be_as_expected_are_not_computed() {
    let folder = Folder::new();
    folder.tensors("x.npz", &[("x", Tensor::from_f32([1, 64], &[0.5; 64]))]);
    folder.tensors("y.npz", &[("y", Tensor::from_f32([2, 10], &[0.5; 20]))]);
    folder.tensors("ints.npz", &[("y", Tensor::from_ints(DType::I32, [1, 10], &[1; 10]))]);
    let eval = |file: &str| {
        folder.line(&format!("eval digits-mlp --inputs x.npz --expect {file} -o out.npz"))
    };
    eval("y.npz").ends(4, &["expected f32[2, 10], found f32[1, 10]", "DISAGREES", "was not run"]);
    eval("ints.npz").ends(4, &["expected i32[1, 10]", "was not run"]);
    assert!(!folder.path("out.npz").exists());
}

#[test]
fn a_limit_on_the_memory_of_a_step_changes_the_plan_and_no_weight() {
    let folder = Folder::new();
    // A short text: the test is not about the scores of a run.
    let lines = (0..1500).map(|i| format!("{i} ships came home by the light of day {}.\n", i * i));
    fs::write(folder.path("short.txt"), lines.collect::<String>()).unwrap();
    let train = |rest: &str| {
        let line = "train text-transformer --data short.txt --batch 2 --steps 1 --device cpu";
        folder.line(&format!("{line} --threads 1 {rest}"))
    };
    let refused = train("--memory-limit 1KiB -o none");
    let said = &refused
        .ends(2, &["there are 1024", "it does not even fit with --moments fp8 --batch 1"])
        .stderr;
    assert!(!said.contains("a smaller batch"), "{said}");
    let words: Vec<&str> = said.split_whitespace().collect();
    let at = words.windows(2).position(|pair| pair == ["at", "least"]).unwrap();
    train(&format!("--memory-limit {} -o tight", words[at + 2])).ends(0, &["text-transformer"]);
    train("-o free").ends(0, &["text-transformer"]);
    let weights = |name: &str| fs::read(folder.path(name).join("model.safetensors")).unwrap();
    assert!(weights("tight") == weights("free"));
    assert!(!folder.path("none").exists());
}
