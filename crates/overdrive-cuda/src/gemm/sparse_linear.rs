//! Our kernel for products by 2:4 weights on Hopper's sparse tensor cores: `sparse_linear` with its
//! epilogue. Source, tensor maps and launch are here; `kernels/sparse_linear.cu` says how it works.
//!
//! Invariant: the compressed weight is read where it is, never copied.

mod instruction;
mod tile;

use super::base::Base;
use super::epilogue::{self, is_printable};
use super::hopper;
use super::problem::sums;
use super::sources::linear_gelu;
use super::staged::Halves;
use crate::Error;
use crate::compiler::{Architecture, KernelSource};
use crate::entry::Entry;
use crate::kernels::line::{Compile, Launched, NamedKernel, Sources};
use crate::launch::{Addresses, Launch, Refusal, Site};
use crate::tensor_map::{Boxes, Extent, Maps};
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::plan::{GemmCall, KernelCall, MatrixView, Plan, SlotId, View};
use overdrive_ir::{DType, Graph, OpRef, Precision};
use std::ffi::c_void;
use std::sync::Arc;
use tile::{SparseTile, TILES, declines};

struct Sparse {
    entry: Entry,
    /// Values, x, the result.
    bases: [Base; 3],
    maps: Maps,
    mask: Base,
    /// Buffers of the epilogue.
    slots: Vec<SlotId>,
}

/// The product as one by a dense weight of values, half as deep as x: epilogues know no more of
/// one.
fn product(call: &KernelCall) -> Option<GemmCall> {
    let (x, values) = (&call.operands[0], &call.operands[1]);
    let epilogue = call.epilogue.clone()?;
    let [batch @ .., m, n] = &epilogue.0.extents[..] else { return None };
    let (batch, m, n, k) = (batch.to_vec(), *m, *n, 2 * values.ty.sizes()[1]);
    let view = |view: &View, row: usize| MatrixView {
        slot: view.slot,
        dtype: view.ty.dtype,
        offset: view.offset,
        row_stride: row as i64,
        col_stride: 1,
        batch_strides: vec![0; batch.len()],
    };
    let (lhs, rhs) = (view(x, k), view(values, k / 2));
    let (accumulate, precision) = (DType::F32, Precision::Exact);
    Some(GemmCall { batch, m, n, k, lhs, rhs, accumulate, precision, epilogue })
}

/// The base and the stride of rows of a result that the copy engine can store.
fn stored(product: &GemmCall) -> Option<(Base, i64)> {
    let program = &product.epilogue.0;
    let half = program.dtype(program.stores[0].value).bits() == 16;
    let first = hopper::stored(product).into_iter().next();
    first.filter(|_| half && product.batch.is_empty()).map(|first| (first.base, first.row))
}

fn rows(product: &GemmCall) -> usize {
    product.m * product.batch.iter().product::<usize>()
}

fn blocks(product: &GemmCall, tile: SparseTile, multiprocessors: usize) -> usize {
    let [outputs, rows] = tile.counts(rows(product), product.n);
    outputs.saturating_mul(rows).min(multiprocessors)
}

fn source(product: &GemmCall, tile: SparseTile, multiprocessors: usize) -> KernelSource {
    let mut defines = epilogue::defines(product, sums(product));
    defines.extend([
        ("CONSUMERS", tile.consumers.to_string()),
        ("TILE_N", tile.rows.to_string()),
        ("STAGES", tile.stages().to_string()),
        ("GROUP", tile.group(tile.counts(rows(product), product.n)[0]).to_string()),
        ("BLOCKS", blocks(product, tile, multiprocessors).to_string()),
        ("STORE_BY_TMA", u8::from(stored(product).is_some()).to_string()),
    ]);
    let wgmma = instruction::print(tile.rows, product.lhs.dtype);
    let text = epilogue::print(product).text + &wgmma + include_str!("kernels/sparse_linear.cu");
    epilogue::source("sparse_linear", &defines, &text)
}

/// Sources of every tile: for results of whole tiles, and for those that the copy engine cannot
/// store.
fn sources() -> Vec<KernelSource> {
    let calls = [([8192, 16384, 4096], DType::BF16), ([333, 519, 1152], DType::F16)];
    let calls = calls.map(|(shape, dtype)| linear_gelu(shape, dtype, true));
    let of = |call| TILES.into_iter().map(move |tile| source(call, tile, 132));
    calls.iter().flat_map(of).collect()
}

/// `sparse_linear` with its epilogue, on Hopper's sparse tensor cores.
pub(crate) const KERNEL: NamedKernel = NamedKernel {
    only: Some(Architecture::Sm90a),
    takes_epilogue: true,
    declines,
    needs: |call, _, _, _| {
        let waits = product(call).filter(|product| !is_printable(&product.epilogue.0));
        let halves = waits.map(|product| Halves::of(&Plan::default(), &product, sums(&product)));
        Ok(halves.map_or(0, |halves| halves.scratch_bytes()))
    },
    ..NamedKernel::new("sparse_linear", Compile::Composite(compile), Sources::All(sources))
};

/// Compiles a product by a 2:4 weight with its epilogue.
///
/// # Errors
/// `Unsupported` off Hopper, and for a call without an epilogue.
fn compile(site: &Site<'_>, call: &KernelCall, _: &OpRef, _: &[Graph]) -> Launched {
    let Some(product) = product(call).filter(|_| site.device.architecture() == Architecture::Sm90a)
    else {
        return Err(Refusal::Unsupported("only Hopper has these sparse tensor cores".to_owned()));
    };
    if is_printable(&product.epilogue.0) {
        return launch(site, call, &product);
    }
    // Results of less than a byte: the sums first, then the rest as a loop.
    let halves = Halves::of(site.plan, &product, sums(&product));
    let both = halves.compile(site, |site, product| launch(site, call, product).map(Some))?;
    Ok(both.expect("the first half was made"))
}

fn launch(
    site: &Site<'_>,
    call: &KernelCall,
    product: &GemmCall,
) -> Result<Box<dyn Launch>, Refusal> {
    let multiprocessors = site.device.properties().multiprocessors as usize;
    let (rows, n, k, dtype) = (rows(product), product.n, product.k, product.lhs.dtype);
    let tile = SparseTile::of(rows);
    let config = LaunchConfig {
        grid_dim: (blocks(product, tile, multiprocessors) as u32, 1, 1),
        block_dim: (tile.threads() as u32, 1, 1),
        shared_mem_bytes: tile.shared_bytes() as u32,
    };
    let entry = Entry::new(
        site.device,
        (&source(product, tile, multiprocessors), "sparse_linear"),
        config,
    )?;
    let matrix = |[rows, width]: [usize; 2], row: usize, shape| {
        let row = row as i64;
        Boxes::new(
            dtype,
            [Extent::new(width, 1), Extent::new(rows, row), Extent::new(1, row)],
            shape,
        )
    };
    let (of_values, of_x) = (Base::of(&product.rhs), Base::of(&product.lhs));
    let values = matrix([n, k / 2], k / 2, [32, tile.outputs()]);
    let x = matrix([rows, k], k, [64, tile.rows]);
    let (of_y, y) = match stored(product) {
        Some((base, row)) => (base, matrix([rows, n], row as usize, [64, tile.slice()])),
        // The kernel does not look at it.
        None => (of_x, x.clone()),
    };
    let mask = &call.operands[2];
    Ok(Box::new(Sparse {
        entry,
        bases: [of_values, of_x, of_y],
        maps: Maps::new(vec![values, x, y]),
        mask: Base::at(mask.slot, mask.ty.dtype, mask.offset),
        slots: epilogue::print(product).slots,
    }))
}

impl Launch for Sparse {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let mut maps = self.maps.at(&self.bases.map(|base| base.address(addresses)))?;
        let mut mask = self.mask.address(addresses);
        let mut slots: Vec<u64> = self.slots.iter().map(|&slot| addresses.of(slot)).collect();
        let mut parameters: Vec<*mut c_void> =
            maps.iter_mut().map(|map| (&raw mut *map).cast()).collect();
        parameters.extend([(&raw mut mask).cast(), slots.as_mut_ptr().cast()]);
        // SAFETY: the parameters are those of the kernel, with as many addresses as `Slots` has; it
        // keeps to the extents.
        unsafe { self.entry.launch(stream, &mut parameters) }
    }
}
