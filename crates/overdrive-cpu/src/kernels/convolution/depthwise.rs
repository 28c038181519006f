//! Convolutions whose groups have few outputs each (depthwise ones have one). A product would have
//! just as few rows, and its kernel is made for more. Here each channel's planes are staged
//! (`planes`), of several images where they are small. Every tap is a multiply-add of one run of
//! memory to the sums of an output channel (`taps`).
//!
//! A task is some groups of some images. It has enough of them for the epilogue to have rows to
//! work on, and few enough for each thread to have some tasks. The idea that windows become runs by
//! staging is from Georganas et al., "Anatomy of high-performance deep learning convolutions on
//! SIMD architectures", SC 2018. There the runs are over blocks of channels, which lie side by
//! side. Here they are over space, as channels lie apart.
#![allow(unsafe_code)] // Raw pointers into slots and scratch.

use std::ops::Range;

use half::{bf16, f16};
use overdrive_ir::plan::ConvolutionCall;
use overdrive_ir::{Plan, row_major};

use super::finish::{Finish, Sums};
use super::lines::{Band, ByLines};
use crate::exec::{Format, Named, Runnable, Unsupported};
use crate::kernels::axis::WindowAxis;
use crate::kernels::place::Strided;
use crate::kernels::planes::{PlaneBand, Planes};
use crate::kernels::taps::{Cast, Copying, Factor, Folding, Run};
use crate::loops::isa::{Isa, Level, for_level};
use crate::slots::SlotTable;
use crate::threads::{PlacedParts, Pool, ScratchParts};

/// Outputs of a group up to which this form is the faster one.
const FEW: usize = 4;

/// Bytes of the sums of a task.
const ROWS: usize = 32 << 10;

/// Whether a convolution of this format is computed in this form.
pub(super) fn takes<T: Format>(call: &ConvolutionCall) -> bool {
    let sizes = call.kernel.ty.sizes();
    let terms: usize = sizes[1..].iter().product();
    let few = sizes[0] <= FEW * call.groups && terms * sizes[0] > 0;
    let types = call.kernel.ty.dtype == T::DTYPE && call.accumulate == <T::Acc as Named>::DTYPE;
    few && types && !call.window.is_empty()
}

/// A format of operands of products, and the conversion of an element of it before.
pub(super) trait Multiplicand: Format<Acc: Factor> {
    fn widen(self) -> Self::Acc;
}

macro_rules! multiplicands {
    ($($t:ty: $widen:expr;)*) => {$(
        impl Multiplicand for $t {
            #[inline(always)]
            fn widen(self) -> Self::Acc {
                $widen(self)
            }
        }
    )*};
}

multiplicands! {
    f64: |x| x;
    f32: |x| x;
    f16: f16::to_f32;
    bf16: bf16::to_f32;
    i8: i32::from;
}

/// From elements to the type that sums are kept in.
struct Factors<T>(std::marker::PhantomData<T>);
/// From sums to sums.
struct Same<A>(std::marker::PhantomData<A>);

impl<T: Multiplicand> Cast for Factors<T> {
    type From = T;
    type To = T::Acc;
    #[inline(always)]
    fn cast(x: T) -> T::Acc {
        x.widen()
    }
}

impl<A: Copy + 'static> Cast for Same<A> {
    type From = A;
    type To = A;
    #[inline(always)]
    fn cast(x: A) -> A {
        x
    }
}

/// The functions that are compiled for the CPU's instructions.
struct Loops<A> {
    stage: Copying,
    store: Copying,
    fresh: Folding<A, A>,
    adding: Folding<A, A>,
}

/// A compiled `ConvolutionCall`.
pub(super) struct Depthwise<T: Multiplicand> {
    loops: Loops<T::Acc>,
    input: Strided,
    kernel: Strided,
    planes: Planes,
    /// The strides of pixels that lie side by side.
    dense: Vec<i64>,
    groups: usize,
    /// Channels and outputs of a group.
    channels: usize,
    outputs: usize,
    /// Lines of a band, and images whose planes are walked over as one run.
    band: usize,
    together: usize,
    finish: Finish,
}

/// The outputs that a task computes.
#[derive(Clone)]
struct DepthwiseWork {
    images: Range<usize>,
    groups: Range<usize>,
    lines: Range<usize>,
    /// The number of the band in its image.
    number: usize,
}

/// The parts of a worker's scratch.
struct DepthwiseScratch<'a, A> {
    offsets: *mut usize,
    weights: *mut A,
    stage: *mut A,
    sums: *mut A,
    rows: *mut A,
    epilogue: *mut u8,
    _placed: PlacedParts<'a, 6>,
}

impl<'a, A> From<PlacedParts<'a, 6>> for DepthwiseScratch<'a, A> {
    fn from(placed: PlacedParts<'a, 6>) -> Self {
        let [offsets, weights, stage, sums, rows, epilogue] = placed.starts;
        let [weights, stage, sums, rows] = [weights, stage, sums, rows].map(<*mut u8>::cast);
        Self { offsets: offsets.cast(), weights, stage, sums, rows, epilogue, _placed: placed }
    }
}

impl<T: Multiplicand> Depthwise<T> {
    pub(super) fn new(plan: &Plan, call: &ConvolutionCall) -> Result<Self, Unsupported> {
        let (input, kernel) = (Strided::new(&call.input), Strided::new(&call.kernel));
        let axis = |d: usize| WindowAxis {
            dimension: call.window[d],
            input: input.sizes[2 + d],
            stride: input.strides[2 + d] as isize,
            output: call.epilogue.0.extents[2 + d],
            taps: kernel.sizes[2 + d],
        };
        let axes: Vec<WindowAxis> = (0..call.window.len()).map(axis).collect();
        let planes = Planes::new(&axes);
        let band = planes.band(size_of::<T::Acc>());
        let whole = band >= planes.lines();
        Ok(Self {
            loops: for_level!(Level::best(), Self::loops()),
            together: if whole { planes.together(input.sizes[0]) } else { 1 },
            groups: call.groups,
            channels: kernel.sizes[1],
            outputs: kernel.sizes[0] / call.groups,
            finish: Finish::new(plan, call)?,
            dense: row_major(&call.epilogue.0.extents[2..])
                .into_iter()
                .map(|stride| stride as i64)
                .collect(),
            input,
            kernel,
            planes,
            band,
        })
    }

    fn loops<I: Isa>() -> Loops<T::Acc> {
        Loops {
            stage: Copying::new::<I, Factors<T>>(),
            store: Copying::new::<I, Same<T::Acc>>(),
            fresh: Folding::fresh::<I>(),
            adding: Folding::adding::<I>(),
        }
    }

    /// Groups of a task, of so many tasks that there should be.
    fn groups_at_once(&self, pieces: usize) -> usize {
        let sums =
            self.together * self.outputs * self.band * self.planes.line() * size_of::<T::Acc>();
        let others =
            self.input.sizes[0].div_ceil(self.together) * self.planes.lines().div_ceil(self.band);
        let shared = (self.groups * others).div_ceil(pieces);
        (ROWS / sums.max(1)).min(shared).clamp(1, self.groups)
    }

    /// The buffers of a part: offsets, weights, stage, sums, rows, and the epilogue's scratch.
    fn parts(&self, groups: usize) -> ScratchParts<6> {
        let span = PlaneBand { planes: self.together, first: 0, lines: self.band };
        let taps = self.planes.taps();
        let rows = self.together * groups * self.outputs * self.band * self.planes.line();
        let sums = self.outputs * self.planes.sums(span);
        let bytes = |count: usize| count * size_of::<T::Acc>();
        ScratchParts::new([
            ("offsets", taps * size_of::<usize>()),
            ("weights", bytes(taps)),
            ("stage", bytes(self.planes.staged(span))),
            ("sums", bytes(sums)),
            ("rows", bytes(rows)),
            ("epilogue", self.finish.scratch_bytes()),
        ])
    }

    /// The weights of an output of a group for one of its channels.
    ///
    /// # Safety
    /// The kernel is there, and `to` has room for all taps.
    unsafe fn weights(
        &self,
        (output, channel): (usize, usize),
        slots: &SlotTable,
        to: *mut T::Acc,
    ) {
        let strides = &self.kernel.strides;
        let from = self.kernel.get(slots).cast::<T>();
        let from = from
            .wrapping_offset((output as i64 * strides[0] + channel as i64 * strides[1]) as isize)
            .cast_const();
        let sizes = &self.kernel.sizes[2..];
        for tap in 0..self.planes.taps() {
            let (mut rest, mut at) = (tap, 0);
            for (size, stride) in sizes.iter().zip(&strides[2..]).rev() {
                at += (rest % size) as i64 * stride;
                rest /= size;
            }
            // SAFETY: the kernel has an element at each of its taps, and `to` has room for as many.
            unsafe { to.add(tap).write((*from.offset(at as isize)).widen()) }
        }
    }

    fn run_part(
        &self,
        part: DepthwiseWork,
        buffers: &DepthwiseScratch<'_, T::Acc>,
        slots: &SlotTable,
    ) {
        let DepthwiseWork { images, groups, lines, number } = part;
        let span = PlaneBand { planes: images.len(), first: lines.start, lines: lines.len() };
        let (taps, n) = (self.planes.taps(), self.planes.sums(span));
        let pixels = lines.len() * self.planes.line();
        let (rows, strides) = (groups.len() * self.outputs, &self.input.strides);
        // SAFETY: the buffers are this worker's and were made for such a part; offsets are written
        // before they are read.
        unsafe {
            let offsets = std::slice::from_raw_parts_mut(buffers.offsets, taps);
            self.planes.offsets(span, offsets);
            for group in groups.clone() {
                for channel in 0..self.channels {
                    let first = ((group * self.channels + channel) as i64 * strides[1]) as isize;
                    let plane = |image: usize| {
                        let at = (images.start + image) as i64 * strides[0];
                        self.input
                            .get(slots)
                            .cast::<T>()
                            .wrapping_offset(first + at as isize)
                            .cast_const()
                            .cast()
                    };
                    let padding = <T::Acc>::default();
                    self.planes.stage((&self.loops.stage, span), plane, (buffers.stage, padding));
                    for output in 0..self.outputs {
                        self.weights(
                            (group * self.outputs + output, channel),
                            slots,
                            buffers.weights,
                        );
                        let run = Run {
                            n,
                            sums: buffers.sums.wrapping_add(output * n),
                            from: buffers.stage.cast_const(),
                            offsets,
                            weights: buffers.weights.cast_const(),
                        };
                        if channel == 0 {
                            self.loops.fresh.run(&run)
                        } else {
                            self.loops.adding.run(&run)
                        }
                    }
                }
                for output in 0..self.outputs {
                    let row = (group - groups.start) * self.outputs + output;
                    let to = |image: usize| {
                        buffers.rows.wrapping_add((image * rows + row) * pixels).cast()
                    };
                    let sums = buffers.sums.wrapping_add(output * n).cast_const();
                    self.planes.store((&self.loops.store, span), sums, (to, &self.dense));
                }
            }
            for image in images.clone() {
                let width = size_of::<T::Acc>();
                let done = Sums {
                    image,
                    part: number,
                    row: groups.start * self.outputs,
                    rows,
                    first: lines.start * self.planes.line(),
                    pixels,
                    sums: buffers
                        .rows
                        .wrapping_add((image - images.start) * rows * pixels)
                        .cast_const()
                        .cast(),
                    width,
                    row_bytes: pixels * width,
                };
                self.finish.apply(done, slots, buffers.epilogue);
            }
        }
    }
}

impl<T: Multiplicand> Runnable for Depthwise<T> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let images = self.input.sizes[0];
        if images * self.planes.lines() * self.planes.line() == 0 {
            return;
        }
        self.prepare(pool, slots);
        let at_once = self.groups_at_once(self.finish.pieces(pool));
        let (bands, blocks) =
            (self.planes.lines().div_ceil(self.band), self.groups.div_ceil(at_once));
        let parts = self.parts(at_once);
        let range =
            |number: usize, size: usize, all: usize| number * size..((number + 1) * size).min(all);
        pool.run(images.div_ceil(self.together) * blocks * bands, |task, worker| {
            let (number, task) = (task % bands, task / bands);
            let part = DepthwiseWork {
                images: range(task / blocks, self.together, images),
                groups: range(task % blocks, at_once, self.groups),
                lines: range(number, self.band, self.planes.lines()),
                number,
            };
            let rows = part.groups.start * self.outputs..part.groups.end * self.outputs;
            for image in part.images.clone() {
                // SAFETY: the part is this task's.
                unsafe { self.finish.begin((image, number), rows.clone(), slots) };
            }
            self.run_part(part, &worker.scratch.place(parts).into(), slots);
        });
        self.finish.conclude(pool, slots, bands);
    }
}

impl<T: Multiplicand> ByLines for Depthwise<T> {
    fn scratch_bytes(&self, _: usize) -> usize {
        self.parts(self.groups_at_once(1)).bytes()
    }

    fn run_band(&self, band: Band<'_>) {
        let Band { image, part: number, lines, slots, scratch } = band;
        let at_once = self.groups_at_once(1);
        let buffers = self.parts(at_once).place(scratch).into();
        for first in lines.clone().step_by(self.band) {
            for group in (0..self.groups).step_by(at_once) {
                let part = DepthwiseWork {
                    images: image..image + 1,
                    groups: group..(group + at_once).min(self.groups),
                    lines: first..(first + self.band).min(lines.end),
                    number,
                };
                self.run_part(part, &buffers, slots);
            }
        }
    }

    fn finish(&self) -> &Finish {
        &self.finish
    }
}
