//! The gains of planning and fusing. Every built-in model and published architecture runs in every
//! mode that the device has, and in every engine that was found for it.

use crate::published;
use crate::{Context, Device, Entry, Study, Workload, measure};
use overdrive_bench::failure::Failure;
use overdrive_bench::outcome::Outcome;
use overdrive_bench::record::Record;
use overdrive_bench::results::{Note, Results};
use overdrive_ir::{DType, GraphError, Mode};
use overdrive_passes::{Recipe, precision};
use std::collections::BTreeMap;

/// The study.
pub(crate) struct Compilation;

/// Modes of a host device; capture and replay needs a device with graphs of its own.
const HOST_MODES: &[Mode] = &[Mode::Eager, Mode::Jit, Mode::Compile];

/// A model whose calls would take longer than this in all is skipped, with the estimate as the
/// reason.
const SECONDS_PER_MODEL: [f64; 2] = [30.0, 600.0];

/// FLOP/s a thread for that estimate; a low guess, so that what is skipped really would not fit.
const ASSUMED_FLOPS_PER_THREAD: f64 = 80e9;

/// The same for a whole accelerator: its slowest format, and the reference on the host's processor.
const ASSUMED_FLOPS_OF_ACCELERATOR: f64 = 2e12;

impl Study for Compilation {
    fn name(&self) -> &'static str {
        "compilation"
    }

    fn summary(&self) -> &'static str {
        "each model in each execution mode, and in every engine found: latency, throughput, \
         memory, overheads"
    }

    fn quick_seconds(&self) -> u64 {
        60
    }

    fn run(&self, context: &Context<'_>, results: &mut Results) {
        let mut workloads = Vec::new();
        for model in overdrive_models::MODELS {
            match Workload::of_model(model, &BTreeMap::new()) {
                Ok(workload) => workloads.push(workload),
                Err(error) => {
                    let text = format!("{}: {error}", model.name);
                    results.notes.push(Note { study: self.name().to_owned(), text });
                }
            }
        }
        match published::workloads() {
            Ok(published) => workloads.extend(published),
            Err(error) => {
                results.notes.push(Note { study: self.name().to_owned(), text: error.to_string() })
            }
        }
        // The cheapest first, so that a limit on time leaves out as few models as it can.
        workloads.sort_by_key(|workload| workload.graph.cost().flops);
        compilation(context, results, &workloads);
    }
}

/// Measures each workload in every mode and number format that the device has, and in every engine.
pub fn compilation(context: &Context<'_>, results: &mut Results, workloads: &[Workload]) {
    let study = Compilation.name();
    let device = context.device();
    let [quick, full] = SECONDS_PER_MODEL;
    let limit_s = if context.is_brief() { quick } else { full };
    let (modes, dtypes) = if device.is_accelerator() {
        (&Mode::ALL[..], &[DType::F32, DType::BF16][..])
    } else {
        let text = "mode `graph` replays a captured device graph; this device has none".to_owned();
        results.notes.push(Note { study: study.to_owned(), text });
        (HOST_MODES, &[DType::F32][..])
    };
    for workload in workloads {
        context.journal.progress.workload(&workload.key.name);
        let entries = match entries(workload, device, (modes, dtypes)) {
            Ok(mut entries) => {
                let engines = context.parties.engines.iter();
                entries.extend(engines.map(|engine| Entry::plain(workload, engine, Mode::Compile)));
                entries
            }
            Err(error) => {
                let text = format!("{}: {error}", workload.key.name);
                results.notes.push(Note { study: study.to_owned(), text });
                continue;
            }
        };
        let cases: Vec<_> = entries.iter().map(|entry| entry.case(study)).collect();
        if !context.journal.wants(&cases) {
            continue;
        }
        // First call, warm-up, samples and checks of every mode, and the f64 reference at about a
        // sixth of the speed.
        let calls = entries.len() as f64 * (10.0 + context.quick_or(20.0, 40.0)) + 6.0;
        let threads = ASSUMED_FLOPS_PER_THREAD * f64::from(device.threads);
        let rate = if device.is_accelerator() { ASSUMED_FLOPS_OF_ACCELERATOR } else { threads };
        let seconds = workload.graph.cost().flops as f64 * calls / rate;
        let too_long = || {
            let depth = if context.is_brief() { " with --quick" } else { "" };
            format!(
                "an estimated {seconds:.0} s for {calls:.0} calls, the limit is {limit_s:.0} s a \
                 model{depth}"
            )
        };
        if let Some(reason) = context.sampling.over().or_else(|| (seconds > limit_s).then(too_long))
        {
            let skipped = |entry: &Entry<'_>| Record {
                case: entry.case(study),
                baseline: None,
                seed: context.sampling.seed,
                command: context.journal.command_of(study),
                outcome: Outcome::Failure(Failure::skipped(reason.clone())),
            };
            context.add(results, entries.iter().map(skipped).collect());
            continue;
        }
        context.add(results, measure(context, study, &entries, &mut []));
    }
}

/// The workload in every format and mode; the first is the baseline.
fn entries<'a>(
    workload: &'a Workload,
    device: &'a Device<'a>,
    (modes, dtypes): (&[Mode], &[DType]),
) -> Result<Vec<Entry<'a>>, GraphError> {
    let mut entries = Vec::new();
    for &dtype in dtypes {
        let graph = precision(&workload.graph, &Recipe { contractions: dtype })?;
        let entry =
            |mode| Entry { dtype, graph: graph.clone(), ..Entry::plain(workload, device, mode) };
        entries.extend(modes.iter().map(|&mode| entry(mode)));
    }
    Ok(entries)
}
