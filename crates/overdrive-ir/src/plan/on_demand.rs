//! `OnDemand`: transient slots in blocks that are taken as a call goes (eager mode).
//!
//! Invariant: while a step runs, every arena slot that it reads or writes lies in a block.

use super::{Plan, SlotId, Together};

/// Groups of slots, with when they come and go. `B` is a back end's block of memory.
#[derive(Debug)]
pub struct OnDemand<B> {
    groups: Vec<(Together, Option<B>)>,
    /// Per step, the groups that it is the first to touch.
    come: Vec<Vec<usize>>,
    /// Per step, the groups that it is the last to touch; the last entry is the end of the call.
    go: Vec<Vec<usize>>,
}

impl<B> OnDemand<B> {
    /// The groups of a plan, none of which has a block yet.
    pub fn new(plan: &Plan) -> Self {
        let groups = plan.groups();
        let end = plan.steps.len();
        let (mut come, mut go) = (vec![vec![]; end + 1], vec![vec![]; end + 1]);
        for (index, group) in groups.iter().enumerate() {
            come[group.first].push(index);
            go[group.last].push(index);
        }
        let groups = groups.into_iter().map(|group| (group, None)).collect();
        Self { groups, come, go }
    }

    /// Takes blocks for the groups that step `step` is the first to touch. Each slot is placed at
    /// its offset in the group's block.
    ///
    /// # Errors
    /// Those of `take`.
    pub fn before<E>(
        &mut self,
        step: usize,
        mut take: impl FnMut(usize) -> Result<B, E>,
        mut place: impl FnMut(SlotId, &B, usize),
    ) -> Result<(), E> {
        for &index in &self.come[step] {
            let (group, kept) = &mut self.groups[index];
            // A call that failed half-way left its blocks behind.
            let block = match kept.take() {
                Some(block) => block,
                None => take(group.bytes)?,
            };
            let block = &*kept.insert(block);
            group.slots.iter().for_each(|&(slot, offset)| place(slot, block, offset));
        }
        Ok(())
    }

    /// Gives back the blocks of the groups that step `step` is the last to touch; the number of
    /// steps means the end of the call.
    pub fn after(&mut self, step: usize, mut give_back: impl FnMut(B)) {
        for &index in &self.go[step] {
            if let Some(block) = self.groups[index].1.take() {
                give_back(block);
            }
        }
    }
}
