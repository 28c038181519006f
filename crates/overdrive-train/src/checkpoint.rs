//! Checkpoints: everything that the next step depends on, in one safetensors file that appears
//! whole or not at all.
//!
//! States stand under `state/`, the best parameters so far under `best/`, counters under
//! `progress/`. Two entries are JSON. `run` has the recipe and the hash of the training samples,
//! since only a run with both may continue. `choices` says how the device computes the step. Which
//! samples come next follows from the number of steps, so nothing of the data is kept.

use crate::{Recipe, TrainError};
use overdrive_formats::Tensors;
use overdrive_ir::{Choice, DType, Tensor, TensorType};
use std::collections::BTreeMap;
use std::path::Path;
use std::thread::{self, JoinHandle};

/// How far a run is.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Progress {
    /// Steps done.
    pub done: u64,
    /// Smallest validation loss so far; infinite before the first look.
    pub best_loss: f64,
    /// Looks at the validation samples since.
    pub stale: u64,
}

impl Default for Progress {
    fn default() -> Self {
        Self { done: 0, best_loss: f64::INFINITY, stale: 0 }
    }
}

/// A run between two steps.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Checkpoint {
    /// Every state of the step's graph.
    pub state: Tensors,
    /// Parameters at the smallest validation loss; empty where nothing looks for them.
    pub best: Tensors,
    /// How far it is.
    pub progress: Progress,
    /// How the model is trained.
    pub recipe: Recipe,
    /// Hash of the samples that it is trained on, and of weights that it does not train.
    pub data: String,
    /// How the device computes the step.
    pub choices: BTreeMap<String, Choice>,
}

/// Writes checkpoints while steps go on, one at a time.
#[derive(Default)]
pub(crate) struct Writer {
    writing: Option<JoinHandle<Result<(), TrainError>>>,
}

impl Writer {
    /// Starts to write one, when the one before is whole.
    ///
    /// # Errors
    /// When the one before could not be written.
    pub(crate) fn write(&mut self, checkpoint: Checkpoint, path: &Path) -> Result<(), TrainError> {
        self.finish()?;
        let path = path.to_owned();
        self.writing = Some(thread::spawn(move || checkpoint.write(&path)));
        Ok(())
    }

    /// Waits for the last one.
    ///
    /// # Errors
    /// When it could not be written.
    pub(crate) fn finish(&mut self) -> Result<(), TrainError> {
        let join = |writing: JoinHandle<_>| match writing.join() {
            Ok(written) => written,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        self.writing.take().map_or(Ok(()), join)
    }
}

impl Drop for Writer {
    /// A run that fails leaves its last checkpoint whole.
    fn drop(&mut self) {
        // The user is told the failure that ends the run.
        if let Some(writing) = self.writing.take() {
            let _ = writing.join();
        }
    }
}

const STATE: &str = "state/";
const BEST: &str = "best/";
const DONE: &str = "progress/done";
const BEST_LOSS: &str = "progress/best_loss";
const STALE: &str = "progress/stale";
const RUN: &str = "run";
const CHOICES: &str = "choices";

impl Checkpoint {
    /// Writes it.
    ///
    /// # Errors
    /// When the file cannot be written; one that was there before is then untouched.
    pub fn write(&self, path: &Path) -> Result<(), TrainError> {
        let under = |prefix: &'static str| {
            move |(name, t): (&String, &Tensor)| (format!("{prefix}{name}"), t.clone())
        };
        let mut tensors: Tensors = self.state.iter().map(under(STATE)).collect();
        tensors.extend(self.best.iter().map(under(BEST)));
        let count = |n: u64| Tensor::from_ints(DType::U64, [1usize], &[i128::from(n)]);
        tensors.insert(DONE.to_owned(), count(self.progress.done));
        tensors.insert(STALE.to_owned(), count(self.progress.stale));
        let best = Tensor::from_f64(DType::F64, [1usize], &[self.progress.best_loss]);
        tensors.insert(BEST_LOSS.to_owned(), best);
        let mut text = |name: &str, json: Vec<u8>| {
            let ty = TensorType::new(DType::U8, [json.len()]);
            tensors.insert(name.to_owned(), Tensor::from_bytes(ty, json).expect("bytes"));
        };
        let plain = "recipes and choices are plain data";
        text(RUN, serde_json::to_vec(&(&self.recipe, &self.data)).expect(plain));
        text(CHOICES, serde_json::to_vec(&self.choices).expect(plain));
        Ok(overdrive_formats::write(path, &tensors)?)
    }

    /// Reads what `write` wrote.
    ///
    /// # Errors
    /// When the file cannot be read, is damaged, or is no checkpoint.
    pub fn read(path: &Path) -> Result<Self, TrainError> {
        let mut checkpoint = Self::default();
        let mut counters = Tensors::new();
        for (name, tensor) in overdrive_formats::read(path)? {
            if let Some(name) = name.strip_prefix(STATE) {
                checkpoint.state.insert(name.to_owned(), tensor);
            } else if let Some(name) = name.strip_prefix(BEST) {
                checkpoint.best.insert(name.to_owned(), tensor);
            } else {
                counters.insert(name, tensor);
            }
        }
        let fault = |name: &str| {
            let (place, expected) = (path.display(), format!("`{name}` of a checkpoint"));
            TrainError::invalid(
                place,
                expected,
                "another file",
                "name a checkpoint that `train` wrote",
            )
        };
        let counter = |name: &str, dtype: DType| {
            let found =
                counters.get(name).filter(|t| t.ty().dtype == dtype && t.ty().elements() == 1);
            found.ok_or_else(|| fault(name))
        };
        let run = counters.get(RUN).and_then(|t| serde_json::from_slice(t.bytes()).ok());
        (checkpoint.recipe, checkpoint.data) = run.ok_or_else(|| fault(RUN))?;
        // Checkpoints of earlier versions have none.
        if let Some(choices) = counters.get(CHOICES) {
            checkpoint.choices =
                serde_json::from_slice(choices.bytes()).map_err(|_| fault(CHOICES))?;
        }
        checkpoint.progress = Progress {
            done: counter(DONE, DType::U64)?.to_ints()[0] as u64,
            best_loss: counter(BEST_LOSS, DType::F64)?.to_f64()[0],
            stale: counter(STALE, DType::U64)?.to_ints()[0] as u64,
        };
        Ok(checkpoint)
    }

    /// Errs unless a run of this recipe on these samples may go on from here.
    ///
    /// # Errors
    /// With what differs.
    pub fn check(&self, recipe: &Recipe, data: &str) -> Result<(), TrainError> {
        let remedy =
            "resume with the same model, flags and data, or start again without the checkpoint";
        if self.recipe != *recipe {
            let json =
                |recipe: &Recipe| serde_json::to_string(recipe).expect("a recipe is plain data");
            return Err(TrainError::invalid(
                "checkpoint",
                json(&self.recipe),
                json(recipe),
                remedy,
            ));
        }
        if self.data != data {
            let [expected, found] = [&self.data[..], data]
                .map(|hash| format!("training samples and frozen weights of SHA-256 {hash}"));
            return Err(TrainError::invalid("checkpoint", expected, found, remedy));
        }
        Ok(())
    }
}
