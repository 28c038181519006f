//! `overdrive bench` as a call.

use super::model::Model;
use crate::bench::clock::SystemClock;
use crate::bench::failure::Failure;
use crate::bench::results::Results;
use crate::bench::rules::Rules;
use crate::cpu::CpuBackend;
use crate::ir::{DType, Mode};
use crate::passes::{Recipe, precision};
use crate::studies::{
    Allowance, Context, Device, Entry, Journal, Parties, Probes, Sampling, measure,
};
use std::cell::RefCell;

/// A benchmark: everything is measured in one session, in alternation, and checked against the f64
/// reference.
pub struct Bench<'a> {
    model: &'a Model,
    modes: Vec<Mode>,
    precisions: Vec<DType>,
    rules: Rules,
    seed: u64,
}

impl Model {
    /// `overdrive bench`: every mode on this device, unless the answer is told otherwise.
    pub fn bench(&self) -> Bench<'_> {
        Bench::of(self)
    }
}

impl<'a> Bench<'a> {
    fn of(model: &'a Model) -> Self {
        let modes = vec![Mode::Eager, Mode::Jit, Mode::Compile];
        Self { model, modes, precisions: vec![DType::F32], rules: Rules::full(), seed: 1 }
    }

    /// In these modes.
    #[must_use]
    pub fn modes(self, modes: &[Mode]) -> Self {
        Self { modes: modes.to_vec(), ..self }
    }

    /// With contractions in these number formats.
    #[must_use]
    pub fn precisions(self, precisions: &[DType]) -> Self {
        Self { precisions: precisions.to_vec(), ..self }
    }

    /// With so many samples, instead of as many as the interval takes.
    #[must_use]
    pub fn trials(self, trials: usize) -> Self {
        let rules = self.rules.clone().with_trials(5, trials);
        Self { rules, ..self }
    }

    /// With this seed of inputs and of the order of cases.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Measures. A case that could not run is a record with its reason.
    ///
    /// # Errors
    /// When the model has no such sizes, or a number format does not fit it.
    pub fn run(self) -> Result<Results, Failure> {
        let workload = self.model.workload()?;
        let reference = CpuBackend::new(None).map_err(|e| Failure::failed(e.to_string()))?;
        let devices = [Device { backend: self.model.backend(), threads: self.model.threads }];
        let (clock, tuning, allowance) =
            (SystemClock::new(), RefCell::default(), Allowance::default());
        let context = Context {
            parties: Parties::alone(&devices),
            reference: &reference,
            tuning: &tuning,
            sampling: Sampling { seed: self.seed, ..Sampling::new(&clock, self.rules, &allowance) },
            probes: Probes::default(),
            journal: Journal::silent("overdrive::calls::Bench"),
        };
        let mut entries = Vec::new();
        for &dtype in &self.precisions {
            let graph = precision(&workload.graph, &Recipe { contractions: dtype });
            let graph = graph.map_err(|e| Failure::failed(e.to_string()))?;
            entries.extend(self.modes.iter().map(|&mode| {
                let graph = graph.clone();
                Entry { dtype, graph, ..Entry::plain(&workload, context.device(), mode) }
            }));
        }
        let mut results = Results::begin(context.journal.command.clone(), context.sampling.seed);
        results.records = measure(&context, "bench", &entries, &mut []);
        Ok(results)
    }
}
