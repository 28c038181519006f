//! The Python wheel that carries the program, by maturin (`pyproject.toml`). Its tag says the
//! oldest glibc: maturin reads the program's symbols and refuses a tag that they do not fit.

use anyhow::{Context, Result, ensure};

use super::target::{FOLDER, Target};
use crate::workspace::Workspace;

/// Makes the wheel of a target.
pub(super) fn make(workspace: &Workspace, target: &Target, host: &str) -> Result<()> {
    ensure!(
        workspace.output("maturin", &["--version"]).is_ok(),
        "the wheel: expected maturin, found none; `pip install maturin`"
    );
    let arguments = arguments(target, host);
    let status =
        workspace.command("maturin").args(&arguments).status().context("cannot run maturin")?;
    ensure!(status.success(), "`maturin {}` failed", arguments.join(" "));
    Ok(())
}

fn arguments(target: &Target, host: &str) -> Vec<String> {
    let mut arguments: Vec<String> =
        ["build", "--release", "--out", FOLDER].map(str::to_owned).into();
    if !target.is_native(host) {
        arguments.extend(["--zig".to_owned(), "--target".to_owned(), target.triple.clone()]);
    }
    if let Some(platform) = target.wheel_platform() {
        arguments.extend(["--compatibility".to_owned(), platform]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_is_asked_for_only_where_the_target_promises_it() {
        let host = "x86_64-unknown-linux-gnu";
        let line = |name: &str| arguments(&Target::parse(name).expect("it is one"), host).join(" ");
        assert_eq!(line(host), "build --release --out dist");
        assert_eq!(
            line("x86_64-unknown-linux-gnu.2.17"),
            "build --release --out dist --zig --target x86_64-unknown-linux-gnu --compatibility \
             manylinux_2_17"
        );
        assert_eq!(
            line("aarch64-unknown-linux-musl"),
            "build --release --out dist --zig --target aarch64-unknown-linux-musl --compatibility \
             musllinux_1_2"
        );
    }
}
