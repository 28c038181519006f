//! `Plan::verify`: proves that no step of a plan can read or write bytes too early.
//!
//! Streams and events alone (`PartialOrder`) decide what a device may do at once, so that a
//! forgotten wait is found without a device. All rules are about the bytes behind slots. A state is
//! the same bytes under all its slots, and so is a value that is updated in place.

use super::{LiveRange, Plan, SlotId, SlotPlace, StepKind};
use crate::plan::PartialOrder;
use std::collections::{HashMap, HashSet};

/// The steps that touched some bytes so far.
#[derive(Default)]
struct Uses {
    writers: Vec<usize>,
    readers: Vec<usize>,
}

impl Plan {
    /// Checks what `Plan` promises of its steps, its events and its arenas.
    ///
    /// # Errors
    /// The first step or slot that breaks it, in a sentence.
    pub fn verify(&self) -> Result<(), String> {
        let order = PartialOrder::new(self);
        self.verify_events()?;
        self.verify_spaces()?;
        self.verify_uses(&order)?;
        self.verify_arenas(&order)
    }

    fn named(&self, step: usize) -> String {
        let Some(found) = self.steps.get(step) else { return "the end of the call".to_owned() };
        format!("step {step} `{}`", found.name)
    }

    /// Each event is recorded once, before anything waits for it. A step ahead of a call is no
    /// part of it.
    fn verify_events(&self) -> Result<(), String> {
        let mut recorded = HashSet::new();
        for (index, step) in self.steps.iter().enumerate() {
            if let Some(event) = step.waits.iter().find(|event| !recorded.contains(*event)) {
                return Err(format!("{} waits for event {event} too early", self.named(index)));
            }
            if let Some(event) = step.records.filter(|event| !recorded.insert(*event)) {
                return Err(format!("{} records event {event} again", self.named(index)));
            }
            if step.prepare && (step.stream != 0 || step.records.is_some()) {
                return Err(format!("{} runs ahead, on a stream of calls", self.named(index)));
            }
        }
        Ok(())
    }

    /// A step of work touches one memory space.
    fn verify_spaces(&self) -> Result<(), String> {
        for (index, step) in self.steps.iter().enumerate().filter(|(_, step)| step.kind.is_work()) {
            let own = self.runs_in(step);
            let other = |slot: &&SlotId| self.space(**slot) != own;
            if let Some(slot) = step.reads.iter().chain(&step.writes).find(other) {
                let (step, own, found) = (self.named(index), own.0, self.space(*slot).0);
                return Err(format!("{step} runs in space {own}; s{} is in space {found}", slot.0));
            }
        }
        Ok(())
    }

    /// For each slot, the first slot of the same bytes. Slots of one state are the same bytes; so
    /// are a value that is updated in place and its new value.
    pub fn bytes_behind(&self) -> Vec<SlotId> {
        let mut states: HashMap<&str, SlotId> = HashMap::new();
        let of = |(index, shared): (usize, SlotId)| match &self.slots[index].place {
            SlotPlace::State(name) => *states.entry(name).or_insert(shared),
            _ => shared,
        };
        self.sharing().into_iter().enumerate().map(of).collect()
    }

    /// Each read comes after all writes before it in the plan. There is at least one if the bytes
    /// are the plan's own. Each write comes after all uses before it.
    fn verify_uses(&self, order: &PartialOrder) -> Result<(), String> {
        let behind = self.bytes_behind();
        let mut uses: HashMap<SlotId, Uses> = HashMap::new();
        let has_content = |slot: SlotId| {
            matches!(
                self.slot(slot).place,
                SlotPlace::Input(_) | SlotPlace::State(_) | SlotPlace::Constant(_)
            ) || self.slot(slot).bytes() == 0
        };
        let mut replaced = HashSet::new();
        // Wherever preparation stands, it ends before a call begins.
        let (ahead, called): (Vec<_>, Vec<_>) =
            self.steps.iter().enumerate().partition(|(_, step)| step.prepare);
        for (index, step) in ahead.into_iter().chain(called) {
            // The start of a copy reads and writes; its end only has the stream of work wait.
            if matches!(step.kind, StepKind::CopyDone) {
                let start = self.steps[..index].iter().rposition(|start| start.starts(step));
                if start.is_none_or(|start| !order.is_before(start, index)) {
                    let (end, slot) = (self.named(index), step.writes[0].0);
                    return Err(format!(
                        "{end} does not wait for the start of its copy to s{slot}"
                    ));
                }
                continue;
            }
            let late = |earlier: &&usize| !order.is_before(**earlier, index);
            for &slot in &step.reads {
                if replaced.contains(&slot) {
                    return Err(format!("{} reads s{} too late", self.named(index), slot.0));
                }
                let found = uses.entry(behind[slot.0 as usize]).or_default();
                if found.writers.is_empty() && !has_content(slot) {
                    return Err(format!("{} reads s{} unwritten", self.named(index), slot.0));
                }
                if let Some(&writer) = found.writers.iter().find(late) {
                    let (reader, writer) = (self.named(index), self.named(writer));
                    return Err(format!(
                        "{reader} does not wait for {writer} to write s{}",
                        slot.0
                    ));
                }
                found.readers.push(index);
            }
            for &slot in &step.writes {
                let found = uses.entry(behind[slot.0 as usize]).or_default();
                let other = |earlier: &&usize| **earlier != index && late(earlier);
                if let Some(&user) = found.writers.iter().chain(&found.readers).find(other) {
                    let (writer, user) = (self.named(index), self.named(user));
                    return Err(format!("{writer} overwrites s{} under {user}", slot.0));
                }
                found.writers.push(index);
            }
            // A value that was updated in place is gone.
            replaced.extend(step.aliases.iter().map(|(old, _)| *old));
        }
        let results = self.outputs.iter().chain(self.updates.iter().map(|(_, _, new)| new));
        let unwritten =
            |slot: &&SlotId| !has_content(**slot) && !uses.contains_key(&behind[slot.0 as usize]);
        match results.into_iter().find(unwritten) {
            Some(slot) => Err(format!("nothing writes the result s{}", slot.0)),
            None => Ok(()),
        }
    }

    /// Slots lie inside of their arenas, and share bytes only one after another.
    fn verify_arenas(&self, order: &PartialOrder) -> Result<(), String> {
        struct PlacedSlot<'a> {
            slot: SlotId,
            start: usize,
            end: usize,
            span: &'a LiveRange,
        }
        let (spans, sharing) = (order.spans(self), self.sharing());
        let mut spaces: HashMap<u8, Vec<PlacedSlot<'_>>> = HashMap::new();
        for (index, slot) in self.slots.iter().enumerate() {
            let (SlotPlace::Arena { space, offset }, Some(span)) = (&slot.place, &spans[index])
            else {
                continue;
            };
            let size = self.arena_bytes.get(usize::from(space.0)).copied().unwrap_or(0);
            let (id, end) = (SlotId(index as u32), offset + slot.bytes());
            if end > size {
                return Err(format!("s{index} ends at {end} of an arena of {size} bytes"));
            }
            // A slot of no bytes shares none, wherever it is.
            if sharing[index] == id && slot.bytes() > 0 {
                spaces.entry(space.0).or_default().push(PlacedSlot {
                    slot: id,
                    start: *offset,
                    end,
                    span,
                });
            }
        }
        for placed in spaces.values_mut() {
            placed.sort_by_key(|slot| slot.start);
            for (at, one) in placed.iter().enumerate() {
                let meets = placed[at + 1..].iter().take_while(|other| other.start < one.end);
                if let Some(other) = meets.into_iter().find(|other| !one.span.is_apart(other.span))
                {
                    let (a, b) = (one.slot.0, other.slot.0);
                    return Err(format!("s{a} and s{b} share bytes while both are in use"));
                }
            }
        }
        Ok(())
    }
}
