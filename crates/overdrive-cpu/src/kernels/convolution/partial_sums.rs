//! A fold over all of space behind an epilogue (a mean over each image, say). The folded values
//! need not be stored.
//!
//! Each span folds its values into a part of its image, in the order of its pixels. When all parts
//! are there, a loop over them follows, with the rest of the program behind it. So results do not
//! depend on which thread computed a span. By `Finish::pieces` they do not depend on the number of
//! threads either.
#![allow(unsafe_code)] // Raw pointers into slots.

use std::ops::Range;
use std::sync::OnceLock;

use overdrive_ir::plan::{Access, ConvolutionCall, Instr, Program, Reduction, Store};
use overdrive_ir::{DType, Plan, SlotId};

use super::tile_epilogue::TileEpilogue;
use crate::exec::Unsupported;
use crate::exec::space::{accesses, insert};
use crate::loops::{AccumulatorTile, Affine, CompiledEpilogue, CompiledLoop, identity};
use crate::slots::SlotTable;
use crate::threads::Pool;

/// The compiled fold of a convolution.
pub(super) struct Fold {
    /// Folds a tile into a part.
    tile: TileEpilogue,
    parts: PartialSums,
    /// The value of a part before anything is folded into it, in as many bytes as an element has.
    identity: Vec<u8>,
    whole: Program,
    dtypes: Vec<DType>,
    /// From parts to results: made in the first call, which knows how many there are.
    last: OnceLock<CompiledLoop>,
}

/// The layout of parts: `[N, most, outputs]`.
#[derive(Clone, Copy)]
struct PartialSums {
    slot: SlotId,
    most: usize,
    outputs: usize,
}

impl PartialSums {
    /// The first part of each channel of an image, over an iteration space in which `strides`
    /// belong to images, parts and channels.
    fn access(self, strides: impl FnOnce([i64; 3]) -> Vec<i64>) -> Access {
        let Self { slot, most, outputs } = self;
        Access { slot, offset: 0, strides: strides([(most * outputs) as i64, outputs as i64, 1]) }
    }
}

/// The program that stores values of each sum, from a program `whole` in the form `merged`; `None`
/// where it stores nothing.
pub(super) fn each(whole: &Program, merged: &Program) -> Option<Program> {
    let kept = |(store, of): (&Store, &Store)| {
        (whole.reduced == 0 || whole.is_spread(&of.access)).then(|| store.clone())
    };
    let stores: Vec<Store> = merged.stores.iter().zip(&whole.stores).filter_map(kept).collect();
    if stores.is_empty() { None } else { Some(Program { stores, ..before(merged) }) }
}

/// The program without its fold and without the values that depend on it. None of those varies in
/// space.
fn before(program: &Program) -> Program {
    let mut result = Program { stores: vec![], ..program.clone() };
    for (instr, _) in
        result.instrs.iter_mut().zip(program.after_reductions()).filter(|(_, after)| *after)
    {
        *instr = Instr::Constant(0.0);
    }
    result
}

/// The fold of a program, and its type.
fn reduction(program: &Program) -> Option<(&Reduction, DType)> {
    program.instrs.iter().zip(&program.dtypes).find_map(|(instr, &dtype)| match instr {
        Instr::Reduce(reduction) => Some((reduction, dtype)),
        _ => None,
    })
}

/// How the rows and columns of a tile lie in space.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TileRows {
    /// Rows are output channels, columns are pixels.
    Channels,
    /// The reverse.
    Pixels,
}

impl Fold {
    /// The fold of a call. `merged` is the form of the call's epilogue without the values that
    /// depend on the fold. It is `[..., O, pixels]` or, if rows are pixels, `[N, pixels, O]`.
    /// `None` where there is no fold. For rows that are pixels, also where such tiles are not made
    /// for the fold.
    pub(super) fn new(
        plan: &Plan,
        call: &ConvolutionCall,
        (merged, rows): (&Program, TileRows),
    ) -> Result<Option<Self>, Unsupported> {
        let whole = &call.epilogue.0;
        let (Some((reduction, dtype)), Some(slot)) = (reduction(whole), call.workspace) else {
            return Ok(None);
        };
        let parts =
            PartialSums { slot, most: plan.slot(slot).ty.sizes()[1], outputs: whole.extents[1] };
        let program = of_tiles(merged, (reduction, dtype), (parts, rows));
        let dtypes: Vec<DType> = plan.slots.iter().map(|slot| slot.ty.dtype).collect();
        let of = |slot: SlotId| dtypes[slot.0 as usize];
        let tile = match rows {
            TileRows::Channels => Affine::of(&program, &of),
            TileRows::Pixels => Affine::of_columns(&program, &of),
        };
        let tile = match (tile, rows) {
            (Some(affine), _) => TileEpilogue::Affine(Box::new(affine)),
            (None, TileRows::Pixels) => return Ok(None),
            (None, TileRows::Channels) => {
                let compiled = CompiledEpilogue::new(&program, &of);
                TileEpilogue::Program(Box::new(
                    compiled.map_err(|e| Unsupported::new(e.to_string()))?,
                ))
            }
        };
        // The capabilities of the loop are the same for any number of parts.
        CompiledLoop::new(&of_parts(whole, parts, 1), &of)
            .map_err(|e| Unsupported::new(e.to_string()))?;
        let identity =
            identity(reduction.reducer, dtype).to_le_bytes()[..dtype.bits() / 8].to_vec();
        Ok(Some(Self {
            tile,
            parts,
            identity,
            whole: whole.clone(),
            dtypes,
            last: OnceLock::new(),
        }))
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        self.tile.scratch_bytes()
    }

    pub(super) fn prepare(&self, pool: &Pool, slots: &SlotTable) {
        self.tile.prepare(pool, slots);
    }

    /// Empties some channels of a part of an image.
    ///
    /// # Safety
    /// The part is this task's.
    pub(super) unsafe fn begin(
        &self,
        (image, part): (usize, usize),
        rows: Range<usize>,
        slots: &SlotTable,
    ) {
        let PartialSums { slot, most, outputs } = self.parts;
        debug_assert!(part < most && rows.end <= outputs, "the plan has room for each part");
        let (first, width) = ((image * most + part) * outputs, self.identity.len());
        for row in rows {
            let to = slots.get(slot).wrapping_add((first + row) * width);
            // SAFETY: nobody else touches the part, and an element of it is as long as the
            // identity.
            unsafe { to.copy_from_nonoverlapping(self.identity.as_ptr(), width) };
        }
    }

    /// Folds a tile into a part of its image.
    ///
    /// # Safety
    /// As for [`TileEpilogue::apply`], after [`begin`](Self::begin).
    pub(super) unsafe fn apply(
        &self,
        (tile, part): (AccumulatorTile, usize),
        slots: &SlotTable,
        scratch: *mut u8,
    ) {
        let tile = AccumulatorTile { batch: tile.batch * self.parts.most + part, ..tile };
        // SAFETY: the dimension of parts is the last before those of the tile, so the tile lands in
        // its own part.
        unsafe { self.tile.apply(tile, slots, scratch) }
    }

    /// Computes results from the first `used` parts of each image, all of which are complete.
    pub(super) fn finish(&self, pool: &Pool, slots: &SlotTable, used: usize) {
        let last = self.last.get_or_init(|| {
            let of = |slot: SlotId| self.dtypes[slot.0 as usize];
            CompiledLoop::new(&of_parts(&self.whole, self.parts, used), &of)
                .expect("a loop over one part was compiled")
        });
        // SAFETY: the plan keeps reads and writes of the step apart, and all tasks that write parts
        // are over.
        unsafe { last.run(pool, slots) }
    }
}

/// The program that folds the values of a tile's sums into a part: over `[..., parts, rows,
/// columns]`.
fn of_tiles(
    merged: &Program,
    (reduction, dtype): (&Reduction, DType),
    (parts, rows): (PartialSums, TileRows),
) -> Program {
    let mut program = before(merged);
    let batch = program.extents.len() - 2;
    insert(&mut program, batch, parts.most);
    program.reduced = 1;
    let access = parts.access(|[image, part, channel]| {
        let mut strides = vec![0; batch];
        strides[0] = image;
        strides.extend(match rows {
            TileRows::Channels => [part, channel, 0],
            TileRows::Pixels => [part, 0, channel],
        });
        strides
    });
    let known = program.push(Instr::Load(access.clone()), dtype);
    let folded = program.push(Instr::Reduce(reduction.clone()), dtype);
    let value = program.push(Instr::Binary(reduction.reducer.binary(), known, folded), dtype);
    program.stores.push(Store { access, value });
    program
}

/// The program that folds parts, with the rest of the program behind it: over `[N, O, parts]`.
fn of_parts(whole: &Program, parts: PartialSums, used: usize) -> Program {
    let varies = whole.element_level();
    let extents = vec![whole.extents[0], whole.extents[1], used];
    let mut program = Program { extents, reduced: 1, ..whole.clone() };
    let spatial = &whole.extents[2..];
    program.stores.retain(|store| !whole.is_spread(&store.access));
    debug_assert!(!spatial.is_empty(), "a fold over space has space");
    for access in accesses(&mut program) {
        access.strides.truncate(2);
        access.strides.push(0);
    }
    // Values that varied in space do not exist any more; the folded value is a part.
    for (instr, _) in program.instrs.iter_mut().zip(&varies).filter(|(_, varies)| **varies) {
        *instr = Instr::Constant(0.0);
    }
    let (reduction, _) = reduction(whole).expect("the caller found one");
    let access = parts.access(|[image, part, channel]| vec![image, channel, part]);
    program.instrs[reduction.value.0 as usize] = Instr::Load(access);
    program
}
