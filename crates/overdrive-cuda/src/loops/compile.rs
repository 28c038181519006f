//! From a program to launches on a device.

use super::columns::{ColumnShape, columns};
use super::kernel::{Argument, KernelLaunch, PrinterMachine};
use super::map::map;
use super::nest::{Lanes, LoopNest, Of};
use super::points::Points;
use super::row_printer::{partials, rows};
use super::row_shape::RowShape;
use super::source::ENTRY;
use super::stages::Stages;
use crate::compiler::KernelSource;
use crate::entry::Entry;
use crate::launch::{Addresses, Launch, Refusal, Site};
use crate::{Device, Error};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::SlotId;
use overdrive_ir::plan::Program;
use std::ffi::c_void;
use std::sync::Arc;

/// Compiles a fused loop for the site's device.
///
/// # Errors
/// `Unsupported` for stores of packed elements that share a byte between threads; `Failed` as
/// `Device::function`.
pub fn compile(site: &Site<'_>, program: &Program) -> Result<Box<dyn Launch>, Refusal> {
    let (kernels, workspace_bytes) =
        kernels(program, &site.step.aliases, site.device.properties().into())?;
    let steps = kernels.into_iter().map(|kernel| Loaded::new(kernel, site.device));
    Ok(Box::new(Loop { kernels: steps.collect::<Result<_, _>>()?, workspace_bytes }))
}

/// The sources that a loop needs on a machine, as `compile` would hand them to NVRTC.
///
/// # Errors
/// As `compile`.
pub fn sources(
    program: &Program,
    aliases: &[(SlotId, SlotId)],
    machine: PrinterMachine,
) -> Result<Vec<KernelSource>, Refusal> {
    Ok(kernels(program, aliases, machine)?.0.into_iter().map(|kernel| kernel.source).collect())
}

/// Bytes of the workspace that the launches of a loop share on a machine.
pub(crate) fn scratch_bytes(
    program: &Program,
    aliases: &[(SlotId, SlotId)],
    machine: PrinterMachine,
) -> usize {
    if is_empty(program) || program.reduced == 0 {
        return 0;
    }
    let nest = LoopNest::new(program);
    let stages = Stages::in_place(program, &nest, aliases);
    let points = Points::new(program, (&nest, &stages), aliases);
    match nest.lanes {
        Lanes::Along => partials(&points, &RowShape::new(&points, machine)).bytes,
        Lanes::Across => ColumnShape::new(&points, machine).partials(&points).bytes,
    }
}

/// Whether it stores nothing.
fn is_empty(program: &Program) -> bool {
    let kept = &program.extents[..program.extents.len() - program.reduced];
    kept.contains(&0) || (program.reduced == 0 && program.points() == 0)
}

/// The launches of a program, and the bytes of workspace that they share.
fn kernels(
    program: &Program,
    aliases: &[(SlotId, SlotId)],
    machine: PrinterMachine,
) -> Result<(Vec<KernelLaunch>, usize), Refusal> {
    if is_empty(program) {
        return Ok((vec![], 0));
    }
    let nest = LoopNest::new(program);
    let stages = Stages::in_place(program, &nest, aliases);
    refuse_shared_bytes(program, &nest)?;
    let points = Points::new(program, (&nest, &stages), aliases);
    Ok(match nest.lanes {
        _ if program.reduced == 0 => (vec![map(points)], 0),
        Lanes::Along => rows(points, machine),
        Lanes::Across => columns(points, machine),
    })
}

/// Packed elements are written by whole bytes, which must belong to one thread.
pub(super) fn refuse_shared_bytes(program: &Program, nest: &LoopNest) -> Result<(), Refusal> {
    for (number, store) in program.stores.iter().enumerate() {
        let dtype = program.dtype(store.value);
        let walk = &nest.walks[&Of::Store(number)];
        let bits = nest.vector * dtype.bits();
        let whole = bits.is_multiple_of(8) && bits <= 64;
        if dtype.bits() < 8 && !(whole && nest.alignment(walk) >= nest.vector) {
            let reason = format!(
                "a loop stores {dtype} where a byte is shared between threads; make the last \
                 dimension contiguous and \
                 even, or store i8 or f8"
            );
            return Err(Refusal::Unsupported(reason));
        }
    }
    Ok(())
}

/// A kernel on its device.
struct Loaded {
    entry: Entry,
    arguments: Vec<Argument>,
}

impl Loaded {
    fn new(kernel: KernelLaunch, device: &Device) -> Result<Self, Error> {
        let config = LaunchConfig {
            grid_dim: (kernel.grid, 1, 1),
            block_dim: (kernel.block, 1, 1),
            shared_mem_bytes: kernel.shared_bytes,
        };
        let entry = Entry::new(device, (&kernel.source, ENTRY), config)?;
        Ok(Self { entry, arguments: kernel.arguments })
    }
}

struct Loop {
    kernels: Vec<Loaded>,
    workspace_bytes: usize,
}

impl Launch for Loop {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        for kernel in &self.kernels {
            let mut values: Vec<CUdeviceptr> =
                kernel.arguments.iter().map(|argument| argument.address(addresses)).collect();
            debug_assert!(
                values.iter().all(|address| address % 16 == 0),
                "slots are aligned for vector access"
            );
            let mut parameters: Vec<*mut c_void> =
                values.iter_mut().map(|value| (value as *mut CUdeviceptr).cast()).collect();
            // SAFETY: the parameters are those that the source was printed with; the plan gives
            // every slot its bytes.
            unsafe { kernel.entry.launch(stream, &mut parameters)? };
        }
        Ok(())
    }
    fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }
}
