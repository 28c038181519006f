//! The spans of small images: several whole ones each, whose panels come from the table instead of
//! the stage.
#![allow(unsafe_code)] // Raw pointers into scratch.

use super::call::{Convolution, ConvolutionScratch, ConvolutionWork, Pixels};
use super::pixel_table::{PanelRows, PixelTable};
use super::shares::Shares;
use crate::exec::Format;
use crate::slots::SlotTable;
use crate::threads::Pool;

impl<T: Format> Convolution<T> {
    /// Spans of whole images.
    pub(super) fn run_images(&self, table: &PixelTable, pool: &Pool, slots: &SlotTable) {
        let ([pixels, most], [height, width]) = (table.pixels_and_images(), self.kernel.tile());
        let outputs = self.weights.outputs();
        let images = self.input.sizes[0];
        let shares = Shares {
            images,
            pixels,
            most,
            groups: self.groups,
            panels: outputs.div_ceil(height),
            tile: [height, width],
        };
        let share = shares.best(pool.threads());
        let stride = (share.images * pixels).next_multiple_of(width);
        let parts = self.parts(stride, Some(table));
        let spans = images.div_ceil(share.images);
        pool.run(spans * self.groups * share.cuts, |task, worker| {
            let (cut, task) = (task % share.cuts, task / share.cuts);
            let (group, image) = (task % self.groups, task / self.groups * share.images);
            let here = (images - image).min(share.images);
            let of_cut = |cut: usize| (shares.panels * cut / share.cuts * height).min(outputs);
            let of_group = of_cut(cut)..of_cut(cut + 1);
            let rows = group * outputs + of_group.start..group * outputs + of_group.end;
            for image in image..image + here {
                // SAFETY: these channels of the image are this task's.
                unsafe { self.finish.begin((image, 0), rows.clone(), slots) };
            }
            let buffers = worker.scratch.place(parts).into();
            let pixels = Pixels::Images(table, here);
            self.run_span(
                ConvolutionWork { image, group, part: 0, outputs: of_group, pixels, stride },
                &buffers,
                slots,
            );
        });
        self.finish.conclude(pool, slots, 1);
    }

    /// Fills panels of B with some rows of whole images, from one on whose first element of the
    /// group is `from`.
    ///
    /// # Safety
    /// The images are there, and the buffers were made for the table.
    pub(super) unsafe fn pick_panels(
        &self,
        (table, from, images): (&PixelTable, *const u8, usize),
        (first, count): (usize, usize),
        (panels, buffers): (*mut u8, &ConvolutionScratch<'_>),
    ) {
        let (width, depth) = (self.kernel.tile()[1], count * self.interleaved);
        let panel_bytes = self.kernel.b_bytes(width, depth);
        let rows = match self.kernel.interleaves() {
            Some(_) => PanelRows { to: panels, panel: panel_bytes, width },
            None => PanelRows { to: buffers.panel, panel: depth * width * size_of::<T>(), width },
        };
        let columns = images * table.pixels_and_images()[0];
        // SAFETY: the images are there; the run, the rows and the panels are in buffers that were
        // made for the table.
        unsafe {
            table.fill((from, images), (first, count), rows, buffers.stage);
            for panel in 0..columns.div_ceil(width) {
                let from = rows.to.wrapping_add(panel * rows.panel);
                self.close_panel(from, depth, panels.wrapping_add(panel * panel_bytes));
            }
        }
    }
}
