//! The choice of a step's kernel.

use overdrive_ir::plan::{Step, StepKind};
use overdrive_ir::{BackendError, Communicator, Plan, RankError};
use std::sync::Arc;

use super::copy::SlotCopy;
use super::fused_loop::FusedLoop;
use super::gemm;
use super::host::Host;
use super::runnable::{Runnable, Unsupported};
use crate::kernels::{self, Collective};
use crate::slots::SlotTable;
use crate::threads::Pool;

/// A compiled step.
pub(super) enum CompiledStep {
    /// Work of this rank alone.
    Own(Box<dyn Runnable>),
    /// Work with other ranks.
    Shared(Collective),
    /// The end of such work or of a copy, which is done when it starts.
    Done,
}

impl CompiledStep {
    /// Does the work.
    pub(super) fn run(&self, pool: &Pool, slots: &SlotTable) -> Result<(), RankError> {
        match self {
            CompiledStep::Own(step) => step.run(pool, slots),
            CompiledStep::Shared(collective) => collective.run(slots)?,
            CompiledStep::Done => {}
        }
        Ok(())
    }

    /// Bytes that the step holds in addition to its slots in the plan.
    pub(super) fn workspace_bytes(&self) -> usize {
        match self {
            CompiledStep::Own(step) => step.workspace_bytes(),
            CompiledStep::Shared(_) | CompiledStep::Done => 0,
        }
    }
}

/// Compiles one step of a plan.
///
/// # Errors
/// `Unsupported` when no kernel here takes the step as it is.
pub(super) fn compile(
    plan: &Plan,
    step: &Step,
    communicator: Option<&Arc<dyn Communicator>>,
) -> Result<CompiledStep, BackendError> {
    let compiled = match &step.kind {
        StepKind::CollectiveStart { prim } => {
            Collective::new(plan, (step, prim), communicator).map(CompiledStep::Shared)
        }
        StepKind::CollectiveDone { .. } | StepKind::CopyDone => Ok(CompiledStep::Done),
        _ => compile_kind(plan, step).map(CompiledStep::Own),
    };
    compiled.map_err(|unsupported| BackendError::Unsupported {
        backend: "cpu".to_owned(),
        op: step.name.clone(),
        scope: step.scope.clone(),
        reason: unsupported.into_reason(),
    })
}

fn compile_kind(plan: &Plan, step: &Step) -> Result<Box<dyn Runnable>, Unsupported> {
    match &step.kind {
        StepKind::Loop(program) => Ok(Box::new(FusedLoop::new(plan, program)?)),
        StepKind::Convolution(call) => kernels::convolution::compile(plan, call),
        StepKind::Chain(calls) => kernels::convolution::compile_chain(plan, calls),
        StepKind::Gemm(call) => gemm::compile(plan, call),
        StepKind::Pack { source, k, n } => {
            gemm::compile_pack(plan, source, [*k, *n], step.writes[0])
        }
        StepKind::PackFilter(call) => kernels::convolution::compile_pack(call, step.writes[0]),
        // One thing after another: a copy has ended when it was started.
        StepKind::CopyStart => Ok(Box::new(SlotCopy::of_step(plan, step))),
        StepKind::Host(call) => Ok(Box::new(Host::new(plan, call)?)),
        StepKind::Kernel(call) => kernels::compile(plan, call),
        StepKind::CollectiveStart { .. } | StepKind::CollectiveDone { .. } | StepKind::CopyDone => {
            unreachable!("`compile` knows what is shared or done")
        }
        StepKind::Joined(..) => unreachable!("no plan joins steps for a device that declines it"),
    }
}
