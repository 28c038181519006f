//! `cast_transpose`: codes of one byte in both orders, the largest magnitude and sums of columns.
//! All come from one read of x, or of the tensors that x is computed from. One launch may do
//! several calls whose operands are of the same types and lie alike, whatever their sizes.

mod special;

use super::line::{Compile, Launched, NamedKernel, Sources};
use super::nest::ViewStart;
use crate::Error;
use crate::entry::Entry;
use crate::launch::{Addresses, Launch, PARAMETER_BYTES, Refusal, Site};
use crate::memory::DeviceBytes;
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::ops::CastTranspose;
use overdrive_ir::plan::{KernelCall, KernelOp, Step, StepKind, View};
use overdrive_ir::{DType, Decline, Graph, OpRef, Operation, TensorType};
use overdrive_passes::elementwise;
use special::{Special, THREADS};
use std::ffi::c_void;
use std::sync::Arc;

/// Rows and columns of a tile: the rows are those of a band of sums.
const TILE: usize = CastTranspose::BAND;
/// Tensors that x may be computed from.
const MOST: usize = 2;
/// Bytes of `Counter` of `cast_transpose.cu`.
const COUNTER_BYTES: usize = 8;
/// Rounds of a launch of several calls: blocks of fewer tiles end at the same time, those of more
/// start less often.
const ROUNDS: usize = 4;
/// Most tiles of a block of such a launch.
const TILES: usize = 8;

/// Why the op over operands of these types has no kernel; `None` where it has, and of other ops.
fn declines(op: &Operation, types: &[TensorType]) -> Option<Decline> {
    let op = op.composite::<CastTranspose>()?;
    let (of, scales) = types.split_at(types.len().checked_sub(op.scales())?);
    if let Some(scale) = scales.iter().find(|ty| op.lines && ty.dtype != DType::E8M0) {
        let reason = format!("its kernel takes scales of lines in e8m0, not {scale}");
        return Some(Decline::Because(reason));
    }
    let is_known = |ty: &TensorType| matches!(ty.dtype, DType::BF16 | DType::F16 | DType::F32);
    let x = of.iter().find(|ty| !is_known(ty) || ty.elements() == 0)?;
    Some(Decline::Because(format!("its kernel takes no {x}: codes are made and transposed apart")))
}

/// Why a region has no kernel. Operands of 32 bits are not worth two reads.
fn declines_regions(regions: &[Graph]) -> Option<Decline> {
    let types = |graph: &Graph| -> Vec<DType> {
        let inputs = graph.inputs().iter().map(|port| port.value);
        let values = inputs.chain(graph.outputs().iter().map(|port| port.value));
        values.map(|v| graph.ty(v).dtype).collect()
    };
    let reason = match regions {
        [region] if !(1..=MOST).contains(&region.inputs().len()) => {
            format!("its kernel takes x of one or {MOST} tensors")
        }
        [region] if types(region).iter().any(|dtype| dtype.bits() != 16) => {
            "its kernel takes x of 16 bits, of tensors of 16 bits".to_owned()
        }
        [region] => elementwise(region).err()?,
        _ => return Some(Decline::NoKernel),
    };
    Some(Decline::Because(reason))
}

/// `Matrices` of `cast_transpose.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Matrices {
    extents: [i64; 2],
    x: [[i64; 2]; MOST],
    codes: [i64; 2],
    transposed: [i64; 2],
    sums: [i64; 2],
    scales: [i64; 2],
}

/// `Part` of `cast_transpose.cu`, but for places.
#[derive(Debug)]
struct Part {
    /// The tensors that x is computed from.
    of: Vec<ViewStart>,
    /// The scale, or those of rows and of columns.
    scales: [Option<ViewStart>; 2],
    /// Codes, transposed codes, largest magnitude, sums.
    results: [Option<ViewStart>; 4],
    /// Counter by which blocks combine the largest magnitude, if that is a result. Each launch
    /// resets it at its end.
    counter: Option<DeviceBytes>,
    at: Matrices,
    blocks: u32,
}

#[derive(Debug)]
struct CompiledCastTranspose {
    entry: Entry,
    parts: Vec<Part>,
}

/// `cast_transpose`.
pub(super) const KERNEL: NamedKernel = NamedKernel {
    declines,
    declines_regions,
    ..NamedKernel::new(
        "cast_transpose",
        Compile::Composite(compile),
        Sources::All(special::sources),
    )
};

/// The op, the views of what x is computed from, and those of the scales.
fn parts<'a>(call: &'a KernelCall, op: &OpRef) -> (CastTranspose, [&'a [View]; 2]) {
    let op = *op.downcast::<CastTranspose>().expect("the table is by name");
    let (of, scales) = call.operands.split_at(call.operands.len() - op.scales());
    (op, [of, scales])
}

fn results(call: &KernelCall) -> [Option<&View>; 4] {
    std::array::from_fn(|i| call.results.get(i).and_then(Option::as_ref))
}

fn special<'a>(call: &KernelCall, op: &OpRef, regions: &'a [Graph]) -> Special<'a> {
    let ((op, [of, scales]), results) = (parts(call, op), results(call));
    let lies = |view: &View, multiple: i64| {
        ViewStart::new(view).is_aligned(16)
            && view.strides[1] == 1
            && view.strides[0] % multiple == 0
    };
    let may_lie = |view: Option<&View>, multiple| view.is_none_or(|view| lies(view, multiple));
    let sizes = of[0].ty.sizes();
    let is_whole = sizes[0].is_multiple_of(16)
        && sizes[1].is_multiple_of(8)
        && of.iter().all(|view| lies(view, 8))
        && may_lie(results[0], 8)
        && may_lie(results[1], 16);
    let region = regions.first();
    let x = region.map_or(of[0].ty.dtype, |region| region.ty(region.outputs()[0].value).dtype);
    Special {
        x,
        of: of.iter().map(|view| view.ty.dtype).collect(),
        scale: scales[0].ty.dtype,
        code: op.to,
        region,
        is_whole,
        is_full: is_whole && sizes.iter().all(|size| size.is_multiple_of(TILE)),
        has_lines: op.lines,
        wanted: results.map(|result| result.is_some()),
    }
}

/// The call of a step that may be cast beside others, with its op.
fn castable(step: &Step) -> Option<(&KernelCall, &OpRef)> {
    let StepKind::Kernel(call) = &step.kind else { return None };
    let KernelOp::Composite(op, regions) = &call.op else { return None };
    (regions.is_empty() && op.downcast::<CastTranspose>().is_some()).then_some((call, op))
}

/// Whether one launch can do a step beside others.
pub(crate) fn joins(steps: &[&Step], step: &Step) -> bool {
    let (Some((of, op)), Some((other, as_op))) = (castable(steps[0]), castable(step)) else {
        return false;
    };
    let of = special(of, op, &[]);
    of == special(other, as_op, &[]) && (steps.len() + 1) * of.part_bytes() <= PARAMETER_BYTES
}

/// Compiles steps that were gathered.
///
/// # Errors
/// As `compile` of one.
pub(crate) fn compile_together(site: &Site<'_>, steps: &[Step]) -> Launched {
    let calls: Vec<_> = steps.iter().filter_map(castable).collect();
    let special = special(calls[0].0, calls[0].1, &[]);
    let resident = (site.device.properties().multiprocessors * special.resident()) as usize;
    let all: usize = calls.iter().map(|(call, op)| tiles(call, op)).sum();
    let of_block = all.div_ceil(ROUNDS * resident).min(TILES);
    let blocks = |(call, op): &(&KernelCall, &OpRef)| tiles(call, op).div_ceil(of_block);
    let parts: Result<Vec<Part>, Error> =
        calls.iter().map(|of| Part::new(site, *of, blocks(of))).collect();
    launched(site, &special, parts?)
}

/// Compiles the step.
fn compile(site: &Site<'_>, call: &KernelCall, op: &OpRef, regions: &[Graph]) -> Launched {
    let special = special(call, op, regions);
    let resident = (site.device.properties().multiprocessors * special.resident()) as usize;
    let part = Part::new(site, (call, op), tiles(call, op).min(resident))?;
    launched(site, &special, vec![part])
}

/// The tiles of a call.
fn tiles(call: &KernelCall, op: &OpRef) -> usize {
    let (_, [of, _]) = parts(call, op);
    of[0].ty.sizes().iter().map(|size| size.div_ceil(TILE)).product()
}

/// A launch of calls that are all of one specialisation.
fn launched(site: &Site<'_>, special: &Special<'_>, parts: Vec<Part>) -> Launched {
    let config = LaunchConfig {
        grid_dim: (parts.iter().map(|part| part.blocks).sum(), 1, 1),
        block_dim: (THREADS, 1, 1),
        shared_mem_bytes: special.ahead_bytes() as u32,
    };
    let source = special.source(parts.len()).map_err(Refusal::Unsupported)?;
    let entry = Entry::new(site.device, (&source, "cast_transpose"), config)?;
    Ok(Box::new(CompiledCastTranspose { entry, parts }))
}

impl Part {
    fn new(
        site: &Site<'_>,
        (call, op): (&KernelCall, &OpRef),
        blocks: usize,
    ) -> Result<Self, Error> {
        let ((_, [of, scales]), results) = (parts(call, op), results(call));
        let strides =
            |view: Option<&View>| view.map_or([0, 1], |view| [view.strides[0], view.strides[1]]);
        let sizes = of[0].ty.sizes();
        let at = Matrices {
            extents: [sizes[0] as i64, sizes[1] as i64],
            x: std::array::from_fn(|n| strides(of.get(n))),
            codes: strides(results[0]),
            transposed: strides(results[1]),
            sums: strides(results[3]),
            scales: match scales {
                [rows, columns] => [rows.strides[0], columns.strides[1]],
                _ => [0, 0],
            },
        };
        let counter =
            results[2].map(|_| DeviceBytes::new(site.device, COUNTER_BYTES)).transpose()?;
        counter.iter().try_for_each(|counter| counter.fill(0))?;
        Ok(Self {
            of: of.iter().map(ViewStart::new).collect(),
            scales: std::array::from_fn(|i| scales.get(i).map(ViewStart::new)),
            results: results.map(|view| view.map(ViewStart::new)),
            counter,
            at,
            blocks: u32::try_from(blocks).unwrap_or(u32::MAX),
        })
    }

    /// Its words in the table, where its blocks begin at `first`.
    fn words(&self, addresses: &Addresses, first: u32) -> impl Iterator<Item = u64> {
        let of = self.of.iter().map(|place| place.of(addresses));
        let others = self.scales.iter().chain(&self.results);
        let others = others.map(|place| place.map_or(0, |place| place.of(addresses)));
        let counter = self.counter.as_ref().map_or(0, DeviceBytes::address);
        let Matrices { extents, x, codes, transposed, sums, scales } = self.at;
        let places = x.into_iter().chain([codes, transposed, sums, scales]);
        let matrices = extents.into_iter().chain(places.flatten());
        let matrices = matrices.map(i64::cast_unsigned);
        let blocks = u64::from(first) | u64::from(self.blocks) << 32;
        of.chain(others).chain([counter]).chain(matrices).chain([blocks])
    }
}

impl Launch for CompiledCastTranspose {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let (mut table, mut first) = (Vec::<u64>::new(), 0);
        for part in &self.parts {
            table.extend(part.words(addresses, first));
            first += part.blocks;
        }
        let mut parameters: [*mut c_void; 1] = [table.as_mut_ptr().cast()];
        // SAFETY: the table is a `Parts` of the source, which keeps to extents and counters.
        unsafe { self.entry.launch(stream, &mut parameters) }
    }
}
