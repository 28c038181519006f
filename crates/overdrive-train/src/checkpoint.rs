//! Checkpoints: everything that the next step depends on, in a folder of files that ranks write.
//!
//! Each rank writes its parts of the states into a file of its own. A state that is whole on
//! several ranks is written once. A manifest lists the files with their checksums. It is written
//! last, so that a kill at any moment leaves the checkpoint before. Any ranks on any mesh read the
//! parts that they need. Which samples come next follows from the number of steps, so nothing of
//! the data is kept.

mod keeper;
mod part_file;
mod region;
mod saved;
mod whole_file;

pub use saved::{SavedState, SavedStates};

pub(crate) use keeper::Keeper;
pub(crate) use part_file::{PartFile, RunFacts, StatePart, StateParts};
pub(crate) use region::Region;

use crate::{Recipe, TrainError};
use overdrive_files::{Checksum, Contents};
use overdrive_ir::Choice;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Folders of checkpoints.
const CONTENTS: Contents = Contents::sets("a checkpoint");

/// Names of states of a step in files begin so, and names of the best parameters.
const STATE: &str = "state/";
const BEST: &str = "best/";

/// The remedy for a file that is missing or not as it was written.
const DAMAGED: &str =
    "bring back the file as it was, or start again without the checkpoint, which is damaged";

/// How far a run is.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Progress {
    /// Steps done.
    pub done: u64,
    /// Smallest validation loss so far; infinite before the first look.
    pub best_loss: f64,
    /// Looks at the validation samples since.
    pub stale: u64,
    /// Validation loss after these steps, if there was a look. Checkpoints of earlier versions do
    /// not tell.
    pub loss: Option<f64>,
}

impl Default for Progress {
    fn default() -> Self {
        Self { done: 0, best_loss: f64::INFINITY, stale: 0, loss: None }
    }
}

/// A run between two steps. Its states stay in their files until they are read.
#[derive(Clone, Debug, Default)]
pub struct Checkpoint {
    /// Every state that steps change.
    pub state: SavedStates,
    /// Parameters at the smallest validation loss; empty where nothing looks for them.
    pub best: SavedStates,
    /// How far it is.
    pub progress: Progress,
    /// How the model is trained.
    pub recipe: Recipe,
    /// Hash of the samples that it is trained on, and of weights that it does not train.
    pub data: String,
    /// How the device computes the step.
    pub choices: BTreeMap<String, Choice>,
    /// Its files with their checksums. A checkpoint of an earlier version has none.
    pub files: BTreeMap<PathBuf, Checksum>,
}

impl Checkpoint {
    /// Whether a folder has a whole checkpoint, or a file is one of an earlier version.
    pub fn is_at(path: &Path) -> bool {
        // Damage is told by whoever reads it.
        let is_whole =
            || overdrive_files::listed_set(path, CONTENTS).map_or(true, |f| !f.is_empty());
        if path.is_dir() { is_whole() } else { path.is_file() }
    }

    /// Copies of its states for which a run needs room in its folder of checkpoints. Two, since a
    /// checkpoint stays until the next one is whole. One that the run goes on from is there.
    pub(crate) fn copies_to_come(folder: &Path, resume: Option<&Self>) -> usize {
        let is_there = resume.is_some_and(|earlier| {
            !earlier.files.is_empty() && earlier.files.keys().all(|file| file.starts_with(folder))
        });
        if is_there { 1 } else { 2 }
    }

    /// Opens the checkpoint in a folder, or in a file of an earlier version.
    ///
    /// # Errors
    /// When a file is missing, damaged or of another step, or is no checkpoint.
    pub fn read(path: &Path) -> Result<Self, TrainError> {
        if !path.is_dir() {
            return whole_file::read(path);
        }
        let files = overdrive_files::listed_set(path, CONTENTS)?;
        let mut found = Self::default();
        let mut first: Option<(PathBuf, RunFacts)> = None;
        for (name, sum) in files {
            let file = path.join(&name);
            let run = part_file::read(&file, &mut found).map_err(|error| missing(error, &file))?;
            if let Some((first, expected)) = &first {
                part_file::check_same((&file, &run), (first, expected))?;
            } else {
                first = Some((file.clone(), run));
            }
            found.files.insert(file, sum);
        }
        let Some((_, run)) = first else {
            let expected = "a checkpoint that `train` wrote";
            let remedy = "start again without --resume";
            return Err(TrainError::invalid(path.display(), expected, "no whole one", remedy));
        };
        for (name, saved) in found.state.iter().chain(&found.best) {
            saved.check(name, path)?;
        }
        let Self { state, best, files, .. } = found;
        Ok(Self { state, best, files, ..run.checkpoint() })
    }

    /// Removes the checkpoint at a path, if there is one.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn remove(path: &Path) -> Result<(), TrainError> {
        if path.is_dir() {
            return Ok(overdrive_files::remove_sets(path, CONTENTS)?);
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(TrainError::io(path, "remove")(error))
            }
            _ => Ok(()),
        }
    }

    /// Errs unless files are as they were written. Each of `count` ranks looks at some of them.
    pub(crate) fn check_files(&self, rank: usize, count: usize) -> Result<(), TrainError> {
        for (path, expected) in self.files.iter().skip(rank).step_by(count) {
            let found = Checksum::of_file(path)?;
            if found != *expected {
                return Err(TrainError::invalid(path.display(), expected, found, DAMAGED));
            }
        }
        Ok(())
    }

    /// Errs unless a run of this recipe on these samples may go on from here.
    ///
    /// # Errors
    /// With what differs.
    pub fn check(&self, recipe: &Recipe, data: &str) -> Result<(), TrainError> {
        let remedy =
            "resume with the same model, flags and data, or start again without the checkpoint";
        if self.recipe != *recipe {
            let (own, asked) = (self.recipe.fields(), recipe.fields());
            let only = |of: &[(String, String)], others: &[(String, String)]| {
                let differs = of.iter().filter(|field| !others.contains(field));
                let differs = differs.map(|(field, value)| format!("{field} {value}"));
                differs.collect::<Vec<_>>().join(", ")
            };
            let (expected, found) = (only(&own, &asked), only(&asked, &own));
            return Err(TrainError::invalid("checkpoint, recipe", expected, found, remedy));
        }
        if self.data != data {
            let [expected, found] = [&self.data[..], data]
                .map(|hash| format!("training samples and frozen weights of SHA-256 {hash}"));
            return Err(TrainError::invalid("checkpoint", expected, found, remedy));
        }
        Ok(())
    }
}

/// The error that a file of a checkpoint is not there; any other stays as it is.
fn missing(error: TrainError, file: &Path) -> TrainError {
    use overdrive_formats::FormatError;
    let absent = match &error {
        TrainError::File(error) | TrainError::Format(FormatError::File(error)) => error.is_absent(),
        _ => false,
    };
    if !absent {
        return error;
    }
    let expected = "a part of the checkpoint, as its list of files says";
    TrainError::invalid(file.display(), expected, "no such file", DAMAGED)
}

#[cfg(test)]
mod tests;
