//! Proves that adding an op is one file and one line: a patch that adds `softplus` is applied to a
//! copy of the checkout, where the op harness must accept it, and must reject it once its meaning
//! is broken.
//!
//! The patch lives outside the tree, so that it stays an example and never becomes a feature.
//! Invariant: the checkout itself is not touched; the copy stands in `target/add-op` and is kept
//! between runs, so that only what changed is built again.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::step::{Tally, stream};
use crate::workspace::Workspace;

const PATCH: &str = "xtask/patches/add-op.patch";
/// The op's own file, and the list that names it.
const FILES: [&str; 2] =
    ["crates/overdrive-ir/src/ops/mod.rs", "crates/overdrive-ir/src/ops/softplus.rs"];
/// Where the copy stands, from the root of the checkout.
const COPY: &str = "target/add-op";
const HARNESS: [&str; 5] = ["test", "--package", "testkit", "--test", "ops"];
/// A piece of the op's meaning, and what makes it wrong.
const SABOTAGE: (&str, &str) = ("x.exp().ln_1p()", "x.exp()");

/// Checks the patch, applies it to a fresh copy and runs the op harness there: with the op as it
/// is, which must pass, and with its meaning broken, which must not, or the harness has never
/// looked at it.
pub(crate) fn run(workspace: &Workspace) -> Result<Tally> {
    touches_two_files(&workspace.output("git", &["apply", "--numstat", "--unidiff-zero", PATCH])?)?;
    let root = workspace.root().join(COPY);
    copy(workspace, &root)?;
    // Without `--unidiff-zero`, the line that the list gains would have to be its last.
    workspace.output("git", &["apply", "--unidiff-zero", "--directory", COPY, PATCH])?;
    let harness = || {
        let mut command = Workspace::at(&root).command("cargo");
        command.args(HARNESS).env("CARGO_TARGET_DIR", workspace.root().join("target"));
        command
    };
    let finished = stream(harness())?;
    ensure!(finished.success, "the op harness fails with {PATCH} applied");

    let op = root.join(FILES[1]);
    let text = fs::read_to_string(&op).with_context(|| format!("cannot read {op:?}"))?;
    ensure!(text.contains(SABOTAGE.0), "{PATCH} no longer has `{}` to break", SABOTAGE.0);
    fs::write(&op, text.replace(SABOTAGE.0, SABOTAGE.1))
        .with_context(|| format!("cannot write {op:?}"))?;
    let broken = harness().output().context("cannot run cargo")?;
    let said = String::from_utf8_lossy(&broken.stdout);
    ensure!(
        !broken.status.success() && said.to_lowercase().contains("softplus"),
        "the op harness does not reject a wrong `softplus`:\n{said}"
    );
    println!("the op harness accepts `softplus` and rejects a wrong one");
    Ok(Tally::of(&finished.lines))
}

/// `numstat` is what `git apply --numstat` prints: lines added, lines removed and the path, a file
/// a line.
fn touches_two_files(numstat: &str) -> Result<()> {
    let touched: BTreeSet<&str> =
        numstat.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    ensure!(
        touched == BTreeSet::from(FILES),
        "{PATCH} touches {touched:?}; adding an op is {FILES:?} and nothing else"
    );
    Ok(())
}

/// Makes `to` equal to the checkout. Files that are equal already are not written, so that cargo
/// sees which are new.
fn copy(workspace: &Workspace, to: &Path) -> Result<()> {
    let files = workspace.files()?;
    // What an earlier patch or an earlier checkout left behind would be compiled too.
    for stale in left_behind(to, Path::new(""), &files)? {
        fs::remove_file(to.join(&stale)).with_context(|| format!("cannot remove {stale}"))?;
    }
    for path in &files {
        let mut bytes =
            fs::read(workspace.root().join(path)).with_context(|| format!("cannot read {path}"))?;
        if path == "Cargo.toml" {
            bytes = marked(&String::from_utf8_lossy(&bytes))?.into_bytes();
        }
        let target = to.join(path);
        // The copy resolves its own lock file, since its crates have versions of their own.
        if fs::read(&target).is_ok_and(|old| old == bytes || path == "Cargo.lock") {
            continue;
        }
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder).with_context(|| format!("cannot create {folder:?}"))?;
        }
        fs::write(&target, bytes).with_context(|| format!("cannot write {target:?}"))?;
    }
    Ok(())
}

/// The root manifest with a version of its own. Cargo names the artefacts of a workspace's crates
/// by their version and by their path from its root, so that a copy that shares the target folder,
/// to share the dependencies, would be taken for the checkout.
fn marked(manifest: &str) -> Result<String> {
    let (before, rest) = manifest
        .split_once("\nversion = \"")
        .context("Cargo.toml gives the workspace no version")?;
    let (version, after) = rest.split_once('"').context("Cargo.toml has an open string")?;
    Ok(format!("{before}\nversion = \"{version}+add-op\"{after}"))
}

/// Files under `folder` of the copy `root` that are not among `files`.
fn left_behind(root: &Path, folder: &Path, files: &[String]) -> Result<Vec<String>> {
    let mut stale = Vec::new();
    let Ok(entries) = fs::read_dir(root.join(folder)) else { return Ok(stale) };
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {folder:?}"))?;
        let path = folder.join(entry.file_name());
        let name = path.to_string_lossy().replace('\\', "/");
        if entry.file_type().with_context(|| format!("cannot look at {name}"))?.is_dir() {
            stale.extend(left_behind(root, &path, files)?);
        } else if files.binary_search(&name).is_err() {
            stale.push(name);
        }
    }
    Ok(stale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_that_touches_anything_else_is_refused() {
        let both = format!("1\t0\t{}\n80\t0\t{}\n", FILES[0], FILES[1]);
        touches_two_files(&both).expect("the two files");
        assert!(
            touches_two_files(&format!("{both}1\t1\tcrates/overdrive-cpu/src/lib.rs\n")).is_err(),
            "a third file"
        );
        assert!(touches_two_files(&format!("1\t0\t{}\n", FILES[0])).is_err(), "the list alone");
    }

    #[test]
    fn the_copy_has_a_version_of_its_own() {
        let manifest = "[workspace.package]\nversion = \"0.1.0\"\nedition = \"2024\"\n";
        assert_eq!(
            marked(manifest).expect("a version"),
            "[workspace.package]\nversion = \"0.1.0+add-op\"\nedition = \"2024\"\n"
        );
        assert!(marked("[workspace]\n").is_err());
    }

    #[test]
    fn the_copy_follows_the_checkout() {
        let root = std::env::temp_dir().join(format!("overdrive-add-op-{}", std::process::id()));
        let (from, to) = (root.join("from"), root.join("to"));
        fs::create_dir_all(from.join("src")).expect("writable");
        let workspace = Workspace::at(&from);
        workspace.output("git", &["init", "--quiet"]).expect("git");
        fs::write(from.join("Cargo.toml"), "[workspace.package]\nversion = \"1.0.0\"\n")
            .expect("writable");
        fs::write(from.join("src/kept.rs"), "old").expect("writable");
        fs::write(from.join("src/gone.rs"), "old").expect("writable");
        copy(&workspace, &to).expect("a copy");
        assert_eq!(fs::read_to_string(to.join("src/kept.rs")).expect("copied"), "old");

        fs::write(from.join("src/kept.rs"), "new").expect("writable");
        fs::remove_file(from.join("src/gone.rs")).expect("there");
        fs::write(to.join("src/patched.rs"), "left by a patch").expect("writable");
        copy(&workspace, &to).expect("a copy");
        assert_eq!(fs::read_to_string(to.join("src/kept.rs")).expect("copied"), "new");
        assert!(!to.join("src/gone.rs").exists(), "a file that is gone");
        assert!(!to.join("src/patched.rs").exists(), "a file that a patch left");
        fs::remove_dir_all(&root).expect("removable");
    }
}
