//! `overdrive train --gate`: gates that choose tiles of attention, beside the weights as they were.

use super::failure::failure;
use super::learnt::TRAINING;
use super::task::TrainingRun;
use crate::asked_attention::{GATE, TrainedGate};
use crate::cli::Train;
use crate::devices;
use crate::failure::Failure;
use crate::invoked::command_line;
use crate::terminal::say;
use crate::training::Watch;
use overdrive::bench::exit::Exit;
use overdrive::files::Place;
use overdrive::train::distil_gate;
use overdrive_process::Stop;
use serde_json::json;

/// Trains them and fills the place of the folder.
pub(super) fn train(
    arguments: &Train,
    tile: usize,
    place: Place,
    stop: &Stop,
) -> Result<Exit, Failure> {
    if arguments.ranks.nproc.is_some() || arguments.ranks.mesh.is_some() {
        return Err(Failure::bad_input(format!(
            "--gate {tile}: expected one rank; leave out --nproc and --mesh"
        )));
    }
    let task = TrainingRun::open(arguments)?;
    let (recipe, texts) = (&task.recipe, &task.parts.train);
    let published = task.published.as_ref().expect("a gate is refused for other models");
    let opened = devices::open(&arguments.machine)?;
    let _whole = stop.heed();
    let mut watch = Watch::start((&opened, 1), recipe, 0, stop.clone());
    let learning = (opened.backend.as_ref(), &task.model);
    let states = distil_gate(learning, recipe, texts.as_ref(), &mut watch).map_err(failure)?;
    watch.finish();
    let Some(states) = states else {
        return Err(Failure::interrupted("the gates are not trained, and nothing is written"));
    };
    let told = json!({
        "command": command_line(), "data": arguments.data, "training": recipe,
        "tokenizer": arguments.tokenizer,
        "train_sha256": texts.hash().map_err(failure)?, "divergence_nats": watch.loss(),
    });
    place.fill(|folder| {
        published.write(folder).map_err(Failure::bad_input)?;
        // The gates have learnt from its ids, and who judges them reads a text too.
        if let (None, Some(file)) = (&published.tokenizer, &arguments.tokenizer) {
            std::fs::copy(file, folder.join("tokenizer.json")).map_err(Failure::harness)?;
        }
        TrainedGate { states, tile, model: published }.write(&folder.join(GATE))?;
        let text = serde_json::to_string_pretty(&told).expect("plain data") + "\n";
        std::fs::write(folder.join(TRAINING), text).map_err(Failure::harness)
    })?;
    let (loss, steps) = (watch.loss().unwrap_or(f64::NAN), recipe.steps);
    say!(
        "gates of tiles of {tile} after {steps} steps: {loss:.4} nats from the weight of tiles in \
         attention"
    )?;
    let out = arguments.out.display();
    say!("model: {out}")?;
    say!("judge it: overdrive generate {out} --judge TEXT --attention-gate 0.5")?;
    Ok(Exit::Fine)
}
