//! An allocator that counts what goes through it.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, counting. A binary that wants its heap measured declares one:
///
/// ```
/// use overdrive_bench::memory::CountingAllocator;
///
/// #[global_allocator]
/// static HEAP: CountingAllocator = CountingAllocator::new();
///
/// let before = HEAP.count();
/// let buffer = vec![0_u8; 1000];
/// assert_eq!(HEAP.count().live_bytes - before.live_bytes, buffer.len() as u64);
/// ```
///
/// Counting costs a few atomic additions an allocation; steady-state code of this project makes none.
#[derive(Debug)]
pub struct CountingAllocator {
    live_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    allocations: AtomicU64,
}

/// A reading of a [`CountingAllocator`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeapCount {
    /// Bytes allocated and not freed.
    pub live_bytes: u64,
    /// The most that were live at once since the peak was last restarted.
    pub peak_bytes: u64,
    /// Allocations made since the process began; growing one in place counts as one more.
    pub allocations: u64,
}

impl CountingAllocator {
    /// An allocator that has counted nothing yet.
    #[expect(clippy::new_without_default, reason = "it exists to initialise a static, which needs const")]
    pub const fn new() -> Self {
        Self { live_bytes: AtomicU64::new(0), peak_bytes: AtomicU64::new(0), allocations: AtomicU64::new(0) }
    }

    /// What has been counted. Other threads may allocate between the three readings.
    pub fn count(&self) -> HeapCount {
        HeapCount {
            live_bytes: self.live_bytes.load(Ordering::Relaxed),
            peak_bytes: self.peak_bytes.load(Ordering::Relaxed),
            allocations: self.allocations.load(Ordering::Relaxed),
        }
    }

    /// Lowers the peak to what is live now, and says what that is.
    pub fn restart_peak(&self) -> HeapCount {
        self.peak_bytes.store(self.live_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.count()
    }

    fn grew(&self, bytes: usize) {
        let live = self.live_bytes.fetch_add(bytes as u64, Ordering::Relaxed) + bytes as u64;
        self.peak_bytes.fetch_max(live, Ordering::Relaxed);
        self.allocations.fetch_add(1, Ordering::Relaxed);
    }

    fn shrank(&self, bytes: usize) {
        self.live_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }
}

// SAFETY: every call is passed on unchanged to the system's allocator, which upholds the contract; counting
// neither allocates nor touches the memory.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's obligations are those of `System.alloc`.
        let pointer = unsafe { System.alloc(layout) };
        if !pointer.is_null() {
            self.grew(layout.size());
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's obligations are those of `System.alloc_zeroed`.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        if !pointer.is_null() {
            self.grew(layout.size());
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` through this allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) };
        self.shrank(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the pointer came from `System` through this allocator, with this layout.
        let moved = unsafe { System.realloc(pointer, layout, new_size) };
        if !moved.is_null() {
            self.grew(new_size);
            self.shrank(layout.size());
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_peak_and_count_follow_the_calls() {
        let heap = CountingAllocator::new();
        let layout = Layout::from_size_align(1000, 64).unwrap();
        // SAFETY: the layouts have a size, and each block is freed once with the layout that it has.
        unsafe {
            let a = heap.alloc(layout);
            let b = heap.alloc_zeroed(layout);
            assert_eq!(heap.count(), HeapCount { live_bytes: 2000, peak_bytes: 2000, allocations: 2 });
            heap.dealloc(a, layout);
            assert_eq!(heap.restart_peak().peak_bytes, 1000);
            let b = heap.realloc(b, layout, 3000);
            assert_eq!(heap.count().live_bytes, 3000);
            // While a block is moved both copies may exist, so the peak counts both.
            assert_eq!(heap.count().peak_bytes, 4000);
            heap.dealloc(b, Layout::from_size_align(3000, 64).unwrap());
        }
        assert_eq!(heap.count(), HeapCount { live_bytes: 0, peak_bytes: 4000, allocations: 3 });
    }
}
