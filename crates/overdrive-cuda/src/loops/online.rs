//! Sums of exponentials, folded together with the maximum that they are shifted by:
//! `sum exp(x - max x)` in one pass.
//!
//! The largest element so far is enough, if the sum is rescaled when a larger one comes. Source:
//! Milakov and Gimelshein, "Online normalizer calculation for softmax", arXiv:1805.02867. If
//! nothing else walks a row, it is then read once and never stored. Otherwise its threads
//! synchronise once instead of twice. Maximum and sum are folded as one value, `Online` of
//! `loop.cuh`.

use super::accuracy::shifted_exponential;
use overdrive_ir::plan::{Instr, Program, Register};
use overdrive_ir::{DType, Reducer};

/// The value that is folded beside a sum.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Online {
    /// The maximum.
    pub(super) max: Register,
    /// The elements that it is of.
    pub(super) value: Register,
}

/// The maximum that a sum can be folded with.
pub(super) fn online(program: &Program, sum: Register) -> Option<Online> {
    let Instr::Reduce(fold) = program.instr(sum) else { return None };
    let (value, max) = shifted_exponential(program, program.instr(fold.value))?;
    let single = [sum, value, max].iter().all(|r| program.dtype(*r) == DType::F32);
    (fold.reducer == Reducer::Sum && single).then_some(Online { max, value })
}
