//! An allocator that counts the bytes allocated through it.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

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
/// Threads count apart, since one place for all would have them wait for each other. Planning on
/// ten threads took 140 s of CPU time so, and takes 26. Live bytes and allocations are exact. The
/// peak is exact while one thread allocates; beside others it may be off by 64 KiB a thread.
#[derive(Debug)]
pub struct CountingAllocator {
    shards: [Shard; SHARDS],
    /// Live bytes that the shards have handed over.
    live_bytes: AtomicI64,
    /// The most bytes that were found live at once.
    peak_bytes: AtomicI64,
    guard: Option<fn(HeapRequest)>,
}

/// Places where threads count, which are given out in turns.
const SHARDS: usize = 32;
/// Bytes more or less, from which on a shard hands over.
const MOST: i64 = 64 << 10;

/// The counts of some threads, in cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    /// Bytes allocated less bytes freed since it last handed over.
    bytes: AtomicI64,
    /// The most that they were since then.
    most_bytes: AtomicI64,
    allocations: AtomicU64,
}

impl Shard {
    const fn new() -> Self {
        let (bytes, most_bytes) = (AtomicI64::new(0), AtomicI64::new(0));
        Self { bytes, most_bytes, allocations: AtomicU64::new(0) }
    }
}

thread_local! {
    /// The shard of this thread, once it has one.
    static SHARD: Cell<Option<usize>> = const { Cell::new(None) };
}

/// The shard of this thread.
fn own_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let of = |shard: &Cell<Option<usize>>| {
        shard.get().unwrap_or_else(|| {
            let new = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
            shard.set(Some(new));
            new
        })
    };
    SHARD.try_with(of).unwrap_or(0)
}

/// Requests that a guard of the allocator sees, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeapRequest {
    /// A request that is large, before the system is asked: it may promise memory that it does not
    /// have.
    Large(u64),
    /// A request of any size that the system refused. Whoever made it would abort.
    Refused(u64),
}

/// From this size on, the guard checks the free memory of the system, which takes some
/// microseconds.
const LARGE_BYTES: usize = 64 << 20;

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
    #[expect(
        clippy::new_without_default,
        reason = "it exists to initialise a static, which needs const"
    )]
    pub const fn new() -> Self {
        let (live_bytes, peak_bytes) = (AtomicI64::new(0), AtomicI64::new(0));
        Self { shards: [const { Shard::new() }; SHARDS], live_bytes, peak_bytes, guard: None }
    }

    /// The same with a guard, which may end the process. It may allocate, and is told of that too.
    pub const fn guarded(guard: fn(HeapRequest)) -> Self {
        Self { guard: Some(guard), ..Self::new() }
    }

    fn ask(&self, bytes: usize) {
        if let Some(guard) = self.guard.filter(|_| bytes >= LARGE_BYTES) {
            guard(HeapRequest::Large(bytes as u64));
        }
    }

    fn refused(&self, bytes: usize) {
        if let Some(guard) = self.guard {
            guard(HeapRequest::Refused(bytes as u64));
        }
    }

    /// The counts so far. Other threads may allocate between the readings.
    pub fn count(&self) -> HeapCount {
        let read = |count: &AtomicI64| count.load(Ordering::Relaxed);
        let handed_over = read(&self.live_bytes);
        let live = handed_over + self.shards.iter().map(|shard| read(&shard.bytes)).sum::<i64>();
        let most = self.shards.iter().map(|shard| read(&shard.most_bytes)).max().unwrap_or(0);
        let peak = read(&self.peak_bytes).max(handed_over + most).max(live);
        let allocations = self.shards.iter().map(|shard| shard.allocations.load(Ordering::Relaxed));
        HeapCount {
            live_bytes: live.max(0).cast_unsigned(),
            peak_bytes: peak.max(0).cast_unsigned(),
            allocations: allocations.sum(),
        }
    }

    /// Lowers the peak to what is live now, and says what that is.
    pub fn restart_peak(&self) -> HeapCount {
        self.shards.iter().for_each(|shard| self.hand_over(shard));
        self.peak_bytes.store(self.live_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        self.count()
    }

    /// Adds what a shard has counted to what is live, and sees whether that was a peak.
    fn hand_over(&self, shard: &Shard) {
        let bytes = shard.bytes.swap(0, Ordering::Relaxed);
        let most = shard.most_bytes.swap(0, Ordering::Relaxed).max(bytes);
        let before = self.live_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.peak_bytes.fetch_max(before + most, Ordering::Relaxed);
    }

    fn grew(&self, bytes: usize) {
        let (shard, bytes) = (&self.shards[own_shard()], bytes as i64);
        let now = shard.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        shard.allocations.fetch_add(1, Ordering::Relaxed);
        if now > shard.most_bytes.load(Ordering::Relaxed) {
            shard.most_bytes.fetch_max(now, Ordering::Relaxed);
        }
        if now >= MOST {
            self.hand_over(shard);
        }
    }

    fn shrank(&self, bytes: usize) {
        let (shard, bytes) = (&self.shards[own_shard()], bytes as i64);
        if shard.bytes.fetch_sub(bytes, Ordering::Relaxed) - bytes <= -MOST {
            self.hand_over(shard);
        }
    }
}

// SAFETY: every call is passed on unchanged to the system's allocator, which upholds the contract.
// Counting neither allocates nor touches the memory. A guard returns or ends the process; it does
// not unwind.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.ask(layout.size());
        // SAFETY: the caller's obligations are those of `System.alloc`.
        let pointer = unsafe { System.alloc(layout) };
        match pointer.is_null() {
            true => self.refused(layout.size()),
            false => self.grew(layout.size()),
        }
        pointer
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.ask(layout.size());
        // SAFETY: the caller's obligations are those of `System.alloc_zeroed`.
        let pointer = unsafe { System.alloc_zeroed(layout) };
        match pointer.is_null() {
            true => self.refused(layout.size()),
            false => self.grew(layout.size()),
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `System` through this allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) };
        self.shrank(layout.size());
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        self.ask(new_size.saturating_sub(layout.size()));
        // SAFETY: the pointer came from `System` through this allocator, with this layout.
        let moved = unsafe { System.realloc(pointer, layout, new_size) };
        if moved.is_null() {
            self.refused(new_size);
        } else {
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
        // SAFETY: the layouts have a size, and each block is freed once with the layout that it
        // has.
        unsafe {
            let a = heap.alloc(layout);
            let b = heap.alloc_zeroed(layout);
            assert_eq!(
                heap.count(),
                HeapCount { live_bytes: 2000, peak_bytes: 2000, allocations: 2 }
            );
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

    /// Threads that allocate at once, blocks that another thread frees, and threads in turns.
    #[test]
    fn threads_count_together() {
        let heap = CountingAllocator::new();
        let layout = Layout::from_size_align(MOST as usize, 64).unwrap();
        // SAFETY: the layout has a size, and each block is freed once with it.
        let take = || unsafe { heap.alloc(layout) } as usize;
        // SAFETY: as above.
        let free = |block: usize| unsafe { heap.dealloc(block as *mut u8, layout) };
        let all = 4 * MOST as u64;
        for round in 1..=3 {
            let blocks: Vec<usize> = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let allocations = 4 * round;
            let full = HeapCount { live_bytes: all, peak_bytes: all, allocations };
            assert_eq!(heap.count(), full);
            blocks.into_iter().for_each(free);
            assert_eq!(heap.count(), HeapCount { live_bytes: 0, ..full });
        }
        assert_eq!(heap.restart_peak().peak_bytes, 0);
        std::thread::scope(|scope| scope.spawn(|| free(take())).join().unwrap());
        let block = take();
        assert_eq!(heap.count().peak_bytes, MOST as u64);
        free(block);
        assert_eq!(heap.count().peak_bytes, MOST as u64);
    }

    #[test]
    fn a_guard_hears_of_large_requests_and_of_refused_ones() {
        static TOLD: AtomicU64 = AtomicU64::new(0);
        let heap = CountingAllocator::guarded(|request| match request {
            HeapRequest::Large(bytes) => TOLD.store(bytes, Ordering::Relaxed),
            HeapRequest::Refused(bytes) => TOLD.store(bytes + 1, Ordering::Relaxed),
        });
        let told = |size: usize| {
            TOLD.store(0, Ordering::Relaxed);
            let layout = Layout::from_size_align(size, 8).unwrap();
            // SAFETY: the layout has a size, and what was allocated is freed once with it.
            unsafe {
                // A block that nobody looks at may never be asked for: compilers leave such pairs
                // out.
                let block = std::hint::black_box(heap.alloc(layout));
                if !block.is_null() {
                    heap.dealloc(block, layout);
                }
            }
            TOLD.load(Ordering::Relaxed) as usize
        };
        assert_eq!([told(1000), told(LARGE_BYTES)], [0, LARGE_BYTES]);
        assert_eq!(told(1 << 60), (1 << 60) + 1);
    }
}
