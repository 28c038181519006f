//! The chosen quantization, and helpers for every way to choose one.

use crate::cli::Quantize;
use crate::failure::Failure;
use crate::progress;
use overdrive::bench::rules::Rules;
use overdrive::ir::{Backend, Graph, Tensor};
use overdrive::passes::{Quantization, Quantized};
use overdrive::studies::quantization::outputs_told;

/// A mode, or a mix of modes, with the model that it made.
#[derive(Clone)]
pub(in crate::commands) struct Chosen {
    pub(in crate::commands) name: String,
    pub(in crate::commands) quantization: Quantization,
    pub(in crate::commands) made: Quantized,
    /// For a mode that learns: the float model after as many steps on the same samples.
    pub(in crate::commands) trained_as_long: Option<Graph>,
}

/// How long to sample latencies.
pub(super) fn rules(arguments: &Quantize) -> Rules {
    match arguments.trials {
        Some(trials) => Rules::full().with_trials(5, trials as usize),
        None => Rules::full(),
    }
}

/// The refusal of a study, as bad input.
pub(super) fn refused(reason: overdrive::bench::failure::Failure) -> Failure {
    Failure::bad_input(reason.reason)
}

/// The failure of a study, as a fault of ours.
pub(super) fn harness(reason: overdrive::bench::failure::Failure) -> Failure {
    Failure::harness(reason.reason)
}

/// The outputs of a model on held-out batches, with how far that is.
pub(in crate::commands) fn compared(
    backend: &dyn Backend,
    (name, graph): (&str, &Graph),
    batches: &[Vec<Tensor>],
) -> Result<Vec<Vec<Tensor>>, Failure> {
    progress::over(&format!("outputs of the {name} model"), |done| {
        outputs_told(backend, graph, batches, done)
    })
    .map_err(harness)
}
