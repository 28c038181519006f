//! When collectives start and end: as early and as late as their operands and readers let them, and
//! as memory allows.
//!
//! Two kinds take memory while they are early or late. A gather of split parameters could start
//! with the step itself: all parameters would be whole at once. It starts so early that at most
//! `AHEAD` gathered values, or those of one bucket, wait for their first reader. A reduce-scatter
//! keeps its whole operand, a gradient, until it ends. It ends so late that at most `AHEAD` such
//! operands, or those of one bucket, are under way. So parameters and gradients are whole for a few
//! layers at a time (Zhao et al., "PyTorch FSDP", 2023, section 3.3). Sends between stages of a
//! pipeline, whose results nobody here reads, end like reduce-scatters.
//!
//! Sums of an exchange move too. Behind the whole backward they would hold the second hop back, and
//! right behind the first hop all work would wait for it.

use crate::meeting_order::{Ordered, keeps_order};
use crate::pipeline::is_send;
use overdrive_ir::Prim;
use overdrive_ir::plan::{Plan, Slot, SlotId, SlotPlace, Step, StepKind};
use std::collections::BTreeSet;

/// Gathered values that wait for their reader, or operands of reduce-scatters under way, however
/// large they are. They are more than two, since short products lie between long ones, and fewer
/// than the matrices of a transformer block.
pub(super) const AHEAD: usize = 4;

/// Whether one of two steps writes bytes that the other touches.
fn meet(a: &Step, b: &Step, behind: &[SlotId]) -> bool {
    a.meets(b, |x, y| behind[x.0 as usize] == behind[y.0 as usize])
}

/// Whole values that collectives hold in memory at the same time.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
struct Held {
    count: usize,
    bytes: usize,
}

impl Held {
    fn of(slots: &[Slot], slot: SlotId) -> Self {
        Self { count: 1, bytes: slots[slot.0 as usize].bytes() }
    }

    fn and(self, other: Self) -> Self {
        Self { count: self.count + other.count, bytes: self.bytes + other.bytes }
    }

    /// Whether they may be held at the same time; `most` is the bytes of a bucket.
    fn fits(self, most: usize) -> bool {
        self.count <= AHEAD || self.bytes <= most
    }
}

/// The operand that a reduce-scatter or a send between stages holds from this step on, if it is
/// the start of one.
fn scattered(slots: &[Slot], step: &Step) -> Held {
    let StepKind::CollectiveStart { prim } = &step.kind else { return Held::default() };
    // A stage that only receives has a constant for its operand.
    let is_own = matches!(slots[step.reads[0].0 as usize].place, SlotPlace::Arena { .. });
    match matches!(prim, Prim::ReduceScatter { .. }) || is_send(prim) && is_own {
        true => Held::of(slots, step.reads[0]),
        false => Held::default(),
    }
}

/// For each step, the gathered values of which it is the first reader. For each start, the same of
/// its own result, if a step reads it. A gather of what another collective brought is not held
/// back: its value takes the place of the one that was sent.
fn first_readers(plan: &Plan) -> (Vec<Held>, Vec<Held>) {
    let relayed: BTreeSet<SlotId> =
        relays(plan).into_iter().flat_map(|at| plan.steps[at].writes.clone()).collect();
    let mut readers = vec![Held::default(); plan.steps.len()];
    let mut starts = readers.clone();
    for (at, step) in plan.steps.iter().enumerate() {
        if !matches!(step.kind, StepKind::CollectiveStart { prim: Prim::AllGather { .. } }) {
            continue;
        }
        if relayed.contains(&step.reads[0]) {
            continue;
        }
        let result = step.writes[0];
        let reads = |later: &Step| later.reads.contains(&result);
        if let Some(first) = plan.steps[at + 1..].iter().position(reads) {
            let held = Held::of(&plan.slots, result);
            readers[at + 1 + first] = readers[at + 1 + first].and(held);
            starts[at] = held;
        }
    }
    (readers, starts)
}

/// Moves each start of these kinds up to what it waits for, or to where too many gathered values
/// would wait.
pub(super) fn start_early(
    plan: &mut Plan,
    behind: &[SlotId],
    (ordered, most): (Ordered, usize),
    is_wanted: fn(&Prim) -> bool,
) {
    let (mut readers, mut starts) = first_readers(plan);
    let steps = &mut plan.steps;
    for at in 0..steps.len() {
        let own = starts[at];
        if !matches!(&steps[at].kind, StepKind::CollectiveStart { prim } if is_wanted(prim)) {
            continue;
        }
        let (mut first, mut waiting) = (at, own);
        while first > 0
            && !meet(&steps[first - 1], &steps[at], behind)
            && !keeps_order(&steps[first - 1], &steps[at], ordered)
        {
            // Above its first reader a value gathered earlier still waits.
            waiting = waiting.and(readers[first - 1]);
            if own != Held::default() && !waiting.fits(most) {
                break;
            }
            first -= 1;
        }
        // Those that may start at the same place start in the order of their readers.
        while own != Held::default() && starts[first] != Held::default() && first < at {
            first += 1;
        }
        steps[first..=at].rotate_right(1);
        readers[first..=at].rotate_right(1);
        starts[first..=at].rotate_right(1);
    }
}

/// Steps that only pass on what exchanges brought: they read results of `all_to_all`, or of each
/// other. In the end what they write is gathered, or it is smaller: a sum.
fn relays(plan: &Plan) -> Vec<usize> {
    let mut brought = BTreeSet::new();
    let mut found = vec![];
    for (at, step) in plan.steps.iter().enumerate() {
        let passes_on = !is_collective(step)
            && !step.reads.is_empty()
            && step.reads.iter().all(|slot| brought.contains(slot));
        if passes_on {
            found.push(at);
        }
        if passes_on
            || matches!(step.kind, StepKind::CollectiveStart { prim: Prim::AllToAll { .. } })
        {
            brought.extend(step.writes.iter().copied());
        }
    }
    let mut sent = BTreeSet::new();
    for step in &plan.steps {
        if let StepKind::CollectiveStart { prim: Prim::AllGather { .. } } = step.kind {
            sent.extend(step.reads.iter().copied());
        }
    }
    let bytes = |slots: &[SlotId]| -> usize {
        slots.iter().map(|slot| plan.slots[slot.0 as usize].bytes()).sum()
    };
    let mut relays = vec![];
    for at in found.into_iter().rev() {
        let step = &plan.steps[at];
        let is_sum =
            matches!(step.kind, StepKind::Loop(_)) && bytes(&step.writes) < bytes(&step.reads);
        if is_sum || step.writes.iter().any(|slot| sent.contains(slot)) {
            sent.extend(step.reads.iter().copied());
            relays.push(at);
        }
    }
    relays.reverse();
    relays
}

fn is_collective(step: &Step) -> bool {
    matches!(step.kind, StepKind::CollectiveStart { .. } | StepKind::CollectiveDone { .. })
}

/// Bytes of an exchange that starts with this step.
fn exchanged(slots: &[Slot], step: &Step) -> usize {
    match step.kind {
        StepKind::CollectiveStart { prim: Prim::AllToAll { .. } } => {
            slots[step.reads[0].0 as usize].bytes()
        }
        _ => 0,
    }
}

/// Moves each step that passes on an exchange to where `lag` bytes of later exchanges have started.
/// So long its own may take to arrive. The ends of exchanges stand at their starts.
pub(super) fn relay_later(plan: &mut Plan, behind: &[SlotId], lag: usize) {
    for at in relays(plan) {
        let (steps, slots) = (&mut plan.steps, &plan.slots);
        let mut first = at;
        while first > 0 && !meet(&steps[first - 1], &steps[at], behind) {
            first -= 1;
        }
        let mut later = 0;
        while first < at && later < lag {
            later += exchanged(slots, &steps[first]);
            first += 1;
        }
        steps[first..=at].rotate_right(1);
    }
    for at in relays(plan).into_iter().rev() {
        let (steps, slots) = (&mut plan.steps, &plan.slots);
        let before = steps[..at].iter().rev().take_while(|step| !meet(step, &steps[at], behind));
        let mut later: usize = before.map(|step| exchanged(slots, step)).sum();
        let mut last = at;
        while last + 1 < steps.len() && later < lag && !meet(&steps[last + 1], &steps[at], behind) {
            last += 1;
            later += exchanged(slots, &steps[last]);
        }
        steps[at..=last].rotate_left(1);
    }
}

/// Moves each end to its start.
pub(super) fn end_at_once(plan: &mut Plan) {
    let steps = &mut plan.steps;
    for at in 0..steps.len() {
        let starts = |step: &Step| is_end(step, &steps[at]);
        if let Some(start) = steps[..at].iter().rposition(starts) {
            steps[start + 1..=at].rotate_right(1);
        }
    }
}

/// Moves each end down to what waits for it, or to where too many operands would be under way.
pub(super) fn end_late(plan: &mut Plan, behind: &[SlotId], most: usize) {
    end_at_once(plan);
    let Plan { steps, slots, .. } = plan;
    for at in (1..steps.len()).rev() {
        if !is_end(&steps[at - 1], &steps[at]) {
            continue;
        }
        let own = scattered(slots, &steps[at - 1]);
        let (mut last, mut under_way) = (at, own);
        while last + 1 < steps.len() && !meet(&steps[last + 1], &steps[at], behind) {
            under_way = under_way.and(scattered(slots, &steps[last + 1]));
            if own != Held::default() && !under_way.fits(most) {
                break;
            }
            last += 1;
        }
        steps[at..=last].rotate_left(1);
    }
}

/// Whether a collective that starts with one step ends with the other.
pub(super) fn is_end(start: &Step, end: &Step) -> bool {
    is_collective(start) && start.starts(end)
}
