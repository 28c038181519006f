//! `dynamic_slice` and `dynamic_update_slice`: a block at a position that is data.

use std::sync::Arc;

use cudarc::driver::{CudaFunction, CudaStream, DeviceRepr, LaunchConfig, PushKernelArg};
use overdrive_ir::Prim;
use overdrive_ir::plan::View;

use super::element;
use super::line::{CallShape, Compile, Launched, NamedKernel, Shaped, Sources};
use super::nest::{Nest, RANK, ViewStart, one_each, position};
use super::source::source;
use super::transfer::{Transfer, TransferShape, WIDEST};
use crate::Error;
use crate::compiler::KernelSource;
use crate::launch::{Addresses, Launch, Refusal, Site};

/// The kernel and what it includes.
const TEXT: &str = concat!(include_str!("nest.cuh"), include_str!("dynamic_slice.cu"));

/// The possible starts of a block; `Starts` of `dynamic_slice.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Starts {
    rank: u32,
    limits: [i64; RANK],
    strides: [i64; RANK],
    step: i64,
}

// SAFETY: plain numbers in C's layout.
unsafe impl DeviceRepr for Starts {}

/// The side of the copy whose place is data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Moving {
    From,
    To,
}

/// A copied block before any device has seen it; `starts` give the beginning of one side.
#[derive(Debug)]
struct SliceShape {
    starts: Starts,
    nest: Nest<2>,
    source: KernelSource,
    config: LaunchConfig,
    /// From, to, starts.
    places: [ViewStart; 3],
}

/// The compiled copy.
#[derive(Debug)]
struct CompiledSlice {
    shape: SliceShape,
    function: CudaFunction,
}

impl SliceShape {
    fn new([from, to, starts]: [&View; 3], moving: Moving) -> Result<Self, Refusal> {
        let (whole, block) = if moving == Moving::From { (from, to) } else { (to, from) };
        let (extents, sizes) = (whole.ty.sizes(), block.ty.sizes());
        if sizes.len() > RANK {
            return Err(Refusal::Unsupported(format!(
                "a block of {} dimensions; {RANK} are the most",
                sizes.len()
            )));
        }
        let step = starts.strides[0];
        let mut place =
            Starts { rank: sizes.len() as u32, limits: [0; RANK], strides: [0; RANK], step };
        for d in 0..sizes.len() {
            (place.limits[d], place.strides[d]) =
                ((extents[d] - sizes[d]) as i64, whole.strides[d]);
        }
        let mut nest = Nest::new(&sizes, [&from.strides, &to.strides])?;
        let mut bytes = element::bytes(to.ty.dtype)?;
        let places = [from, to, starts].map(ViewStart::new);
        let aligned = |bytes| places[..2].iter().all(|place| place.is_aligned(bytes));
        // A dimension that starts at 0 whatever the data moves nothing.
        let moves =
            |place: &Starts| (0..RANK).all(|d| place.limits[d] == 0 || place.strides[d] % 2 == 0);
        while bytes < WIDEST && nest.can_double() && aligned(2 * bytes) && moves(&place) {
            nest.double();
            place.strides.iter_mut().for_each(|stride| *stride /= 2);
            bytes *= 2;
        }
        let outward = if moving == Moving::To { "1" } else { "0" };
        let defines = vec![
            ("BYTES", bytes.to_string()),
            ("POSITION", position(nest.count).to_owned()),
            ("OUTWARD", outward.to_owned()),
        ];
        let (source, config) = (source("dynamic_slice", TEXT, defines), one_each(nest.count)?);
        Ok(Self { starts: place, nest, source, config, places })
    }

    fn compiled(self, site: &Site<'_>) -> Result<CompiledSlice, Refusal> {
        let function = site.device.function(&self.source, "dynamic_slice")?;
        Ok(CompiledSlice { shape: self, function })
    }
}

impl CallShape for SliceShape {
    fn load(self: Box<Self>, site: &Site<'_>) -> Launched {
        Ok(Box::new(self.compiled(site)?))
    }
}

impl Launch for CompiledSlice {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let SliceShape { starts: place, nest, config, places, .. } = &self.shape;
        if nest.count == 0 {
            return Ok(());
        }
        let [from, to, starts] = places.map(|place| place.of(addresses));
        let mut launch = stream.launch_builder(&self.function);
        launch.arg(&from).arg(&to).arg(&starts).arg(place).arg(nest);
        // SAFETY: the parameters are those of the kernel, and a clamped block is inside of the
        // whole.
        unsafe { launch.launch(*config)? };
        Ok(())
    }
}

/// `dynamic_slice`.
pub(super) const SLICE: NamedKernel = NamedKernel {
    declines: |_, operands| element::moves(operands),
    ..NamedKernel::new(
        "dynamic_slice",
        Compile::Prim(|prim, operands, results| match (prim, operands, results) {
            (Prim::DynamicSlice { .. }, &[operand, starts], &[Some(result)]) => {
                Some(slice([operand, starts], result))
            }
            _ => None,
        }),
        Sources::All(sources),
    )
};

/// `dynamic_update_slice`.
pub(super) const UPDATE: NamedKernel = NamedKernel {
    declines: |_, operands| element::moves(operands),
    ..NamedKernel::new(
        "dynamic_update_slice",
        Compile::Prim(|prim, operands, results| match (prim, operands, results) {
            (Prim::DynamicUpdateSlice, &[operand, values, starts], &[Some(result)]) => {
                Some(update([operand, values, starts], result))
            }
            _ => None,
        }),
        Sources::All(Vec::new),
    )
};

/// Representative specialisations of all sources; a slice and an update share their text.
fn sources() -> Vec<KernelSource> {
    let of = |(bytes, position, outward): (&str, &str, &str)| {
        let defines = [("BYTES", bytes), ("POSITION", position), ("OUTWARD", outward)];
        source("dynamic_slice", TEXT, defines.map(|(key, value)| (key, value.to_owned())).into())
    };
    [("16", "u32", "0"), ("1", "u64", "1")].map(of).into()
}

/// The shape of a `dynamic_slice`.
fn slice([operand, starts]: [&View; 2], result: &View) -> Shaped {
    Ok(Box::new(SliceShape::new([operand, result, starts], Moving::From)?))
}

/// A `dynamic_update_slice` before any device has seen it.
#[derive(Debug)]
struct UpdateShape {
    whole: TransferShape,
    operand: ViewStart,
    block: SliceShape,
}

impl CallShape for UpdateShape {
    fn load(self: Box<Self>, site: &Site<'_>) -> Launched {
        let Self { whole, operand, block } = *self;
        let (whole, block) = (whole.load(site.device)?, block.compiled(site)?);
        Ok(Box::new(Update { whole, operand, block }))
    }
}

/// A compiled `dynamic_update_slice`. If the plan lets the result take the operand's place, only
/// the update moves.
#[derive(Debug)]
struct Update {
    whole: Transfer,
    operand: ViewStart,
    block: CompiledSlice,
}

impl Launch for Update {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let [from, to] =
            [self.operand, self.block.shape.places[1]].map(|place| place.of(addresses));
        if from != to {
            // SAFETY: the copy was compiled for operand and result, and these are their addresses.
            unsafe { self.whole.run(stream, [from, to])? };
        }
        self.block.launch(stream, addresses)
    }
}

/// The shape of a `dynamic_update_slice`.
fn update([operand, update, starts]: [&View; 3], result: &View) -> Shaped {
    let whole = TransferShape::new(operand, result)?;
    let block = SliceShape::new([update, result, starts], Moving::To)?;
    Ok(Box::new(UpdateShape { whole, operand: ViewStart::new(operand), block }))
}
