//! Regions of elementwise ops, as programs that a kernel prints for each element.

use crate::lower::lower;
use overdrive_ir::plan::{Instr, Program, Register, SlotId, View};
use overdrive_ir::{Graph, TensorType};

/// A region of elementwise ops over tensors as large as its only result, as a program of one
/// element, with the result. A load of slot i reads operand i.
///
/// # Errors
/// If a region holds anything else.
pub fn elementwise(region: &Graph) -> Result<(Program, Register), String> {
    let [output] = region.outputs() else { return Err("it has not one result".into()) };
    let view = |(slot, ty): (u32, &TensorType)| View::row_major(SlotId(slot), ty.clone());
    let types = region.inputs().iter().map(|port| region.ty(port.value));
    let operands: Vec<View> = (0..).zip(types).map(view).collect();
    let result = view((operands.len() as u32, region.ty(output.value)));
    let program = lower(region, &operands, std::slice::from_ref(&result))?;
    let [store] = program.stores.as_slice() else { return Err("it has not one result".into()) };
    let is_alike = |instr: &Instr| match instr {
        Instr::Load(access) => access.offset == 0 && access.strides == store.access.strides,
        Instr::Index(_) | Instr::RandomBits { .. } | Instr::Reduce(_) | Instr::Accumulator => false,
        _ => true,
    };
    if !program.instrs.iter().all(is_alike) {
        return Err("an element of its result depends on more than that of each operand".into());
    }
    let value = store.value;
    Ok((program, value))
}
