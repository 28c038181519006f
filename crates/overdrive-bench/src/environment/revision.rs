//! The measured program: the revision of Overdrive and the toolchain that built it.

use std::process::Command;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The revision of Overdrive that ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Revision {
    /// Version of the package.
    pub version: String,
    /// The commit that was built; absent in a build outside of a repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// Whether the sources differ from that commit. Known only where the program runs inside of the
    /// repository that it was built from, at that commit; absent elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty: Option<bool>,
}

impl Revision {
    /// The revision of this program.
    pub fn current() -> Self {
        let commit = option_env!("OVERDRIVE_COMMIT").map(str::to_owned);
        let here = commit.is_some() && git(&["rev-parse", "HEAD"]) == commit;
        let dirty = if here {
            git(&["status", "--porcelain"]).map(|changes| !changes.is_empty())
        } else {
            None
        };
        Self { version: env!("CARGO_PKG_VERSION").to_owned(), commit, dirty }
    }
}

/// The output of git in the current folder; `None` where there is no git or no repository.
fn git(arguments: &[&str]) -> Option<String> {
    let mut git = Command::new(overdrive_process::program::find("git").ok()?);
    // The repository may be anybody's, and `status` would run the program that its configuration
    // names here.
    let output = git.args(["-c", "core.fsmonitor=false"]).args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The toolchain that built this program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Toolchain {
    /// The compiler's version line.
    pub rustc: String,
    /// Target triple.
    pub target: String,
    /// `release` or `debug`.
    pub profile: String,
    /// Extra compiler flags, such as a target CPU.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub flags: String,
}

impl Toolchain {
    /// As the build script saw it.
    pub fn built() -> Self {
        Self {
            rustc: env!("OVERDRIVE_RUSTC").to_owned(),
            target: env!("OVERDRIVE_TARGET").to_owned(),
            profile: env!("OVERDRIVE_PROFILE").to_owned(),
            flags: env!("OVERDRIVE_RUSTFLAGS").to_owned(),
        }
    }
}
