//! Places that commands write to: nothing is replaced unasked, and what is not ours never.

use crate::invocation::Folder;
use crate::quantize_published::fixture;
use overdrive::files::MANIFEST;
use overdrive::ir::Tensor;
use serde_json::Value;
use std::fs;

/// Commands that write, with few samples of everything.
const WRITERS: [&str; 8] = [
    "train digits-mlp --data digits --steps 2 --device cpu --threads 1 -o out",
    "quantize digits-mlp --mode int8-weights --batches 1 --trials 5 --device cpu --threads 1 -o \
     out",
    "export digits-mlp --onnx out",
    "export digits-mlp --stablehlo out",
    "export digits-mlp --triton out",
    "eval digits-mlp --inputs x.npz --threads 1 -o out.npz",
    "profile digits-mlp --calls 1 --threads 1 --device cpu --trace out",
    "bench digits-mlp --backends cpu --modes jit --trials 5 --warmup 1 --threads 1 --out out",
];

fn folder() -> Folder {
    let folder = Folder::new();
    folder.tensors("x.npz", &[("x", Tensor::from_f32([1, 64], &[0.5; 64]))]);
    folder
}

/// All that is below a folder: names and contents.
fn contents(folder: &Folder) -> Vec<(String, Vec<u8>)> {
    fn collect(path: &std::path::Path, found: &mut Vec<(String, Vec<u8>)>) {
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => collect(&path, found),
                false => found.push((path.display().to_string(), fs::read(&path).unwrap())),
            }
        }
    }
    let mut found = Vec::new();
    collect(&folder.path(""), &mut found);
    found.sort();
    found
}

#[test]
fn what_is_there_is_replaced_only_by_force() {
    for line in WRITERS {
        let folder = folder();
        folder.line(line).ends(0, &[]);
        let before = contents(&folder);
        folder.line(line).ends(2, &["--force", "out"]);
        assert!(contents(&folder) == before, "{line} changed what was there");
        folder.line(&format!("{line} --force")).ends(0, &[]);
        let names: Vec<String> = folder.files();
        assert_eq!(names.len(), 2, "{line} left {names:?}");
    }
}

#[test]
fn what_is_not_ours_is_never_replaced() {
    for line in WRITERS {
        let folder = folder();
        // A folder of the user's, whose config.json speaks of a model of ours.
        fs::create_dir_all(folder.path("out/.git")).unwrap();
        fs::write(folder.path("out/.git/HEAD"), "ref: refs/heads/main").unwrap();
        fs::write(folder.path("out/config.json"), "{\"note\": \"not \\\"overdrive_model\\\"\"}")
            .unwrap();
        fs::write(folder.path("out/notes.txt"), "years of work").unwrap();
        fs::create_dir(folder.path("out.npz")).unwrap();
        fs::write(folder.path("out.npz/thesis.tex"), "years of work").unwrap();
        let before = contents(&folder);
        let outcome = folder.line(&format!("{line} --force"));
        // Results lie beside other files; everything else wants a place of its own.
        if line.starts_with("bench") {
            outcome.ends(0, &[]);
            let kept = contents(&folder);
            assert!(before.iter().all(|file| kept.contains(file)), "{line}");
        } else {
            outcome.ends(2, &["out"]);
            assert!(contents(&folder) == before, "{line} changed what was there");
        }
    }
}

#[test]
fn results_do_not_come_between_those_of_others() {
    let folder = Folder::new();
    let bench = "bench digits-mlp --backends cpu --modes jit --trials 5 --warmup 1 --threads 1";
    folder.line(&format!("{bench} --out a")).ends(0, &[]);
    let first = fs::read(folder.path("a/results.json")).unwrap();
    folder.line("report a/results.json").ends(2, &["holds results", "--force"]);
    folder.line("report a/results.json --force").ends(0, &["report: a/report.html"]);
    assert_eq!(fs::read(folder.path("a/results.json")).unwrap(), first);
    // Files of the version before manifests are removed by name, and only on request.
    fs::remove_file(folder.path("a").join(MANIFEST)).unwrap();
    folder.line(&format!("{bench} --out a")).ends(2, &["--force"]);
    folder.line(&format!("{bench} --out a --force")).ends(0, &[]);
    // A report that is the user's own stays.
    fs::create_dir(folder.path("mine")).unwrap();
    fs::write(folder.path("mine/report.md"), "years of work").unwrap();
    folder.line(&format!("{bench} --out mine --force")).ends(2, &["did not write", "`report.md`"]);
    assert_eq!(fs::read_to_string(folder.path("mine/report.md")).unwrap(), "years of work");
}

#[test]
fn a_report_about_a_model_is_no_part_of_its_folder() {
    let folder = Folder::new();
    let line = "train digits-mlp --data digits --steps 2 --device cpu --threads 1 -o mlp";
    folder.line(line).ends(0, &[]);
    let before = fs::read_dir(folder.path("mlp")).unwrap().count();
    let told = folder.line("report mlp");
    let text = &told.ends(0, &["report: reports/"]).stdout;
    assert!(!text.contains("no claim"), "one run has nothing to compare: {text}");
    assert_eq!(fs::read_dir(folder.path("mlp")).unwrap().count(), before);
    folder.line("report mlp/results.json -o drawn").ends(0, &["report: drawn/report.html"]);
}

#[test]
fn a_model_is_its_own_source_only_by_force() {
    let folder = folder();
    let quantize = "--mode int8-weights --batches 1 --trials 5 --device cpu --threads 1";
    folder
        .line("train digits-mlp --data digits --steps 2 --device cpu --threads 1 -o m")
        .ends(0, &[]);
    folder.line(&format!("quantize m {quantize} -o m")).ends(2, &["is an input", "--force"]);
    folder.line("eval m --inputs x.npz --threads 1 -o x.npz").ends(2, &["x.npz` is an input"]);
    folder.line("bench m --out m --force").ends(2, &["holds a model, not results"]);
    folder.line("export m --triton m --force").ends(2, &["holds a model, not a model repository"]);
    folder.line(&format!("quantize m {quantize} -o m --force")).ends(0, &["`m` is a model"]);
    folder.line("eval m --inputs x.npz --threads 1").ends(0, &["f32[1, 10]"]);
}

#[test]
fn a_flipped_bit_of_weights_is_told_everywhere() {
    let folder = folder();
    folder
        .line("train digits-mlp --data digits --steps 2 --device cpu --threads 1 -o m")
        .ends(0, &[]);
    let weights = folder.path("m/model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&weights, bytes).unwrap();
    for line in ["eval m --inputs x.npz", "export m --onnx m.onnx", "profile m --calls 1"] {
        folder.line(line).ends(2, &["model.safetensors", "checksum"]);
    }
    assert_eq!(folder.files(), ["m", "x.npz"]);
}

/// A folder in Hugging Face's format that we wrote is checked like a folder of ours.
#[test]
fn a_published_folder_is_read_as_it_was_written() {
    let folder = Folder::new();
    let model = fixture("llama").display().to_string();
    let line = "--mode int8-weights --batches 1 --trials 5 --device cpu --threads 1 -o m";
    let words = ["quantize", &model].into_iter().chain(line.split_whitespace());
    folder.overdrive(&words.collect::<Vec<_>>()).ends(0, &["`m` is a model"]);
    let read = || folder.line("generate m --prompt hand --max-tokens 1 --device cpu --threads 1");
    read().ends(0, &["1 made"]);
    for name in ["model.safetensors", "config.json", "tokenizer.json", "generation_config.json"] {
        let (path, shown) = (folder.path("m").join(name), format!("m/{name}: expected"));
        let whole = fs::read(&path).unwrap();
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        for damaged in [&flipped[..], &whole[..whole.len() / 2]] {
            fs::write(&path, damaged).unwrap();
            read().ends(2, &[&shown, MANIFEST, "write the folder again", "delete its entry"]);
        }
        fs::remove_file(&path).unwrap();
        read().ends(2, &[name, "no such file"]);
        fs::write(&path, whole).unwrap();
    }
    // A file that is not listed is the user's, and so is one that she has taken from the list.
    fs::write(folder.path("m/notes.txt"), "of the user").unwrap();
    let settings = folder.path("m/generation_config.json");
    let changed = fs::read_to_string(&settings).unwrap() + "\n";
    fs::write(&settings, changed).unwrap();
    read().ends(2, &["generation_config.json"]);
    let list = folder.path("m").join(MANIFEST);
    let mut listed: Value = serde_json::from_str(&fs::read_to_string(&list).unwrap()).unwrap();
    let entry = listed["files"].as_object_mut().unwrap().remove("generation_config.json");
    assert!(entry.is_some());
    fs::write(&list, listed.to_string()).unwrap();
    read().ends(0, &["1 made"]);
}

#[cfg(unix)]
#[test]
fn new_files_are_for_whom_new_files_are() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    folder
        .line("train digits-mlp --data digits --steps 2 --device cpu --threads 1 -o m")
        .ends(0, &[]);
    folder.line("eval m --inputs x.npz --threads 1 -o y.safetensors").ends(0, &[]);
    fs::write(folder.path("new"), "").unwrap();
    let mode = |name: &str| fs::metadata(folder.path(name)).unwrap().permissions().mode();
    for name in ["m/config.json", "m/model.safetensors", "m/results.json", "y.safetensors"] {
        assert_eq!(mode(name), mode("new"), "{name}");
    }
}
