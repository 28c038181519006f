//! `overdrive quantize`: a smaller model, with what it costs and gains.
//!
//! What is judged is what was written: the folder is read back, and its outputs must be those of the graph in memory bit
//! for bit before a figure is printed.

mod samples;
mod tables;

use crate::cli::Quantize;
use crate::devices;
use crate::failure::Failure;
use crate::model;
use overdrive::bench::clock::SystemClock;
use overdrive::bench::exit::Exit;
use overdrive::bench::rules::Rules;
use overdrive::formats::{ModelConfig, ModelFolder};
use overdrive::ir::{Backend, Block, Graph, Tensor};
use overdrive::passes::{MODES, Quantization, QuantizationMode, Quantized, bind};
use overdrive::studies::Template;
use overdrive::studies::quantization::{Footprint, agreement, apply, latency, outputs};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

pub(crate) fn quantize(arguments: &Quantize) -> Result<Exit, Failure> {
    let mode = QuantizationMode::find(&arguments.mode).ok_or_else(|| {
        let known: Vec<&str> = MODES.iter().map(|mode| mode.name).collect();
        Failure::bad_input(format!("unknown mode `{}`: expected one of {}", arguments.mode, known.join(", ")))
    })?;
    let quantization = with_group(mode.quantization(), arguments.group);
    let template = model::load(&arguments.model)?.template()?;
    let workload = template.bind(&BTreeMap::new()).map_err(Failure::bad_input)?;
    let samples = samples::samples(arguments, &workload)?;
    let opened = devices::open(&arguments.machine)?;
    let backend = opened.backend.as_ref();
    let refused = |reason: overdrive::bench::outcome::Failure| Failure::bad_input(reason.reason);
    let made =
        apply(backend, &template, (mode.preparation, &quantization), &samples.seen).map_err(refused)?;
    for skipped in &made.skipped {
        println!("note: `{}` stays as it is: {}", skipped.layer, skipped.reason);
    }
    if made.layers.is_empty() {
        let text =
            format!("no layer of `{}` can take mode `{}`; nothing was written", arguments.model, mode.name);
        return Err(Failure::bad_input(text));
    }
    let graph = bind(&made.graph, &template.dimensions).map_err(Failure::harness)?;
    let run = |graph: &Graph| {
        outputs(backend, graph, &samples.held_out).map_err(|failure| Failure::harness(failure.reason))
    };
    let (float, found) = (run(&workload.graph)?, run(&graph)?);
    let agreement = agreement(&float, &found);
    if let Some(limit) = arguments.max_loss.filter(|limit| agreement.relative_error > *limit) {
        let error = agreement.relative_error;
        println!("outputs err by {error:.5} of their size, --max-loss allows {limit}: nothing was written");
        return Ok(Exit::WrongOutputs);
    }
    write(&arguments.output, &template, (mode, &quantization), &made)?;
    check_written(backend, (&arguments.output, &template), &samples.held_out, &found)?;
    let folder_bytes = folder_bytes(&arguments.output)?;
    println!("{}", tables::bytes(&template.graph, &Footprint::of(&made), folder_bytes));
    println!("{}", tables::likeness(&agreement, samples.source));
    let rules = match arguments.trials {
        Some(trials) => Rules::full().with_trials(5, trials as usize),
        None => Rules::full(),
    };
    let draw = |seed| workload.inputs(seed);
    let clock = SystemClock::new();
    let timed = latency(backend, &[&workload.graph, &graph], &draw, (&clock, rules, arguments.machine.seed));
    println!("{}", tables::times(&timed.map_err(Failure::harness)?));
    println!("`{}` is a model: bench, eval, profile and quantize take it", arguments.output.display());
    Ok(Exit::Fine)
}

/// The quantization with groups of another size, where it has groups.
fn with_group(mut quantization: Quantization, group: Option<u32>) -> Quantization {
    if let (Some(size), Block::Group(_)) = (group, quantization.scheme.weights.block) {
        quantization.scheme.weights.block = Block::Group(size as usize);
    }
    quantization
}

/// Writes the model with its recipe, whole or not at all.
fn write(
    folder: &Path,
    template: &Template,
    (mode, quantization): (&QuantizationMode, &Quantization),
    made: &Quantized,
) -> Result<(), Failure> {
    let skipped: BTreeMap<&str, &str> =
        made.skipped.iter().map(|skipped| (skipped.layer.as_str(), skipped.reason.as_str())).collect();
    let recipe = json!({ "mode": mode.name, "quantization": quantization, "skipped": skipped });
    let config = ModelConfig {
        name: template.name.clone(),
        dimensions: template.dimensions.clone(),
        vocabulary: template.vocabulary,
        recipe: BTreeMap::from([("quantization".to_owned(), recipe)]),
    };
    ModelFolder { config, graph: made.graph.clone() }.write(folder).map_err(Failure::bad_input)
}

/// Errs unless the folder, read back, gives these very outputs.
fn check_written(
    backend: &dyn Backend,
    (folder, template): (&Path, &Template),
    held_out: &[Vec<Tensor>],
    found: &[Vec<Tensor>],
) -> Result<(), Failure> {
    let written = ModelFolder::read(folder).map_err(Failure::harness)?;
    let graph = bind(&written.graph, &template.dimensions).map_err(Failure::harness)?;
    let again = outputs(backend, &graph, held_out).map_err(|failure| Failure::harness(failure.reason))?;
    let same = again.iter().flatten().zip(found.iter().flatten()).all(|(a, b)| a.bytes() == b.bytes());
    if same { Ok(()) } else { Err(Failure::harness("the model that was written gives other outputs")) }
}

/// Bytes of all files of a folder.
fn folder_bytes(folder: &Path) -> Result<u64, Failure> {
    let entries = std::fs::read_dir(folder).map_err(Failure::harness)?;
    entries
        .map(|entry| entry.and_then(|entry| entry.metadata()).map(|file| file.len()))
        .sum::<Result<u64, _>>()
        .map_err(Failure::harness)
}
