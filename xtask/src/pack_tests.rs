//! `pack-tests`: every test of the workspace, built, in one archive that runs on a machine without
//! cargo.
//!
//! It is for machines with a GPU and no toolchain. There `cargo-nextest`, itself one file, unpacks
//! the archive beside a checkout and runs it. Snapshot tests ask cargo for the workspace, and are
//! told it there. Invariant: the archive replaces an older one whole or not at all.

use crate::workspace::Workspace;
use anyhow::{Context, Result, bail, ensure};
use std::process::Command;

/// Path of the archive, relative to the root of the workspace.
const ARCHIVE: &str = "target/tests.tar.zst";

/// Runs the archive where there is a GPU. CONTRIBUTING.md has the same line.
const RUN: &str = "OVERDRIVE_REQUIRE=gpu,nvrtc OVERDRIVE_SKIPS=$PWD/skips.txt \
                   INSTA_WORKSPACE_ROOT=$PWD cargo-nextest nextest run \
                   --archive-file tests.tar.zst --workspace-remap .";

/// Builds and packs the tests of `packages`; none means all.
pub(crate) fn run(workspace: &Workspace, packages: &[&str]) -> Result<()> {
    if workspace.output("cargo", &["nextest", "--version"]).is_err() {
        bail!(
            "cargo-nextest was not found: `cargo install cargo-nextest --locked`, or get it from \
             https://nexte.st"
        );
    }
    let part = format!("{ARCHIVE}.part");
    let mut command = Command::new("cargo");
    command.current_dir(workspace.root()).args([
        "nextest",
        "archive",
        "--archive-format",
        "tar-zst",
    ]);
    command.args(["--archive-file", &part]);
    // The whole workspace is built, so that what is packed has the features of every other build.
    command.arg("--workspace");
    if !packages.is_empty() {
        let named: Vec<String> =
            packages.iter().map(|package| format!("package({package})")).collect();
        command.args(["--filterset", &named.join(" + ")]);
    }
    let status = command.status().context("starting cargo nextest")?;
    ensure!(status.success(), "cargo nextest archive ended with {status}");
    let archive = workspace.root().join(ARCHIVE);
    std::fs::rename(workspace.root().join(part), &archive).context("naming the archive")?;
    println!("{}", archive.display());
    println!("where there is no cargo, in a checkout, with this file and cargo-nextest:\n  {RUN}");
    println!("no test is skipped for want of a GPU or NVRTC; skips.txt gets those that need more");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_is_written_down() {
        let page = include_str!("../../CONTRIBUTING.md").replace("\\\n", " ");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words(&page).contains(&words(RUN)), "expected `{RUN}` in CONTRIBUTING.md");
    }
}
