//! Copies of elements that share bytes, moved as the bytes they lie in.

use overdrive_ir::plan::{Access, Instr, Program, Store};
use overdrive_ir::{DType, SlotId};

/// The same copy over bytes. `None` where the program computes anything, or where a row of it
/// starts or ends inside a byte.
pub(super) fn as_bytes(program: &Program, slots: &dyn Fn(SlotId) -> DType) -> Option<Program> {
    let ([Instr::Load(from)], [store], [dtype]) =
        (&program.instrs[..], &program.stores[..], &program.dtypes[..])
    else {
        return None;
    };
    let to = &store.access;
    if dtype.bits() >= 8 || slots(from.slot) != *dtype || slots(to.slot) != *dtype {
        return None;
    }
    let bytes = |elements: i64| {
        let bits = elements * dtype.bits() as i64;
        (bits % 8 == 0).then_some(bits / 8)
    };
    let (row, outer) = program.extents.split_last()?;
    let access = |access: &Access| -> Option<Access> {
        let (&along, strides) = access.strides.split_last()?;
        let strides = strides.iter().map(|&by| bytes(by)).chain([(along == 1).then_some(1)]);
        Some(Access {
            slot: access.slot,
            offset: bytes(access.offset)?,
            strides: strides.collect::<Option<_>>()?,
        })
    };
    let row = usize::try_from(bytes(*row as i64)?).ok()?;
    let extents = outer.iter().copied().chain([row]).collect();
    let mut moved = Program { extents, ..Program::default() };
    let value = moved.push(Instr::Load(access(from)?), DType::U8);
    moved.stores.push(Store { access: access(to)?, value });
    Some(moved)
}
