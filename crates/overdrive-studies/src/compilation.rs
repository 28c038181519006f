//! What planning and fusing gain: every built-in model in every mode that the device has.

use crate::{Context, Entry, Study, Workload, measure};
use overdrive_bench::outcome::{Failure, Outcome};
use overdrive_bench::record::Record;
use overdrive_bench::results::{Note, Results};
use overdrive_ir::Mode;
use std::collections::BTreeMap;

/// The study.
pub(crate) struct Compilation;

/// Modes of a host device; capture and replay needs a device with graphs of its own.
const MODES: [Mode; 3] = [Mode::Eager, Mode::Jit, Mode::Compile];

/// A model whose calls would take longer than this in all is skipped, with the estimate as the reason.
const SECONDS_PER_MODEL: [f64; 2] = [30.0, 600.0];

/// FLOP/s a thread for that estimate; a low guess, so that what is skipped really would not fit.
const ASSUMED_FLOPS_PER_THREAD: f64 = 80e9;

impl Study for Compilation {
    fn name(&self) -> &'static str {
        "compilation"
    }

    fn summary(&self) -> &'static str {
        "each built-in model in each execution mode: latency, throughput, memory, overheads"
    }

    fn quick_seconds(&self) -> u64 {
        60
    }

    fn run(&self, context: &Context<'_>, results: &mut Results) {
        let text = "mode `graph` replays a captured device graph; this device has none".to_owned();
        results.notes.push(Note { study: self.name().to_owned(), text });
        let [quick, full] = SECONDS_PER_MODEL;
        let limit_s = context.quick_or(quick, full);
        let device = context.device();
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
        // The cheapest first, so that a limit on time leaves out as few models as it can.
        workloads.sort_by_key(|workload| workload.graph.cost().flops);
        for workload in &workloads {
            context.progress.workload(&workload.key.name);
            let entries: Vec<Entry<'_>> = MODES.map(|mode| Entry::plain(workload, device, mode)).into();
            // First call, warm-up, samples and checks of every mode, and the f64 reference at about a sixth of the speed.
            let calls = MODES.len() as f64 * (10.0 + context.quick_or(20.0, 40.0)) + 6.0;
            let rate = ASSUMED_FLOPS_PER_THREAD * f64::from(device.threads);
            let seconds = workload.graph.cost().flops as f64 * calls / rate;
            let too_long = || {
                let depth = context.quick_or(" with --quick", "");
                format!(
                    "an estimated {seconds:.0} s for {calls:.0} calls, the limit is {limit_s:.0} s a model{depth}"
                )
            };
            if let Some(reason) = context.over().or_else(|| (seconds > limit_s).then(too_long)) {
                let skipped = |entry: &Entry<'_>| Record {
                    case: entry.case(self.name()),
                    baseline: None,
                    seed: context.seed,
                    command: format!("{} {}", context.command, self.name()),
                    outcome: Outcome::Failure(Failure::skipped(reason.clone())),
                };
                context.add(results, entries.iter().map(skipped).collect());
                continue;
            }
            context.add(results, measure(context, self.name(), &entries, &mut []));
        }
    }
}
