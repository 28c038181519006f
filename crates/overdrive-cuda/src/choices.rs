//! `Choices`: winners among timed candidates on disk, so that a device is asked once.
//!
//! Timing the candidates of a model takes seconds, compiling the winners a fraction of one.
//! Invariant: an entry is read back only where everything is as it was when the candidates were
//! timed: device, driver, libraries, our own kernels.

use crate::cache::Cache;
use crate::{Device, Library, gemm};
use overdrive_ir::Choice;
use overdrive_ir::eval::philox::site_of;
use std::io;
use std::path::Path;

/// Separates an entry's circumstances from its key.
const PART: &str = "\n";

/// A folder of choices.
#[derive(Clone, Debug)]
pub struct Choices {
    cache: Cache,
}

/// A remembered choice.
#[derive(Clone, PartialEq, Debug)]
pub struct Remembered {
    /// Device and versions that it holds for.
    pub place: String,
    /// The key that the choice is for, as `gemm::key` spells a product.
    pub key: String,
    /// The winner with every candidate's time.
    pub choice: Choice,
}

impl Choices {
    /// The user's choices, in a folder next to the cache of kernels; `None` if no place for it is
    /// known.
    pub fn of_user() -> Option<Self> {
        Some(Self { cache: Cache::of_user_for("choices")? })
    }

    /// The folder of the choices.
    pub fn folder(&self) -> &Path {
        self.cache.folder()
    }

    /// Everything that is remembered, for any device.
    ///
    /// # Errors
    /// The system's error about the folder.
    pub fn all(&self) -> io::Result<Vec<Remembered>> {
        let read = |(text, content): (String, Vec<u8>)| {
            let (place, key) = text.split_once(PART)?;
            let choice = serde_json::from_slice(&content).ok()?;
            Some(Remembered { place: place.to_owned(), key: key.to_owned(), choice })
        };
        Ok(self.cache.entries()?.into_iter().filter_map(read).collect())
    }

    /// The choice at `place`.
    pub(crate) fn get(&self, place: &str, key: &str) -> Option<Choice> {
        serde_json::from_slice(&self.cache.get(&entry(place, key))?).ok()
    }

    /// Keeps the choice at `place`.
    pub(crate) fn put(&self, place: &str, key: &str, choice: &Choice) {
        let content = serde_json::to_vec(choice).expect("names and numbers");
        self.cache.put(&entry(place, key), &content);
    }
}

fn entry(place: &str, key: &str) -> String {
    format!("{place}{PART}{key}")
}

/// Everything but the work that a timing depends on, in one line: device, driver, libraries, our
/// kernels.
pub(crate) fn place(device: &Device) -> String {
    let properties = device.properties();
    let version = |library: Library| match library.version() {
        Some((major, minor)) => format!("{} {major}.{minor}", library.name()),
        None => format!("no {}", library.name()),
    };
    // Those that kernels come from.
    let of_kernels = [Library::Driver, Library::Nvrtc, Library::CublasLt];
    let libraries = of_kernels.map(version).join(", ");
    let driver = properties.driver.as_deref().unwrap_or("of unknown version");
    format!(
        "{}, {} multiprocessors, driver {driver}, {libraries}, overdrive {} with kernels {:016x}",
        properties.name,
        properties.multiprocessors,
        env!("CARGO_PKG_VERSION"),
        site_of(gemm::TEXT)
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A test may panic.
mod tests {
    use super::*;

    #[test]
    fn choices_come_back_with_their_timings_at_their_place_alone() {
        let folder = tempfile::tempdir().unwrap();
        let choices = Choices { cache: Cache::at(folder.path().join("choices")) };
        let timings =
            [("plain", 4.5), ("cublaslt 0", 3.25)].map(|(name, ns)| (name.to_owned(), ns));
        let choice = Choice::fastest(timings.into()).unwrap();
        assert_eq!(choices.all().unwrap(), []);
        choices.put("here", "gemm 1", &choice);
        assert_eq!(choices.get("here", "gemm 1").as_ref(), Some(&choice));
        assert_eq!(choices.get("elsewhere", "gemm 1"), None);
        assert_eq!(choices.get("here", "gemm 2"), None);
        let known = Remembered { place: "here".to_owned(), key: "gemm 1".to_owned(), choice };
        assert_eq!(choices.all().unwrap(), [known]);
    }
}
