//! The part of an image that a chunk of output pixels sees, copied once so that every tap of it is
//! a plain copy.
//!
//! The lines of each channel that the chunk touches are staged:
//!
//! - padded, with the zeros of an input dilation written out;
//! - with columns apart by their remainder by the stride;
//! - with groups of channels interleaved as the micro-kernel wants its k.
//!
//! A tap then sees neighbouring memory at neighbouring pixels of a line, whatever the geometry. A
//! panel of the right matrix is made of copies. Without staging, each tap would be read from the
//! input itself, and masks and borders would cost more than the product.
//!
//! The planes of a sliding window (`kernels::planes`) are another thing: folds read single numbers
//! in the type of their sums. A matrix product reads units of interleaved channels as bytes, for a
//! part of a line too, so the inner loops have nothing in common.
//!
//! Terms: a *unit* is a group of channels at one place. A *plane* holds the lines of a unit's
//! channels, for one tap of the axes outside of the last two. A *row* of the right matrix is a tap
//! of a plane, in units.
//!
//! Long because the layout and the loops that fill it must agree on every offset.
// Raw pointers into the input and scratch; places outside of the input are zeros.
#![allow(unsafe_code)]

use overdrive_ir::plan::WindowDimension;

use super::interleave::{Interleave, InterleavedColumns, interleaver};
use super::panel::{PIECE, Panel, Run};
use crate::kernels::axis::WindowAxis;
use crate::stream::{Near, prefetch};

/// Channels of a group, their distance in bytes, bytes of an element, and how many are interleaved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channels {
    pub(super) count: usize,
    pub(super) stride: isize,
    pub(super) width: usize,
    pub(super) interleaved: usize,
}

/// A tap of the last two axes: lines and columns from a pixel's first.
#[derive(Clone, Copy, Debug)]
struct Tap {
    line: usize,
    /// The remainder, and its number of columns.
    phase: usize,
    shift: usize,
}

/// Columns that some tap sees, by their remainder by the stride.
#[derive(Clone, Copy, Debug)]
struct Phase {
    remainder: usize,
    /// The largest shift of a tap.
    reach: usize,
}

/// The geometry of a convolution's staging.
#[derive(Clone, Debug)]
pub(super) struct StagingGeometry {
    channels: Channels,
    outer: Vec<WindowAxis>,
    /// Per tap of the outer axes, where it is in the input with its zeros inserted.
    outer_taps: Vec<Vec<usize>>,
    y: WindowAxis,
    x: WindowAxis,
    taps: Vec<Tap>,
    phases: Vec<Phase>,
    interleave: Interleave,
}

/// Output pixels that are computed together: neighbours on the last two axes, at one place of the
/// outer axes.
#[derive(Clone, Copy, Debug)]
pub(super) struct PixelSpan {
    /// Row-major position on the outer axes.
    pub(super) outer: usize,
    /// The first pixel on the last two axes.
    pub(super) first: usize,
    pub(super) pixels: usize,
}

/// Layout of a staged span, in units.
#[derive(Clone, Copy, Debug)]
struct StageLayout {
    first_line: usize,
    first_column: usize,
    lines: usize,
    /// Columns of a line of the output, and room for those of a line and phase.
    columns: usize,
    pitch: usize,
    line: usize,
    plane: usize,
}

/// Columns of the widest panel.
const MOST_COLUMNS: usize = 32;

impl StagingGeometry {
    /// `axes` are the spatial ones.
    pub(super) fn new(mut axes: Vec<WindowAxis>, channels: Channels) -> Self {
        while axes.len() < 2 {
            axes.insert(0, WindowAxis::NONE);
        }
        let x = axes.pop().expect("there are two axes");
        let y = axes.pop().expect("there are two axes");
        let (remainders, columns): (Vec<usize>, Vec<_>) =
            (x.phases(), (0..x.taps).map(|tap| x.tap(tap)).collect());
        let phase = |&remainder: &usize| {
            let shifts = columns.iter().filter(|(of, _)| *of == remainder).map(|(_, shift)| *shift);
            Phase { remainder, reach: shifts.max().expect("it is some tap's") }
        };
        let phases = remainders.iter().map(phase).collect();
        let number = |of: usize| remainders.binary_search(&of).expect("it is some tap's");
        let line = |tap: usize| tap * y.dimension.kernel_dilation;
        let taps = (0..y.taps)
            .flat_map(|tap| columns.iter().map(move |&(of, shift)| (tap, of, shift)))
            .map(|(tap, of, shift)| Tap { line: line(tap), phase: number(of), shift })
            .collect();
        let mut outer_taps = Vec::new();
        let extents: Vec<usize> = axes.iter().map(|axis| axis.taps).collect();
        overdrive_ir::eval::for_each_index(&extents, |tap| {
            let dilated =
                tap.iter().zip(&axes).map(|(&t, axis)| t * axis.dimension.kernel_dilation);
            outer_taps.push(dilated.collect());
        });
        let step = x.stride / channels.width as isize * x.dimension.stride as isize;
        let interleave = interleaver(channels.width, channels.interleaved, step);
        Self { channels, outer: axes, outer_taps, y, x, taps, phases, interleave }
    }

    /// Bytes of a unit.
    fn unit(&self) -> usize {
        self.channels.width * self.channels.interleaved
    }

    /// Rows of the right matrix, in units.
    pub(super) fn rows(&self) -> usize {
        self.channels.count.div_ceil(self.channels.interleaved)
            * self.outer_taps.len()
            * self.taps.len()
    }

    /// Places on the outer axes.
    pub(super) fn outer(&self) -> usize {
        self.outer.iter().map(|axis| axis.output).product()
    }

    /// Pixels on the last two axes, and on the last.
    pub(super) fn plane_and_line(&self) -> [usize; 2] {
        [self.y.output * self.x.output, self.x.output]
    }

    /// The planes that `count` rows from `first` on are taps of.
    fn planes(&self, first: usize, count: usize) -> std::ops::Range<usize> {
        first / self.taps.len()..(first + count).div_ceil(self.taps.len())
    }

    /// Bytes that any `rows` rows of any span of at most `pixels` pixels are staged in. A span that
    /// is not within a line has at least as many pixels as a line.
    pub(super) fn bytes(&self, rows: usize, pixels: usize) -> usize {
        let taps = self.taps.len().max(1);
        let planes = (rows.div_ceil(taps) + 1).min(self.rows() / taps);
        let lines =
            if pixels < self.x.output { 1 } else { (pixels - 1).div_ceil(self.x.output) + 1 };
        let lines = self.lines(lines.min(self.y.output));
        let plane = lines * self.phases.len() * self.pitch(pixels.min(self.x.output));
        planes * plane * self.unit() + MOST_COLUMNS * self.unit() + PIECE
    }

    /// Lines of the input, its zeros included, that `outputs` lines of the output see.
    fn lines(&self, outputs: usize) -> usize {
        let reach = self.taps.last().map_or(0, |tap| tap.line);
        (outputs - 1) * self.y.dimension.stride + reach + 1
    }

    /// Columns of a phase that `outputs` columns of the output see.
    fn pitch(&self, outputs: usize) -> usize {
        outputs + self.taps.last().map_or(0, |tap| tap.shift)
    }

    fn layout(&self, span: PixelSpan) -> StageLayout {
        let line = self.x.output;
        let (first_line, last_line) = (span.first / line, (span.first + span.pixels - 1) / line);
        let (first_column, columns) =
            if first_line == last_line { (span.first % line, span.pixels) } else { (0, line) };
        let (lines, pitch) = (self.lines(last_line - first_line + 1), self.pitch(columns));
        let line = self.phases.len() * pitch;
        StageLayout { first_line, first_column, lines, columns, pitch, line, plane: lines * line }
    }

    /// Stages the lines that `count` rows from `first` on see at a span. `image` is the first
    /// element of the group's first channel.
    ///
    /// # Safety
    /// The image has all elements that the axes say, and `to` has [`bytes`](Self::bytes).
    pub(super) unsafe fn fill(
        &self,
        image: *const u8,
        span: PixelSpan,
        (first, count): (usize, usize),
        to: *mut u8,
    ) {
        let layout = self.layout(span);
        let ahead = self.channels.interleaved as isize * self.channels.stride;
        let line_bytes =
            (layout.pitch - 1) as isize * self.x.stride * self.x.dimension.stride as isize;
        let mut to = to;
        for plane in self.planes(first, count) {
            let (group, tap) = (plane / self.outer_taps.len(), plane % self.outer_taps.len());
            let channel = group * self.channels.interleaved;
            let here = (self.channels.count - channel).min(self.channels.interleaved);
            let offset = self.outer_offset(span.outer, &self.outer_taps[tap]);
            for (at, phase) in self.phases.iter().enumerate() {
                let columns = self.columns(layout, *phase);
                for line in 0..layout.lines {
                    let to =
                        to.wrapping_add((line * layout.line + at * layout.pitch) * self.unit());
                    let mut lines = [std::ptr::null(); 4];
                    let source = self.y.source(layout.first_line * self.y.dimension.stride + line);
                    if let Some((offset, y)) = offset.zip(source) {
                        let start = offset + y as isize * self.y.stride;
                        for (i, line) in lines[..here].iter_mut().enumerate() {
                            *line = image.wrapping_offset(
                                (channel + i) as isize * self.channels.stride + start,
                            );
                            if at == 0 {
                                ask(line.wrapping_offset(ahead), line_bytes);
                            }
                        }
                    }
                    // SAFETY: lines that are not null are inside of the input, and the plane has
                    // `pitch` units for each phase of a line.
                    unsafe { self.line(lines, columns, (layout, *phase), to) };
                }
            }
            to = to.wrapping_add(layout.plane * self.unit());
        }
    }

    /// Bytes to a tap of the outer axes, if it is inside of the input.
    fn outer_offset(&self, mut position: usize, taps: &[usize]) -> Option<isize> {
        let mut offset = 0;
        for (axis, tap) in self.outer.iter().zip(taps).rev() {
            let at = axis.source(position % axis.output * axis.dimension.stride + tap)?;
            offset += at as isize * axis.stride;
            position /= axis.output;
        }
        Some(offset)
    }

    /// The columns of a phase. Column j sees element `begin + j * stride` of a line: from `low` to
    /// `high` that is inside.
    fn columns(&self, layout: StageLayout, phase: Phase) -> InterleavedColumns {
        let (stride, count) = (self.x.dimension.stride, layout.columns + phase.reach);
        let begin = self.begin(layout, phase);
        let reach = |limit: i64| (limit - begin).max(0) as usize;
        let low = reach(0).div_ceil(stride).min(count);
        let high = reach(self.x.input as i64).div_ceil(stride).clamp(low, count);
        InterleavedColumns { count, inside: [low, high] }
    }

    /// The place in a line, its zeros included, that a phase's first column sees.
    fn begin(&self, layout: StageLayout, phase: Phase) -> i64 {
        let WindowDimension { stride, pad_low, .. } = self.x.dimension;
        (layout.first_column * stride + phase.remainder) as i64 - pad_low
    }

    /// One phase of lines that are null where they are outside of the input.
    unsafe fn line(
        &self,
        lines: [*const u8; 4],
        columns: InterleavedColumns,
        (layout, phase): (StageLayout, Phase),
        to: *mut u8,
    ) {
        let WindowDimension { stride, pad_low, input_dilation, .. } = self.x.dimension;
        let begin = self.begin(layout, phase);
        let from = |lines: [*const u8; 4], at: i64| {
            let skip = at as isize * self.x.stride;
            lines.map(|line| if line.is_null() { line } else { line.wrapping_offset(skip) })
        };
        // SAFETY: `columns`, or `source` of each, says which are inside of the input; `to` has room
        // for all.
        unsafe {
            if input_dilation == 1 {
                (self.interleave)(from(lines, begin), self.x.stride * stride as isize, to, columns);
                return;
            }
            for column in 0..columns.count {
                let source = self.x.source((begin + pad_low) as usize + column * stride);
                let lines = source.map_or([std::ptr::null(); 4], |at| from(lines, at as i64));
                (self.interleave)(
                    lines,
                    0,
                    to.add(column * self.unit()),
                    InterleavedColumns { count: 1, inside: [0, 1] },
                );
            }
        }
    }

    /// Address of the planes of row `row` in the stage `from`, which begins with the planes of row
    /// `first`.
    pub(super) fn planes_from(
        &self,
        from: *const u8,
        span: PixelSpan,
        (first, row): (usize, usize),
    ) -> *const u8 {
        let planes = row / self.taps.len() - first / self.taps.len();
        from.wrapping_add(planes * self.layout(span).plane * self.unit())
    }

    /// Copies rows to a panel: `count` rows from `first` on, at the pixels of a span from `pixel`
    /// on, `columns` units each. Places past the span's last pixel repeat some of it. `from` is
    /// where [`fill`](Self::fill) put the planes of these rows.
    ///
    /// # Safety
    /// `from` holds the rows, and `to` has room for them and for a [`PIECE`].
    pub(super) unsafe fn panel(
        &self,
        from: *const u8,
        span: PixelSpan,
        (first, count): (usize, usize),
        (pixel, columns): (usize, usize),
        to: *mut u8,
    ) {
        let (layout, unit, taps) = (self.layout(span), self.unit(), self.taps.len());
        let mut runs = [Run::default(); MOST_COLUMNS];
        let runs = self.runs((layout, span), (pixel, columns), &mut runs);
        let start = self.planes(first, count).start;
        let (mut plane, mut tap) = (first / taps - start, first % taps);
        let mut row = || {
            let Tap { line, phase, shift } = self.taps[tap];
            let at = plane * layout.plane + line * layout.line + phase * layout.pitch + shift;
            tap += 1;
            if tap == taps {
                (plane, tap) = (plane + 1, 0);
            }
            from.wrapping_add(at * unit)
        };
        let panel = Panel { runs, rows: count, row_bytes: columns * unit, to };
        // SAFETY: `from` has a whole piece behind each run, because `bytes` leaves room for one;
        // `to` has it too.
        unsafe { panel.copy(&mut row) }
    }

    /// The runs of a panel.
    fn runs<'a>(
        &self,
        (layout, span): (StageLayout, PixelSpan),
        (pixel, columns): (usize, usize),
        runs: &'a mut [Run; MOST_COLUMNS],
    ) -> &'a [Run] {
        let (unit, line, step) = (self.unit(), self.x.output, self.y.dimension.stride);
        let (mut done, mut count) = (0, 0);
        while done < columns {
            let at = pixel + done;
            if at < span.pixels {
                let at = span.first + at;
                let length = (line - at % line).min(span.pixels - pixel - done).min(columns - done);
                let lines = (at / line - layout.first_line) * step * layout.line;
                let from = lines + at % line - layout.first_column;
                runs[count] = Run { to: done * unit, from: from * unit, bytes: length * unit };
                done += length;
            } else {
                let bytes = (columns - done) * unit;
                let last = runs[count - 1];
                runs[count] =
                    Run { to: done * unit, from: last.from, bytes: bytes.min(last.bytes) };
                done += runs[count].bytes / unit;
            }
            count += 1;
        }
        &runs[..count]
    }
}

/// Asks for a line of the next channels: they lie pages apart, where the CPU's own prefetchers
/// start anew.
pub(super) fn ask(line: *const u8, bytes: isize) {
    for byte in (0..=bytes).step_by(64) {
        prefetch(line.wrapping_offset(byte), Near::First);
    }
}
