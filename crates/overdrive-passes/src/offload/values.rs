//! Values that wait outside of main memory between two uses far apart: what the forward hands to
//! the backward.
//!
//! If a step needs too much memory, the value that was used longest ago is moved out first, since
//! it is needed last. Invariant: a value that comes back has a new slot, so that the bytes of the
//! first slot are free in between.

use super::copies::{Copies, OffloadCopy, Way};
use super::ledger::Ledger;
use super::ledger::{LEAST_BYTES, OTHER};
use overdrive_ir::plan::{Note, Plan, Slot, SlotId, SlotPlace};
use std::collections::BTreeSet;

/// A value, with the last step of its first uses and the first of the others.
struct Gap {
    slot: SlotId,
    bytes: u64,
    before: usize,
    after: usize,
}

/// Moves values until every step fits, or none is left that helps.
pub(super) fn move_out(plan: &mut Plan, (ledger, copies): (&mut Ledger, &mut Copies)) {
    let mut moved: BTreeSet<SlotId> = copies.slots().collect();
    // When the link is free again after the copies out, and until when it is free before the copies
    // in.
    let (mut out, mut back) = (0.0f64, f64::INFINITY);
    let uses = uses(plan);
    while let Some((worst, _)) = ledger.worst() {
        let Some(gap) = longest(plan, &uses, worst, &moved) else { break };
        moved.insert(gap.slot);
        let takes = ledger.seconds(gap.bytes);
        out = ledger.time(gap.before + 1).max(out) + takes;
        back = ledger.time(gap.after).min(back) - takes;
        let gone = ledger.not_before(out, gap.before + 1).min(worst);
        let comes = ledger.not_after(back, gap.after).max(worst + 1);
        ledger.remove(gone..comes, gap.bytes);
        move_one(plan, &gap, (gone, comes), copies);
    }
}

/// The steps that touch each slot.
fn uses(plan: &Plan) -> Vec<Vec<usize>> {
    let mut uses = vec![Vec::new(); plan.slots.len()];
    for (index, step) in plan.steps.iter().enumerate() {
        let touched: BTreeSet<SlotId> = step.reads.iter().chain(&step.writes).copied().collect();
        touched.into_iter().for_each(|slot| uses[slot.0 as usize].push(index));
    }
    uses
}

/// The value without use at a step that was used longest before.
fn longest(
    plan: &Plan,
    uses: &[Vec<usize>],
    worst: usize,
    moved: &BTreeSet<SlotId>,
) -> Option<Gap> {
    let kept = plan.updates.iter().flat_map(|(_, old, new)| [*old, *new]);
    let aliased = plan.steps.iter().flat_map(|step| &step.aliases);
    let fixed: BTreeSet<SlotId> = kept
        .chain(aliased.flat_map(|(old, new)| [*old, *new]))
        .chain(moved.iter().copied())
        .collect();
    let gaps = uses.iter().enumerate().filter_map(|(index, uses)| {
        let (id, slot) = (SlotId(index as u32), &plan.slots[index]);
        let moves = matches!(slot.place, SlotPlace::Arena { .. })
            && slot.bytes() >= LEAST_BYTES
            && !fixed.contains(&id);
        let at = uses.partition_point(|&step| step < worst);
        let (&before, &after) = (uses.get(at.checked_sub(1)?)?, uses.get(at)?);
        let bytes = slot.bytes().next_multiple_of(Plan::ALIGNMENT) as u64;
        (moves && after > worst).then_some(Gap { slot: id, bytes, before, after })
    });
    gaps.min_by_key(|gap| (gap.before, gap.slot))
}

/// The value goes to a slot elsewhere, and comes back to one of its own.
fn move_one(plan: &mut Plan, gap: &Gap, (gone, comes): (usize, usize), copies: &mut Copies) {
    let slot = plan.slot(gap.slot).clone();
    let away = SlotId(plan.slots.len() as u32);
    let again = SlotId(away.0 + 1);
    plan.slots.push(Slot { place: SlotPlace::Arena { space: OTHER, offset: 0 }, ..slot.clone() });
    plan.slots.push(slot);
    for step in &mut plan.steps[gap.after..] {
        step.rename(gap.slot, again);
    }
    let source = &plan.steps[gap.before];
    let (name, scope) = (source.name.clone(), source.scope.clone());
    plan.notes.push(Note::Offloaded {
        what: name.clone(),
        scope: scope.clone(),
        reason: format!("{} bytes wait in other memory for the backward", gap.bytes),
    });
    let copy = |way, from, to, start, done| {
        let (name, scope) = (name.clone(), scope.clone());
        OffloadCopy { way, from, to, start, done, name, scope }
    };
    copies.push(copy(Way::Out, gap.slot, away, gap.before + 1, gone));
    copies.push(copy(Way::In, away, again, comes, gap.after));
}
