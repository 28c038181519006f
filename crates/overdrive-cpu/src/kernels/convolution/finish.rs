//! What becomes of the sums of a span of pixels: the epilogue, line by line where the result's pixels are no one run.
#![allow(unsafe_code)] // Raw pointers into slots and scratch.

use overdrive_ir::Plan;
use overdrive_ir::plan::Program;

use crate::exec::Unsupported;
use crate::exec::space::{accesses, along_columns, is_random, merge, merges, permuted};
use crate::loops::{Affine, CompiledEpilogue, Tile};
use crate::slots::SlotTable;
use crate::threads::Pool;

/// The compiled epilogue of a convolution.
pub(super) struct Finish {
    epilogue: Epilogue,
    /// Pixels that are one row of the epilogue: all of an image, or a line of it.
    line: usize,
    /// Pixels of an image.
    pixels: usize,
}

enum Epilogue {
    Affine(Box<Affine>),
    Program(Box<CompiledEpilogue>),
}

/// Finished sums: rows of output channels from `row` on by neighbouring pixels from `first` on.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub(super) image: usize,
    pub(super) row: usize,
    pub(super) rows: usize,
    pub(super) first: usize,
    pub(super) pixels: usize,
    pub(super) sums: *const u8,
    /// Bytes of a sum, and from a row to the next.
    pub(super) width: usize,
    pub(super) row_bytes: usize,
}

impl Finish {
    pub(super) fn new(plan: &Plan, program: &Program) -> Result<Self, Unsupported> {
        let pixels = program.extents[2..].iter().product();
        let (program, line) = by_lines(program)?;
        let dtypes = |slot| plan.slot(slot).ty.dtype;
        let epilogue = match Affine::of(&program, &dtypes) {
            Some(affine) => Epilogue::Affine(Box::new(affine)),
            None => {
                let compiled = CompiledEpilogue::new(&program, &dtypes);
                Epilogue::Program(Box::new(compiled.map_err(|e| Unsupported::new(e.to_string()))?))
            }
        };
        Ok(Self { epilogue, line, pixels })
    }

    /// The same for sums whose rows are pixels and whose columns are output channels, where results lie so.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn of_pixels(plan: &Plan, program: &Program) -> Option<Self> {
        let pixels = program.extents[2..].iter().product();
        let (merged, line) = by_lines(program).ok()?;
        if merged.extents.len() != 3 || line != pixels || is_random(&merged) {
            return None;
        }
        let merged = permuted(&merged, &[0, 2, 1]);
        let dtypes = |slot| plan.slot(slot).ty.dtype;
        if !merged.stores.iter().all(|store| store.access.strides[2] == 1) {
            return None;
        }
        let epilogue = match Affine::of_columns(&merged, &dtypes) {
            Some(affine) => Epilogue::Affine(Box::new(affine)),
            None => Epilogue::Program(Box::new(CompiledEpilogue::new(&merged, &dtypes).ok()?)),
        };
        Some(Self { epilogue, line, pixels })
    }

    /// Hands sums to an epilogue made by [`of_pixels`](Self::of_pixels): `pixels` rows of all `outputs` channels from pixel
    /// `first` on.
    ///
    /// # Safety
    /// As for [`apply`](Self::apply).
    #[cfg(target_arch = "x86_64")]
    pub(super) unsafe fn apply_pixels(&self, at: Sums, slots: &SlotTable, scratch: *mut u8) {
        let Sums { image, row: col, rows: cols, first: row, pixels: rows, sums, row_bytes, .. } = at;
        let tile = Tile { sums, row_bytes, batch: image, row, col, rows, cols };
        // SAFETY: as the caller promised.
        unsafe { self.tile(tile, slots, scratch) }
    }

    /// # Safety
    /// As for [`apply`](Self::apply).
    unsafe fn tile(&self, tile: Tile, slots: &SlotTable, scratch: *mut u8) {
        // SAFETY: as the caller promised; the tile lies in the output, whose other parts belong to other tasks.
        unsafe {
            match &self.epilogue {
                Epilogue::Affine(affine) => affine.apply(slots, tile),
                Epilogue::Program(program) => {
                    let scratch = std::slice::from_raw_parts_mut(scratch, self.scratch_bytes());
                    program.apply(slots, tile, scratch);
                }
            }
        }
    }

    /// Bytes of scratch that [`apply`](Self::apply) wants.
    pub(super) fn scratch_bytes(&self) -> usize {
        match &self.epilogue {
            Epilogue::Affine(_) => 0,
            Epilogue::Program(program) => program.scratch_bytes(),
        }
    }

    /// Computes what all pixels share, before the first [`apply`](Self::apply) of a call.
    pub(super) fn prepare(&self, pool: &Pool, slots: &SlotTable) {
        if let Epilogue::Affine(affine) = &self.epilogue {
            // SAFETY: the plan lets a step write only what no operand of it shares bytes with.
            unsafe { affine.prepare(pool, slots) };
        }
    }

    /// Hands sums to the epilogue.
    ///
    /// # Safety
    /// The sums can be read, their pixels of the output belong to this task, and there are
    /// [`scratch_bytes`](Self::scratch_bytes).
    pub(super) unsafe fn apply(&self, at: Sums, slots: &SlotTable, scratch: *mut u8) {
        let Sums { image, row, rows, first, pixels, sums, width, row_bytes } = at;
        let mut done = 0;
        while done < pixels {
            let pixel = first + done;
            let run = (self.line - pixel % self.line).min(pixels - done);
            let tile = Tile {
                sums: sums.wrapping_add(done * width),
                row_bytes,
                batch: image * (self.pixels / self.line) + pixel / self.line,
                row,
                col: pixel % self.line,
                rows,
                cols: run,
            };
            // SAFETY: as the caller promised.
            unsafe { self.tile(tile, slots, scratch) };
            done += run;
        }
    }
}

/// The epilogue over `[images and lines..., O, pixels of a line]`, and how many pixels that is: all of an image where its
/// spatial dimensions merge into one, and the last of them otherwise.
fn by_lines(program: &Program) -> Result<(Program, usize), Unsupported> {
    let mut merged = program.clone();
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
