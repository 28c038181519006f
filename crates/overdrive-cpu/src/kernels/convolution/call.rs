//! The compiled step: spans of output pixels, each a block product and its epilogue.
//!
//! Long because one step has two drivers, by spans and by lines, that share their buffers.
#![allow(unsafe_code)] // Raw pointers into slots and scratch.

use std::ops::Range;

use overdrive_ir::Plan;
use overdrive_ir::plan::ConvolutionCall;

use super::finish::{Finish, Sums};
use super::lines::{Band, ByLines};
use super::packed_weights::{KBlock, PackedWeights, Packer, Taps, WeightSide, kernel_of};
use super::panel::PIECE;
use super::pixel_table::PixelTable;
use super::stage::{Channels, PixelSpan, StagingGeometry};
use crate::exec::{Format, Named, Runnable, Unsupported};
use crate::gemm::{BlockProduct, Element, MicroKernel, OperandLines};
use crate::kernels::axis::WindowAxis;
use crate::kernels::place::Strided;
use crate::slots::SlotTable;
use crate::threads::{PlacedParts, Pool, ScratchParts};

/// Pixels of a span: its sums of a panel of weights stay in the first-level cache, its columns in
/// the second.
const SPAN: usize = 256;

/// Bytes of panels of B that are filled before any is multiplied: they stay in the second-level
/// cache.
const PANELS: usize = 640 << 10;

/// The packing of a convolution's kernel.
pub(super) fn packer<T: Format>(call: &ConvolutionCall) -> Packer<T> {
    let kernel = kernel_of::<T>(call);
    let sizes = call.kernel.ty.sizes();
    let taps = Taps {
        count: sizes[2..].iter().product(),
        channels: sizes[1],
        interleaved: kernel.interleaves().unwrap_or(1),
    };
    let k = taps.count * taps.channels.next_multiple_of(taps.interleaved);
    Packer::new((kernel, WeightSide::Left), call, Box::new(taps), KBlock::cut(kernel, 0, k))
}

/// The most spans of an image: each has the width of a panel at least, but for the last of a line
/// or plane.
pub(super) fn most_spans<T: Format>(call: &ConvolutionCall) -> usize {
    let (line, lines) =
        call.epilogue.0.extents[2..].split_last().expect("a fold over space has space");
    lines.iter().product::<usize>() * line.div_ceil(kernel_of::<T>(call).tile()[1])
}

/// A compiled `ConvolutionCall`.
pub(super) struct Convolution<T: Element> {
    pub(super) kernel: &'static MicroKernel<T>,
    pub(super) input: Strided,
    pub(super) weights: PackedWeights<T>,
    stage: StagingGeometry,
    /// The table that takes the stage's place where images are small, but for lines of one.
    table: Option<PixelTable>,
    /// Elements of a unit of the stage.
    pub(super) interleaved: usize,
    pub(super) groups: usize,
    /// Elements that are summed over, and the depth of their blocks.
    k: usize,
    depth: usize,
    pub(super) finish: Finish,
}

/// How the pixels of an image become spans: parts of lines, where those are long, and of planes
/// otherwise.
#[derive(Clone, Copy)]
struct Cutting {
    /// Pixels that no span reaches over the end of.
    whole: usize,
    /// Pixels of a span.
    span: usize,
}

impl Cutting {
    fn spans(&self) -> usize {
        self.whole.div_ceil(self.span)
    }
}

/// The outputs that are computed together: a span of pixels, beginning in an image, in some output
/// channels of a group.
pub(super) struct ConvolutionWork<'a> {
    pub(super) image: usize,
    pub(super) group: usize,
    /// The number in its image of the span, or of those that are folded as one.
    pub(super) part: usize,
    pub(super) outputs: Range<usize>,
    pub(super) pixels: Pixels<'a>,
    /// Pixels that buffers are made for.
    pub(super) stride: usize,
}

/// The positions of pixels.
#[derive(Clone, Copy)]
pub(super) enum Pixels<'a> {
    /// Neighbours in one image.
    Span(PixelSpan),
    /// The pixels of so many whole images.
    Images(&'a PixelTable, usize),
}

/// The parts of a worker's scratch.
pub(super) struct ConvolutionScratch<'a> {
    pub(super) stage: *mut u8,
    b: *mut u8,
    /// Panels of B that are yet to be packed.
    pub(super) panel: *mut u8,
    sums: *mut u8,
    epilogue: *mut u8,
    _placed: PlacedParts<'a, 5>,
}

impl<'a> From<PlacedParts<'a, 5>> for ConvolutionScratch<'a> {
    fn from(placed: PlacedParts<'a, 5>) -> Self {
        let [stage, b, panel, sums, epilogue] = placed.starts;
        Self { stage, b, panel, sums, epilogue, _placed: placed }
    }
}

impl<T: Format> Convolution<T> {
    pub(super) fn new(plan: &Plan, call: &ConvolutionCall) -> Result<Self, Unsupported> {
        if call.kernel.ty.dtype != T::DTYPE || call.accumulate != T::Acc::DTYPE {
            let expected = format!("{} by {} with sums in {}", T::DTYPE, T::DTYPE, T::Acc::DTYPE);
            let found = format!("{} with sums in {}", call.kernel.ty.dtype, call.accumulate);
            return Err(Unsupported::new(format!("convolutions are {expected}, not by {found}")));
        }
        let (input, kernel) = (Strided::new(&call.input), kernel_of::<T>(call));
        let (sizes, extents) = (call.kernel.ty.sizes(), &call.epilogue.0.extents);
        let width = size_of::<T>();
        let bytes = |stride: i64| stride as isize * width as isize;
        let axis = |d: usize| WindowAxis {
            dimension: call.window[d],
            input: input.sizes[2 + d],
            stride: bytes(input.strides[2 + d]),
            output: extents[2 + d],
            taps: sizes[2 + d],
        };
        let interleaved = kernel.interleaves().unwrap_or(1);
        let channels =
            Channels { count: sizes[1], stride: bytes(input.strides[1]), width, interleaved };
        let axes: Vec<WindowAxis> = (0..call.window.len()).map(axis).collect();
        let pixels = axes.iter().map(|axis| axis.output).product::<usize>().max(1);
        let images = (input.sizes[0].min(SPAN / pixels), bytes(input.strides[0]));
        let table = PixelTable::new(&axes, channels, images, kernel.tile()[1]);
        let stage = StagingGeometry::new(axes, channels);
        let k = stage.rows() * interleaved;
        let depth = kernel.depth(k);
        let finish = Finish::new(plan, call)?;
        let weights = PackedWeights::new(plan, call.kernel.slot, packer(call))?;
        Ok(Self {
            kernel,
            input,
            weights,
            stage,
            table,
            interleaved,
            groups: call.groups,
            k,
            depth,
            finish,
        })
    }

    /// Cuts the work into about `pieces` spans of whole panels, as even as possible.
    fn cutting(&self, pieces: usize) -> Cutting {
        let width = self.kernel.tile()[1];
        let [plane, line] = self.stage.plane_and_line();
        let planes = self.stage.outer() * self.input.sizes[0] * self.groups;
        let most = SPAN.min((plane * planes).div_ceil(pieces)).max(width);
        let whole = if line >= most { line } else { plane };
        let span = whole.div_ceil(whole.div_ceil(most)).next_multiple_of(width);
        Cutting { whole, span }
    }

    /// Pixels of a span where the work is handed out by lines: full panels of a line, or of
    /// neighbouring ones that are short.
    fn line_span(&self) -> usize {
        let ([_, line], width) = (self.stage.plane_and_line(), self.kernel.tile()[1]);
        let most = if line > SPAN { SPAN } else { SPAN / line * line };
        most.next_multiple_of(width)
    }

    /// Blocks of k whose panels are filled at once.
    fn blocks(&self, span: usize) -> usize {
        let all = self.k.div_ceil(self.depth).max(1);
        (PANELS / self.kernel.b_bytes(span, self.depth)).clamp(1, all)
    }

    /// Rows of sums that are kept: of a panel of weights, or, where they wait for further blocks of
    /// k, all.
    fn kept_rows(&self, span: usize) -> usize {
        let outputs = self.weights.outputs();
        if self.blocks(span) * self.depth < self.k {
            outputs
        } else {
            outputs.min(self.kernel.tile()[0])
        }
    }

    /// The buffers of a span: stage, panels of B, rows that are yet to be packed into them, sums,
    /// and the epilogue's scratch.
    pub(super) fn parts(&self, span: usize, table: Option<&PixelTable>) -> ScratchParts<5> {
        let blocks = self.blocks(span);
        let (stage, columns) = match table {
            Some(table) => (table.bytes(), span),
            None => (
                self.stage.bytes(blocks * self.depth / self.interleaved, span),
                self.kernel.tile()[1],
            ),
        };
        let panel = match self.kernel.interleaves() {
            Some(_) => 0,
            None => self.depth * columns * size_of::<T>() + PIECE,
        };
        ScratchParts::new([
            ("stage", stage),
            ("panels", blocks * self.kernel.b_bytes(span, self.depth) + PIECE),
            ("rows of panels", panel),
            ("sums", self.kept_rows(span) * span * size_of::<T::Acc>()),
            ("epilogue", self.finish.scratch_bytes()),
        ])
    }

    /// A span of a group.
    pub(super) fn run_span(
        &self,
        work: ConvolutionWork<'_>,
        buffers: &ConvolutionScratch<'_>,
        slots: &SlotTable,
    ) {
        let ConvolutionWork { image, group, part, pixels, stride, .. } = work;
        let (channels, strides) = (self.input.sizes[1] / self.groups, &self.input.strides);
        let offset = image as i64 * strides[0] + (group * channels) as i64 * strides[1];
        let from =
            self.input.get(slots).cast::<T>().wrapping_offset(offset as isize).cast_const().cast();
        let (outputs, height) = (self.weights.outputs(), self.kernel.tile()[0]);
        let waits = self.kept_rows(stride) > height.min(outputs);
        let b_bytes = self.kernel.b_bytes(stride, self.depth);
        let round = self.blocks(stride) * self.depth;
        let (first_pixel, count) = match pixels {
            Pixels::Span(span) => {
                (span.outer * self.stage.plane_and_line()[0] + span.first, span.pixels)
            }
            Pixels::Images(table, images) => (0, images * table.pixels_and_images()[0]),
        };
        // A sum over nothing is zeros: one block of depth 0.
        for first in (0..self.k.max(1)).step_by(round) {
            let end = (first + round).min(self.k);
            let staged = (first / self.interleaved, (end - first) / self.interleaved);
            if let Pixels::Span(span) = pixels
                && end > first
            {
                // SAFETY: the image has the elements that the axes say, and the buffers were made
                // for such a span.
                unsafe { self.stage.fill(from, span, staged, buffers.stage) };
            }
            let depth = |k0: usize| (end - k0).min(self.depth);
            let panels = |k0: usize| buffers.b.wrapping_add((k0 - first) / self.depth * b_bytes);
            for k0 in (first..end).step_by(self.depth) {
                let rows = (k0 / self.interleaved, depth(k0) / self.interleaved);
                // SAFETY: these rows are among those that are staged; the images are there, and the
                // buffers were made for them.
                unsafe {
                    match pixels {
                        Pixels::Span(span) => {
                            self.fill_panels((span, staged), rows, (panels(k0), buffers));
                        }
                        Pixels::Images(table, images) => {
                            self.pick_panels((table, from, images), rows, (panels(k0), buffers));
                        }
                    }
                }
            }
            for row in work.outputs.clone().step_by(height) {
                let rows = (work.outputs.end - row).min(height);
                let above = if waits { row * stride * size_of::<T::Acc>() } else { 0 };
                let sums = buffers.sums.wrapping_add(above);
                for k0 in (first..end.max(first + 1)).step_by(self.depth) {
                    let product = BlockProduct {
                        a: self.weights.panels(slots, group, k0 / self.depth, row),
                        b: panels(k0).cast_const(),
                        c: sums.cast(),
                        c_stride: stride,
                        rows,
                        cols: count,
                        k: depth(k0),
                        accumulate: k0 > 0,
                    };
                    // SAFETY: both sides are packed for this kernel, and the sums are this
                    // worker's.
                    unsafe { self.kernel.multiply_block(product) };
                }
                if end == self.k {
                    let done = Sums {
                        image,
                        part,
                        row: group * outputs + row,
                        rows,
                        first: first_pixel,
                        pixels: count,
                        sums: sums.cast_const(),
                        width: size_of::<T::Acc>(),
                        row_bytes: stride * size_of::<T::Acc>(),
                    };
                    // SAFETY: the span is this task's, and `parts` left room for the scratch.
                    unsafe { self.finish.apply(done, slots, buffers.epilogue) };
                }
            }
        }
    }

    /// Fills panels of B with some rows, in units, of those that are staged.
    ///
    /// # Safety
    /// The rows are staged for the span, and the panels have room for them.
    unsafe fn fill_panels(
        &self,
        (span, staged): (PixelSpan, (usize, usize)),
        (first, count): (usize, usize),
        (panels, buffers): (*mut u8, &ConvolutionScratch<'_>),
    ) {
        let (width, depth) = (self.kernel.tile()[1], count * self.interleaved);
        let panel_bytes = self.kernel.b_bytes(width, depth);
        let from = self.stage.planes_from(buffers.stage, span, (staged.0, first));
        let direct = self.kernel.interleaves().is_some();
        for pixel in (0..span.pixels).step_by(width) {
            let to = panels.wrapping_add(pixel / width * panel_bytes);
            let rows = if direct { to } else { buffers.panel };
            // SAFETY: `from` has the rows of the span, `panels` a panel for each `width` pixels,
            // and `buffers.panel` room for the rows of one.
            unsafe {
                self.stage.panel(from, span, (first, count), (pixel, width), rows);
                self.close_panel(rows, depth, to);
            }
        }
    }

    /// Makes a panel of its rows. If the rows are the panel already, ends it.
    ///
    /// # Safety
    /// The rows are there, over `depth`, and `to` has room for a panel.
    pub(super) unsafe fn close_panel(&self, rows: *mut u8, depth: usize, to: *mut u8) {
        let width = self.kernel.tile()[1];
        // SAFETY: `rows` has `depth` rows of `width` elements, and `to` has `b_bytes`, which are no
        // fewer than theirs.
        unsafe {
            if self.kernel.interleaves().is_some() {
                let made = depth * width * size_of::<T>();
                to.add(made).write_bytes(0, self.kernel.b_bytes(width, depth) - made);
            } else {
                let from = rows.cast_const().cast();
                let lines =
                    OperandLines { from, lines: width, line_stride: 1, k: depth, k_stride: width };
                self.kernel.pack_b_block(lines, to);
            }
        }
    }
}

impl<T: Format> Runnable for Convolution<T> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let [plane, _] = self.stage.plane_and_line();
        let (outer, images) = (self.stage.outer(), self.input.sizes[0]);
        if plane * outer * images * self.weights.outputs() == 0 {
            return;
        }
        self.prepare(pool, slots);
        if let Some(table) = &self.table {
            return self.run_images(table, pool, slots);
        }
        let cutting = self.cutting(self.finish.pieces(pool));
        let (spans, wholes) = (cutting.spans(), plane / cutting.whole);
        let parts = self.parts(cutting.span, None);
        pool.run(images * self.groups * outer * wholes * spans, |task, worker| {
            let (part, task) = (task % spans, task / spans);
            let (whole, task) = (task % wholes, task / wholes);
            let (outer, task) = (task % outer, task / outer);
            let within = part * cutting.span;
            let pixels = (cutting.whole - within).min(cutting.span);
            let span = PixelSpan { outer, first: whole * cutting.whole + within, pixels };
            let buffers = worker.scratch.place(parts).into();
            let number = (outer * wholes + whole) * spans + part;
            let (image, group) = (task / self.groups, task % self.groups);
            let outputs = 0..self.weights.outputs();
            let rows = group * outputs.end..(group + 1) * outputs.end;
            // SAFETY: the span is this task's.
            unsafe { self.finish.begin((image, number), rows, slots) };
            let (pixels, stride) = (Pixels::Span(span), cutting.span);
            self.run_span(
                ConvolutionWork { image, group, part: number, outputs, pixels, stride },
                &buffers,
                slots,
            );
        });
        self.finish.conclude(pool, slots, self.stage.outer() * wholes * spans);
    }

    fn workspace_bytes(&self) -> usize {
        self.weights.bytes()
    }
}

impl<T: Format> ByLines for Convolution<T> {
    fn scratch_bytes(&self, _: usize) -> usize {
        self.parts(self.line_span(), None).bytes()
    }

    fn pack_weights(&self, pool: &Pool, slots: &SlotTable) {
        self.weights.pack(pool, slots);
    }

    fn run_band(&self, band: Band<'_>) {
        let Band { image, part, lines, slots, scratch } = band;
        let ([_, line], stride) = (self.stage.plane_and_line(), self.line_span());
        let buffers = self.parts(stride, None).place(scratch).into();
        // Spans end with a long line; short ones are walked as one run.
        let whole = if line > stride { line } else { lines.len() * line };
        for start in (lines.start * line..lines.end * line).step_by(whole) {
            for first in (start..start + whole).step_by(stride) {
                let span =
                    PixelSpan { outer: 0, first, pixels: (start + whole - first).min(stride) };
                let (outputs, pixels) = (0..self.weights.outputs(), Pixels::Span(span));
                self.run_span(
                    ConvolutionWork { image, group: 0, part, outputs, pixels, stride },
                    &buffers,
                    slots,
                );
            }
        }
    }

    fn finish(&self) -> &Finish {
        &self.finish
    }
}
