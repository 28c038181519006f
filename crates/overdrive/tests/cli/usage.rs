//! Wrong command lines: exit code 2, the offending word, and what was meant instead. And what only
//! prints.

use crate::invocation::Folder;
use serde_json::Value;

/// Fails unless the command line is refused with these words, and nothing is written.
#[track_caller]
fn refused(line: &str, words: &[&str]) {
    let folder = Folder::new();
    folder.line(line).ends(2, words);
    assert!(folder.files().is_empty(), "{line}: {:?}", folder.files());
}

#[test]
fn what_is_misspelt_is_named_with_what_was_meant() {
    refused("bnech mlp", &["bnech", "bench"]);
    refused("bench digit-mlp --trials 5", &["`digit-mlp`", "did you mean `digits-mlp`?"]);
    refused("profile transfomer", &["`transfomer`", "did you mean `transformer`?"]);
    refused("eval moel --inputs x.npz", &["`moel`", "expected one of mlp, conv"]);
    refused("bench m.pt", &["no model at `m.pt`", "no such file or folder", ".onnx"]);
    refused("bench mlp --modes graph --device cpu", &["--modes graph", "--modes compile"]);
    refused("export mlp", &["--onnx", "--triton", "--stablehlo"]);
    refused("run kernel --quick", &["`kernel`", "did you mean `kernels`?"]);
    refused("bench mlp --modes eager,jot", &["jot", "jit"]);
    refused("bench mlp --dtype bf17", &["bf17", "bf16"]);
    refused("bench mlp --device cuda0", &["`cuda0`", "`cpu`", "`cuda:N`"]);
    // Without a driver the remedy is to install one, with one to take a GPU that is there.
    refused("bench mlp --device cuda:999", &["cuda:999", "`--device cpu`"]);
    refused("run --device cuda:999 --quick", &["cuda:999", "`--device cpu`"]);
    refused("profile mlp --device cuda:999", &["cuda:999", "`--device cpu`"]);
    refused("bench mlp --device cuda:", &["`cuda:`", "`cuda:N`"]);
    refused(
        "run --resume nowhere",
        &["cannot resume from `nowhere/results.json`", "without --resume"],
    );
    refused("run --resume a --out b", &["--resume", "--out"]);
    refused(
        "train digits-mlp --data digits --device cpu --resume -o model",
        &["a checkpoint in `model.checkpoint`", "nothing to go on from", "leave out --resume"],
    );
    refused("bench mlp --isa sse9", &["--isa", "unknown instruction set `sse9`", "has portable"]);
    refused("info --isa avx1024", &["unknown instruction set `avx1024`", "has portable"]);
    refused("bench mlp --trails 5", &["--trails", "--trials"]);
    refused("completions fihs", &["fihs", "fish"]);
}

#[test]
fn numbers_out_of_range_are_refused_with_the_range() {
    refused("bench mlp --threads 0", &["--threads", "0 is not in 1..=1024"]);
    refused("run --threads -1", &["-1 is not in 1..=1024"]);
    refused("bench mlp --trials 4", &["--trials", "5..=10"]);
    refused("bench mlp --batch 0", &["--batch", "0"]);
    refused("profile mlp --calls many", &["--calls", "many"]);
    refused("eval mlp --inputs x.npz --rtol -1", &["-1", "at least 0"]);
    for rate in ["-1", "0", "nan"] {
        let line = format!("train digits-mlp --data digits --lr {rate} -o model");
        refused(&line, &["--lr", &format!("'{rate}'"), "expected a number above 0"]);
    }
    refused("eval mlp --inputs x.npz --atol nan", &["nan", "at least 0"]);
}

#[test]
fn a_folder_that_cannot_be_is_known_before_the_work() {
    let folder = Folder::new();
    std::fs::write(folder.path("file"), "kept").unwrap();
    for line in
        ["run --quick --out file/below", "bench digits-mlp --out file/below", "run --out file"]
    {
        folder.line(line).ends(2, &["cannot write to `file", "--out"]);
    }
    assert_eq!(std::fs::read_to_string(folder.path("file")).unwrap(), "kept");
    folder
        .line("profile digits-mlp --calls 1 --trace file/below.json")
        .ends(2, &["file/below.json"]);
    assert_eq!(folder.files(), ["file"]);
}

#[test]
fn what_is_here_prints_for_people_and_for_scripts() {
    let folder = Folder::new();
    let json = |line: &str| -> Value {
        serde_json::from_str(&folder.line(line).ends(0, &[]).stdout).unwrap()
    };
    let models = json("models --json");
    let names: Vec<&str> =
        models.as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()).collect();
    assert_eq!(names, overdrive::models::MODELS.iter().map(|m| m.name).collect::<Vec<_>>());
    assert!(models.as_array().unwrap().iter().all(|m| m["parameters"].as_u64() > Some(0)));
    let info = json("info --json");
    assert_eq!(info["backends"][0]["name"], "cpu");
    assert!(info["backends"][0]["memory_bytes"].as_u64() > Some(0));
    let limited = &json("info --json --isa portable")["backends"][0];
    assert_eq!(limited["instruction_set"], "portable");
    assert_eq!(limited["instruction_sets"][0], "portable");
    folder.line("models").ends(0, &names);
    folder.line("info").ends(0, &["processor", "products in", "f32"]);
    folder.line("--version").ends(0, &[env!("CARGO_PKG_VERSION")]);
    folder.line("--help").ends(0, &["bench", "eval", "profile"]);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        folder.line(&format!("completions {shell}")).ends(0, &["overdrive", "bench"]);
    }
}
