//! Checks free disk space before the work, so that a day of training is not lost for lack of it.

use crate::FileError;
use std::path::Path;

/// Errs where files of these sizes, in bytes, have no room at `path`, as far as the system tells.
/// The file system must have room for all of them. Each must be within the process's limit
/// (`ulimit -f`).
///
/// # Errors
/// The error names the size that is needed and the size that is there.
pub fn check_room(path: &Path, files: &[u64]) -> Result<(), FileError> {
    let all = files.iter().fold(0, |sum: u64, &bytes| sum.saturating_add(bytes));
    let largest = files.iter().copied().max().unwrap_or(0);
    match [(all, on_disk(path)), (largest, within_limit())]
        .into_iter()
        .find(|(needed, found)| needed > found)
    {
        None => Ok(()),
        Some((needed, found)) => Err(FileError::NoRoom { path: path.to_owned(), needed, found }),
    }
}

/// Bytes that the file system has left for us; all where it does not tell.
#[cfg(target_os = "linux")]
fn on_disk(path: &Path) -> u64 {
    let there = path
        .ancestors()
        .map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let Some(told) = there.into_iter().find_map(|path| rustix::fs::statvfs(path).ok()) else {
        return u64::MAX;
    };
    // One without blocks, such as a file system over the network, does not count them.
    if told.f_blocks == 0 { u64::MAX } else { told.f_bavail.saturating_mul(told.f_frsize) }
}

#[cfg(not(target_os = "linux"))]
fn on_disk(_: &Path) -> u64 {
    u64::MAX
}

/// The largest file that this process may write.
fn within_limit() -> u64 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max file size"));
    // Without a limit it says so in a word.
    limit.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(target_os = "linux")]
    fn room_that_is_not_there_is_told_with_both_sizes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("absent/file");
        assert!(check_room(&path, &[1, 1]).is_ok());
        let half = u64::MAX / 2;
        let said = check_room(&path, &[half, half]).unwrap_err().to_string();
        assert!(
            said.contains(&format!("needs {} bytes", 2 * half)) && said.contains("absent/file"),
            "{said}"
        );
        // A file system that counts nothing has no limit.
        assert!(check_room(Path::new("/proc/file"), &[half]).is_ok());
    }
}
