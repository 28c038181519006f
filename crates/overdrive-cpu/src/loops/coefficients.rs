//! Values of an epilogue that depend on one dimension alone: a loop computes them all, once a call.
#![allow(unsafe_code)] // Runs over the addresses of a slot table, as the caller vouches for them.

use std::sync::{Mutex, PoisonError};

use overdrive_ir::plan::{Access, Instr, Program, Register, Store};
use overdrive_ir::{DType, SlotId};

use super::compiled::CompiledLoop;
use crate::memory::AlignedBytes;
use crate::slots::SlotTable;
use crate::threads::Pool;

/// Bytes of a value, an f32 or an i32.
const WIDTH: usize = 4;

/// Some registers of a program for each place of a dimension.
pub(super) struct Coefficients {
    compiled: CompiledLoop,
    loads: Vec<SlotId>,
    /// The addresses of `loads`, and of the values in slots behind all others.
    table: Mutex<SlotTable>,
    values: AlignedBytes,
    count: usize,
}

/// For each instruction: whether it depends on nothing but the place along dimension `along`.
pub(super) fn fixed(program: &Program, along: usize) -> Vec<bool> {
    let mut fixed: Vec<bool> = Vec::with_capacity(program.instrs.len());
    for instr in &program.instrs {
        let own = match instr {
            Instr::Load(access) => {
                let mut strides = access.strides.iter().zip(&program.extents).enumerate();
                strides.all(|(d, (&stride, &extent))| d == along || stride == 0 || extent == 1)
            }
            Instr::Accumulator | Instr::Index(_) | Instr::RandomBits { .. } => false,
            Instr::Reduce(_) => false,
            other => other.operands().iter().all(|operand| fixed[operand.0 as usize]),
        };
        fixed.push(own);
    }
    fixed
}

impl Coefficients {
    /// The loop that computes `registers`, each of f32 or i32 and [`fixed`]. `None` where there is
    /// no such loop.
    pub(super) fn new(
        program: &Program,
        along: usize,
        registers: &[Register],
        slots: &dyn Fn(SlotId) -> DType,
    ) -> Option<Self> {
        let fixed = fixed(program, along);
        let count = program.extents[along];
        let mut result = Program { extents: vec![count], ..Program::default() };
        let mut loads = Vec::new();
        for ((instr, &dtype), &fixed) in program.instrs.iter().zip(&program.dtypes).zip(&fixed) {
            let instr = match instr {
                Instr::Load(access) if fixed => {
                    loads.push(access.slot);
                    let strides = vec![access.strides[along]];
                    Instr::Load(Access { strides, ..access.clone() })
                }
                other if fixed => other.clone(),
                // Nobody reads these.
                _ => Instr::Constant(0.0),
            };
            result.push(instr, dtype);
        }
        let behind = loads.iter().map(|slot| slot.0 + 1).max().unwrap_or(0);
        let values = AlignedBytes::filled(registers.len() * count * WIDTH, 0).ok()?;
        let mut table = SlotTable::new(behind as usize + registers.len());
        for (i, &value) in registers.iter().enumerate() {
            let slot = SlotId(behind + i as u32);
            table.set(slot, values.start().wrapping_add(i * count * WIDTH));
            let access = Access { slot, offset: 0, strides: vec![1] };
            result.stores.push(Store { access, value });
        }
        let stored = |slot: SlotId| result.dtype(registers[(slot.0 - behind) as usize]);
        let all = |slot: SlotId| if slot.0 >= behind { stored(slot) } else { slots(slot) };
        let compiled = CompiledLoop::new(&result, &all).ok()?;
        Some(Self { compiled, loads, table: Mutex::new(table), values, count })
    }

    /// Computes all values.
    ///
    /// # Safety
    /// As for [`CompiledLoop::run`].
    pub(super) unsafe fn prepare(&self, pool: &Pool, slots: &SlotTable) {
        let mut table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        self.loads.iter().for_each(|&slot| table.set(slot, slots.get(slot)));
        // SAFETY: the table has the loads' addresses and those of `values`, which this loop alone
        // writes, under the lock of the table.
        unsafe { self.compiled.run(pool, &table) }
    }

    /// The value of register number `register` at a place.
    pub(super) fn at(&self, register: usize, place: usize) -> *const u8 {
        let offset = (register * self.count + place) * WIDTH;
        self.values.start().cast_const().wrapping_add(offset)
    }
}
