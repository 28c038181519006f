//! The process behind a peer: started once, asked line by line, ended with the run.
//!
//! The process runs in a private folder and finds its packages where the user installed them.
//! Nothing is ever imported from the user's working folder, or from a folder that others can write.

use super::folder::{folder, unwritable, with_modules};
use super::frameworks::{DISTRIBUTED, FRAMEWORKS, Framework, QUANTIZING};
use crate::Workload;
use overdrive_bench::failure::Failure;
use overdrive_process::{Running, Stop, python};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// The first message of the program, about itself.
#[derive(Debug, Clone, Deserialize)]
struct Description {
    version: String,
    device: String,
    threads: u32,
    /// The modes that it has, where it does not have all.
    modes: Option<Vec<String>>,
    /// `onnx` where it reads our graph from a file; else it writes workloads down itself and reads
    /// parameters.
    reads: Option<String>,
}

/// A framework in a process of its own.
#[derive(Debug)]
pub struct Peer {
    name: &'static str,
    description: Description,
    folder: TempDir,
    pipe: RefCell<Pipe>,
    running: RefCell<Running>,
    stop: Stop,
}

#[derive(Debug)]
struct Pipe {
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
}

/// The answer of a program about a workload.
#[derive(Debug, Deserialize)]
pub(crate) struct KnownWorkload {
    known: bool,
    /// The library that implements it, if not the framework itself.
    pub(crate) by: Option<String>,
    /// Variants of eager calls: attention, and kernels over rows, by a back end of their own.
    #[serde(default)]
    pub(crate) variants: Vec<String>,
}

/// Runs before a program, isolated (`-I`):
/// - It puts the folders after the first two arguments before all others.
/// - It brings back the packages that the user installed for himself, which isolation hides.
/// - It has the process end with ours, even where ours is killed.
const PRELUDE: &str = r"
import sys
sys.path[:0] = sys.argv[3:]
del sys.argv[3:]
import os, site
if sys.prefix == sys.base_prefix and os.path.isabs(site.getusersitepackages()):
    site.addsitedir(site.getusersitepackages())
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)
except (AttributeError, ImportError, OSError, TypeError):
    pass
";

impl Peer {
    /// The frameworks that there is a program for, by name.
    pub fn names() -> impl Iterator<Item = &'static str> {
        FRAMEWORKS.iter().map(|framework| framework.name)
    }

    /// The framework of this name under `python` (`python3`, say) on `device` (`cpu`, `cuda:0`);
    /// zero threads are its own choice. A request to end ends it.
    ///
    /// # Errors
    /// For an unknown name, or if the interpreter or its framework is missing. The error says what
    /// to install.
    pub fn python(
        name: &str,
        interpreter: &str,
        (device, threads): (&str, u32),
        stop: &Stop,
    ) -> Result<Self, Failure> {
        Self::one_of((&FRAMEWORKS, name), interpreter, (device, threads), stop)
    }

    /// The same of a library that quantizes models: torchao, bitsandbytes.
    ///
    /// # Errors
    /// As [`Self::python`].
    pub fn quantizing(
        name: &str,
        interpreter: &str,
        (device, threads): (&str, u32),
        stop: &Stop,
    ) -> Result<Self, Failure> {
        Self::one_of((&QUANTIZING, name), interpreter, (device, threads), stop)
    }

    /// The same of a framework with a process for each of some ranks.
    ///
    /// # Errors
    /// As [`Self::python`].
    pub(super) fn of_ranks(
        name: &str,
        interpreter: &str,
        (device, ranks): (&str, u32),
        stop: &Stop,
    ) -> Result<Self, Failure> {
        Self::one_of((&DISTRIBUTED, name), interpreter, (device, ranks), stop)
    }

    fn one_of(
        (known, name): (&'static [Framework], &str),
        interpreter: &str,
        (device, threads): (&str, u32),
        stop: &Stop,
    ) -> Result<Self, Failure> {
        let Some(framework) = known.iter().find(|framework| framework.name == name) else {
            let known: Vec<&str> = known.iter().map(|framework| framework.name).collect();
            return Err(Failure::unsupported(format!(
                "no framework `{name}`: expected one of {}",
                known.join(", ")
            )));
        };
        let start = || {
            let folder = folder()?;
            let unstarted = |e: std::io::Error| Failure::failed(e.to_string());
            let mut command = python::isolated(interpreter).map_err(unstarted)?;
            command.arg("-c").arg(format!("{PRELUDE}{}", framework.program));
            command.args([device, &threads.to_string()]).args(with_modules(folder.path())?);
            Self::start(framework.name, command, folder, stop)
        };
        start().map_err(|failure| {
            let Framework { spelt, package, .. } = framework;
            let remedy =
                format!("install Python 3 and `pip install {package}`, or leave out --peers");
            Failure::unsupported(format!(
                "{spelt} was not found: {interpreter}: {}; {remedy}",
                failure.reason
            ))
        })
    }

    /// A program that speaks first and then answers.
    fn start(
        name: &'static str,
        mut command: Command,
        folder: TempDir,
        stop: &Stop,
    ) -> Result<Self, Failure> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .current_dir(folder.path());
        let mut running = stop.spawn(&mut command).map_err(|e| Failure::failed(e.to_string()))?;
        let from = BufReader::new(running.child.stdout.take().expect("it is piped"));
        let pipe = RefCell::new(Pipe { to: running.child.stdin.take(), from });
        let description = receive::<Description>(&pipe)?;
        Ok(Self {
            name,
            description,
            folder,
            pipe,
            running: RefCell::new(running),
            stop: stop.clone(),
        })
    }

    /// The framework's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its version, in its own words.
    pub fn version(&self) -> &str {
        &self.description.version
    }

    /// The device that it runs on.
    pub fn device(&self) -> &str {
        &self.description.device
    }

    /// Its threads on the host.
    pub fn threads(&self) -> u32 {
        self.description.threads
    }

    /// The framework's own version of this workload, if its program has one.
    pub(crate) fn knows(&self, workload: &Workload) -> Option<KnownWorkload> {
        let request =
            json!({ "do": "knows", "workload": workload.key.name, "config": workload.config });
        self.ask::<KnownWorkload>(&request).ok().filter(|answer| answer.known)
    }

    /// Whether it would be expected to have a mode: graphs of a CPU are not.
    pub(crate) fn has_mode(&self, mode: &str) -> bool {
        let named = self
            .description
            .modes
            .as_ref()
            .is_none_or(|modes| modes.iter().any(|known| known == mode));
        named && (mode != "graph" || self.description.device != "cpu")
    }

    /// Whether it reads our graph as ONNX.
    pub(super) fn reads_onnx(&self) -> bool {
        self.description.reads.as_deref() == Some("onnx")
    }

    /// A folder of its own for one workload, which is removed with it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn subfolder(&self) -> Result<TempDir, Failure> {
        let folder = self.folder.path();
        tempfile::tempdir_in(folder).map_err(unwritable(folder))
    }

    /// A file to exchange tensors by.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The answer to one request.
    ///
    /// # Errors
    /// The framework's own failure, by its class; or an answer that cannot be read.
    pub(super) fn ask<T: DeserializeOwned>(&self, request: &Value) -> Result<T, Failure> {
        let lost = |e: std::io::Error| {
            Failure::failed(format!("the process of {} is gone: {e}", self.name))
        };
        let send = || {
            let mut pipe = self.pipe.borrow_mut();
            let to = pipe.to.as_mut().expect("it is open until the end");
            writeln!(to, "{request}").and_then(|()| to.flush()).map_err(lost)
        };
        let answer = send().and_then(|()| receive(&self.pipe));
        // It was ended with us, which is no failure of its own.
        answer.map_err(|failure| match self.stop.is_requested() {
            true => Failure::skipped("interrupted before it was complete"),
            false => failure,
        })
    }
}

/// The next answer.
fn receive<T: DeserializeOwned>(pipe: &RefCell<Pipe>) -> Result<T, Failure> {
    let mut line = String::new();
    let read = pipe.borrow_mut().from.read_line(&mut line);
    if !read.is_ok_and(|bytes| bytes > 0) {
        return Err(Failure::failed("its process ended without an answer"));
    }
    let answer: Value = serde_json::from_str(&line)
        .map_err(|e| Failure::failed(format!("no answer in `{line}`: {e}")))?;
    let reason = |class: &str| answer.get(class).and_then(Value::as_str).map(str::to_owned);
    if let Some(reason) = reason("unsupported") {
        return Err(Failure::unsupported(reason));
    }
    if let Some(reason) = reason("out_of_memory") {
        return Err(Failure::out_of_memory(reason));
    }
    if let Some(reason) = reason("failed") {
        return Err(Failure::failed(reason));
    }
    serde_json::from_value(answer)
        .map_err(|e| Failure::failed(format!("an answer that is none: {e}")))
}

/// A path as the process reads it.
pub(super) fn text(path: &Path) -> Value {
    json!(path.to_string_lossy())
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The end of its input is the program's signal to end.
        self.pipe.borrow_mut().to = None;
        drop(self.running.borrow_mut().child.wait());
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use overdrive_bench::failure::FailureKind;

    /// A peer that is a shell script.
    fn script(text: &str) -> Result<Peer, Failure> {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        Peer::start("script", command, folder()?, &Stop::default())
    }

    const HELLO: &str = r#"echo '{"version":"1","device":"cpu","threads":2}'; read line; "#;

    #[test]
    fn answers_keep_their_class() {
        for (answer, kind) in [
            (r#"{"unsupported":"no such mode"}"#, FailureKind::Unsupported),
            (r#"{"out_of_memory":"no room"}"#, FailureKind::OutOfMemory),
            (r#"{"failed":"TypeError"}"#, FailureKind::Failed),
            ("no json", FailureKind::Failed),
            (r#"{"other":1}"#, FailureKind::Failed),
        ] {
            let peer = script(&format!("{HELLO} echo '{answer}'")).expect("it says hello");
            assert_eq!((peer.device(), peer.threads(), peer.version()), ("cpu", 2, "1"));
            assert!(peer.has_mode("eager") && !peer.has_mode("graph") && !peer.reads_onnx());
            let failure =
                peer.ask::<Description>(&json!({ "do": "open" })).expect_err("it refuses");
            assert_eq!(failure.kind, kind, "{answer}");
        }
        let peer = script(&format!(r#"{HELLO} echo '{{"version":"2","device":"x","threads":0}}'"#))
            .expect("it says hello");
        assert_eq!(peer.ask::<Description>(&json!({})).expect("it answers").version, "2");
        assert_eq!(
            peer.ask::<Description>(&json!({})).expect_err("it is gone").kind,
            FailureKind::Failed
        );
    }

    #[test]
    fn a_program_says_whose_a_workload_is_and_how_else_it_runs() {
        let graph = crate::kernels::graphs::copy(overdrive_ir::DType::F32, &[2])
            .expect("it is well-formed");
        let workload = Workload::new("copy", [("n", 2)], graph);
        for (answer, expected) in [
            (r#"{"known":true,"by":"transformers"}"#, Some((Some("transformers"), vec![]))),
            (r#"{"known":true,"variants":["liger"]}"#, Some((None, vec!["liger"]))),
            (r#"{"known":false}"#, None),
            (r#"{"failed":"KeyError"}"#, None),
        ] {
            let peer = script(&format!("{HELLO} echo '{answer}'")).expect("it says hello");
            let known = peer.knows(&workload);
            let found = known
                .as_ref()
                .map(|k| (k.by.as_deref(), k.variants.iter().map(String::as_str).collect()));
            assert_eq!(found, expected, "{answer}");
        }
    }

    #[test]
    fn a_missing_framework_is_one_message_with_its_remedy() {
        for (name, remedy) in [
            ("pytorch", "pip install torch"),
            ("openvino", "pip install openvino"),
            ("torchao", "pip install torch transformers torchao"),
            ("bitsandbytes", "pip install torch transformers bitsandbytes"),
        ] {
            let quantizes = QUANTIZING.iter().any(|framework| framework.name == name);
            let start = if quantizes { Peer::quantizing } else { Peer::python };
            let failure = start(name, "no-such-python", ("cpu", 1), &Stop::default())
                .expect_err("there is none");
            assert_eq!(failure.kind, FailureKind::Unsupported);
            assert!(
                failure.reason.contains("no-such-python") && failure.reason.contains(remedy),
                "{failure}"
            );
        }
        let failure = Peer::python("openvono", "python3", ("cpu", 1), &Stop::default())
            .expect_err("there is none");
        assert!(failure.reason.contains("pytorch, openvino"), "{failure}");
        let failure = Peer::quantizing("pytorch", "python3", ("cpu", 1), &Stop::default())
            .expect_err("there is none");
        assert!(failure.reason.contains("torchao, bitsandbytes"), "{failure}");
        assert!(script("exit 1").is_err());
    }
}
