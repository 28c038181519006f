//! `cargo xtask dist`: builds packages for people who do not compile. `dist/` gets archives
//! (stripped program, completions, licences), wheels if maturin is installed, and the SHA-256 sums
//! of both.
//!
//! Invariant: a target that cannot be served is named with what is missing and how to get it. The
//! others are made all the same, and the command fails. Nothing that was not made is listed.

mod archive;
mod build;
mod licences;
mod sums;
mod target;
mod wheel;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use archive::Member;
use target::{FOLDER, Target};

use crate::workspace::Workspace;

/// The licences of the crates inside, which `pyproject.toml` names too.
const LICENCES: &str = "LICENCES-OF-CRATES.txt";

/// The shells that `overdrive completions` knows, and the file that each looks for.
const SHELLS: [(&str, &str); 5] = [
    ("bash", "overdrive.bash"),
    ("elvish", "overdrive.elv"),
    ("fish", "overdrive.fish"),
    ("powershell", "_overdrive.ps1"),
    ("zsh", "_overdrive"),
];

/// Files of the checkout that come with the program, and their names there: the last says whose the
/// data are that are compiled in.
const BESIDE: [(&str, &str); 4] = [
    ("README.md", "README.md"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("crates/overdrive-train/data/README.md", "licences/data.md"),
];

/// Makes archives and wheels for these targets, or for this machine where none is named.
pub(crate) fn run(workspace: &Workspace, targets: &[&str]) -> Result<()> {
    let maker = Maker::new(workspace)?;
    let mut targets: Vec<Target> =
        targets.iter().map(|name| Target::parse(name)).collect::<Result<_>>()?;
    if targets.is_empty() {
        targets.push(Target::parse(&maker.host)?);
    }
    let folder = workspace.root().join(FOLDER);
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let mut failed = Vec::new();
    for target in &targets {
        println!("== {target}");
        let made = maker
            .archive(target, &folder)
            .and_then(|()| wheel::make(workspace, target, &maker.host));
        if let Err(error) = made {
            println!("NOT MADE: {error:#}");
            failed.push(target.to_string());
        }
    }
    sums::write(&folder)?;
    println!("{}", folder.join(sums::FILE).display());
    ensure!(failed.is_empty(), "not made, or not all of it: {}", failed.join(", "));
    Ok(())
}

/// Whether the program without C libraries compiles for targets that this machine cannot link for.
pub(crate) fn check(workspace: &Workspace, targets: &[&str]) -> Result<()> {
    let mut failed = Vec::new();
    for name in targets {
        let outcome = Target::parse(name).and_then(|target| build::check(workspace, &target));
        match outcome {
            Ok(()) => println!("{name}: compiles; not linked, not run"),
            Err(error) => {
                println!("{name}: {error:#}");
                failed.push(*name);
            }
        }
    }
    ensure!(failed.is_empty(), "does not compile, or could not be tried: {}", failed.join(", "));
    Ok(())
}

/// Data that the archives of every target share.
struct Maker<'a> {
    workspace: &'a Workspace,
    host: String,
    version: String,
    /// When the commit was made: two archives of one commit are equal.
    modified_s: u64,
    completions: Vec<Member>,
}

impl<'a> Maker<'a> {
    fn new(workspace: &'a Workspace) -> Result<Self> {
        let host = build::host(workspace)?;
        let program = build::for_host(workspace)?;
        let said = |arguments: &[&str]| workspace.output(&program.to_string_lossy(), arguments);
        let version = said(&["--version"])?.trim().trim_start_matches("overdrive ").to_owned();
        let completions = SHELLS.iter().map(|(shell, file)| {
            Ok(Member::data(
                format!("completions/{file}"),
                said(&["completions", shell])?.into_bytes(),
            ))
        });
        let modified = workspace.output("git", &["log", "-1", "--format=%ct"])?;
        Ok(Self {
            workspace,
            host,
            version,
            modified_s: modified.trim().parse().context("git names no time of the commit")?,
            completions: completions.collect::<Result<_>>()?,
        })
    }

    /// Writes the archive, and the licences that a wheel takes from beside it.
    fn archive(&self, target: &Target, folder: &Path) -> Result<()> {
        let program = build::stripped(self.workspace, target, &self.host)?;
        if let Some(needed) = build::glibc_needed(&program) {
            println!("needs glibc {}.{} or later", needed.0, needed.1);
        }
        let name = target.archive(&self.version);
        let mut members = vec![Member::program("overdrive".to_owned(), program)];
        members.extend(self.completions.iter().cloned());
        members.extend(self.documents()?);
        let crates = licences::of_crates(self.workspace, target)?.into_bytes();
        write(&folder.join(LICENCES), &crates)?;
        members.push(Member::data(format!("licences/{LICENCES}"), crates));
        let bytes = archive::compressed(&name, &members, self.modified_s)?;
        let path = folder.join(format!("{name}.tar.gz"));
        write(&path, &bytes)?;
        println!("{}", path.display());
        Ok(())
    }

    /// README and licences: ours, and those of the report's assets.
    fn documents(&self) -> Result<Vec<Member>> {
        let root = self.workspace.root();
        let read =
            |path: &str| fs::read(root.join(path)).with_context(|| format!("cannot read {path}"));
        let mut members = Vec::new();
        for (path, name) in BESIDE {
            members.push(Member::data(name.to_owned(), read(path)?));
        }
        for path in self.workspace.files()?.iter().filter(|path| licences::is_of_assets(path)) {
            let name = path.rsplit('/').next().unwrap_or(path);
            members.push(Member::data(format!("licences/{name}"), read(path)?));
        }
        Ok(members)
    }
}

/// Whole or not at all.
fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let part = path.with_extension("part");
    let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documents_of_an_archive_are_there() {
        let workspace = Workspace::of_this_build();
        for (path, _) in BESIDE {
            assert!(workspace.root().join(path).is_file(), "{path}");
        }
        let files = workspace.files().expect("it is a checkout");
        let assets: Vec<_> = files.iter().filter(|path| licences::is_of_assets(path)).collect();
        assert_eq!(assets.len(), 5, "{assets:?}");
    }

    #[test]
    fn a_wheel_takes_the_licences_that_were_written() {
        let root = Workspace::of_this_build().root().to_owned();
        let project = fs::read_to_string(root.join("pyproject.toml")).expect("it is there");
        assert!(project.contains(&format!("\"{FOLDER}/{LICENCES}\"")), "{project}");
    }

    #[test]
    fn a_target_that_nobody_knows_is_refused_with_the_remedy() {
        let error =
            check(&Workspace::of_this_build(), &["vax-dec-ultrix"]).expect_err("there is none");
        assert!(error.to_string().contains("vax-dec-ultrix"), "{error}");
    }
}
