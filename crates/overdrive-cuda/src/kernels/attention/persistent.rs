//! A kernel of Hopper whose blocks take tasks until none are left: what a call is compiled to, and
//! its launch. The parameters are those of `hopper.cu` and `float8.cu`.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::plan::{KernelCall, SlotId};

use super::block_mask::{BlockMask, CompiledBlockMask, MaskGrid};
use super::shape::AttentionShape;
use crate::Error;
use crate::compiler::KernelSource;
use crate::entry::Entry;
use crate::kernels::nest::ViewStart;
use crate::launch::{Addresses, Launch, Refusal, Site};
use crate::memory::DeviceBytes;
use crate::tensor_map::{Boxes, Maps};

/// Rows of a warpgroup: queries, or keys.
pub(super) const OWN: usize = 64;
/// Size of `Counter` of `walk.cuh`.
const COUNTER_BYTES: usize = 8;

/// How a call is copied and cut.
pub(super) struct Tasks {
    /// Those of q, k, v and the output.
    pub(super) boxes: [Boxes; 4],
    /// Operands before the captures: q, k and v, and then a scale of each or nothing.
    pub(super) own: usize,
    /// Warpgroups that multiply, of `OWN` queries each.
    pub(super) consumers: usize,
    pub(super) shared_bytes: usize,
}

pub(super) struct PersistentAttention {
    entry: Entry,
    maps: Maps,
    /// q, k, v and the output.
    places: [ViewStart; 4],
    lse: Option<ViewStart>,
    /// Those of q, k and v, of which `float8.cu` takes the addresses.
    scales: Option<[ViewStart; 3]>,
    /// Counter by which the blocks of a launch take tasks. Each launch resets it at its end.
    counter: DeviceBytes,
    shape: AttentionShape,
    mask: Option<CompiledBlockMask>,
    captures: Vec<SlotId>,
    workspace_bytes: usize,
}

impl PersistentAttention {
    /// Compiles a call that has an output.
    pub(super) fn compile(
        site: &Site<'_>,
        call: &KernelCall,
        tasks: Tasks,
        (source, shape, mask): (&KernelSource, AttentionShape, Option<BlockMask>),
    ) -> Result<Box<dyn Launch>, Refusal> {
        let out = call.results[0].as_ref().expect("the output is what the kernel is chosen for");
        let blocks = shape.tasks(OWN * tasks.consumers);
        let config = LaunchConfig {
            grid_dim: (blocks.min(site.device.properties().multiprocessors as usize) as u32, 1, 1),
            block_dim: ((tasks.consumers as u32 + 1) * 128, 1, 1),
            shared_mem_bytes: tasks.shared_bytes as u32,
        };
        let counter = DeviceBytes::new(site.device, COUNTER_BYTES)?;
        counter.fill(0)?;
        let start = |i: usize| ViewStart::new(&call.operands[i]);
        let captures = &call.operands[tasks.own..];
        Ok(Box::new(Self {
            entry: Entry::new(site.device, (source, "attention"), config)?,
            maps: Maps::new(tasks.boxes.into()),
            places: [start(0), start(1), start(2), ViewStart::new(out)],
            lse: call.results[1].as_ref().map(ViewStart::new),
            scales: (tasks.own > 3).then(|| [3, 4, 5].map(start)),
            counter,
            shape,
            mask: mask
                .map(|mask| CompiledBlockMask::new(site, (mask, shape), source, captures.len()))
                .transpose()?,
            workspace_bytes: mask.map_or(0, BlockMask::scratch_bytes),
            captures: captures.iter().map(|view| view.slot).collect(),
        }))
    }
}

impl Launch for PersistentAttention {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let mut maps = self.maps.at(&self.places.map(|place| place.of(addresses)))?;
        let mut lse = self.lse.map_or(0, |place| place.of(addresses));
        let mut scales = self.scales.map(|scales| scales.map(|place| place.of(addresses)));
        let mut captures: Vec<u64> = self.captures.iter().map(|&slot| addresses.of(slot)).collect();
        let mask = self.mask.as_ref();
        let mask = mask.map(|mask| mask.make(stream, addresses.workspace(), &captures));
        let mut mask: Option<MaskGrid> = mask.transpose()?;
        let (mut counter, mut shape) = (self.counter.address(), self.shape);
        let mut parameters: Vec<*mut c_void> =
            maps.iter_mut().map(|map| (&raw mut *map).cast()).collect();
        parameters.push((&raw mut lse).cast());
        parameters.extend(scales.iter_mut().map(|scales| (&raw mut *scales).cast::<c_void>()));
        parameters.extend([(&raw mut counter).cast::<c_void>(), (&raw mut shape).cast()]);
        parameters.extend(mask.iter_mut().map(|mask| (mask as *mut MaskGrid).cast::<c_void>()));
        parameters
            .extend(captures.iter_mut().map(|capture| (capture as *mut u64).cast::<c_void>()));
        // SAFETY: the parameters are those of the kernel, whose copies keep to the maps and whose
        // other stores keep to the rows of the shape.
        unsafe { self.entry.launch(stream, &mut parameters) }
    }

    fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }
}
