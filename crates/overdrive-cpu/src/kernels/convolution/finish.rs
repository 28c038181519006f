//! Finishes the sums of a span of pixels. The epilogue is applied, line by line where the result's
//! pixels are no one run. The results are stored, folded over space (`partial_sums`), or both.
#![allow(unsafe_code)] // Raw pointers into slots and scratch.

use std::ops::Range;

use overdrive_ir::Plan;
use overdrive_ir::plan::{ConvolutionCall, Program};

use super::partial_sums::{self, Fold, TileRows};
use super::tile_epilogue::TileEpilogue;
use crate::exec::Unsupported;
use crate::exec::space::{accesses, along_columns, is_random, merge, merges, permuted};
#[cfg(target_arch = "x86_64")]
use crate::loops::Columns;
use crate::loops::{AccumulatorTile, Affine, CompiledEpilogue};
use crate::slots::SlotTable;
use crate::threads::Pool;

/// The compiled epilogue of a convolution.
pub(super) struct Finish {
    /// The epilogue of each sum, if anything is stored of it.
    each: Option<TileEpilogue>,
    fold: Option<Fold>,
    /// Pixels that are one row of the epilogue: all of an image, or a line of it.
    line: usize,
    /// Pixels of an image.
    pixels: usize,
}

/// Finished sums: rows of output channels from `row` on by neighbouring pixels from `first` on.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub(super) image: usize,
    /// The number in its image of the span, or of those that are folded as one.
    pub(super) part: usize,
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) first: usize,
    pub(super) pixels: usize,
    pub(super) sums: *const u8,
    /// Bytes of a sum, and from a row to the next.
    pub(super) width: usize,
    pub(super) row_bytes: usize,
}

impl Sums {
    /// The tile whose rows are the pixels and whose columns are the channels.
    #[cfg(target_arch = "x86_64")]
    fn of_pixels(self) -> AccumulatorTile {
        let Self { image, row: col, rows: cols, first: row, pixels: rows, sums, row_bytes, .. } =
            self;
        AccumulatorTile { sums, row_bytes, batch: image, row, col, rows, cols }
    }
}

impl Finish {
    pub(super) fn new(plan: &Plan, call: &ConvolutionCall) -> Result<Self, Unsupported> {
        let whole = &call.epilogue.0;
        let (merged, line) = by_lines(whole)?;
        let dtypes = |slot| plan.slot(slot).ty.dtype;
        let compiled = |program: Program| match Affine::of(&program, &dtypes) {
            Some(affine) => Ok(TileEpilogue::Affine(Box::new(affine))),
            None => {
                let compiled = CompiledEpilogue::new(&program, &dtypes);
                let compiled = compiled.map_err(|e| Unsupported::new(e.to_string()))?;
                Ok(TileEpilogue::Program(Box::new(compiled)))
            }
        };
        let each = partial_sums::each(whole, &merged).map(compiled).transpose()?;
        let fold = Fold::new(plan, call, (&merged, TileRows::Channels))?;
        Ok(Self { each, fold, line, pixels: whole.extents[2..].iter().product() })
    }

    /// The same for sums whose rows are pixels and whose columns are output channels, where results
    /// lie so.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn of_pixels(plan: &Plan, call: &ConvolutionCall) -> Option<Self> {
        let whole = &call.epilogue.0;
        let pixels = whole.extents[2..].iter().product();
        let (merged, line) = by_lines(whole).ok()?;
        if merged.extents.len() != 3 || line != pixels || is_random(&merged) {
            return None;
        }
        let merged = permuted(&merged, &[0, 2, 1]);
        let dtypes = |slot| plan.slot(slot).ty.dtype;
        let each = match partial_sums::each(whole, &merged) {
            Some(each) if !each.stores.iter().all(|store| store.access.strides[2] == 1) => {
                return None;
            }
            Some(each) => Some(if let Some(columns) = Columns::of(&each, &dtypes) {
                TileEpilogue::Columns(Box::new(columns))
            } else if let Some(affine) = Affine::of_columns(&each, &dtypes) {
                TileEpilogue::Affine(Box::new(affine))
            } else {
                TileEpilogue::Program(Box::new(CompiledEpilogue::new(&each, &dtypes).ok()?))
            }),
            None => None,
        };
        let fold = Fold::new(plan, call, (&merged, TileRows::Pixels)).ok()?;
        let complete = fold.is_some() || whole.reduced == 0;
        complete.then_some(Self { each, fold, line, pixels })
    }

    /// Whether tiles of some pixels and channels are finished as well as whole rows are.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn takes_tiles(&self) -> bool {
        self.fold.is_none() && matches!(self.each, Some(TileEpilogue::Columns(_)))
    }

    /// Whether some channels of a pixel are finished apart from the others. Folds and multiply-adds
    /// of columns need whole rows.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn takes_some_channels(&self) -> bool {
        self.fold.is_none() && !matches!(self.each, Some(TileEpilogue::Affine(_)))
    }

    /// Number of pieces that a call is cut into, if its work allows: a few per thread. Parts of a
    /// fold are pieces too. Their number is fixed, since results would otherwise depend on the
    /// number of threads.
    pub(super) fn pieces(&self, pool: &Pool) -> usize {
        /// Pieces for eight threads, four each.
        const OF_FOLD: usize = 32;
        if self.fold.is_some() { OF_FOLD } else { 4 * pool.threads() }
    }

    /// Asks for the memory that [`apply_pixels`](Self::apply_pixels) will touch with these sums.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn ask_pixels(&self, at: Sums, slots: &SlotTable) {
        if let Some(TileEpilogue::Columns(columns)) = &self.each {
            columns.ask(slots, at.of_pixels());
        }
    }

    /// Hands sums to an epilogue made by [`of_pixels`](Self::of_pixels): `pixels` rows of all
    /// `outputs` channels from pixel `first` on.
    ///
    /// # Safety
    /// As for [`apply`](Self::apply).
    #[cfg(target_arch = "x86_64")]
    pub(super) unsafe fn apply_pixels(&self, at: Sums, slots: &SlotTable, scratch: *mut u8) {
        // SAFETY: the tile names the same sums, its rows pixels and its columns channels; they and
        // the scratch are this task's.
        unsafe { self.tile((at.of_pixels(), at.part), slots, scratch) }
    }

    /// # Safety
    /// As for [`apply`](Self::apply).
    unsafe fn tile(
        &self,
        (tile, part): (AccumulatorTile, usize),
        slots: &SlotTable,
        scratch: *mut u8,
    ) {
        // SAFETY: the tile lies in the output, whose other parts belong to other tasks; the scratch
        // is enough for either epilogue.
        unsafe {
            self.each.iter().for_each(|each| each.apply(tile, slots, scratch));
            self.fold.iter().for_each(|fold| fold.apply((tile, part), slots, scratch));
        }
    }

    /// Bytes of scratch that [`apply`](Self::apply) wants.
    pub(super) fn scratch_bytes(&self) -> usize {
        let each = self.each.as_ref().map_or(0, TileEpilogue::scratch_bytes);
        each.max(self.fold.as_ref().map_or(0, Fold::scratch_bytes))
    }

    /// Computes the values that all pixels share, before the first [`apply`](Self::apply) of a
    /// call.
    pub(super) fn prepare(&self, pool: &Pool, slots: &SlotTable) {
        self.each.iter().for_each(|each| each.prepare(pool, slots));
        self.fold.iter().for_each(|fold| fold.prepare(pool, slots));
    }

    /// Runs the epilogue of a reduction, after the last [`apply`](Self::apply) of a call. `spans`
    /// is the number of spans of each image.
    pub(super) fn conclude(&self, pool: &Pool, slots: &SlotTable, spans: usize) {
        self.fold.iter().for_each(|fold| fold.finish(pool, slots, spans));
    }

    /// Makes some channels of a part of an image ready, before the first [`apply`](Self::apply) of
    /// it.
    ///
    /// # Safety
    /// The part is this task's.
    pub(super) unsafe fn begin(
        &self,
        (image, part): (usize, usize),
        rows: Range<usize>,
        slots: &SlotTable,
    ) {
        // SAFETY: no other task has this part of the image.
        self.fold.iter().for_each(|fold| unsafe { fold.begin((image, part), rows.clone(), slots) });
    }

    /// Hands sums to the epilogue, after [`begin`](Self::begin).
    ///
    /// # Safety
    /// The sums can be read, their pixels of the output and their part belong to this task, and
    /// there are [`scratch_bytes`](Self::scratch_bytes).
    pub(super) unsafe fn apply(&self, at: Sums, slots: &SlotTable, scratch: *mut u8) {
        let Sums { image, part, row, rows, first, pixels, sums, width, row_bytes } = at;
        let mut done = 0;
        while done < pixels {
            let pixel = first + done;
            let run = (self.line - pixel % self.line).min(pixels - done);
            let tile = AccumulatorTile {
                sums: sums.wrapping_add(done * width),
                row_bytes,
                batch: image * (self.pixels / self.line) + pixel / self.line,
                row,
                col: pixel % self.line,
                rows,
                cols: run,
            };
            // SAFETY: `run` pixels from `done` on are among the sums, and in one line of the
            // output.
            unsafe { self.tile((tile, part), slots, scratch) };
            done += run;
        }
    }
}

/// The epilogue over `[images and lines..., O, pixels of a line]`, and the number of pixels of a
/// line. A line is all of an image where its spatial dimensions merge into one, and the last of
/// them otherwise.
fn by_lines(program: &Program) -> Result<(Program, usize), Unsupported> {
    // Each pixel of a fold over space is a part like any other.
    let mut merged = Program { reduced: 0, ..program.clone() };
    if merged.extents.len() == 2 {
        merged.extents.push(1);
        accesses(&mut merged).for_each(|access| access.strides.push(0));
    }
    while merged.extents.len() > 3 {
        let d = merged.extents.len() - 1;
        let extent = merged.extents[d] as i64;
        if !merges(&merged, d, |strides| strides[d - 1] == strides[d] * extent) {
            break;
        }
        merge(&mut merged, d);
    }
    let rank = merged.extents.len();
    if rank <= 3 {
        along_columns(&mut merged);
        let line = merged.extents[2];
        return Ok((merged, line));
    }
    if is_random(program) {
        return Err(Unsupported::new(
            "random bits after a convolution whose result is not laid out by pixels",
        ));
    }
    let order: Vec<usize> = [0].into_iter().chain(2..rank - 1).chain([1, rank - 1]).collect();
    let line = merged.extents[rank - 1];
    let mut result = permuted(&merged, &order);
    along_columns(&mut result);
    Ok((result, line))
}
