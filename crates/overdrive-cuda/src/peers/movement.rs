//! `Movement`: a collective that only moves bytes, along axis 0, as the pass `in_blocks` leaves it.

use overdrive_ir::Prim;
use overdrive_ir::plan::{Plan, SlotId, Step};

/// The bytes that each member sends, and their places.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Movement {
    /// The operand of each member to all of them, joined in their order.
    AllGather,
    /// Part i of the operand to member i, joined in the order of senders.
    AllToAll,
    /// The operand to one member, and that of one member to here; zeros from nobody.
    Permute {
        /// Position of the member that gets the operand.
        to: Option<usize>,
        /// Position of the member whose operand comes here.
        from: Option<usize>,
    },
}

impl Movement {
    /// The movement of a primitive as the member at position `own` sees it; `None` for one that
    /// computes.
    pub(crate) fn of(prim: &Prim, own: usize) -> Option<Self> {
        match prim {
            Prim::AllGather { .. } => Some(Self::AllGather),
            Prim::AllToAll { .. } => Some(Self::AllToAll),
            Prim::Permute { pairs, .. } => {
                let to = pairs.iter().find(|(from, _)| *from == own).map(|(_, to)| *to);
                let from = pairs.iter().find(|(_, to)| *to == own).map(|(from, _)| *from);
                Some(Self::Permute { to, from })
            }
            _ => None,
        }
    }
}

/// An operand of a collective and its result. A bucket has several.
#[derive(Copy, Clone, Debug)]
pub(crate) struct CollectivePart {
    pub(crate) operand: SlotId,
    pub(crate) result: SlotId,
    /// Bytes of the operand and of the result.
    pub(crate) bytes: [usize; 2],
    /// Elements of the result.
    pub(crate) elements: usize,
}

impl CollectivePart {
    /// Those of a step.
    pub(crate) fn all(plan: &Plan, step: &Step) -> Vec<Self> {
        let part = |(&operand, &result): (&SlotId, &SlotId)| Self {
            operand,
            result,
            bytes: [operand, result].map(|slot| plan.slot(slot).bytes()),
            elements: plan.slot(result).ty.elements(),
        };
        step.reads.iter().zip(&step.writes).map(part).collect()
    }
}
