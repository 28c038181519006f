//! A [`Session`] as a [`Subject`]: what is timed is `run` and the wait for it, on inputs that
//! were put in place beforehand.

use std::ops::Range;

use overdrive_ir::backend::{CacheState, Protocol};
use overdrive_ir::{Backend, BackendError, Buffer, Session, State, Tensor};

use crate::clock::Clock;
use crate::deviation::Deviation;
use crate::deviation::Tolerance;
use crate::failure::Failure;
use crate::oracle::Oracle;
use crate::series::Flag;
use crate::subject::{Reading, Subject, on_the_host};

/// Different inputs that the calls rotate through.
const INPUT_SETS: u64 = 2;

impl From<BackendError> for Failure {
    fn from(error: BackendError) -> Self {
        match error {
            BackendError::Unsupported { .. } => Self::unsupported(error.to_string()),
            BackendError::OutOfMemory { .. } => Self::out_of_memory(error.to_string()),
            BackendError::Mismatch { .. }
            | BackendError::Device { .. }
            | BackendError::Ranks(_) => Self::failed(error.to_string()),
        }
    }
}

/// The meaning of the host's time of a call, where the device keeps its own time beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HostSpan {
    /// That of a call which finds its caches as the device's does: empty.
    AsTheDevice,
    /// That of calls back to back, as whoever takes part without a device's clock is timed.
    BackToBack,
}

/// Calls of one session whose results do not depend on the calls before: inference, or a step whose
/// state is put back. Inputs keep their buffers and get new values before each sample. So a call
/// finds the caches as a pipeline would leave them.
pub struct Calls<'a> {
    backend: &'a dyn Backend,
    session: &'a mut dyn Session,
    state: &'a mut State,
    oracle: &'a Oracle<'a>,
    tolerance: Tolerance,
    sets: Vec<(u64, Vec<Tensor>)>,
    /// The same sets on the device; empty if they are written from the host before each call.
    placed: Vec<Vec<Buffer>>,
    current: usize,
    inputs: Vec<Buffer>,
    outputs: Vec<Buffer>,
    host_span: HostSpan,
}

/// The parts that [`Calls`] are made of.
pub struct CallTarget<'a> {
    /// The back end that it runs on.
    pub backend: &'a dyn Backend,
    /// The session that runs.
    pub session: &'a mut dyn Session,
    /// Its state.
    pub state: &'a mut State,
}

impl<'a> Calls<'a> {
    /// Draws inputs from `oracle` on `seed` and the seeds after it, and uploads the first.
    ///
    /// # Errors
    /// When the back end cannot hold inputs and outputs.
    pub fn new(
        target: CallTarget<'a>,
        oracle: &'a Oracle<'a>,
        tolerance: Tolerance,
        seed: u64,
    ) -> Result<Self, Failure> {
        let CallTarget { backend, session, state } = target;
        let sets: Vec<(u64, Vec<Tensor>)> = (0..INPUT_SETS)
            .map(|set| seed.wrapping_add(set))
            .map(|seed| (seed, oracle.inputs(seed)))
            .collect();
        // A device apart from the host, told by its clock: gigabytes would cross to it before each
        // sample.
        let placed = match session.keeps_time() {
            true => sets
                .iter()
                .map(|(_, tensors)| upload(backend, tensors))
                .collect::<Result<_, _>>()?,
            false => vec![],
        };
        let inputs = match placed.first() {
            Some(first) => copies(backend, first)?,
            None => upload(backend, &sets[0].1)?,
        };
        let outputs = fresh_outputs(backend, session)?;
        let host_span = HostSpan::AsTheDevice;
        Ok(Self {
            backend,
            session,
            state,
            oracle,
            tolerance,
            sets,
            placed,
            current: 0,
            inputs,
            outputs,
            host_span,
        })
    }

    /// The same beside rivals that have the host's clock alone: its spans are then taken of all in
    /// one way.
    #[must_use]
    pub fn beside_host_clocks(self) -> Self {
        Self { host_span: HostSpan::BackToBack, ..self }
    }

    fn deviation(&self, seed: u64, outputs: &[Buffer]) -> Result<Deviation, Failure> {
        let fetch = |output: &Buffer| match self.oracle.rows() {
            Some(rows) => self.backend.download_rows(output, rows),
            None => self.backend.download(output),
        };
        let outputs: Vec<Tensor> = outputs.iter().map(fetch).collect::<Result<_, _>>()?;
        self.oracle.compare_part(seed, &outputs, self.tolerance)
    }
}

pub(crate) fn upload(backend: &dyn Backend, tensors: &[Tensor]) -> Result<Vec<Buffer>, Failure> {
    Ok(tensors.iter().map(|tensor| backend.upload(tensor)).collect::<Result<_, _>>()?)
}

/// Buffers of their own on the device, with what these have.
fn copies(backend: &dyn Backend, buffers: &[Buffer]) -> Result<Vec<Buffer>, Failure> {
    let copy = |from: &Buffer| {
        let mut to = backend.output(&from.ty)?;
        backend.copy(from, &mut to)?;
        Ok(to)
    };
    buffers.iter().map(copy).collect()
}

/// Output buffers full of NaN, so that what is not written is seen.
pub(crate) fn fresh_outputs(
    backend: &dyn Backend,
    session: &dyn Session,
) -> Result<Vec<Buffer>, Failure> {
    let plan = session.plan();
    Ok(plan
        .outputs
        .iter()
        .map(|&slot| backend.output(&plan.slot(slot).ty))
        .collect::<Result<_, _>>()?)
}

impl Subject for Calls<'_> {
    fn prepare(&mut self, calls: Range<u64>) -> Result<(), Failure> {
        self.current = (calls.start % INPUT_SETS) as usize;
        if let Some(placed) = self.placed.get(self.current) {
            for (buffer, from) in self.inputs.iter_mut().zip(placed) {
                self.backend.copy(from, buffer)?;
            }
            return Ok(());
        }
        for (buffer, tensor) in self.inputs.iter_mut().zip(&self.sets[self.current].1) {
            self.backend.write(buffer, tensor)?;
        }
        Ok(())
    }

    fn call(&mut self, _index: u64) -> Result<(), Failure> {
        Ok(self.session.run(self.state.with(&self.inputs, &mut self.outputs))?.wait()?)
    }

    fn sample(&mut self, calls: Range<u64>, clock: &dyn Clock) -> Result<Reading, Failure> {
        // The first call is a metric of its own, which setting up the device's timing must not be
        // part of.
        if calls.start == 0 || !self.session.keeps_time() {
            return on_the_host(self, calls, clock);
        }
        let back_to_back = match self.host_span {
            HostSpan::AsTheDevice => None,
            // First, since the device's sample begins by emptying the caches.
            HostSpan::BackToBack => Some(on_the_host(self, calls.clone(), clock)?.host_ns),
        };
        let count = calls.end - calls.start;
        let calls_per_sample = u32::try_from(count).expect("calls of a sample are below 2^24");
        let protocol = Protocol { samples: 1, calls_per_sample, cache: CacheState::Cold };
        let samples =
            self.session.sample(self.state.with(&self.inputs, &mut self.outputs), protocol)?;
        let sample = samples.first().ok_or_else(|| Failure::failed("the device took no sample"))?;
        let total = |per_call: f64| (per_call * count as f64).round() as u64;
        let said = sample.flags.iter().filter_map(|flag| Flag::named(flag));
        Ok(Reading {
            host_ns: back_to_back.unwrap_or_else(|| total(sample.host_ns)),
            device_ns: sample.device_ns.map(total),
            cycles: sample.cycles.map(total),
            flags: said.chain(back_to_back.map(|_| Flag::HostBackToBack)).collect(),
        })
    }

    fn verify(&mut self, seed: u64) -> Result<Option<Deviation>, Failure> {
        let tensors = self.oracle.inputs(seed);
        let inputs = upload(self.backend, &tensors)?;
        let mut outputs = fresh_outputs(self.backend, self.session)?;
        self.session.run(self.state.with(&inputs, &mut outputs))?.wait()?;
        for (position, (buffer, tensor)) in inputs.iter().zip(&tensors).enumerate() {
            if self.backend.download(buffer)?.bytes() != tensor.bytes() {
                return Err(Failure::incorrect(format!("the call changed its input {position}")));
            }
        }
        self.deviation(seed, &outputs).map(Some)
    }

    fn reference(&self) -> &str {
        self.oracle.name()
    }

    fn launches_per_call(&self) -> Option<u64> {
        let steps = &self.session.plan().steps;
        Some(steps.iter().filter(|step| !step.prepare).count() as u64)
    }

    fn verify_last(&mut self) -> Result<Option<Deviation>, Failure> {
        self.deviation(self.sets[self.current].0, &self.outputs).map(Some)
    }
}

#[cfg(test)]
mod tests;
