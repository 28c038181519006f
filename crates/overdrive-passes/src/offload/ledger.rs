//! The use of main memory at each step, and the time at which each step begins. Both are estimates,
//! made before copies are in the plan.

use overdrive_ir::plan::{PartialOrder, Plan, SlotPlace, Space};
use overdrive_ir::{Description, MemorySpace};
use std::ops::Range;

/// The memory that things wait in: the first beside the main one.
pub(super) const OTHER: Space = Space(1);

/// Smaller things stay: a copy of them takes as long as it takes to ask for it.
pub(super) const LEAST_BYTES: usize = 256 << 10;

/// Copies take up to so many times as long as their bytes say before work waits for them.
const SLACK: f64 = 2.0;

/// Bytes and times by step, and the bytes that there may be.
pub(super) struct Ledger {
    bytes: Vec<u64>,
    /// When each step begins, in seconds from the start of a call; one more for the end.
    begins: Vec<f64>,
    room: u64,
    other: MemorySpace,
}

impl Ledger {
    /// That of a plan whose buffers are placed, all work one after another.
    pub(super) fn new(plan: &Plan, device: &Description, room: u64) -> Self {
        let arena = plan.arena_bytes[0] as u64;
        let mut bytes = vec![plan.peak_bytes(Space::MAIN) - arena; plan.steps.len()];
        let (spans, sharing) = (PartialOrder::new(plan).spans(plan), plan.sharing());
        for (index, (slot, span)) in plan.slots.iter().zip(spans).enumerate() {
            // Slots that share bytes count once.
            if let (SlotPlace::Arena { .. }, Some(span), true) =
                (&slot.place, span, sharing[index].0 as usize == index)
            {
                let size = slot.bytes().next_multiple_of(Plan::ALIGNMENT) as u64;
                bytes[span.first..=span.last].iter_mut().for_each(|all| *all += size);
            }
        }
        let mut begins = vec![0.0];
        for step in &plan.steps {
            let takes = if step.prepare { 0.0 } else { plan.step_seconds(step, device) };
            begins.push(begins.last().expect("one from the start") + takes);
        }
        Self { bytes, begins, room, other: device.spaces[0].clone() }
    }

    /// The end of the call, as a step.
    pub(super) fn end(&self) -> usize {
        self.bytes.len()
    }

    /// When a step begins, in seconds.
    pub(super) fn time(&self, step: usize) -> f64 {
        self.begins[step]
    }

    /// Bytes per second of a copy.
    pub(super) fn bytes_per_second(&self) -> f64 {
        self.other.bytes_per_second
    }

    /// Bytes per second of loops in the other memory, if any run there.
    pub(super) fn loop_bytes_per_second(&self) -> Option<f64> {
        self.other.loop_bytes_per_second
    }

    /// Seconds of a copy, with slack.
    pub(super) fn seconds(&self, bytes: u64) -> f64 {
        SLACK * bytes as f64 / self.bytes_per_second()
    }

    /// The first step from `first` on that begins at `time` or later, else the end.
    pub(super) fn not_before(&self, time: f64, first: usize) -> usize {
        (first..self.end()).find(|&step| self.time(step) >= time).unwrap_or(self.end())
    }

    /// The last step up to `last` that begins at `time` or earlier, else the first one.
    pub(super) fn not_after(&self, time: f64, last: usize) -> usize {
        (0..=last).rev().find(|&step| self.time(step) <= time).unwrap_or(0)
    }

    /// The step that takes most, where that is more than there may be, and by how much.
    pub(super) fn worst(&self) -> Option<(usize, u64)> {
        let most = self.bytes.iter().copied().max()?;
        let over = most.checked_sub(self.room).filter(|&over| over > 0)?;
        self.bytes.iter().position(|&bytes| bytes == most).map(|step| (step, over))
    }

    /// Whether so many bytes more fit at a step.
    pub(super) fn fits(&self, step: usize, bytes: u64) -> bool {
        self.bytes[step].saturating_add(bytes) <= self.room
    }

    pub(super) fn add(&mut self, steps: Range<usize>, bytes: u64) {
        self.bytes[steps].iter_mut().for_each(|all| *all += bytes);
    }

    pub(super) fn remove(&mut self, steps: Range<usize>, bytes: u64) {
        self.bytes[steps].iter_mut().for_each(|all| *all = all.saturating_sub(bytes));
    }
}
