//! Paths that are pipes or devices, in every place that takes a file: refused at once, by name.
#![cfg(unix)]

use crate::invocation::Folder;
use overdrive::ir::Tensor;
use std::fs;
use std::path::Path;
use std::process::Command;

/// A pipe that nobody writes to.
fn pipe(folder: &Folder, name: &str) {
    let made = Command::new("mkfifo").arg(folder.path(name)).status().unwrap();
    assert!(made.success());
}

const REFUSED: &str = "found a pipe or a device";

#[test]
fn files_that_are_named_are_not_waited_for() {
    let folder = Folder::new();
    folder.tensors("x.npz", &[("x", Tensor::from_f32([1, 64], &[0.5; 64]))]);
    for name in [
        "p",
        "p.npz",
        "p.safetensors",
        "p.onnx",
        "p.csv",
        "p.json",
        "p.html",
        "p-images-idx3-ubyte",
    ] {
        pipe(&folder, name);
    }
    let before = folder.files();
    for line in [
        "eval digits-mlp --inputs p.npz",
        "eval digits-mlp --inputs p.safetensors",
        "eval digits-mlp --inputs x.npz --expect p.npz",
        "eval digits-mlp --inputs x.npz --parameters p.safetensors",
        "bench p.onnx --trials 5",
        "train digits-mlp --data p.csv -o out",
        "train digits-mlp --data p.npz -o out",
        "train digits-mlp --data p-images-idx3-ubyte -o out",
        "train text-transformer --data p -o out",
        "train text-transformer --data /dev/zero -o out",
        "train text-transformer --data text --tokenizer p.json -o out",
        "tokens x.npz --tokenizer p.json -o out",
        "quantize digits-mlp --mode int8-static --data p.npz -o out",
        "report p.json --out out",
        "report p.html --out out",
        "report /dev/zero --out out",
        "compare p.json p.json",
        "history p.json",
        "history p.json --add p.json",
        "info --install onnxruntime --wheel p",
    ] {
        folder.line(line).ends(2, &[REFUSED]);
        assert_eq!(folder.files(), before, "{line}");
    }
}

/// Copies the files of a folder.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn files_in_folders_are_not_waited_for() {
    let folder = Folder::new();
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let models = [
        (
            "overdrive-train/trained/digits-mlp",
            &["config.json", "graph.txt", "model.safetensors"][..],
        ),
        (
            "overdrive-studies/tests/pretrained/gpt2",
            &["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"],
        ),
    ];
    for (model, files) in models {
        for file in files {
            for device in [None, Some("/dev/zero")] {
                copy(&tests.join(model), &folder.path("m"));
                let path = folder.path(&format!("m/{file}"));
                let _ = fs::remove_file(&path);
                match device {
                    None => pipe(&folder, &format!("m/{file}")),
                    Some(device) => std::os::unix::fs::symlink(device, &path).unwrap(),
                }
                folder.line("bench m --trials 5 --modes jit").ends(2, &[REFUSED, file]);
                fs::remove_dir_all(folder.path("m")).unwrap();
            }
        }
    }
    fs::create_dir(folder.path("r")).unwrap();
    pipe(&folder, "r/results.json");
    for line in ["compare r r", "run --quick --resume r", "report r/results.json --out s"] {
        folder.line(line).ends(2, &[REFUSED, "results.json"]);
    }
}
