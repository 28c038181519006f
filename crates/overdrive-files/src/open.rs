//! The one way to open a file that a user named, or that lies in a folder that a user named.
//!
//! Invariant: no call waits for another process, and no call takes more memory than its limit.

use crate::FileError;
use std::fs::{File, Metadata, OpenOptions};
use std::io::Read;
use std::path::Path;

/// Most bytes of a file of settings, such as config.json.
pub const SETTINGS: u64 = 16 << 20;
/// Most bytes of a text that is held in memory, such as tokenizer.json or graph.txt.
pub const TEXT: u64 = 1 << 30;
/// Most bytes of results: a trace of some minutes is a tenth of it.
pub const RESULTS: u64 = 2 << 30;
/// For weights and data, which may take all memory that there is.
pub const UNBOUNDED: u64 = u64::MAX;

/// Opens a regular file for reading.
///
/// # Errors
/// When it is absent, refused, a folder, a pipe or a device.
pub fn open(path: &Path) -> Result<File, FileError> {
    let cannot = || FileError::io(path, "open");
    // Asked before, since to open a device may do something; and after, since the name may be
    // another file's by then.
    check(path, &std::fs::metadata(path).map_err(cannot())?)?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    }
    let file = options.open(path).map_err(cannot())?;
    check(path, &file.metadata().map_err(cannot())?)?;
    Ok(file)
}

fn check(path: &Path, metadata: &Metadata) -> Result<(), FileError> {
    let kind = metadata.file_type();
    if kind.is_file() {
        return Ok(());
    }
    let (found, remedy) = match kind.is_dir() {
        true => ("a folder", "name a file inside it"),
        false => ("a pipe or a device", "write its bytes to a file first"),
    };
    Err(FileError::NotAFile { path: path.to_owned(), found, remedy })
}

/// The bytes of a file of at most `most` bytes.
///
/// # Errors
/// As [`open`]; when it is larger, or larger than memory.
pub fn read(path: &Path, most: u64) -> Result<Vec<u8>, FileError> {
    let _about = crate::about(path);
    let file = open(path)?;
    let cannot = || FileError::io(path, "read");
    let too_large = || FileError::TooLarge { path: path.to_owned(), most };
    let size = file.metadata().map_err(cannot())?.len();
    if size > most {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    let room = usize::try_from(size).ok().and_then(|size| bytes.try_reserve_exact(size).ok());
    room.ok_or(FileError::NoMemory { path: path.to_owned(), bytes: size })?;
    // The file may grow in the meantime.
    let read = file.take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(cannot())?;
    if read as u64 > most { Err(too_large()) } else { Ok(bytes) }
}

/// The text of a file of at most `most` bytes.
///
/// # Errors
/// As [`read`], and with the place of the first byte that is no UTF-8.
pub fn read_text(path: &Path, most: u64) -> Result<String, FileError> {
    text(path, read(path, most)?)
}

/// Bytes as text; `path` is what errors call them.
pub(crate) fn text(path: &Path, bytes: Vec<u8>) -> Result<String, FileError> {
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..offset].iter().filter(|&&byte| byte == b'\n').count();
        FileError::NotText { path: path.to_owned(), line, offset }
    })
}

/// At most `count` bytes from the beginning of a file, to tell what it is.
///
/// # Errors
/// As [`open`].
pub fn beginning(path: &Path, count: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    open(path)?.take(count).read_to_end(&mut bytes).map_err(FileError::io(path, "read"))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_is_no_file_or_too_large_is_refused_at_once() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"four");
        assert!(matches!(read(&path, 3).unwrap_err(), FileError::TooLarge { most: 3, .. }));
        assert!(read(place.path(), 9).unwrap_err().to_string().contains("found a folder"));
        assert!(read(&place.path().join("absent"), 9).unwrap_err().is_absent());
        let sparse = place.path().join("sparse");
        fs::File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
        assert!(matches!(read(&sparse, SETTINGS).unwrap_err(), FileError::TooLarge { .. }));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn pipes_and_devices_are_refused_at_once() {
        let place = tempfile::tempdir().unwrap();
        let pipe = place.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        for path in [pipe.as_path(), Path::new("/dev/zero"), Path::new("/dev/null")] {
            let said = read(path, UNBOUNDED).unwrap_err().to_string();
            assert!(said.contains("found a pipe or a device"), "{said}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_have_a_place() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("text");
        fs::write(&path, b"one\ntwo \xFF").unwrap();
        let said = read_text(&path, TEXT).unwrap_err().to_string();
        assert!(said.contains("line 2") && said.contains("offset 8"), "{said}");
    }
}
