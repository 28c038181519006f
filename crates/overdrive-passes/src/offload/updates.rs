//! Updates that run where their states wait, beside those of the device.
//!
//! To update a parameter, the device has its moments brought in and sent out again. The processor
//! of the other memory has them there. It needs the gradient and the parameter, and sends back the
//! parameter. Gradients leave while the backward runs, and parameters before it. So the link has
//! less to do after the backward, but that processor is slower than the device. Each takes a part,
//! and both work at once (Maurya et al., "Deep Optimizer States", 2024).
//!
//! The model: after the backward, each direction of the link and the processor take as long as
//! their bytes say, at the same time. The last updates of the plan go, as many as make the longest
//! of the three shortest. Their gradients are the first that the backward computes.
//!
//! Invariant: an update elsewhere runs the program that the device would, on copies.

use super::candidate::OffloadCandidate;
use super::copies::{Copies, OffloadCopy, Way};
use super::ledger::{LEAST_BYTES, Ledger, OTHER};
use overdrive_ir::plan::{Layout, Note, Plan, Slot, SlotId, SlotPlace, Step, StepKind};
use std::collections::{BTreeMap, BTreeSet};

/// The stream of work in other memory.
const STREAM: u16 = 4;

/// An update that can run there.
struct Update {
    step: usize,
    states: Vec<OffloadCandidate>,
    /// Slots of main memory that it reads, each with the first step before which it is complete.
    operands: Vec<(SlotId, usize)>,
    /// Slots of main memory that it writes.
    results: Vec<SlotId>,
}

impl Update {
    fn operand_bytes(&self, plan: &Plan) -> u64 {
        self.operands.iter().map(|(slot, _)| plan.slot(*slot).bytes() as u64).sum()
    }

    fn result_bytes(&self, plan: &Plan) -> u64 {
        self.results.iter().map(|slot| plan.slot(*slot).bytes() as u64).sum()
    }

    fn state_bytes(&self) -> u64 {
        self.states.iter().map(|state| state.bytes).sum()
    }

    /// When the last of its large operands is complete, as a step.
    fn ready(&self, plan: &Plan) -> usize {
        let large =
            self.operands.iter().filter(|(slot, _)| plan.slot(*slot).bytes() >= LEAST_BYTES);
        large.map(|(_, ready)| *ready).max().unwrap_or(0)
    }
}

/// Takes those of the states that wait elsewhere whose updates should run there.
pub(super) fn move_out(
    plan: &mut Plan,
    moved: &mut Vec<OffloadCandidate>,
    (ledger, copies): (&mut Ledger, &mut Copies),
) {
    let Some(rate) = ledger.loop_bytes_per_second() else { return };
    let (mut updates, others) = found(plan, std::mem::take(moved));
    *moved = others;
    let there = updates.split_off(updates.len() - best(plan, &updates, moved, (&*ledger, rate)));
    moved.extend(updates.into_iter().flat_map(|update| update.states));
    moved.sort_by_key(|state| (state.steps.start, state.update));
    if !there.is_empty() {
        let there = in_order(plan, there);
        move_all(plan, there, (ledger, copies));
    }
}

/// The updates that can run there, in the order of the plan, and the states of all others.
fn found(plan: &Plan, moved: Vec<OffloadCandidate>) -> (Vec<Update>, Vec<OffloadCandidate>) {
    let mut by_step: BTreeMap<usize, Vec<OffloadCandidate>> = BTreeMap::new();
    for state in moved {
        by_step.entry(state.steps.start).or_default().push(state);
    }
    let (mut updates, mut others) = (Vec::new(), Vec::new());
    for (step, states) in by_step {
        match operands_and_results(plan, step, &states) {
            Some((operands, results)) => {
                updates.push(Update { step, states, operands, results });
            }
            None => others.extend(states),
        }
    }
    (updates, others)
}

type Touched = (Vec<(SlotId, usize)>, Vec<SlotId>);

/// The slots of main memory that a step touches, if it can run where these states wait.
fn operands_and_results(plan: &Plan, at: usize, states: &[OffloadCandidate]) -> Option<Touched> {
    let step = &plan.steps[at];
    let StepKind::Loop(program) = &step.kind else { return None };
    let pairs = || states.iter().map(|state| &plan.updates[state.update]);
    let in_place = pairs().all(|(_, _, new)| matches!(plan.slot(*new).place, SlotPlace::State(_)));
    let alone = states.iter().all(|state| state.steps.len() == 1);
    let own: BTreeSet<SlotId> = pairs().flat_map(|(_, old, new)| [*old, *new]).collect();
    let rest = |slots: &[SlotId]| -> BTreeSet<SlotId> {
        slots.iter().copied().filter(|slot| !own.contains(slot)).collect()
    };
    let (operands, results) = (rest(&step.reads), rest(&step.writes));
    let all_plain = step.reads.iter().chain(&step.writes).all(|slot| {
        let slot = plan.slot(*slot);
        slot.layout == Layout::RowMajor && slot.ty.dtype.bits() >= 8
    });
    let goes = program.reduced == 0
        && (step.prepare, step.stream) == (false, 0)
        && (in_place, alone, all_plain) == (true, true, true)
        && operands.iter().all(|slot| stays(plan, at, *slot))
        && results.iter().all(|slot| is_new_state(plan, at, *slot));
    let complete = |slot: SlotId| {
        let writer = plan.steps[..at].iter().rposition(|step| step.writes.contains(&slot));
        (slot, writer.map_or(0, |writer| writer + 1))
    };
    goes.then(|| (operands.into_iter().map(complete).collect(), results.into_iter().collect()))
}

/// Whether no step but `at` changes the bytes of an operand of it once it is complete.
fn stays(plan: &Plan, at: usize, slot: SlotId) -> bool {
    let others = || plan.steps.iter().enumerate().filter(|(index, _)| *index != at);
    match &plan.slot(slot).place {
        SlotPlace::State(name) => {
            let of_state =
                |s: &SlotId| matches!(&plan.slot(*s).place, SlotPlace::State(own) if own == name);
            !others().any(|(_, step)| step.writes.iter().any(of_state))
        }
        SlotPlace::Arena { .. } | SlotPlace::Output(_) => others().all(|(index, step)| {
            let replaces = step.aliases.iter().any(|(old, _)| *old == slot);
            !replaces && (index < at || !step.writes.contains(&slot))
        }),
        SlotPlace::Input(_) | SlotPlace::Constant(_) | SlotPlace::Persistent { .. } => true,
    }
}

/// Whether a slot is the new value of a state that no other step touches.
fn is_new_state(plan: &Plan, at: usize, slot: SlotId) -> bool {
    let touches = |step: &Step| step.reads.contains(&slot) || step.writes.contains(&slot);
    matches!(plan.slot(slot).place, SlotPlace::State(_))
        && plan.steps.iter().enumerate().all(|(index, step)| index == at || !touches(step))
}

/// The number of updates that should run there: the last ones.
fn best(
    plan: &Plan,
    updates: &[Update],
    others: &[OffloadCandidate],
    (ledger, rate): (&Ledger, f64),
) -> usize {
    let Some(first) = updates.first() else { return 0 };
    let link = |bytes: u64| bytes as f64 / ledger.bytes_per_second();
    let moved = others.iter().chain(updates.iter().flat_map(|update| &update.states));
    let moved = link(moved.map(|state| state.bytes).sum());
    let hidden = ledger.time(first.step);
    let (mut brought, mut left, mut sent, mut work) = (moved, moved, 0.0, 0.0);
    let mut shortest = (moved, 0);
    for (count, update) in (1..).zip(updates.iter().rev()) {
        brought += link(update.result_bytes(plan)) - link(update.state_bytes());
        left -= link(update.state_bytes());
        sent += link(update.operand_bytes(plan));
        work += plan.steps[update.step].cost.bytes as f64 / rate;
        let out = left + f64::max(0.0, sent - hidden);
        let longest = brought.max(out).max(work);
        if longest < shortest.0 {
            shortest = (longest, count);
        }
    }
    shortest.1
}

/// The updates in the order in which their gradients are complete, each at the place of another of
/// them. If one would come before its operands, they stay as they stand in the plan.
fn in_order(plan: &mut Plan, updates: Vec<Update>) -> Vec<Update> {
    let places: Vec<usize> = updates.iter().map(|update| update.step).collect();
    let mut order: Vec<usize> = (0..updates.len()).collect();
    order.sort_by_key(|&index| updates[index].ready(plan));
    let complete = |update: &Update| update.operands.iter().map(|(_, ready)| *ready).max();
    let moves = order.iter().zip(&places);
    if moves.into_iter().any(|(&index, &place)| complete(&updates[index]) > Some(place)) {
        return updates;
    }
    let steps: Vec<Step> = places.iter().map(|&place| plan.steps[place].clone()).collect();
    for (&index, &place) in order.iter().zip(&places) {
        plan.steps[place] = steps[index].clone();
    }
    let mut updates: Vec<Option<Update>> = updates.into_iter().map(Some).collect();
    let ordered = order.into_iter().zip(places);
    let ordered = ordered.filter_map(|(index, step)| {
        let update = updates[index].take()?;
        Some(Update { step, ..update })
    });
    ordered.collect()
}

/// Has the updates run there, on copies of what they read in main memory.
fn move_all(plan: &mut Plan, updates: Vec<Update>, (ledger, copies): (&mut Ledger, &mut Copies)) {
    let last = updates.iter().map(|update| update.step).max().unwrap_or(0);
    let end = ledger.end();
    let mut shared: BTreeMap<SlotId, SlotId> = BTreeMap::new();
    // When the link is free again: after the operands that are there from the start, and after
    // those that steps compute.
    let (mut early, mut late) = (0.0, 0.0f64);
    for update in updates {
        note(plan, &update);
        for state in &update.states {
            ledger.remove(state.steps.clone(), state.bytes);
            let name = plan.updates[state.update].0.clone();
            let reason = "waits in other memory, and its update runs there".to_owned();
            plan.offloaded.insert(name.clone(), OTHER);
            plan.notes.push(Note::Offloaded { what: name, scope: String::new(), reason });
        }
        let mut step = plan.steps[update.step].clone();
        for &(slot, ready) in &update.operands {
            let replaced = step.aliases.iter().any(|(old, _)| *old == slot);
            if let Some(&known) = shared.get(&slot).filter(|_| !replaced) {
                step.rename(slot, known);
                continue;
            }
            let there = elsewhere(plan, slot);
            step.rename(slot, there);
            if !replaced {
                shared.insert(slot, there);
            }
            let bytes = plan.slot(slot).bytes() as u64;
            let takes = bytes as f64 / ledger.bytes_per_second();
            let (start, done) = match ready {
                _ if (bytes as usize) < LEAST_BYTES => (ready, end),
                0 => {
                    let start = ledger.not_before(early, 0).min(update.step);
                    early += takes;
                    (start, end)
                }
                _ => {
                    late = ledger.time(ready).max(late) + ledger.seconds(bytes);
                    let soon = ledger.not_before(late, ready);
                    let over = (ready..soon).find(|&step| !ledger.fits(step, 0));
                    let soon = over.unwrap_or(soon);
                    (ready, freed(plan, (slot, bytes), (update.step, soon), ledger))
                }
            };
            copies.push(copy(plan, (Way::Out, slot, there), (start, done), &update));
        }
        for &slot in &update.results {
            let there = elsewhere(plan, slot);
            step.rename(slot, there);
            copies.push(copy(plan, (Way::In, there, slot), (last + 1, end), &update));
        }
        (step.stream, step.scratch_bytes) = (STREAM, 0);
        plan.steps[update.step] = step;
    }
}

/// A slot in other memory for the content of one in main memory.
fn elsewhere(plan: &mut Plan, slot: SlotId) -> SlotId {
    let there = SlotId(plan.slots.len() as u32);
    let place = SlotPlace::Arena { space: OTHER, offset: 0 };
    plan.slots.push(Slot { place, ..plan.slot(slot).clone() });
    there
}

/// The step before which the copy of an operand should have ended, at `soon` or before the room for
/// it ends. It stays until then, and while other steps read it, but not for its update.
fn freed(
    plan: &Plan,
    (slot, bytes): (SlotId, u64),
    (update, soon): (usize, usize),
    ledger: &mut Ledger,
) -> usize {
    if soon <= update {
        let reads = |step: &Step| step.reads.contains(&slot);
        let read = plan.steps[..update].iter().rposition(reads).map_or(soon, |last| last + 1);
        ledger.remove(soon.max(read)..update + 1, bytes);
        return soon;
    }
    let full = (update + 1..soon).find(|&step| !ledger.fits(step, bytes));
    let done = full.unwrap_or(soon);
    ledger.add(update + 1..done, bytes);
    done
}

fn copy(
    plan: &Plan,
    (way, from, to): (Way, SlotId, SlotId),
    (start, done): (usize, usize),
    update: &Update,
) -> OffloadCopy {
    let main = if way == Way::Out { from } else { to };
    let step = &plan.steps[update.step];
    let (name, scope) = match &plan.slot(main).place {
        SlotPlace::State(name) => (name.clone(), String::new()),
        _ => (format!("operand of {}", step.name), step.scope.clone()),
    };
    OffloadCopy { way, from, to, start, done, name, scope }
}

fn note(plan: &mut Plan, update: &Update) {
    let step = &plan.steps[update.step];
    let (out, back) = (update.operand_bytes(plan), update.result_bytes(plan));
    let states = update.state_bytes();
    let reason = format!(
        "{out} bytes go there and {back} come back; its states would take {states} each way"
    );
    let (step, scope) = (step.name.clone(), step.scope.clone());
    plan.notes.push(Note::RunsThere { step, scope, reason });
}
