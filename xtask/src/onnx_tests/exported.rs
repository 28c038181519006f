//! The outcome for a model that was read and written again: `onnx.checker`, ONNX Runtime, and our
//! own reading of it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result};
use serde_json::json;

use super::case::{Ending, Entry, evaluate, reason};

/// Its outcome.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Exported {
    /// The checker accepts it, ONNX Runtime's outputs are the expected ones, and so are ours from
    /// the written file.
    Agrees,
    /// Our exporter refuses it.
    Refused(String),
    /// The checker or ONNX Runtime does not agree.
    Fails(String),
    /// ONNX Runtime agrees, we do not agree with ourselves.
    BackFails(String),
}

/// Writes the case's model again and has it judged.
pub(crate) fn run(binary: &Path, entry: &Entry, judge: &mut Judge) -> Result<Exported> {
    let (model, written, inputs) =
        (entry.file("model.onnx"), entry.file("exported.onnx"), entry.file("inputs.safetensors"));
    let output = Command::new(binary)
        .arg("export")
        .arg(&model)
        .arg("--inputs")
        .arg(&inputs)
        .arg("--onnx")
        .arg(&written)
        .output()?;
    if !output.status.success() {
        return Ok(Exported::Refused(reason(
            "",
            &String::from_utf8_lossy(&output.stderr),
            &written,
        )));
    }
    let request = json!({
        "model": written,
        "inputs": inputs,
        "expected": entry.file("expected.safetensors"),
        "rtol": entry.about["rtol"],
        "atol": entry.about["atol"],
    });
    let answer = judge.ask(&request.to_string())?;
    if answer != "agrees" {
        return Ok(Exported::Fails(answer));
    }
    Ok(match evaluate(binary, entry, &written, 0) {
        Ending::Fails(why) => Exported::BackFails(why),
        _ => Exported::Agrees,
    })
}

/// The program that asks ONNX Runtime, in a process that may die of a model.
pub(crate) struct Judge {
    program: PathBuf,
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Judge {
    pub(crate) fn start(program: &Path) -> Result<Self> {
        let mut child = Command::new("python3")
            .arg(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start python3")?;
        let to = child.stdin.take().expect("its standard input is a pipe");
        let from = BufReader::new(child.stdout.take().expect("its standard output is a pipe"));
        let mut judge = Self { program: program.to_owned(), child, to, from };
        // A model that is not there: whatever the answer is, the interpreter has what the program
        // imports.
        let answer = judge.answer("{}")?;
        answer.context(
            "python3 cannot run it: pip install onnx==1.23.* onnxruntime ml_dtypes numpy",
        )?;
        Ok(judge)
    }

    fn ask(&mut self, request: &str) -> Result<String> {
        if let Some(answer) = self.answer(request)? {
            return Ok(answer);
        }
        *self = Self::start(&self.program.clone())?;
        Ok("it ends ONNX Runtime's process".to_owned())
    }

    /// `None` where the process is gone.
    fn answer(&mut self, request: &str) -> Result<Option<String>> {
        let mut line = String::new();
        if writeln!(self.to, "{request}").is_err() || self.from.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        Ok(Some(serde_json::from_str(&line).context("an answer is a JSON string")?))
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        // It waits for requests and holds nothing: ending it cannot lose anything.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
