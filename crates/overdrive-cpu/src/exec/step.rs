//! The choice of a step's kernel.

use overdrive_ir::plan::{Step, StepKind};
use overdrive_ir::{BackendError, Plan, Prim};

use super::copy::Copy;
use super::gemm;
use super::host::Host;
use super::nest::Nest;
use super::runnable::{Runnable, Unsupported};
use crate::kernels;
use crate::slots::SlotTable;
use crate::threads::Pool;

/// Compiles one step of a plan.
///
/// # Errors
/// `Unsupported` when no kernel here takes the step as it is.
pub(super) fn compile(plan: &Plan, step: &Step) -> Result<Box<dyn Runnable>, BackendError> {
    compile_kind(plan, step).map_err(|unsupported| BackendError::Unsupported {
        backend: "cpu".to_owned(),
        op: step.name.clone(),
        scope: step.scope.clone(),
        reason: unsupported.into_reason(),
    })
}

fn compile_kind(plan: &Plan, step: &Step) -> Result<Box<dyn Runnable>, Unsupported> {
    match &step.kind {
        StepKind::Loop(program) => Ok(Box::new(Nest::new(plan, program)?)),
        StepKind::Convolution(call) => kernels::convolution::compile(plan, call),
        StepKind::Chain(calls) => kernels::convolution::compile_chain(plan, calls),
        StepKind::Gemm(call) => gemm::compile(plan, call),
        StepKind::Pack { source, k, n } => {
            gemm::compile_pack(plan, source, [*k, *n], step.writes[0])
        }
        StepKind::PackFilter(call) => kernels::convolution::compile_pack(call, step.writes[0]),
        // One thing after another: a copy has ended when it was started.
        StepKind::CopyStart => Ok(Box::new(Copy::of_step(plan, step))),
        StepKind::Host(call) => Ok(Box::new(Host::new(plan, call)?)),
        StepKind::CollectiveStart { prim } => {
            alone(prim)?;
            Ok(Box::new(Copy::of_step(plan, step)))
        }
        // One rank has everything as soon as it starts.
        StepKind::CollectiveDone { .. } | StepKind::CopyDone => Ok(Box::new(Nothing)),
        StepKind::Kernel(call) => kernels::compile(plan, call),
    }
}

/// Among one rank every collective but `permute` to nobody is the identity.
fn alone(prim: &Prim) -> Result<(), Unsupported> {
    match prim.channel() {
        Some(channel) if channel.ranks() == 1 => Ok(()),
        _ => Err(Unsupported::new(
            "this back end is one rank; run ranks as processes on a device that communicates",
        )),
    }
}

struct Nothing;

impl Runnable for Nothing {
    fn run(&self, _: &Pool, _: &SlotTable) {}
}
