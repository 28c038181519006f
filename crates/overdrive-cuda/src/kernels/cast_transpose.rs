//! `cast_transpose`: codes of one byte in both orders, and the largest magnitude, from one read of
//! x.

use super::line::{Compile, Launched, NamedKernel, Sources};
use super::nest::ViewStart;
use super::source::source;
use crate::Error;
use crate::compiler::KernelSource;
use crate::entry::Entry;
use crate::launch::{Addresses, Launch, Site};
use crate::memory::DeviceBytes;
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::ops::CastTranspose;
use overdrive_ir::plan::{KernelCall, View};
use overdrive_ir::{DType, Decline, Graph, OpRef, Operation, TensorType};
use std::ffi::c_void;
use std::sync::Arc;

/// The kernel and what it includes.
const TEXT: &str = concat!("#include \"loop.cuh\"\n", include_str!("cast_transpose.cu"));

/// A tile of a block, and its threads.
const TILE: [usize; 2] = [128, 64];
const THREADS: u32 = 256;
/// Bytes of `Counter` of `cast_transpose.cu`.
const COUNTER_BYTES: usize = 8;
/// Blocks that the second dimension of a grid has.
const GRID_Y: usize = 65535;

/// Why the op over operands of these types has no kernel; `None` where it has, and of other ops.
fn declines(_: &Operation, types: &[TensorType]) -> Option<Decline> {
    let x = types.first()?;
    let known = matches!(x.dtype, DType::BF16 | DType::F16 | DType::F32);
    let fits = x.elements() > 0 && x.sizes()[0].div_ceil(TILE[0]) <= GRID_Y;
    (!known || !fits)
        .then(|| format!("its kernel takes no {x}: codes are made and transposed apart"))
        .map(Decline::Because)
}

/// `Matrices` of `cast_transpose.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Matrices {
    extents: [i64; 2],
    x: [i64; 2],
    codes: [i64; 2],
    transposed: [i64; 2],
}

#[derive(Debug)]
struct CompiledCastTranspose {
    entry: Entry,
    /// x and scale.
    operands: [ViewStart; 2],
    /// Codes, transposed codes, largest magnitude.
    results: [Option<ViewStart>; 3],
    /// Counter by which blocks combine the largest magnitude, if that is a result. Each launch
    /// resets it at its end.
    counter: Option<DeviceBytes>,
    at: Matrices,
}

/// The kernel for x and codes of these types, with the results that are wanted.
fn specialised([x, scale, code]: [DType; 3], is_whole: bool, wanted: [bool; 3]) -> KernelSource {
    let [codes, transposed, largest] = wanted.map(|wanted| wanted.to_string());
    let defines = vec![
        ("X", x.to_string()),
        ("SCALE", scale.to_string()),
        ("CODE", code.to_string()),
        ("WHOLE", is_whole.to_string()),
        ("HAS_CODES", codes),
        ("HAS_TRANSPOSED", transposed),
        ("HAS_LARGEST", largest),
    ];
    source("cast_transpose", TEXT, defines)
}

/// `cast_transpose`.
pub(super) const KERNEL: NamedKernel = NamedKernel {
    declines,
    ..NamedKernel::new("cast_transpose", Compile::Composite(compile), Sources::All(sources))
};

/// Representative specialisations of all sources.
fn sources() -> Vec<KernelSource> {
    let [bf16, f32, e4m3, e5m2] = [DType::BF16, DType::F32, DType::F8E4M3, DType::F8E5M2];
    vec![
        specialised([bf16, f32, e4m3], true, [true; 3]),
        specialised([bf16, f32, e5m2], true, [true, true, false]),
        specialised([f32, f32, e5m2], false, [true; 3]),
        specialised([f32, f32, e4m3], true, [false, true, true]),
    ]
}

/// Compiles the step.
fn compile(site: &Site<'_>, call: &KernelCall, op: &OpRef, _: &[Graph]) -> Launched {
    let op = op.downcast::<CastTranspose>().expect("the table is by name");
    let [x, scale] = [&call.operands[0], &call.operands[1]];
    let results: [Option<&View>; 3] = std::array::from_fn(|i| call.results[i].as_ref());
    let strides =
        |view: Option<&View>| view.map_or([0, 1], |view| [view.strides[0], view.strides[1]]);
    let at = Matrices {
        extents: [x.ty.sizes()[0] as i64, x.ty.sizes()[1] as i64],
        x: strides(Some(x)),
        codes: strides(results[0]),
        transposed: strides(results[1]),
    };
    let [rows, columns] = at.extents;
    let lies = |view: Option<&View>, row: i64, multiple: i64| {
        let aligned =
            view.is_none_or(|view| ViewStart::new(view).is_aligned(16) && view.strides[1] == 1);
        aligned && row % multiple == 0
    };
    let is_whole = columns % 8 == 0
        && rows % 16 == 0
        && lies(Some(x), at.x[0], 8)
        && lies(results[0], at.codes[0], 8)
        && lies(results[1], at.transposed[0], 16);
    let source = specialised(
        [x.ty.dtype, scale.ty.dtype, op.to],
        is_whole,
        results.map(|result| result.is_some()),
    );
    let blocks = |extent: i64, tile: usize| (extent as usize).div_ceil(tile) as u32;
    let config = LaunchConfig {
        grid_dim: (blocks(columns, TILE[1]), blocks(rows, TILE[0]), 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: 0,
    };
    let counter = results[2].map(|_| DeviceBytes::new(site.device, COUNTER_BYTES)).transpose()?;
    counter.iter().try_for_each(|counter| counter.fill(0))?;
    Ok(Box::new(CompiledCastTranspose {
        entry: Entry::new(site.device, (&source, "cast_transpose"), config)?,
        operands: [x, scale].map(ViewStart::new),
        results: results.map(|view| view.map(ViewStart::new)),
        counter,
        at,
    }))
}

impl Launch for CompiledCastTranspose {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let operands = self.operands.map(|place| place.of(addresses));
        let results = self.results.map(|place| place.map_or(0, |place| place.of(addresses)));
        let counter = self.counter.as_ref().map_or(0, DeviceBytes::address);
        let mut places: Vec<u64> = operands.into_iter().chain(results).chain([counter]).collect();
        let mut at = self.at;
        let mut parameters: Vec<*mut c_void> =
            places.iter_mut().map(|place| (&raw mut *place).cast()).collect();
        parameters.push((&raw mut at).cast());
        // SAFETY: the parameters are those of the kernel, which keeps to extents and the counter.
        unsafe { self.entry.launch(stream, &mut parameters) }
    }
}
