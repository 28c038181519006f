//! A training run as it is watched: a bar with loss and rate, and in the end a record.

#[cfg(test)]
mod tests;

use crate::devices::Opened;
use crate::left_in_float::by_reason;
use crate::limit;
use crate::progress::{Looks, left, seen};
use crate::terminal::note;
use indicatif::ProgressBar;
use overdrive::bench::case::{Case, Configuration, Workload};
use overdrive::bench::digits;
use overdrive::bench::measurement::{Curve, Measurement};
use overdrive::bench::outcome::Outcome;
use overdrive::bench::record::Record;
use overdrive::ir::backend::MemoryReport;
use overdrive::ir::{DType, Mesh, Mode, Plan};
use overdrive::passes::Skipped;
use overdrive::train::data::Target;
use overdrive::train::{
    Evaluation, Fitted, Moments, Observer, Optimizer, Parameters, Recipe, StepReport,
};
use overdrive_process::Stop;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Points of a loss curve that a record keeps at most.
const POINTS: u64 = 500;

/// How the bar looks. On a terminal it is one line, however narrow.
const LOOKS: Looks = Looks {
    on_terminal: "{elapsed_precise} {bar:10} {pos}/{len} {wide_msg}",
    in_log: "{elapsed_precise} {pos}/{len} steps, {msg}",
};

/// Shows a bar, keeps the curves, and ends the run when asked to.
pub(crate) struct Watch {
    bar: ProgressBar,
    started: Instant,
    first: u64,
    /// Samples of a step.
    samples: usize,
    every: u64,
    stop: Stop,
    losses: Vec<(f64, f64)>,
    validation: Vec<(f64, f64)>,
    /// Validation loss over nanoseconds since the start.
    over_time: Vec<(f64, f64)>,
    skipped: u64,
    seconds: f64,
    last: Option<StepReport>,
    ranks: usize,
    /// Bytes that a rank sends for each batch.
    sent_bytes: u64,
    /// How steps run.
    mode: Mode,
    /// FLOPs of an update.
    flops: u64,
    /// The format of contractions, and FLOPs in it that the devices do in a second at best. Shares
    /// are of this peak where layers are on codes too.
    precision: DType,
    peak: Option<f64>,
    pace: Pace,
}

/// How long steps take, without the first one, which prepares the device, and without looks at the
/// validation samples.
#[derive(Default)]
struct Pace {
    first: Option<Instant>,
    /// The end of the step before, where nothing but a step has begun since.
    since: Option<Instant>,
    taken: Duration,
    steps: u32,
}

impl Pace {
    fn stepped(&mut self, now: Instant) {
        if let Some(since) = self.since.replace(now) {
            self.taken += now - since;
            self.steps += 1;
        }
        self.first.get_or_insert(now);
    }

    /// Seconds of a step; `None` before two in a row.
    fn seconds(&self) -> Option<f64> {
        (self.steps > 0).then(|| self.taken.as_secs_f64() / f64::from(self.steps))
    }
}

impl Watch {
    /// A run of `ranks` ranks that continues from step `done`. In a log it prints a line every ten
    /// seconds.
    pub(crate) fn start(
        (opened, ranks): (&Opened, usize),
        recipe: &Recipe,
        done: u64,
        stop: Stop,
    ) -> Self {
        let device = opened.backend.description();
        let peak = device.peaks.flops_per_second.get(&recipe.precision);
        let bar = seen(ProgressBar::new(recipe.steps).with_message("preparing"), &LOOKS);
        bar.set_position(done);
        Self {
            bar,
            started: Instant::now(),
            first: done,
            samples: recipe.batch * recipe.accumulate,
            every: recipe.steps.div_ceil(POINTS),
            stop,
            losses: Vec::new(),
            validation: Vec::new(),
            over_time: Vec::new(),
            skipped: 0,
            seconds: 0.0,
            last: None,
            ranks,
            sent_bytes: 0,
            mode: device.fastest_mode(),
            flops: 0,
            precision: recipe.precision,
            peak: peak.map(|peak| peak * ranks as f64),
            pace: Pace::default(),
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&mut self) {
        self.seconds = self.started.elapsed().as_secs_f64();
        self.bar.finish_and_clear();
    }

    /// Samples, or tokens where a sample has several labels, that a second of stepping takes in.
    fn rate(&self) -> Option<(f64, &'static str)> {
        let positions = self.last.map_or(1, |report| report.positions);
        let unit = if positions > 1 { "tokens" } else { "samples" };
        let all = (self.samples * positions) as f64;
        self.pace.seconds().map(|seconds| (all / seconds, unit))
    }

    /// The loss of the last step.
    pub(crate) fn loss(&self) -> Option<f64> {
        self.last.map(|report| report.loss)
    }

    /// How fast it went; `None` for a run too short to tell.
    pub(crate) fn speed(&self) -> Option<String> {
        let (rate, unit) = self.rate()?;
        let share = self.told_share().map_or(String::new(), |share| format!(" ({share})"));
        let first = (self.pace.first? - self.started).as_secs_f64();
        Some(format!("{rate:.0} {unit}/s{share}, the first step done after {first:.1} s"))
    }

    /// The share of the peak, and which peak it is of.
    fn told_share(&self) -> Option<String> {
        let percent = 100.0 * self.share_of_peak()?;
        Some(format!("{percent:.0} % of the {} peak", self.precision))
    }

    /// Share of the device's peak that the FLOPs of the graph come to, 0 to 1.
    fn share_of_peak(&self) -> Option<f64> {
        Some(self.flops as f64 / self.pace.seconds()? / self.peak?)
    }

    fn or_stop(&self) -> ControlFlow<()> {
        if self.stop.is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Observer for Watch {
    fn seeks(&mut self, options: &str) -> ControlFlow<()> {
        self.bar.set_message(format!("it does not fit; planning it with {options}"));
        self.bar.tick();
        self.or_stop()
    }

    fn planned(&mut self, plan: &Plan, memory: &MemoryReport, flops: u64) {
        (self.flops, self.mode) = (flops, plan.mode);
        self.sent_bytes = plan.sent_bytes();
        let states = digits::bytes(memory.state_bytes);
        let packed = match memory.persistent_bytes {
            0 => String::new(),
            count => format!(", {} of packed weights", digits::bytes(count)),
        };
        let transient = digits::bytes(memory.transient_bytes + memory.workspace_bytes);
        let elsewhere = match memory.offloaded_bytes {
            0 => String::new(),
            bytes => format!(", {} in other memory", digits::bytes(bytes)),
        };
        self.bar.suspend(|| {
            note!(
                "note: a step holds {states} of parameters and moments{packed}{elsewhere}, and \
                 {transient} while it runs"
            );
            if let Some(told) = limit::told(plan) {
                note!("note: {told}");
            }
        });
    }

    fn left_in_float(&mut self, layers: &[Skipped]) {
        self.bar.suspend(|| by_reason(layers).iter().for_each(|line| note!("note: {line}")));
    }

    fn stepped(&mut self, report: &StepReport) -> ControlFlow<()> {
        let done = report.step + 1;
        if report.step.is_multiple_of(self.every) {
            self.losses.push((report.step as f64, report.loss));
        }
        self.skipped += u64::from(!report.applied);
        self.last = Some(*report);
        self.pace.stepped(Instant::now());
        let rate =
            self.rate().map_or(String::new(), |(rate, unit)| format!(", {rate:.0} {unit}/s"));
        let share = self.told_share().map_or(String::new(), |share| format!(", {share}"));
        let left = self.pace.first.map_or(String::new(), |first| {
            let after_first = self.bar.length().map(|all| all - self.first - 1);
            left(first.elapsed(), done - self.first - 1, after_first)
        });
        // A narrow terminal cuts off its end.
        self.bar.set_message(format!("loss {:.4}{left}{rate}{share}", report.loss));
        self.bar.set_position(done);
        self.or_stop()
    }

    fn diverges(&mut self, done: u64, diagnosis: &str) {
        self.pace.since = None;
        self.bar.suspend(|| note!("warning: step {done}: {diagnosis}"));
    }

    fn evaluated(&mut self, done: u64, evaluation: &Evaluation) {
        self.pace.since = None;
        self.validation.push((done as f64, evaluation.loss()));
        let seconds = self.started.elapsed().as_secs_f64();
        let (loss, samples) = (evaluation.loss(), evaluation.losses.len());
        self.over_time.push((1e9 * seconds, loss));
        // A line is for a log; the bar tells those who watch.
        self.bar.suspend(|| {
            note!("step {done}: validation loss {loss:.4} of {samples} samples, {seconds:.1} s");
        });
    }
}

/// How a run differs from a plain one: formats, update rule, compression, moments, parameters,
/// adapters, batches, ranks.
fn variant(recipe: &Recipe, mesh: Option<&Mesh>) -> Option<String> {
    let formats = recipe
        .float8
        .is_some()
        .then(|| recipe.formats().name().unwrap_or("fp8 by a recipe of the user").to_owned());
    let optimizer = match recipe.optimizer {
        Optimizer::Adamw { .. } => None,
        Optimizer::Sgd { .. } => Some("sgd".to_owned()),
        Optimizer::Muon { .. } => Some("muon".to_owned()),
    };
    let compression = recipe.compression.map(|scheme| format!("gradients {scheme}"));
    let moments = match recipe.moments {
        Moments::F32 => None,
        narrow => Some(format!("moments {narrow}")),
    };
    let parameters = match recipe.parameters {
        Parameters::F32 => None,
        kept => Some(format!("parameters {kept}")),
    };
    let lora = recipe.lora.map(|lora| format!("LoRA, rank {}", lora.rank));
    let batches = (recipe.accumulate > 1).then(|| format!("{} batches a step", recipe.accumulate));
    let mesh = mesh.map(|mesh| format!("ranks {mesh}"));
    let parts = [formats, optimizer, compression, moments, parameters, lora, batches, mesh];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The record of a finished run.
pub(crate) fn record(
    opened: &Opened,
    (model, recipe, mesh): (&str, &Recipe, Option<&Mesh>),
    (watch, fitted, test): (&Watch, &Fitted, &Evaluation),
) -> Record {
    let backend = opened.backend.as_ref();
    let case = Case {
        study: "train".to_owned(),
        workload: Workload::new(model, [("batch", recipe.batch as u64)]),
        configuration: Configuration {
            backend: backend.name().to_owned(),
            device: backend.description().device.clone(),
            mode: watch.mode.name().to_owned(),
            dtype: recipe.precision.name().to_owned(),
            threads: opened.threads,
            variant: variant(recipe, mesh),
        },
    };
    let done = fitted.progress.done;
    let mut quantities = BTreeMap::from([
        ("steps".to_owned(), done as f64),
        ("skipped_steps".to_owned(), watch.skipped as f64),
        ("training_seconds".to_owned(), watch.seconds),
    ]);
    let loss = match test.target() {
        Target::Classes => "loss_nats",
        Target::Quantity => "mean_squared_error",
    };
    let validation = fitted.validation_loss;
    quantities.extend(validation.map(|found| (format!("validation_{loss}"), found)));
    if watch.first > 0 {
        // Its seconds and curves, and steps that it skipped, are those of this process.
        quantities.insert("resumed_from_step".to_owned(), watch.first as f64);
    }
    if watch.ranks > 1 {
        quantities.insert("ranks".to_owned(), watch.ranks as f64);
        quantities.insert("sent_bytes_per_batch".to_owned(), watch.sent_bytes as f64);
    }
    quantities.insert(format!("test_{loss}"), test.loss());
    match test.target() {
        Target::Classes => {
            quantities.insert("test_accuracy_percent".to_owned(), 100.0 * test.accuracy());
        }
        Target::Quantity => {
            let explained = test.explained().map(|share| ("test_r_squared".to_owned(), share));
            quantities.extend(explained);
        }
    }
    if let Some((rate, unit)) = watch.rate() {
        quantities.insert(format!("{unit}_per_second"), rate);
    }
    if let Some(share) = watch.share_of_peak() {
        let name = format!("share_of_{}_peak_percent", watch.precision);
        quantities.insert(name, 100.0 * share);
    }
    if let Some(first) = watch.pace.first {
        let seconds = (first - watch.started).as_secs_f64();
        quantities.insert("seconds_to_first_step".to_owned(), seconds);
    }
    if let Some(bits) = test.bits_per_byte() {
        quantities.insert("test_bits_per_byte".to_owned(), bits);
    }
    let curve = |part: &str, over: &str, points: &[(f64, f64)]| Curve {
        quantity: format!("{part}_{loss}"),
        over: over.to_owned(),
        seed: Some(recipe.seed),
        points: points.to_vec(),
    };
    let mut curves = vec![
        curve("training", "step", &watch.losses),
        curve("validation", "step", &watch.validation),
    ];
    // Nobody kept the time of the steps before a resumed run.
    if watch.first == 0 {
        curves.push(curve("validation", "time_ns", &watch.over_time));
    }
    let measurement = Measurement { quantities, curves, ..Measurement::default() };
    let command = crate::invoked::command_line();
    Record {
        case,
        baseline: None,
        seed: recipe.seed,
        command,
        outcome: Outcome::Ok(Box::new(measurement)),
    }
}
