//! `gather` and `scatter`: windows of an operand at positions that are data.
//!
//! A row of the indices names a window of the operand. Gather moves windows out, scatter moves or
//! folds updates in. Invariant: updates to one element are folded in row-major order of the
//! indices, whatever the number of threads. The reason is that threads share out the elements of a
//! window and never the rows.
// Raw pointers into slots; indices are clamped, so that every window lies inside.
#![allow(unsafe_code)]

use overdrive_ir::plan::View;
use overdrive_ir::{DType, Prim, Reducer};

use super::line::{Compile, NamedKernel, parts_of_bytes, without_arithmetic};
use super::place::{Strided, read_index};
use super::scalar::{Scalar, for_scalar};
use super::transfer::{TASK_BYTES, Transfer};
use crate::exec::Runnable;
use crate::slots::SlotTable;
use crate::threads::Pool;

/// How rows of indices become places in the operand.
#[derive(Debug)]
struct IndexedRows {
    indices: Strided,
    /// Per indexed axis: extent, and stride in bytes.
    axes: Vec<(usize, isize)>,
    /// Extents of the rows, and their strides (in elements) in the indices and in the window side.
    sizes: Vec<usize>,
    index_strides: Vec<i64>,
    row_strides: Vec<i64>,
    row_width: usize,
}

impl IndexedRows {
    /// `whole` is indexed along `axes`; the rows of `windows` are its leading dimensions.
    fn new(whole: &Strided, indices: Strided, axes: &[usize], windows: &Strided) -> Self {
        let rank = indices.sizes.len() - 1;
        let width = whole.width();
        let axes = axes
            .iter()
            .map(|&axis| (whole.sizes[axis], whole.strides[axis] as isize * width as isize));
        Self {
            axes: axes.collect(),
            sizes: indices.sizes[..rank].to_vec(),
            index_strides: indices.strides.clone(),
            row_strides: windows.strides[..rank].to_vec(),
            row_width: width,
            indices,
        }
    }

    fn count(&self) -> usize {
        self.sizes.iter().product()
    }

    /// For row `row`: where its window begins in the operand and among the windows, in bytes from
    /// their firsts.
    fn place(&self, row: usize, slots: &SlotTable) -> (isize, isize) {
        let (mut rest, mut index_at, mut row_at) = (row, 0, 0);
        for d in (0..self.sizes.len()).rev() {
            let i = (rest % self.sizes[d]) as i64;
            rest /= self.sizes[d];
            index_at += i * self.index_strides[d];
            row_at += i * self.row_strides[d];
        }
        let (dtype, width) = (self.indices.dtype, self.indices.width() as i64);
        let last = self.index_strides[self.sizes.len()];
        let mut at = 0;
        for (i, &(extent, stride)) in self.axes.iter().enumerate() {
            let offset = (index_at + i as i64 * last) * width;
            // SAFETY: the view of the indices has this element.
            let index =
                unsafe { read_index(dtype, self.indices.get(slots).offset(offset as isize)) };
            at += index.clamp(0, extent as i64 - 1) as isize * stride;
        }
        (at, row_at as isize * self.row_width as isize)
    }
}

/// `gather`.
pub(super) const GATHER: NamedKernel = NamedKernel::moving(
    "gather",
    Compile::Prim(|prim, operands, results| match (prim, operands, results) {
        (Prim::Gather { axes }, &[operand, indices], &[Some(result)]) => {
            Some(Box::new(Gather::new([operand, indices], result, axes)))
        }
        _ => None,
    }),
);

/// Compiled `gather`.
#[derive(Debug)]
pub(super) struct Gather {
    operand: Strided,
    result: Strided,
    rows: IndexedRows,
    window: Transfer,
}

impl Gather {
    pub(super) fn new([operand, indices]: [&View; 2], result: &View, axes: &[usize]) -> Self {
        let (sizes, strides) = operand.without(axes);
        let (operand, result) = (Strided::new(operand), Strided::new(result));
        let rows = IndexedRows::new(&operand, Strided::new(indices), axes, &result);
        let to = &result.strides[rows.sizes.len()..];
        let window = Transfer::new(&sizes, &strides, to, operand.width());
        Self { operand, result, rows, window }
    }
}

impl Runnable for Gather {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        if self.operand.len() == 0 {
            return zero(&self.result, slots);
        }
        let (rows, bytes) = (self.rows.count(), self.window.elements() * self.operand.width());
        let chunk = TASK_BYTES.div_ceil(bytes.max(1)).max(1);
        pool.run(rows.div_ceil(chunk), |task, _| {
            for row in task * chunk..((task + 1) * chunk).min(rows) {
                let (from, to) = self.rows.place(row, slots);
                // SAFETY: clamped indices keep the window inside of the operand; windows of the
                // result are apart.
                unsafe {
                    let (from, to) =
                        (self.operand.get(slots).offset(from), self.result.get(slots).offset(to));
                    self.window.run(from, to);
                }
            }
        });
    }
}

/// There is nothing to gather from; the specification says zeros.
fn zero(result: &Strided, slots: &SlotTable) {
    let zeros = [0u8; 8];
    let still = vec![0; result.sizes.len()];
    let fill = Transfer::new(&result.sizes, &still, &result.strides, result.width());
    // SAFETY: the result has its elements; each is at most eight bytes.
    unsafe { fill.run(zeros.as_ptr(), result.get(slots)) }
}

/// `scatter`.
pub(super) const SCATTER: NamedKernel = NamedKernel {
    declines: |op, operands| match op.prim() {
        // It moves elements, as the codes of a cache.
        Some(Prim::Scatter { reducer: None, .. }) => parts_of_bytes(operands),
        _ => without_arithmetic(operands),
    },
    ..NamedKernel::new(
        "scatter",
        Compile::Prim(|prim, operands, results| match (prim, operands, results) {
            (Prim::Scatter { axes, reducer }, &[operand, indices, updates], &[Some(result)]) => {
                Some(Box::new(Scatter::new([operand, indices, updates], result, (axes, *reducer))))
            }
            _ => None,
        }),
    )
};

/// Compiled `scatter`.
#[derive(Debug)]
pub(super) struct Scatter {
    operand: Strided,
    updates: Strided,
    result: Strided,
    whole: Transfer,
    rows: IndexedRows,
    sizes: Vec<usize>,
    from: Vec<i64>,
    to: Vec<i64>,
    reducer: Option<Reducer>,
}

impl Scatter {
    pub(super) fn new(
        [operand, indices, updates]: [&View; 3],
        result: &View,
        (axes, reducer): (&[usize], Option<Reducer>),
    ) -> Self {
        let (sizes, to) = result.without(axes);
        let [operand, updates, result] = [operand, updates, result].map(Strided::new);
        let rows = IndexedRows::new(&result, Strided::new(indices), axes, &updates);
        let from = updates.strides[rows.sizes.len()..].to_vec();
        let whole = Transfer::new(&result.sizes, &operand.strides, &result.strides, result.width());
        Self { operand, updates, result, whole, rows, sizes, from, to, reducer }
    }

    /// Folds all updates into the elements `part`, of `parts`, of each window.
    fn fold<T: Scalar>(&self, (part, parts): (usize, usize), slots: &SlotTable) {
        let count: usize = self.sizes.iter().product();
        let (first, end) = (count * part / parts, count * (part + 1) / parts);
        let (length, from_step, to_step) = match self.sizes.split_last() {
            Some((&length, _)) => {
                let last = self.sizes.len() - 1;
                (length, self.from[last] as isize, self.to[last] as isize)
            }
            None => (1, 0, 0),
        };
        for row in 0..self.rows.count() {
            let (to, from) = self.rows.place(row, slots);
            let mut element = first;
            // Elements of one line of the window at a time.
            while element < end {
                let line = element / length;
                let stop = end.min((line + 1) * length);
                let (from_line, to_line) = self.line(line);
                // SAFETY: clamped indices keep the window inside of the result; parts of a window
                // are apart.
                unsafe {
                    let update = self.updates.get(slots).offset(from).cast::<T>().offset(from_line);
                    let to = self.result.get(slots).offset(to).cast::<T>().offset(to_line);
                    for i in (element - line * length) as isize..(stop - line * length) as isize {
                        let (update, to) = (update.offset(i * from_step), to.offset(i * to_step));
                        *to = match self.reducer {
                            None => *update,
                            Some(reducer) => {
                                T::narrow(T::combine(reducer, (*to).widen(), (*update).widen()))
                            }
                        };
                    }
                }
                element = stop;
            }
        }
    }

    /// Start of a line of the window's last axis, in elements of the updates and the result.
    fn line(&self, line: usize) -> (isize, isize) {
        let (mut rest, mut from, mut to) = (line, 0, 0);
        for d in (0..self.sizes.len().saturating_sub(1)).rev() {
            let i = (rest % self.sizes[d]) as i64;
            rest /= self.sizes[d];
            from += i * self.from[d];
            to += i * self.to[d];
        }
        (from as isize, to as isize)
    }
}

impl Runnable for Scatter {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let (from, to) = (self.operand.get(slots), self.result.get(slots));
        if from != to {
            let parts = self.whole.parts();
            // SAFETY: operand and result have their elements and share none.
            pool.run(parts, |part, _| unsafe {
                self.whole.run_part(part, self.operand.get(slots), self.result.get(slots));
            });
        }
        if self.result.len() == 0 {
            return;
        }
        let window: usize = self.sizes.iter().product();
        let parts = (window * self.rows.count() * self.result.width()).div_ceil(TASK_BYTES);
        let parts = parts.clamp(1, 4 * pool.threads()).min(window.max(1));
        let dtype = match (self.reducer, self.result.width()) {
            (None, 1) => DType::U8,
            _ => self.result.dtype,
        };
        pool.run(parts, |part, _| {
            for_scalar!(dtype, self.fold((part, parts), slots));
        });
    }
}
