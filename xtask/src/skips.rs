//! The tests that did not run on this machine, with the reasons.
//!
//! Most could not run, and wrote so to a list themselves (`testkit::skip`). There is one line a
//! skip, with program, test, what it needs, and why. The others are marked `#[ignore]`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::workspace::Workspace;

/// The variable that names the list.
pub(crate) const VARIABLE: &str = "OVERDRIVE_SKIPS";

/// The path of the list.
pub(crate) fn list(workspace: &Workspace) -> PathBuf {
    workspace.root().join("target/skips.txt")
}

/// Forgets the skips of an earlier check.
pub(crate) fn forget(workspace: &Workspace) -> Result<()> {
    let path = list(workspace);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// The tests that were skipped, by reason.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Skips(BTreeMap<String, BTreeSet<String>>);

impl Skips {
    /// Those that the list holds; none where nobody wrote one.
    pub(crate) fn read(workspace: &Workspace) -> Result<Self> {
        let path = list(workspace);
        match fs::read_to_string(&path) {
            Ok(text) => Self::of(&text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    fn of(text: &str) -> Result<Self> {
        let mut skips = Self::default();
        for line in text.lines() {
            let parts: Vec<&str> = line.splitn(4, '\t').collect();
            let [program, test, needs, reason] = parts[..] else {
                anyhow::bail!("expected program, test, need and reason in the skip `{line}`");
            };
            let tests = skips.0.entry(format!("{needs}: {reason}")).or_default();
            tests.insert(format!("{program} {test}"));
        }
        Ok(skips)
    }

    /// How many tests were skipped, each once.
    pub(crate) fn count(&self) -> u64 {
        self.0.values().flatten().collect::<BTreeSet<_>>().len() as u64
    }

    /// A line for each reason, the most frequent first.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut reasons: Vec<_> = self.0.iter().collect();
        reasons.sort_by_key(|(_, tests)| std::cmp::Reverse(tests.len()));
        reasons.iter().map(|(reason, tests)| format!("{:>5}  {reason}", tests.len())).collect()
    }
}

/// A line for each test that is marked `#[ignore]`, from its source: no harness says why.
pub(crate) fn ignored(workspace: &Workspace) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for path in workspace.files()?.iter().filter(|path| path.ends_with(".rs")) {
        let text = fs::read_to_string(workspace.root().join(path))
            .with_context(|| format!("cannot read {path}"))?;
        lines.extend(reasons(&text).map(|reason| format!("    1  {path}: {reason}")));
    }
    Ok(lines)
}

/// The reasons of the tests that a file ignores.
fn reasons(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let attribute = line.trim().strip_prefix("#[ignore")?.strip_suffix(']')?;
        Some(attribute.trim_matches([' ', '=', '"']))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_counts_once_and_reasons_are_listed() {
        let text = "ops-1f\tone\tgpu\tno GPU\nops-1f\tone\tgpu\tno GPU\nops-1f\ttwo\tgpu\tno GPU\n\
                    xla-2e\tone\tpjrt\tno plugin\n";
        let skips = Skips::of(text).unwrap();
        assert_eq!(skips.count(), 3);
        assert_eq!(skips.lines(), ["    2  gpu: no GPU", "    1  pjrt: no plugin"]);
        assert!(Skips::of("half a line").unwrap_err().to_string().contains("half a line"));
    }

    #[test]
    fn ignored_tests_have_their_reasons_in_their_source() {
        let text = "#[test]\n    #[ignore = \"takes minutes\"]\nfn a() {}\n// #[ignore = \"no\"]\n";
        assert_eq!(reasons(text).collect::<Vec<_>>(), ["takes minutes"]);
    }
}
