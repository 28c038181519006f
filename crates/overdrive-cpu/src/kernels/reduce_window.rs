//! `reduce_window`: folds of a sliding window (pooling).
//!
//! A task is one line of results along the last dimension. Each tap of the window folds a strided run of the operand
//! into the whole line, so that the inner loop is long and has no branch.
#![allow(unsafe_code)] // Raw pointers into slots; taps outside of the operand are skipped.

use overdrive_ir::plan::View;
use overdrive_ir::{Reducer, Window};

use super::place::Strided;
use super::scalar::{Scalar, for_scalar};
use crate::exec::Runnable;
use crate::slots::SlotTable;
use crate::threads::{Pool, Worker};

/// Compiled `reduce_window`.
#[derive(Debug)]
pub(super) struct ReduceWindow {
    operand: Strided,
    result: Strided,
    windows: Vec<Window>,
    reducer: Reducer,
}

impl ReduceWindow {
    pub(super) fn new(operand: &View, result: &View, reducer: Reducer, windows: &[Window]) -> Self {
        Self {
            operand: Strided::new(operand),
            result: Strided::new(result),
            windows: windows.to_vec(),
            reducer,
        }
    }

    /// Line `line` of the results: all of the last dimension.
    fn line<T: Scalar>(&self, line: usize, worker: &mut Worker<'_>, slots: &SlotTable) {
        let last = self.windows.len() - 1;
        let length = self.result.sizes[last];
        let sums = worker.scratch.bytes(length * size_of::<T::Wide>()).as_mut_ptr().cast::<T::Wide>();
        // SAFETY: scratch is aligned for any element and as long as asked for; every sum is written before it is read.
        let sums = unsafe {
            (0..length).for_each(|i| sums.add(i).write(T::identity(self.reducer)));
            std::slice::from_raw_parts_mut(sums, length)
        };
        let (mut to, mut rest) = (0, line);
        for d in (0..last).rev() {
            to += (rest % self.result.sizes[d]) as i64 * self.result.strides[d];
            rest /= self.result.sizes[d];
        }
        self.taps::<T>(line, sums, slots);
        for (i, &sum) in sums.iter().enumerate() {
            let at = (to + i as i64 * self.result.strides[last]) as isize;
            // SAFETY: the result has this element, and this line belongs to this task.
            unsafe { *self.result.get(slots).cast::<T>().offset(at) = T::narrow(sum) }
        }
    }

    /// Folds every tap of the window into a line of sums.
    fn taps<T: Scalar>(&self, line: usize, sums: &mut [T::Wide], slots: &SlotTable) {
        let last = self.windows.len() - 1;
        let taps: usize = self.windows.iter().map(|window| window.size).product();
        for tap in 0..taps {
            let (mut tap, mut rest, mut from) = (tap, line, 0);
            let along = tap % self.windows[last].size;
            tap /= self.windows[last].size;
            let inside = (0..last).rev().all(|d| {
                let window = &self.windows[d];
                let at = rest % self.result.sizes[d] * window.stride + tap % window.size * window.dilation;
                (rest, tap) = (rest / self.result.sizes[d], tap / window.size);
                let source = at.wrapping_sub(window.pad_low);
                from += source as i64 * self.operand.strides[d];
                source < self.operand.sizes[d]
            });
            if inside {
                // SAFETY: all dimensions but the last are inside; `run` keeps to the last.
                unsafe {
                    self.run::<T>(along, self.operand.get(slots).cast::<T>().offset(from as isize), sums)
                }
            }
        }
    }

    /// Folds tap `along` of the last dimension into each sum whose element exists.
    unsafe fn run<T: Scalar>(&self, along: usize, from: *const T, sums: &mut [T::Wide]) {
        let last = self.windows.len() - 1;
        let (window, size, stride) =
            (&self.windows[last], self.operand.sizes[last], self.operand.strides[last]);
        let shift = along * window.dilation;
        // Results i with 0 <= i * stride + shift - pad_low < size.
        let first = window.pad_low.saturating_sub(shift).div_ceil(window.stride);
        let end = (size + window.pad_low).saturating_sub(shift).div_ceil(window.stride).min(sums.len());
        for (i, sum) in sums.iter_mut().enumerate().take(end).skip(first) {
            let at = (i * window.stride + shift - window.pad_low) as i64 * stride;
            // SAFETY: as the caller promised, and by the bounds above.
            let value = unsafe { *from.offset(at as isize) };
            *sum = T::combine(self.reducer, *sum, value.widen());
        }
    }
}

impl Runnable for ReduceWindow {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let length = *self.result.sizes.last().expect("a window has dimensions");
        let lines = self.result.len().checked_div(length).unwrap_or(0);
        pool.run(lines, |line, worker| {
            for_scalar!(self.operand.dtype, self.line(line, worker, slots));
        });
    }
}
