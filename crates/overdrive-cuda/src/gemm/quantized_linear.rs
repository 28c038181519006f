//! Our kernel for products of few rows by weights that stay codes: `quantized_linear` of float
//! activations with its epilogue, alone and in a `bunch`. The launch is here;
//! `kernels/quantized_linear.cu` says how it works.

mod product;
mod shape;
mod source;

pub(super) use product::CodedProduct;

use super::base::Base;
use super::bunch::Bunch;
use super::epilogue::{self, is_printable};
use super::led::{self, RowsSource};
use super::problem::sums;
use super::sources::linear_gelu;
use super::staged::Halves;
use crate::Error;
use crate::compiler::{Architecture, KernelSource};
use crate::entry::Entry;
use crate::kernels::line::{Compile, Launched, NamedKernel, Sources};
use crate::launch::{Addresses, Launch, Refusal, Site};
use crate::tensor_map::{Boxes, Extent, Maps};
use cudarc::driver::sys::CUtensorMap;
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::plan::{KernelCall, Plan, SlotId, View};
use overdrive_ir::{DType, Graph, OpRef, TensorType};
use shape::{LINE_BYTES, QuantizedLinearShape, declines};
use source::{CodeWrites, CodedWork};
use std::ffi::c_void;
use std::sync::Arc;

/// `quantized_linear` of float activations with its epilogue.
pub(crate) const KERNEL: NamedKernel = NamedKernel {
    takes_epilogue: true,
    declines,
    needs: |call, _, _, _| {
        let product = CodedProduct::new(call).map(|product| product.call);
        let waits = product.filter(|product| !is_printable(&product.epilogue.0));
        let halves = waits.map(|product| Halves::of(&Plan::default(), &product, sums(&product)));
        Ok(halves.map_or(0, |halves| halves.scratch_bytes()))
    },
    ..NamedKernel::new("quantized_linear", Compile::Composite(compile), Sources::All(sources))
};

/// The shape of a launch.
fn shape(work: CodedWork<'_>, multiprocessors: usize) -> Option<QuantizedLinearShape> {
    let outputs: Vec<usize> = work.tiles.iter().map(|products| products[0].call.n).collect();
    let parts = work.tiles.iter().map(Vec::len).max().unwrap_or(1);
    let extents = work.tiles[0][0].extents(&outputs, parts, RowsSource::of(work.lead));
    QuantizedLinearShape::new(extents, multiprocessors)
}

fn work(bunch: &Bunch<CodedProduct>) -> CodedWork<'_> {
    CodedWork { tiles: &bunch.tiles, lead: bunch.lead.as_ref() }
}

/// Whether a device with this many multiprocessors has room for such a launch.
pub(super) fn has_room(bunch: &Bunch<CodedProduct>, multiprocessors: u32) -> bool {
    let work = work(bunch);
    let printable = |product: &CodedProduct| is_printable(&product.call.epilogue.0);
    work.products().all(printable) && shape(work, multiprocessors as usize).is_some()
}

/// The source of a bunch whose weights nobody writes.
pub(super) fn source_bunch(
    bunch: &Bunch<CodedProduct>,
    multiprocessors: u32,
) -> Option<KernelSource> {
    let shape = shape(work(bunch), multiprocessors as usize)?;
    Some(source::print(work(bunch), &shape, CodeWrites::Settled, &[]))
}

/// Compiles a bunch.
///
/// # Errors
/// As `launch`.
pub(super) fn compile_bunch(
    site: &Site<'_>,
    bunch: &Bunch<CodedProduct>,
) -> Result<Box<dyn Launch>, Refusal> {
    launch(site, work(bunch))
}

/// Compiles a product by quantized weights with its epilogue.
///
/// # Errors
/// `Unsupported` for a call without an epilogue; else as `launch`.
fn compile(site: &Site<'_>, call: &KernelCall, _: &OpRef, _: &[Graph]) -> Launched {
    let Some(product) = CodedProduct::new(call) else {
        let reason = "a product by codes without an epilogue; plans give it one".to_owned();
        return Err(Refusal::Unsupported(reason));
    };
    let alone = |site: &Site<'_>, product: &CodedProduct| {
        launch(site, CodedWork { tiles: &[vec![product.clone()]], lead: None })
    };
    if is_printable(&product.call.epilogue.0) {
        return alone(site, &product);
    }
    // Results of less than a byte: the sums first, then the rest as a loop.
    let halves = Halves::of(site.plan, &product.call, sums(&product.call));
    let both = halves.compile(site, |site, call| {
        alone(site, &CodedProduct { call: call.clone(), ..product.clone() }).map(Some)
    })?;
    Ok(both.expect("the first half was made"))
}

struct CodedLaunch {
    entry: Entry,
    x: Base,
    codes: Vec<SlotId>,
    /// Maps of the codes for the bulk copy engine, if the device has one.
    maps: Option<Maps>,
    /// `Given` of the source: the weights of each product, the buffers of the epilogues, those of
    /// the loop.
    given: Vec<Option<SlotId>>,
}

/// Compiles products that one launch does.
///
/// # Errors
/// `Unsupported` if they do not fit in a block, or their weights do not lie row after row.
fn launch(site: &Site<'_>, work: CodedWork<'_>) -> Result<Box<dyn Launch>, Refusal> {
    let views = || work.products().flat_map(|product| product.weights().into_iter().flatten());
    if let Some(view) = views().find(|view| !view.is_dense()) {
        let reason =
            format!("weights of {} whose rows do not follow each other; copy them first", view.ty);
        return Err(Refusal::Unsupported(reason));
    }
    let multiprocessors = site.device.properties().multiprocessors as usize;
    let shape = shape(work, multiprocessors).ok_or_else(|| {
        Refusal::Unsupported("a block has no room for these products by codes".to_owned())
    })?;
    let settled = views().all(|view| site.is_settled(view.slot));
    let writes = if settled { CodeWrites::Settled } else { CodeWrites::Moving };
    let source = source::print(work, &shape, writes, &led::asks(site, work.lead));
    let config = LaunchConfig {
        grid_dim: (shape.blocks as u32, 1, 1),
        block_dim: (shape.threads() as u32, 1, 1),
        shared_mem_bytes: shape.shared_bytes as u32,
    };
    let boxes = |product: &CodedProduct| {
        let row = product.call.k * product.codes.ty.dtype.bits() / 8;
        let extents = [
            Extent::new(row, 1),
            Extent::new(product.call.n, row as i64),
            Extent::new(1, row as i64),
        ];
        Boxes::new(DType::U8, extents, [shape.halves * LINE_BYTES, shape.weight_tiles * 16])
    };
    let slot = |view: Option<&View>| view.map(|view| view.slot);
    let weights = work.products().flat_map(|product| product.weights().map(slot));
    let epilogues = work.products().flat_map(|product| epilogue::print(&product.call).slots);
    // Without a loop, its array still has an element.
    let led = work.lead.map_or(vec![None], |lead| lead.slots().into_iter().map(Some).collect());
    Ok(Box::new(CodedLaunch {
        entry: Entry::new(site.device, (&source, "quantized_rows"), config)?,
        x: Base::of(&work.tiles[0][0].call.lhs),
        codes: work.products().map(|product| product.codes.slot).collect(),
        maps: copies_in_bulk(site.device.architecture())
            .then(|| Maps::new(work.products().map(boxes).collect())),
        given: weights.chain(epilogues.map(Some)).chain(led).collect(),
    }))
}

/// Whether the device has the bulk copy engine: `COPIES_IN_BULK` of the source.
fn copies_in_bulk(architecture: Architecture) -> bool {
    match architecture {
        Architecture::Sm80 | Architecture::Sm89 => false,
        Architecture::Sm90a | Architecture::Sm100a => true,
        Architecture::Other(capability) => capability >= 90,
    }
}

impl Launch for CodedLaunch {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let mut x = self.x.address(addresses);
        let codes: Vec<u64> = self.codes.iter().map(|&slot| addresses.of(slot)).collect();
        // Other devices' kernels do not look at them.
        let mut maps = vec![CUtensorMap { opaque: [0; 16] }; codes.len()];
        if let Some(known) = &self.maps {
            maps.copy_from_slice(&known.at(&codes)?);
        }
        let place = |slot: &Option<SlotId>| slot.map_or(0, |slot| addresses.of(slot));
        let mut given: Vec<u64> = self.given.iter().map(place).collect();
        let mut parameters: [*mut c_void; 3] =
            [(&raw mut x).cast(), maps.as_mut_ptr().cast(), given.as_mut_ptr().cast()];
        // SAFETY: the kernel takes an address, a map for each product, and the addresses of
        // `Given`; rows beyond the weights' last are not stored.
        unsafe { self.entry.launch(stream, &mut parameters) }
    }
}

/// Representative specialisations of all sources.
fn sources() -> Vec<KernelSource> {
    let view = |slot, dtype, sizes: [usize; 2]| {
        View::row_major(SlotId(slot), TensorType::new(dtype, sizes))
    };
    let plain = |[rows, n, k]: [usize; 3], x, codes, (scale, group): (DType, usize)| {
        let codes = view(1, codes, [n, k]);
        let scale = view(5, scale, [n, k / group]);
        let call = linear_gelu([rows, n, k], x, true);
        CodedProduct { call, codes, scale, zero: None, tensor_scale: None }
    };
    let row = [1, 4096, 4096];
    let int4 = plain(row, DType::BF16, DType::I4, (DType::F32, 128));
    let fine = plain([3, 4096, 4096], DType::F16, DType::I4, (DType::F16, 32));
    let asymmetric = CodedProduct { zero: Some(view(6, DType::F32, [4096, 128])), ..fine };
    let shifted = CodedProduct { zero: Some(view(6, DType::I4, [4096, 32])), ..int4.clone() };
    let mx = plain(row, DType::BF16, DType::F4E2M1, (DType::E8M0, 32));
    let two_level = CodedProduct {
        tensor_scale: Some(View::row_major(SlotId(6), TensorType::scalar(DType::BF16))),
        ..plain([12, 4096, 4096], DType::BF16, DType::F4E2M1, (DType::F8E4M3, 16))
    };
    let int8 = plain([24, 4096, 4096], DType::BF16, DType::I8, (DType::F32, 4096));
    let ragged = plain([5, 333, 1040], DType::F16, DType::I8, (DType::F32, 16));
    let gate = plain([2, 5632, 2048], DType::BF16, DType::I4, (DType::BF16, 64));
    let alone = [int4, asymmetric, shifted, mx, two_level, int8, ragged].map(|one| vec![one]);
    let tiles = alone.into_iter().chain([vec![gate.clone(), gate]]);
    let print = |products: Vec<CodedProduct>| {
        let tiles = [products];
        let work = CodedWork { tiles: &tiles, lead: None };
        let shape = shape(work, 132).expect("these have room");
        source::print(work, &shape, CodeWrites::Settled, &[])
    };
    tiles.map(print).collect()
}
