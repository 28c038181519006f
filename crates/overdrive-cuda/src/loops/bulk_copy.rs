//! Limits of the bulk copy engine: the devices that have it, and the operands that it can bring.

use super::kernel::{PrinterMachine, Use};
use super::nest::Of;
use super::points::Points;
use crate::compiler::Architecture;
use overdrive_ir::plan::{Instr, Register};

/// Bytes that bulk copies want addresses and lengths to be multiples of.
const ALIGNMENT: usize = 16;

/// Whether a block may have as much shared memory as rows take that set out ahead, and bulk copies
/// to bring them.
pub(super) fn has_room(machine: PrinterMachine) -> bool {
    matches!(machine.architecture, Architecture::Sm90a | Architecture::Sm100a)
}

/// Whether the one operand that passes share lies in memory as a bulk copy takes it.
pub(super) fn is_copied_whole(points: &Points<'_>, kept_loads: &[Register]) -> bool {
    let (nest, [load]) = (points.nest, kept_loads) else { return false };
    let Instr::Load(access) = points.program.instr(*load) else { return false };
    let (walk, bytes) = (&nest.walks[&Of::Load(*load)], points.program.dtype(*load).bits() / 8);
    let lies = nest.reduced == 1 && !nest.has_tail() && walk.strides[nest.lane()] == 1;
    lies && nest.alignment(walk) * bytes >= ALIGNMENT
        && points.parameters.usage(access.slot) == Use::Read
}
