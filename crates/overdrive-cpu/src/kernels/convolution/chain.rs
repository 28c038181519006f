//! Convolutions one after the other, band by band. A task computes some lines of an image of the
//! last one. Before them it computes the lines of the other convolutions that they need. So the
//! values between them stay in the second-level cache of the task's core.
//!
//! Lines that two bands need are computed twice. A buffer of scratch stands for the slot between
//! two convolutions. Each worker has a table of its own, in which that slot begins where its first
//! line would be. Bands depend on the calls alone, and so do results. Source: Alwani et al.,
//! "Fused-layer CNN accelerators", MICRO 2016.
#![allow(unsafe_code)] // Parts of folds and of scratch, each of which belongs to one task.

use std::sync::{Mutex, PoisonError};

use overdrive_ir::plan::ConvolutionCall;
use overdrive_ir::{Plan, SlotId};

use super::algorithms::compile_lines;
use super::bands::{Bands, MOST};
use super::lines::{Band, ByLines};
use crate::exec::{Runnable, Unsupported};
use crate::slots::SlotTable;
use crate::threads::{Pool, ScratchParts};

/// Bytes that vectors may read behind a band.
const BEHIND: usize = 128;

/// Whether convolutions are run as a chain.
/// Errs with the reason why they are better run one after the other.
pub(crate) fn takes_chain(calls: &[ConvolutionCall]) -> Result<(), String> {
    Bands::new(calls)?.pay(calls)
}

/// Compiles a chain.
pub(crate) fn compile_chain(
    plan: &Plan,
    calls: &[ConvolutionCall],
) -> Result<Box<dyn Runnable>, Unsupported> {
    let bands = Bands::new(calls).map_err(Unsupported::new)?;
    let (mut links, mut between) = (Vec::new(), [0; MOST - 1]);
    for (i, call) in calls.iter().enumerate() {
        let mut call = call.clone();
        if i > 0 {
            of_band(&mut call.input.strides, bands.most[i - 1]);
        }
        let mut to = None;
        if let Some(next) = calls.get(i + 1) {
            let store = &mut call.epilogue.0.stores[0].access;
            of_band(&mut store.strides, bands.most[i]);
            let width = next.input.ty.dtype.bits() / 8;
            to = Some(Between { slot: store.slot, line_bytes: store.strides[2] as usize * width });
            between[i] = bands.bytes(i, next) + BEHIND;
        }
        links.push((compile_lines(plan, &call)?, to));
    }
    let [images, outputs] = [0, 1].map(|d| calls[calls.len() - 1].epilogue.0.extents[d]);
    Ok(Box::new(Chain { links, images, outputs, bands, between, tables: Mutex::default() }))
}

/// Image strides, rewritten for a band of `lines` rows.
fn of_band(strides: &mut [i64], lines: usize) {
    strides[0] = 0;
    if strides[1] > strides[2] {
        strides[1] = strides[2] * lines as i64;
    }
}

/// The buffer between a convolution and the next.
struct Between {
    slot: SlotId,
    line_bytes: usize,
}

/// A compiled chain.
struct Chain {
    links: Vec<(Box<dyn ByLines>, Option<Between>)>,
    images: usize,
    /// Channels of the last result, which alone may be folded.
    outputs: usize,
    bands: Bands,
    /// Bytes of the bands behind each convolution but the last.
    between: [usize; MOST - 1],
    /// Tables of each worker.
    tables: Mutex<Vec<Mutex<SlotTable>>>,
}

impl Runnable for Chain {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let mut tables = lock(&self.tables);
        tables.resize_with(pool.threads(), || Mutex::new(SlotTable::new(0)));
        tables.iter().for_each(|table| lock(table).clone_from(slots));
        self.links.iter().for_each(|(link, _)| link.prepare(pool, slots));
        let of_links = self
            .links
            .iter()
            .zip(&self.bands.most)
            .map(|((link, _), &most)| link.scratch_bytes(most));
        let own = of_links.max().unwrap_or(0);
        let [first, second, third] = self.between;
        let parts = ScratchParts::new([
            ("first band", first),
            ("second band", second),
            ("third band", third),
            ("buffers of a convolution", own),
        ]);
        let (tables, count) = (&*tables, self.bands.count);
        pool.run(self.images * count, |task, worker| {
            let (image, band) = (task / count, task % count);
            let mut table = lock(&tables[worker.index]);
            let placed = worker.scratch.place(parts);
            let [between @ .., scratch] = placed.starts;
            // SAFETY: the last part is as long, initialised, and this task's.
            let scratch = unsafe { std::slice::from_raw_parts_mut(scratch, own) };
            for (i, ((link, to), lines)) in
                self.links.iter().zip(self.bands.ranges(band)).enumerate()
            {
                if let Some(Between { slot, line_bytes }) = to {
                    table.set(*slot, between[i].wrapping_sub(lines.start * line_bytes));
                }
                if !lines.is_empty() {
                    // SAFETY: the band is this task's.
                    unsafe { link.finish().begin((image, band), 0..self.outputs, &table) };
                    link.run_band(Band {
                        image,
                        part: band,
                        lines,
                        slots: &table,
                        scratch: &mut *scratch,
                    });
                }
            }
        });
        self.links.iter().for_each(|(link, _)| link.finish().conclude(pool, slots, count));
    }

    fn workspace_bytes(&self) -> usize {
        self.links.iter().map(|(link, _)| link.workspace_bytes()).sum()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
