//! The shared library of ONNX Runtime: where it is, and that this process holds one only.
#![allow(unsafe_code)] // A function of the library is asked for its version.

use super::provider::Provider;
use crate::engine::Places;
use crate::{install, python};
use ort::environment::Environment;
use ort::ep::{self, ExecutionProvider};
use ort::logging::LogLevel;
use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The library, loaded.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) path: PathBuf,
    pub(super) version: String,
    pub(super) environment: Environment,
}

impl Library {
    /// Loads the library that the user named, else the installed one, else that of a Python
    /// package. The error says what was looked for.
    pub(super) fn load(places: &Places) -> Result<&'static Self, String> {
        // The binding knows one library a process, which is never unloaded.
        static LOADED: Mutex<Option<&'static Library>> = Mutex::new(None);
        let path = locate(places)?;
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        match *loaded {
            Some(library) if library.path == path => Ok(library),
            Some(library) => Err(format!(
                "this process holds the ONNX Runtime at {} and can hold no other, so not {}",
                library.path.display(),
                path.display()
            )),
            None => {
                let library: &'static Self = Box::leak(Box::new(Self::open(path)?));
                *loaded = Some(library);
                Ok(library)
            }
        }
    }

    fn open(path: PathBuf) -> Result<Self, String> {
        let version = version(&path)?;
        let builder = ort::init_from(&path).map_err(|e| e.to_string())?;
        let environment = builder.with_name("overdrive").with_telemetry(false).build();
        let environment = environment.map_err(|e| format!("{}: {e}", path.display()))?;
        // Errors are returned to the caller. Messages that the library prints itself would end up
        // in the middle of a table.
        environment.set_log_level(LogLevel::Fatal);
        Ok(Self { path, version, environment })
    }

    /// Whether it was built with this provider.
    pub(super) fn has(&self, provider: Provider) -> bool {
        let available = match provider {
            Provider::Cpu => ep::CPU::is_available(),
            Provider::OpenVino => ep::OpenVINO::is_available(),
            Provider::Cuda => ep::CUDA::is_available(),
            Provider::TensorRt => ep::TensorRT::is_available(),
            // No part of any build.
            Provider::TensorRtRtx => Ok(false),
        };
        available.unwrap_or(false)
    }
}

/// The version of the library in its own words.
fn version(path: &Path) -> Result<String, String> {
    let refused = |e: libloading::Error| format!("{}: {e}", path.display());
    // SAFETY: its initialisers run, as they would for whoever links it.
    let library = unsafe { libloading::Library::new(path) }.map_err(refused)?;
    // SAFETY: the type is that of the library's header, unchanged since its first release.
    let base = unsafe {
        library.get::<unsafe extern "system" fn() -> *const ort::sys::OrtApiBase>(b"OrtGetApiBase")
    };
    let base = base.map_err(refused)?;
    // SAFETY: it has no precondition, and its answer lives as long as the library.
    let base = unsafe { base().as_ref() }
        .ok_or_else(|| format!("{} gives no interface", path.display()))?;
    // SAFETY: it has no precondition; the text ends in a zero and lives as long as the library.
    let text = unsafe { CStr::from_ptr((base.GetVersionString)()) };
    Ok(text.to_string_lossy().into_owned())
}

/// The path of the library.
fn locate(places: &Places) -> Result<PathBuf, String> {
    if let Some(named) = places.named("onnxruntime") {
        return match named.is_dir() {
            false => Ok(named.to_owned()),
            true => inside(named).ok_or_else(|| format!("no {} in {}", pattern(), named.display())),
        };
    }
    let mut looked = Vec::new();
    if let Some(folder) = places.installed.as_ref().map(|folder| folder.join("onnxruntime")) {
        if let Some(library) = inside(&folder) {
            let damaged = |e| format!("{} is not what was installed: {e}", library.display());
            return install::verify(&library).map_err(damaged).map(|()| library.clone());
        }
        looked.push(folder.display().to_string());
    }
    for folder in python::packages().iter().map(|folder| folder.join("onnxruntime/capi")) {
        if let Some(library) = inside(&folder) {
            return Ok(library);
        }
        looked.push(folder.display().to_string());
    }
    Err(format!(
        "no {} in {}",
        pattern(),
        if looked.is_empty() { "any known folder".into() } else { looked.join(", ") }
    ))
}

/// Name of the library, up to its version.
const STEM: &str = if cfg!(windows) { "onnxruntime" } else { "libonnxruntime" };

fn pattern() -> String {
    format!("{STEM}{}", std::env::consts::DLL_SUFFIX)
}

/// The library in a folder: `libonnxruntime.so`, `libonnxruntime.so.1.31.1`,
/// `libonnxruntime.1.31.1.dylib`.
fn inside(folder: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?;
    let is_library = |name: &str| {
        let rest = name.strip_prefix(STEM).filter(|rest| rest.starts_with('.'));
        rest.is_some_and(|rest| {
            format!("{rest}.").contains(&format!("{}.", std::env::consts::DLL_SUFFIX))
        })
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| is_library(&entry.file_name().to_string_lossy()))
        .map(|entry| entry.path())
        .collect();
    found.sort();
    found.pop()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_is_told_from_what_lies_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(inside(folder.path()), None);
        let suffix = std::env::consts::DLL_SUFFIX;
        for name in
            ["onnxruntime_pybind11_state.so", "libonnxruntime_providers_shared.so", "readme.txt"]
        {
            std::fs::write(folder.path().join(name), b"").unwrap();
        }
        assert_eq!(inside(folder.path()), None);
        let name = format!("{STEM}{suffix}");
        std::fs::write(folder.path().join(&name), b"").unwrap();
        assert_eq!(inside(folder.path()), Some(folder.path().join(&name)));
    }

    #[test]
    fn what_was_looked_for_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let named = |path: PathBuf| Places {
            named: [("onnxruntime".to_owned(), path)].into(),
            ..Places::default()
        };
        let missing = locate(&named(folder.path().to_owned())).unwrap_err();
        assert!(
            missing.contains(STEM) && missing.contains(&folder.path().display().to_string()),
            "{missing}"
        );
        let no_library = folder.path().join("libonnxruntime.so");
        std::fs::write(&no_library, b"not a library").unwrap();
        assert!(Library::open(no_library).is_err());
    }
}
