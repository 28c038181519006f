//! The checkout that xtask works on: where it is, which files it has, which packages.
//!
//! Files are those that git tracks or would track. So build output and scratch files never count,
//! and a new file counts before it is committed.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// The variable that names where cargo builds.
pub(crate) const TARGET_FOLDER: &str = "CARGO_TARGET_DIR";

/// The root folder of a checkout. Paths of files are relative to it and use `/` on every system.
pub(crate) struct Workspace {
    root: PathBuf,
}

/// One member of the workspace, as its `Cargo.toml` declares it.
#[derive(Clone, Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// The path of its `Cargo.toml` from the root of the workspace.
    pub(crate) manifest: String,
    /// The text of its `Cargo.toml`.
    pub(crate) manifest_text: String,
    pub(crate) dependencies: Vec<Dependency>,
}

/// One line of a `[dependencies]`, `[build-dependencies]` or `[dev-dependencies]` table.
#[derive(Clone, Debug)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

/// Whether a dependency ends up in what users run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In `[dependencies]` or `[build-dependencies]`.
    Shipped,
    /// In `[dev-dependencies]`: tests, examples and benchmarks alone.
    Dev,
}

impl Workspace {
    /// The checkout that this binary was built from.
    pub(crate) fn of_this_build() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .expect("xtask is a folder of the workspace");
        Self::at(root)
    }

    /// The checkout at `root`.
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// The root folder.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The folder of cargo's outputs.
    pub(crate) fn target(&self) -> Result<PathBuf> {
        let folder = std::env::var_os(TARGET_FOLDER)
            .map_or_else(|| self.root.join("target"), |folder| self.root.join(folder));
        std::path::absolute(folder).context("no working folder")
    }

    /// `program` with the root as its working directory.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command
    }

    /// The output of `program` with `args`. If it fails, the error has its output.
    pub(crate) fn output(&self, program: &str, args: &[&str]) -> Result<String> {
        let run = self
            .command(program)
            .args(args)
            .output()
            .with_context(|| format!("cannot run `{program}`"))?;
        let said = String::from_utf8_lossy(&run.stderr);
        ensure!(run.status.success(), "`{program} {}` failed: {}", args.join(" "), said.trim());
        Ok(String::from_utf8_lossy(&run.stdout).into_owned())
    }

    /// Every file that is tracked, or new and not ignored, in alphabetical order.
    pub(crate) fn files(&self) -> Result<Vec<String>> {
        let listing =
            self.output("git", &["ls-files", "-z", "--cached", "--others", "--exclude-standard"])?;
        let mut files: Vec<String> = listing.split_terminator('\0').map(str::to_owned).collect();
        files.retain(|path| self.root.join(path).is_file());
        files.sort();
        files.dedup();
        Ok(files)
    }

    /// The members of the workspace.
    pub(crate) fn packages(&self) -> Result<Vec<Package>> {
        let metadata = self.output("cargo", &["metadata", "--no-deps", "--format-version", "1"])?;
        let metadata: Value =
            serde_json::from_str(&metadata).context("`cargo metadata` printed no JSON")?;
        let packages =
            metadata["packages"].as_array().context("`cargo metadata` lists no packages")?;
        packages.iter().map(|package| self.package(package)).collect()
    }

    fn package(&self, package: &Value) -> Result<Package> {
        let text = |value: &Value| {
            value.as_str().map(str::to_owned).context("`cargo metadata` misses a name or a path")
        };
        let manifest_path = PathBuf::from(text(&package["manifest_path"])?);
        let manifest = manifest_path
            .strip_prefix(&self.root)
            .unwrap_or(&manifest_path)
            .to_string_lossy()
            .replace('\\', "/");
        let dependencies = package["dependencies"]
            .as_array()
            .context("a package without a list of dependencies")?;
        Ok(Package {
            name: text(&package["name"])?,
            manifest,
            manifest_text: std::fs::read_to_string(&manifest_path)
                .with_context(|| format!("cannot read {manifest_path:?}"))?,
            dependencies: dependencies
                .iter()
                .map(|dependency| {
                    let kind = if dependency["kind"] == "dev" { Kind::Dev } else { Kind::Shipped };
                    Ok(Dependency { name: text(&dependency["name"])?, kind })
                })
                .collect::<Result<_>>()?,
        })
    }
}
