//! One case through `overdrive eval --expect`.
//!
//! It counts only where its process ended with code 0 and no step ran in the f64 reference. Cases
//! whose shapes depend on the value of an input are counted and said apart.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A case as its folder lists it.
pub(crate) struct Entry {
    pub(crate) folder: PathBuf,
    pub(crate) about: Value,
}

impl Entry {
    /// A file of the case.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(self.about["name"].as_str().unwrap_or_default()).join(name)
    }
}

/// How a case ended.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ending {
    /// Its outputs agree.
    Passes,
    /// The same, with shapes decided by the values of inputs.
    PassesBound,
    /// The same, and with these inputs bound nothing was left to compute.
    Constant,
    /// Why not.
    Fails(String),
}

pub(crate) fn run(binary: &Path, entry: &Entry) -> Ending {
    if let Some(kind) = entry.about["no_tensor"].as_str() {
        return Ending::Fails(format!("its values are {kind}"));
    }
    let mut worst = Ending::Passes;
    let sets = entry.about["sets"].as_u64().unwrap_or(0).max(1);
    for set in 0..sets {
        let this = evaluate(binary, entry, &entry.file("model.onnx"), set);
        if matches!(this, Ending::Fails(_)) {
            return this;
        }
        worst = worst.max(this);
    }
    worst
}

/// A model on one set of the case's inputs.
pub(crate) fn evaluate(binary: &Path, entry: &Entry, model: &Path, set: u64) -> Ending {
    let suffix = if set == 0 { String::new() } else { set.to_string() };
    let output = Command::new(binary)
        .arg("eval")
        .arg(model)
        .arg("--inputs")
        .arg(entry.file(&format!("inputs{suffix}.safetensors")))
        .arg("--expect")
        .arg(entry.file(&format!("expected{suffix}.safetensors")))
        .args([
            "--rtol",
            &entry.about["rtol"].to_string(),
            "--atol",
            &entry.about["atol"].to_string(),
        ])
        .args(["--device", "cpu", "--threads", "1", "--mode", "compile"])
        .output();
    let output = match output {
        Ok(output) => output,
        Err(error) => return Ending::Fails(error.to_string()),
    };
    let (said, noted) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    );
    if !output.status.success() {
        return Ending::Fails(reason(&said, &noted, model));
    }
    if let Some(line) = noted.lines().find(|line| line.starts_with("note: the f64 reference runs"))
    {
        return Ending::Fails(line.trim_start_matches("note: ").to_owned());
    }
    match (noted.contains("no input is left"), noted.contains("decides shapes")) {
        (true, true) => Ending::Constant,
        (_, true) => Ending::PassesBound,
        _ => Ending::Passes,
    }
}

/// The error in one line, without what differs from case to case.
pub(crate) fn reason(said: &str, noted: &str, model: &Path) -> String {
    if let Some(line) = said.lines().find(|line| line.contains("DISAGREES")) {
        return format!("outputs differ: {line}");
    }
    let lines: Vec<&str> = noted.lines().filter(|line| !line.starts_with("note: ")).collect();
    let text = lines.first().copied().unwrap_or("ended without a word");
    let prefix = format!("error: {}: ", model.display());
    text.strip_prefix(&prefix).unwrap_or(text.trim_start_matches("error: ")).to_owned()
}
