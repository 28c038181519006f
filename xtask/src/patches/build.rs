//! One build of the copy, and the tests of patches in it.
//!
//! The targets are built by one command for the whole workspace. Dependencies thus have the
//! features that `cargo xtask check` gave them, and are not built again. Tests then run without
//! cargo, in the folder of their package as cargo would run them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::patch::Test;
use crate::extent::{Extent, features};
use crate::skips;
use crate::step::Tally;
use crate::workspace::{TARGET_FOLDER, Workspace};

/// The binaries of integration tests, by package and target.
pub(super) struct Built {
    binaries: BTreeMap<(String, String), Binary>,
    /// Warnings of the compiler.
    pub(super) said: String,
    /// The file in which tests that lack something here say so.
    skips: PathBuf,
}

struct Binary {
    path: PathBuf,
    /// The folder of the package.
    folder: PathBuf,
}

/// How tests ended.
pub(super) struct Ran {
    pub(super) success: bool,
    pub(super) tally: Tally,
    pub(super) seconds: f64,
    /// All that they printed.
    pub(super) said: String,
}

impl Default for Ran {
    fn default() -> Self {
        Self { success: true, tally: Tally::default(), seconds: 0.0, said: String::new() }
    }
}

impl Ran {
    /// Both together.
    pub(super) fn add(&mut self, other: Self) {
        self.success &= other.success;
        self.tally += other.tally;
        self.seconds += other.seconds;
        self.said += &other.said;
    }
}

impl Built {
    /// Builds every integration test of these names in `copy`, a copy of `workspace`, next to the
    /// builds of `workspace`.
    pub(super) fn new(
        workspace: &Workspace,
        copy: &Workspace,
        targets: &BTreeSet<&str>,
    ) -> Result<Self> {
        let mut command = copy.command("cargo");
        command.arg("test").args(features(Extent::Full));
        command.args(["--no-run", "--message-format", "json"]);
        command.args(targets.iter().flat_map(|target| ["--test", target]));
        command.env(TARGET_FOLDER, workspace.target()?);
        // Progress and errors go straight to the terminal.
        command.stderr(std::process::Stdio::inherit());
        let built = command.output().context("cannot run cargo")?;
        let messages = String::from_utf8_lossy(&built.stdout);
        let said = messages.lines().filter_map(rendered).collect();
        ensure!(
            built.status.success(),
            "expected the patches to build together, found:\n{said}\nin {:?}: adapt the patch \
             that has the file",
            copy.root()
        );
        let binaries = messages.lines().filter_map(binary).collect();
        Ok(Self { binaries, said, skips: skips::list(workspace) })
    }

    /// Runs the tests of a patch.
    ///
    /// # Errors
    /// When there is no such test.
    pub(super) fn run(&self, test: &Test) -> Result<Ran> {
        let key = (test.package.clone(), test.target.clone());
        let binary = self.binaries.get(&key).with_context(|| {
            let known: Vec<&(String, String)> = self.binaries.keys().collect();
            format!("expected a test of {known:?}, found `{test}`: correct `Test:` in its patch")
        })?;
        let start = Instant::now();
        let ran = Command::new(&binary.path)
            .current_dir(&binary.folder)
            .args(&test.filter)
            .env(skips::VARIABLE, &self.skips)
            .output()
            .with_context(|| format!("cannot run {:?}", binary.path))?;
        let said = String::from_utf8_lossy(&ran.stdout).into_owned()
            + &String::from_utf8_lossy(&ran.stderr);
        let tally = Tally::of(&said.lines().map(str::to_owned).collect::<Vec<_>>());
        ensure!(
            tally != Tally::default(),
            "expected a test, found none of this name, in `{test}`: correct `Test:` in its patch"
        );
        let seconds = start.elapsed().as_secs_f64();
        Ok(Ran { success: ran.status.success(), tally, seconds, said })
    }
}

/// The compiler's text, from a message of cargo.
fn rendered(message: &str) -> Option<String> {
    let message: Value = serde_json::from_str(message).ok()?;
    let said = &message["message"];
    said["rendered"].as_str().map(str::to_owned)
}

/// The binary of an integration test, of a message of cargo's that names one.
fn binary(message: &str) -> Option<((String, String), Binary)> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["target"]["kind"][0] != "test" {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    // `path+file:///.../crates/testkit#0.1.0`, or `...#testkit@0.1.0` where the folder has another
    // name.
    let (place, version) = message["package_id"].as_str()?.split_once('#')?;
    let package = version.split_once('@').map_or(place.rsplit('/').next()?, |(name, _)| name);
    let target = message["target"]["name"].as_str()?;
    Some(((package.to_owned(), target.to_owned()), Binary { path, folder }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binaries_are_those_of_integration_tests() {
        let message = r#"{"reason": "compiler-artifact",
            "package_id": "path+file:///w/crates/testkit#0.1.0+patches",
            "manifest_path": "/w/crates/testkit/Cargo.toml",
            "target": {"kind": ["test"], "name": "ops"}, "executable": "/t/ops-1"}"#;
        let ((package, target), found) = binary(message).expect("a binary");
        assert_eq!((package.as_str(), target.as_str()), ("testkit", "ops"));
        assert_eq!((found.path, found.folder), ("/t/ops-1".into(), "/w/crates/testkit".into()));
        let named = message.replace("testkit#0.1.0+patches", "kit#testkit@0.1.0+patches");
        assert_eq!(binary(&named).expect("a binary").0.0, "testkit");
        assert!(binary(&message.replace("[\"test\"]", "[\"lib\"]")).is_none());
        assert!(binary("Compiling testkit").is_none());
    }

    #[test]
    fn what_the_compiler_says_is_kept() {
        let message = r#"{"reason": "compiler-message",
            "message": {"level": "error", "rendered": "no such type\n"}}"#;
        assert_eq!(rendered(message).as_deref(), Some("no such type\n"));
        assert!(rendered(r#"{"reason":"build-finished","success":true}"#).is_none());
    }
}
