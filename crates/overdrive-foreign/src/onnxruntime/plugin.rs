//! TensorRT-RTX: a provider of ONNX Runtime in a library of its own, registered when it is asked
//! for.
//!
//! Its package brings NVIDIA's compiler and the runtime of CUDA in the same folder, where the
//! system's loader does not look. They are therefore loaded first, as the package's own Python
//! module does. Invariant: a process registers the provider once.
#![allow(unsafe_code)] // Libraries are loaded, whose initialisers run.

use super::library::Library;
use crate::engine::Places;
use crate::{install, python};
use ort::device::Device;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// The provider's own name.
const NAME: &str = "NvTensorRTRTXExecutionProvider";
/// Name of its library, without what a system puts around it.
const STEM: &str = "onnxruntime_providers_nv_tensorrt_rtx";
/// Libraries that it links in addition to the driver, in the order of their dependencies.
const BESIDE: [&str; 3] =
    ["libcudart.so.", "libtensorrt_rtx.so.", "libtensorrt_onnxparser_rtx.so."];

/// The provider's library: the one that the user named, or that was installed, or that of a Python
/// package.
pub(super) fn locate(places: &Places) -> Result<PathBuf, String> {
    let file = format!("{}{STEM}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let mut looked = Vec::new();
    let mut inside = |folder: &Path| {
        let library = folder.join(&file);
        looked.push(folder.display().to_string());
        library.is_file().then_some(library)
    };
    if let Some(named) = places.named("tensorrt-rtx") {
        let named = if named.is_dir() { inside(named) } else { Some(named.to_owned()) };
        return named.ok_or_else(|| format!("no {file} in {}", looked.join(", ")));
    }
    if let Some(library) =
        places.installed.as_ref().and_then(|root| inside(&root.join("tensorrt-rtx")))
    {
        let damaged = |e| format!("{} is not what was installed: {e}", library.display());
        return install::verify(&library).map_err(damaged).map(|()| library.clone());
    }
    let mut folders =
        python::packages().iter().map(|folder| folder.join("onnxruntime_ep_nv_tensorrt_rtx"));
    folders
        .find_map(|folder| inside(&folder))
        .ok_or_else(|| format!("no {file} in {}", looked.join(", ")))
}

/// The version of the compiler beside the provider, which its file name ends in.
pub(super) fn version(provider: &Path) -> String {
    let beside = provider.parent().and_then(|folder| beside(folder, BESIDE[1]));
    let version = beside
        .as_deref()
        .and_then(Path::file_name)
        .and_then(|name| name.to_str()?.strip_prefix(BESIDE[1]));
    version.unwrap_or("of unknown version").to_owned()
}

/// The devices that the provider offers, once it is registered.
pub(super) fn devices<'a>(library: &'a Library, path: &Path) -> Result<Vec<Device<'a>>, String> {
    static REGISTERED: Mutex<Option<PathBuf>> = Mutex::new(None);
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    match &*registered {
        Some(other) if other != path => {
            return Err(format!(
                "this process holds the provider at {} and can hold no other",
                other.display()
            ));
        }
        Some(_) => {}
        None => {
            preload(path)?;
            library.environment.register_ep_library(NAME, path).map_err(|e| e.to_string())?;
            *registered = Some(path.to_owned());
        }
    }
    let devices: Vec<_> = library
        .environment
        .devices()
        .filter(|device| device.ep().is_ok_and(|ep| ep == NAME))
        .collect();
    match devices.is_empty() {
        false => Ok(devices),
        true => Err(format!(
            "the provider at {} takes none of the devices that ONNX Runtime shows it",
            path.display()
        )),
    }
}

/// The file in a folder that begins so, the last by name.
fn beside(folder: &Path, start: &str) -> Option<PathBuf> {
    let files = std::fs::read_dir(folder).ok()?.flatten();
    files
        .filter(|file| file.file_name().to_string_lossy().starts_with(start))
        .map(|file| file.path())
        .max()
}

/// Loads the libraries in the provider's folder, so that the loader finds them.
#[cfg(unix)]
fn preload(provider: &Path) -> Result<(), String> {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    let folder = provider.parent().unwrap_or(Path::new("."));
    for library in BESIDE.iter().filter_map(|start| beside(folder, start)) {
        // SAFETY: its initialisers run, as they would when the loader found it for the provider.
        let loaded = unsafe { Library::open(Some(&library), RTLD_NOW | RTLD_GLOBAL) };
        // It stays, as the provider does, which has no way to be told that it may go.
        std::mem::forget(loaded.map_err(|e| format!("{}: {e}", library.display()))?);
    }
    Ok(())
}

/// Elsewhere the folder of a library is searched for what it links.
#[cfg(not(unix))]
fn preload(_: &Path) -> Result<(), String> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_provider_is_found_with_its_version_and_what_was_looked_for_is_said() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places {
            named: [("tensorrt-rtx".to_owned(), folder.path().to_owned())].into(),
            installed: None,
        };
        let missing = locate(&places).unwrap_err();
        assert!(
            missing.contains(STEM) && missing.contains(&folder.path().display().to_string()),
            "{missing}"
        );
        let file =
            format!("{}{STEM}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
        std::fs::write(folder.path().join(&file), b"no library").unwrap();
        let found = locate(&places).unwrap();
        assert_eq!(found, folder.path().join(&file));
        assert_eq!(version(&found), "of unknown version");
        for name in ["libtensorrt_rtx.so.1.7.1", "libtensorrt_onnxparser_rtx.so.1.7.1"] {
            std::fs::write(folder.path().join(name), b"no library").unwrap();
        }
        assert_eq!(version(&found), "1.7.1");
    }
}
