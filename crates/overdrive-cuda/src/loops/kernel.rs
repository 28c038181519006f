//! `KernelLaunch`: a printed loop with its grid, before any device has seen it.

use crate::compiler::{Architecture, KernelSource};
use crate::device::Properties;
use crate::launch::Addresses;
use cudarc::driver::sys::CUdeviceptr;
use overdrive_ir::{DType, SlotId};

/// An argument of a kernel.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Argument {
    /// Address of a slot.
    Slot(SlotId),
    /// Address of the step's workspace.
    Workspace,
}

impl Argument {
    /// Its address in a call.
    pub(super) fn address(self, addresses: &Addresses) -> CUdeviceptr {
        match self {
            Argument::Slot(slot) => addresses.of(slot),
            Argument::Workspace => addresses.workspace(),
        }
    }
}

/// One launch.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct KernelLaunch {
    pub(super) source: KernelSource,
    /// Blocks.
    pub(super) grid: u32,
    /// Threads of a block.
    pub(super) block: u32,
    /// Bytes of shared memory beside those that the source declares.
    pub(super) shared_bytes: u32,
    /// The arguments, in the order of the parameters.
    pub(super) arguments: Vec<Argument>,
}

/// The facts of a device that its kernels depend on.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PrinterMachine {
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// The architecture that it compiles for.
    pub architecture: Architecture,
}

impl From<&Properties> for PrinterMachine {
    fn from(properties: &Properties) -> Self {
        let Properties { multiprocessors, architecture, .. } = *properties;
        Self { multiprocessors, architecture }
    }
}

/// The slots of a program as parameters `p0, p1, ...`, so that equal loops over other slots are one
/// source.
#[derive(Clone, Debug, Default)]
pub(super) struct Parameters {
    slots: Vec<(SlotId, DType, Use)>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Use {
    Read,
    Written,
    /// Or shares its bytes with one that is written.
    Both,
}

impl Parameters {
    /// Notes that a slot is used.
    pub(super) fn add(&mut self, slot: SlotId, dtype: DType, usage: Use) {
        match self.slots.iter_mut().find(|(other, ..)| *other == slot) {
            Some((.., known)) if *known != usage => *known = Use::Both,
            Some(_) => {}
            None => self.slots.push((slot, dtype, usage)),
        }
    }

    /// Those of two slots that are used, with their types: the slots share their bytes.
    pub(super) fn shared(&self, old: SlotId, new: SlotId) -> Vec<(SlotId, DType)> {
        let of = |slot: &SlotId| self.slots.iter().find(|(other, ..)| other == slot);
        [old, new].iter().filter_map(of).map(|(slot, dtype, _)| (*slot, *dtype)).collect()
    }

    /// How a slot is used.
    pub(super) fn usage(&self, slot: SlotId) -> Use {
        let used = self.slots.iter().find(|(other, ..)| *other == slot);
        used.expect("every slot of a program is a parameter").2
    }

    /// `p2`.
    pub(super) fn name(&self, slot: SlotId) -> String {
        let position = self.slots.iter().position(|(other, ..)| *other == slot);
        format!("p{}", position.expect("every slot of a program is a parameter"))
    }

    /// The list of parameters in C++.
    pub(super) fn declarations(&self) -> Vec<String> {
        let declare = |(at, (_, dtype, usage)): (usize, &(SlotId, DType, Use))| {
            let element = if dtype.bits() < 8 { "u8".to_owned() } else { dtype.to_string() };
            match usage {
                Use::Read => format!("const {element}* __restrict__ p{at}"),
                Use::Written => format!("{element}* __restrict__ p{at}"),
                Use::Both => format!("{element}* p{at}"),
            }
        };
        self.slots.iter().enumerate().map(declare).collect()
    }

    /// The arguments in the same order.
    pub(super) fn arguments(&self) -> Vec<Argument> {
        self.slots.iter().map(|(slot, ..)| Argument::Slot(*slot)).collect()
    }
}
