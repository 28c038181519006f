//! The program for a target: by cargo where it is this machine's, else by cargo-zigbuild, whose C
//! compiler and linker serve every target.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::target::Target;
use crate::workspace::Workspace;

const PACKAGE: [&str; 5] = ["--locked", "--package", "overdrive", "--bin", "overdrive"];

/// The triple of this machine.
pub(super) fn host(workspace: &Workspace) -> Result<String> {
    let said = workspace.output("rustc", &["-vV"])?;
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).context("`rustc -vV` names no host")
}

/// Builds for this machine; the path of the program.
pub(super) fn for_host(workspace: &Workspace) -> Result<PathBuf> {
    cargo(workspace, &["build", "--release"], &[])?;
    Ok(folder(workspace)?.join("release/overdrive"))
}

/// Builds for a target; the program without symbols.
pub(super) fn stripped(workspace: &Workspace, target: &Target, host: &str) -> Result<Vec<u8>> {
    let program = if target.is_native(host) {
        for_host(workspace)?
    } else {
        has_library(workspace, target)?;
        ensure!(
            workspace.output("cargo-zigbuild", &["--version"]).is_ok(),
            "expected cargo-zigbuild, which links for other machines; found none; `pip install \
             cargo-zigbuild`"
        );
        cargo(workspace, &["zigbuild", "--release", "--target", &target.to_string()], &[])?;
        folder(workspace)?.join(&target.triple).join("release/overdrive")
    };
    let stripped = program.with_extension("stripped");
    strip(workspace, host, [&program, &stripped])?;
    fs::read(&stripped).with_context(|| format!("cannot read {}", stripped.display()))
}

/// Compiles what needs no C compiler, and links nothing.
pub(super) fn check(workspace: &Workspace, target: &Target) -> Result<()> {
    has_library(workspace, target)?;
    cargo(workspace, &["check", "--target", &target.triple], &["--no-default-features"])
}

/// The newest version of glibc among the symbols that a program takes from it; none where it takes
/// none. Such versions stand in the table of names, each between zeros.
pub(super) fn glibc_needed(program: &[u8]) -> Option<(u32, u32)> {
    let version = |name: &[u8]| {
        let (major, minor) =
            std::str::from_utf8(name.strip_prefix(b"GLIBC_")?).ok()?.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    };
    program.split(|&byte| byte == 0).filter_map(version).max()
}

fn has_library(workspace: &Workspace, target: &Target) -> Result<()> {
    let triple = &target.triple;
    let said = workspace.output("rustc", &["--print", "target-libdir", "--target", triple]);
    let Ok(libraries) = said else {
        bail!("expected a target of rustc, found `{triple}`; `rustc --print target-list` has all")
    };
    ensure!(
        Path::new(libraries.trim()).is_dir(),
        "expected Rust's standard library for {triple}, found none; `rustup target add {triple}`"
    );
    Ok(())
}

/// Leaves out the symbols, by the tool that comes with rustc and knows programs of every machine.
fn strip(workspace: &Workspace, host: &str, [from, to]: [&Path; 2]) -> Result<()> {
    let root = workspace.output("rustc", &["--print", "sysroot"])?;
    let libraries = Path::new(root.trim()).join("lib");
    let tool = libraries.join("rustlib").join(host).join("bin/rust-objcopy");
    ensure!(tool.is_file(), "expected {}, found none; install Rust by rustup", tool.display());
    let mut command = workspace.command(&tool.to_string_lossy());
    // It does not look where the toolchain keeps its libraries.
    command.env("LD_LIBRARY_PATH", &libraries).arg("--strip-all").args([from, to]);
    let status = command.status().with_context(|| format!("cannot run {}", tool.display()))?;
    ensure!(status.success(), "{} could not strip {}", tool.display(), from.display());
    Ok(())
}

/// The folder that cargo builds in.
fn folder(workspace: &Workspace) -> Result<PathBuf> {
    let metadata =
        workspace.output("cargo", &["metadata", "--no-deps", "--format-version", "1"])?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    let folder =
        metadata["target_directory"].as_str().context("`cargo metadata` names no folder")?;
    Ok(PathBuf::from(folder))
}

fn cargo(workspace: &Workspace, command: &[&str], more: &[&str]) -> Result<()> {
    let arguments = [command, &PACKAGE, more].concat();
    let status =
        workspace.command("cargo").args(&arguments).status().context("cannot run cargo")?;
    ensure!(status.success(), "`cargo {}` failed", arguments.join(" "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_decides_and_other_names_do_not() {
        let names =
            b"\x7fELF\0GLIBC_2.2.5\0memcpy\0GLIBC_2.34\0GLIBC_2.4\0xGLIBC_2.99\0GLIBC_PRIVATE\0\
              GCC_3.0\0";
        assert_eq!(glibc_needed(names), Some((2, 34)));
        assert_eq!(glibc_needed(b"\x7fELF\0malloc\0"), None);
    }

    #[test]
    fn a_program_loses_its_symbols_and_runs() {
        let workspace = Workspace::of_this_build();
        let folder = std::env::temp_dir().join(format!("overdrive-strip-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("writable");
        let (own, stripped) = (std::env::current_exe().expect("it runs"), folder.join("stripped"));
        strip(&workspace, &host(&workspace).expect("rustc says it"), [&own, &stripped])
            .expect("it strips");
        let bytes = |path: &Path| fs::metadata(path).expect("it is there").len();
        assert!(bytes(&stripped) < bytes(&own));
        let listed =
            std::process::Command::new(&stripped).arg("--list").output().expect("it starts");
        assert!(listed.status.success());
        fs::remove_dir_all(&folder).expect("removable");
    }

    #[test]
    fn a_target_without_a_library_comes_with_its_remedy() {
        let workspace = Workspace::of_this_build();
        let host = Target::parse(&host(&workspace).expect("rustc says it")).expect("it is one");
        has_library(&workspace, &host).expect("this test was built by it");
        // No binaries of its standard library are published.
        let bare = Target::parse("m68k-unknown-linux-gnu").expect("it is one");
        let error = has_library(&workspace, &bare).expect_err("there is none").to_string();
        assert!(error.contains("rustup target add m68k-unknown-linux-gnu"), "{error}");
        let none = Target::parse("vax-dec-ultrix").expect("it looks like one");
        let error = has_library(&workspace, &none).expect_err("there is none").to_string();
        assert!(error.contains("target-list"), "{error}");
    }
}
