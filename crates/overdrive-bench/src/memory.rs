//! Peaks of memory, in a pass of their own that nobody times.
//!
//! A call needs its peak less the memory that was resident before it; both are kept. On the host
//! two witnesses look. A counting allocator is exact, but blind to what does not go through it. The
//! kernel's resident high-water mark is complete, but in pages.

mod heap;
mod resident;

pub use heap::{CountingAllocator, HeapCount, HeapRequest};

use overdrive_ir::backend::MemoryReport;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Memory that a call needed, by each witness that was there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryUse {
    /// The host's heap, from a counting allocator: ours, or that of the library that was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heap: Option<Peak>,
    /// Allocations made during the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocations: Option<u64>,
    /// The host's resident set, from the kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resident: Option<Peak>,
    /// Device memory outside of the driver's own context.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Peak>,
    /// The driver's own context on the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_context_bytes: Option<u64>,
    /// The arena that the plan asked for: known before anything runs, exact.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub planned_arena_bytes: Option<u64>,
}

/// A high-water mark, and the bytes in use before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Peak {
    /// Resident before the call: the model, its state, the program.
    pub before_bytes: u64,
    /// Highest during the call.
    pub peak_bytes: u64,
}

impl Peak {
    /// Bytes that the call added.
    pub fn added_bytes(&self) -> u64 {
        self.peak_bytes.saturating_sub(self.before_bytes)
    }
}

impl MemoryUse {
    /// Has a library's own allocator tell of the heap, to which ours is blind. Without its marks
    /// the heap is unknown.
    #[must_use]
    pub fn with_library(self, report: &MemoryReport) -> Self {
        let before_bytes = report.state_bytes + report.persistent_bytes;
        let added = report.transient_bytes + report.workspace_bytes;
        let heap = (added > 0).then(|| Peak { before_bytes, peak_bytes: before_bytes + added });
        Self { heap, allocations: None, ..self }
    }

    /// The engine does not report device memory, so the memory of the call is unknown.
    #[must_use]
    pub fn unknown_on_device(self) -> Self {
        Self { heap: None, allocations: None, ..self }
    }

    /// Adds the memory that an executable reports for its device. That is the high-water mark of
    /// the arena or the pool in its last call, on top of the bytes kept between calls.
    #[must_use]
    pub fn with_device(self, report: &MemoryReport) -> Self {
        let before_bytes = report.state_bytes + report.persistent_bytes;
        let peak_bytes = before_bytes + report.transient_bytes + report.workspace_bytes;
        let device = Some(Peak { before_bytes, peak_bytes });
        Self { device, device_context_bytes: report.context_bytes, ..self }
    }
}

/// Runs `call` between two readings of every witness. Pass the process's allocator if it counts.
///
/// The resident mark is absent where the kernel does not let it be reset: the old mark would be a
/// wrong answer.
pub fn peak_during<T>(
    heap: Option<&CountingAllocator>,
    call: impl FnOnce() -> T,
) -> (T, MemoryUse) {
    let resident_before = resident::reset_high_water_mark();
    let heap_before = heap.map(|heap| (heap, heap.restart_peak()));
    let result = call();
    let counted = heap_before.map(|(heap, before)| (before, heap.count()));
    let resident_peak = resident_before.and_then(|_| resident::high_water_mark_bytes());
    let memory = MemoryUse {
        heap: counted.map(|(before, after)| Peak {
            before_bytes: before.live_bytes,
            peak_bytes: after.peak_bytes,
        }),
        allocations: counted.map(|(before, after)| after.allocations - before.allocations),
        resident: resident_before
            .zip(resident_peak)
            .map(|(before_bytes, peak_bytes)| Peak { before_bytes, peak_bytes }),
        ..MemoryUse::default()
    };
    (result, memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, since the mark belongs to the whole process: two would reset it under each other.
    #[test]
    fn the_kernel_sees_a_buffer_that_is_gone_again_and_forgets_it_when_told() {
        let (sum, memory) = peak_during(None, || {
            let buffer = vec![1_u8; 32 << 20];
            std::hint::black_box(&buffer).iter().map(|&byte| u64::from(byte)).sum::<u64>()
        });
        assert_eq!(sum, 32 << 20);
        assert!(memory.heap.is_none() && memory.allocations.is_none());
        let ((), again) = peak_during(None, || ());
        match memory.resident.zip(again.resident) {
            Some((first, second)) => {
                assert!(first.added_bytes() >= 30 << 20, "{first:?}");
                assert!(second.added_bytes() < 16 << 20, "{second:?}");
            }
            None => {
                eprintln!("SKIPPED: this kernel does not let the resident high-water mark be reset")
            }
        }
    }
}
