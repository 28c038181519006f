//! The book: each page's `sh` blocks do what they say, on small models in a folder of their own.
#![cfg(unix)]

use crate::invocation::Folder;
use overdrive::formats::onnx;
use overdrive::ir::{DType, Tensor};
use overdrive::studies::Template;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn from_root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The files that the pages call the reader's own.
fn prepared() -> Folder {
    let folder = Folder::new();
    for (from, to) in [("llama", "my-model"), ("bert_classifier", "my-classifier")] {
        let model = from_root("crates/overdrive-studies/tests/pretrained").join(from);
        fs::create_dir(folder.path(to)).unwrap();
        for file in fs::read_dir(model).unwrap().map(|entry| entry.unwrap().path()) {
            fs::copy(&file, folder.path(to).join(file.file_name().unwrap())).unwrap();
        }
    }
    let review = |i: usize| format!("the {} sat,{}\n", ["cat", "mat", "hat"][i % 3], i % 3);
    let reviews: String = (0..120).map(review).collect();
    fs::write(folder.path("reviews.csv"), format!("text,label\n{reviews}")).unwrap();
    let price = |i: usize| format!("{i},{},{}.5\n", i % 7, 20 * i + i % 7);
    let prices: String = (0..160).map(price).collect();
    fs::write(folder.path("prices.csv"), format!("size,rooms,price\n{prices}")).unwrap();
    let digits = Template::built_in(overdrive::models::find("digits-mlp").unwrap()).unwrap();
    let path = folder.path("model.onnx");
    let free = onnx::Free::new([("batch", None)]);
    let graphs: Vec<_> =
        free.corners().iter().map(|sizes| digits.graph_of(sizes).unwrap()).collect();
    let file = free.made(&path, &graphs, onnx::Dialect::Standard).unwrap();
    file.write(&path, onnx::WeightPlace::Within).unwrap();
    folder.tensors("inputs.npz", &[("x", Tensor::from_f32([8, 64], &[0.5; 512]))]);
    folder.tensors(
        "tokens.npz",
        &[("x", Tensor::from_ints(DType::I32, [2, 3], &[1, 2, 3, 4, 5, 6]))],
    );
    let text = "the hand and the tin in a thin band; another hand than the other. ".repeat(300);
    fs::write(folder.path("text.txt"), text).unwrap();
    let row = |class: usize| format!("{}{class}\n", format!("{},", class % 7).repeat(64));
    fs::write(folder.path("data.csv"), (0..600).map(|i| row(i % 10)).collect::<String>()).unwrap();
    let flower =
        |i: usize| format!("{},{},{}\n", 10 * (i % 3), i % 7, ["rose", "tulip", "lily"][i % 3]);
    let flowers: String = (0..240).map(flower).collect();
    fs::write(folder.path("table.csv"), format!("height,leaves,kind\n{flowers}")).unwrap();
    let codes = r#"{"forward": "f8e4m3", "gradient": "f8e5m2", "except": ["fc1"]}"#;
    let formats = format!(r#"{{"precision": "bf16", "float8": {codes}}}"#);
    fs::write(folder.path("formats.json"), formats).unwrap();
    for name in ["bench-old", "bench-new"] {
        let json = r#"{"overdrive_samples":1,"cases":[{"name":"a","times_ns":[7,7,7,7,7]}]}"#;
        fs::write(folder.path(name), format!("#!/bin/sh\necho '{json}' >\"$OVERDRIVE_RESULTS\"\n"))
            .unwrap();
        fs::set_permissions(folder.path(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    folder
}

/// The lines of a page's `sh` blocks.
fn commands(page: &str) -> Vec<String> {
    let mut is_shell = false;
    let mut found = Vec::new();
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(language) => is_shell = language == "sh",
            None if is_shell => found.push(line.to_owned()),
            None => {}
        }
    }
    found
}

fn run(name: &str) {
    let page = fs::read_to_string(from_root("docs/book/src").join(name)).unwrap();
    let commands = commands(&page);
    assert!(!commands.is_empty(), "{name} has commands");
    let folder = prepared();
    for command in commands {
        folder.shell(&command).ends(0, &[]);
    }
}

macro_rules! pages {
    ($($test:ident: $page:literal,)*) => {
        $(#[test]
        fn $test() {
            run($page);
        })*

        const TRIED: &[&str] = &[$($page),*];
    };
}

pages! {
    introduction: "introduction.md",
    install: "install.md",
    optimize: "optimize.md",
    quantize: "quantize.md",
    compare: "compare.md",
    gate_my_ci: "gate-my-ci.md",
    fine_tune: "fine-tune.md",
    deploy: "deploy.md",
    read_a_report: "read-a-report.md",
    troubleshooting: "troubleshooting.md",
}

/// Pages without commands: contents, and code that stands in an example.
const OTHERS: [&str; 2] = ["SUMMARY.md", "use-from-rust.md"];

#[test]
fn every_page_is_tried() {
    for entry in fs::read_dir(from_root("docs/book/src")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let is_known = TRIED.contains(&name.as_str()) || OTHERS.contains(&name.as_str());
        assert!(is_known, "no test runs the commands of {name}");
    }
}

#[test]
fn code_of_a_page_is_a_part_of_an_example_that_is_compiled() {
    let page = fs::read_to_string(from_root("docs/book/src/use-from-rust.md")).unwrap();
    let blocks = page.matches("```rust").count();
    let included: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("{{#include ")).collect();
    assert_eq!(blocks, included.len(), "code that nobody compiles");
    for include in included {
        let (path, part) = include.trim_end_matches("}}").split_once(':').unwrap();
        let program = fs::read_to_string(from_root("docs/book/src").join(path)).unwrap();
        for mark in [format!("ANCHOR: {part}"), format!("ANCHOR_END: {part}")] {
            assert_eq!(program.matches(&format!("// {mark}\n")).count(), 1, "{include}: {mark}");
        }
    }
}
