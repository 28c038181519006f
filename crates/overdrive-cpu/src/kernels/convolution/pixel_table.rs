//! Panels of small images: whole images of a batch side by side, and a table with the place of each
//! pixel's unit at each tap.
//!
//! An image of 2x2, 4x4 or 7x7 pixels fills an eighth of a panel. Its lines are too short to be
//! copied one by one (`stage`). So the channels of several images are laid into one short run,
//! which stays in the first-level cache. Rows of the right matrix are picked from the run by a
//! table that is made once. The table works for any strides, dilations, padding and number of
//! dimensions: padding is a place that holds a zero. If a vector's places follow each other (taps
//! of a step of 1, mostly), a masked load does it.
// Raw pointers into the input and scratch; every place of the table is inside of the run.
#![allow(unsafe_code)]

use super::interleave::{Interleave, InterleavedColumns, interleaver};
use super::stage::Channels;
use crate::isa::InstructionSet;
use crate::kernels::axis::WindowAxis;

/// Bytes of the run of a channel: it shares the first-level cache with rows of the table and of
/// panels.
const RUN: usize = 16 << 10;

/// Places of the table of all taps.
const PLACES: usize = 32 << 10;

/// Bytes before the run, zeros. Their first is the place of elements outside of the input.
const ZEROS: usize = 64;

/// Columns of a vector of units of four bytes.
const LANES: usize = 16;

/// The source of a vector's columns.
#[derive(Clone, Copy, Debug)]
enum Piece {
    /// One after the other from a place on, which lies before the run where only later ones are
    /// inside; the others are zeros.
    Load { from: isize, inside: u16 },
    /// At the places of the table.
    Gather,
}

/// The table of a convolution.
#[derive(Debug)]
pub(super) struct PixelTable {
    channels: Channels,
    interleave: Interleave,
    /// Images of a span at most, pixels of the output and of the input of one.
    images: usize,
    pixels: usize,
    input: usize,
    /// Bytes from an image to the next, from the first pixel to each line, and from a pixel of a
    /// line to the next.
    image: isize,
    lines: Vec<isize>,
    step: isize,
    taps: usize,
    /// Columns of the table.
    columns: usize,
    /// Per tap and column, in units.
    places: Vec<u32>,
    /// Per tap and vector, where the CPU has such.
    pieces: Vec<Piece>,
}

/// Rows of panels: where the first begins, bytes from a panel to the next, columns of one.
#[derive(Clone, Copy)]
pub(super) struct PanelRows {
    pub(super) to: *mut u8,
    pub(super) panel: usize,
    pub(super) width: usize,
}

impl PixelTable {
    /// For at most `images` images, `image` bytes apart, in panels of `width` columns; `None` where
    /// lines are better copied.
    pub(super) fn new(
        axes: &[WindowAxis],
        channels: Channels,
        (images, image): (usize, isize),
        width: usize,
    ) -> Option<Self> {
        let product = |of: fn(&WindowAxis) -> usize| axes.iter().map(of).product::<usize>();
        let (pixels, input, taps) =
            (product(|a| a.output), product(|a| a.input), product(|a| a.taps));
        let unit = channels.width * channels.interleaved;
        let columns = (images * pixels).next_multiple_of(width);
        if images * pixels * input == 0 || images * input * unit > RUN || taps * columns > PLACES {
            return None;
        }
        let first = (ZEROS / unit) as u32;
        let (mut places, mut outputs, mut taps_of) = (vec![], vec![], vec![]);
        let extents = |of: fn(&WindowAxis) -> usize| axes.iter().map(of).collect::<Vec<_>>();
        overdrive_ir::eval::for_each_index(&extents(|a| a.output), |at| outputs.push(at.to_vec()));
        overdrive_ir::eval::for_each_index(&extents(|a| a.taps), |tap| taps_of.push(tap.to_vec()));
        for tap in &taps_of {
            let row = places.len();
            for image in 0..images {
                places.extend(outputs.iter().map(|at| {
                    let place =
                        place(axes, at, tap).map(|place| first + (image * input + place) as u32);
                    place.unwrap_or(0)
                }));
            }
            places.resize(row + columns, 0);
        }
        let pieces = if has_vectors() && unit == 4 && width.is_multiple_of(LANES) {
            places.chunks_exact(LANES).map(piece).collect()
        } else {
            vec![]
        };
        let (lines, step) = lines(axes);
        let interleave =
            interleaver(channels.width, channels.interleaved, step / channels.width as isize);
        Some(Self {
            channels,
            interleave,
            images,
            pixels,
            input,
            image,
            lines,
            step,
            taps,
            columns,
            places,
            pieces,
        })
    }

    /// Pixels of an image, and the images of a span at most.
    pub(super) fn pixels_and_images(&self) -> [usize; 2] {
        [self.pixels, self.images]
    }

    /// Bytes of the run.
    pub(super) fn bytes(&self) -> usize {
        ZEROS + self.images * self.input * self.unit()
    }

    fn unit(&self) -> usize {
        self.channels.width * self.channels.interleaved
    }

    /// Fills rows of panels: `count` from `first` on, in units, of `images` images. `from` is the
    /// first element of the group's first channel in the first of them.
    ///
    /// # Safety
    /// - The images have all elements that the axes say.
    /// - There are at most as many images as the table is for.
    /// - `run` has [`bytes`](Self::bytes), and the panels have room for the rows.
    pub(super) unsafe fn fill(
        &self,
        (from, images): (*const u8, usize),
        (first, count): (usize, usize),
        rows: PanelRows,
        run: *mut u8,
    ) {
        let columns = (images * self.pixels).next_multiple_of(rows.width);
        // SAFETY: places are inside of the run, or the zero before it; the panels have room for
        // `count` rows.
        unsafe {
            // Columns that no image has are multiplied too: by zeros, not by leftovers in memory.
            run.write_bytes(0, if images < self.images { self.bytes() } else { ZEROS });
            let mut staged = None;
            for row in 0..count {
                let (channel, tap) = ((first + row) / self.taps, (first + row) % self.taps);
                if staged != Some(channel) {
                    self.stage((from, images), channel * self.channels.interleaved, run.add(ZEROS));
                    staged = Some(channel);
                }
                let to = PanelRows { to: rows.to.add(row * rows.width * self.unit()), ..rows };
                #[cfg(target_arch = "x86_64")]
                if !self.pieces.is_empty() {
                    self.vectors(run, tap, columns, to);
                    continue;
                }
                match self.unit() {
                    1 => self.units::<u8>(run, tap, columns, to),
                    2 => self.units::<u16>(run, tap, columns, to),
                    4 => self.units::<u32>(run, tap, columns, to),
                    _ => self.units::<u64>(run, tap, columns, to),
                }
            }
        }
    }

    /// Lays the units of a channel, and of those that are interleaved with it, one image after the
    /// other.
    ///
    /// # Safety
    /// As for [`fill`](Self::fill).
    unsafe fn stage(&self, (from, images): (*const u8, usize), channel: usize, run: *mut u8) {
        let here = (self.channels.count - channel).min(self.channels.interleaved);
        let count = self.input / self.lines.len();
        let columns = InterleavedColumns { count, inside: [0, count] };
        for image in 0..images {
            for (i, line) in self.lines.iter().enumerate() {
                let mut lines = [std::ptr::null(); 4];
                for (c, from_line) in lines[..here].iter_mut().enumerate() {
                    let apart = (channel + c) as isize * self.channels.stride;
                    *from_line = from.wrapping_offset(image as isize * self.image + apart + line);
                }
                let to = run.wrapping_add((image * self.input + i * count) * self.unit());
                // SAFETY: a line of the input has `count` units, and the run has room for `input`
                // units of each image.
                unsafe { (self.interleave)(lines, self.step, to, columns) };
            }
        }
    }

    /// A row in units of this type.
    ///
    /// # Safety
    /// As for [`fill`](Self::fill).
    unsafe fn units<U: Copy>(&self, run: *const u8, tap: usize, columns: usize, row: PanelRows) {
        let places = &self.places[tap * self.columns..][..columns];
        for (panel, places) in places.chunks(row.width).enumerate() {
            let to = row.to.wrapping_add(panel * row.panel).cast::<U>();
            for (i, &place) in places.iter().enumerate() {
                // SAFETY: a place is a unit of the run, or the zero before it, and a row has room
                // for `width` units.
                unsafe {
                    to.add(i).write_unaligned(run.cast::<U>().add(place as usize).read_unaligned())
                };
            }
        }
    }

    /// A row in vectors of units of four bytes.
    ///
    /// # Safety
    /// As for [`fill`](Self::fill), on a CPU with AVX-512F.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f")]
    unsafe fn vectors(&self, run: *const u8, tap: usize, columns: usize, row: PanelRows) {
        use std::arch::x86_64::*;
        let places = &self.places[tap * self.columns..][..columns];
        let pieces = &self.pieces[tap * self.columns / LANES..];
        let mut to = row.to;
        for (panel, pieces) in places.chunks_exact(row.width).zip(pieces.chunks(row.width / LANES))
        {
            for (i, (places, piece)) in panel.chunks_exact(LANES).zip(pieces).enumerate() {
                // SAFETY: places are units of the run, elements that a mask leaves out are not
                // read, and a row has room for whole vectors.
                unsafe {
                    let units = match *piece {
                        Piece::Load { from, inside } => {
                            _mm512_maskz_loadu_epi32(inside, run.wrapping_offset(4 * from).cast())
                        }
                        Piece::Gather => _mm512_i32gather_epi32::<4>(
                            _mm512_loadu_si512(places.as_ptr().cast()),
                            run.cast(),
                        ),
                    };
                    _mm512_storeu_si512(to.add(i * 4 * LANES).cast(), units);
                }
            }
            to = to.wrapping_add(row.panel);
        }
    }
}

fn has_vectors() -> bool {
    InstructionSet::Avx512.is_usable()
}

/// The pixel of the input that a tap sees at a pixel of the output, if it is one.
fn place(axes: &[WindowAxis], at: &[usize], tap: &[usize]) -> Option<usize> {
    let mut place = 0;
    for ((axis, at), tap) in axes.iter().zip(at).zip(tap) {
        let seen =
            axis.source(at * axis.dimension.stride + tap * axis.dimension.kernel_dilation)?;
        place = place * axis.input + seen;
    }
    Some(place)
}

/// Whether places follow each other, but for those that are none.
fn piece(places: &[u32]) -> Piece {
    let inside = || places.iter().enumerate().filter(|(_, place)| **place != 0);
    let from = inside().next().map_or(0, |(i, &place)| place as isize - i as isize);
    if inside().any(|(i, &place)| place as isize - i as isize != from) {
        return Piece::Gather;
    }
    Piece::Load { from, inside: inside().map(|(i, _)| 1 << i).sum() }
}

/// Starts of the lines of the input, and bytes from a pixel of a line to the next. Axes that lie as
/// one are one line.
fn lines(axes: &[WindowAxis]) -> (Vec<isize>, isize) {
    let Some((last, rest)) = axes.split_last() else { return (vec![0], 0) };
    let (mut length, mut rest) = (last.input, rest);
    while let Some((axis, outer)) = rest.split_last()
        && axis.stride == last.stride * length as isize
    {
        (length, rest) = (length * axis.input, outer);
    }
    let extents: Vec<usize> = rest.iter().map(|axis| axis.input).collect();
    let mut starts = Vec::new();
    overdrive_ir::eval::for_each_index(&extents, |at| {
        starts.push(at.iter().zip(rest).map(|(&i, axis)| i as isize * axis.stride).sum());
    });
    (starts, last.stride)
}
