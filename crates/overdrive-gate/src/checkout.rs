//! Revisions of Overdrive's repository as programs. Each is checked out into a worktree of the
//! gate's own and built with one toolchain. The programs are kept under `target/regress` by commit,
//! so that the next session need not build them again.
//!
//! The revisions take turns in one worktree. Cargo then rebuilds only the differences. Paths inside
//! the binaries, which move code about in memory, are then the same. The user's own working tree is
//! never touched.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

use super::child;
use super::child::Ended;
use overdrive_bench::runner::Stop;
use overdrive_process::program;

/// Why there is no program.
#[derive(Debug, thiserror::Error)]
pub enum CheckoutError {
    /// Not inside of a repository.
    #[error("`{}` is not in a git repository: name one with --repo, or gate two commands with \
             --baseline-cmd and --current-cmd", .0.display())]
    NoRepository(PathBuf),
    /// A repository, but not ours.
    #[error(
        "the repository `{}` is not Overdrive's (it has no crates/overdrive): to gate a program \
         of your own, give \
         --baseline-cmd and --current-cmd", .0.display()
    )]
    NotOverdrive(PathBuf),
    /// A name that is no revision.
    #[error("`{0}` is no revision of this repository: expected a branch, a tag or a commit")]
    UnknownRevision(String),
    /// The working tree holds what the revision does not.
    #[error(
        "`{revision}` is what is checked out, and {} changed since: {}; a revision is measured as \
         it was committed, so \
         commit or stash the changes first", count(.files), list(.files)
    )]
    Uncommitted {
        /// As the user named it.
        revision: String,
        /// Tracked files that differ.
        files: Vec<String>,
    },
    /// The compiler refused it.
    #[error("`{revision}` does not build; the log is in `{}`, and ends \
             with\n{tail}", log.display())]
    DoesNotBuild {
        /// As the user named it.
        revision: String,
        /// The build's whole output.
        log: PathBuf,
        /// Its last lines.
        tail: String,
    },
    /// A request to end.
    #[error("interrupted while building; nothing had been measured")]
    Interrupted,
    /// git or the disk.
    #[error("{what}: {message}")]
    System {
        /// The attempted action.
        what: String,
        /// The system's error.
        message: String,
    },
}

fn count(files: &[String]) -> String {
    if files.len() == 1 { "1 file".to_owned() } else { format!("{} files", files.len()) }
}

fn list(files: &[String]) -> String {
    let rest = if files.len() > 3 { ", ..." } else { "" };
    files.iter().take(3).map(String::as_str).collect::<Vec<_>>().join(", ") + rest
}

/// A clone of Overdrive's repository.
#[derive(Debug)]
pub struct Repository {
    root: PathBuf,
}

/// A commit and the name by which the user asked for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Commit {
    /// As the user wrote it.
    pub name: String,
    /// The full hash.
    pub hash: String,
}

impl Repository {
    /// The repository that `folder` lies in.
    ///
    /// # Errors
    /// When there is none, or it is somebody else's.
    pub fn find(folder: &Path) -> Result<Self, CheckoutError> {
        let root = git(folder, &["rev-parse", "--show-toplevel"])
            .map_err(|_| CheckoutError::NoRepository(folder.to_owned()))?;
        let root = PathBuf::from(root);
        if !root.join("crates/overdrive/Cargo.toml").is_file() {
            return Err(CheckoutError::NotOverdrive(root));
        }
        Ok(Self { root })
    }

    /// The commit that `name` means.
    ///
    /// # Errors
    /// When it means none.
    pub fn commit(&self, name: &str) -> Result<Commit, CheckoutError> {
        // A name that begins with a dash would be an option to git.
        let hash = git(
            &self.root,
            &[
                "rev-parse",
                "--verify",
                "--quiet",
                "--end-of-options",
                &format!("{name}^{{commit}}"),
            ],
        )
        .map_err(|_| CheckoutError::UnknownRevision(name.to_owned()))?;
        Ok(Commit { name: name.to_owned(), hash })
    }

    /// Errs where `commit` is checked out and tracked files differ from it. The user then most
    /// likely means the changed files, and a verdict on the committed ones would mislead.
    ///
    /// # Errors
    /// See above.
    pub fn check_committed(&self, commit: &Commit) -> Result<(), CheckoutError> {
        let head = git(&self.root, &["rev-parse", "HEAD"])
            .map_err(|message| system("git rev-parse", message))?;
        let changes = git(&self.root, &["status", "--porcelain", "--untracked-files=no"])
            .map_err(|message| system("git status", message))?;
        if head != commit.hash || changes.is_empty() {
            return Ok(());
        }
        // Two letters, a space, a path.
        let files = changes.lines().filter_map(|line| line.trim_start().split_once(' '));
        let files = files.map(|(_, path)| path.trim().to_owned()).collect();
        Err(CheckoutError::Uncommitted { revision: commit.name.clone(), files })
    }

    /// The binaries of `commits`, built now or kept from before; `building` hears of each that is
    /// built.
    ///
    /// # Errors
    /// When one does not build, or the system does not let us.
    pub fn binaries(
        &self,
        commits: &[Commit],
        stop: &Stop,
        building: &dyn Fn(&Commit),
    ) -> Result<Vec<PathBuf>, CheckoutError> {
        let toolchain = self.toolchain();
        let folder = self.root.join("target/regress");
        let mut tree = None;
        let binary = |commit: &Commit| {
            let place = folder.join(format!("{}-{}", short(&commit.hash), toolchain.key()));
            let binary = place.join(format!("overdrive{}", std::env::consts::EXE_SUFFIX));
            if !binary.is_file() {
                building(commit);
                let made = fs::create_dir_all(&place);
                made.map_err(|error| system(&place.display().to_string(), error.to_string()))?;
                if tree.is_none() {
                    tree = Some(Worktree::add(&self.root, &folder.join("source"), commit)?);
                }
                let tree: &Worktree<'_> = tree.as_ref().expect("it was added above");
                tree.check_out(commit)?;
                tree.build(
                    commit,
                    &toolchain,
                    BuildTarget { cache: &folder.join("build"), binary: &binary, stop },
                )?;
            }
            Ok(binary)
        };
        commits.iter().map(binary).collect()
    }

    /// The toolchain that builds both sides: the one that is active in the repository.
    fn toolchain(&self) -> Toolchain {
        let active = output(&self.root, "rustup", &["show", "active-toolchain"]).ok();
        let name = std::env::var("RUSTUP_TOOLCHAIN").ok();
        let name = name
            .or_else(|| active.and_then(|line| line.split_whitespace().next().map(str::to_owned)));
        Toolchain { name, flags: std::env::var("RUSTFLAGS").unwrap_or_default() }
    }
}

/// The toolchain of a session, the same for both sides whatever their own files ask for.
#[derive(Hash)]
struct Toolchain {
    /// rustup's name of it; absent where there is no rustup, and then there is only one.
    name: Option<String>,
    /// Extra compiler flags.
    flags: String,
}

impl Toolchain {
    /// A short key for a folder's name.
    fn key(&self) -> String {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        format!("{:08x}", hasher.finish() as u32)
    }
}

/// A worktree that goes away with the value.
struct Worktree<'r> {
    root: &'r Path,
    path: PathBuf,
}

/// The folders of a build.
struct BuildTarget<'a> {
    /// cargo's folder, which sessions share.
    cache: &'a Path,
    /// The binary that must appear.
    binary: &'a Path,
    stop: &'a Stop,
}

impl<'r> Worktree<'r> {
    fn add(root: &'r Path, path: &Path, commit: &Commit) -> Result<Self, CheckoutError> {
        let tree = Self { root, path: path.to_owned() };
        // Left by a session that was killed.
        tree.remove();
        let place = path.display().to_string();
        git(root, &["worktree", "add", "--quiet", "--force", "--detach", &place, &commit.hash])
            .map_err(|message| system("git worktree add", message))?;
        Ok(tree)
    }

    fn check_out(&self, commit: &Commit) -> Result<(), CheckoutError> {
        git(&self.path, &["checkout", "--quiet", "--force", "--detach", &commit.hash])
            .map(drop)
            .map_err(|message| system("git checkout", message))
    }

    fn build(
        &self,
        commit: &Commit,
        toolchain: &Toolchain,
        target: BuildTarget<'_>,
    ) -> Result<(), CheckoutError> {
        let BuildTarget { cache, binary, stop } = target;
        let log = binary.with_file_name("build.log");
        let unstarted =
            |error: std::io::Error| system("cargo could not be started", error.to_string());
        let mut cargo = Command::new(program::find("cargo").map_err(unstarted)?);
        cargo.current_dir(&self.path).args([
            "build",
            "--release",
            "--locked",
            "-p",
            "overdrive",
            "--target-dir",
        ]);
        cargo.arg(cache);
        if let Some(name) = &toolchain.name {
            cargo.env("RUSTUP_TOOLCHAIN", name);
        }
        let ended = child::run(&mut cargo, &log, None, stop).map_err(unstarted)?;
        match ended {
            Ended::Exited(status) if status.success() => {}
            Ended::Stopped => return Err(CheckoutError::Interrupted),
            _ => {
                let tail = child::tail(&log);
                return Err(CheckoutError::DoesNotBuild {
                    revision: commit.name.clone(),
                    log,
                    tail,
                });
            }
        }
        // A rename makes it appear whole; a copy that was cut short would be taken for a binary
        // next time.
        let draft = binary.with_file_name("draft");
        let built = cache.join("release").join(binary.file_name().expect("a binary has a name"));
        fs::copy(&built, &draft)
            .and_then(|_| fs::rename(&draft, binary))
            .map_err(|error| system(&built.display().to_string(), error.to_string()))
    }

    fn remove(&self) {
        if self.path.exists() {
            // A folder that git does not know is an ordinary one.
            let _ = git(
                self.root,
                &["worktree", "remove", "--force", &self.path.display().to_string()],
            );
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

impl Drop for Worktree<'_> {
    fn drop(&mut self) {
        self.remove();
    }
}

fn short(hash: &str) -> &str {
    &hash[..hash.len().min(12)]
}

fn system(what: &str, message: String) -> CheckoutError {
    CheckoutError::System { what: what.to_owned(), message }
}

fn git(folder: &Path, arguments: &[&str]) -> Result<String, String> {
    output(folder, "git", arguments)
}

/// The output of a program, or its error text.
fn output(folder: &Path, program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = program::find(program)
        .and_then(|program| Command::new(program).args(arguments).current_dir(folder).output())
        .map_err(|error| format!("{program} could not be started: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}
