//! `Keeper`: writes checkpoints of all ranks while steps go on, one at a time.
//!
//! Each rank writes a file of its parts. When all files are there, rank 0 lists them with their
//! checksums: until then, the checkpoint before is the one. Invariant: all ranks call `write` and
//! `settle` at the same time, since both exchange.

use super::CONTENTS;
use super::part_file::PartFile;
use crate::TrainError;
use crate::ranks::Ranks;
use overdrive_files::{Checksum, Existing, ListedFiles, Place, PlaceRequest};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Training goes on for so many times what a checkpoint has held it up, before the next one.
const SPARED: u32 = 50;

/// A file of this rank with its path in the folder; `None` if the rank has nothing to write.
type Written = Option<(String, Checksum)>;

/// The folder of checkpoints of a run.
pub(crate) struct Keeper<'a> {
    ranks: Ranks<'a>,
    folder: PathBuf,
    /// Rank 0 has claimed the folder.
    place: Option<Place>,
    writing: Option<JoinHandle<Result<Written, TrainError>>>,
    /// When the last one began to be written, and for how long that held up training.
    last: Option<(Instant, Duration)>,
}

impl<'a> Keeper<'a> {
    /// Rank 0 claims the folder, which is made.
    ///
    /// # Errors
    /// When the folder is another's, or the system refuses.
    pub(crate) fn open(folder: &Path, ranks: Ranks<'a>) -> Result<Self, TrainError> {
        let existing = Existing::Replace;
        let request = PlaceRequest { path: folder, option: "", existing, inputs: &[] };
        let place = ranks.is_first().then(|| Place::files(request, CONTENTS)).transpose()?;
        Ok(Self { ranks, folder: folder.to_owned(), place, writing: None, last: None })
    }

    /// Starts to write a checkpoint of `parts`, when the one before is whole.
    ///
    /// # Errors
    /// When the one before could not be written, another rank has failed, or the parts cannot be
    /// read.
    pub(crate) fn write(
        &mut self,
        parts: impl FnOnce() -> Result<PartFile, TrainError>,
    ) -> Result<(), TrainError> {
        let begun = Instant::now();
        self.settle()?;
        let parts = parts()?;
        let set = self.place.as_ref().map(Place::spare_set).transpose()?.unwrap_or_default();
        // From here on the folder is there and empty, on all ranks.
        let set = self.ranks.of_first("the place of a checkpoint", set.into())?;
        let set = String::from_utf8_lossy(&set);
        let (rank, count) = (self.ranks.rank(), self.ranks.all_count());
        let name = format!("{set}{rank}-of-{count}.safetensors");
        let path = self.folder.join(&name);
        // Rank 0 tells how far the run is, whether or not it has parts.
        let has_parts = rank == 0 || !parts.state.is_empty() || !parts.best.is_empty();
        self.writing = Some(thread::spawn(move || {
            if !has_parts {
                return Ok(None);
            }
            let sum = parts.write(&path)?;
            Ok(Some((name, sum)))
        }));
        self.last = Some((begun, begun.elapsed()));
        Ok(())
    }

    /// Whether this rank has trained for long enough since the last one.
    pub(crate) fn is_due(&self) -> bool {
        let is_free = self.writing.as_ref().is_none_or(JoinHandle::is_finished);
        is_free && self.last.is_none_or(|(begun, cost)| begun.elapsed() >= cost * SPARED)
    }

    /// Whether this rank waits for others to have written their parts.
    pub(crate) fn is_written(&self) -> bool {
        self.writing.as_ref().is_some_and(JoinHandle::is_finished)
    }

    /// Waits until the checkpoint under way is whole, if there is one.
    ///
    /// # Errors
    /// When it could not be written, or another rank has failed. The one before is then the last.
    pub(crate) fn settle(&mut self) -> Result<(), TrainError> {
        let Some(writing) = self.writing.take() else { return Ok(()) };
        let own = match writing.join() {
            Ok(written) => written?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        let shown = serde_json::to_vec(&own).expect("checksums are plain data");
        let mut files: ListedFiles = own.into_iter().collect();
        self.ranks.share("the files of a checkpoint", &shown, |_, bytes| {
            let other: Written = serde_json::from_slice(bytes).expect("of the same version");
            files.extend(other);
        })?;
        Ok(self.place.as_ref().map_or(Ok(()), |place| place.list_set(files))?)
    }
}

impl Drop for Keeper<'_> {
    /// A run of one rank that fails leaves its last checkpoint whole. Several ranks that fail do
    /// not exchange any more: theirs is the one that was whole.
    fn drop(&mut self) {
        // The user is told the failure that ends the run.
        match (self.ranks.all_count(), self.writing.take()) {
            (1, writing) => {
                self.writing = writing;
                let _ = self.settle();
            }
            (_, Some(writing)) => _ = writing.join(),
            _ => {}
        }
    }
}
