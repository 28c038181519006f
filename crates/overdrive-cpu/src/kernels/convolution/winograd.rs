//! Convolutions of 3x3 taps in f32 with fewer multiplications. The part of the image that a span of
//! tiles sees becomes panels of combinations, one product for each sum. Sums become pixels while
//! they are in cache. `scheme` has the tables, `transform` the vectors.
//!
//! A span is whole lines of tiles, so that its pixels are neighbours and the epilogue is that of
//! the plain product. Weights are combined in f64 and rounded once.
#![allow(unsafe_code)] // Raw pointers into the input and scratch.

use overdrive_ir::plan::ConvolutionCall;
use overdrive_ir::{DType, Plan};

use super::finish::{Finish, Sums};
use super::lines::{Band, ByLines};
use super::packed_weights::{KBlock, PackedWeights, Packer, WeightSide, kernel_of};
use super::scheme::{Combined, OUTPUTS, Scheme, TAPS, sums};
use super::stage::ask;
use super::transform::{self, LANES, PanelRow, Points, Tiles};
use crate::exec::{Runnable, Unsupported};
use crate::gemm::{BlockProduct, MicroKernel};
use crate::isa::InstructionSet;
use crate::kernels::place::Strided;
use crate::slots::SlotTable;
use crate::threads::{PlacedParts, Pool, ScratchParts};

/// Channels and output channels of a group from which on the transforms are paid for.
const LEAST: [usize; 2] = [16, 32];

/// Output channels of a group from which on the plain product is the better one where it has tiles.
const TILES: usize = 128;

/// Bytes of panels of a span: they stay in the second-level cache.
const PANELS: usize = 1 << 20;

/// Tiles of a span: sums of a panel of weights stay in the first-level cache, or close to it.
const SPAN: usize = 96;

/// The step, 1 or 2, with which a convolution is computed in this form; `None` where it is not.
pub(super) fn step_of(call: &ConvolutionCall) -> Option<usize> {
    let [y, x] = *call.window.as_slice() else { return None };
    let sizes = call.kernel.ty.sizes();
    let (outputs, channels, step) = (sizes[0] / call.groups.max(1), sizes[1], y.stride);
    let plain =
        [y, x].iter().all(|d| (d.stride, d.input_dilation, d.kernel_dilation) == (step, 1, 1));
    let f32s = call.input.ty.dtype == DType::F32
        && call.kernel.ty.dtype == DType::F32
        && call.accumulate == DType::F32;
    let lines = call.input.strides[3] == 1 && sizes[2..] == [TAPS, TAPS];
    let width = MicroKernel::<f32>::best().tile()[1];
    let [height, line] = [2, 3].map(|d| call.epilogue.0.extents[d]);
    // Points of a tile in panels of tiles, beside taps in panels of pixels: the ends of small
    // images cost more than is saved.
    let (points, tiles) = ((step + OUTPUTS + 1).pow(2), line.div_ceil(OUTPUTS));
    let padded = |columns: usize| columns.next_multiple_of(width);
    let fewer = 10 * points * padded(height.div_ceil(OUTPUTS) * tiles)
        <= 9 * TAPS * TAPS * padded(height * line);
    let bytes = points * channels * padded(tiles) * size_of::<f32>();
    let pays = fewer && channels >= LEAST[0] && outputs >= LEAST[1] && bytes <= PANELS;
    // On tiles of bf16x3 the plain product of many output channels is the faster one.
    let tiles_pay = outputs >= TILES && !std::ptr::eq(kernel_of::<f32>(call), MicroKernel::best());
    let vectors = InstructionSet::Avx512.is_usable() && width.is_multiple_of(LANES);
    (plain && f32s && lines && pays && !tiles_pay && vectors && (step == 1 || step == 2))
        .then_some(step)
}

/// The packing of a kernel.
pub(super) fn packer<S: Scheme>(call: &ConvolutionCall) -> Packer<f32> {
    let (kernel, channels) = (MicroKernel::best(), call.kernel.ty.sizes()[1]);
    let mut blocks: Vec<KBlock> = Vec::new();
    for (y, x) in sums::<S>() {
        let first = blocks.last().map_or(0, |block| block.first + block.depth);
        blocks.extend(KBlock::cut(kernel, first, channels * S::SUMS[y].len() * S::SUMS[x].len()));
    }
    Packer::new((kernel, WeightSide::Left), call, Box::new(Combined::<S>::new(channels)), blocks)
}

/// A compiled convolution.
pub(super) struct Winograd<S> {
    kernel: &'static MicroKernel<f32>,
    input: Strided,
    weights: PackedWeights<f32>,
    finish: Finish,
    groups: usize,
    /// Channels of a group.
    channels: usize,
    pads: [i64; 2],
    /// Lines and pixels of a line of the output; lines of tiles, and tiles of a line.
    output: [usize; 2],
    tiles: [usize; 2],
    /// The first block of k of each sum, and behind the last the count.
    blocks: Vec<usize>,
    scheme: std::marker::PhantomData<fn() -> S>,
}

/// Some lines of tiles, and the room that they need, in elements of f32.
#[derive(Clone, Copy)]
struct TileBand {
    first: usize,
    lines: usize,
    /// Tiles, rounded up to whole panels.
    columns: usize,
    /// From the lines of one place in a tile to those of the next.
    pitch: usize,
}

/// The parts of a worker's scratch.
struct WinogradScratch<'a> {
    line: *mut f32,
    points: *mut f32,
    panels: *mut f32,
    sums: *mut f32,
    pixels: *mut f32,
    epilogue: *mut u8,
    _placed: PlacedParts<'a, 6>,
}

impl<'a> From<PlacedParts<'a, 6>> for WinogradScratch<'a> {
    fn from(placed: PlacedParts<'a, 6>) -> Self {
        let [line, points, panels, sums, pixels, epilogue] = placed.starts;
        let [line, points, panels, sums, pixels] =
            [line, points, panels, sums, pixels].map(<*mut u8>::cast);
        Self { line, points, panels, sums, pixels, epilogue, _placed: placed }
    }
}

impl<S: Scheme> Winograd<S> {
    pub(super) fn new(plan: &Plan, call: &ConvolutionCall) -> Result<Self, Unsupported> {
        let packer = packer::<S>(call);
        let mut blocks = vec![0];
        for (y, x) in sums::<S>() {
            let k = call.kernel.ty.sizes()[1] * S::SUMS[y].len() * S::SUMS[x].len();
            blocks.push(
                blocks[blocks.len() - 1] + KBlock::cut(MicroKernel::<f32>::best(), 0, k).len(),
            );
        }
        let extents = &call.epilogue.0.extents;
        let output = [extents[2], extents[3]];
        Ok(Self {
            kernel: MicroKernel::best(),
            input: Strided::new(&call.input),
            weights: PackedWeights::new(plan, call.kernel.slot, packer)?,
            finish: Finish::new(plan, call)?,
            groups: call.groups,
            channels: call.kernel.ty.sizes()[1],
            pads: [call.window[0].pad_low, call.window[1].pad_low],
            output,
            tiles: output.map(|extent| extent.div_ceil(OUTPUTS)),
            blocks,
            scheme: std::marker::PhantomData,
        })
    }

    fn k(&self) -> usize {
        self.weights.blocks().last().map_or(0, |block| block.first + block.depth)
    }

    /// Lines of tiles of a span. Their number fills panels best, keeps them in cache, and is at
    /// most an equal share for each thread.
    fn span_lines(&self, shared: usize) -> usize {
        let [lines, tiles] = self.tiles;
        let width = self.kernel.tile()[1];
        let most = SPAN.min(PANELS / (self.k() * size_of::<f32>())).max(width) / tiles;
        let most = most.min(shared).clamp(1, lines);
        let waste =
            |lines: usize| (lines * tiles).next_multiple_of(width) as f64 / (lines * tiles) as f64;
        (1..=most).rev().min_by(|&a, &b| waste(a).total_cmp(&waste(b))).unwrap_or(1)
    }

    fn span(&self, first: usize, lines: usize) -> TileBand {
        let columns = (lines * self.tiles[1]).next_multiple_of(self.kernel.tile()[1]);
        // One line of each place more than tiles have, for those that reach into the next tile.
        // Also the elements that whole vectors read.
        TileBand { first, lines, columns, pitch: (lines + 2) * self.tiles[1] + columns }
    }

    /// Elements of a line, and those that vectors read and write behind it.
    fn line_room(&self) -> usize {
        self.tiles[1].next_multiple_of(LANES) * S::STEP + S::WINDOW + 4 * LANES
    }

    /// Elements of the points of a span.
    fn points_room(span: TileBand) -> usize {
        S::POINTS.len() * S::STEP * span.pitch
    }

    /// The buffers of a span: line, points, panels, sums, pixels, and the epilogue's scratch.
    fn parts(&self, span: TileBand) -> ScratchParts<6> {
        let height = self.kernel.tile()[0];
        let bytes = |elements: usize| elements * size_of::<f32>();
        ScratchParts::new([
            ("line", bytes(self.line_room())),
            ("points", bytes(Self::points_room(span))),
            ("panels", bytes(self.k() * span.columns)),
            ("sums", bytes(S::SUMS.len().pow(2) * height * span.columns + LANES)),
            ("pixels", bytes(height * OUTPUTS * span.lines * self.output[1])),
            ("epilogue", self.finish.scratch_bytes()),
        ])
    }

    /// Fills the panels of a span. `image` is the first element of the group's first channel.
    ///
    /// # Safety
    /// The image has all elements, and the buffers are those of the span.
    unsafe fn fill(&self, image: *const f32, span: TileBand, buffers: &WinogradScratch<'_>) {
        let (strides, tiles) = (&self.input.strides, self.tiles[1]);
        let [height, width] = [self.input.sizes[2] as i64, self.input.sizes[3] as i64];
        // The part of a line that some tile sees, and where it begins in a window.
        let begin = self.pads[1].max(0) as usize;
        let skip = (-self.pads[1]).max(0);
        let seen = (tiles * S::STEP + S::WINDOW - S::STEP).saturating_sub(begin) as i64;
        let seen = seen.min(width - skip).max(0) as usize;
        let count = (span.lines - 1) * S::STEP + S::WINDOW;
        let points = |line: usize| Points {
            to: buffers.points.wrapping_add(line % S::STEP * span.pitch + line / S::STEP * tiles),
            pitch: S::STEP * span.pitch,
        };
        // SAFETY: `y` and the `seen` columns are inside of the image, and the buffers are a span's.
        // Vectors may write behind a line; the next lines overwrite that.
        unsafe {
            buffers.line.write_bytes(0, self.line_room());
            // Columns that no tile has are multiplied too: by zeros, not by leftovers in memory.
            buffers.points.write_bytes(0, Self::points_room(span));
            for channel in 0..self.channels {
                let image = image.wrapping_offset(channel as isize * strides[1] as isize);
                for line in 0..count {
                    let y = (span.first * S::STEP + line) as i64 - self.pads[0];
                    if (0..height).contains(&y) {
                        let from = image.wrapping_offset((y * strides[2] + skip) as isize);
                        ask(
                            from.wrapping_offset(strides[1] as isize).cast(),
                            (seen * size_of::<f32>()) as isize,
                        );
                        buffers.line.add(begin).copy_from_nonoverlapping(from, seen);
                        transform::line::<S>(buffers.line, tiles, points(line));
                    } else {
                        let Points { to, pitch } = points(line);
                        (0..S::POINTS.len())
                            .for_each(|point| to.add(point * pitch).write_bytes(0, tiles));
                    }
                }
                self.columns(channel, span, buffers);
            }
        }
    }

    /// The rows of a channel in all sums, from its points along lines.
    ///
    /// # Safety
    /// As for [`fill`](Self::fill).
    unsafe fn columns(&self, channel: usize, span: TileBand, buffers: &WinogradScratch<'_>) {
        let width = self.kernel.tile()[1];
        for (sum, (y, x)) in sums::<S>().enumerate() {
            let blocks = &self.weights.blocks()[self.blocks[sum]..self.blocks[sum + 1]];
            let points = S::SUMS[y].clone().flat_map(|y| S::SUMS[x].clone().map(move |x| (y, x)));
            let first = channel * S::SUMS[y].len() * S::SUMS[x].len();
            for (i, (y, x)) in points.enumerate() {
                let block = blocks[(first + i) / blocks[0].depth];
                let k = blocks[0].first + first + i - block.first;
                let row = PanelRow {
                    to: buffers.panels.wrapping_add(block.first * span.columns + k * width),
                    panel: block.depth * width,
                    width,
                };
                let along = buffers.points.wrapping_add(x * S::STEP * span.pitch).cast_const();
                let lines = |line: usize| {
                    along.wrapping_add(line % S::STEP * span.pitch + line / S::STEP * self.tiles[1])
                };
                // SAFETY: the points are filled, and a pitch leaves room for whole panels.
                unsafe { transform::column(&S::POINTS[y], lines, span.columns, row) }
            }
        }
    }

    /// A span of an image and group.
    fn run_span(
        &self,
        (image, group, part): (usize, usize, usize),
        span: TileBand,
        buffers: &WinogradScratch<'_>,
        slots: &SlotTable,
    ) {
        let strides = &self.input.strides;
        let offset = image as i64 * strides[0] + (group * self.channels) as i64 * strides[1];
        let from = self.input.get(slots).cast::<f32>().wrapping_offset(offset as isize);
        // SAFETY: the image has the elements that the geometry says, and the buffers were made for
        // such a span.
        unsafe { self.fill(from.cast_const(), span, buffers) };
        let (outputs, height) = (self.weights.outputs(), self.kernel.tile()[0]);
        let pixels = OUTPUTS * span.lines * self.output[1];
        let first = OUTPUTS * span.first * self.output[1];
        for row in (0..outputs).step_by(height) {
            let rows = (outputs - row).min(height);
            for sum in 0..S::SUMS.len().pow(2) {
                for block in self.blocks[sum]..self.blocks[sum + 1] {
                    let KBlock { first, depth } = self.weights.blocks()[block];
                    let product = BlockProduct {
                        a: self.weights.panels(slots, group, block, row),
                        b: buffers.panels.wrapping_add(first * span.columns).cast_const().cast(),
                        c: buffers.sums.wrapping_add(sum * height * span.columns),
                        c_stride: span.columns,
                        rows,
                        cols: span.columns,
                        k: depth,
                        accumulate: block > self.blocks[sum],
                    };
                    // SAFETY: both sides are packed for this kernel, and the sums are this
                    // worker's.
                    unsafe { self.kernel.multiply_block(product) };
                }
            }
            for line in 0..rows {
                let tiles = Tiles {
                    sums: buffers.sums.wrapping_add(line * span.columns).cast_const(),
                    pitch: height * span.columns,
                    lines: span.lines,
                    tiles: self.tiles[1],
                    to: buffers.pixels.wrapping_add(line * pixels),
                    line: self.output[1],
                };
                // SAFETY: the buffers were made for such a span, and `step_of` asked the CPU.
                unsafe { transform::outputs::<S>(tiles) };
            }
            let done = Sums {
                image,
                part,
                row: group * outputs + row,
                rows,
                first,
                pixels: pixels.min(self.output[0] * self.output[1] - first),
                sums: buffers.pixels.cast_const().cast(),
                width: size_of::<f32>(),
                row_bytes: pixels * size_of::<f32>(),
            };
            // SAFETY: the span is this task's, and `parts` left room for the scratch.
            unsafe { self.finish.apply(done, slots, buffers.epilogue) };
        }
    }
}

impl<S: Scheme> Runnable for Winograd<S> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let images = self.input.sizes[0];
        if images * self.output[0] * self.output[1] == 0 {
            return;
        }
        self.prepare(pool, slots);
        let shared = (self.tiles[0] * images * self.groups).div_ceil(self.finish.pieces(pool));
        let lines = self.span_lines(shared);
        let spans = self.tiles[0].div_ceil(lines);
        let parts = self.parts(self.span(0, lines));
        pool.run(images * self.groups * spans, |task, worker| {
            let (part, task) = (task % spans, task / spans);
            let buffers = worker.scratch.place(parts).into();
            let first = part * lines;
            let span = self.span(first, lines.min(self.tiles[0] - first));
            let at = (task / self.groups, task % self.groups, part);
            let rows = at.1 * self.weights.outputs();
            // SAFETY: the span is this task's.
            unsafe { self.finish.begin((at.0, part), rows..rows + self.weights.outputs(), slots) };
            self.run_span(at, span, &buffers, slots);
        });
        self.finish.conclude(pool, slots, spans);
    }

    fn workspace_bytes(&self) -> usize {
        self.weights.bytes()
    }
}

impl<S: Scheme> ByLines for Winograd<S> {
    fn scratch_bytes(&self, lines: usize) -> usize {
        let most = self.span_lines(lines.div_ceil(OUTPUTS));
        self.parts(self.span(0, most)).bytes()
    }

    fn pack_weights(&self, pool: &Pool, slots: &SlotTable) {
        self.weights.pack(pool, slots);
    }

    fn run_band(&self, band: Band<'_>) {
        let Band { image, part, lines, slots, scratch } = band;
        let tiles = lines.start / OUTPUTS..lines.end.div_ceil(OUTPUTS);
        let most = self.span_lines(tiles.len());
        let buffers = self.parts(self.span(0, most)).place(scratch).into();
        for first in tiles.clone().step_by(most) {
            let span = self.span(first, most.min(tiles.end - first));
            self.run_span((image, 0, part), span, &buffers, slots);
        }
    }

    fn finish(&self) -> &Finish {
        &self.finish
    }
}
