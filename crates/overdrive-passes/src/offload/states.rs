//! States that wait outside of main memory between calls.
//!
//! A state can, where a call changes it and touches it in a few steps in a row: the moments of an
//! optimizer. Those that are updated first go first: their way back hides behind later updates.

use super::candidate::OffloadCandidate;
use super::copies::{Copies, OffloadCopy, Way};
use super::ledger::Ledger;
use super::ledger::{LEAST_BYTES, OTHER};
use super::updates;
use overdrive_ir::Tuning;
use overdrive_ir::plan::{Layout, Note, Plan, Slot, SlotId, SlotPlace, Space};
use std::ops::Range;

/// Adjacent updates share a start and an end until their states have this many bytes. They may then
/// run as one launch.
const TOGETHER_BYTES: u64 = 16 << 20;

/// States that come and go together.
struct StateGroup {
    members: Vec<OffloadCandidate>,
    bytes: u64,
    steps: Range<usize>,
    /// The steps at which main memory holds them.
    held: Range<usize>,
}

/// Moves as many states as it takes, or all that can. `there`: some updates run where their states
/// wait.
pub(super) fn move_out(
    plan: &mut Plan,
    (ledger, copies): (&mut Ledger, &mut Copies),
    tuning: &Tuning,
    there: bool,
) {
    let mut waiting = candidates(plan, tuning).into_iter();
    let mut moved: Vec<OffloadCandidate> = Vec::new();
    while ledger.worst().is_some() {
        let Some(next) = waiting.next() else { break };
        ledger.remove(0..ledger.end(), next.bytes);
        // At the least it is there while it is used.
        ledger.add(next.steps.clone(), next.bytes);
        moved.push(next);
    }
    if there {
        updates::move_out(plan, &mut moved, (ledger, copies));
    }
    let mut groups = grouped(moved, ledger);
    start_early(&mut groups, ledger);
    end_late(&mut groups, ledger);
    for group in groups {
        for state in group.members {
            move_one(plan, state.update, &group.held, (&group.steps, copies));
        }
    }
}

/// In the order of their first use.
fn candidates(plan: &Plan, tuning: &Tuning) -> Vec<OffloadCandidate> {
    let mut found: Vec<OffloadCandidate> = (0..plan.updates.len())
        .filter_map(|update| candidate(plan, update))
        .filter(|state| !tuning.shared.contains(&plan.updates[state.update].0))
        .collect();
    found.sort_by_key(|state| (state.steps.start, state.update));
    found
}

fn candidate(plan: &Plan, update: usize) -> Option<OffloadCandidate> {
    let (_, old, new) = &plan.updates[update];
    let (own, bytes) = (plan.slot(*old), plan.slot(*old).bytes());
    let moves = matches!(own.place, SlotPlace::State(_))
        && matches!(plan.slot(*new).place, SlotPlace::State(_) | SlotPlace::Arena { .. })
        && plan.slot(*new).bytes() == bytes
        && own.layout == Layout::RowMajor
        && old != new
        && bytes >= LEAST_BYTES;
    let touched = || {
        let uses = |slots: &[SlotId]| slots.contains(old) || slots.contains(new);
        let steps = plan.steps.iter().enumerate();
        steps.filter(move |(_, step)| uses(&step.reads) || uses(&step.writes))
    };
    let ahead = touched().any(|(_, step)| step.prepare);
    let (first, last) = (touched().next()?.0, touched().last()?.0);
    let read_first = plan.steps[first].reads.contains(old);
    // States of the model are used from the forward to the update: keeping them out gains nothing.
    let short = (last - first) * 4 < plan.steps.len();
    (moves && !ahead && read_first && short).then(|| OffloadCandidate {
        update,
        bytes: bytes.next_multiple_of(Plan::ALIGNMENT) as u64,
        steps: first..last + 1,
    })
}

/// Joins states of steps in a row. Memory that a group holds longer than its members must fit.
fn grouped(moved: Vec<OffloadCandidate>, ledger: &mut Ledger) -> Vec<StateGroup> {
    let mut groups: Vec<StateGroup> = Vec::new();
    for state in moved {
        if let Some(last) = groups.last_mut() {
            let joined = last.steps.start..last.steps.end.max(state.steps.end);
            let near = state.steps.start <= last.steps.end;
            let (longer, before) =
                (last.steps.end..joined.end, last.steps.start..state.steps.start);
            let fits = longer.clone().all(|step| ledger.fits(step, last.bytes))
                && before.clone().all(|step| ledger.fits(step, state.bytes));
            let after = state.steps.end..joined.end;
            if near && fits && after.is_empty() && last.bytes + state.bytes <= TOGETHER_BYTES {
                ledger.add(longer, last.bytes);
                ledger.add(before, state.bytes);
                last.bytes += state.bytes;
                (last.steps, last.held) = (joined.clone(), joined);
                last.members.push(state);
                continue;
            }
        }
        let (bytes, steps, held) = (state.bytes, state.steps.clone(), state.steps.clone());
        groups.push(StateGroup { members: vec![state], bytes, steps, held });
    }
    groups
}

/// Starts each copy in as early as it must to end in time, one after another, where there is room.
fn start_early(groups: &mut [StateGroup], ledger: &mut Ledger) {
    let mut line = f64::INFINITY;
    let mut starts = vec![0.0; groups.len()];
    for (group, start) in groups.iter().zip(&mut starts).rev() {
        line = ledger.time(group.steps.start).min(line) - ledger.seconds(group.bytes);
        *start = line;
    }
    let mut earliest = 0;
    for (group, start) in groups.iter_mut().zip(starts) {
        while group.held.start > earliest
            && ledger.time(group.held.start) > start
            && ledger.fits(group.held.start - 1, group.bytes)
        {
            group.held.start -= 1;
            ledger.add(group.held.start..group.held.start + 1, group.bytes);
        }
        earliest = group.held.start;
    }
}

/// Waits for each copy out only when it should have ended, where there is room until then.
fn end_late(groups: &mut [StateGroup], ledger: &mut Ledger) {
    let mut line: f64 = 0.0;
    for group in groups {
        line = ledger.time(group.steps.end).max(line) + ledger.seconds(group.bytes);
        while group.held.end < ledger.end()
            && ledger.time(group.held.end) < line
            && ledger.fits(group.held.end, group.bytes)
        {
            ledger.add(group.held.end..group.held.end + 1, group.bytes);
            group.held.end += 1;
        }
    }
}

/// The state becomes a buffer, which is filled from its home before its first use and copied there
/// after its last.
fn move_one(
    plan: &mut Plan,
    update: usize,
    held: &Range<usize>,
    (steps, copies): (&Range<usize>, &mut Copies),
) {
    let (name, old, new) = plan.updates[update].clone();
    let home = SlotId(plan.slots.len() as u32);
    let place = SlotPlace::State(name.clone());
    plan.slots.push(Slot { place, ..plan.slot(old).clone() });
    for slot in [old, new] {
        plan.slots[slot.0 as usize].place = SlotPlace::Arena { space: Space::MAIN, offset: 0 };
    }
    plan.updates[update] = (name.clone(), home, home);
    plan.offloaded.insert(name.clone(), OTHER);
    plan.notes.push(Note::Offloaded {
        what: name.clone(),
        scope: String::new(),
        reason: "waits in other memory; comes in for the update and goes out after it".to_owned(),
    });
    let copy = |way, from, to, start, done| OffloadCopy {
        way,
        from,
        to,
        start,
        done,
        name: name.clone(),
        scope: String::new(),
    };
    copies.push(copy(Way::In, home, old, held.start, steps.start));
    copies.push(copy(Way::Out, new, home, steps.end, held.end));
}
