//! The copy of the checkout that patches are applied to.
//!
//! Invariant: only files that differ are written, so that cargo builds what changed and no more.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::workspace::Workspace;

/// Makes `to` equal to the checkout, without what earlier patches left there.
pub(super) fn refresh(workspace: &Workspace, to: &Path) -> Result<()> {
    let files = workspace.files()?;
    // Files that an earlier patch or an earlier checkout left behind would be compiled too.
    for stale in left_behind(to, Path::new(""), &files)? {
        fs::remove_file(to.join(&stale)).with_context(|| format!("cannot remove {stale}"))?;
    }
    for path in &files {
        let mut bytes =
            fs::read(workspace.root().join(path)).with_context(|| format!("cannot read {path}"))?;
        if path == "Cargo.toml" {
            bytes = marked(&String::from_utf8_lossy(&bytes), &files)?.into_bytes();
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

/// The root manifest with a version of its own, and with crates built as quickly as can be: their
/// tests run for a moment.
///
/// Cargo names the artefacts of a workspace's crates by their version and by their path from its
/// root. The copy shares the target folder, to share the dependencies: it would be taken for the
/// checkout.
fn marked(manifest: &str, files: &[String]) -> Result<String> {
    let (before, rest) = manifest
        .split_once("\nversion = \"")
        .context("Cargo.toml gives the workspace no version")?;
    let (version, after) = rest.split_once('"').context("Cargo.toml has an open string")?;
    let profiles: String = files
        .iter()
        .filter_map(|path| path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"))
        .map(|name| format!("\n[profile.dev.package.{name}]\nopt-level = 0\n"))
        .filter(|profile| !manifest.contains(profile.trim_end()))
        .collect();
    Ok(format!("{before}\nversion = \"{version}+patches\"{after}{profiles}"))
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
    fn the_copy_has_a_version_of_its_own_and_is_not_optimised() {
        let manifest = "[workspace.package]\nversion = \"0.1.0\"\nedition = \"2024\"\n";
        let files = ["Cargo.toml", "crates/testkit/Cargo.toml", "crates/testkit/src/lib.rs"];
        let files = files.map(str::to_owned);
        assert_eq!(
            marked(manifest, &files).expect("a version"),
            "[workspace.package]\nversion = \"0.1.0+patches\"\nedition = \"2024\"\n\n\
             [profile.dev.package.testkit]\nopt-level = 0\n"
        );
        let known = format!("{manifest}\n[profile.dev.package.testkit]\nopt-level = 0\n");
        let found = marked(&known, &files).expect("a version");
        assert_eq!(found, known.replace("0.1.0", "0.1.0+patches"), "no table stands there twice");
        assert!(marked("[workspace]\n", &files).is_err());
    }

    #[test]
    fn the_copy_follows_the_checkout() {
        let root = std::env::temp_dir().join(format!("overdrive-copy-{}", std::process::id()));
        let (from, to) = (root.join("from"), root.join("to"));
        fs::create_dir_all(from.join("src")).expect("writable");
        let workspace = Workspace::at(&from);
        workspace.output("git", &["init", "--quiet"]).expect("git");
        fs::write(from.join("Cargo.toml"), "[workspace.package]\nversion = \"1.0.0\"\n")
            .expect("writable");
        fs::write(from.join("src/kept.rs"), "old").expect("writable");
        fs::write(from.join("src/gone.rs"), "old").expect("writable");
        refresh(&workspace, &to).expect("a copy");
        assert_eq!(fs::read_to_string(to.join("src/kept.rs")).expect("copied"), "old");

        fs::write(from.join("src/kept.rs"), "new").expect("writable");
        fs::remove_file(from.join("src/gone.rs")).expect("there");
        fs::write(to.join("src/patched.rs"), "left by a patch").expect("writable");
        refresh(&workspace, &to).expect("a copy");
        assert_eq!(fs::read_to_string(to.join("src/kept.rs")).expect("copied"), "new");
        assert!(!to.join("src/gone.rs").exists(), "a file that is gone");
        assert!(!to.join("src/patched.rs").exists(), "a file that a patch left");
        fs::remove_dir_all(&root).expect("removable");
    }
}
