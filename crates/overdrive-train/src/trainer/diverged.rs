//! A trainer whose run has diverged: what is not finite, or what has grown.
//!
//! The step has given back the memory of its calls meanwhile, so that both find room beside states.

use super::{Initial, Trainer};
use crate::TrainError;
use crate::compiled::Compiled;
use crate::data::Batch;
use crate::diagnose::{self, NotFinite};
use crate::growth::Growth;
use crate::held::by_name;
use crate::kept::begins_as;
use crate::ranks::Ranks;
use overdrive_ir::{BackendError, Graph, StateDecl, Tensor, Tuning};
use overdrive_passes::draw;

/// Begins the names of delayed scales of fp8.
const SCALES: &str = "float8.";

impl Trainer<'_> {
    /// The origin of a loss or gradients that are not finite, in words. `last` are the inputs of
    /// the step. Nothing has changed since but sums of gradients, which are zero as before, and
    /// delayed scales of fp8, which have seen this batch.
    pub(super) fn first_not_finite(
        &mut self,
        earlier: &[Batch],
        last: &[(&str, &Tensor)],
    ) -> Result<String, TrainError> {
        self.step.rest();
        let (backend, ranks, count) = (self.backend, self.ranks, earlier.len() + 1);
        let Self { held, state, accumulate, step, .. } = self;
        if let Some(accumulate) = accumulate {
            accumulate.rest();
            for (number, batch) in earlier.iter().enumerate() {
                let graph = accumulate.graph();
                let given = held.given((batch, 0, 1), (graph, ranks.rank()));
                let own = diagnose::first(backend, (graph, true), state, &by_name(&given));
                if let Some(origin) = of_all(ranks, own, (number + 1, count))? {
                    return Ok(origin);
                }
            }
        }
        let own = diagnose::first(backend, (step.graph(), false), state, last);
        let origin = of_all(ranks, own, (count, count))?;
        Ok(origin.unwrap_or_else(|| {
            "the loss or a gradient is not finite, though no value is when ops run one by one"
                .to_owned()
        }))
    }

    /// The growth since the start of a run whose loss has risen, in words. `model` is the graph
    /// that was given for the step, and `batches` are those of the next one. All ranks call this at
    /// the same time.
    ///
    /// # Errors
    /// When the device cannot run it, or another rank has failed.
    pub(crate) fn growth(
        &mut self,
        (model, initial): (&Graph, &Initial<'_>),
        batches: &[Batch],
    ) -> Result<String, TrainError> {
        if self.held.stages().is_some() {
            return Ok(String::new());
        }
        let growth = Growth::of(model, &self.recipe)?;
        let (graph, _) = self.ranks.graph(growth.graph.clone(), None, Some(&self.held))?;
        let is_moved =
            |state: &&StateDecl| self.names.contains(&state.name) || state.name.starts_with(SCALES);
        let moved: Vec<StateDecl> = graph.states().iter().filter(is_moved).cloned().collect();
        self.step.rest();
        self.accumulate.iter_mut().for_each(Compiled::rest);
        let given =
            self.held.given((&batches[batches.len() - 1], 0, 1), (&graph, self.ranks.rank()));
        let compiled = Compiled::new(self.backend, graph, &Tuning::default());
        let mut compiled = match compiled {
            Err(BackendError::OutOfMemory { .. }) => return Ok(String::new()),
            other => other?,
        };
        let numbers = |outputs: Vec<Tensor>| outputs.iter().map(|x| x.to_f64()[0]).collect();
        let now: Vec<f64> =
            numbers(compiled.run(self.backend, &mut self.state, &by_name(&given))?);
        let names: Vec<String> = moved.iter().map(|state| state.name.clone()).collect();
        let kept = self.own(&names)?;
        for state in &moved {
            let ty = &self.state.buffers[&state.name].ty;
            let whole = self.held.whole_type(&state.name, ty);
            let init = initial(&state.name).unwrap_or_else(|| state.init.clone());
            let start = draw(&begins_as(init, whole.dtype), &state.name, whole);
            let part = self.held.part(&state.name, &start, self.ranks.rank());
            self.write(&state.name, &part)?;
        }
        let start = compiled.run(self.backend, &mut self.state, &by_name(&given));
        for (name, tensor) in &kept {
            self.write(name, tensor)?;
        }
        Ok(growth.said(&now, &numbers(start?)))
    }

    /// Replaces what this rank holds of a state.
    pub(crate) fn write(&mut self, name: &str, tensor: &Tensor) -> Result<(), TrainError> {
        let buffer = self.state.buffers.get_mut(name).expect("the step has its states");
        Ok(self.backend.write(buffer, tensor)?)
    }
}

/// The origin among those of all ranks, in words; `own` is that of this rank, in a batch of
/// several.
fn of_all(
    ranks: Ranks<'_>,
    own: Result<Option<NotFinite>, TrainError>,
    (number, count): (usize, usize),
) -> Result<Option<String>, TrainError> {
    match own {
        Err(TrainError::Backend(BackendError::OutOfMemory { needed, available, .. })) => {
            Ok(Some(format!(
                "the loss or a gradient is not finite; a run op by op would say where, but needs \
                 {needed} bytes, and there are {available}"
            )))
        }
        own => {
            let origin = diagnose::origin(ranks, own?)?;
            let of_batch =
                if count > 1 { format!(" (batch {number} of {count})") } else { String::new() };
            Ok(origin.map(|origin| origin + &of_batch))
        }
    }
}
