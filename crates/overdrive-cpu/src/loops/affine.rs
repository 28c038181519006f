//! Epilogues that are one multiply-add per sum, `s[m] acc + t[m]`, with or without a floor of 0.
//! Most convolutions have such an epilogue (bias, batch norm, ReLU). Results are stored, or added
//! up over the other dimension of the block.
//!
//! As a program of the block interpreter it costs a dozen calls per row. That is as much as the
//! product itself where rows are short and tiles fast. Here a loop, the rest of the program,
//! computes the values that depend on the row alone, for all rows once a call. Each row is then one
//! pass from sums to results.
#![allow(unsafe_code)] // Runs over the addresses of a slot table, as the caller vouches for them.

use overdrive_ir::plan::{Access, Instr, Program, Register, Store};
use overdrive_ir::{Binary, DType, Overflow, Reducer, SlotId};

use super::coefficients::Coefficients;
use super::epilogue::AccumulatorTile;
use super::isa::{Ahead, LaneEntry, Level, Operands, for_level};
use super::scaled::{Along, entry, sum_entry};
use crate::slots::SlotTable;
use crate::threads::Pool;

/// Such an epilogue, compiled for this CPU.
pub(crate) struct Affine {
    /// Factors, and summands.
    coefficients: Coefficients,
    /// `[batch..., m, n]`.
    extents: Vec<usize>,
    store: Access,
    width: usize,
    /// The dimension of a tile that the coefficients belong to.
    along: Along,
    entry: LaneEntry,
}

/// The form of a register's value.
#[derive(Clone, Copy)]
enum RegisterForm {
    /// The same along the batch and the columns.
    OfRow,
    /// A multiply-add of the sum.
    Affine {
        factor: Option<Register>,
        summand: Option<Register>,
        floor: bool,
    },
    Other,
}

impl Affine {
    /// The program over `[batch..., m, n]` if it is such an epilogue of sums in f32.
    pub(crate) fn of(program: &Program, slots: &dyn Fn(SlotId) -> DType) -> Option<Self> {
        Self::along(Along::Rows, program, slots)
    }

    /// The program over `[batch..., n, m]` if it is such an epilogue with a multiply-add for each
    /// column. Its results are one run, or one number a column.
    pub(crate) fn of_columns(program: &Program, slots: &dyn Fn(SlotId) -> DType) -> Option<Self> {
        let (rank, columns) = (program.extents.len(), *program.extents.last()?);
        let rows = if program.reduced > 0 { 0 } else { columns as i64 };
        let run = program.stores.iter().all(|store| store.access.strides[rank - 2..] == [rows, 1]);
        if run { Self::along(Along::Columns, program, slots) } else { None }
    }

    fn along(along: Along, program: &Program, slots: &dyn Fn(SlotId) -> DType) -> Option<Self> {
        let (row, [store]) = (program.extents.len() - 2, program.stores.as_slice()) else {
            return None;
        };
        let of = if along == Along::Rows { row } else { row + 1 };
        let mut forms = Vec::with_capacity(program.instrs.len());
        for at in 0..program.instrs.len() {
            forms.push(form(program, of, &forms, at));
        }
        let (value, summed) = match program.reduced {
            0 => (store.value, false),
            _ => (summed(program, store)?, true),
        };
        let RegisterForm::Affine { factor, summand, floor } = forms[value.0 as usize] else {
            return None;
        };
        let dtype = slots(store.access.slot);
        let run = summed || store.access.strides[row + 1] == 1;
        if !run || program.dtype(store.value) != dtype {
            return None;
        }
        let level = Level::best();
        let entry = match summed {
            true => for_level!(level, sum_entry(dtype, floor, along))?,
            false => for_level!(level, entry(dtype, floor, along))?,
        };
        let (store, mut program) = (store.access.clone(), program.clone());
        let values = [(factor, 1.0), (summand, 0.0)].map(|(value, neutral)| {
            value.unwrap_or_else(|| program.push(Instr::Constant(neutral), DType::F32))
        });
        let coefficients = Coefficients::new(&program, of, &values, slots)?;
        Some(Self {
            coefficients,
            extents: program.extents,
            store,
            width: dtype.bits() / 8,
            along,
            entry,
        })
    }

    /// Computes the factors and summands of all rows, before the first [`apply`](Self::apply) of a
    /// call.
    ///
    /// # Safety
    /// As for [`CompiledLoop::run`].
    pub(crate) unsafe fn prepare(&self, pool: &Pool, slots: &SlotTable) {
        // SAFETY: the same contract.
        unsafe { self.coefficients.prepare(pool, slots) }
    }

    /// Executes the epilogue on one block.
    ///
    /// # Safety
    /// As for [`CompiledEpilogue::apply`](super::CompiledEpilogue::apply), after
    /// [`prepare`](Self::prepare).
    pub(crate) unsafe fn apply(&self, slots: &SlotTable, tile: AccumulatorTile) {
        let batch = self.extents.len() - 2;
        let mut offset = self.store.offset + tile.col as i64 * self.store.strides[batch + 1];
        let mut position = tile.batch;
        for d in (0..batch).rev() {
            offset += (position % self.extents[d]) as i64 * self.store.strides[d];
            position /= self.extents[d];
        }
        if self.along == Along::Columns {
            let at = offset + tile.row as i64 * self.store.strides[batch];
            let columns = self.extents[batch + 1];
            debug_assert!(
                tile.cols == columns && tile.row_bytes == columns * size_of::<f32>(),
                "whole rows"
            );
            let operands = Operands {
                dst: slots.get(self.store.slot).wrapping_offset(at as isize * self.width as isize),
                src: [tile.sums, self.coefficients.at(0, 0), self.coefficients.at(1, 0)],
                immediate: columns as i64,
                ahead: Ahead::NONE,
            };
            // SAFETY: rows are whole, so that the sums are one run; so are the results, or they are
            // one number a column. Each column has a factor and a summand.
            return unsafe { (self.entry)(tile.rows * columns, &operands) };
        }
        for row in 0..tile.rows {
            let m_at = tile.row + row;
            let at = offset + m_at as i64 * self.store.strides[batch];
            let operands = Operands {
                dst: slots.get(self.store.slot).wrapping_offset(at as isize * self.width as isize),
                src: [
                    tile.sums.wrapping_add(row * tile.row_bytes),
                    self.coefficients.at(0, m_at),
                    self.coefficients.at(1, m_at),
                ],
                immediate: 0,
                ahead: Ahead::NONE,
            };
            // SAFETY: the row has `cols` sums, and as many results or one; the factor and the
            // summand are one number each.
            unsafe { (self.entry)(tile.cols, &operands) }
        }
    }
}

/// The register that is added up, if a store adds a sum to the value that it held.
fn summed(program: &Program, store: &Store) -> Option<Register> {
    let Instr::Binary(Binary::Add, known, sum) = program.instr(store.value) else { return None };
    match (program.instr(*known), program.instr(*sum)) {
        (Instr::Load(access), Instr::Reduce(of))
            if *access == store.access && of.reducer == Reducer::Sum =>
        {
            (program.dtype(of.value) == DType::F32).then_some(of.value)
        }
        _ => None,
    }
}

/// The form that instruction `at` gives from operands of the given forms, where coefficients belong
/// to dimension `row`.
fn form(program: &Program, row: usize, forms: &[RegisterForm], at: usize) -> RegisterForm {
    let of = |register: Register| forms[register.0 as usize];
    let f32 = |register: Register| program.dtype(register) == DType::F32;
    let instr = &program.instrs[at];
    match *instr {
        Instr::Load(ref access) => {
            let fixed =
                access.strides.iter().enumerate().all(|(d, &stride)| d == row || stride == 0);
            if fixed { RegisterForm::OfRow } else { RegisterForm::Other }
        }
        Instr::Constant(_) => RegisterForm::OfRow,
        Instr::Accumulator if program.dtypes[at] == DType::F32 => {
            RegisterForm::Affine { factor: None, summand: None, floor: false }
        }
        Instr::Binary(kind, a, b) => match (kind, of(a), of(b)) {
            (_, RegisterForm::OfRow, RegisterForm::OfRow) => RegisterForm::OfRow,
            (_, x, y) if f32(a) && f32(b) => {
                let (x, other, register) =
                    if matches!(y, RegisterForm::OfRow) { (x, y, b) } else { (y, x, a) };
                let (RegisterForm::Affine { factor, summand, floor: false }, RegisterForm::OfRow) =
                    (x, other)
                else {
                    return RegisterForm::Other;
                };
                match kind {
                    Binary::Mul if factor.is_none() && summand.is_none() => {
                        RegisterForm::Affine { factor: Some(register), summand, floor: false }
                    }
                    Binary::Add if summand.is_none() => {
                        RegisterForm::Affine { factor, summand: Some(register), floor: false }
                    }
                    Binary::Max if *program.instr(register) == Instr::Constant(0.0) => {
                        RegisterForm::Affine { factor, summand, floor: true }
                    }
                    _ => RegisterForm::Other,
                }
            }
            _ => RegisterForm::Other,
        },
        // Rounded, it is ready to be stored; nothing may follow.
        Instr::Convert(value, Overflow::Ieee)
            if f32(value) && matches!(of(value), RegisterForm::Affine { .. }) =>
        {
            let last = program.stores.iter().any(|store| store.value.0 as usize == at);
            if last { of(value) } else { RegisterForm::Other }
        }
        Instr::Index(_) | Instr::RandomBits { .. } | Instr::Accumulator => RegisterForm::Other,
        _ => {
            let of_row = instr
                .operands()
                .into_iter()
                .all(|operand| matches!(of(operand), RegisterForm::OfRow));
            if of_row { RegisterForm::OfRow } else { RegisterForm::Other }
        }
    }
}
