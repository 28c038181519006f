//! `convert` of codes of fewer than 8 bits: each code looks its number up.
//!
//! Weights have this form in files, while products of codes take bytes. There are at most 2^6
//! codes, so that the table is made by the definition of the conversion, once, whatever its types.
//! Invariant: the same bits as the reference gives.
#![allow(unsafe_code)] // Slices over slots; parts of the result are apart.

use overdrive_ir::plan::View;
use overdrive_ir::{Array, DType, Decline, Operation, Prim, SlotId, Tensor, TensorType};

use super::line::{Compile, NamedKernel};
use super::place::Strided;
use crate::exec::Runnable;
use crate::slots::SlotTable;
use crate::threads::Pool;

/// Rows of the result that a task takes at least, in elements.
const PART: usize = 1 << 14;

/// `convert` of codes of fewer than 8 bits; conversions of whole bytes are loops.
pub(super) const KERNEL: NamedKernel = NamedKernel {
    declines: |op, operands| {
        let is_code = |ty: &TensorType| ty.dtype.bits() < 8;
        let to_bytes = match op.prim() {
            Some(Prim::Convert { to, .. }) => to.bits().is_multiple_of(8),
            _ => false,
        };
        (!to_bytes || !operands.first().is_some_and(is_code)).then_some(Decline::NoKernel)
    },
    ..NamedKernel::new(
        "convert",
        Compile::Prim(|prim, operands, results| match (operands, results) {
            (&[operand], &[Some(result)]) => Some(Box::new(Unpack::new(prim, operand, result))),
            _ => None,
        }),
    )
};

/// A compiled conversion.
#[derive(Debug)]
struct Unpack {
    slot: SlotId,
    /// The first code, and how far apart codes are along each axis.
    first: i64,
    strides: Vec<i64>,
    bits: usize,
    result: Strided,
    /// The bytes of the number of each code.
    table: Vec<u8>,
}

impl Unpack {
    /// The kernel for `prim`, which converts the elements at `operand`.
    fn new(prim: &Prim, operand: &View, result: &View) -> Self {
        let from = operand.ty.dtype;
        let (mut strides, mut result) = (operand.strides.clone(), Strided::new(result));
        if result.sizes.is_empty() {
            // A scalar is a row of one.
            strides.push(0);
            result.sizes.push(1);
            result.strides.push(0);
        }
        let (slot, first) = (operand.slot, operand.offset);
        Self { slot, first, strides, bits: from.bits(), result, table: table(prim, from) }
    }

    /// One row of the result: codes that follow each other `stride` apart.
    ///
    /// # Safety
    /// Codes and row have their elements.
    unsafe fn row(&self, codes: *const u8, first: i64, row: *mut u8) {
        let last = self.result.sizes.len() - 1;
        let (width, mask) = (self.result.width(), (1u16 << self.bits) - 1);
        let (step, stride) =
            (self.strides[last], self.result.strides[last] as isize * width as isize);
        for i in 0..self.result.sizes[last] {
            let bit = (first + i as i64 * step) as usize * self.bits;
            // SAFETY: the code's bits are in this byte and, where they reach over its end, the next
            // one.
            let code = unsafe {
                let low = u16::from(*codes.add(bit / 8));
                let more = bit % 8 + self.bits > 8;
                let high = if more { u16::from(*codes.add(bit / 8 + 1)) } else { 0 };
                usize::from(((low | (high << 8)) >> (bit % 8)) & mask)
            };
            // SAFETY: an element of the row; the table has one for each code.
            unsafe {
                let number = self.table.as_ptr().add(code * width);
                std::ptr::copy_nonoverlapping(number, row.offset(i as isize * stride), width);
            }
        }
    }
}

/// The numbers of all codes in their order, by the definition.
fn table(prim: &Prim, from: DType) -> Vec<u8> {
    let count = 1usize << from.bits();
    let ty = TensorType::new(from, [count]);
    let mut bytes = vec![0u8; ty.bytes()];
    for code in 0..count {
        let at = code * from.bits();
        let wide = (code as u16) << (at % 8);
        bytes[at / 8] |= wide as u8;
        if wide > 0xff {
            bytes[at / 8 + 1] |= (wide >> 8) as u8;
        }
    }
    let codes = Tensor::from_bytes(ty, bytes).expect("as many codes as the type has");
    let numbers = Operation::Prim(prim.clone()).eval(&[Array::from(&codes)], &[]);
    numbers[0].to_tensor().bytes().to_vec()
}

impl Runnable for Unpack {
    fn run(&self, pool: &Pool, slots: &SlotTable) {
        let outer = &self.result.sizes[..self.result.sizes.len() - 1];
        let rows: usize = outer.iter().product();
        if self.result.len() == 0 {
            return;
        }
        let part = PART.div_ceil(self.result.len() / rows).min(rows);
        pool.run(rows.div_ceil(part), |task, _| {
            for row in task * part..rows.min((task + 1) * part) {
                let (mut left, mut code, mut to) = (row, self.first, 0i64);
                for (axis, &size) in outer.iter().enumerate().rev() {
                    let at = (left % size) as i64;
                    left /= size;
                    code += at * self.strides[axis];
                    to += at * self.result.strides[axis];
                }
                let to = to as isize * self.result.width() as isize;
                // SAFETY: an earlier step wrote the codes, and no other task writes this row.
                unsafe { self.row(slots.get(self.slot), code, self.result.get(slots).offset(to)) };
            }
        });
    }
}
