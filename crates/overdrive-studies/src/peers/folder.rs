//! The private folder of a peer, and the folders where its interpreter searches for packages.
//!
//! Invariant: nobody else can write the private folder, and no searched path is relative.

use super::frameworks::MODULES;
use overdrive_bench::failure::Failure;
use overdrive_process::program;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Each peer of this process has a folder of its own, which nobody else can write.
pub(super) fn folder() -> Result<TempDir, Failure> {
    let place = std::path::absolute(std::env::temp_dir()).unwrap_or_else(|_| std::env::temp_dir());
    tempfile::Builder::new()
        .prefix("overdrive-peer-")
        .tempdir_in(&place)
        .map_err(unwritable(&place))
}

/// Writes the modules that programs import. Returns the folders that the interpreter searches first
/// for packages: this one, and the absolute paths in the user's `PYTHONPATH`.
pub(super) fn with_modules(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    for (name, text) in MODULES {
        std::fs::write(folder.join(name), text).map_err(unwritable(folder))?;
    }
    let known = std::env::var_os("PYTHONPATH").unwrap_or_default();
    Ok(std::iter::once(folder.to_owned()).chain(program::absolute_folders(&known)).collect())
}

pub(super) fn unwritable(folder: &Path) -> impl Fn(std::io::Error) -> Failure {
    move |e| Failure::failed(format!("{}: {e}", folder.display()))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn programs_find_their_modules_before_anything_else() {
        let folder = folder().expect("it can be written");
        let folders = with_modules(folder.path()).expect("it can be written");
        assert_eq!(folders.first().map(PathBuf::as_path), Some(folder.path()));
        for (name, text) in MODULES {
            assert_eq!(
                std::fs::read_to_string(folder.path().join(name)).expect("it is there"),
                text
            );
        }
    }
}
