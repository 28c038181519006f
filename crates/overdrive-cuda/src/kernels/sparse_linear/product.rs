//! The compiled step: source, tensor maps, launch (`product.cu` says how it works).
//!
//! The copy engine wants rows at steps of 16 bytes: x and y that lie otherwise go through workspace. Invariant: the
//! compressed weight is read where it is, never copied.

use super::instruction;
use super::tile::{TILES, Tile};
use crate::Error;
use crate::compiler::{Architecture, Source};
use crate::entry::Entry;
use crate::gemm::one_batch;
use crate::kernels::nest::Place;
use crate::kernels::transfer::Transfer;
use crate::launch::{Addresses, Launch, Refusal, Site};
use crate::tensor_map::{Boxes, Extent, Maps};
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::DType;
use overdrive_ir::plan::{KernelCall, View};
use std::ffi::c_void;
use std::sync::Arc;

/// Elements of two bytes that the copy engine wants rows to be apart by a multiple of.
const STEP: usize = 8;
/// Bytes that what lies in workspace begins at a multiple of.
const ALIGNMENT: usize = 256;

/// Rows that the copy engine can take, where they are or in workspace.
#[derive(Debug)]
struct Rows {
    place: Place,
    /// Elements from row to row.
    step: usize,
    /// The copy from there or back, and where in workspace.
    staged: Option<(Transfer, usize)>,
}

/// Which way rows that are staged go.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

impl Rows {
    /// The rows of a view; takes of `workspace` what it needs.
    fn new(site: &Site<'_>, view: &View, way: Way, workspace: &mut usize) -> Result<Self, Refusal> {
        let place = Place::new(view);
        let sizes = view.ty.sizes();
        let (outer, width) = (&sizes[..sizes.len() - 1], sizes[sizes.len() - 1]);
        let padded = width.next_multiple_of(STEP);
        let step = one_batch(outer, [&view.strides[..outer.len()]])
            .map(|(rows, [step])| if rows == 1 { padded as i64 } else { step })
            .filter(|step| *step >= width as i64 && step % STEP as i64 == 0 && *step <= u32::MAX.into());
        let contiguous = view.strides[outer.len()] == 1 || width == 1;
        if let Some(step) = step.filter(|_| contiguous && place.is_aligned(2 * STEP)) {
            return Ok(Self { place, step: step as usize, staged: None });
        }
        let rows: usize = outer.iter().product();
        let mut dense = View { offset: 0, ..View::row_major(view.slot, view.ty.clone()) };
        for stride in &mut dense.strides[..outer.len()] {
            *stride = *stride / width as i64 * padded as i64;
        }
        let [from, to] = match way {
            Way::In => [view, &dense],
            Way::Out => [&dense, view],
        };
        let at = workspace.next_multiple_of(ALIGNMENT);
        *workspace = at + 2 * rows * padded;
        Ok(Self { place, step: padded, staged: Some((Transfer::new(site, from, to)?, at)) })
    }

    /// Where the product reads or writes them.
    fn address(&self, addresses: &Addresses) -> u64 {
        match &self.staged {
            Some((_, at)) => addresses.workspace() + *at as u64,
            None => self.place.of(addresses),
        }
    }

    fn boxes(&self, dtype: DType, [rows, width]: [usize; 2], shape: [usize; 2]) -> Boxes {
        let step = self.step as i64;
        Boxes::new(dtype, [Extent::new(width, 1), Extent::new(rows, step), Extent::new(1, step)], shape)
    }
}

#[derive(Debug)]
struct Compiled {
    entry: Entry,
    /// Values, x, y.
    rows: [Rows; 3],
    maps: Maps,
    mask: Place,
    workspace_bytes: usize,
}

/// What the source depends on.
struct Wanted {
    dtype: DType,
    rows: usize,
    n: usize,
    k: usize,
}

impl Wanted {
    fn blocks(&self, tile: Tile, multiprocessors: usize) -> usize {
        let [outputs, rows] = tile.counts(self.rows, self.n);
        outputs.saturating_mul(rows).min(multiprocessors)
    }

    fn source(&self, tile: Tile, multiprocessors: usize) -> Source {
        let defines = [
            ("X", self.dtype.to_string()),
            ("ROWS", self.rows.to_string()),
            ("N", self.n.to_string()),
            ("K", self.k.to_string()),
            ("CONSUMERS", tile.consumers.to_string()),
            ("TILE_N", tile.rows.to_string()),
            ("STAGES", tile.stages().to_string()),
            ("GROUP", tile.group(tile.counts(self.rows, self.n)[0]).to_string()),
            ("BLOCKS", self.blocks(tile, multiprocessors).to_string()),
        ];
        let defines: String = defines.iter().map(|(key, value)| format!("#define {key} {value}\n")).collect();
        let wgmma = instruction::print(tile.rows, self.dtype);
        let headers = "#include \"loop.cuh\"\n#include \"hopper.cuh\"\n";
        let text = format!("{headers}{defines}{wgmma}{}", include_str!("product.cu"));
        Source { name: "sparse_linear".into(), text: text.into(), defines: vec![] }
    }
}

/// Sources that stand for all others.
pub(in crate::kernels) fn sources() -> Vec<Source> {
    let large = Wanted { dtype: DType::BF16, rows: 8192, n: 8192, k: 8192 };
    let ragged = Wanted { dtype: DType::F16, rows: 333, n: 520, k: 1152 };
    let of = |wanted: Wanted| TILES.map(|tile| wanted.source(tile, 132));
    [of(large), of(ragged)].concat()
}

/// Compiles a layer by a 2:4 weight.
///
/// # Errors
/// `Unsupported` off Hopper, and for weights that do not lie row after row.
pub(in crate::kernels) fn compile(site: &Site<'_>, call: &KernelCall) -> Result<Box<dyn Launch>, Refusal> {
    if site.device.architecture() != Architecture::Sm90a {
        return Err(Refusal::Unsupported("only Hopper has these sparse tensor cores".to_owned()));
    }
    let [x, values, mask] = [0, 1, 2].map(|at| &call.operands[at]);
    let Some(Some(y)) = call.results.first() else {
        return Err(Refusal::Unsupported("a layer that nobody reads".to_owned()));
    };
    let whole = |view: &View| {
        let dense = View::row_major(view.slot, view.ty.clone());
        view.offset == 0 && view.strides == dense.strides
    };
    if let Some(view) = [values, mask].into_iter().find(|view| !whole(view)) {
        let reason = format!("weights of {} whose rows do not follow each other; copy them first", view.ty);
        return Err(Refusal::Unsupported(reason));
    }
    let [n, half] = [values.ty.sizes()[0], values.ty.sizes()[1]];
    let wanted = Wanted { dtype: x.ty.dtype, rows: x.ty.elements() / (2 * half), n, k: 2 * half };
    let multiprocessors = site.device.properties().multiprocessors as usize;
    let tile = Tile::of(wanted.rows);
    let config = LaunchConfig {
        grid_dim: (wanted.blocks(tile, multiprocessors) as u32, 1, 1),
        block_dim: (tile.threads() as u32, 1, 1),
        shared_mem_bytes: tile.shared_bytes() as u32,
    };
    let mut workspace_bytes = 0;
    let rows = [
        Rows::new(site, values, Way::In, &mut workspace_bytes)?,
        Rows::new(site, x, Way::In, &mut workspace_bytes)?,
        Rows::new(site, y, Way::Out, &mut workspace_bytes)?,
    ];
    let maps = Maps::new(vec![
        rows[0].boxes(wanted.dtype, [n, half], [32, tile.outputs()]),
        rows[1].boxes(wanted.dtype, [wanted.rows, wanted.k], [64, tile.rows]),
        rows[2].boxes(wanted.dtype, [wanted.rows, n], [64, tile.slice()]),
    ]);
    Ok(Box::new(Compiled {
        entry: Entry::new(site.device, (&wanted.source(tile, multiprocessors), "sparse_linear"), config)?,
        rows,
        maps,
        mask: Place::new(mask),
        workspace_bytes,
    }))
}

impl Launch for Compiled {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let [values, x, y] = &self.rows;
        for rows in [values, x] {
            if let Some((transfer, _)) = &rows.staged {
                // SAFETY: an operand, and the part of the workspace that was taken for it.
                unsafe { transfer.run(stream, [rows.place.of(addresses), rows.address(addresses)])? };
            }
        }
        let mut maps = self.maps.at(&[values, x, y].map(|rows| rows.address(addresses)))?;
        let mut mask = self.mask.of(addresses);
        let mut parameters: Vec<*mut c_void> = maps.iter_mut().map(|map| (&raw mut *map).cast()).collect();
        parameters.push((&raw mut mask).cast());
        // SAFETY: the parameters are those of the kernel, which keeps to the extents.
        unsafe { self.entry.launch(stream, &mut parameters)? };
        if let Some((transfer, _)) = &y.staged {
            // SAFETY: the part of the workspace that was taken for y, and y.
            unsafe { transfer.run(stream, [y.address(addresses), y.place.of(addresses)])? };
        }
        Ok(())
    }

    fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }
}
