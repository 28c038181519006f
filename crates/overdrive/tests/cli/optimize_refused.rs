//! Requests that `optimize` refuses before it measures anything. Nothing of them stays.

use crate::invocation::Folder;
use crate::optimize::{optimize, x};
use crate::quantize_published::fixture;
use overdrive::ir::Tensor;
use std::fs;

#[test]
fn what_cannot_be_asked_is_refused() {
    let folder = Folder::new();
    fs::write(folder.path("no.json"), "{}").unwrap();
    folder.line("optimize --replay no.json").ends(2, &["decision of `optimize`"]);
    folder.line("optimize --replay absent.json").ends(2, &["absent.json"]);
    folder.line("optimize --replay no.json --decode 9").ends(2, &["--decode", "--replay"]);
    folder.line("optimize digits-mlp").ends(2, &["--out"]);
    folder.line("optimize digits-mlp --confidence 1 -o out").ends(2, &["below 1"]);
    folder.line("optimize no-such-model -o out").ends(2, &["no-such-model"]);
    for refused in [
        "--data absent.csv -o out",
        "--data digits --export gptq -o out",
        "--data digits --resume -o out",
        "--data digits --decode 6 -o new/out",
    ] {
        optimize(&folder, refused).ends(2, &[]);
        assert_eq!(folder.files(), ["no.json"], "{refused}");
    }
    // A folder that was there is the user's.
    fs::create_dir(folder.path("out")).unwrap();
    optimize(&folder, "--data absent.csv -o out").ends(2, &["absent.csv"]);
    assert_eq!(folder.files(), ["no.json", "out"]);
}

/// Samples that do not fit the model are refused before anything is measured, with their place.
#[test]
fn data_that_do_not_fit_are_refused() {
    let folder = Folder::new();
    let row = |width: usize, label: &str| format!("{}{label}\n", "1,".repeat(width));
    let rows = |width: usize, label: &dyn Fn(usize) -> String| -> String {
        (0..400).map(|i| row(width, &label(i))).collect()
    };
    let class = |i: usize| (i % 10).to_string();
    fs::write(folder.path("wide.csv"), rows(65, &class)).unwrap();
    fs::write(folder.path("eleven.csv"), rows(64, &|i| (i % 11).to_string())).unwrap();
    fs::write(folder.path("copies.csv"), rows(64, &class)).unwrap();
    fs::write(folder.path("few.csv"), (0..3).map(|_| row(64, "1")).collect::<String>()).unwrap();
    fs::write(folder.path("empty.csv"), "").unwrap();
    fs::write(folder.path("empty.txt"), "").unwrap();
    folder.tensors("narrow.npz", &[("x", Tensor::from_f32([256, 8], &[0.5; 2048]))]);
    folder.tensors("short.npz", &[("x", x(100))]);
    for (file, words) in [
        ("wide.csv", &["64 features", "65"][..]),
        ("eleven.csv", &["at most 10 classes", "11"]),
        ("copies.csv", &["samples that choose", "copies alone among"]),
        ("few.csv", &["samples for three parts", "3 in all"]),
        ("empty.csv", &["empty.csv"]),
        ("empty.txt", &["empty.txt", "an empty file"]),
        ("narrow.npz", &["narrow.npz", "f32[256, 8]"]),
        ("short.npz", &["short.npz", "at least 192 samples"]),
    ] {
        optimize(&folder, &format!("--data {file} --batches 2 -o out")).ends(2, words);
        assert!(!folder.path("out").exists(), "{file}");
    }
    // The labels of a classifier of text are among those that it knows.
    let model = fixture("bert_classifier").display().to_string();
    fs::write(folder.path("texts.csv"), "text,label\nthe cat,0\nthe mat,whale\n").unwrap();
    let words = ["optimize", &model, "--device", "cpu", "--data", "texts.csv", "-o", "out"];
    folder.overdrive(&words).ends(2, &["texts.csv, line 3, label", "`whale`", "id2label"]);
}
