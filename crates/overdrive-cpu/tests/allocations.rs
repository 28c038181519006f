//! After the first call a run allocates nothing on the heap, on any thread.
//!
//! One test in a program of its own: the allocator counts for the whole process.
#![allow(unsafe_code, clippy::unwrap_used)] // The counting allocator; a test may unwrap.

#[path = "all/support/mod.rs"]
#[allow(dead_code)] // A part is enough here.
mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use overdrive_ir::DType;
use support::{MODES, Session, models, random};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: the caller's layout is passed on as it is.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: `System` allocated the memory above, with this layout.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        // SAFETY: `System` allocated the memory above, with this layout.
        unsafe { System.realloc(start, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn after_the_first_call_a_run_allocates_nothing() {
    for (graph, shape) in [models::mlp(), models::conv(), models::transformer()] {
        for (mode, threads) in MODES.into_iter().flat_map(|mode| [(mode, 1), (mode, 2)]) {
            let input = random(DType::F32, &shape, 1).to_tensor();
            let mut session = Session::new(&graph, mode, threads, &[input]).unwrap();
            let before = ALLOCATIONS.load(Ordering::SeqCst);
            session.run().unwrap();
            let first = ALLOCATIONS.load(Ordering::SeqCst);
            for _ in 0..3 {
                session.run().unwrap();
            }
            let later = ALLOCATIONS.load(Ordering::SeqCst) - first;
            assert_eq!(later, 0, "`{}`, {mode}, {threads} threads", graph.name());
            assert!(first > before, "the first call grows scratch: the allocator counts");
        }
    }
}
