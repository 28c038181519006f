//! Folds that take half floats as they lie in memory, two at a time: the largest and the smallest
//! of a row.
//!
//! Widening keeps the order, so it can come after the fold: half an instruction an element instead
//! of two.

use super::nest::Of;
use super::points::Points;
use super::stages::RowPass;
use overdrive_ir::plan::{Instr, Register};
use overdrive_ir::{DType, Overflow, Reducer};

/// The load whose elements a fold compares, where pairs will do.
pub(super) fn paired(points: &Points<'_>, fold: Register) -> Option<Register> {
    let program = points.program;
    let Instr::Reduce(reduction) = program.instr(fold) else { return None };
    let Instr::Convert(load, Overflow::Ieee) = *program.instr(reduction.value) else { return None };
    let compares = matches!(reduction.reducer, Reducer::Max | Reducer::Min);
    let widens = program.dtype(fold) == DType::F32
        && matches!(program.dtype(load), DType::BF16 | DType::F16);
    let loads = matches!(program.instr(load), Instr::Load(_)) && points.moves(Of::Load(load));
    let whole = points.nest.vector.is_multiple_of(2) && !points.nest.has_tail();
    (compares && widens && loads && whole).then_some(load)
}

/// Whether a pass leaves its elements as they lay in memory.
pub(super) fn only_pairs(points: &Points<'_>, pass: &RowPass) -> bool {
    pass.stores.is_empty() && pass.folds.iter().all(|fold| paired(points, *fold).is_some())
}
