//! The compiled step: weights packed, then a block for each tile of channels and pixels.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaStream, LaunchConfig, PushKernelArg};
use overdrive_ir::plan::ConvolutionCall;
use overdrive_ir::{DType, Plan, SlotId};

use super::finish::{Finish, is_sum};
use super::geometry::Geometry;
use crate::Error;
use crate::compiler::KernelSource;
use crate::kernels::nest::ViewStart;
use crate::launch::{Addresses, Launch, Refusal, Site};

/// Threads of a block of `convolution.cu`.
const THREADS: u32 = 256;
const PIXELS: usize = 128;
/// Multiprocessors of a large GPU: with fewer tiles than these, tiles are halved.
const BLOCKS: usize = 128;

/// How a call packs its weights.
struct WeightPacking {
    /// Whether tensor cores multiply.
    tensor: bool,
    /// Output channels of a tile.
    channels: usize,
    /// Packed elements, and their bytes.
    elements: usize,
    bytes: usize,
}

impl WeightPacking {
    fn new(call: &ConvolutionCall, geometry: &Geometry<'_>) -> Self {
        let (dtype, accumulate) = (call.input.ty.dtype, call.accumulate);
        let tensor = matches!(dtype, DType::F16 | DType::BF16) && accumulate == DType::F32;
        let tiles = geometry.pixels().div_ceil(PIXELS);
        let wide =
            tensor && geometry.outputs() > 64 && tiles * geometry.outputs().div_ceil(128) >= BLOCKS;
        let channels = if wide { 128 } else { 64 };
        let step = match (tensor, accumulate.bits()) {
            (true, _) => 32,
            (false, 64) => 8,
            (false, _) => 16,
        };
        let depth = geometry.depth().next_multiple_of(step);
        let elements = call.groups * depth * geometry.outputs().next_multiple_of(channels);
        let staged = if tensor { dtype } else { accumulate };
        Self { tensor, channels, elements, bytes: elements * staged.bits() / 8 }
    }
}

/// Bytes of the scratch of a call: its packed weights.
pub(crate) fn scratch_bytes(call: &ConvolutionCall) -> usize {
    WeightPacking::new(call, &Geometry::new(call)).bytes
}

/// The design that a convolution is compiled to.
struct Design {
    source: KernelSource,
    slots: Vec<SlotId>,
    /// Tiles of pixels, tiles of channels, groups.
    grid: [usize; 3],
    packing: WeightPacking,
}

impl Design {
    fn new(plan: &Plan, call: &ConvolutionCall, may_alias: bool) -> Result<Self, Refusal> {
        let (dtype, accumulate) = (call.input.ty.dtype, call.accumulate);
        if dtype != call.kernel.ty.dtype || !is_sum(accumulate) || dtype.bits() < 8 {
            let found = format!("{dtype} by {} with sums in {accumulate}", call.kernel.ty.dtype);
            return Err(Refusal::Unsupported(format!(
                "no convolution of {found}; convert both sides to one type"
            )));
        }
        let geometry = Geometry::new(call);
        let finish = Finish::new(plan, &call.epilogue.0, may_alias)?;
        let packing = WeightPacking::new(call, &geometry);
        let touched =
            [call.input.slot, call.kernel.slot].into_iter().chain(finish.slots.iter().copied());
        let largest = touched.map(|slot| plan.slot(slot).ty.elements()).max().unwrap_or(0);
        let offset = if largest < 1 << 30 { "i32" } else { "i64" };
        let tile = format!("constexpr int BM = {};\n", packing.channels);
        let text = geometry.print(offset) + &finish.text + &tile + include_str!("convolution.cu");
        let defines = if packing.tensor { vec![("TENSOR", String::new())] } else { vec![] };
        let tiles = geometry.pixels().div_ceil(PIXELS);
        let grid = [tiles, geometry.outputs().div_ceil(packing.channels), call.groups];
        if grid[0] > i32::MAX as usize
            || grid[1..].iter().any(|&n| n > 65535)
            || packing.elements > i32::MAX as usize
        {
            let reason =
                format!("a convolution of {grid:?} tiles is more than a launch has; split it");
            return Err(Refusal::Unsupported(reason));
        }
        let source = KernelSource { name: "convolution".into(), text: text.into(), defines };
        Ok(Self { source, slots: finish.slots, grid, packing })
    }
}

/// A compiled convolution.
#[derive(Debug)]
struct Convolution {
    pack: CudaFunction,
    convolution: CudaFunction,
    input: ViewStart,
    kernel: ViewStart,
    slots: Vec<SlotId>,
    packing: LaunchConfig,
    config: LaunchConfig,
    packed_bytes: usize,
}

/// The source of the kernel that a call is compiled to.
pub(crate) fn source_of(plan: &Plan, call: &ConvolutionCall) -> Result<KernelSource, Refusal> {
    Ok(Design::new(plan, call, false)?.source)
}

/// Compiles a convolution.
///
/// # Errors
/// `Unsupported` for operands of two types, and for epilogues on types of less than a byte.
pub fn compile(site: &Site<'_>, call: &ConvolutionCall) -> Result<Box<dyn Launch>, Refusal> {
    let design = Design::new(site.plan, call, !site.step.aliases.is_empty())?;
    let over =
        |grid_dim| LaunchConfig { grid_dim, block_dim: (THREADS, 1, 1), shared_mem_bytes: 0 };
    let [tiles, channels, groups] = design.grid.map(|n| n as u32);
    Ok(Box::new(Convolution {
        pack: site.device.function(&design.source, "pack")?,
        convolution: site.device.function(&design.source, "convolution")?,
        input: ViewStart::new(&call.input),
        kernel: ViewStart::new(&call.kernel),
        slots: design.slots,
        packing: over(((design.packing.elements as u32).div_ceil(THREADS), 1, 1)),
        config: over((tiles, channels, groups)),
        packed_bytes: design.packing.bytes,
    }))
}

impl Launch for Convolution {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let (tiles, channels, groups) = self.config.grid_dim;
        if tiles == 0 || channels == 0 || groups == 0 {
            return Ok(());
        }
        let [input, kernel] = [self.input, self.kernel].map(|place| place.of(addresses));
        let packed = addresses.workspace();
        let slots: Vec<u64> = self.slots.iter().map(|&slot| addresses.of(slot)).collect();
        // SAFETY: the workspace has room for the packed weights. The parameters are those of the
        // kernels, which read only taps that are inside and write only pixels that exist.
        unsafe {
            if self.packing.grid_dim.0 > 0 {
                stream.launch_builder(&self.pack).arg(&kernel).arg(&packed).launch(self.packing)?;
            }
            let mut launch = stream.launch_builder(&self.convolution);
            launch.arg(&input).arg(&packed);
            for slot in &slots {
                launch.arg(slot);
            }
            launch.launch(self.config)?;
        }
        Ok(())
    }

    fn workspace_bytes(&self) -> usize {
        self.packed_bytes
    }
}
