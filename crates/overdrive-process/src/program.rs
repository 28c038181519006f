//! Finds a program by `PATH`. The working folder may hold anything, for example a downloaded model
//! together with a file `pip`. Entries of `PATH` that are empty or relative mean that folder, and
//! are skipped.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

/// The program of this name on `PATH`. A name with a separator is a path, which whoever gave it has
/// chosen.
///
/// # Errors
/// When no folder of `PATH` has it.
pub fn find(name: &str) -> io::Result<PathBuf> {
    if Path::new(name).components().count() > 1 || Path::new(name).has_root() {
        return std::path::absolute(name);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    find_in(name, &path).ok_or_else(|| {
        let reason = format!("no folder of PATH has `{name}` (relative ones are passed over)");
        io::Error::new(io::ErrorKind::NotFound, reason)
    })
}

/// Those entries of a list of folders that are absolute.
pub fn absolute_folders(list: &OsStr) -> Vec<PathBuf> {
    env::split_paths(list).filter(|folder| folder.is_absolute()).collect()
}

fn find_in(name: &str, path: &OsStr) -> Option<PathBuf> {
    let mut file = OsString::from(name);
    if !name.ends_with(env::consts::EXE_SUFFIX) {
        file.push(env::consts::EXE_SUFFIX);
    }
    absolute_folders(path)
        .into_iter()
        .map(|folder| folder.join(&file))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(file) else { return false };
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        metadata.is_file() && metadata.permissions().mode() & 0o111 != 0
    }
    #[cfg(not(unix))]
    metadata.is_file()
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_absolute_folders_are_looked_in() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tool");
        std::fs::write(&file, "#!/bin/sh\n").unwrap();
        let list =
            |entries: &str| OsString::from(entries.replace('@', folder.path().to_str().unwrap()));
        assert_eq!(find_in("tool", &list("@")), None, "it may not be run");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find_in("tool", &list(":.:bin:@")), Some(file.clone()));
        // The same file, by ways that lead through the working folder.
        let here = std::env::current_dir().unwrap();
        let up = "../".repeat(here.components().count());
        let relative = format!("{up}{}", folder.path().to_str().unwrap().trim_start_matches('/'));
        assert!(Path::new(&relative).join("tool").exists());
        assert_eq!(find_in("tool", &OsString::from(&relative)), None);
        assert_eq!(find(file.to_str().unwrap()).unwrap(), file);
        assert!(find("no-such-program").unwrap_err().to_string().contains("no-such-program"));
    }
}
