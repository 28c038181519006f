//! How long a plan takes at least, by its streams, its events and the device's peaks.
//!
//! It serves to choose between plans of one graph: recomputing values has a cost, and copies may or
//! may not hide behind work. It is an estimate, never a measurement.

use super::{Plan, Space, Step, StepKind};
use crate::{DType, Description};
use std::collections::HashMap;

/// Share of the peaks that kernels reach, as a rule.
const REACHED: f64 = 0.6;

/// Bandwidth of the memory of a device that does not tell its own, in bytes per second.
const NOMINAL_BYTES_PER_SECOND: f64 = 1e12;

impl Plan {
    /// Estimated seconds of a call.
    pub fn seconds(&self, device: &Description) -> f64 {
        let mut streams: HashMap<u16, f64> = HashMap::new();
        let mut events: HashMap<u32, f64> = HashMap::new();
        for step in self.steps.iter().filter(|step| !step.prepare) {
            let stream = streams.entry(step.stream).or_default();
            let begins = step.waits.iter().filter_map(|event| events.get(event));
            let begins = begins.fold(*stream, |latest, event| latest.max(*event));
            *stream = begins + self.step_seconds(step, device);
            events.extend(step.records.map(|event| (event, *stream)));
        }
        streams.into_values().fold(0.0, f64::max)
    }

    /// Estimated seconds of a step by itself.
    pub fn step_seconds(&self, step: &Step, device: &Description) -> f64 {
        let own = device.peaks.levels.last().map(|(_, bytes_per_second)| bytes_per_second);
        let memory = REACHED * own.copied().unwrap_or(NOMINAL_BYTES_PER_SECOND);
        match &step.kind {
            StepKind::CopyStart => {
                let ends = [step.reads[0], step.writes[0]].map(|slot| self.space(slot));
                let other = ends.into_iter().find(|space| *space != Space::MAIN);
                let link = other.and_then(|space| device.spaces.get(usize::from(space.0) - 1));
                step.cost.bytes as f64 / link.map_or(memory, |space| space.bytes_per_second)
            }
            StepKind::CopyDone | StepKind::CollectiveDone { .. } => 0.0,
            kind => {
                let peak =
                    multiplied(kind).and_then(|dtype| device.peaks.flops_per_second.get(&dtype));
                let flops = peak.map_or(device.flops_per_byte * memory, |peak| REACHED * peak);
                let latency = device.bytes_of_latency as f64 / memory;
                let work = if flops > 0.0 { step.cost.flops as f64 / flops } else { 0.0 };
                work.max(step.cost.bytes as f64 / memory) + latency
            }
        }
    }
}

/// The type that a step multiplies matrices in.
fn multiplied(kind: &StepKind) -> Option<DType> {
    match kind {
        StepKind::Gemm(call) => Some(call.lhs.dtype),
        StepKind::Convolution(call) => Some(call.input.ty.dtype),
        StepKind::Chain(calls) => calls.first().map(|call| call.input.ty.dtype),
        StepKind::Kernel(call) => call.operands.first().map(|view| view.ty.dtype),
        StepKind::Joined(_, steps) => steps.iter().find_map(|step| multiplied(&step.kind)),
        _ => None,
    }
}
