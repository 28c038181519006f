//! `Launch`: a step of a plan made ready for a device.
//!
//! A module of kernels offers one function `compile(&Site, &Call) -> Result<Box<dyn Launch>,
//! Refusal>`; the executable knows no kernel by name. Invariant: `launch` neither allocates nor
//! synchronises, so that it can be captured in a graph and replayed.

use crate::{Device, Error};
use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUdeviceptr;
use overdrive_ir::plan::{Plan, SlotId, SlotPlace, Step};
use overdrive_ir::{Decline, Mode, Tuning};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Bytes of parameters that a kernel may have since CUDA 12.1.
pub(crate) const PARAMETER_BYTES: usize = 32_764;

/// Address of each slot of a plan in device memory during a call.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Addresses {
    slots: Vec<CUdeviceptr>,
    workspace: CUdeviceptr,
    peers: Arc<PeerAddresses>,
}

/// Slots of the other ranks that this one writes to. Their addresses are those by which this device
/// reaches them, in the order of the members of a group.
pub(crate) type PeerAddresses = BTreeMap<SlotId, Vec<CUdeviceptr>>;

impl Addresses {
    /// Addresses of `slots` slots, all unset, and of the scratch that the steps of a stream share.
    pub fn new(slots: usize, workspace: CUdeviceptr) -> Self {
        Self { slots: vec![0; slots], workspace, peers: Arc::default() }
    }

    /// Address of the first byte of a slot.
    pub fn of(&self, slot: SlotId) -> CUdeviceptr {
        self.slots[slot.0 as usize]
    }

    /// Places a slot.
    pub fn set(&mut self, slot: SlotId, address: CUdeviceptr) {
        self.slots[slot.0 as usize] = address;
    }

    /// Address of the slot that a member of a group has in the place of `slot`.
    pub(crate) fn of_peer(&self, slot: SlotId, member: usize) -> CUdeviceptr {
        self.peers[&slot][member]
    }

    /// Places the slots of the other ranks.
    pub(crate) fn set_peers(&mut self, peers: PeerAddresses) {
        self.peers = Arc::new(peers);
    }

    /// Places the scratch that the steps of a stream share.
    pub(crate) fn set_workspace(&mut self, address: CUdeviceptr) {
        self.workspace = address;
    }

    /// The same with scratch that begins `offset` bytes later.
    pub(crate) fn with_workspace(&self, offset: usize) -> Self {
        Self { workspace: self.workspace + offset as u64, ..self.clone() }
    }

    /// Every address of a slot, in order of slots.
    pub fn slots(&self) -> &[CUdeviceptr] {
        &self.slots
    }

    /// Scratch of at least the `workspace_bytes` that the step asked for, 256-byte aligned. It is
    /// as large as the plan says, and its content does not outlive the step.
    pub fn workspace(&self) -> CUdeviceptr {
        self.workspace
    }
}

/// A step with everything that launching it takes.
pub trait Launch: Send {
    /// Enqueues the work on `stream`.
    ///
    /// # Errors
    /// The error of the driver or a library.
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error>;

    /// Scratch that the step needs while it runs, in bytes: at most what the plan gives it.
    fn workspace_bytes(&self) -> usize {
        0
    }
}

/// The facts that a step may know while it is compiled.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    /// The plan: types, layouts and places of the slots.
    pub plan: &'a Plan,
    /// The step.
    pub step: &'a Step,
    /// The device that it will run on.
    pub device: &'a Arc<Device>,
    /// Remembered choices.
    pub tuning: &'a Tuning,
    /// The mode, which says whether trying candidates is allowed.
    pub mode: Mode,
}

impl Site<'_> {
    /// Whether no step of a call writes a slot, nor the state that the slot is. Then it may be read
    /// while earlier steps still run.
    pub(crate) fn is_settled(&self, slot: SlotId) -> bool {
        let home = &self.plan.slot(slot).place;
        let writes = |other: &SlotId| match (home, &self.plan.slot(*other).place) {
            (SlotPlace::State(name), SlotPlace::State(written)) => name == written,
            _ => *other == slot,
        };
        let outlives = matches!(
            home,
            SlotPlace::Input(_)
                | SlotPlace::State(_)
                | SlotPlace::Constant(_)
                | SlotPlace::Persistent { .. }
        );
        outlives
            && !self.plan.steps.iter().any(|step| !step.prepare && step.writes.iter().any(writes))
    }
}

/// Why a step cannot be compiled; the executable adds its name and scope.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// No kernel takes the step as it is; the reason, and how to get around it.
    #[error("{0}")]
    Unsupported(String),
    /// CUDA failed on the way.
    #[error(transparent)]
    Failed(#[from] Error),
}

impl From<Refusal> for Decline {
    fn from(refusal: Refusal) -> Self {
        Decline::Because(refusal.to_string())
    }
}
