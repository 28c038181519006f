//! `sort`: sorted values and their original positions, along one axis.
//!
//! A task is one line. Ties are broken by position, which makes an unstable sort (that needs no
//! buffer) a stable one.
#![allow(unsafe_code)] // Raw pointers into slots.

use overdrive_ir::plan::View;
use overdrive_ir::{Prim, SortOrder};

use super::line::{Compile, NamedKernel};
use super::place::Strided;
use super::scalar::{Scalar, for_scalar};
use crate::exec::Runnable;
use crate::slots::SlotTable;
use crate::threads::{Pool, ScratchParts, Worker};

/// `sort`.
pub(super) const KERNEL: NamedKernel = NamedKernel::combining(
    "sort",
    Compile::Prim(|prim, operands, results| match (prim, operands, results) {
        (Prim::Sort { axis, order }, &[operand], &[values, indices]) => {
            Some(Box::new(Sort::new(operand, [values, indices], *axis, *order)))
        }
        _ => None,
    }),
);

/// Compiled `sort`.
#[derive(Debug)]
pub(super) struct Sort {
    operand: Strided,
    values: Option<Strided>,
    indices: Option<Strided>,
    axis: usize,
    order: SortOrder,
}

impl Sort {
    pub(super) fn new(
        operand: &View,
        [values, indices]: [Option<&View>; 2],
        axis: usize,
        order: SortOrder,
    ) -> Self {
        let [values, indices] = [values, indices].map(|view| view.map(Strided::new));
        Self { operand: Strided::new(operand), values, indices, axis, order }
    }

    fn line<T: Scalar>(&self, line: usize, worker: &mut Worker<'_>, slots: &SlotTable) {
        let length = self.operand.sizes[self.axis];
        let start = |place: &Strided| {
            let (mut at, mut rest) = (0, line);
            for d in (0..place.sizes.len()).rev().filter(|&d| d != self.axis) {
                at += (rest % place.sizes[d]) as i64 * place.strides[d];
                rest /= place.sizes[d];
            }
            at
        };
        let placed = worker.scratch.place(ScratchParts::new([
            ("values", length * size_of::<T>()),
            ("indices", length * size_of::<i32>()),
        ]));
        let [values, indices] = placed.starts;
        let from = start(&self.operand);
        // SAFETY: scratch has room for both, aligned for any element; the operand has the line.
        let (values, indices) = unsafe {
            let (values, indices) = (values.cast::<T>(), indices.cast::<i32>());
            for i in 0..length {
                let at = (from + i as i64 * self.operand.strides[self.axis]) as isize;
                values.add(i).write(*self.operand.get(slots).cast::<T>().offset(at));
                indices.add(i).write(i as i32);
            }
            (
                std::slice::from_raw_parts(values, length),
                std::slice::from_raw_parts_mut(indices, length),
            )
        };
        indices.sort_unstable_by(|&i, &j| {
            let ascending = T::order(values[i as usize], values[j as usize]);
            let ordered =
                if self.order == SortOrder::Ascending { ascending } else { ascending.reverse() };
            ordered.then(i.cmp(&j))
        });
        if let Some(to) = &self.values {
            // SAFETY: the result has the line, which belongs to this task.
            unsafe {
                store(to, start(to), self.axis, indices.iter().map(|&i| values[i as usize]), slots)
            };
        }
        if let Some(to) = &self.indices {
            // SAFETY: the result of indices has the line too, which belongs to this task.
            unsafe { store(to, start(to), self.axis, indices.iter().copied(), slots) };
        }
    }
}

/// Writes a line.
///
/// # Safety
/// `place` has elements of type `T`, and the line of them from `start` on belongs to the caller.
unsafe fn store<T>(
    place: &Strided,
    start: i64,
    axis: usize,
    line: impl Iterator<Item = T>,
    slots: &SlotTable,
) {
    for (i, value) in line.enumerate() {
        let at = (start + i as i64 * place.strides[axis]) as isize;
        // SAFETY: the line has an element of type `T` here, and belongs to the caller.
        unsafe { *place.get(slots).cast::<T>().offset(at) = value }
    }
}

impl Runnable for Sort {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let length = self.operand.sizes[self.axis];
        let lines = self.operand.len().checked_div(length).unwrap_or(0);
        pool.run(lines, |line, worker| {
            for_scalar!(self.operand.dtype, self.line(line, worker, slots));
        });
    }
}
