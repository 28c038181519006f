//! Checkpoints of earlier versions: one safetensors file of whole states. Such files are read and
//! no longer written.
//!
//! States stand under `state/`, the best parameters so far under `best/`, counters under
//! `progress/`. Two entries are JSON: `run` has the recipe and the hash of the training samples,
//! `choices` says how the device computes the step.

use super::region::Region;
use super::saved::{Piece, SavedState};
use super::{BEST, Checkpoint, Progress, STATE};
use crate::TrainError;
use overdrive_formats::safetensors::OpenedSafetensors;
use overdrive_ir::{DType, Tensor};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const DONE: &str = "progress/done";
const BEST_LOSS: &str = "progress/best_loss";
const STALE: &str = "progress/stale";
const RUN: &str = "run";
const CHOICES: &str = "choices";

/// Reads such a file, but for its states, which stay in it.
pub(super) fn read(path: &Path) -> Result<Checkpoint, TrainError> {
    let file = Arc::new(OpenedSafetensors::open(path)?);
    let mut checkpoint = Checkpoint::default();
    let mut facts: BTreeMap<&str, Tensor> = BTreeMap::new();
    for (name, ty) in file.types() {
        let region = Region::whole(ty.sizes());
        let mut saved = SavedState::new(ty.clone());
        saved.push(Piece { file: Arc::clone(&file), name: name.to_owned(), region });
        if let Some(name) = name.strip_prefix(STATE) {
            checkpoint.state.insert(name.to_owned(), saved);
        } else if let Some(name) = name.strip_prefix(BEST) {
            checkpoint.best.insert(name.to_owned(), saved);
        } else {
            facts.insert(name, saved.read()?);
        }
    }
    let fault = |name: &str| {
        let (place, expected) = (path.display(), format!("`{name}` of a checkpoint"));
        let remedy = "name a checkpoint that `train` wrote";
        TrainError::invalid(place, expected, "another file", remedy)
    };
    let counter = |name: &str, dtype: DType| {
        let found = facts.get(name).filter(|t| t.ty().dtype == dtype && t.ty().elements() == 1);
        found.ok_or_else(|| fault(name))
    };
    let run = facts.get(RUN).and_then(|t| serde_json::from_slice(t.bytes()).ok());
    (checkpoint.recipe, checkpoint.data) = run.ok_or_else(|| fault(RUN))?;
    // The earliest have none.
    if let Some(choices) = facts.get(CHOICES) {
        checkpoint.choices = serde_json::from_slice(choices.bytes()).map_err(|_| fault(CHOICES))?;
    }
    checkpoint.progress = Progress {
        done: counter(DONE, DType::U64)?.to_ints()[0] as u64,
        best_loss: counter(BEST_LOSS, DType::F64)?.to_f64()[0],
        stale: counter(STALE, DType::U64)?.to_ints()[0] as u64,
        loss: None,
    };
    Ok(checkpoint)
}
