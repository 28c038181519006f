//! The compiled step: spans of output pixels, each a block product and its epilogue.
#![allow(unsafe_code)] // Raw pointers into slots and scratch.

use std::ops::Range;

use overdrive_ir::Plan;
use overdrive_ir::plan::ConvolutionCall;

use super::finish::{Finish, Sums};
use super::lines::ByLines;
use super::panel::PIECE;
use super::stage::{Axis, Channels, Span, Stage};
use super::weights::{KBlock, Order, Packer, Side, Weights};
use crate::exec::{Format, Named, Runnable, Unsupported};
use crate::gemm::{BlockProduct, Element, Kernel, Lines};
use crate::kernels::place::Strided;
use crate::slots::SlotTable;
use crate::threads::Pool;

/// Pixels of a span: its sums of a panel of weights stay in the first-level cache, its columns in the second.
const SPAN: usize = 256;

/// Bytes of panels of B that are filled before any is multiplied: they stay in the second-level cache.
const PANELS: usize = 640 << 10;

/// The packing of a convolution's kernel.
pub(super) fn packer<T: Format>(call: &ConvolutionCall) -> Packer<T> {
    let kernel = Kernel::<T>::best();
    let sizes = call.kernel.ty.sizes();
    let taps = Taps {
        count: sizes[2..].iter().product(),
        channels: sizes[1],
        interleaved: kernel.interleaves().unwrap_or(1),
    };
    let k = taps.count * taps.channels.next_multiple_of(taps.interleaved);
    Packer::new((kernel, Side::Left), call, Box::new(taps), KBlock::cut(kernel, 0, k))
}

/// The most spans of an image: each has the width of a panel at least, but for the last of a line or plane.
pub(super) fn most_spans<T: Format>(call: &ConvolutionCall) -> usize {
    let (line, lines) = call.epilogue.0.extents[2..].split_last().expect("a fold over space has space");
    lines.iter().product::<usize>() * line.div_ceil(Kernel::<T>::best().tile()[1])
}

/// k as `[groups of channels, taps, channels of one]`, with zeros for those that the last group lacks.
struct Taps {
    count: usize,
    channels: usize,
    interleaved: usize,
}

impl<T> Order<T> for Taps {
    fn row(&self, weight: &dyn Fn(usize, usize) -> T, to: &mut [T]) {
        let g = self.interleaved;
        for channel in 0..self.channels {
            let first = channel / g * self.count * g + channel % g;
            (0..self.count).for_each(|tap| to[first + tap * g] = weight(channel, tap));
        }
    }
}

/// A compiled `ConvolutionCall`.
pub(super) struct Convolution<T: Element> {
    kernel: &'static Kernel<T>,
    input: Strided,
    weights: Weights<T>,
    stage: Stage,
    /// Elements of a unit of the stage.
    interleaved: usize,
    groups: usize,
    /// What is summed over, in elements, and the depth of its blocks.
    k: usize,
    depth: usize,
    finish: Finish,
}

/// How the pixels of an image become spans: parts of lines, where those are long, and of planes otherwise.
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

/// The parts of a worker's scratch.
struct Buffers {
    stage: *mut u8,
    b: *mut u8,
    /// A panel of B that is yet to be packed.
    panel: *mut u8,
    sums: *mut u8,
    epilogue: *mut u8,
}

impl<T: Format> Convolution<T> {
    pub(super) fn new(plan: &Plan, call: &ConvolutionCall) -> Result<Self, Unsupported> {
        if call.kernel.ty.dtype != T::DTYPE || call.accumulate != T::Acc::DTYPE {
            let expected = format!("{} by {} with sums in {}", T::DTYPE, T::DTYPE, T::Acc::DTYPE);
            let found = format!("{} with sums in {}", call.kernel.ty.dtype, call.accumulate);
            return Err(Unsupported::new(format!("convolutions are {expected}, not by {found}")));
        }
        let (input, kernel) = (Strided::new(&call.input), Kernel::<T>::best());
        let (sizes, extents) = (call.kernel.ty.sizes(), &call.epilogue.0.extents);
        let width = size_of::<T>();
        let bytes = |stride: i64| stride as isize * width as isize;
        let axis = |d: usize| Axis {
            dimension: call.window[d],
            input: input.sizes[2 + d],
            stride: bytes(input.strides[2 + d]),
            output: extents[2 + d],
            taps: sizes[2 + d],
        };
        let interleaved = kernel.interleaves().unwrap_or(1);
        let channels = Channels { count: sizes[1], stride: bytes(input.strides[1]), width, interleaved };
        let stage = Stage::new((0..call.window.len()).map(axis).collect(), channels);
        let k = stage.rows() * interleaved;
        let depth = kernel.depth(k);
        let finish = Finish::new(plan, call)?;
        let weights = Weights::new(plan, call.kernel.slot, packer(call))?;
        Ok(Self { kernel, input, weights, stage, interleaved, groups: call.groups, k, depth, finish })
    }

    /// Spans of whole panels, as even as can be, of which there are `pieces` where the work allows.
    fn cutting(&self, pieces: usize) -> Cutting {
        let width = self.kernel.tile()[1];
        let [plane, line] = self.stage.plane_and_line();
        let planes = self.stage.outer() * self.input.sizes[0] * self.groups;
        let most = SPAN.min((plane * planes).div_ceil(pieces)).max(width);
        let whole = if line >= most { line } else { plane };
        let span = whole.div_ceil(whole.div_ceil(most)).next_multiple_of(width);
        Cutting { whole, span }
    }

    /// Pixels of a span where the work is handed out by lines: full panels of a line, or of neighbouring ones that are short.
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

    /// Rows of sums that are kept: of a panel of weights, or, where they wait for further blocks of k, all.
    fn kept_rows(&self, span: usize) -> usize {
        let outputs = self.weights.outputs();
        if self.blocks(span) * self.depth < self.k { outputs } else { outputs.min(self.kernel.tile()[0]) }
    }

    /// Bytes of the buffers of a span: stage, panels of B, one of them, sums, and what the epilogue wants.
    fn buffer_bytes(&self, span: usize) -> [usize; 5] {
        let panel = match self.kernel.interleaves() {
            Some(_) => 0,
            None => self.depth * self.kernel.tile()[1] * size_of::<T>() + PIECE,
        };
        let blocks = self.blocks(span);
        let bytes = [
            self.stage.bytes(blocks * self.depth / self.interleaved, span),
            blocks * self.kernel.b_bytes(span, self.depth) + PIECE,
            panel,
            self.kept_rows(span) * span * size_of::<T::Acc>(),
        ];
        let [stage, b, panel, sums] = bytes.map(|bytes| bytes.next_multiple_of(64));
        [stage, b, panel, sums, self.finish.scratch_bytes()]
    }

    /// Cuts scratch into buffers that each begin on a 64-byte boundary.
    fn buffers(&self, span: usize, scratch: &mut [u8]) -> Buffers {
        let [stage, b, panel, sums, _] = self.buffer_bytes(span);
        let start = scratch.as_mut_ptr();
        Buffers {
            stage: start,
            b: start.wrapping_add(stage),
            panel: start.wrapping_add(stage + b),
            sums: start.wrapping_add(stage + b + panel),
            epilogue: start.wrapping_add(stage + b + panel + sums),
        }
    }

    /// A span of one image and group.
    fn run_span(
        &self,
        (image, group, part): (usize, usize, usize),
        (span, stride): (Span, usize),
        buffers: &Buffers,
        slots: &SlotTable,
    ) {
        let (channels, strides) = (self.input.sizes[1] / self.groups, &self.input.strides);
        let offset = image as i64 * strides[0] + (group * channels) as i64 * strides[1];
        let from = self.input.get(slots).cast::<T>().wrapping_offset(offset as isize);
        let (outputs, height) = (self.weights.outputs(), self.kernel.tile()[0]);
        let waits = self.kept_rows(stride) > height.min(outputs);
        let b_bytes = self.kernel.b_bytes(stride, self.depth);
        let round = self.blocks(stride) * self.depth;
        // A sum over nothing is zeros: one block of depth 0.
        for first in (0..self.k.max(1)).step_by(round) {
            let end = (first + round).min(self.k);
            let staged = (first / self.interleaved, (end - first) / self.interleaved);
            if end > first {
                // SAFETY: the image has what the axes say, and the buffers were made for such a span.
                unsafe { self.stage.fill(from.cast_const().cast(), span, staged, buffers.stage) };
            }
            let depth = |k0: usize| (end - k0).min(self.depth);
            let panels = |k0: usize| buffers.b.wrapping_add((k0 - first) / self.depth * b_bytes);
            for k0 in (first..end).step_by(self.depth) {
                let rows = (k0 / self.interleaved, depth(k0) / self.interleaved);
                // SAFETY: these rows are among those that are staged.
                unsafe { self.fill_panels((span, staged), rows, (panels(k0), buffers)) };
            }
            for row in (0..outputs).step_by(height) {
                let rows = (outputs - row).min(height);
                let above = if waits { row * stride * size_of::<T::Acc>() } else { 0 };
                let sums = buffers.sums.wrapping_add(above);
                for k0 in (first..end.max(first + 1)).step_by(self.depth) {
                    let product = BlockProduct {
                        a: self.weights.panels(slots, group, k0 / self.depth, row),
                        b: panels(k0).cast_const(),
                        c: sums.cast(),
                        c_stride: stride,
                        rows,
                        cols: span.pixels,
                        k: depth(k0),
                        accumulate: k0 > 0,
                    };
                    // SAFETY: both sides are packed for this kernel, and the sums are this worker's.
                    unsafe { self.kernel.multiply_block(product) };
                }
                if end == self.k {
                    let [plane, _] = self.stage.plane_and_line();
                    let width = size_of::<T::Acc>();
                    let done = Sums {
                        image,
                        part,
                        row: group * outputs + row,
                        rows,
                        first: span.outer * plane + span.first,
                        pixels: span.pixels,
                        sums: sums.cast_const(),
                        width,
                        row_bytes: stride * width,
                    };
                    // SAFETY: the span is this task's, and `buffers` left room for the scratch.
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
        (span, staged): (Span, (usize, usize)),
        (first, count): (usize, usize),
        (panels, buffers): (*mut u8, &Buffers),
    ) {
        let (width, depth) = (self.kernel.tile()[1], count * self.interleaved);
        let panel_bytes = self.kernel.b_bytes(width, depth);
        let made = depth * width * size_of::<T>();
        let from = self.stage.planes_from(buffers.stage, span, (staged.0, first));
        let direct = self.kernel.interleaves().is_some();
        for pixel in (0..span.pixels).step_by(width) {
            let to = panels.wrapping_add(pixel / width * panel_bytes);
            let rows = if direct { to } else { buffers.panel };
            // SAFETY: as the caller promised; the buffers hold all panels of the span, and one.
            unsafe {
                self.stage.panel(from, span, (first, count), (pixel, width), rows);
                if direct {
                    std::slice::from_raw_parts_mut(to.add(made), panel_bytes - made).fill(0);
                } else {
                    let from = rows.cast_const().cast();
                    let lines = Lines { from, lines: width, line_stride: 1, k: depth, k_stride: width };
                    self.kernel.pack_b_block(lines, to);
                }
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
        let cutting = self.cutting(self.finish.pieces(pool));
        let (spans, wholes) = (cutting.spans(), plane / cutting.whole);
        let bytes = self.buffer_bytes(cutting.span).iter().sum();
        pool.run(images * self.groups * outer * wholes * spans, |task, worker| {
            let (part, task) = (task % spans, task / spans);
            let (whole, task) = (task % wholes, task / wholes);
            let (outer, task) = (task % outer, task / outer);
            let within = part * cutting.span;
            let pixels = (cutting.whole - within).min(cutting.span);
            let span = Span { outer, first: whole * cutting.whole + within, pixels };
            let buffers = self.buffers(cutting.span, worker.scratch.bytes(bytes));
            let number = (outer * wholes + whole) * spans + part;
            let at = (task / self.groups, task % self.groups, number);
            let rows = at.1 * self.weights.outputs();
            // SAFETY: the span is this task's.
            unsafe { self.finish.begin((at.0, number), rows..rows + self.weights.outputs(), slots) };
            self.run_span(at, (span, cutting.span), &buffers, slots);
        });
        self.finish.conclude(pool, slots, self.stage.outer() * wholes * spans);
    }

    fn workspace_bytes(&self) -> usize {
        self.weights.bytes()
    }
}

impl<T: Format> ByLines for Convolution<T> {
    fn scratch_bytes(&self, _: usize) -> usize {
        self.buffer_bytes(self.line_span()).iter().sum()
    }

    fn prepare(&self, pool: &Pool, slots: &SlotTable) {
        self.weights.pack(pool, slots);
        self.finish.prepare(pool, slots);
    }

    fn run_lines(
        &self,
        (image, part): (usize, usize),
        lines: Range<usize>,
        slots: &SlotTable,
        scratch: &mut [u8],
    ) {
        let ([_, line], stride) = (self.stage.plane_and_line(), self.line_span());
        let buffers = self.buffers(stride, scratch);
        // Spans end with a long line; short ones are walked as one run.
        let whole = if line > stride { line } else { lines.len() * line };
        for start in (lines.start * line..lines.end * line).step_by(whole) {
            for first in (start..start + whole).step_by(stride) {
                let span = Span { outer: 0, first, pixels: (start + whole - first).min(stride) };
                self.run_span((image, 0, part), (span, stride), &buffers, slots);
            }
        }
    }

    fn finish(&self) -> &Finish {
        &self.finish
    }
}
