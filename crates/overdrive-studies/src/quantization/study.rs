//! The study: every mode on three models that were trained on real data. They are judged on samples
//! that neither training nor calibration saw, each against the float model that it came from.

use super::figures::{Quantities, insert};
use super::judge::bound;
use super::metric::Metric;
use super::subject::{Judged, Subject};
use super::{Conditions, Estimate, Task, Timed, Trial, latency, outputs};
use crate::{Context, Entry, Study, Workload};
use overdrive_bench::case::Case;
use overdrive_bench::failure::Failure;
use overdrive_bench::measurement::Measurement;
use overdrive_bench::record::Record;
use overdrive_bench::results::{Note, Results};
use overdrive_bench::work::{Items, Work};
use overdrive_ir::{Graph, GraphError, Tensor};
use overdrive_passes::{MODES, QuantizationMode, bind};
use overdrive_train::data::{FOLDS, Subset};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The study.
pub(crate) struct Quantization;

/// Its name.
pub(super) const STUDY: &str = "quantization";

/// Models that learn from the data that comes with the program.
const MODELS: [&str; 3] = ["digits-mlp", "digits-conv", "text-transformer"];
/// Batches at which they are timed; quality and bytes stand beside the first, and a screening times
/// no other.
const BATCHES: [usize; 2] = [1, 32];
/// Samples in a batch that calibrates or judges.
const BATCH: usize = 32;
/// Batches that calibrate.
const CALIBRATION: usize = 4;
/// Modes that a screening has time for.
const QUICK: [&str; 11] = [
    "bf16",
    "int8-dynamic",
    "int8-static",
    "int8-weights",
    "fp8",
    "mxfp8",
    "int4-rtn",
    "int4-gptq",
    "int4-awq",
    "int4-hqq",
    "mxfp4",
];
/// Held-out windows of text that a screening has time for.
const QUICK_WINDOWS: u64 = 128;
/// Seeds of a full run, for each fold.
const SEEDS: u64 = 3;
/// Batches on which outputs are compared with the float model's.
const COMPARED: usize = 4;
/// The plain mode that better methods of four bits are compared with.
const NEAREST: &str = "int4-rtn";
/// Those methods.
const BETTER: [&str; 3] = ["int4-gptq", "int4-awq", "int4-hqq"];

impl Study for Quantization {
    fn name(&self) -> &'static str {
        STUDY
    }

    fn summary(&self) -> &'static str {
        "each quantization mode on trained models: accuracy or perplexity, what it lost, bytes, \
         latency"
    }

    fn quick_seconds(&self) -> u64 {
        45
    }

    fn run(&self, context: &Context<'_>, results: &mut Results) {
        for name in MODELS {
            context.journal.progress.workload(name);
            if let Err(failure) = model(context, results, name) {
                note(results, format!("{name}: {}", failure.reason));
            }
        }
    }
}

pub(super) fn note(results: &mut Results, text: String) {
    results.notes.push(Note { study: STUDY.to_owned(), text });
}

/// The modes that there is time for.
pub(super) fn modes(context: &Context<'_>) -> impl Iterator<Item = &'static QuantizationMode> {
    let is_quick = context.sampling.is_quick();
    MODES.iter().filter(move |mode| !is_quick || QUICK.contains(&mode.name))
}

/// The trained models that judge: that of the program, and in full every fold of the digits with
/// each seed.
fn trials(context: &Context<'_>, metric: Metric) -> Vec<Trial> {
    if context.sampling.is_quick() || metric == Metric::Perplexity {
        return vec![Trial::CARRIED];
    }
    let seeds = |fold| (1..=SEEDS).map(move |seed| Trial { fold, seed });
    (0..FOLDS).flat_map(seeds).collect()
}

fn model(context: &Context<'_>, results: &mut Results, name: &str) -> Result<(), Failure> {
    let model = overdrive_models::find(name).map_err(|e| Failure::failed(e.to_string()))?;
    let metric = if model.vocabulary.is_some() { Metric::Perplexity } else { Metric::Top1 };
    let modes = modes(context).map(Some);
    let mut subjects: Vec<Subject> = std::iter::once(None).chain(modes).map(Subject::new).collect();
    let batches = context.quick_or(&BATCHES[..1], &BATCHES[..]);
    let template = crate::Template::built_in(model).map_err(|e| Failure::failed(e.to_string()))?;
    let workloads =
        batches.iter().map(|&batch| template.bind(&[("batch".to_owned(), batch)].into()));
    let workloads =
        workloads.collect::<Result<Vec<_>, _>>().map_err(|e| Failure::failed(e.to_string()))?;
    let cases: Vec<Case> = workloads
        .iter()
        .flat_map(|w| subjects.iter().map(move |s| case(context, w, s.mode)))
        .collect();
    if !context.journal.wants(&cases) {
        return Ok(());
    }
    if let Some(records) = context.taken_earlier(&cases) {
        context.add(results, records);
        return Ok(());
    }
    let trials = trials(context, metric);
    let mut first = None;
    for (index, trial) in trials.iter().enumerate() {
        if let Some(reason) = context.sampling.over() {
            note(
                results,
                format!("{name}: {index} of {} trained models were judged: {reason}", trials.len()),
            );
            break;
        }
        let mut task = Task::trained(
            context.device().backend,
            model,
            *trial,
            [context.quick_or(2, CALIBRATION), BATCH],
        )?;
        if context.sampling.is_quick() {
            task.held_out = Arc::new(Subset::evenly(task.held_out, most(metric)));
        }
        judge(context, results, (metric, &task), &mut subjects)?;
        first.get_or_insert(task);
    }
    let Some(task) = first else { return Ok(()) };
    compare(context, &task, &mut subjects)?;
    for (index, workload) in workloads.iter().enumerate() {
        let exact =
            if index == 0 { quantities(results, (name, metric), &subjects)? } else { vec![] };
        let records = at_a_batch(context, (workload, &task), &subjects, exact)?;
        context.add(results, records);
    }
    Ok(())
}

/// Samples that a screening judges at most: all digits of a fold, some windows of text.
fn most(metric: Metric) -> u64 {
    if metric == Metric::Perplexity { QUICK_WINDOWS } else { u64::MAX }
}

/// The case of the float model, or of a mode of it.
pub(super) fn case(
    context: &Context<'_>,
    workload: &Workload,
    mode: Option<&QuantizationMode>,
) -> Case {
    let device = context.device();
    let fastest = device.backend.description().fastest_mode();
    let mut case = Entry::plain(workload, device, fastest).case(STUDY);
    case.configuration.variant = mode.map(|mode| mode.name.to_owned());
    case
}

/// Has every subject judge one more trained model: all of them, so that what is compared is of the
/// same models. A mode that fails is left out from here on.
fn judge(
    context: &Context<'_>,
    results: &mut Results,
    (metric, task): (Metric, &Task),
    subjects: &mut Vec<Subject>,
) -> Result<(), Failure> {
    let name = &task.template.name;
    let mut found: Vec<Judged> = Vec::new();
    let mut failed = BTreeSet::new();
    for (index, subject) in subjects.iter().enumerate() {
        match (subject.judge(context.device().backend, metric, task), subject.mode) {
            (Ok(judged), mode) => {
                for remark in judged.remarks.iter().filter(|_| subject.first.is_none()) {
                    let mode = mode.map_or("f32", |mode| mode.name);
                    note(results, format!("{name}, {mode}: `{}`: {}", remark.layer, remark.reason));
                }
                found.push(judged);
            }
            (Err(failure), Some(mode)) => {
                note(results, format!("{name}, {}: {}", mode.name, failure.reason));
                failed.insert(index);
            }
            (Err(failure), None) => return Err(failure),
        }
    }
    let mut index = 0;
    subjects.retain(|_| {
        index += 1;
        !failed.contains(&(index - 1))
    });
    subjects.iter_mut().zip(found).for_each(|(subject, judged)| subject.add(judged));
    Ok(())
}

/// Compares outputs with the float model's on some held-out samples.
fn compare(context: &Context<'_>, task: &Task, subjects: &mut [Subject]) -> Result<(), Failure> {
    let backend = context.device().backend;
    let batches = super::calibration(&task.held_out, BATCH, COMPARED)?;
    let float = outputs(backend, &bound(&task.template, &task.template.graph)?, &batches)?;
    let mut quantized = subjects.iter_mut().filter(|subject| subject.mode.is_some());
    quantized.try_for_each(|subject| subject.compare(backend, task, (&batches, &float)))
}

/// The exact quantities of each subject; for four bits, how much of the loss of rounding to nearest
/// a method made good.
fn quantities(
    results: &mut Results,
    (name, metric): (&str, Metric),
    subjects: &[Subject],
) -> Result<Vec<Quantities>, Failure> {
    let float = subjects.first().expect("the float model is judged first");
    let other = |subject: &Subject| subject.mode.map(|_| float);
    let all = subjects.iter().map(|subject| subject.quantities(metric, other(subject)));
    let mut all = all.collect::<Result<Vec<_>, _>>()?;
    let named = |name: &str| subjects.iter().find(|s| s.mode.is_some_and(|mode| mode.name == name));
    let Some(nearest) = named(NEAREST) else { return Ok(all) };
    let lost = metric.loss(&float.scores, &nearest.scores);
    if !lost.is_positive() {
        let Estimate { value, low, high } = lost;
        let unit = metric.unit_of_loss();
        note(
            results,
            format!(
                "{name}: {NEAREST} lost {value:.3} {unit} [{low:.3}, {high:.3}], which may be \
                 nothing: what {} make good is not judged",
                BETTER.join(", ")
            ),
        );
        return Ok(all);
    }
    for (subject, quantities) in subjects.iter().zip(&mut all) {
        if subject.mode.is_some_and(|mode| BETTER.contains(&mode.name)) {
            let own = metric.loss(&float.scores, &subject.scores).value;
            quantities.insert("recovered_percent".to_owned(), 100.0 * (1.0 - own / lost.value));
            insert(quantities, "recovered_percent.of", lost);
        }
    }
    Ok(all)
}

/// A record for each subject, all timed in one session at the batch of `workload`.
fn at_a_batch(
    context: &Context<'_>,
    (workload, task): (&Workload, &Task),
    subjects: &[Subject],
    exact: Vec<Quantities>,
) -> Result<Vec<Record>, Failure> {
    let sizes =
        workload.key.dimensions.iter().map(|(name, &size)| (name.clone(), size as usize)).collect();
    let bound = |subject: &Subject| Some((subject.mode, bind(subject.first.as_ref()?, &sizes)));
    let bound = subjects.iter().filter_map(bound).map(|(mode, graph)| Ok((mode, graph?)));
    let bound: Vec<Moded> =
        bound.collect::<Result<_, GraphError>>().map_err(|e| Failure::failed(e.to_string()))?;
    let batch = super::batch_of(&task.template).min(workload.key.dimensions["batch"] as usize);
    let draw = |seed: u64| {
        let from = seed % (task.held_out.len() / batch as u64).max(1) * batch as u64;
        let numbers: Vec<u64> = (from..from + batch as u64).collect();
        vec![task.held_out.batch(&numbers).expect("the samples were read before").x]
    };
    let mut done = workload.work();
    if task.template.vocabulary.is_some() && batch == 1 {
        // Decoding a window without a cache: a pass for each token.
        done.items = Some(Items { per_call: 1, name: "decoded tokens".to_owned() });
    }
    timed(context, (workload, done), (&bound, &draw), exact)
}

/// The float model or a mode of it, at the sizes at which it is timed.
pub(super) type Moded = (Option<&'static QuantizationMode>, Graph);

/// Inputs by seed.
pub(super) type Draw<'d> = dyn Fn(u64) -> Vec<Tensor> + 'd;

/// A record for each graph, the float model first, all timed in one session.
pub(super) fn timed(
    context: &Context<'_>,
    (workload, done): (&Workload, Work),
    (graphs, draw): (&[Moded], &Draw<'_>),
    exact: Vec<Quantities>,
) -> Result<Vec<Record>, Failure> {
    let conditions = Conditions {
        clock: context.sampling.clock,
        rules: context.sampling.rules.clone(),
        seed: context.sampling.seed,
        stop: &context.sampling.stop,
    };
    let bound: Vec<&Graph> = graphs.iter().map(|(_, graph)| graph).collect();
    let found = latency(context.device().backend, &bound, &mut [], draw, conditions)?;
    let baseline = case(context, workload, None).id();
    let mut exact = exact.into_iter();
    let record = |((mode, _), Timed { mut outcome, resident_bytes, .. }): (&Moded, Timed)| {
        if let Some(Measurement { quantities, work, .. }) = outcome.measurement_mut() {
            *quantities = exact.next().unwrap_or_default();
            quantities.insert("resident_bytes".to_owned(), resident_bytes as f64);
            *work = Some(done.clone());
        }
        Record {
            case: case(context, workload, *mode),
            baseline: mode.map(|_| baseline.clone()),
            seed: context.sampling.seed,
            command: context.journal.command_of(STUDY),
            outcome,
        }
    };
    Ok(graphs.iter().zip(found).map(record).collect())
}
