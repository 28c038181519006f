//! ONNX models through our commands, in and out again, and `docs/onnx-tests.md`.
//!
//! The cases are ONNX's own backend tests and models that PyTorch and we export, in folders of one
//! format. Each is one `overdrive eval --expect` on the CPU in mode `compile`. A model that passes
//! is written again by `overdrive export`, judged by `onnx.checker` and ONNX Runtime, and read
//! back. Programs in `peers/` write the cases and ask ONNX Runtime.

mod case;
mod exported;
mod page;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::workspace::Workspace;
use case::{Ending, Entry};
use exported::Judge;
use page::CaseResult;

const PAGE: &str = "docs/onnx-tests.md";

pub(crate) fn run(workspace: &Workspace, folders: &[&str]) -> Result<()> {
    let mut entries = Vec::new();
    for folder in folders {
        entries.extend(listed(Path::new(folder))?);
    }
    let binary = std::env::current_exe()?.with_file_name("overdrive");
    if !binary.exists() {
        bail!("{} is missing: run `cargo build` first", binary.display());
    }
    let (next, cases) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    let program = workspace.root().join("peers/onnx_exported.py");
    std::thread::scope(|scope| -> Result<()> {
        let work = || -> Result<()> {
            let mut judge = Judge::start(&program)?;
            while let Some(entry) = entries.get(next.fetch_add(1, Ordering::Relaxed)) {
                let case = run_one(&binary, entry, &mut judge)?;
                cases.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(case);
            }
            Ok(())
        };
        let started: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        started.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    let mut cases = cases.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    let page = page::page(&cases);
    fs::write(workspace.root().join(PAGE), &page)
        .with_context(|| format!("cannot write {PAGE}"))?;
    println!(
        "{}",
        page.lines().take_while(|line| !line.starts_with("### ")).collect::<Vec<_>>().join("\n")
    );
    Ok(())
}

/// The cases of a folder.
fn listed(folder: &Path) -> Result<Vec<Entry>> {
    let index = folder.join("cases.json");
    let text = fs::read_to_string(&index).with_context(|| {
        let index = index.display();
        format!("cannot read {index}; peers/onnx_cases.py and peers/onnx_models.py write it")
    })?;
    let entries: Vec<Value> =
        serde_json::from_str(&text).context("cases.json is a list of cases")?;
    Ok(entries.into_iter().map(|about| Entry { folder: PathBuf::from(folder), about }).collect())
}

fn run_one(binary: &Path, entry: &Entry, judge: &mut Judge) -> Result<CaseResult> {
    let ending = case::run(binary, entry);
    let exported = match &ending {
        Ending::Fails(_) => None,
        _ => Some(exported::run(binary, entry, judge)?),
    };
    let text = |key: &str| entry.about[key].as_str().unwrap_or_default().to_owned();
    let runtime = entry.about["runtime"] == "passes";
    Ok(CaseResult { name: text("name"), kind: text("kind"), runtime, ending, exported })
}
