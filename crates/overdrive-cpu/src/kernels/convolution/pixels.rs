//! Convolutions in bf16 on AMX whose left matrix is the image itself: pixels with their channels
//! side by side.
//!
//! A tile of the left matrix is 16 pixels of a line by 32 channels of a tap. The tile registers
//! load it with any distance between pixels, so no panel is made. A span's lines are copied once,
//! with the zeros around them, or read in place when there are none. Images of at most four
//! channels are interleaved in that copy, and a step is all taps of a line. Sums come out with
//! pixels as rows. They are stored so for a convolution that follows, and transposed in cache
//! otherwise. Source: Georganas et al., "Harnessing deep learning via a single building block",
//! IPDPS 2020 (direct convolutions as batches of small products).
//!
//! Long because staging, products and epilogue of this path share one table of offsets.
#![allow(unsafe_code)] // Raw pointers into the input and scratch.

use half::bf16;
use overdrive_ir::plan::{ConvolutionCall, WindowDimension};
use overdrive_ir::{Convolution, DType, Plan, TensorType};

use super::finish::{Finish, Sums};
use super::interleave::{FEW, interleave_image};
use super::lines::{Band, ByLines};
use super::packed_weights::{ByTaps, KBlock, PackedWeights, Packer, WeightSide};
use crate::exec::{Runnable, Unsupported};
use crate::gemm::{MicroKernel, OperandLines, PixelConfig, PixelTiles, transpose};
use crate::isa::InstructionSet;
use crate::kernels::place::Strided;
use crate::slots::SlotTable;
use crate::threads::{PlacedParts, Pool, ScratchParts};

/// Pixels and channels of a tile, and output channels of a panel.
const PIXELS: usize = 16;
const CHANNELS: usize = 32;
const PANEL: usize = 32;

/// Pixels of a span: their sums and inputs stay in the second-level cache.
const SPAN: usize = 256;

/// Bytes of an element, and of a sum.
const ELEMENT: usize = size_of::<bf16>();
const SUM: usize = size_of::<f32>();

/// Whether a convolution of these types of input, kernel and output is computed in this form, its
/// input lying with these strides.
pub(crate) fn takes(conv: &Convolution, types: [&TensorType; 3], strides: &[i64]) -> bool {
    let fits = |window: &[WindowDimension]| {
        fits((window, conv.groups), types.map(TensorType::sizes), strides)
    };
    let [x, w, _] = types.map(|ty| ty.dtype);
    (x, w, conv.accumulate) == (DType::BF16, DType::BF16, DType::F32) && fits(&conv.window)
}

/// The same for a call.
pub(super) fn takes_call(call: &ConvolutionCall) -> bool {
    let (x, w) = (&call.input.ty, &call.kernel.ty);
    let sizes = [x.sizes(), w.sizes(), call.epilogue.0.extents.clone()];
    (x.dtype, w.dtype, call.accumulate) == (DType::BF16, DType::BF16, DType::F32)
        && fits((&call.window, call.groups), sizes, &call.input.strides)
}

fn fits(
    (window, groups): (&[WindowDimension], usize),
    [_, w, y]: [Vec<usize>; 3],
    strides: &[i64],
) -> bool {
    let (&[outputs, channels, _, taps], &[_, x]) = (w.as_slice(), window) else { return false };
    let line = y[3];
    // Tiles at the ends of lines are computed whole.
    let full = line > 0 && line.next_multiple_of(PIXELS) * 4 <= line * 5;
    let last = channels.is_multiple_of(CHANNELS)
        && channels > 0
        && strides[1] == 1
        && strides[3] == channels as i64;
    let few = (1..=FEW).contains(&channels)
        && strides[3] == 1
        && x.kernel_dilation == 1
        && taps * FEW <= CHANNELS;
    let plain = groups == 1 && window.iter().all(|d| d.input_dilation == 1);
    let whole = outputs.is_multiple_of(PANEL) && outputs > 0 && w[2] * taps > 0;
    plain && full && whole && (last || few) && InstructionSet::Amx.is_usable()
}

/// The packing of a kernel.
pub(super) fn packer(call: &ConvolutionCall) -> Packer<bf16> {
    let sizes = call.kernel.ty.sizes();
    let (taps, channels) = (sizes[2] * sizes[3], sizes[1]);
    let room = if channels <= FEW { FEW } else { channels };
    let whole = vec![KBlock { first: 0, depth: taps * room }];
    Packer::new(
        (MicroKernel::best(), WeightSide::Right),
        call,
        Box::new(ByTaps { taps, channels, room }),
        whole,
    )
}

/// A compiled convolution.
pub(super) struct Pixels {
    input: Strided,
    window: [WindowDimension; 2],
    taps: [usize; 2],
    channels: usize,
    /// Lines and pixels of a line of the output.
    output: [usize; 2],
    weights: PackedWeights<bf16>,
    finish: Finish,
    /// Whether results lie with pixels as rows, as sums do.
    as_rows: bool,
    config: PixelConfig,
    /// Whether the image is read where it lies.
    in_place: bool,
    /// Bytes from a line and a pixel of the input, or of its copy, to the next, and from a pixel to
    /// each step.
    steps: [usize; 2],
    offsets: Vec<isize>,
}

/// Neighbouring lines of an image of the output.
#[derive(Clone, Copy)]
struct LineBand {
    image: usize,
    /// Its number in the image.
    part: usize,
    first: usize,
    lines: usize,
}

/// The parts of a worker's scratch.
struct PixelsScratch<'a> {
    stage: *mut u8,
    sums: *mut f32,
    turned: *mut f32,
    epilogue: *mut u8,
    _placed: PlacedParts<'a, 4>,
}

impl<'a> From<PlacedParts<'a, 4>> for PixelsScratch<'a> {
    fn from(placed: PlacedParts<'a, 4>) -> Self {
        let [stage, sums, turned, epilogue] = placed.starts;
        Self { stage, sums: sums.cast(), turned: turned.cast(), epilogue, _placed: placed }
    }
}

impl Pixels {
    pub(super) fn new(plan: &Plan, call: &ConvolutionCall) -> Result<Self, Unsupported> {
        let (input, sizes) = (Strided::new(&call.input), call.kernel.ty.sizes());
        let (channels, taps, extents) = (sizes[1], [sizes[2], sizes[3]], &call.epilogue.0.extents);
        let (window, output) = ([call.window[0], call.window[1]], [extents[2], extents[3]]);
        let room = if channels <= FEW { FEW } else { channels };
        let inside = |d: usize| {
            let reach =
                (output[d] - 1) * window[d].stride + (taps[d] - 1) * window[d].kernel_dilation;
            window[d].pad_low <= 0 && reach as i64 - window[d].pad_low < input.sizes[2 + d] as i64
        };
        let in_place = channels > FEW && inside(0) && inside(1) && output[1].is_multiple_of(PIXELS);
        let columns = Self::columns(window[1], taps[1], output[1]);
        let steps = match in_place {
            true => [input.strides[2] as usize * ELEMENT, room * ELEMENT],
            false => [columns * room * ELEMENT, room * ELEMENT],
        };
        let depth = if channels <= FEW { taps[1] * FEW } else { CHANNELS };
        let mut offsets = Vec::new();
        for line in 0..taps[0] {
            let line = line * window[0].kernel_dilation * steps[0];
            for tap in 0..if channels <= FEW { 1 } else { taps[1] } {
                let tap = line + tap * window[1].kernel_dilation * steps[1];
                offsets.extend(
                    (0..room.div_ceil(depth)).map(|step| (tap + step * depth * ELEMENT) as isize),
                );
            }
        }
        let pixels = Finish::of_pixels(plan, call);
        let as_rows = pixels.is_some();
        let finish = pixels.map_or_else(|| Finish::new(plan, call), Ok)?;
        let weights = PackedWeights::new(plan, call.kernel.slot, packer(call))?;
        let config = PixelConfig::new(depth);
        Ok(Self {
            input,
            window,
            taps,
            channels,
            output,
            weights,
            finish,
            as_rows,
            config,
            in_place,
            steps,
            offsets,
        })
    }

    /// Columns of the image, zeros included, that whole tiles of a line see.
    fn columns(window: WindowDimension, taps: usize, line: usize) -> usize {
        (line.next_multiple_of(PIXELS) - 1) * window.stride
            + (taps - 1) * window.kernel_dilation
            + 1
    }

    /// Lines of the output that are computed at once.
    fn lines_at_once(&self) -> usize {
        let [height, line] = self.output;
        (SPAN / line).clamp(1, height.max(1))
    }

    /// Lines of the image, zeros included, that lines of the output see.
    fn lines(&self, outputs: usize) -> usize {
        (outputs - 1) * self.window[0].stride
            + (self.taps[0] - 1) * self.window[0].kernel_dilation
            + 1
    }

    /// Sums of a pixel that are kept.
    fn kept(&self) -> usize {
        if self.as_rows { self.weights.outputs() } else { PANEL }
    }

    /// The buffers of a span: stage, sums, sums transposed, and the epilogue's scratch.
    fn parts(&self, lines: usize) -> ScratchParts<4> {
        let pixels = lines * self.output[1];
        ScratchParts::new([
            // The last step of the last pixel reads a whole row of a tile.
            ("stage", if self.in_place { 0 } else { self.lines(lines) * self.steps[0] + 64 }),
            ("sums", (pixels + PIXELS) * self.kept() * SUM),
            ("sums transposed", if self.as_rows { 0 } else { pixels * PANEL * SUM }),
            ("epilogue", self.finish.scratch_bytes()),
        ])
    }

    /// Copies the pixels that a span sees, and returns where its first pixel's first tap lies.
    fn stage(&self, span: LineBand, slots: &SlotTable, to: *mut u8) -> *const u8 {
        let strides = &self.input.strides;
        let image = self
            .input
            .get(slots)
            .wrapping_offset(span.image as isize * strides[0] as isize * ELEMENT as isize);
        let image = image.cast_const();
        let WindowDimension { stride, pad_low, .. } = self.window[0];
        let top = (span.first * stride) as i64 - pad_low;
        if self.in_place {
            let (down, along) = (top * strides[2], -self.window[1].pad_low * strides[3]);
            return image.wrapping_offset((down + along) as isize * ELEMENT as isize);
        }
        let columns = self.steps[0] / self.steps[1];
        let [height, width] = [self.input.sizes[2] as i64, self.input.sizes[3] as i64];
        let skip = (-self.window[1].pad_low).clamp(0, width);
        let low = (self.window[1].pad_low.max(0) as usize).min(columns);
        let seen = (columns - low).min((width - skip) as usize);
        for line in 0..self.lines(span.lines) {
            let to = to.wrapping_add(line * self.steps[0]);
            let y = top + line as i64;
            let seen = if (0..height).contains(&y) { seen } else { 0 };
            let from = image
                .wrapping_offset((y * strides[2] + skip * strides[3]) as isize * ELEMENT as isize);
            // SAFETY: the line of the stage has its columns, that of the image the columns that are
            // seen.
            unsafe {
                to.write_bytes(0, low * self.steps[1]);
                let to = to.add(low * self.steps[1]);
                if self.channels <= FEW {
                    interleave_image(
                        from.cast(),
                        (self.channels, strides[1] as isize),
                        seen,
                        to.cast(),
                    );
                } else {
                    to.copy_from_nonoverlapping(from, seen * self.steps[1]);
                }
                to.add(seen * self.steps[1]).write_bytes(0, (columns - low - seen) * self.steps[1]);
            }
        }
        to.cast_const()
    }

    fn run_span(&self, span: LineBand, buffers: &PixelsScratch<'_>, slots: &SlotTable) {
        let start = self.stage(span, slots, buffers.stage);
        let (line, kept) = (self.output[1], self.kept());
        let (pixels, tiles) = (span.lines * line, line.div_ceil(PIXELS));
        let pixel_bytes = self.window[1].stride * self.steps[1];
        // A tile's first pixel in the stage, and its first sum.
        let place = |tile: usize| {
            let (y, x) = (tile / tiles, tile % tiles * PIXELS);
            let from = y * self.window[0].stride * self.steps[0] + x * pixel_bytes;
            (start.wrapping_add(from), (y * line + x) * kept)
        };
        let done = |row: usize, rows: usize, sums: *mut f32, row_bytes: usize| Sums {
            image: span.image,
            part: span.part,
            row,
            rows,
            first: span.first * line,
            pixels,
            sums: sums.cast_const().cast(),
            width: SUM,
            row_bytes,
        };
        for channel in (0..self.weights.outputs()).step_by(PANEL) {
            let sums = if self.as_rows { buffers.sums.wrapping_add(channel) } else { buffers.sums };
            let b = self.weights.panels(slots, 0, 0, channel);
            // A line's last tile may compute pixels that do not exist; the next line's first tile
            // overwrites them.
            for tile in (0..span.lines * tiles).step_by(2) {
                let second = (tile + 1).min(span.lines * tiles - 1);
                let ((p0, c0), (p1, c1)) = (place(tile), place(second));
                let product = PixelTiles {
                    pixels: [p0, p1],
                    pixel_bytes,
                    offsets: &self.offsets,
                    b,
                    c: [sums.wrapping_add(c0), sums.wrapping_add(c1)],
                    c_bytes: kept * SUM,
                };
                // SAFETY: `run` holds the registers. The pixels that tiles see are staged or inside
                // of the image, and sums have room.
                unsafe { self.config.multiply(product) };
            }
            if !self.as_rows {
                let lines = OperandLines {
                    from: sums.cast_const(),
                    lines: pixels,
                    line_stride: PANEL,
                    k: PANEL,
                    k_stride: 1,
                };
                let done = done(channel, PANEL, buffers.turned, pixels * SUM);
                // SAFETY: the sums of all pixels are there, and the span is this task's.
                unsafe {
                    transpose(lines, buffers.turned);
                    self.finish.apply(done, slots, buffers.epilogue);
                }
            }
        }
        if self.as_rows {
            let done = done(0, self.weights.outputs(), buffers.sums, kept * SUM);
            // SAFETY: the sums of all channels are there, and the lines are this task's.
            unsafe { self.finish.apply_pixels(done, slots, buffers.epilogue) };
        }
    }
}

impl Runnable for Pixels {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let (images, [height, line]) = (self.input.sizes[0], self.output);
        if images * height * line == 0 {
            return;
        }
        self.prepare(pool, slots);
        let shared = (height * images).div_ceil(self.finish.pieces(pool));
        let lines = self.lines_at_once().min(shared.max(1));
        let spans = height.div_ceil(lines);
        let parts = self.parts(lines);
        pool.run(images * spans, |task, worker| {
            let (image, part) = (task / spans, task % spans);
            let first = part * lines;
            let buffers = worker.scratch.place(parts).into();
            // SAFETY: the span is this task's.
            unsafe { self.finish.begin((image, part), 0..self.weights.outputs(), slots) };
            let span = LineBand { image, part, first, lines: lines.min(height - first) };
            // SAFETY: `fits` has checked that the CPU has AMX.
            unsafe { self.config.hold(|| self.run_span(span, &buffers, slots)) };
        });
        self.finish.conclude(pool, slots, spans);
    }

    fn workspace_bytes(&self) -> usize {
        self.weights.bytes()
    }
}

impl ByLines for Pixels {
    fn scratch_bytes(&self, lines: usize) -> usize {
        self.parts(self.lines_at_once().min(lines)).bytes()
    }

    fn pack_weights(&self, pool: &Pool, slots: &SlotTable) {
        self.weights.pack(pool, slots);
    }

    fn run_band(&self, band: Band<'_>) {
        let Band { image, part, lines, slots, scratch } = band;
        let most = self.lines_at_once().min(lines.len());
        let buffers = self.parts(most).place(scratch).into();
        // SAFETY: `fits` has checked that the CPU has AMX.
        unsafe {
            self.config.hold(|| {
                for first in lines.clone().step_by(most) {
                    let span = LineBand { image, part, first, lines: most.min(lines.end - first) };
                    self.run_span(span, &buffers, slots);
                }
            });
        }
    }

    fn finish(&self) -> &Finish {
        &self.finish
    }
}
