//! Epilogues of convolutions whose rows are pixels and whose columns are output channels, all of
//! which stay in registers: `v = max(sum * s[c] + t[c] + residual, 0)`, stored as f32, as codes of
//! i8, or both.
//!
//! Sums are f32, or i32 less an i32 for each channel. The residual and the floor may be missing.
//! That is the end of a layer of a residual network, in float and quantized. The block interpreter
//! takes a call for each of these operations and each row; here a tile of sums is one call.
//!
//! Long because the parts that a program is taken into are those that the tile computes.
#![allow(unsafe_code)] // Vector intrinsics over the addresses of a slot table.

use std::arch::x86_64::*;

use overdrive_ir::plan::{Access, Instr, Program, Register};
use overdrive_ir::{Binary, DType, SlotId, Unary};

use super::coefficients::{Coefficients, fixed};
use super::epilogue::AccumulatorTile;
use crate::isa::InstructionSet;
use crate::slots::SlotTable;
use crate::threads::Pool;

/// Columns of a vector.
const LANES: usize = 16;

/// Bytes of a line of the cache.
const LINE: usize = 64;

/// The dimensions of a program `[images, pixels, channels]`.
const CHANNELS: usize = 2;

/// Numbers of the coefficients of every epilogue; those of stores follow.
const CORRECTION: usize = 0;
const FACTOR: usize = 1;
const SUMMAND: usize = 2;
const OF_STORES: usize = 3;

/// A place where values are stored.
struct ColumnStore {
    access: Access,
    /// Number of the first of its coefficients, if it stores codes: scale, reciprocal of the scale,
    /// and code of zero.
    codes: Option<usize>,
}

/// Such an epilogue.
pub(crate) struct Columns {
    coefficients: Coefficients,
    /// Whether sums are i32.
    integers: bool,
    residual: Option<Access>,
    floor: bool,
    stores: Vec<ColumnStore>,
}

/// A change of a sum in f32, from the sum outwards.
#[derive(Clone, Copy)]
enum Change {
    Times(Register),
    Plus(Register),
    Minus(Register),
}

/// A program that is taken apart.
struct Matching {
    program: Program,
    /// Whether an instruction depends on the channel alone.
    fixed: Vec<bool>,
}

impl Matching {
    fn is_fixed(&self, register: Register) -> bool {
        self.fixed[register.0 as usize]
    }

    fn push(&mut self, instr: Instr, dtype: DType) -> Register {
        self.fixed.push(true);
        self.program.push(instr, dtype)
    }

    fn binary(&mut self, kind: Binary, a: Register, b: Register) -> Register {
        self.push(Instr::Binary(kind, a, b), DType::F32)
    }

    /// A value and a fixed one that `kind` joins, in either order.
    fn with_fixed(&self, value: Register, kind: Binary) -> Option<(Register, Register)> {
        match *self.program.instr(value) {
            Instr::Binary(of, a, b) if of == kind && self.is_fixed(b) => Some((a, b)),
            Instr::Binary(of, a, b) if of == kind && self.is_fixed(a) => Some((b, a)),
            _ => None,
        }
    }

    /// The value behind codes, their scale, and the code of zero.
    fn codes(&self, stored: Register) -> Option<(Register, Register, Option<Register>)> {
        let Instr::Convert(sum, _) = *self.program.instr(stored) else { return None };
        let (rounded, zero) = match self.with_fixed(sum, Binary::Add) {
            Some((rounded, zero)) => (rounded, Some(zero)),
            None => (sum, None),
        };
        let Instr::Unary(Unary::Round, quotient) = *self.program.instr(rounded) else {
            return None;
        };
        match *self.program.instr(quotient) {
            Instr::Binary(Binary::Div, value, scale)
                if self.is_fixed(scale) && self.program.dtype(value) == DType::F32 =>
            {
                Some((value, scale, zero))
            }
            _ => None,
        }
    }

    /// The value below a floor of 0.
    fn below_floor(&self, value: Register) -> Option<Register> {
        let (below, floor) = self.with_fixed(value, Binary::Max)?;
        (*self.program.instr(floor) == Instr::Constant(0.0)).then_some(below)
    }

    /// The sum that an image of the result's form is added to, and that image.
    fn residual(
        &self,
        value: Register,
        slots: &dyn Fn(SlotId) -> DType,
    ) -> Option<(Register, Access)> {
        let Instr::Binary(Binary::Add, a, b) = *self.program.instr(value) else { return None };
        [(a, b), (b, a)].into_iter().find_map(|(sum, image)| match self.program.instr(image) {
            Instr::Load(access) if !self.is_fixed(image) && !self.is_fixed(sum) => {
                let fits = access.strides[CHANNELS] == 1 && slots(access.slot) == DType::F32;
                fits.then(|| (sum, access.clone()))
            }
            _ => None,
        })
    }

    /// Factor and summand of a value that is a multiply-add of the sum, and the sum in its own
    /// type.
    fn multiply_add(&mut self, mut value: Register) -> Option<([Option<Register>; 2], Register)> {
        let mut changes = Vec::new();
        let sum = loop {
            if self.program.dtype(value) != DType::F32 {
                return None;
            }
            if let Some((inner, factor)) = self.with_fixed(value, Binary::Mul) {
                changes.push(Change::Times(factor));
                value = inner;
            } else if let Some((inner, summand)) = self.with_fixed(value, Binary::Add) {
                changes.push(Change::Plus(summand));
                value = inner;
            } else {
                match *self.program.instr(value) {
                    Instr::Binary(Binary::Sub, inner, less) if self.is_fixed(less) => {
                        changes.push(Change::Minus(less));
                        value = inner;
                    }
                    Instr::Convert(inner, _) if self.program.dtype(inner) == DType::I32 => {
                        break inner;
                    }
                    Instr::Accumulator => break value,
                    _ => return None,
                }
            }
        };
        let (mut factor, mut summand) = (None, None);
        for change in changes.into_iter().rev() {
            match change {
                Change::Times(by) => {
                    factor = Some(factor.map_or(by, |f| self.binary(Binary::Mul, f, by)));
                    summand = summand.map(|s| self.binary(Binary::Mul, s, by));
                }
                Change::Plus(by) => {
                    summand = Some(summand.map_or(by, |s| self.binary(Binary::Add, s, by)));
                }
                Change::Minus(by) => {
                    let s = summand.unwrap_or_else(|| self.push(Instr::Constant(0.0), DType::F32));
                    summand = Some(self.binary(Binary::Sub, s, by));
                }
            }
        }
        Some(([factor, summand], sum))
    }

    /// The fixed number that an i32 is less than the accumulator. `None` if it is no such number.
    fn correction(&mut self, sum: Register) -> Option<Register> {
        match *self.program.instr(sum) {
            Instr::Accumulator => Some(self.push(Instr::Constant(0.0), DType::I32)),
            Instr::Binary(Binary::Sub, of, less)
                if *self.program.instr(of) == Instr::Accumulator && self.is_fixed(less) =>
            {
                Some(less)
            }
            _ => None,
        }
    }
}

impl Columns {
    /// The program over `[images, pixels, channels]` if it is such an epilogue, and the channels
    /// are whole vectors.
    pub(crate) fn of(program: &Program, slots: &dyn Fn(SlotId) -> DType) -> Option<Self> {
        let &[_, _, channels] = program.extents.as_slice() else { return None };
        let usable = InstructionSet::Avx512.is_usable() && channels.is_multiple_of(LANES);
        if !usable || program.reduced > 0 || program.stores.is_empty() {
            return None;
        }
        let fixed = fixed(program, CHANNELS);
        let mut matching = Matching { program: program.clone(), fixed };
        let (mut of_stores, mut stores, mut value) = (Vec::new(), Vec::new(), None);
        for store in &program.stores {
            let dtype = slots(store.access.slot);
            if store.access.strides[CHANNELS] != 1 || program.dtype(store.value) != dtype {
                return None;
            }
            let (stored, codes) = match dtype {
                DType::F32 => (store.value, None),
                DType::I8 => {
                    let (stored, scale, zero) = matching.codes(store.value)?;
                    let first = OF_STORES + of_stores.len();
                    let one = matching.push(Instr::Constant(1.0), DType::F32);
                    let reciprocal = matching.binary(Binary::Div, one, scale);
                    let none = matching.push(Instr::Constant(0.0), DType::F32);
                    of_stores.extend([scale, reciprocal, zero.unwrap_or(none)]);
                    (stored, Some(first))
                }
                _ => return None,
            };
            if value.is_some_and(|value| value != stored) {
                return None;
            }
            value = Some(stored);
            stores.push(ColumnStore { access: store.access.clone(), codes });
        }
        let mut value = value?;
        let below = matching.below_floor(value);
        value = below.unwrap_or(value);
        let residual = matching.residual(value, slots);
        value = residual.as_ref().map_or(value, |(sum, _)| *sum);
        let ([factor, summand], sum) = matching.multiply_add(value)?;
        let integers = matching.program.dtype(sum) == DType::I32;
        let correction = match integers {
            true => matching.correction(sum)?,
            false => matching.push(Instr::Constant(0.0), DType::I32),
        };
        let mut or = |value: Option<Register>, neutral: f64| {
            value.unwrap_or_else(|| matching.push(Instr::Constant(neutral), DType::F32))
        };
        let mut registers = vec![correction, or(factor, 1.0), or(summand, 0.0)];
        registers.extend(of_stores);
        let coefficients = Coefficients::new(&matching.program, CHANNELS, &registers, slots)?;
        let residual = residual.map(|(_, access)| access);
        Some(Self { coefficients, integers, residual, floor: below.is_some(), stores })
    }

    /// Computes the coefficients, before the first [`apply`](Self::apply) of a call.
    ///
    /// # Safety
    /// As for [`CompiledLoop::run`](super::CompiledLoop::run).
    pub(crate) unsafe fn prepare(&self, pool: &Pool, slots: &SlotTable) {
        // SAFETY: the same contract.
        unsafe { self.coefficients.prepare(pool, slots) }
    }

    /// Asks for the memory that [`apply`](Self::apply) will touch, some time before. Pixels are too
    /// far apart for the processor to foresee it.
    pub(crate) fn ask(&self, slots: &SlotTable, tile: AccumulatorTile) {
        let residual = self.residual.iter().map(|access| (access, 4));
        let width = |store: &ColumnStore| if store.codes.is_some() { 1 } else { 4 };
        let stores = self.stores.iter().map(|store| (&store.access, width(store)));
        for (access, width) in residual.chain(stores) {
            for row in 0..tile.rows {
                let start = place(slots, (access, width), tile, [row, 0]);
                for byte in (0..tile.cols * width).step_by(LINE) {
                    // SAFETY: a prefetch reads nothing, wherever it points.
                    unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(byte).cast()) };
                }
            }
        }
    }

    /// Executes the epilogue on one block of whole vectors.
    ///
    /// # Safety
    /// As for [`CompiledEpilogue::apply`](super::CompiledEpilogue::apply), after
    /// [`prepare`](Self::prepare).
    pub(crate) unsafe fn apply(&self, slots: &SlotTable, tile: AccumulatorTile) {
        debug_assert!(tile.cols.is_multiple_of(LANES) && tile.col.is_multiple_of(LANES));
        // SAFETY: `of` has checked the instructions; the rest is this function's contract.
        unsafe { self.run(slots, tile) }
    }

    /// # Safety
    /// The CPU has AVX-512; otherwise as for [`apply`](Self::apply).
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    unsafe fn run(&self, slots: &SlotTable, tile: AccumulatorTile) {
        let at = |access: &Access, row: usize, column: usize, width: usize| {
            place(slots, (access, width), tile, [row, column])
        };
        for column in (0..tile.cols).step_by(LANES) {
            let of = |register: usize| self.coefficients.at(register, tile.col + column);
            // SAFETY: the tile has its sums, the coefficients are those of its columns, and what
            // is loaded and stored lies within the result.
            unsafe {
                let correction = _mm512_loadu_si512(of(CORRECTION).cast());
                let [factor, summand] = [FACTOR, SUMMAND].map(|c| _mm512_loadu_ps(of(c).cast()));
                for row in 0..tile.rows {
                    let sums = tile.sums.add(row * tile.row_bytes + column * 4);
                    let sum = if self.integers {
                        let sum = _mm512_loadu_si512(sums.cast());
                        _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, correction))
                    } else {
                        _mm512_loadu_ps(sums.cast())
                    };
                    let mut value = _mm512_fmadd_ps(sum, factor, summand);
                    if let Some(residual) = &self.residual {
                        let image = _mm512_loadu_ps(at(residual, row, column, 4).cast());
                        value = _mm512_add_ps(value, image);
                    }
                    if self.floor {
                        // The second operand where either is NaN.
                        value = _mm512_max_ps(_mm512_setzero_ps(), value);
                    }
                    for store in &self.stores {
                        match store.codes {
                            None => {
                                _mm512_storeu_ps(at(&store.access, row, column, 4).cast(), value);
                            }
                            Some(first) => {
                                let [scale, reciprocal, zero] =
                                    [0, 1, 2].map(|i| _mm512_loadu_ps(of(first + i).cast()));
                                let codes = codes(value, [scale, reciprocal], zero);
                                let to = at(&store.access, row, column, 1);
                                _mm_storeu_si128(to.cast(), codes);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The place of an element of a block, of so many bytes, that lies as `access` says.
fn place(
    slots: &SlotTable,
    (access, width): (&Access, usize),
    tile: AccumulatorTile,
    [row, column]: [usize; 2],
) -> *mut u8 {
    let element = access.offset
        + tile.batch as i64 * access.strides[0]
        + (tile.row + row) as i64 * access.strides[1]
        + (tile.col + column) as i64;
    slots.get(access.slot).wrapping_offset(element as isize * width as isize)
}

/// `clamp(round(value / scale) + zero)`; the code of NaN is 0.
#[target_feature(enable = "avx512f")]
fn codes(value: __m512, [scale, reciprocal]: [__m512; 2], zero: __m512) -> __m128i {
    // A quotient, corrected by its remainder, is rounded as a division is. A quotient that is not
    // finite has no finite remainder.
    let quotient = _mm512_mul_ps(value, reciprocal);
    let remainder = _mm512_fnmadd_ps(quotient, scale, value);
    let size = _mm512_abs_ps(remainder);
    let finite = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(size, _mm512_set1_ps(f32::INFINITY));
    let quotient = _mm512_mask3_fmadd_ps(remainder, reciprocal, quotient, finite);
    let rounded = _mm512_add_ps(_mm512_roundscale_ps::<0>(quotient), zero);
    let number = _mm512_cmp_ps_mask::<_CMP_ORD_Q>(rounded, rounded);
    let low = _mm512_max_ps(rounded, _mm512_set1_ps(-128.0));
    let limited = _mm512_min_ps(low, _mm512_set1_ps(127.0));
    _mm512_cvtepi32_epi8(_mm512_maskz_cvtps_epi32(number, limited))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sixteen codes by the definition.
    fn defined(values: [f32; LANES], scale: f32, zero: f32) -> [i8; LANES] {
        values.map(|value| ((value / scale).round_ties_even() + zero) as i8)
    }

    #[target_feature(enable = "avx512f,avx512vl")]
    fn found(values: [f32; LANES], scale: f32, zero: f32) -> [i8; LANES] {
        let mut to = [0; LANES];
        let of_scale = [scale, 1.0 / scale].map(|x| _mm512_set1_ps(x));
        // SAFETY: both arrays are a vector long.
        unsafe {
            let values = _mm512_loadu_ps(values.as_ptr());
            let codes = codes(values, of_scale, _mm512_set1_ps(zero));
            _mm_storeu_si128(to.as_mut_ptr().cast(), codes);
        }
        to
    }

    #[test]
    fn codes_are_those_of_a_division() {
        if !InstructionSet::Avx512.is_usable() {
            return;
        }
        let special =
            [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 1e30, -1e-40];
        for step in 1..2000 {
            let scale = 0.0007 * step as f32;
            // Halves of codes are ties, or as near to them as a product comes.
            let near = |i: usize| (i as f32 - 6.5) * scale * (1 + step % 21) as f32;
            let values: [f32; LANES] = std::array::from_fn(near);
            let with_special = std::array::from_fn(|i| *special.get(i).unwrap_or(&values[i]));
            for (values, zero) in [(values, 0.0), (values, -128.0), (with_special, 3.0)] {
                // SAFETY: the CPU has the instructions.
                let found = unsafe { found(values, scale, zero) };
                assert_eq!(found, defined(values, scale, zero), "{values:?} by {scale}");
            }
        }
    }
}
