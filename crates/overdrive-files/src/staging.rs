//! Staging: an output is written next to its place, and then moved there.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

/// `.name.overdrive-suffix` beside `name`: a rename is atomic only within one file system, and
/// `.name.old` may be the user's. Under the lock of a place nobody else uses these names. So they
/// need no process id, and the next writer finds what a killed one left.
pub(crate) fn beside(target: &Path, suffix: &str) -> PathBuf {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    target.with_file_name(format!(".{name}.overdrive-{suffix}"))
}

/// The folder of unfinished work; it goes when this is dropped, with all in it.
pub(crate) struct Staging(PathBuf);

impl Staging {
    /// A new one, in place of what a killed writer left.
    pub(crate) fn new(target: &Path) -> io::Result<Self> {
        let folder = part(target);
        clear(&folder)?;
        fs::create_dir(&folder)?;
        Ok(Self(folder))
    }

    /// The path at which the output is made: under its own name, since a format may go by that.
    pub(crate) fn staged(&self, target: &Path) -> PathBuf {
        self.0.join(target.file_name().unwrap_or_default())
    }

    /// The files that were made beside `staged`.
    pub(crate) fn beside(&self, staged: &Path) -> io::Result<Vec<PathBuf>> {
        let paths = fs::read_dir(&self.0)?.map(|entry| Ok(entry?.path()));
        let mut paths = paths.collect::<io::Result<Vec<PathBuf>>>()?;
        paths.retain(|path| path != staged);
        paths.sort();
        Ok(paths)
    }

    /// Gives every file below `staged` the permissions that a new file gets here, and has the disk
    /// keep it.
    pub(crate) fn settle(&self, staged: &Path) -> io::Result<()> {
        let probe = self.0.join(".new");
        let permissions = File::create(&probe)?.metadata()?.permissions();
        fs::remove_file(&probe)?;
        each_file(staged, &|path| {
            fs::set_permissions(path, permissions.clone())?;
            File::open(path)?.sync_all()
        })
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        // Files that cannot be removed now are removed by the next writer.
        let _ = clear(&self.0);
    }
}

fn part(target: &Path) -> PathBuf {
    beside(target, "part")
}

fn old(target: &Path) -> PathBuf {
    beside(target, "old")
}

/// Brings back what a kill between two renames left without a name, and removes what a killed
/// writer left.
pub(crate) fn recover(target: &Path) -> io::Result<()> {
    let old = old(target);
    if old.exists() && !target.exists() {
        fs::rename(&old, target)?;
    }
    clear(&old)?;
    clear(&part(target))
}

/// Whether a kill between two renames left `target` under another name.
pub(crate) fn is_lost(target: &Path) -> bool {
    !target.exists() && old(target).is_dir()
}

fn clear(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    removed
        .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

fn each_file(path: &Path, visit: &dyn Fn(&Path) -> io::Result<()>) -> io::Result<()> {
    if !path.is_dir() {
        return visit(path);
    }
    fs::read_dir(path)?.try_for_each(|entry| each_file(&entry?.path(), visit))
}

/// Puts a finished output in its place, in one step where the system can.
pub(crate) fn put_in_place(staged: &Path, target: &Path) -> io::Result<()> {
    // A file is renamed over another; a folder that has files cannot be, and swaps with it.
    let swaps = staged.is_dir() && target.exists();
    if !swaps {
        fs::rename(staged, target)?;
    } else if !exchange(staged, target)? {
        let old = old(target);
        fs::rename(target, &old)?;
        fs::rename(staged, target).inspect_err(|_| drop(fs::rename(&old, target)))?;
        clear(&old)?;
    }
    // The rename itself is on the disk once its folder is.
    match target.parent().map(File::open) {
        Some(Ok(folder)) => folder.sync_all().or(Ok(())),
        _ => Ok(()),
    }
}

/// Swaps two folders in one step; false where the system has no such step.
#[cfg(target_os = "linux")]
fn exchange(staged: &Path, target: &Path) -> io::Result<bool> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, staged, CWD, target, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(not(target_os = "linux"))]
fn exchange(_staged: &Path, _target: &Path) -> io::Result<bool> {
    Ok(false)
}

/// Keeps a finished output that cannot take its place, under the first free name beside it.
pub(crate) fn keep(staged: &Path, target: &Path) -> io::Result<PathBuf> {
    let name = target.file_stem().unwrap_or_default().to_string_lossy();
    let extension =
        target.extension().map_or(String::new(), |e| format!(".{}", e.to_string_lossy()));
    let candidates = (2..1000).map(|n| target.with_file_name(format!("{name}-{n}{extension}")));
    let free =
        candidates.into_iter().find(|path| !path.exists()).ok_or(io::ErrorKind::AlreadyExists)?;
    fs::rename(staged, &free).map(|()| free)
}
