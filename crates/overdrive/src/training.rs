//! A training run as it is watched: a bar with loss and rate, and in the end a record.

use crate::devices::Opened;
use crate::progress::{Looks, seen};
use crate::terminal::note;
use indicatif::ProgressBar;
use overdrive::bench::case::{Case, Configuration, Workload};
use overdrive::bench::digits;
use overdrive::bench::outcome::Outcome;
use overdrive::bench::record::{Curve, Measurement, Record};
use overdrive::ir::backend::MemoryReport;
use overdrive::train::{Evaluation, Fitted, Observer, Recipe, StepReport};
use overdrive_process::Stop;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Instant;

/// Points of a loss curve that a record keeps at most.
const POINTS: u64 = 500;

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
    skipped: u64,
    seconds: f64,
    last: Option<StepReport>,
}

impl Watch {
    /// A run that goes on from step `done`. A log has a line of it every ten seconds.
    pub(crate) fn start(recipe: &Recipe, done: u64, stop: Stop) -> Self {
        let looks = Looks {
            on_terminal: "{elapsed_precise} {bar:30} {pos}/{len} {msg}, {eta} left",
            in_log: "{elapsed_precise} {pos}/{len} steps, {msg}, about {eta} left",
        };
        let bar = seen(ProgressBar::new(recipe.steps), &looks);
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
            skipped: 0,
            seconds: 0.0,
            last: None,
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(&mut self) {
        self.seconds = self.started.elapsed().as_secs_f64();
        self.bar.finish_and_clear();
    }

    fn samples_per_second(&self, done: u64, seconds: f64) -> f64 {
        ((done - self.first) as f64 * self.samples as f64) / seconds.max(1e-9)
    }
}

impl Observer for Watch {
    fn planned(&mut self, memory: &MemoryReport) {
        let states = digits::bytes(memory.state_bytes);
        let packed = match memory.persistent_bytes {
            0 => String::new(),
            count => format!(", {} of packed weights", digits::bytes(count)),
        };
        let transient = digits::bytes(memory.transient_bytes + memory.workspace_bytes);
        self.bar.suspend(|| {
            note!(
                "note: a step holds {states} of parameters and moments{packed}, and {transient} \
                 while it runs"
            );
        });
    }

    fn stepped(&mut self, report: &StepReport) -> ControlFlow<()> {
        let done = report.step + 1;
        if report.step.is_multiple_of(self.every) {
            self.losses.push((report.step as f64, report.loss));
        }
        self.skipped += u64::from(!report.applied);
        let rate = self.samples_per_second(done, self.started.elapsed().as_secs_f64());
        let tokens = report.positions as f64 * rate;
        let unit = if report.positions > 1 { "tokens" } else { "samples" };
        self.bar.set_message(format!("loss {:.4}, {tokens:.0} {unit}/s", report.loss));
        self.bar.set_position(done);
        self.last = Some(*report);
        if self.stop.is_requested() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn evaluated(&mut self, done: u64, evaluation: &Evaluation) {
        self.validation.push((done as f64, evaluation.loss()));
        let seconds = self.started.elapsed().as_secs_f64();
        let loss = evaluation.loss();
        // A line is for a log; the bar tells those who watch.
        self.bar.suspend(|| note!("step {done}: validation loss {loss:.4}, {seconds:.1} s"));
    }
}

/// The record of a finished run.
pub(crate) fn record(
    opened: &Opened,
    model: &str,
    recipe: &Recipe,
    (watch, fitted, test): (&Watch, &Fitted, &Evaluation),
) -> Record {
    let backend = opened.backend.as_ref();
    let case = Case {
        study: "train".to_owned(),
        workload: Workload::new(model, [("batch", recipe.batch as u64)]),
        configuration: Configuration {
            backend: backend.name().to_owned(),
            device: backend.caps().device.clone(),
            mode: "compile".to_owned(),
            dtype: recipe.precision.name().to_owned(),
            threads: opened.threads,
            variant: None,
        },
    };
    let done = fitted.progress.done;
    let positions = watch.last.map_or(1, |report| report.positions);
    let rate = watch.samples_per_second(done, watch.seconds) * positions as f64;
    let mut quantities = BTreeMap::from([
        ("steps".to_owned(), done as f64),
        ("skipped_steps".to_owned(), watch.skipped as f64),
        ("training_seconds".to_owned(), watch.seconds),
        ("validation_loss_nats".to_owned(), fitted.progress.best_loss),
        ("test_loss_nats".to_owned(), test.loss()),
        ("test_accuracy_percent".to_owned(), 100.0 * test.accuracy()),
    ]);
    let unit = if positions > 1 { "tokens_per_second" } else { "samples_per_second" };
    quantities.insert(unit.to_owned(), rate);
    if let Some(bits) = test.bits_per_byte() {
        quantities.insert("test_bits_per_byte".to_owned(), bits);
    }
    let curve = |quantity: &str, points: &[(f64, f64)]| Curve {
        quantity: quantity.to_owned(),
        over: "step".to_owned(),
        seed: Some(recipe.seed),
        points: points.to_vec(),
    };
    let curves = vec![
        curve("training_loss_nats", &watch.losses),
        curve("validation_loss_nats", &watch.validation),
    ];
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
