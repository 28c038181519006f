//! Time of a call, step by step: a clock runs around each step of a plan.
//!
//! A profiled call is never a latency: the clocks cost time of their own. From a [`Profile`] follow
//! an [`OperatorTable`] and a trace for Perfetto ([`chrome_trace`]).

mod operators;
#[cfg(test)]
mod tests;
mod trace;

pub use operators::{OperatorRow, OperatorTable};
pub use trace::chrome_trace;

use overdrive_ir::backend::{MemoryReport, StepProfile};
use overdrive_ir::{Buffer, Mode, Plan, Tensor};

use crate::clock::{Clock, SystemClock};
use crate::failure::Failure;
use crate::session_calls::{CallTarget, fresh_outputs, upload};

/// Calls before the profiled ones: packing of weights and first touches are no part of a steady
/// call.
const WARMUP_CALLS: u32 = 3;

/// The steps of some calls, with the time that each took.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// Name of what ran.
    pub name: String,
    /// The mode that it ran in.
    pub mode: Mode,
    /// Calls that were profiled.
    pub calls: u32,
    /// All of them together on the host, clocks included.
    pub wall_ns: f64,
    /// The steps of the plan, in its order; one that prepares weights was not run again and has no
    /// times.
    pub steps: Vec<ProfiledStep>,
    /// Bytes of the arena that live when a call ends: its results.
    pub end_live_bytes: u64,
    /// Memory of the session.
    pub memory: MemoryReport,
}

/// A step of the plan with its times.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfiledStep {
    /// Name, scope, start and duration in each call.
    pub profile: StepProfile,
    /// The queue it was issued on.
    pub stream: u16,
    /// Bytes of the arena that live while it runs, by the plan.
    pub live_bytes: u64,
}

impl Profile {
    /// Profiles `calls` calls on these inputs, after some that only warm up.
    ///
    /// # Errors
    /// Those of the back end.
    pub fn take(
        target: CallTarget<'_>,
        inputs: &[Tensor],
        calls: u32,
        clock: &dyn Clock,
    ) -> Result<Self, Failure> {
        let (CallTarget { session, state, .. }, inputs, mut outputs) = warm(target, inputs)?;
        let start_ns = clock.now_ns();
        let steps = session.profile(state.with(&inputs, &mut outputs), calls)?;
        let wall_ns = (clock.now_ns() - start_ns) as f64;
        Ok(Self { wall_ns, memory: session.memory(), ..Self::of(session.plan(), steps, calls) })
    }

    /// The same of a rank, which meets the others before each call.
    ///
    /// # Errors
    /// Those of the back end, and of the meeting.
    pub fn take_of_rank(
        target: CallTarget<'_>,
        inputs: &[Tensor],
        calls: u32,
        meet: &mut dyn FnMut() -> Result<(), Failure>,
    ) -> Result<Self, Failure> {
        let clock = SystemClock::new();
        let (CallTarget { session, state, .. }, inputs, mut outputs) = warm(target, inputs)?;
        let (mut steps, mut wall_ns) = (Vec::<StepProfile>::new(), 0.0);
        for _ in 0..calls {
            meet()?;
            let start_ns = clock.now_ns();
            let call = session.profile(state.with(&inputs, &mut outputs), 1)?;
            wall_ns += (clock.now_ns() - start_ns) as f64;
            if steps.is_empty() {
                steps = call;
                continue;
            }
            for (step, of_call) in steps.iter_mut().zip(call) {
                step.start_ns.extend(of_call.start_ns);
                step.time_ns.extend(of_call.time_ns);
            }
        }
        Ok(Self { wall_ns, memory: session.memory(), ..Self::of(session.plan(), steps, calls) })
    }

    /// The plan's streams and lives beside the times of its steps, one for each step and in their
    /// order.
    fn of(plan: &Plan, steps: Vec<StepProfile>, calls: u32) -> Self {
        assert_eq!(
            steps.len(),
            plan.steps.len(),
            "a profile has an entry for each step of the plan"
        );
        let mut live = live_bytes(plan);
        let end_live_bytes = live.pop().expect("there is a moment after the last step");
        let steps = steps.into_iter().zip(&plan.steps).zip(live);
        let steps = steps.map(|((profile, step), live_bytes)| ProfiledStep {
            profile,
            stream: step.stream,
            live_bytes,
        });
        Self {
            name: plan.name.clone(),
            mode: plan.mode,
            calls,
            wall_ns: 0.0,
            steps: steps.collect(),
            end_live_bytes,
            memory: MemoryReport::default(),
        }
    }

    /// The streams that something ran on, ascending; at least one.
    fn streams(&self) -> Vec<u16> {
        let ran = self.steps.iter().filter(|step| !step.profile.time_ns.is_empty());
        let mut streams: Vec<u16> = ran.map(|step| step.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        if streams.is_empty() { vec![0] } else { streams }
    }
}

/// The target after the calls that only warm up, with its inputs and outputs.
fn warm<'a>(
    target: CallTarget<'a>,
    inputs: &[Tensor],
) -> Result<(CallTarget<'a>, Vec<Buffer>, Vec<Buffer>), Failure> {
    let inputs = upload(target.backend, inputs)?;
    let mut outputs = fresh_outputs(target.backend, target.session)?;
    for _ in 0..WARMUP_CALLS {
        target.session.run(target.state.with(&inputs, &mut outputs))?.wait()?;
    }
    Ok((target, inputs, outputs))
}

/// Bytes of the arena that live during each step, and after the last one.
fn live_bytes(plan: &Plan) -> Vec<u64> {
    let mut live = vec![0; plan.steps.len() + 1];
    for group in plan.groups() {
        live[group.first..=group.last].iter_mut().for_each(|bytes| *bytes += group.bytes as u64);
    }
    live
}
