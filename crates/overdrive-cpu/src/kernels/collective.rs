//! Collectives: blocks of bytes that ranks show each other, moved or folded.
//!
//! Each rank reads the bytes of all ranks of its group and computes its own result. Invariant:
//! folds follow the order of the group, so that all ranks get the same bits in every run.
#![allow(unsafe_code)] // Slices over slots.

use super::scalar::{Scalar, for_scalar};
use crate::exec::Unsupported;
use crate::slots::SlotTable;
use overdrive_ir::plan::Step;
use overdrive_ir::{
    Communicator, DType, Exchange, Operation, Plan, Prim, RankError, Reducer, SlotId,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// A collective along axis 0, as the pass `in_blocks` leaves it.
#[derive(Debug)]
pub(crate) struct Collective {
    communicator: Arc<dyn Communicator>,
    /// The ranks that meet: of a permutation those that it ties to this one, else the whole group.
    group: Vec<usize>,
    /// Their positions in the whole group.
    positions: Vec<usize>,
    /// This rank's position in the whole group.
    position: usize,
    prim: Prim,
    dtype: DType,
    /// One, or those of a bucket.
    parts: Vec<CollectivePart>,
    /// The name that errors give it.
    what: String,
}

/// An operand and its result, with their sizes.
#[derive(Debug)]
struct CollectivePart {
    operand: (SlotId, usize),
    result: (SlotId, usize),
}

/// The positions that pairs tie to this one, over any number of them, in order.
fn tied(position: usize, pairs: &[(usize, usize)]) -> Vec<usize> {
    let mut tied = BTreeSet::from([position]);
    loop {
        let ends = pairs.iter().filter(|(a, b)| tied.contains(a) != tied.contains(b));
        let new: Vec<usize> = ends.flat_map(|&(a, b)| [a, b]).collect();
        if new.is_empty() {
            return tied.into_iter().collect();
        }
        tied.extend(new);
    }
}

impl Collective {
    /// The collective of a step.
    ///
    /// # Errors
    /// Without a communicator, and for elements that have no bytes of their own or no fold here.
    pub(crate) fn new(
        plan: &Plan,
        (step, prim): (&Step, &Prim),
        communicator: Option<&Arc<dyn Communicator>>,
    ) -> Result<Self, Unsupported> {
        let group = &prim.channel().expect("collectives have a channel").group;
        let communicator = communicator.ok_or_else(|| {
            let reason = format!(
                "it is one rank of {group}, and this back end has no way to the others: open it \
                 with `on` a communicator"
            );
            Unsupported::new(reason)
        })?;
        let sized = |slot: SlotId| (slot, plan.slot(slot).bytes());
        let part = |(&operand, &result): (&SlotId, &SlotId)| CollectivePart {
            operand: sized(operand),
            result: sized(result),
        };
        let dtype = plan.slot(step.reads[0]).ty.dtype;
        let folds = matches!(prim, Prim::AllReduce { .. } | Prim::ReduceScatter { .. });
        let is_narrow = |dtype: DType| {
            !dtype.bits().is_multiple_of(8) || dtype.is_float() && dtype.bits() == 8 && folds
        };
        if is_narrow(dtype) {
            let name = Operation::Prim(prim.clone()).name();
            let reason = format!("no `{name}` on {dtype}; convert to a wider type before it");
            return Err(Unsupported::new(reason));
        }
        let (mesh, rank) = (communicator.mesh(), communicator.rank());
        let members = mesh.group_of(rank, group);
        let position = members.iter().position(|&r| r == rank).expect("a rank is in its group");
        let positions = match prim {
            Prim::Permute { pairs, .. } => tied(position, pairs),
            _ => (0..members.len()).collect(),
        };
        Ok(Self {
            communicator: Arc::clone(communicator),
            position,
            group: positions.iter().map(|&position| members[position]).collect(),
            positions,
            prim: prim.clone(),
            dtype,
            parts: step.reads.iter().zip(&step.writes).map(part).collect(),
            what: format!("`{}` at {} of `{}`", step.name, step.scope, plan.name),
        })
    }

    /// Takes part in it.
    ///
    /// # Errors
    /// When another rank does not.
    pub(crate) fn run(&self, slots: &SlotTable) -> Result<(), RankError> {
        // SAFETY: the executor entered all slots, of these sizes, which the plan keeps apart.
        let operand =
            |part: &CollectivePart| unsafe { slots.slice::<u8>(part.operand.0, part.operand.1) };
        // SAFETY: the slots have these sizes. The plan keeps a result's bytes apart from those of
        // every slot that lives then, its operand too, and only this step writes them.
        let result =
            |part: &CollectivePart| unsafe { slots.slice_mut::<u8>(part.result.0, part.result.1) };
        if let Prim::Permute { .. } = self.prim {
            result(&self.parts[0]).fill(0);
        }
        let joined: Vec<u8>;
        let bytes = match self.parts.as_slice() {
            // Nobody looks at the bytes of a rank that only receives.
            _ if !self.shows() => &[],
            [one] => operand(one),
            several => {
                joined = several.iter().map(operand).collect::<Vec<_>>().concat();
                &joined
            }
        };
        let exchange = Exchange { group: &self.group, what: &self.what, bytes };
        self.communicator.share(&exchange, &mut |member, mut shown| {
            if let Prim::Permute { pairs, .. } = &self.prim {
                if pairs.contains(&(self.positions[member], self.position)) {
                    result(&self.parts[0]).copy_from_slice(shown);
                }
                return;
            }
            for part in &self.parts {
                let (own, rest) = shown.split_at(part.operand.1);
                self.take(member, own, result(part));
                shown = rest;
            }
        })
    }

    /// Whether another rank takes what this one shows.
    fn shows(&self) -> bool {
        match &self.prim {
            Prim::Permute { pairs, .. } => pairs.iter().any(|(from, _)| *from == self.position),
            _ => true,
        }
    }

    /// Adds the bytes that a member shows to the result.
    fn take(&self, member: usize, shown: &[u8], result: &mut [u8]) {
        let size = result.len();
        match &self.prim {
            Prim::AllReduce { reducer, .. } => self.fold(*reducer, member, (shown, result)),
            Prim::ReduceScatter { reducer, .. } => {
                let mine = &shown[self.position * size..][..size];
                self.fold(*reducer, member, (mine, result));
            }
            Prim::AllGather { .. } => {
                result[member * shown.len()..][..shown.len()].copy_from_slice(shown);
            }
            Prim::AllToAll { .. } => {
                let block = size / self.group.len();
                let mine = &shown[self.position * block..][..block];
                result[member * block..][..block].copy_from_slice(mine);
            }
            other => unreachable!("`{}` is no collective", Operation::Prim(other.clone()).name()),
        }
    }

    fn fold(&self, reducer: Reducer, member: usize, (shown, result): (&[u8], &mut [u8])) {
        if member == 0 {
            return result.copy_from_slice(shown);
        }
        for_scalar!(self.dtype, self.fold_in(reducer, shown, result))
    }

    fn fold_in<T: Scalar>(&self, reducer: Reducer, shown: &[u8], result: &mut [u8]) {
        let size = size_of::<T>();
        for (to, from) in result.chunks_exact_mut(size).zip(shown.chunks_exact(size)) {
            // SAFETY: both have the bytes of one element, at any address; bools are 0 or 1 on all
            // ranks.
            unsafe {
                let (to, from) = (to.as_mut_ptr().cast::<T>(), from.as_ptr().cast::<T>());
                let (a, b) = (to.read_unaligned().widen(), from.read_unaligned().widen());
                to.write_unaligned(T::narrow(T::combine(reducer, a, b)));
            }
        }
    }
}
