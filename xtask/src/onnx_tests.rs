//! ONNX's own backend tests through `overdrive eval --expect`, on the CPU in mode `compile`, and `docs/onnx-tests.md`.
//!
//! A case counts only where its process ended with code 0 and no step ran in the f64 reference. Cases whose shapes
//! depend on the value of an input are counted and said apart. `peers/onnx_cases.py` writes the cases.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace::Workspace;

const PAGE: &str = "docs/onnx-tests.md";

/// How a case ended.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    /// Its outputs agree.
    Passes,
    /// The same, with shapes decided by the values of inputs.
    PassesBound,
    /// The same, and with these inputs bound nothing was left to compute.
    Constant,
    /// Why not.
    Fails(String),
}

struct Case {
    name: String,
    runtime: bool,
    ending: Ending,
}

pub(crate) fn run(workspace: &Workspace, folder: &Path) -> Result<()> {
    let index = folder.join("cases.json");
    let text = fs::read_to_string(&index).with_context(|| {
        format!(
            "cannot read {}; `python peers/onnx_cases.py {}` writes it",
            index.display(),
            folder.display()
        )
    })?;
    let entries: Vec<Value> = serde_json::from_str(&text).context("cases.json is a list of cases")?;
    let binary = std::env::current_exe()?.with_file_name("overdrive");
    if !binary.exists() {
        bail!("{} is missing: run `cargo build` first", binary.display());
    }
    let (next, endings) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let case = Case {
                        name: entry["name"].as_str().unwrap_or_default().to_owned(),
                        runtime: entry["runtime"] == "passes",
                        ending: ending(&binary, folder, entry),
                    };
                    endings.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(case);
                }
            });
        }
    });
    let mut cases = endings.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    let page = page(&cases);
    fs::write(workspace.root().join(PAGE), &page).with_context(|| format!("cannot write {PAGE}"))?;
    println!("{}", page.lines().take_while(|line| !line.starts_with("## ")).collect::<Vec<_>>().join("\n"));
    Ok(())
}

fn ending(binary: &Path, folder: &Path, entry: &Value) -> Ending {
    if let Some(kind) = entry["no_tensor"].as_str() {
        return Ending::Fails(format!("its values are {kind}"));
    }
    let mut worst = Ending::Passes;
    let sets = entry["sets"].as_u64().unwrap_or(0).max(1);
    for set in 0..sets {
        let suffix = if set == 0 { String::new() } else { set.to_string() };
        let case = folder.join(entry["name"].as_str().unwrap_or_default());
        let output = Command::new(binary)
            .arg("eval")
            .arg(case.join("model.onnx"))
            .arg("--inputs")
            .arg(case.join(format!("inputs{suffix}.safetensors")))
            .arg("--expect")
            .arg(case.join(format!("expected{suffix}.safetensors")))
            .args(["--rtol", &entry["rtol"].to_string(), "--atol", &entry["atol"].to_string()])
            .args(["--device", "cpu", "--threads", "1", "--mode", "compile"])
            .output();
        let output = match output {
            Ok(output) => output,
            Err(error) => return Ending::Fails(error.to_string()),
        };
        let (said, noted) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr).into_owned());
        if !output.status.success() {
            return Ending::Fails(reason(&said, &noted, &case));
        }
        if noted.contains("note: the f64 reference runs") {
            let line = noted.lines().find(|line| line.contains("f64 reference")).unwrap_or_default();
            return Ending::Fails(line.trim_start_matches("note: ").to_owned());
        }
        let this = match (noted.contains("no input is left"), noted.contains("decides shapes")) {
            (true, true) => Ending::Constant,
            (_, true) => Ending::PassesBound,
            _ => Ending::Passes,
        };
        worst = worst.max(this);
    }
    worst
}

/// The error in one line, without what differs from case to case.
fn reason(said: &str, noted: &str, case: &Path) -> String {
    if let Some(line) = said.lines().find(|line| line.contains("DISAGREES")) {
        return format!("outputs differ: {line}");
    }
    let lines: Vec<&str> = noted.lines().filter(|line| !line.starts_with("note: ")).collect();
    let text = lines.first().copied().unwrap_or("ended without a word");
    let prefix = format!("error: {}: ", case.join("model.onnx").display());
    text.strip_prefix(&prefix).unwrap_or(text.trim_start_matches("error: ")).to_owned()
}

fn page(cases: &[Case]) -> String {
    let count = |wanted: &dyn Fn(&Case) -> bool| cases.iter().filter(|case| wanted(case)).count();
    let ok = |case: &Case| !matches!(case.ending, Ending::Fails(_));
    let runtime = count(&|case| case.runtime);
    let both = count(&|case| case.runtime && ok(case));
    let bound = count(&|case| case.ending == Ending::PassesBound);
    let constant = count(&|case| case.ending == Ending::Constant);
    let mut text = format!(
        "# ONNX's backend tests\n\nWritten by `cargo xtask onnx-tests DIR`; DIR comes from `python peers/onnx_cases.py DIR` (package `onnx` 1.23: node, \
         simple, pytorch-operator and pytorch-converted cases). Each case is one `overdrive eval --expect` on the CPU in mode \
         `compile`, with the case's own tolerances; a case with a step in the f64 reference counts as failed.\n\n\
         | | cases |\n|---|---|\n| all | {} |\n| pass here | {} |\n| ... of which shapes are decided by the value of an input, which is bound | {bound} |\n\
         | ... of which nothing is left to compute once such inputs are bound | {constant} |\n\
         | pass in ONNX Runtime's CPU provider | {runtime} |\n| of those pass here | {both} ({:.1} %) |\n\n",
        cases.len(),
        count(&ok),
        100.0 * both as f64 / runtime.max(1) as f64,
    );
    let mut reasons: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut other: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for case in cases {
        if let Ending::Fails(reason) = &case.ending {
            let group = if case.runtime { &mut reasons } else { &mut other };
            group.entry(reason.clone()).or_default().push(&case.name);
        }
    }
    for (title, group) in
        [("## What ONNX Runtime passes and we do not", reasons), ("## What neither passes", other)]
    {
        text.push_str(&format!("{title}\n\n| reason | cases |\n|---|---|\n"));
        for (reason, names) in group {
            text.push_str(&format!("| {} | {} |\n", reason.replace('|', "\\|"), names.join(" ")));
        }
        text.push('\n');
    }
    text.trim_end().to_owned() + "\n"
}
