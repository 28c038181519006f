//! A target as the command line names it: `x86_64-unknown-linux-gnu`, or with the oldest glibc that
//! it must run with, `x86_64-unknown-linux-gnu.2.17`.

use std::fmt;

use anyhow::{Result, ensure};

/// Output folder, relative to the root of the workspace.
pub(super) const FOLDER: &str = "dist";

/// A triple of rustc, and for glibc the oldest version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) triple: String,
    /// `2.17`; otherwise that of the machine that builds.
    pub(super) glibc: Option<String>,
}

impl Target {
    pub(super) fn parse(name: &str) -> Result<Self> {
        let (triple, glibc) = match name.split_once('.') {
            Some((triple, glibc)) => (triple, Some(glibc)),
            None => (name, None),
        };
        let is_word = |part: &str| {
            !part.is_empty() && part.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_')
        };
        let is_number = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
        ensure!(
            triple.split('-').count() >= 3 && triple.split('-').all(is_word),
            "`{name}`: expected a target such as x86_64-unknown-linux-musl; `rustc --print \
             target-list` has all"
        );
        if let Some(glibc) = glibc {
            ensure!(
                triple.ends_with("-gnu")
                    && glibc.split('.').count() == 2
                    && glibc.split('.').all(is_number),
                "`{name}`: expected a version of glibc after the point, as in \
                 x86_64-unknown-linux-gnu.2.17"
            );
        }
        Ok(Self { triple: triple.to_owned(), glibc: glibc.map(str::to_owned) })
    }

    /// Whether cargo alone builds it on a machine that is `host`.
    pub(super) fn is_native(&self, host: &str) -> bool {
        self.triple == host && self.glibc.is_none()
    }

    /// The archive without its extension, which is also its one folder.
    pub(super) fn archive(&self, version: &str) -> String {
        format!("overdrive-{version}-{}", self.triple)
    }

    /// The platform tag that a wheel must have; `None` lets maturin determine it.
    pub(super) fn wheel_platform(&self) -> Option<String> {
        if self.triple.ends_with("-linux-musl") {
            return Some("musllinux_1_2".to_owned());
        }
        self.glibc.as_ref().map(|glibc| format!("manylinux_{}", glibc.replace('.', "_")))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.triple)?;
        self.glibc.iter().try_for_each(|glibc| write!(f, ".{glibc}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_archives_and_wheels_follow_the_target() {
        let host = "x86_64-unknown-linux-gnu";
        for (name, archive, platform, is_native) in [
            (host, "overdrive-1.2.3-x86_64-unknown-linux-gnu", None, true),
            (
                "x86_64-unknown-linux-gnu.2.17",
                "overdrive-1.2.3-x86_64-unknown-linux-gnu",
                Some("manylinux_2_17"),
                false,
            ),
            (
                "aarch64-unknown-linux-musl",
                "overdrive-1.2.3-aarch64-unknown-linux-musl",
                Some("musllinux_1_2"),
                false,
            ),
            ("aarch64-apple-darwin", "overdrive-1.2.3-aarch64-apple-darwin", None, false),
        ] {
            let target = Target::parse(name).expect("it is one");
            assert_eq!(target.to_string(), name);
            assert_eq!(target.archive("1.2.3"), archive);
            assert_eq!(target.wheel_platform().as_deref(), platform, "{name}");
            assert_eq!(target.is_native(host), is_native, "{name}");
        }
    }

    #[test]
    fn what_is_no_target_is_refused() {
        for name in [
            "linux",
            "--release",
            "x86_64--linux",
            "x86_64-unknown-linux-musl.2.17",
            "x86_64-unknown-linux-gnu.two",
            "x86_64-unknown-linux-gnu.2",
            "../x86_64-unknown-linux-gnu",
        ] {
            let error = Target::parse(name).expect_err(name).to_string();
            assert!(error.contains(name) && error.contains("expected"), "{error}");
        }
    }
}
