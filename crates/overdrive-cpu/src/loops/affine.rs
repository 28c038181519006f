//! Epilogues that are one multiply-add per sum, `s[m] acc + t[m]`, with or without a floor of 0: what follows most
//! convolutions (bias, batch norm, ReLU).
//!
//! As a program of the block interpreter it costs a dozen calls per row, as much as the product itself where rows are
//! short and tiles fast. Here what depends on the row alone is computed for all rows once a call, by a loop that is the
//! rest of the program, and each row is one pass from sums to results.
#![allow(unsafe_code)] // Runs over the addresses of a slot table, as the caller vouches for them.

use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};

use overdrive_ir::plan::{Access, Instr, Program, Register, Store};
use overdrive_ir::{Binary, DType, Overflow, SlotId};

use super::compiled::CompiledLoop;
use super::epilogue::Tile;
use super::half;
use super::isa::{Ahead, Entry, Isa, Kernel, Level, Operands, for_level};
use crate::memory::AlignedBytes;
use crate::slots::SlotTable;
use crate::threads::Pool;

/// Such an epilogue, compiled for this CPU.
pub(crate) struct Affine {
    /// From the program's loads to the factors of all rows and then the summands.
    coefficients: CompiledLoop,
    loads: Vec<SlotId>,
    /// The addresses of `loads`, and of `values` in two slots behind all others.
    table: Mutex<SlotTable>,
    values: AlignedBytes,
    /// `[batch..., m, n]`.
    extents: Vec<usize>,
    store: Access,
    width: usize,
    /// Which dimension of a tile the coefficients belong to.
    along: Along,
    entry: Entry,
}

/// The dimension that coefficients belong to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Along {
    /// Each row has one: results of a row are neighbours.
    Rows,
    /// Each column has one: all results are neighbours, row after row.
    Columns,
}

/// What a register is.
#[derive(Clone, Copy)]
enum Form {
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

    /// The program over `[batch..., n, m]` if it is such an epilogue with a multiply-add for each column, whose results are
    /// one run.
    pub(crate) fn of_columns(program: &Program, slots: &dyn Fn(SlotId) -> DType) -> Option<Self> {
        let (rank, columns) = (program.extents.len(), *program.extents.last()?);
        let run = program.stores.iter().all(|store| store.access.strides[rank - 2] == columns as i64);
        if run { Self::along(Along::Columns, program, slots) } else { None }
    }

    fn along(along: Along, program: &Program, slots: &dyn Fn(SlotId) -> DType) -> Option<Self> {
        let (row, [store]) = (program.extents.len() - 2, program.stores.as_slice()) else { return None };
        let of = if along == Along::Rows { row } else { row + 1 };
        let mut forms = Vec::with_capacity(program.instrs.len());
        for at in 0..program.instrs.len() {
            forms.push(form(program, of, &forms, at));
        }
        let Form::Affine { factor, summand, floor } = forms[store.value.0 as usize] else { return None };
        let dtype = slots(store.access.slot);
        if store.access.strides[row + 1] != 1 || program.dtype(store.value) != dtype {
            return None;
        }
        let level = Level::best();
        let entry = for_level!(level, entry(dtype, floor, along))?;
        let m = program.extents[of];
        let accesses = program.instrs.iter().filter_map(|instr| match instr {
            Instr::Load(access) => Some(access.slot),
            _ => None,
        });
        let loads: Vec<SlotId> = accesses.collect();
        let behind = loads.iter().map(|slot| slot.0 + 1).max().unwrap_or(0);
        let coefficients = coefficients(program, of, [factor, summand], behind);
        let all = |slot: SlotId| if slot.0 >= behind { DType::F32 } else { slots(slot) };
        let coefficients = CompiledLoop::new(&coefficients, &all).ok()?;
        let values = AlignedBytes::filled(2 * m * size_of::<f32>(), 0).ok()?;
        let mut table = SlotTable::new(behind as usize + 2);
        table.set(SlotId(behind), values.start());
        table.set(SlotId(behind + 1), values.start().wrapping_add(m * size_of::<f32>()));
        Some(Self {
            coefficients,
            loads,
            table: Mutex::new(table),
            values,
            extents: program.extents.clone(),
            store: store.access.clone(),
            width: dtype.bits() / 8,
            along,
            entry,
        })
    }

    /// Computes the factors and summands of all rows, before the first [`apply`](Self::apply) of a call.
    ///
    /// # Safety
    /// As for [`CompiledLoop::run`].
    pub(crate) unsafe fn prepare(&self, pool: &Pool, slots: &SlotTable) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        self.loads.iter().for_each(|&slot| table.set(slot, slots.get(slot)));
        // SAFETY: as the caller promised; the values are this epilogue's own.
        unsafe { self.coefficients.run(pool, &table) }
    }

    /// Executes the epilogue on one block.
    ///
    /// # Safety
    /// As for [`CompiledEpilogue::apply`](super::CompiledEpilogue::apply), after [`prepare`](Self::prepare).
    pub(crate) unsafe fn apply(&self, slots: &SlotTable, tile: Tile) {
        let batch = self.extents.len() - 2;
        let m = self.extents[batch];
        let mut offset = self.store.offset + tile.col as i64;
        let mut position = tile.batch;
        for d in (0..batch).rev() {
            offset += (position % self.extents[d]) as i64 * self.store.strides[d];
            position /= self.extents[d];
        }
        if self.along == Along::Columns {
            let at = offset + tile.row as i64 * self.store.strides[batch];
            let (columns, values) = (self.extents[batch + 1], self.values.start().cast_const().cast::<f32>());
            debug_assert!(tile.cols == columns && tile.row_bytes == columns * size_of::<f32>(), "whole rows");
            let operands = Operands {
                dst: slots.get(self.store.slot).wrapping_offset(at as isize * self.width as isize),
                src: [tile.sums, values.cast(), values.wrapping_add(columns).cast()],
                immediate: columns as i64,
                ahead: Ahead::NONE,
            };
            // SAFETY: as the caller promised.
            return unsafe { (self.entry)(tile.rows * columns, &operands) };
        }
        for row in 0..tile.rows {
            let m_at = tile.row + row;
            let at = offset + m_at as i64 * self.store.strides[batch];
            let values = self.values.start().cast_const().cast::<f32>().wrapping_add(m_at);
            let operands = Operands {
                dst: slots.get(self.store.slot).wrapping_offset(at as isize * self.width as isize),
                src: [
                    tile.sums.wrapping_add(row * tile.row_bytes),
                    values.cast(),
                    values.wrapping_add(m).cast(),
                ],
                immediate: 0,
                ahead: Ahead::NONE,
            };
            // SAFETY: as the caller promised.
            unsafe { (self.entry)(tile.cols, &operands) }
        }
    }
}

/// What instruction `at` makes of operands of the given forms, where coefficients belong to dimension `row`.
fn form(program: &Program, row: usize, forms: &[Form], at: usize) -> Form {
    let of = |register: Register| forms[register.0 as usize];
    let f32 = |register: Register| program.dtype(register) == DType::F32;
    let instr = &program.instrs[at];
    match *instr {
        Instr::Load(ref access) => {
            let fixed = access.strides.iter().enumerate().all(|(d, &stride)| d == row || stride == 0);
            if fixed { Form::OfRow } else { Form::Other }
        }
        Instr::Constant(_) => Form::OfRow,
        Instr::Accumulator if program.dtypes[at] == DType::F32 => {
            Form::Affine { factor: None, summand: None, floor: false }
        }
        Instr::Binary(kind, a, b) => match (kind, of(a), of(b)) {
            (_, Form::OfRow, Form::OfRow) => Form::OfRow,
            (_, x, y) if f32(a) && f32(b) => {
                let (x, other, register) = if matches!(y, Form::OfRow) { (x, y, b) } else { (y, x, a) };
                let (Form::Affine { factor, summand, floor: false }, Form::OfRow) = (x, other) else {
                    return Form::Other;
                };
                match kind {
                    Binary::Mul if factor.is_none() && summand.is_none() => {
                        Form::Affine { factor: Some(register), summand, floor: false }
                    }
                    Binary::Add if summand.is_none() => {
                        Form::Affine { factor, summand: Some(register), floor: false }
                    }
                    Binary::Max if *program.instr(register) == Instr::Constant(0.0) => {
                        Form::Affine { factor, summand, floor: true }
                    }
                    _ => Form::Other,
                }
            }
            _ => Form::Other,
        },
        // Rounded, it is ready to be stored; nothing may follow.
        Instr::Convert(value, Overflow::Ieee) if f32(value) && matches!(of(value), Form::Affine { .. }) => {
            let last = program.stores.iter().any(|store| store.value.0 as usize == at);
            if last { of(value) } else { Form::Other }
        }
        Instr::Index(_) | Instr::RandomBits { .. } | Instr::Accumulator => Form::Other,
        _ => {
            let of_row = instr.operands().into_iter().all(|operand| matches!(of(operand), Form::OfRow));
            if of_row { Form::OfRow } else { Form::Other }
        }
    }
}

/// The loop over rows that stores factors to slot `behind`, and summands to the next.
fn coefficients(program: &Program, row: usize, values: [Option<Register>; 2], behind: u32) -> Program {
    let mut result = Program { extents: vec![program.extents[row]], ..Program::default() };
    for (instr, &dtype) in program.instrs.iter().zip(&program.dtypes) {
        let instr = match instr {
            Instr::Load(access) => {
                Instr::Load(Access { strides: vec![access.strides[row]], ..access.clone() })
            }
            // Nobody reads these: what is stored is of the row.
            Instr::Accumulator | Instr::Index(_) | Instr::RandomBits { .. } => Instr::Constant(0.0),
            other => other.clone(),
        };
        result.push(instr, dtype);
    }
    for (i, (value, neutral)) in values.into_iter().zip([1.0, 0.0]).enumerate() {
        let value = value.unwrap_or_else(|| result.push(Instr::Constant(neutral), DType::F32));
        let access = Access { slot: SlotId(behind + i as u32), offset: 0, strides: vec![1] };
        result.stores.push(Store { access, value });
    }
    result
}

/// A format that results are stored in.
trait Stored {
    type T;
    fn round(x: f32) -> Self::T;
}

macro_rules! stored {
    ($($name:ident: $t:ty, $round:expr;)*) => {$(
        struct $name;

        impl Stored for $name {
            type T = $t;
            #[inline(always)]
            fn round(x: f32) -> $t {
                $round(x)
            }
        }
    )*};
}

stored! {
    F32: f32, |x| x;
    Bf16: u16, half::to_bf16;
    F16: u16, half::to_f16;
}

/// What becomes of a number before it is stored.
trait Last {
    fn last(x: f32) -> f32;
}

/// Nothing.
struct Plain;
/// 0 where it is less; NaN stays NaN.
struct Floored;

impl Last for Plain {
    #[inline(always)]
    fn last(x: f32) -> f32 {
        x
    }
}

impl Last for Floored {
    #[inline(always)]
    fn last(x: f32) -> f32 {
        if x < 0.0 { 0.0 } else { x }
    }
}

/// `dst = sum * factor + summand`: sums are source 0, the others one number each.
struct Scaled<S, L>(PhantomData<(S, L)>);
/// The same for runs of columns, `immediate` of them, each with a factor and a summand.
struct ScaledColumns<S, L>(PhantomData<(S, L)>);

impl<S: Stored, L: Last> Kernel for Scaled<S, L> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: as the caller promised; the results lie elsewhere than the sums.
        unsafe {
            let (sums, dst) = (o.src::<f32>(0, n), o.dst::<S::T>(n));
            let (factor, summand) = (*o.src[1].cast::<f32>(), *o.src[2].cast::<f32>());
            for (&sum, to) in sums.iter().zip(dst) {
                *to = S::round(L::last(I::fma(sum, factor, summand)));
            }
        }
    }
}

impl<S: Stored, L: Last> Kernel for ScaledColumns<S, L> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, o: &Operands) {
        // SAFETY: as the caller promised; the results lie elsewhere than the sums.
        unsafe {
            let m = o.immediate as usize;
            let (sums, dst) = (o.src::<f32>(0, n), o.dst::<S::T>(n));
            let (factors, summands) = (o.src::<f32>(1, m), o.src::<f32>(2, m));
            for (sums, dst) in sums.chunks_exact(m).zip(dst.chunks_exact_mut(m)) {
                for (((&sum, to), &factor), &summand) in sums.iter().zip(dst).zip(factors).zip(summands) {
                    *to = S::round(L::last(I::fma(sum, factor, summand)));
                }
            }
        }
    }
}

fn entry<I: Isa>(dtype: DType, floor: bool, along: Along) -> Option<Entry> {
    Some(match dtype {
        DType::F32 => stored_as::<I, F32>(floor, along),
        DType::BF16 => stored_as::<I, Bf16>(floor, along),
        DType::F16 => stored_as::<I, F16>(floor, along),
        _ => return None,
    })
}

fn stored_as<I: Isa, S: Stored + 'static>(floor: bool, along: Along) -> Entry {
    match (along, floor) {
        (Along::Rows, false) => I::entry::<Scaled<S, Plain>>(),
        (Along::Rows, true) => I::entry::<Scaled<S, Floored>>(),
        (Along::Columns, false) => I::entry::<ScaledColumns<S, Plain>>(),
        (Along::Columns, true) => I::entry::<ScaledColumns<S, Floored>>(),
    }
}
