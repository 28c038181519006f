//! Names that mean two things, and names that mean one thing everywhere.

use crate::invocation::Folder;
use overdrive::ir::Tensor;
use std::fs;

#[test]
fn a_name_that_is_a_folder_and_built_in_is_asked_about() {
    let folder = Folder::new();
    folder.tensors("x.npz", &[("x", Tensor::from_f32([1, 64], &[0.5; 64]))]);
    folder
        .line("train digits-mlp --data digits --steps 2 --device cpu --threads 1 -o mlp")
        .ends(0, &[]);
    for line in [
        "export mlp --onnx m.onnx",
        "eval mlp --inputs x.npz",
        "bench mlp --trials 5",
        "profile mlp --calls 1",
        "quantize mlp --mode int8-weights -o small",
        "train mlp --data digits -o other",
    ] {
        folder.line(line).ends(2, &["`./mlp`", "`builtin:mlp`"]);
    }
    folder.line("eval ./mlp --inputs x.npz --threads 1").ends(0, &["f32[1, 10]"]);
    folder.line("eval builtin:digits-mlp --inputs x.npz --threads 1").ends(0, &["f32[1, 10]"]);
    folder.line("eval builtin:nothing --inputs x.npz").ends(2, &["unknown model `nothing`"]);
    fs::write(folder.path("digits"), "1,2,0\n").unwrap();
    folder
        .line("train digits-mlp --data digits --steps 2 -o other")
        .ends(2, &["`./digits`", "`builtin:digits`"]);
    folder
        .line("train digits-mlp --data builtin:digits --steps 2 --device cpu --threads 1 -o other")
        .ends(0, &[]);
}

#[test]
fn a_name_means_the_same_weights_in_every_command() {
    let folder = Folder::new();
    folder.tensors("x.npz", &[("x", Tensor::from_f32([1, 64], &[0.5; 64]))]);
    let note = "trained weights that come with Overdrive";
    folder.line("eval digits-mlp --inputs x.npz --threads 1 -o y.npz").ends(0, &[note]);
    folder.line("export digits-mlp --shape batch=1 --onnx m.onnx").ends(0, &[note]);
    folder.line("eval m.onnx --inputs x.npz --expect y.npz --threads 1").ends(0, &["agrees"]);
    folder.line("models").ends(0, &["weights", "trained", "random", "builtin:NAME"]);
    // Training starts anew, and says so.
    folder
        .line("train digits-mlp --data digits --steps 2 --device cpu --threads 1 -o m")
        .ends(0, &["trained anew"]);
}
