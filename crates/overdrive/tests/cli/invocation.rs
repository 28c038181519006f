//! Calls the binary in a folder of its own.

use overdrive::formats::{self, Tensors};
use overdrive::ir::Tensor;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The results of a call.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Outcome {
    /// Fails unless it ended so, and said each of these words.
    #[track_caller]
    pub(crate) fn ends(&self, code: i32, words: &[&str]) -> &Self {
        self.ends_in(&[code], words)
    }

    /// The same where the measured times decide how it ends.
    #[track_caller]
    pub(crate) fn ends_in(&self, codes: &[i32], words: &[&str]) -> &Self {
        assert!(codes.contains(&self.code), "{self:?}");
        for word in words {
            let said = self.stdout.contains(word) || self.stderr.contains(word);
            assert!(said, "`{word}` was not said: {self:?}");
        }
        self
    }
}

/// A folder that goes away with the test.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A file of tensors, in the format that its name says.
    pub(crate) fn tensors(&self, file: &str, named: &[(&str, Tensor)]) -> PathBuf {
        let tensors: Tensors =
            named.iter().map(|(name, t)| ((*name).to_owned(), t.clone())).collect();
        let path = self.path(file);
        formats::write(&path, &tensors).unwrap();
        path
    }

    /// Names of what is in it.
    pub(crate) fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.0.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Runs `overdrive` here.
    #[track_caller]
    pub(crate) fn overdrive<A: AsRef<OsStr>>(&self, arguments: &[A]) -> Outcome {
        call(self.0.path(), arguments)
    }

    /// Runs a command line without quoted words here, in at most so much address space.
    #[cfg(target_os = "linux")]
    #[track_caller]
    pub(crate) fn within(&self, kibibytes: u32, line: &str) -> Outcome {
        let script = format!("ulimit -v {kibibytes}; exec \"$0\" {line}");
        let mut command = Command::new("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_overdrive")]);
        outcome(&mut command, self.0.path())
    }

    /// Runs a line of a shell here, to which `overdrive` is the binary.
    #[cfg(unix)]
    #[track_caller]
    pub(crate) fn shell(&self, line: &str) -> Outcome {
        let mut command = Command::new("sh");
        let own = Path::new(env!("CARGO_BIN_EXE_overdrive")).parent().unwrap();
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(own.to_owned()).chain(std::env::split_paths(&path));
        command.args(["-c", line]).env("PATH", std::env::join_paths(folders).unwrap());
        outcome(&mut command, self.0.path())
    }

    /// Runs a command line without quoted words here.
    #[track_caller]
    pub(crate) fn line(&self, line: &str) -> Outcome {
        self.overdrive(&line.split_whitespace().collect::<Vec<_>>())
    }
}

#[track_caller]
fn call<A: AsRef<OsStr>>(folder: &Path, arguments: &[A]) -> Outcome {
    let mut command = Command::new(env!("CARGO_BIN_EXE_overdrive"));
    outcome(command.args(arguments), folder)
}

#[track_caller]
fn outcome(command: &mut Command, folder: &Path) -> Outcome {
    command.current_dir(folder).stdin(Stdio::null()).env("NO_COLOR", "1");
    let output = command.output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let code = output.status.code().unwrap_or_else(|| panic!("ended by a signal: {output:?}"));
    let outcome = Outcome { code, stdout: text(&output.stdout), stderr: text(&output.stderr) };
    assert!(!outcome.stderr.contains("panicked"), "{outcome:?}");
    let documented = (0..=6).contains(&outcome.code) || [130, 141, 143].contains(&outcome.code);
    assert!(documented, "not a documented exit code: {outcome:?}");
    outcome
}
