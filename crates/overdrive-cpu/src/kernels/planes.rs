//! Planes of a sliding window, staged so that each of its taps is one run of memory for all of its
//! places.
//!
//! A plane (an image's channel, or whatever the window slides over) is copied once. The copy has
//! the padding and the gaps of an input dilation written out, in the type that sums are kept in. It
//! is split into *phases* by the remainder of each position by the window's step.
//!
//! Neighbouring places of the window then see neighbouring memory at every tap, whatever steps,
//! dilations and padding are. All lines of a phase have one pitch, so this holds for places of the
//! next line and of the next plane too. A fold walks over all of them as one run. It computes
//! values between the end of a line and the next, which are not stored. Any number of dimensions is
//! the same. The outermost one is cut into bands where a plane is larger than caches.
//!
//! The stage of a convolution by a matrix product (`convolution::stage`) is another thing: its
//! units are bytes of interleaved channels. Planes convert single numbers, in any number of
//! dimensions, so the inner loops have nothing in common.
//!
//! Invariant: the staged and computed elements depend on the geometry and the band alone, not on
//! threads.
// Raw pointers into slots and scratch; places outside of the input keep the padding.
#![allow(unsafe_code)]

use std::ops::Range;

use overdrive_ir::plan::WindowDimension;

use super::axis::WindowAxis;
use super::taps::{CopiedLines, Copying, LANES};

/// The positions of a phase that the input has, and where.
#[derive(Clone, Copy, Debug, Default)]
struct PhasePositions {
    count: usize,
    /// The first, and from each to the next.
    to: [usize; 2],
    /// The first, and from each to the next, in the input.
    from: [usize; 2],
}

impl PhasePositions {
    /// The positions of a phase that are inside the input, among `positions` from `first` on.
    fn of(axis: &WindowAxis, phase: usize, first: usize, positions: usize) -> Self {
        let WindowDimension { stride, pad_low, input_dilation, .. } = axis.dimension;
        let start = (first * stride + phase) as i64 - pad_low;
        let length = match axis.input {
            0 => 0,
            input => ((input - 1) * input_dilation + 1) as i64,
        };
        let position = |at: i64| (at.max(0) as usize).div_ceil(stride).min(positions);
        let (low, high) = (position(-start), position(length - start));
        let at = |position: usize| (start + (position * stride) as i64) as usize;
        let between = (0..input_dilation).find(|step| (step + 1) * stride % input_dilation == 0);
        let step = between.map_or(input_dilation, |step| step + 1);
        let low = (low..high.min(low + step)).find(|&low| at(low) % input_dilation == 0);
        low.map_or(Self::default(), |low| Self {
            count: (high - low).div_ceil(step),
            to: [low, step],
            from: [at(low) / input_dilation, step * stride / input_dilation],
        })
    }
}

/// Some planes, and some places of the outermost dimension in each.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlaneBand {
    pub(super) planes: usize,
    pub(super) first: usize,
    pub(super) lines: usize,
}

/// The geometry of staged planes.
#[derive(Clone, Debug)]
pub(super) struct Planes {
    /// Two at least.
    axes: Vec<WindowAxis>,
    phases: Vec<Vec<usize>>,
    /// The part of the phases of each axis but the first that the input has.
    found: Vec<Vec<PhasePositions>>,
    /// Elements of a phase from a position of each axis to the next.
    pitches: Vec<usize>,
    /// Three numbers for each tap: the number of its phase, positions of the first axis, and
    /// elements within one of those.
    taps: Vec<[usize; 3]>,
}

impl Planes {
    /// Windows over some dimensions, outermost first.
    pub(super) fn new(axes: &[WindowAxis]) -> Self {
        let none = std::iter::repeat_n(WindowAxis::NONE, 2usize.saturating_sub(axes.len()));
        let axes: Vec<WindowAxis> =
            none.chain(axes.iter().copied()).map(WindowAxis::normal).collect();
        let phases: Vec<Vec<usize>> = axes.iter().map(WindowAxis::phases).collect();
        let positions = |axis: &WindowAxis| axis.output + axis.reach();
        let mut pitches = vec![1; axes.len()];
        for d in (1..axes.len()).rev() {
            pitches[d - 1] = pitches[d] * positions(&axes[d]);
        }
        let of = |(axis, phases): (&WindowAxis, &Vec<usize>)| {
            phases
                .iter()
                .map(|&phase| PhasePositions::of(axis, phase, 0, positions(axis)))
                .collect()
        };
        let found = axes.iter().zip(&phases).map(of).collect();
        let mut taps = Vec::new();
        overdrive_ir::eval::for_each_index(
            &axes.iter().map(|axis| axis.taps).collect::<Vec<_>>(),
            |index| {
                let mut tap = [0; 3];
                for (d, (axis, &i)) in axes.iter().zip(index).enumerate() {
                    let (phase, shift) = axis.tap(i);
                    let number = phases[d].binary_search(&phase).expect("it is some tap's");
                    tap[0] = tap[0] * phases[d].len() + number;
                    tap[if d == 0 { 1 } else { 2 }] +=
                        if d == 0 { shift } else { shift * pitches[d] };
                }
                taps.push(tap);
            },
        );
        Self { axes, phases, found, pitches, taps }
    }

    /// Taps of a window.
    pub(super) fn taps(&self) -> usize {
        self.taps.len()
    }

    /// Places of the outermost dimension.
    pub(super) fn lines(&self) -> usize {
        self.axes[0].output
    }

    /// Places of a line, which are all of the other dimensions.
    pub(super) fn line(&self) -> usize {
        self.axes[1..].iter().map(|axis| axis.output).product()
    }

    /// Places of the outermost dimension that are computed at once, as even as can be.
    pub(super) fn band(&self, width: usize) -> usize {
        /// Bytes of a plane that stay in the first-level cache.
        const NEAR: usize = 24 << 10;
        let (lines, reach) = (self.lines(), self.axes[0].reach());
        let fit = NEAR / (self.pitches[0] * self.count() * width).max(1);
        // Lines that two bands share are staged twice.
        let most = fit.saturating_sub(reach).max(4 * reach).clamp(1, lines.max(1));
        lines.div_ceil(lines.div_ceil(most).max(1)).max(1)
    }

    /// Planes that are walked over as one run, of so many.
    pub(super) fn together(&self, planes: usize) -> usize {
        /// Positions from which on a run has nothing to gain.
        const LONG: usize = 1024;
        LONG.div_ceil(self.plane(self.lines()).max(1)).min(planes).max(1)
    }

    /// Phases.
    fn count(&self) -> usize {
        self.phases.iter().map(Vec::len).product()
    }

    /// Elements of a phase of a plane.
    fn plane(&self, lines: usize) -> usize {
        (lines + self.axes[0].reach()) * self.pitches[0]
    }

    /// Elements that are staged of a span, with those that whole vectors read behind them.
    pub(super) fn staged(&self, span: PlaneBand) -> usize {
        self.count() * span.planes * self.plane(span.lines) + LANES
    }

    /// Sums of a span, places between lines included.
    pub(super) fn sums(&self, span: PlaneBand) -> usize {
        let inner = self.axes[1..].iter().zip(&self.pitches[1..]);
        let within: usize = inner.map(|(axis, pitch)| (axis.output - 1) * pitch).sum();
        let last = (span.planes - 1) * self.plane(span.lines)
            + (span.lines - 1) * self.pitches[0]
            + within;
        (last + 1).next_multiple_of(LANES)
    }

    /// Offset of the first value of each tap from the first staged element.
    pub(super) fn offsets(&self, span: PlaneBand, to: &mut [usize]) {
        let phase = span.planes * self.plane(span.lines);
        for (to, &[number, line, within]) in to.iter_mut().zip(&self.taps) {
            *to = number * phase + line * self.pitches[0] + within;
        }
    }

    /// Stages a span; `from` is the first element of each plane.
    ///
    /// # Safety
    /// The planes have what the axes say, and `to` has [`staged`](Self::staged) elements.
    pub(super) unsafe fn stage<W: Copy>(
        &self,
        (copying, span): (&Copying, PlaneBand),
        from: impl Fn(usize) -> *const u8,
        (to, padding): (*mut W, W),
    ) {
        let plane = self.plane(span.lines);
        // SAFETY: `to` has `staged` elements, which hold every phase of every plane; the planes
        // have what the axes say.
        unsafe {
            (0..self.staged(span)).for_each(|i| to.add(i).write(padding));
            for number in 0..span.planes {
                let phase = span.planes * plane * size_of::<W>();
                let stage = PlaneStaging { planes: self, copying, span, phase };
                stage.axis(0, 0, (from(number), to.add(number * plane).cast()));
            }
        }
    }

    /// Copies sums from places of a span. `to` is where the first of each plane goes. `strides` are
    /// those of the axes that `new` was given, in elements.
    ///
    /// # Safety
    /// The sums are there, and so are their destinations, which belong to this task.
    pub(super) unsafe fn store<W>(
        &self,
        (copying, span): (&Copying, PlaneBand),
        sums: *const W,
        (to, strides): (impl Fn(usize) -> *mut u8, &[i64]),
    ) {
        for number in 0..span.planes {
            let from = sums.wrapping_add(number * self.plane(span.lines)).cast();
            // SAFETY: the sums of this plane begin at `from`, and its results at `to`, which are
            // this task's.
            unsafe { self.store_axis((copying, 0..span.lines), 0, (from, to(number)), strides) }
        }
    }

    unsafe fn store_axis(
        &self,
        (copying, lines): (&Copying, Range<usize>),
        d: usize,
        (from, to): (*const u8, *mut u8),
        strides: &[i64],
    ) {
        let rank = self.axes.len();
        // Axes that nobody gave lie before the others.
        let stride =
            |d: usize| (d + strides.len()).checked_sub(rank).map_or(0, |d| strides[d] as isize);
        let [from_width, to_width] = copying.widths.map(|width| width as isize);
        let from_stride = self.pitches[d] as isize;
        // SAFETY: `store` passes its own contract on: sums and destinations exist along each axis.
        unsafe {
            if d + 2 == rank {
                let copied = CopiedLines {
                    count: lines.len(),
                    from: [from_stride, 1],
                    to: [stride(d), stride(d + 1)],
                };
                return copying.run(self.axes[d + 1].output, &copied, (from, to));
            }
            for line in lines {
                let line = line as isize;
                let from = from.wrapping_offset(line * from_stride * from_width);
                let to = to.wrapping_offset(line * stride(d) * to_width);
                self.store_axis((copying, 0..self.axes[d + 1].output), d + 1, (from, to), strides);
            }
        }
    }
}

/// A plane on its way to its phases.
struct PlaneStaging<'a> {
    planes: &'a Planes,
    copying: &'a Copying,
    span: PlaneBand,
    /// Bytes from a phase to the next.
    phase: usize,
}

impl PlaneStaging<'_> {
    /// The part of an axis, in a phase, that the input has.
    fn found(&self, d: usize, phase: usize) -> PhasePositions {
        let axis = &self.planes.axes[d];
        match d {
            0 => {
                let positions = self.span.lines + axis.reach();
                PhasePositions::of(axis, self.planes.phases[0][phase], self.span.first, positions)
            }
            _ => self.planes.found[d][phase],
        }
    }

    /// The first elements of an axis' first position, in the plane and in its first phase.
    fn at(
        &self,
        d: usize,
        found: &PhasePositions,
        (from, to): (*const u8, *mut u8),
    ) -> (*const u8, *mut u8) {
        let [from_width, to_width] = self.copying.widths;
        let from = from.wrapping_offset(
            found.from[0] as isize * self.planes.axes[d].stride * from_width as isize,
        );
        (from, to.wrapping_add(found.to[0] * self.planes.pitches[d] * to_width))
    }

    unsafe fn axis(&self, d: usize, number: usize, place: (*const u8, *mut u8)) {
        let (planes, inner) = (self.planes, &self.planes.phases[d + 1]);
        let steps = |d: usize, found: &PhasePositions| {
            let from = found.from[1] as isize * planes.axes[d].stride;
            (from, (found.to[1] * planes.pitches[d]) as isize)
        };
        for phase in 0..planes.phases[d].len() {
            let (found, number) = (self.found(d, phase), number * planes.phases[d].len() + phase);
            let place = self.at(d, &found, place);
            let (from_step, to_step) = steps(d, &found);
            if d + 2 == planes.axes.len() {
                for phase in 0..inner.len() {
                    let along = self.found(d + 1, phase);
                    let (from, to) = self.at(d + 1, &along, place);
                    let (from_along, to_along) = steps(d + 1, &along);
                    let lines = CopiedLines {
                        count: found.count,
                        from: [from_step, from_along],
                        to: [to_step, to_along],
                    };
                    let to = to.wrapping_add((number * inner.len() + phase) * self.phase);
                    // SAFETY: the positions found are in the plane and in its phase.
                    unsafe { self.copying.run(along.count, &lines, (from, to)) }
                }
                continue;
            }
            let [from_width, to_width] = self.copying.widths.map(|width| width as isize);
            for i in 0..found.count as isize {
                let from = place.0.wrapping_offset(i * from_step * from_width);
                let to = place.1.wrapping_offset(i * to_step * to_width);
                // SAFETY: the place is in the plane and in its phase, as that of the axis before
                // is.
                unsafe { self.axis(d + 1, number, (from, to)) }
            }
        }
    }
}
