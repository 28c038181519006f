//! Sums that pick: of `i == place ? x : 0` over a row one term is left, the element of x at
//! `place`.
//!
//! That is how the loss of a row reads the logit of its target without a gather. Folded like any
//! sum it would cost every element a comparison, a choice and an addition, more than its
//! exponential does. Picked, it costs one load a row. Invariant: the value is the same, and 0 where
//! `place` is outside of the row.

use super::level::Level;
use super::nest::{Lanes, LoopNest, Of};
use overdrive_ir::plan::{Instr, Program, Register};
use overdrive_ir::{Compare, Reducer};

/// One element of a row instead of a sum.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Pick {
    /// The element's index in the row, of an integer type; the same for a whole row.
    pub(super) place: Register,
    /// The value that is picked.
    pub(super) value: Register,
}

/// Whether a register is such a sum, given the levels of those before it.
pub(super) fn pick(
    program: &Program,
    nest: &LoopNest,
    (sum, levels): (Register, &[Level]),
) -> Option<Pick> {
    let Instr::Reduce(fold) = program.instr(sum) else { return None };
    let Instr::Select(condition, value, other) = *program.instr(fold.value) else { return None };
    let Instr::Compare(Compare::Eq, a, b) = *program.instr(condition) else { return None };
    let is_zero = matches!(program.instr(other), Instr::Constant(number) if *number == 0.0);
    let of_row = |r: Register| levels[r.0 as usize] != Level::Element && program.dtype(r).is_int();
    let counts = |r: Register| matches!(program.instr(r), Instr::Index(d) if is_place(nest, *d));
    let place =
        [(a, b), (b, a)].into_iter().find(|&(place, index)| of_row(place) && counts(index))?.0;
    let fits = program.dtype(value) == program.dtype(sum) && program.dtype(place).bits() >= 32;
    (fold.reducer == Reducer::Sum && is_zero && fits).then_some(Pick { place, value })
}

/// Whether the index along a dimension says where in its row an element is.
fn is_place(nest: &LoopNest, dimension: usize) -> bool {
    let walk = &nest.walks[&Of::Index(dimension)];
    let along = nest.lanes == Lanes::Along && nest.reduced == 1;
    let others =
        walk.strides.iter().enumerate().all(|(d, &stride)| stride == i64::from(d == nest.lane()));
    along && walk.offset == 0 && others
}
