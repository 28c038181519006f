//! The gradients of the floats that a score function captures: sums over all pairs, at elements
//! that only the function knows.
//!
//! The derivatives of a block and the elements that they belong to are outputs of the function. A
//! unit is some matrices (a head of a batch element each), walked one after the other in the order
//! of blocks. If the function reads different elements for different heads, or batch elements, a
//! unit is one of them, and all units add to one table. Otherwise each unit has a table, and tables
//! are added in order. Sums are f64. Invariant: units follow from sizes alone, so results do not
//! depend on the number of threads.
#![allow(unsafe_code)] // Raw pointers into slots and a worker's scratch.

use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};
use overdrive_ir::ops::attention_grad::Slopes;
use overdrive_ir::plan::View;
use overdrive_ir::{DType, Graph};

use super::function::{Functions, LANE};
use super::softmax::Score;
use super::translator::ElementSlope;
use crate::kernels::place::Strided;
use crate::slots::SlotTable;
use crate::threads::{Apart, Pool, Worker};

/// Elements that the tables of all units have at most, unless one table has more.
const TABLES: usize = 1 << 22;
/// Elements that a task adds up and stores.
const STORED: usize = 1 << 14;

/// The score function with its derivatives, and the place of each capture in a table.
#[derive(Debug)]
pub(super) struct CaptureFunctions {
    pub(super) functions: Functions,
    /// For each derivative, the first element of its capture in a table.
    pub(super) firsts: Vec<usize>,
}

/// A block of slopes of scores: `rows` keys by `queries` queries, `stride` lanes a key.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlopedBlock<A> {
    pub(super) slopes: *const A,
    pub(super) rows: usize,
    pub(super) queries: usize,
    pub(super) stride: usize,
}

impl CaptureFunctions {
    /// Bytes of the derivatives and places of so many lanes.
    pub(super) fn bytes(&self, lanes: usize) -> usize {
        2 * self.firsts.len() * LANE * lanes
    }

    /// Adds the terms of a block to a table.
    ///
    /// # Safety
    /// Slopes have the rows; `terms` has the derivatives and places of `lanes` lanes that the
    /// function has written; nobody else touches the elements of the table that they name.
    pub(super) unsafe fn add<A: Score + Into<f64>>(
        &self,
        block: SlopedBlock<A>,
        (terms, lanes): (*const u8, usize),
        table: *mut f64,
    ) {
        for (number, &first) in self.firsts.iter().enumerate() {
            let part = |which: usize| terms.wrapping_add((2 * number + which) * lanes * LANE);
            let (by, places) = (part(0).cast::<A>(), part(1).cast::<i32>());
            let table = table.wrapping_add(first);
            for row in 0..block.rows {
                let at = row * block.stride;
                // SAFETY: lanes of the row are within the block, and places within the capture.
                unsafe {
                    let slopes = std::slice::from_raw_parts(block.slopes.add(at), block.queries);
                    let by = std::slice::from_raw_parts(by.add(at), block.queries);
                    let places = std::slice::from_raw_parts(places.add(at), block.queries);
                    add_row([slopes, by], places, table);
                }
            }
        }
    }
}

/// Adds products of slopes and derivatives. Neighbours that belong together are summed first: a sum
/// in memory waits for the one before.
///
/// # Safety
/// The table has the places, which nobody else touches.
unsafe fn add_row<A: Score + Into<f64>>([slopes, by]: [&[A]; 2], places: &[i32], table: *mut f64) {
    let (mut sum, mut place) = (0.0, places.first().copied().unwrap_or(0));
    for ((&slope, &by), &at) in slopes.iter().zip(by).zip(places) {
        if at != place {
            // SAFETY: the caller's.
            unsafe { *table.add(place as usize) += sum };
            (sum, place) = (0.0, at);
        }
        // The derivative of a hidden score may be anything.
        if slope != A::ZERO {
            sum += slope.into() * by.into();
        }
    }
    if !places.is_empty() {
        // SAFETY: the caller's.
        unsafe { *table.add(place as usize) += sum };
    }
}

/// The captures whose gradients are wanted.
#[derive(Debug)]
pub(super) struct CaptureSums {
    /// The gradient of each, and its first element in a table.
    results: Vec<(Strided, usize)>,
    /// Elements of a table.
    elements: usize,
    /// Whether matrices of different batch elements, or heads, add to different elements.
    apart: [bool; 2],
    tables: Mutex<Vec<f64>>,
}

/// The outputs of `Slopes::region` that gradients of captures need, for the reads of captures whose
/// gradients are wanted.
pub(super) fn element_slopes(slopes: &Slopes, wanted: &[bool]) -> Vec<ElementSlope> {
    let region = &slopes.region;
    let reads = slopes.reads.iter().enumerate().filter(|(_, capture)| wanted[**capture]);
    let of_read = |(read, &capture): (usize, &usize)| {
        let index = 3 + 2 * read;
        let is_computed = region.ty(region.outputs()[index].value).elements() > 0;
        ElementSlope { capture, slope: index - 1, index: is_computed.then_some(index) }
    };
    reads.map(of_read).collect()
}

impl CaptureSums {
    /// Those of `captures`, of which each has a wanted gradient or none, and the first element of
    /// each in a table. `None` if nothing is wanted.
    pub(super) fn new(
        (score, captures): (Option<&Graph>, &[View]),
        wanted: &[Option<View>],
    ) -> Option<(Self, Vec<Option<usize>>)> {
        score?;
        let mut gradients = wanted.iter();
        let (mut results, mut firsts, mut elements) = (Vec::new(), Vec::new(), 0);
        for capture in captures {
            let result = match capture.ty.dtype.is_float() {
                true => gradients.next().and_then(Option::as_ref),
                false => None,
            };
            firsts.push(result.map(|view| {
                results.push((Strided::new(view), elements));
                elements += view.ty.elements();
                elements - view.ty.elements()
            }));
        }
        let sums = Self { results, elements, apart: [false; 2], tables: Mutex::default() };
        (!sums.results.is_empty()).then_some((sums, firsts))
    }

    /// The same where the function is known to keep batch elements, or heads, apart.
    pub(super) fn apart(self, apart: [bool; 2]) -> Self {
        Self { apart, ..self }
    }

    /// Units of so many matrices, and tables.
    fn units(&self, [batch, heads]: [usize; 2]) -> (usize, usize) {
        match self.apart {
            [true, true] => (batch * heads, 1),
            [false, true] => (heads, 1),
            [true, false] => (batch, 1),
            [false, false] => {
                let most = (TABLES / self.elements.max(1)).max(1);
                let units = (batch * heads).min(most);
                (units, units.max(1))
            }
        }
    }

    /// The matrices of a unit, in order.
    fn matrices(
        &self,
        unit: usize,
        [batch, heads]: [usize; 2],
    ) -> impl Iterator<Item = [usize; 2]> + use<> {
        let (units, _) = self.units([batch, heads]);
        let (first, end, step) = match self.apart {
            [false, true] => (unit, batch * heads, heads),
            _ => (unit * batch * heads / units, (unit + 1) * batch * heads / units, 1),
        };
        (first..end).step_by(step.max(1)).map(move |matrix| [matrix / heads, matrix % heads])
    }

    /// Runs `walk` for each matrix `[b, h]`: it adds the terms of the matrix to a table. Then the
    /// gradients are stored.
    pub(super) fn run(
        &self,
        (pool, slots): (&Pool, &SlotTable),
        matrices: [usize; 2],
        walk: impl Fn([usize; 2], *mut f64, &mut Worker<'_>) + Sync,
    ) {
        let (units, count) = self.units(matrices);
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.clear();
        tables.resize(count * self.elements, 0.0);
        let start = Apart::new(tables.as_mut_ptr());
        pool.run(units, |unit, worker| {
            let table = start.at(if count > 1 { unit * self.elements } else { 0 });
            self.matrices(unit, matrices).for_each(|matrix| walk(matrix, table, worker));
        });
        for (place, first) in &self.results {
            let elements: usize = place.sizes.iter().product();
            pool.run(elements.div_ceil(STORED), |part, _| {
                for at in part * STORED..elements.min((part + 1) * STORED) {
                    let sum = (0..count).map(|i| tables[i * self.elements + first + at]).sum();
                    // SAFETY: the element is in the result, and this task's alone.
                    unsafe { store(sum, place, at, slots) };
                }
            });
        }
    }

    /// Bytes of the tables, also between calls.
    pub(super) fn bytes(&self, matrices: [usize; 2]) -> usize {
        self.units(matrices).1 * self.elements * size_of::<f64>()
    }
}

/// Rounds a number to the element `at` of a tensor, in row-major order.
///
/// # Safety
/// The tensor has the element, which nobody else touches.
unsafe fn store(value: f64, place: &Strided, mut at: usize, slots: &SlotTable) {
    let mut offset = 0;
    for (&size, &stride) in place.sizes.iter().zip(&place.strides).rev() {
        offset += (at % size) as isize * stride as isize;
        at /= size;
    }
    let start = place.get(slots);
    // SAFETY: the caller's; the element has the type of the tensor.
    unsafe {
        match place.dtype {
            DType::F64 => *start.cast::<f64>().offset(offset) = value,
            DType::F32 => *start.cast::<f32>().offset(offset) = value as f32,
            DType::F16 => *start.cast::<f16>().offset(offset) = f16::from_f64(value),
            DType::BF16 => *start.cast::<bf16>().offset(offset) = bf16::from_f64(value),
            other => unreachable!("a gradient of {other}"),
        }
    }
}
