//! The pool's promises: every task once, panics surface, nothing is allocated, nesting is refused.
//! A program of its own: the allocator counts for the whole process.
#![allow(missing_docs, unsafe_code, clippy::unwrap_used)] // A counting allocator; helpers of tests.

use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use overdrive_cpu::threads::Pool;

struct Counting;
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: forwards to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's layout is passed on as it is.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `System` allocated the memory above, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

fn pool(threads: usize) -> Pool {
    Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap()
}

/// One test, because the allocation count is the process's: a neighbour on another thread would
/// disturb it.
#[test]
fn the_pool_keeps_its_promises() {
    every_task_runs_exactly_once();
    a_panic_surfaces_and_the_pool_survives();
    callers_on_several_threads_take_turns();
    nothing_is_allocated_by_a_run();
}

fn every_task_runs_exactly_once() {
    for threads in [1, 2, 3, 5] {
        let pool = pool(threads);
        for tasks in [0, 1, 2, 7, 1000] {
            let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
            let busy: Vec<AtomicUsize> = (0..threads).map(|_| AtomicUsize::new(0)).collect();
            pool.run(tasks, |i, worker| {
                assert_eq!(
                    busy[worker.index].fetch_add(1, Ordering::SeqCst),
                    0,
                    "an index is held once"
                );
                let bytes = worker.scratch.bytes(100 + i);
                assert_eq!((bytes.len(), bytes.as_ptr() as usize % 64), (100 + i, 0));
                bytes.fill(i as u8);
                assert!(bytes.iter().all(|&b| b == i as u8), "scratch is this worker's alone");
                counts[i].fetch_add(1, Ordering::Relaxed);
                busy[worker.index].fetch_sub(1, Ordering::SeqCst);
            });
            assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
        }
        // Workers that sleep are woken: longer than any spin.
        std::thread::sleep(std::time::Duration::from_millis(5));
        let started = std::sync::Barrier::new(threads);
        pool.run(threads, |_, _| {
            started.wait();
        });
    }
}

fn a_panic_surfaces_and_the_pool_survives() {
    for threads in [1, 3] {
        let pool = pool(threads);
        let run = || pool.run(100, |i, _| assert!(i != 37, "task 37"));
        let payload = catch_unwind(AssertUnwindSafe(run)).expect_err("the panic surfaces");
        assert!(payload.downcast_ref::<&str>().unwrap().contains("task 37"));
        let nested = || pool.run(2, |_, _| pool.run(2, |_, _| {}));
        catch_unwind(AssertUnwindSafe(nested)).expect_err("a nested run is refused");
        let sum = AtomicUsize::new(0);
        pool.run(10, |i, _| {
            sum.fetch_add(i, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 45);
    }
}

fn callers_on_several_threads_take_turns() {
    let pool = pool(2);
    let sum = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..200 {
                    pool.run(8, |i, _| {
                        sum.fetch_add(i, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(sum.into_inner(), 3 * 200 * 28);
}

fn nothing_is_allocated_by_a_run() {
    let pool = pool(3);
    pool.reserve_scratch(4096);
    let run = || {
        pool.run(64, |_, worker| {
            worker.scratch.bytes(4096);
        });
    };
    run();
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    for _ in 0..100 {
        run();
    }
    assert_eq!(ALLOCATIONS.load(Ordering::SeqCst), before);
}
