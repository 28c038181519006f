//! A file of parts of states, which one rank writes. It is safetensors. The metadata say how the
//! parts lie in their wholes, on which mesh, and of which run they are.

use super::region::Region;
use super::saved::{Piece, SavedState};
use super::{BEST, Checkpoint, DAMAGED, Progress, STATE};
use crate::{Recipe, TrainError};
use overdrive_files::Checksum;
use overdrive_formats::{Tensors, safetensors};
use overdrive_ir::{Choice, Mesh, Tensor};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Names of the metadata.
const RUN: &str = "run";
const MESH: &str = "mesh";
const PARTS: &str = "parts";

/// Sizes of the whole state, and where the part starts in it, by name of the part.
type Places = BTreeMap<String, (Vec<usize>, Vec<usize>)>;

/// The run that a file is of: the same in all files of a checkpoint.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct RunFacts {
    done: u64,
    /// Bits of a loss, which may be infinite.
    best_loss: u64,
    stale: u64,
    /// Bits of a loss; earlier versions kept none.
    #[serde(default)]
    loss: Option<u64>,
    recipe: Recipe,
    data: String,
    choices: BTreeMap<String, Choice>,
}

impl RunFacts {
    pub(crate) fn of(
        progress: Progress,
        (recipe, data): (&Recipe, &str),
        choices: &BTreeMap<String, Choice>,
    ) -> Self {
        let Progress { done, best_loss, stale, loss } = progress;
        let (best_loss, loss) = (best_loss.to_bits(), loss.map(f64::to_bits));
        let (recipe, data, choices) = (recipe.clone(), data.to_owned(), choices.clone());
        Self { done, best_loss, stale, loss, recipe, data, choices }
    }

    pub(super) fn checkpoint(self) -> Checkpoint {
        let (best_loss, loss) = (f64::from_bits(self.best_loss), self.loss.map(f64::from_bits));
        Checkpoint {
            progress: Progress { done: self.done, best_loss, stale: self.stale, loss },
            recipe: self.recipe,
            data: self.data,
            choices: self.choices,
            ..Checkpoint::default()
        }
    }
}

/// A part of a state.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct StatePart {
    /// Sizes of the whole.
    pub(crate) whole: Vec<usize>,
    /// The first element of the part in each dimension.
    pub(crate) start: Vec<usize>,
    pub(crate) tensor: Tensor,
}

/// Parts of a rank by name.
pub(crate) type StateParts = BTreeMap<String, StatePart>;

/// All that one rank writes.
pub(crate) struct PartFile {
    pub(crate) run: RunFacts,
    pub(crate) mesh: Mesh,
    pub(crate) state: StateParts,
    pub(crate) best: StateParts,
}

impl PartFile {
    /// Writes it and returns the checksum of the file.
    pub(super) fn write(self, path: &Path) -> Result<Checksum, TrainError> {
        let plain = "facts of a run are plain data";
        let (mut tensors, mut parts) = (Tensors::new(), Places::new());
        for (prefix, of) in [(STATE, self.state), (BEST, self.best)] {
            for (name, part) in of {
                let name = format!("{prefix}{name}");
                parts.insert(name.clone(), (part.whole, part.start));
                tensors.insert(name, part.tensor);
            }
        }
        let metadata = [
            (RUN, serde_json::to_string(&self.run).expect(plain)),
            (MESH, self.mesh.to_string()),
            (PARTS, serde_json::to_string(&parts).expect(plain)),
        ];
        let metadata = metadata.map(|(name, text)| (name.to_owned(), text)).into();
        safetensors::write_described(path, &tensors, metadata)?;
        Ok(Checksum::of_file(path)?)
    }
}

/// Adds the parts of a file to a checkpoint, and returns the run that they are of.
pub(super) fn read(path: &Path, into: &mut Checkpoint) -> Result<RunFacts, TrainError> {
    let file = Arc::new(safetensors::OpenedSafetensors::open(path)?);
    let fault = |expected: &str, found: &dyn std::fmt::Display| {
        TrainError::invalid(path.display(), expected, found, DAMAGED)
    };
    let fact = |name: &str| {
        let text = file.metadata().get(name).map(String::as_str);
        text.ok_or_else(|| fault(&format!("`{name}` of a checkpoint in the metadata"), &"none"))
    };
    let wrong =
        |error: serde_json::Error| fault("the facts of a checkpoint in the metadata", &error);
    let run: RunFacts = serde_json::from_str(fact(RUN)?).map_err(wrong)?;
    let parts: Places = serde_json::from_str(fact(PARTS)?).map_err(wrong)?;
    for (name, ty) in file.types() {
        let Some((whole, start)) = parts.get(name).cloned() else {
            return Err(fault(&format!("the place of `{name}` in the metadata"), &"none"));
        };
        let (states, short) = match (name.strip_prefix(STATE), name.strip_prefix(BEST)) {
            (Some(short), _) => (&mut into.state, short),
            (_, Some(short)) => (&mut into.best, short),
            _ => return Err(fault("states and best parameters", &format!("`{name}`"))),
        };
        let region = Region { start, sizes: ty.sizes() };
        let whole_type = ty.with_shape(whole.clone());
        if !region.is_in(&whole) {
            let found = format!("{:?} from {:?} on", region.sizes, region.start);
            return Err(fault(&format!("a part of `{name}` {whole_type}"), &found));
        }
        let saved = states.entry(short.to_owned());
        let saved = saved.or_insert_with(|| SavedState::new(whole_type.clone()));
        if *saved.ty() != whole_type {
            let found = format!("a part of `{name}` {whole_type}");
            return Err(fault(&format!("a part of `{name}` {}", saved.ty()), &found));
        }
        saved.push(Piece { file: Arc::clone(&file), name: name.to_owned(), region });
    }
    Ok(run)
}

/// Errs unless two files are of one run at the same step.
pub(super) fn check_same(
    (path, found): (&Path, &RunFacts),
    (first, expected): (&Path, &RunFacts),
) -> Result<(), TrainError> {
    if found == expected {
        return Ok(());
    }
    let of = |run: &RunFacts| format!("a part of a checkpoint after step {}", run.done);
    let expected_done = expected.done;
    let expected = format!("{}, as {} is", of(expected), first.display());
    let other = if found.done == expected_done { " of another run" } else { "" };
    let found = format!("{}{other}", of(found));
    Err(TrainError::invalid(path.display(), expected, found, DAMAGED))
}
