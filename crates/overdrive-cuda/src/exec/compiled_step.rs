//! `CompiledStep`: a step of a plan compiled for this device, and the choice of its kernel.

use crate::launch::{Addresses, Launch, Refusal, Site};
use crate::nccl::{self, PlanRanks};
use crate::{Device, Error, gemm, host_loop, joined, kernels, loops, memory};
use cudarc::driver::CudaStream;
use overdrive_ir::plan::{HostCall, Plan, Space, StepKind};
use overdrive_ir::{BackendError, SlotId};
use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::Hash;
use std::sync::Arc;

/// A compiled step.
pub(super) enum CompiledStep {
    /// Work on the device.
    Launch(Box<dyn Launch>),
    /// Work on the host, which waits for the device before and after.
    Host(HostCall),
    /// Nothing: the end of a copy or of a collective, for which the step's event is the wait.
    Nothing,
}

impl CompiledStep {
    /// Enqueues the step on a stream; a host step runs it.
    pub(super) fn run(
        &self,
        device: &Device,
        stream: &Arc<CudaStream>,
        addresses: &Addresses,
    ) -> Result<(), Error> {
        match self {
            CompiledStep::Launch(launch) => launch.launch(stream, addresses),
            CompiledStep::Host(call) => on_host(call, device, addresses),
            CompiledStep::Nothing => Ok(()),
        }
    }

    /// Scratch that the step needs while it runs, in bytes.
    pub(super) fn workspace_bytes(&self) -> usize {
        match self {
            CompiledStep::Launch(launch) => launch.workspace_bytes(),
            CompiledStep::Host(_) | CompiledStep::Nothing => 0,
        }
    }
}

/// Downloads the operands, evaluates in f64, uploads the results.
fn on_host(call: &HostCall, device: &Device, addresses: &Addresses) -> Result<(), Error> {
    let download = |slot: SlotId, bytes: usize| {
        let mut content = vec![0; bytes];
        device.download(addresses.of(slot), &mut content)?;
        Ok::<_, Error>(content)
    };
    let read = |slot, bytes| Ok(Cow::Owned(download(slot, bytes)?));
    call.run(read, |slot, bytes, store| {
        // A result may be a part of its slot; the bytes around it must stay.
        let mut content = download(slot, bytes)?;
        store(&mut content);
        device.upload(&content, addresses.of(slot))
    })
}

/// The order in which steps of these sorts are compiled: one of each sort first, then the others.
/// Layers repeat, and whoever needs a kernel that is being compiled waits for it.
pub(super) fn different_first<S: Eq + Hash>(sorts: impl Iterator<Item = S>) -> Vec<usize> {
    let mut known = HashSet::new();
    let (mut order, mut again) = (vec![], vec![]);
    for (index, sort) in sorts.enumerate() {
        let to = if known.insert(sort) { &mut order } else { &mut again };
        to.push(index);
    }
    order.append(&mut again);
    order
}

/// Compiles the step of `site`.
///
/// # Errors
/// `Unsupported` when no kernel here takes the step as it is; `Device` when CUDA failed on the way.
pub(super) fn compile(
    site: &Site<'_>,
    ranks: Option<&Arc<PlanRanks>>,
) -> Result<CompiledStep, BackendError> {
    let step = site.step;
    compile_kind(site, ranks).map_err(|refusal| match refusal {
        Refusal::Unsupported(reason) => BackendError::Unsupported {
            backend: "cuda".to_owned(),
            op: step.name.clone(),
            scope: step.scope.clone(),
            reason,
        },
        Refusal::Failed(error) => {
            error.during(format!("compiling `{}` at {}", step.name, step.scope))
        }
    })
}

fn compile_kind(site: &Site<'_>, ranks: Option<&Arc<PlanRanks>>) -> Result<CompiledStep, Refusal> {
    let (plan, step) = (site.plan, site.step);
    match &step.kind {
        StepKind::Joined(bond, steps) => {
            joined::compile(site, *bond, steps).map(CompiledStep::Launch)
        }
        StepKind::Loop(program) if plan.runs_in(step) != Space::MAIN => {
            host_loop::compile(site, program).map(CompiledStep::Launch)
        }
        StepKind::Loop(program) => loops::compile(site, program).map(CompiledStep::Launch),
        StepKind::Gemm(call) => gemm::compile(site, call).map(CompiledStep::Launch),
        StepKind::Convolution(call) => {
            kernels::convolution::compile(site, call).map(CompiledStep::Launch)
        }
        StepKind::Kernel(call) => kernels::compile(site, call).map(CompiledStep::Launch),
        StepKind::Pack { .. } | StepKind::PackFilter(_) | StepKind::Chain(_) => {
            unreachable!("no plan packs or chains for a device whose capabilities do not say how")
        }
        StepKind::CopyStart => {
            Ok(CompiledStep::Launch(Box::new(SlotCopy::new(plan, step.reads[0], step.writes[0]))))
        }
        StepKind::Host(call) => {
            HostCall::new(plan, call).map(CompiledStep::Host).map_err(Refusal::Unsupported)
        }
        StepKind::CollectiveStart { prim } => {
            nccl::compile(site, prim, ranks).map(CompiledStep::Launch)
        }
        // The wait for it is the step's event.
        StepKind::CollectiveDone { .. } | StepKind::CopyDone => Ok(CompiledStep::Nothing),
    }
}

/// All bytes of a slot to another.
#[derive(Debug)]
pub(super) struct SlotCopy {
    from: SlotId,
    to: SlotId,
    bytes: usize,
}

impl SlotCopy {
    /// The two slots have equal sizes; `to` may be a home, which the plan does not list.
    pub(super) fn new(plan: &Plan, from: SlotId, to: SlotId) -> Self {
        let bytes = plan.slot(from).bytes();
        if (to.0 as usize) < plan.slots.len() {
            assert_eq!(bytes, plan.slot(to).bytes(), "a copy is between slots of equal size");
        }
        Self { from, to, bytes }
    }
}

impl Launch for SlotCopy {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let places = (addresses.of(self.from), addresses.of(self.to));
        // SAFETY: both slots have `bytes` bytes and are apart.
        unsafe { memory::copy(stream, places, self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_step_of_each_sort_is_compiled_before_others_of_it() {
        assert_eq!(different_first("norm cast norm cast loss".split(' ')), [0, 1, 4, 2, 3]);
    }
}
