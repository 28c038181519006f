//! Convolutions on AVX-512 whose left matrix is the image itself, channels innermost: f32 by
//! multiply-adds, i8 by VNNI.
//!
//! A tile is a piece or two of a line's pixels by a panel of 32 output channels. It is summed over
//! all taps and channels in registers, so no sum is loaded again. The image is read where it lies,
//! or from a copy of a band: with zeros around it, or with the bits that VNNI wants. Images of at
//! most four channels are interleaved in that copy. The weights of a panel meet all pixels of a
//! band before the next panel comes. Tiles of sums go through the epilogue while they are in the
//! first-level cache, where it allows that. Source: Georganas et al., "Anatomy of high-performance
//! deep learning convolutions on SIMD architectures", SC 2018 (register tiles of pixels by
//! channels, without im2col).
//!
//! Long because staging, products and epilogue of this path share one table of offsets.
#![allow(unsafe_code)] // Raw pointers into the input and scratch.

use std::ops::Range;

use overdrive_ir::plan::{ConvolutionCall, WindowDimension};
use overdrive_ir::{Convolution, Plan, TensorType};

use super::finish::{Finish, Sums};
use super::interleave::FEW;
use super::lines::{Band, ByLines};
use super::packed_weights::{ByTaps, KBlock, PackedWeights, Packer, WeightSide};
use super::pixel_bands::{BandShares, PixelBand, piece};
use crate::exec::{Format, Named, Runnable, Unsupported};
use crate::gemm::{OperandLines, PIECE, PiecesTile, Piecewise, UNIT, transpose};
use crate::kernels::place::Strided;
use crate::slots::SlotTable;
use crate::threads::{PlacedParts, Pool, ScratchParts};

/// Output channels of a panel.
const PANEL: usize = 32;

/// Output channels are whole vectors of so many.
const VECTOR: usize = 16;

/// Bytes of a sum.
const SUM: usize = 4;

/// Whether a convolution of these types of input, kernel and output is computed in this form, its
/// input lying with these strides.
pub(super) fn takes<T: Format + Piecewise>(
    conv: &Convolution,
    types: [&TensorType; 3],
    strides: &[i64],
) -> bool {
    let [x, w, _] = types.map(|ty| ty.dtype);
    (x, w, conv.accumulate) == (T::DTYPE, T::DTYPE, T::Acc::DTYPE)
        && fits::<T>((&conv.window, conv.groups), types.map(TensorType::sizes), strides)
}

/// The same for a call.
pub(super) fn takes_call<T: Format + Piecewise>(call: &ConvolutionCall) -> bool {
    let (x, w) = (&call.input.ty, &call.kernel.ty);
    let sizes = [x.sizes(), w.sizes(), call.epilogue.0.extents.clone()];
    (x.dtype, w.dtype, call.accumulate) == (T::DTYPE, T::DTYPE, T::Acc::DTYPE)
        && fits::<T>((&call.window, call.groups), sizes, &call.input.strides)
}

fn fits<T: Piecewise>(
    (window, groups): (&[WindowDimension], usize),
    [_, w, y]: [Vec<usize>; 3],
    strides: &[i64],
) -> bool {
    let (&[outputs, channels, down, along], &[_, x]) = (w.as_slice(), window) else {
        return false;
    };
    let last = lies_last(channels, strides) && (channels * size_of::<T>()).is_multiple_of(UNIT);
    let few = (1..=FEW).contains(&channels) && strides[3] == 1 && x.kernel_dilation == 1;
    let plain = groups == 1 && window.iter().all(|d| d.input_dilation == 1);
    let whole = outputs.is_multiple_of(VECTOR) && outputs * down * along * y[2] * y[3] > 0;
    plain && whole && (last || few) && T::panels().is_some()
}

/// Whether the channels of a pixel lie side by side, pixel after pixel.
fn lies_last(channels: usize, strides: &[i64]) -> bool {
    strides[1] == 1 && strides[3] == channels as i64
}

/// Units of a pixel: its channels, filled up with zeros where they are few.
fn units<T>(channels: usize) -> usize {
    (channels * size_of::<T>()).div_ceil(UNIT)
}

/// The packing of a kernel.
pub(super) fn packer<T: Format + Piecewise>(call: &ConvolutionCall) -> Packer<T> {
    let sizes = call.kernel.ty.sizes();
    let (taps, channels) = (sizes[2] * sizes[3], sizes[1]);
    let room = units::<T>(channels) * UNIT / size_of::<T>();
    let whole = vec![KBlock { first: 0, depth: taps * room }];
    let kernel = T::panels().expect("`fits` has asked for it");
    Packer::new((kernel, WeightSide::Right), call, Box::new(ByTaps { taps, channels, room }), whole)
}

/// The most parts that an image is folded in: bands, and those of a chain are lines at least.
pub(super) fn most_bands<T: Format + Piecewise>(call: &ConvolutionCall) -> usize {
    let (bytes, weights) = (image_bytes(call), packer::<T>(call).bytes());
    BandShares::bands(bytes, weights).max(call.epilogue.0.extents[2])
}

/// Bytes of an image.
fn image_bytes(call: &ConvolutionCall) -> usize {
    call.input.ty.bytes() / call.input.ty.sizes()[0].max(1)
}

/// The form in which sums wait for the epilogue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// A tile at a time.
    Tile,
    /// All pixels of a band by the channels of a task.
    Pixels,
    /// The channels of a panel by all pixels of a band.
    Channels,
}

/// From where the pixels of a band are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// From the image.
    None,
    /// From a copy of its pixels, which lie as evenly as those of a line.
    Pixels,
    /// From a copy of the lines that it sees, zeros included.
    Lines,
}

/// A compiled convolution.
pub(super) struct Direct<T: Format + Piecewise> {
    input: Strided,
    window: [WindowDimension; 2],
    taps: [usize; 2],
    channels: usize,
    /// Lines and pixels of a line of the output: one line where all pixels lie as evenly as those
    /// of a line.
    output: [usize; 2],
    /// The same before lines were joined.
    lines: [usize; 2],
    image_bytes: usize,
    piece: usize,
    weights: PackedWeights<T>,
    weight_bytes: usize,
    finish: Finish,
    waiting: Waiting,
    staged: Stage,
    /// Bytes from a line of the input or of its copy to the next, and from a pixel to the next.
    steps: [usize; 2],
    /// Bytes from a pixel to the units of each tap, or of each line of taps.
    offsets: Vec<isize>,
    units: usize,
}

/// The parts of a worker's scratch.
struct DirectScratch<'a> {
    stage: *mut u8,
    sums: *mut u32,
    turned: *mut u32,
    epilogue: *mut u8,
    _placed: PlacedParts<'a, 4>,
}

impl<'a> From<PlacedParts<'a, 4>> for DirectScratch<'a> {
    fn from(placed: PlacedParts<'a, 4>) -> Self {
        let [stage, sums, turned, epilogue] = placed.starts;
        Self { stage, sums: sums.cast(), turned: turned.cast(), epilogue, _placed: placed }
    }
}

impl<T: Format + Piecewise> Direct<T> {
    pub(super) fn new(plan: &Plan, call: &ConvolutionCall) -> Result<Self, Unsupported> {
        let (input, sizes) = (Strided::new(&call.input), call.kernel.ty.sizes());
        let (channels, taps, extents) = (sizes[1], [sizes[2], sizes[3]], &call.epilogue.0.extents);
        let (window, lines) = ([call.window[0], call.window[1]], [extents[2], extents[3]]);
        let last = lies_last(channels, &input.strides);
        let inside = |d: usize| {
            let reach =
                (lines[d] - 1) * window[d].stride + (taps[d] - 1) * window[d].kernel_dilation;
            window[d].pad_low <= 0 && reach as i64 - window[d].pad_low < input.sizes[2 + d] as i64
        };
        let in_place = last && inside(0) && inside(1);
        let of_pixel = units::<T>(channels);
        let pixel_bytes = of_pixel * UNIT;
        let image_line = input.strides[2] as usize * size_of::<T>();
        let runs = |line_bytes: usize| {
            window[0].stride * line_bytes == lines[1] * window[1].stride * pixel_bytes
        };
        let one_run = in_place && runs(image_line);
        let staged = match T::SHIFT {
            0 if in_place => Stage::None,
            _ if one_run && taps == [1, 1] && window[1].stride == 1 => Stage::Pixels,
            _ => Stage::Lines,
        };
        let line_bytes = match staged {
            Stage::Lines => columns(window[1], taps[1], lines[1]) * pixel_bytes,
            Stage::None | Stage::Pixels => image_line,
        };
        let steps = [line_bytes, pixel_bytes];
        let output = match staged {
            Stage::None | Stage::Pixels if one_run => [1, lines[0] * lines[1]],
            _ => lines,
        };
        // Taps of a line that lie side by side are one run.
        let joined = window[1].kernel_dilation == 1;
        let mut offsets = Vec::new();
        for line in 0..taps[0] {
            let line = line * window[0].kernel_dilation * line_bytes;
            for tap in 0..if joined { 1 } else { taps[1] } {
                offsets.push((line + tap * window[1].kernel_dilation * pixel_bytes) as isize);
            }
        }
        let pixels = Finish::of_pixels(plan, call).filter(Finish::takes_some_channels);
        let waiting = match &pixels {
            Some(finish) if finish.takes_tiles() => Waiting::Tile,
            Some(_) => Waiting::Pixels,
            None => Waiting::Channels,
        };
        let finish = pixels.map_or_else(|| Finish::new(plan, call), Ok)?;
        let packer = packer::<T>(call);
        let weight_bytes = packer.bytes();
        let weights = PackedWeights::new(plan, call.kernel.slot, packer)?;
        Ok(Self {
            input,
            window,
            taps,
            channels,
            output,
            lines,
            image_bytes: image_bytes(call),
            piece: piece(output[1]),
            weights,
            weight_bytes,
            finish,
            waiting,
            staged,
            steps,
            offsets,
            units: of_pixel * if joined { taps[1] } else { 1 },
        })
    }

    /// Lines of the image, zeros included, that lines of the output see.
    fn seen(&self, outputs: usize) -> usize {
        (outputs - 1) * self.window[0].stride
            + (self.taps[0] - 1) * self.window[0].kernel_dilation
            + 1
    }

    /// The buffers of a band of so many pixels in so many lines, and of panels: stage, sums, sums
    /// transposed, and the epilogue's scratch.
    fn parts(&self, [lines, pixels]: [usize; 2], panels: usize) -> ScratchParts<4> {
        let (sums, turned) = match self.waiting {
            Waiting::Tile => (2 * PIECE * PANEL, 0),
            Waiting::Pixels => (pixels * panels * PANEL, 0),
            Waiting::Channels => (pixels * PANEL, pixels * PANEL),
        };
        let stage = match self.staged {
            Stage::None => 0,
            Stage::Pixels => pixels * self.steps[1],
            Stage::Lines => self.seen(lines) * self.steps[0],
        };
        ScratchParts::new([
            ("stage", stage),
            ("sums", sums * SUM),
            ("sums transposed", turned * SUM),
            ("epilogue", self.finish.scratch_bytes()),
        ])
    }

    /// Copies the pixels that a band sees, and returns where the first tap of its line's first
    /// pixel lies.
    fn stage(&self, band: &PixelBand, slots: &SlotTable, to: *mut u8) -> *const u8 {
        let (strides, size) = (&self.input.strides, size_of::<T>());
        let image = self.input.get(slots).cast_const();
        let image =
            image.wrapping_offset(band.image as isize * strides[0] as isize * size as isize);
        let WindowDimension { stride, pad_low, .. } = self.window[0];
        let top = (band.lines.start * stride) as i64 - pad_low;
        let [line_bytes, pixel_bytes] = self.steps;
        if self.staged != Stage::Lines {
            let (down, along) = (top * strides[2], -self.window[1].pad_low * strides[3]);
            let start = image.wrapping_offset((down + along) as isize * size as isize);
            if self.staged == Stage::None {
                return start;
            }
            let (before, bytes) =
                (band.columns.start * pixel_bytes, band.columns.len() * pixel_bytes);
            // SAFETY: the stage has the pixels of the band, which the image has from there on.
            unsafe {
                to.copy_from_nonoverlapping(start.add(before), bytes);
                shift::<T>(to, bytes);
            }
            return to.cast_const().wrapping_sub(before);
        }
        let columns = line_bytes / pixel_bytes;
        let [height, width] = [self.input.sizes[2] as i64, self.input.sizes[3] as i64];
        let skip = (-self.window[1].pad_low).clamp(0, width);
        let low = (self.window[1].pad_low.max(0) as usize).min(columns);
        let seen = (columns - low).min((width - skip) as usize);
        let last = lies_last(self.channels, strides);
        for line in 0..self.seen(band.lines.len()) {
            let to = to.wrapping_add(line * line_bytes);
            let y = top + line as i64;
            let seen = if (0..height).contains(&y) { seen } else { 0 };
            let start = (y * strides[2] + skip * strides[3]) as isize * size as isize;
            let from = image.wrapping_offset(start);
            // SAFETY: the line of the stage has its columns, that of the image the columns that are
            // seen.
            unsafe {
                to.write_bytes(0, low * pixel_bytes);
                let to = to.add(low * pixel_bytes);
                if last {
                    to.copy_from_nonoverlapping(from, seen * pixel_bytes);
                } else {
                    to.write_bytes(0, seen * pixel_bytes);
                    for channel in 0..self.channels {
                        let from = from.cast::<T>().offset(channel as isize * strides[1] as isize);
                        let to = to.cast::<T>().add(channel);
                        for pixel in 0..seen {
                            *to.add(pixel * (pixel_bytes / size)) = *from.add(pixel);
                        }
                    }
                }
                to.add(seen * pixel_bytes).write_bytes(0, (columns - low - seen) * pixel_bytes);
                shift::<T>(to.sub(low * pixel_bytes), line_bytes);
            }
        }
        to.cast_const()
    }

    /// A band in some panels of output channels.
    fn run_panels(
        &self,
        band: &PixelBand,
        panels: Range<usize>,
        buffers: &DirectScratch<'_>,
        slots: &SlotTable,
    ) {
        let start = self.stage(band, slots, buffers.stage);
        let (outputs, pixels) = (self.weights.outputs(), band.pixels());
        let first = band.first(self.output[1]);
        let c_stride = match self.waiting {
            Waiting::Pixels => panels.len() * PANEL,
            _ => PANEL,
        };
        let done = |sums: *mut u32, [first, pixels]: [usize; 2], [row, rows]: [usize; 2]| Sums {
            image: band.image,
            part: band.part,
            row,
            rows,
            first,
            pixels,
            sums: sums.cast_const().cast(),
            width: SUM,
            row_bytes: c_stride * SUM,
        };
        for panel in panels.clone() {
            let channel = panel * PANEL;
            let channels = [channel, (outputs - channel).min(PANEL)];
            let mut tile = PiecesTile {
                pixels: [start; 2],
                pixel_bytes: self.window[1].stride * self.steps[1],
                offsets: &self.offsets,
                units: self.units,
                b: self.weights.panels(slots, 0, 0, channel),
                c: [buffers.sums; 2],
                c_stride,
            };
            band.for_each_tile(self.piece, |pieces, length| {
                for (i, piece) in pieces.iter().enumerate() {
                    let down = piece.line * self.window[0].stride * self.steps[0];
                    tile.pixels[i] = start.wrapping_add(down + piece.column * tile.pixel_bytes);
                    let row = match self.waiting {
                        Waiting::Tile => i * length,
                        _ => piece.number,
                    };
                    tile.c[i] = buffers.sums.wrapping_add(row * c_stride);
                    if self.waiting == Waiting::Pixels {
                        let before = (panel - panels.start) * PANEL;
                        tile.c[i] = tile.c[i].wrapping_add(before);
                    }
                }
                if self.waiting == Waiting::Tile {
                    for piece in pieces {
                        let number = first + piece.number;
                        let at = done(buffers.sums, [number, length], channels);
                        self.finish.ask_pixels(at, slots);
                    }
                }
                // SAFETY: the pixels that the tile sees are staged or inside of the image, weights
                // are packed for it, and sums have room. `fits` has asked for the instructions.
                unsafe { T::TILES[length - 1][pieces.len() - 1](&tile) };
                if self.waiting == Waiting::Tile {
                    let finish = |sums: *mut u32, number: usize, pixels: usize| {
                        let at = done(sums, [first + number, pixels], channels);
                        // SAFETY: the sums of the tile are there; its results are this task's.
                        unsafe { self.finish.apply_pixels(at, slots, buffers.epilogue) };
                    };
                    match pieces {
                        [a, b] if b.number == a.number + length => {
                            finish(tile.c[0], a.number, 2 * length);
                        }
                        _ => pieces
                            .iter()
                            .zip(tile.c)
                            .for_each(|(piece, c)| finish(c, piece.number, length)),
                    }
                }
            });
            if self.waiting == Waiting::Channels {
                let lines = OperandLines {
                    from: buffers.sums.cast_const(),
                    lines: pixels,
                    line_stride: PANEL,
                    k: PANEL,
                    k_stride: 1,
                };
                let at = done(buffers.turned, [first, pixels], channels);
                // SAFETY: the sums of all pixels are there, and the band is this task's.
                unsafe {
                    transpose(lines, buffers.turned);
                    let at = Sums { row_bytes: pixels * SUM, ..at };
                    self.finish.apply(at, slots, buffers.epilogue);
                }
            }
        }
        if self.waiting == Waiting::Pixels {
            let channel = panels.start * PANEL;
            let channels = [channel, (panels.end * PANEL).min(outputs) - channel];
            let at = done(buffers.sums, [first, pixels], channels);
            // SAFETY: the sums of these channels are there, and the band is this task's.
            unsafe { self.finish.apply_pixels(at, slots, buffers.epilogue) };
        }
    }
}

/// Changes staged bytes to what products read.
///
/// # Safety
/// There are so many bytes, which nobody else has.
unsafe fn shift<T: Piecewise>(start: *mut u8, bytes: usize) {
    if T::SHIFT != 0 {
        // SAFETY: as the caller promises.
        let bytes = unsafe { std::slice::from_raw_parts_mut(start, bytes) };
        bytes.iter_mut().for_each(|byte| *byte ^= T::SHIFT);
    }
}

/// Columns of the image, zeros included, that a line sees.
fn columns(window: WindowDimension, taps: usize, line: usize) -> usize {
    (line - 1) * window.stride + (taps - 1) * window.kernel_dilation + 1
}

impl<T: Format + Piecewise> Runnable for Direct<T> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let images = self.input.sizes[0];
        if images == 0 {
            return;
        }
        self.prepare(pool, slots);
        let panels = self.weights.outputs().div_ceil(PANEL);
        let shares = BandShares {
            images,
            output: self.output,
            bands: BandShares::bands(self.image_bytes, self.weight_bytes),
            panels,
        };
        let cutting = shares.cut(pool.threads(), self.piece);
        let parts = self.parts(cutting.most(), cutting.panels);
        let (bands, splits) = (cutting.bands(), panels.div_ceil(cutting.panels));
        pool.run(images * bands * splits, |task, worker| {
            let (split, task) = (task % splits, task / splits);
            let (image, part) = (task / bands, task % bands);
            let buffers = worker.scratch.place(parts).into();
            let here = split * cutting.panels..((split + 1) * cutting.panels).min(panels);
            let rows = here.start * PANEL..(here.end * PANEL).min(self.weights.outputs());
            // SAFETY: these channels of the band are this task's.
            unsafe { self.finish.begin((image, part), rows, slots) };
            self.run_panels(&cutting.band(image, part), here, &buffers, slots);
        });
        self.finish.conclude(pool, slots, bands);
    }

    fn workspace_bytes(&self) -> usize {
        self.weights.bytes()
    }
}

impl<T: Format + Piecewise> ByLines for Direct<T> {
    fn scratch_bytes(&self, lines: usize) -> usize {
        let panels = self.weights.outputs().div_ceil(PANEL);
        self.parts([lines, lines * self.lines[1]], panels).bytes()
    }

    fn pack_weights(&self, pool: &Pool, slots: &SlotTable) {
        self.weights.pack(pool, slots);
    }

    fn run_band(&self, band: Band<'_>) {
        let Band { image, part, lines, slots, scratch } = band;
        let (count, width) = (lines.len(), self.lines[1]);
        let panels = self.weights.outputs().div_ceil(PANEL);
        let buffers = self.parts([count, count * width], panels).place(scratch).into();
        let band = match self.output == self.lines {
            true => PixelBand { image, part, lines, columns: 0..width },
            false => {
                let columns = lines.start * width..lines.end * width;
                PixelBand { image, part, lines: 0..1, columns }
            }
        };
        self.run_panels(&band, 0..panels, &buffers, slots);
    }

    fn finish(&self) -> &Finish {
        &self.finish
    }
}
