//! `reduce_window`: folds of a sliding window (pooling).
//!
//! Planes are staged (`planes`) over two kinds of dimensions: those that windows slide along, and
//! those that lie inside of them in memory. All places of some planes are one run for each tap
//! (`taps`). The other dimensions count planes. A task folds some planes, or a band of a large one.
#![allow(unsafe_code)] // Raw pointers into slots and scratch.

use overdrive_ir::plan::{View, WindowDimension};
use overdrive_ir::{Decline, Prim, Reducer, Window};

use super::axis::WindowAxis;
use super::line::{Compile, NamedKernel, without_arithmetic};
use super::place::Strided;
use super::planes::{PlaneBand, Planes};
use super::scalar::{Scalar, for_scalar};
use super::taps::{Copying, Folding, Narrowed, Run, Widened};
use crate::exec::Runnable;
use crate::loops::isa::{Isa, Level, for_level};
use crate::slots::SlotTable;
use crate::threads::{Pool, ScratchParts, Worker};

/// `reduce_window`; one without windows is the reference's.
pub(super) const KERNEL: NamedKernel = NamedKernel {
    declines: |op, operands| match op.prim() {
        Some(Prim::ReduceWindow { windows, .. }) if windows.is_empty() => {
            Some(Decline::Because("its kernel takes no scalars".to_owned()))
        }
        _ => without_arithmetic(operands),
    },
    ..NamedKernel::new(
        "reduce_window",
        Compile::Prim(|prim, operands, results| match (prim, operands, results) {
            (Prim::ReduceWindow { reducer, windows }, &[operand], &[Some(result)]) => {
                Some(compile(operand, result, *reducer, windows))
            }
            _ => None,
        }),
    )
};

fn compile(
    operand: &View,
    result: &View,
    reducer: Reducer,
    windows: &[Window],
) -> Box<dyn Runnable> {
    struct Compile<'a>(&'a View, &'a View, Reducer, &'a [Window]);
    impl Compile<'_> {
        fn step<T: Scalar>(&self) -> Box<dyn Runnable> {
            Box::new(ReduceWindow::<T>::new([self.0, self.1], self.2, self.3))
        }
    }
    let this = Compile(operand, result, reducer, windows);
    for_scalar!(operand.ty.dtype, this.step())
}

/// Compiled `reduce_window`.
struct ReduceWindow<T: Scalar> {
    operand: Strided,
    result: Strided,
    loops: Loops<T>,
    padding: T::Wide,
    /// Dimensions that count planes.
    outer: Vec<usize>,
    planes: Planes,
    /// The result's strides along dimensions of planes.
    strides: Vec<i64>,
    /// Places of the outermost dimension of a plane that are a band, and planes that are walked
    /// over as one run.
    band: usize,
    together: usize,
}

/// The functions that are compiled for the CPU's instructions.
struct Loops<T: Scalar> {
    stage: Copying,
    store: Copying,
    fold: Folding<T::Wide>,
}

impl<T: Scalar> ReduceWindow<T> {
    fn new([operand, result]: [&View; 2], reducer: Reducer, windows: &[Window]) -> Self {
        let (operand, result) = (Strided::new(operand), Strided::new(result));
        let mut order: Vec<usize> = (0..windows.len()).collect();
        order.sort_by_key(|&d| std::cmp::Reverse(operand.strides[d].unsigned_abs()));
        let slides = |&d: &usize| {
            let Window { size, stride, pad_low, pad_high, .. } = windows[d];
            [size, stride, pad_low, pad_high] != [1, 1, 0, 0]
        };
        let first = order.iter().position(slides).unwrap_or(order.len() - 1);
        let inner = order.split_off(first);
        let axis = |&d: &usize| {
            let Window { size, stride, dilation, pad_low, pad_high } = windows[d];
            let dimension = WindowDimension {
                stride,
                pad_low: pad_low as i64,
                pad_high: pad_high as i64,
                input_dilation: 1,
                kernel_dilation: dilation,
            };
            let (input, output) = (operand.sizes[d], result.sizes[d]);
            WindowAxis { dimension, input, stride: operand.strides[d] as isize, output, taps: size }
        };
        let planes = Planes::new(&inner.iter().map(axis).collect::<Vec<_>>());
        let band = planes.band(size_of::<T::Wide>());
        let count = order.iter().map(|&d| result.sizes[d]).product();
        Self {
            loops: for_level!(Level::best(), Self::loops(reducer)),
            padding: T::identity(reducer),
            outer: order,
            together: if band < planes.lines() { 1 } else { planes.together(count) },
            strides: inner.iter().map(|&d| result.strides[d]).collect(),
            operand,
            result,
            planes,
            band,
        }
    }

    fn loops<I: Isa>(reducer: Reducer) -> Loops<T> {
        Loops {
            stage: Copying::new::<I, Widened<T>>(),
            store: Copying::new::<I, Narrowed<T>>(),
            fold: Folding::reduced::<I>(reducer),
        }
    }

    /// Address of a plane in a view.
    fn plane(&self, view: &Strided, mut number: usize, slots: &SlotTable) -> *mut T {
        let mut at = 0;
        for &d in self.outer.iter().rev() {
            at += (number % self.result.sizes[d]) as i64 * view.strides[d];
            number /= self.result.sizes[d];
        }
        view.get(slots).cast::<T>().wrapping_offset(at as isize)
    }

    /// Some planes from `first` on.
    fn run_span(&self, first: usize, span: PlaneBand, worker: &mut Worker<'_>, slots: &SlotTable) {
        let (planes, n) = (&self.planes, self.planes.sums(span));
        let taps = planes.taps();
        let placed = worker.scratch.place(ScratchParts::new([
            ("stage", planes.staged(span) * size_of::<T::Wide>()),
            ("sums", n * size_of::<T::Wide>()),
            ("offsets", taps * size_of::<usize>()),
        ]));
        let [stage, sums, offsets] = placed.starts;
        let (stage, sums) = (stage.cast::<T::Wide>(), sums.cast::<T::Wide>());
        let from =
            |number: usize| self.plane(&self.operand, first + number, slots).cast_const().cast();
        let band = span.first as i64 * self.strides[0];
        let to = |number: usize| {
            self.plane(&self.result, first + number, slots).wrapping_offset(band as isize).cast()
        };
        // SAFETY: scratch has room for all three. Both views have the elements that the geometry
        // says, and the places are this task's.
        unsafe {
            let offsets = std::slice::from_raw_parts_mut(offsets.cast::<usize>(), taps);
            planes.offsets(span, offsets);
            planes.stage((&self.loops.stage, span), from, (stage, self.padding));
            let weights = std::ptr::NonNull::dangling().as_ptr();
            self.loops.fold.run(&Run { n, sums, from: stage.cast_const(), offsets, weights });
            planes.store((&self.loops.store, span), sums.cast_const(), (to, &self.strides));
        }
    }
}

impl<T: Scalar> Runnable for ReduceWindow<T> {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        if self.result.len() == 0 {
            return;
        }
        let count: usize = self.outer.iter().map(|&d| self.result.sizes[d]).product();
        let lines = self.planes.lines();
        let bands = lines.div_ceil(self.band);
        pool.run(count.div_ceil(self.together) * bands, |task, worker| {
            let (first, line) = (task / bands * self.together, task % bands * self.band);
            let span = PlaneBand {
                planes: (count - first).min(self.together),
                first: line,
                lines: (lines - line).min(self.band),
            };
            self.run_span(first, span, worker, slots);
        });
    }
}
