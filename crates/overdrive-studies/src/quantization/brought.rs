//! The study of one model that a user brought: every mode that fits, beside the float model.
//!
//! Three things are given: how the model is made smaller, what judges it, and what it reads. A
//! folder, a file and a built-in model thus go one way. Invariant: all modes are timed in one
//! session with the float model, and each is judged on samples that calibration did not see.

use super::figures::{self, Quantities};
use super::judge::bound;
use super::study::{case, modes, note, timed};
use super::{Footprint, Judge, Scores, agreement, outputs};
use crate::{Context, Workload};
use overdrive_bench::failure::Failure;
use overdrive_bench::outcome::Outcome;
use overdrive_bench::record::Record;
use overdrive_bench::results::Results;
use overdrive_formats::states_file_bytes;
use overdrive_ir::{Graph, Tensor};
use overdrive_passes::{QuantizationMode, Quantized};

/// Makes a model in a mode.
pub type Make<'m> = dyn Fn(&QuantizationMode) -> Result<Quantized, Failure> + 'm;

/// A model with what its modes need.
pub struct Brought<'a> {
    /// The timed workload; its graph is the float model's.
    pub workload: &'a Workload,
    /// The judge, on held-out samples.
    pub judge: &'a Judge<'a>,
    /// Held-out batches on which outputs are compared.
    pub compared: &'a [Vec<Tensor>],
    /// Inputs of timed calls by seed.
    pub draw: &'a dyn Fn(u64) -> Vec<Tensor>,
    /// The model in a mode.
    pub make: &'a Make<'a>,
}

/// The float model, or what a mode made of it.
struct Made {
    mode: Option<&'static QuantizationMode>,
    graph: Graph,
    quantities: Quantities,
}

/// Measures every mode that needs no training. A mode that does not fit is a note with the reason.
/// A mode that there was no time for is a record.
///
/// # Errors
/// When the float model itself cannot be run.
pub fn brought(
    context: &Context<'_>,
    results: &mut Results,
    model: &Brought<'_>,
) -> Result<(), Failure> {
    let modes: Vec<&'static QuantizationMode> =
        modes(context).filter(|mode| !mode.is_trained()).collect();
    let name = model.workload.key.name.clone();
    let cases: Vec<_> = std::iter::once(None)
        .chain(modes.iter().copied().map(Some))
        .map(|mode| case(context, model.workload, mode))
        .collect();
    if !context.journal.wants(&cases) {
        return Ok(());
    }
    if let Some(records) = context.taken_earlier(&cases) {
        context.add(results, records);
        return Ok(());
    }
    let backend = context.device().backend;
    let template = model.judge.template;
    let float = outputs(backend, &bound(template, &template.graph)?, model.compared)?;
    let given = model.judge.scores(&template.graph)?;
    let mut all = vec![made(
        model,
        (None, &template.graph),
        &Footprint::float(&template.graph),
        (&given, None),
    )?];
    let mut left_out: Vec<Record> = Vec::new();
    for mode in modes {
        if let Some(reason) = context.sampling.over() {
            let case = case(context, model.workload, Some(mode));
            let (seed, command) = (context.sampling.seed, context.journal.command_of(&case.study));
            let outcome = Outcome::Failure(Failure::skipped(reason));
            left_out.push(Record { case, baseline: None, seed, command, outcome });
            continue;
        }
        context.journal.progress.workload(&format!("{name}, {}", mode.name));
        let attempt = || -> Result<Made, Failure> {
            let Quantized { graph, layers, skipped, simplified } = (model.make)(mode)?;
            if layers.is_empty() {
                return Err(Failure::unsupported("no layer of the model can take it"));
            }
            let quantized = Quantized { graph, layers, skipped, simplified };
            let scores = model.judge.scores(&quantized.graph)?;
            let scores = (&scores, Some(&given));
            let mut made =
                made(model, (Some(mode), &quantized.graph), &Footprint::of(&quantized), scores)?;
            let found = outputs(backend, &made.graph, model.compared)?;
            figures::likeness(&mut made.quantities, &agreement(&float, &found));
            Ok(made)
        };
        match attempt() {
            Ok(made) => all.push(made),
            Err(failure) => note(results, format!("{name}, {}: {}", mode.name, failure.reason)),
        }
    }
    let (graphs, exact): (Vec<_>, Vec<_>) =
        all.into_iter().map(|made| ((made.mode, made.graph), made.quantities)).unzip();
    let work = model.workload.work();
    let mut records = timed(context, (model.workload, work), (&graphs, model.draw), exact)?;
    records.extend(left_out);
    context.add(results, records);
    Ok(())
}

/// A graph at the model's sizes, and all that is exact about it but its likeness.
fn made(
    model: &Brought<'_>,
    (mode, graph): (Option<&'static QuantizationMode>, &Graph),
    footprint: &Footprint,
    (found, float): (&Scores, Option<&Scores>),
) -> Result<Made, Failure> {
    let mut quantities = Quantities::new();
    let file_bytes = states_file_bytes(graph).map_err(|e| Failure::failed(e.to_string()))?;
    figures::bytes(&mut quantities, file_bytes, footprint);
    let (found, float) = (std::slice::from_ref(found), float.map(std::slice::from_ref));
    figures::quality(&mut quantities, model.judge.metric, found, float);
    Ok(Made { mode, graph: bound(model.judge.template, graph)?, quantities })
}
