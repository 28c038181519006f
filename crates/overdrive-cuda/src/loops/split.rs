//! A program over few long rows as several kernels, so that all multiprocessors work on each of its
//! passes.
//!
//! A kernel does one pass over a part of each row and leaves a partial result per fold and part.
//! The next kernel folds the parts, in their order, before it goes on. Invariant: there are no
//! atomics, so that equal inputs give equal bits.

use super::stages::Stages;
use overdrive_ir::plan::{Program, Register};
use std::collections::BTreeMap;
use std::ops::Range;

/// The work of one kernel of a program.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Share {
    /// Passes over elements; the folds of earlier ones are in the workspace.
    pub(super) passes: Range<usize>,
    /// Parts of a row, each a block's; 1 for whole rows, whose folds stay in registers.
    pub(super) parts: usize,
    /// Whether it does the stores of rows.
    pub(super) rows: StoresOfRows,
}

/// Whether a kernel stores the values that a row has one of.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum StoresOfRows {
    Here,
    Later,
}

impl Share {
    /// Everything at once.
    pub(super) fn whole(stages: &Stages) -> Vec<Share> {
        vec![Share { passes: 0..stages.passes.len(), parts: 1, rows: StoresOfRows::Here }]
    }

    /// A kernel a pass, and one for the values after the last fold.
    pub(super) fn split(stages: &Stages, parts: usize) -> Vec<Share> {
        let count = stages.passes.len();
        let folds_last = stages.passes.last().is_some_and(|pass| !pass.folds.is_empty());
        let mut shares: Vec<Share> = (0..count)
            .map(|pass| {
                let last = pass + 1 == count && !folds_last;
                let rows = if last { StoresOfRows::Here } else { StoresOfRows::Later };
                Share { passes: pass..pass + 1, parts, rows }
            })
            .collect();
        if folds_last {
            shares.push(Share { passes: count..count, parts, rows: StoresOfRows::Here });
        }
        shares
    }

    /// Whether folds go through the workspace.
    pub(super) fn is_split(&self) -> bool {
        self.parts > 1
    }
}

/// Offsets of partial results in the workspace: for each fold, in bytes from its start.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Partials {
    offsets: BTreeMap<Register, usize>,
    pub(super) bytes: usize,
}

impl Partials {
    /// Room for `each` partial results of every fold.
    pub(super) fn new(program: &Program, stages: &Stages, each: usize) -> Partials {
        const ALIGNMENT: usize = 256;
        let mut partials = Partials::default();
        for register in stages.passes.iter().flat_map(|pass| &pass.folds) {
            partials.offsets.insert(*register, partials.bytes);
            let bits = program.dtype(*register).bits()
                * if stages.online.contains_key(register) { 2 } else { 1 };
            let bytes = each * bits.div_ceil(8);
            partials.bytes += bytes.next_multiple_of(ALIGNMENT);
        }
        partials
    }

    /// The address of the partial results of a fold, of type `ty`, as C++.
    pub(super) fn address(&self, ty: &str, register: Register) -> String {
        format!("reinterpret_cast<{ty}*>(workspace + {})", self.offsets[&register])
    }
}
