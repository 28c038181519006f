//! `Runnable`: a step compiled for this CPU, and the choice of its kernel.

use overdrive_ir::plan::{Step, StepKind};
use overdrive_ir::{BackendError, Plan, Prim};

use super::copy::Copy;
use super::host::Host;
use super::nest::Nest;
use super::product;
use crate::kernels;
use crate::slots::SlotTable;
use crate::threads::Pool;

/// A compiled step.
pub(crate) trait Runnable: Send + Sync {
    /// Does the work, on as many threads as the pool has. The table holds the addresses of all
    /// slots that the step reads and writes.
    fn run(&self, pool: &Pool, slots: &SlotTable);

    /// Whether the f64 reference does it.
    fn is_reference(&self) -> bool {
        false
    }

    /// Bytes that the step holds beside what the plan gave it, between calls too.
    fn workspace_bytes(&self) -> usize {
        0
    }
}

/// Why a step cannot be compiled; the caller knows its name and scope.
#[derive(Debug)]
pub(crate) struct Unsupported(String);

impl Unsupported {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }
}

/// Compiles one step of a plan.
///
/// # Errors
/// `Unsupported` when no kernel here takes the step as it is.
pub(super) fn compile(plan: &Plan, step: &Step) -> Result<Box<dyn Runnable>, BackendError> {
    compile_kind(plan, step).map_err(|Unsupported(reason)| BackendError::Unsupported {
        backend: "cpu".to_owned(),
        op: step.name.clone(),
        scope: step.scope.clone(),
        reason,
    })
}

fn compile_kind(plan: &Plan, step: &Step) -> Result<Box<dyn Runnable>, Unsupported> {
    match &step.kind {
        StepKind::Loop(program) => Ok(Box::new(Nest::new(plan, program)?)),
        StepKind::Convolution(call) => kernels::convolution::compile(plan, call),
        StepKind::Chain(calls) => kernels::convolution::compile_chain(plan, calls),
        StepKind::Gemm(call) => product::compile(plan, call),
        StepKind::Pack { source, k, n } => {
            product::compile_pack(plan, source, [*k, *n], step.writes[0])
        }
        StepKind::PackFilter(call) => kernels::convolution::compile_pack(call, step.writes[0]),
        StepKind::Copy => Ok(Box::new(Copy::of_step(plan, step))),
        StepKind::Host(call) => Ok(Box::new(Host::new(plan, call)?)),
        StepKind::CollectiveStart { prim } => {
            alone(prim)?;
            Ok(Box::new(Copy::of_step(plan, step)))
        }
        // One rank has everything as soon as it starts.
        StepKind::CollectiveDone { .. } => Ok(Box::new(Nothing)),
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
