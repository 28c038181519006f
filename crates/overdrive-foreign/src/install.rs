//! `overdrive info --install`: unpacks the libraries in a vendor's Python wheel into the cache.
//!
//! The user has the wheel already, or the user's own `pip` fetches it, from wherever `pip` is told
//! to look. Nothing is fetched unless asked.
//!
//! Invariants:
//! - Every file is what the wheel's own RECORD says it is, by SHA-256.
//! - The folder appears whole, by rename, with a list of checksums.
//! - A library that no longer fits its checksum is not loaded.

use crate::engine::Missing;
use overdrive_process::{Stop, python};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use zip::ZipArchive;

/// A package whose libraries can be installed: its name, the version that this program was tried
/// with, and the engine whose folder they lie in.
struct Package {
    name: &'static str,
    version: &'static str,
    engine: &'static str,
    /// The folder of the libraries in the wheel.
    folder: &'static str,
}

const PACKAGES: [Package; 4] = [
    Package {
        name: "onnxruntime",
        version: "1.31.1",
        engine: "onnxruntime",
        folder: "onnxruntime/capi/",
    },
    Package {
        name: "onnxruntime-gpu",
        version: "1.31.1",
        engine: "onnxruntime",
        folder: "onnxruntime/capi/",
    },
    Package {
        name: "onnxruntime-openvino",
        version: "1.24.1",
        engine: "onnxruntime",
        folder: "onnxruntime/capi/",
    },
    Package {
        name: "onnxruntime-ep-nv-tensorrt-rtx-cu13",
        version: "0.5.0",
        engine: "tensorrt-rtx",
        folder: "onnxruntime_ep_nv_tensorrt_rtx/",
    },
];

/// The list of checksums in an installed folder: a line `HEX  NAME` each.
const SUMS: &str = "SHA256SUMS";
/// No library is larger; a wheel that says so is damaged or means harm.
const MOST_BYTES: u64 = 4 << 30;

/// An installed package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// Its folder.
    pub folder: PathBuf,
    /// SHA-256 of each library, in hexadecimal, by its name.
    pub checksums: BTreeMap<String, String>,
}

/// Unpacks the libraries of a package into its engine's folder in `root`, and replaces what was
/// there. They come from `wheel`, or else from the wheel that pip fetches.
///
/// # Errors
/// For an unknown package (the error lists the known ones), a failure of pip, a damaged wheel, or a
/// refusal of the system.
pub fn install(
    package: &str,
    wheel: Option<&Path>,
    root: &Path,
    stop: &Stop,
) -> Result<Installed, Missing> {
    let refused = |reason: String, remedy: &str| Missing {
        engine: package.to_owned(),
        reason,
        remedy: remedy.to_owned(),
    };
    let Some(package) = PACKAGES.iter().find(|known| known.name == package) else {
        let names: Vec<&str> = PACKAGES.iter().map(|known| known.name).collect();
        return Err(refused(
            "nothing of this name can be installed".to_owned(),
            &format!("name one of {}", names.join(", ")),
        ));
    };
    let unwritable = |e: io::Error| {
        refused(
            format!("{}: {e}", root.display()),
            "set OVERDRIVE_CACHE to a folder that can be written",
        )
    };
    fs::create_dir_all(root).map_err(unwritable)?;
    let unfinished = Unfinished(root.join(format!(".{}.{}", package.engine, std::process::id())));
    fs::create_dir_all(&unfinished.0).map_err(unwritable)?;
    let wheel = match wheel {
        Some(wheel) => wheel.to_owned(),
        None => fetch(package, &unfinished.0, stop).map_err(|e| {
            refused(e, "download the wheel elsewhere and give it with --wheel FILE")
        })?,
    };
    let libraries = unfinished.0.join("libraries");
    let checksums = unpack(&wheel, package.folder, &libraries)
        .map_err(|e| refused(format!("{}: {e}", wheel.display()), "download the wheel again"))?;
    let folder = root.join(package.engine);
    let before = unfinished.0.join("before");
    if folder.exists() {
        fs::rename(&folder, &before).map_err(unwritable)?;
    }
    fs::rename(&libraries, &folder).map_err(unwritable)?;
    Ok(Installed { folder, checksums })
}

/// A folder that is removed at the end, whatever the end is.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// Has the user's pip download the wheel for the user's interpreter; it ends with `stop`.
fn fetch(package: &Package, folder: &Path, stop: &Stop) -> Result<PathBuf, String> {
    let python = python::interpreter();
    let unstarted = |e: io::Error| format!("{python}: {e}");
    let mut command = python::isolated(&python).map_err(unstarted)?;
    command.args([
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
    ]);
    command.arg(folder).arg(format!("{}=={}", package.name, package.version));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut running = stop.spawn(&mut command).map_err(unstarted)?;
    let mut words = Vec::new();
    let said = running.child.stderr.take().expect("it is piped").read_to_end(&mut words);
    let status = said.and_then(|_| running.child.wait()).map_err(unstarted)?;
    if !status.success() {
        let words = String::from_utf8_lossy(&words);
        return Err(format!(
            "{python} -m pip download: {}",
            words.lines().last().unwrap_or("no message")
        ));
    }
    let entries = fs::read_dir(folder).map_err(|e| e.to_string())?;
    let wheel = entries
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.extension().is_some_and(|e| e == "whl"));
    wheel.ok_or_else(|| "pip downloaded no wheel".to_owned())
}

/// Unpacks the shared libraries of a folder of the wheel.
fn unpack(wheel: &Path, inside: &str, into: &Path) -> Result<BTreeMap<String, String>, String> {
    let file = overdrive_files::open(wheel).map_err(|e| e.to_string())?;
    let mut archive = ZipArchive::new(file).map_err(|e| e.to_string())?;
    let record = record(&mut archive)?;
    fs::create_dir_all(into).map_err(|e| e.to_string())?;
    let mut checksums = BTreeMap::new();
    for i in 0..archive.len() {
        let mut entry = archive.by_index(i).map_err(|e| e.to_string())?;
        let path = entry.name().map_err(|e| e.to_string())?.into_owned();
        let Some(name) = path.strip_prefix(inside).filter(|name| is_library(name)) else {
            continue;
        };
        if entry.size() > MOST_BYTES {
            return Err(format!("{path} claims {} bytes", entry.size()));
        }
        let expected = record.get(&path).ok_or_else(|| format!("{path} is not in its RECORD"))?;
        let mut file = fs::File::create(into.join(name)).map_err(|e| e.to_string())?;
        let mut bytes = Hashed { reader: entry.by_ref().take(MOST_BYTES), hasher: Sha256::new() };
        io::copy(&mut bytes, &mut file).map_err(|e| format!("{path}: {e}"))?;
        let hash = bytes.hasher.finalize();
        if base64(&hash) != *expected {
            return Err(format!(
                "{path} is not what its RECORD says: expected sha256={expected}, found {}",
                base64(&hash)
            ));
        }
        checksums.insert(name.to_owned(), hexadecimal(&hash));
    }
    if checksums.is_empty() {
        return Err(format!("no library in {inside}"));
    }
    let list: String = checksums.iter().map(|(name, hash)| format!("{hash}  {name}\n")).collect();
    fs::write(into.join(SUMS), list).map_err(|e| e.to_string())?;
    Ok(checksums)
}

/// A shared library that is no module of Python.
fn is_library(name: &str) -> bool {
    let suffix = std::env::consts::DLL_SUFFIX;
    let is_shared = name.ends_with(suffix) || name.contains(&format!("{suffix}."));
    is_shared
        && !name.contains(['/', '\\'])
        && !name.contains("pybind")
        && !name.contains("cpython")
}

/// Hash of each file, as the wheel's own list says: `path,sha256=BASE64,size`.
fn record(archive: &mut ZipArchive<impl Read + Seek>) -> Result<BTreeMap<String, String>, String> {
    let mut names = archive.file_names().filter_map(|name| name.ok().map(|name| name.to_string()));
    let name = names.find(|name| name.ends_with(".dist-info/RECORD"));
    drop(names);
    let name = name.ok_or("it holds no RECORD, so it is no wheel")?;
    let mut text = String::new();
    let entry = archive.by_name(&name).map_err(|e| e.to_string())?;
    entry.take(16 << 20).read_to_string(&mut text).map_err(|e| format!("{name}: {e}"))?;
    let line = |line: &str| {
        let (path, rest) = line.split_once(",sha256=")?;
        Some((path.to_owned(), rest.split(',').next()?.to_owned()))
    };
    Ok(text.lines().filter_map(line).collect())
}

/// A reader that hashes what it reads.
struct Hashed<R> {
    reader: R,
    hasher: Sha256,
}

impl<R: Read> Read for Hashed<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}

fn hexadecimal(hash: &[u8]) -> String {
    hash.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string");
        text
    })
}

/// The URL-safe alphabet without padding, as RECORD has it (PEP 427).
fn base64(hash: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = String::new();
    for chunk in hash.chunks(3) {
        let word = chunk.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte))
            << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            text.push(char::from(ALPHABET[(word >> (18 - 6 * digit)) as usize & 63]));
        }
    }
    text
}

/// Errs unless a library in an installed folder is what was installed.
pub(crate) fn verify(library: &Path) -> Result<(), String> {
    let (folder, name) = (library.parent(), library.file_name().map(|name| name.to_string_lossy()));
    let (Some(folder), Some(name)) = (folder, name) else {
        return Err("it has no folder".to_owned());
    };
    let list = overdrive_files::read_text(&folder.join(SUMS), overdrive_files::SETTINGS)
        .map_err(|e| format!("{SUMS}: {e}"))?;
    let expected =
        list.lines().find_map(|line| line.split_once("  ").filter(|(_, known)| *known == name));
    let (expected, _) = expected.ok_or_else(|| format!("{SUMS} does not name {name}"))?;
    let mut hashed = Hashed {
        reader: overdrive_files::open(library).map_err(|e| e.to_string())?,
        hasher: Sha256::new(),
    };
    io::copy(&mut hashed, &mut io::sink()).map_err(|e| e.to_string())?;
    let found = hexadecimal(&hashed.hasher.finalize());
    if found == expected {
        Ok(())
    } else {
        Err(format!("expected SHA-256 {expected}, found {found}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use zip::write::SimpleFileOptions;

    /// A wheel with one library, whose RECORD names `recorded`.
    fn wheel(folder: &Path, content: &[u8], recorded: &[u8]) -> PathBuf {
        let path = folder.join("onnxruntime-1.31.1.whl");
        let mut archive = zip::ZipWriter::new(fs::File::create(&path).unwrap());
        let options = SimpleFileOptions::default();
        let library = format!("onnxruntime/capi/libonnxruntime{}", std::env::consts::DLL_SUFFIX);
        archive.start_file(&library, options).unwrap();
        archive.write_all(content).unwrap();
        archive.start_file("onnxruntime/capi/readme.md", options).unwrap();
        archive.start_file("onnxruntime-1.31.1.dist-info/RECORD", options).unwrap();
        let hash = base64(&Sha256::digest(recorded));
        writeln!(archive, "{library},sha256={hash},{}", recorded.len()).unwrap();
        archive.finish().unwrap();
        path
    }

    #[test]
    fn a_wheel_is_unpacked_whole_with_its_checksums_and_damage_is_seen() {
        let (folder, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let stop = Stop::default();
        let path = wheel(folder.path(), b"a library", b"a library");
        for _ in 0..2 {
            let installed = install("onnxruntime", Some(&path), root.path(), &stop).unwrap();
            assert_eq!(installed.checksums.len(), 1);
            assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "nothing unfinished is left");
            let library = installed.folder.join(installed.checksums.keys().next().unwrap());
            assert_eq!(fs::read(&library).unwrap(), b"a library");
            assert_eq!(verify(&library), Ok(()));
            fs::write(&library, b"a librarx").unwrap();
            assert!(verify(&library).unwrap_err().contains("expected SHA-256"));
        }
    }

    #[test]
    fn a_wheel_that_is_not_what_it_says_installs_nothing() {
        let (folder, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let stop = Stop::default();
        let other = wheel(folder.path(), b"a library", b"another");
        let error =
            install("onnxruntime", Some(&other), root.path(), &stop).unwrap_err().to_string();
        assert!(error.contains("not what its RECORD says"), "{error}");
        fs::write(&other, b"no archive").unwrap();
        assert!(install("onnxruntime", Some(&other), root.path(), &stop).is_err());
        let error =
            install("onnxrumtime", Some(&other), root.path(), &stop).unwrap_err().to_string();
        assert!(error.contains("onnxruntime-openvino"), "{error}");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn hashes_are_spelt_as_wheels_spell_them() {
        // SHA-256 of nothing, as RECORD files have it for empty `__init__.py`.
        assert_eq!(base64(&Sha256::digest(b"")), "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU");
    }
}
