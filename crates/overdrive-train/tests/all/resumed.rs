//! Runs that go on: whole, or interrupted and continued from a checkpoint.

use crate::training::StopAfter;
use overdrive_cpu::CpuBackend;
use overdrive_ir::Graph;
use overdrive_train::data::{Dataset, digits};
use overdrive_train::{Checkpoint, Ending, Fit, Fitted, Recipe, fit};

/// A run on fold 0 of the digits.
pub(crate) fn whole(model: &Graph, recipe: &Recipe) -> Fitted {
    fitted(model, recipe, None)
}

/// The same, interrupted after seven steps and continued. The checkpoint meanwhile must be `held`.
pub(crate) fn resumed(model: &Graph, recipe: &Recipe, held: impl Fn(&Checkpoint)) -> Fitted {
    fitted(model, recipe, Some(&held))
}

fn fitted(model: &Graph, recipe: &Recipe, held: Option<&dyn Fn(&Checkpoint)>) -> Fitted {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checkpoint");
    let backend = CpuBackend::new(Some(1)).unwrap();
    let parts = Dataset::Samples(digits()).parts(model, 0).unwrap();
    let run = Fit { checkpoint: Some(&file), ..Fit::anew((&backend, model), recipe, &parts) };
    let Some(held) = held else { return fit(&run, &mut ()).unwrap() };
    assert_eq!(fit(&run, &mut StopAfter(7)).unwrap().ending, Ending::Interrupted);
    let checkpoint = Checkpoint::read(&file).unwrap();
    held(&checkpoint);
    fit(&Fit { resume: Some(&checkpoint), ..run }, &mut ()).unwrap()
}
