//! A pool with a fixed number of threads, made for parallel loops of a few microseconds.
//!
//! A run is an atomic counter that the workers draw task indices from until none is left. The
//! caller is worker 0. So a pool of one spawns nothing and runs inline, and no pool ever has more
//! busy threads than requested. Idle workers spin for some tens of microseconds, which covers the
//! gap between two steps of a model, and then sleep.
//!
//! A run never waits for a worker that has not come. Workers *join* an open run. When the counter
//! is exhausted, the caller *closes* the run and waits only for the workers inside. On a machine
//! whose cores are taken, a late worker costs its help and nothing else.
//!
//! Invariants:
//!
//! - A run allocates nothing.
//! - A worker index is held by one thread at a time.
//! - When `run` returns, no thread is inside the closure.
//! - A panic in a task surfaces in the caller.
#![allow(unsafe_code)] // One closure is lent to other threads for the length of a run; see `Job`.

mod apart;
mod parts;
mod scratch;

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::isa::InstructionSet;

pub(crate) use apart::Apart;
pub(crate) use parts::{PlacedParts, ScratchParts};
pub use scratch::Scratch;

/// Turns of the spin loop before a thread sleeps: about 50 us where `pause` takes 140 cycles (Intel
/// since Skylake), about 15 us elsewhere.
const SPINS: u32 = 1200;

/// The gate of a run, in one word so that "is it open" and "count me in" are a single
/// compare-and-swap. The word has the run number in the high half, workers inside in units of
/// `JOINED`, and two flags.
const OPEN: u64 = 1;
const CALLER_SLEEPS: u64 = 2;
const JOINED: u64 = 4;
const RUN: u64 = 1 << 32;

const fn inside(gate: u64) -> u64 {
    (gate & (RUN - 1)) / JOINED
}

thread_local! {
    /// Set while this thread executes a task: a nested run would wait for itself.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

/// The facts that a task knows about the thread that executes it.
#[derive(Debug)]
pub struct Worker<'a> {
    /// In `0..pool.threads()`; no two tasks that execute at the same time see the same index.
    pub index: usize,
    /// Memory that belongs to this worker; its content is whatever an earlier task left.
    pub scratch: &'a mut Scratch,
}

type TaskFn<'a> = dyn Fn(usize, &mut Worker<'_>) + Sync + 'a;

/// The run that is open. The closure's lifetime is erased: it is dereferenced by threads that have
/// joined, and `Pool::run` returns only after the last of them has left.
#[derive(Clone, Copy)]
struct Job {
    task: *const TaskFn<'static>,
    tasks: usize,
}

/// On its own cache line: neighbours are written by different threads.
#[repr(align(128))]
struct Seat(UnsafeCell<Scratch>);

struct PoolState {
    gate: AtomicU64,
    next: AtomicUsize,
    job: UnsafeCell<Option<Job>>,
    seats: Box<[Seat]>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleepers: AtomicUsize,
    shutdown: AtomicBool,
    /// Guards no data: it closes the window between "nothing to do" and falling asleep.
    sleep: Mutex<()>,
    opened: Condvar,
    emptied: Condvar,
}

// SAFETY: `job` is written by the one caller that holds `Pool::turn` while the gate is closed and
// empty. It is read by threads that passed the gate afterwards. `seats[i]` is touched by the thread
// with index `i` alone.
unsafe impl Sync for PoolState {}
// SAFETY: the raw pointer in `job` is to a closure that is `Sync`.
unsafe impl Send for PoolState {}

/// A fixed set of threads; see the module documentation.
pub struct Pool {
    shared: Arc<PoolState>,
    handles: Vec<JoinHandle<()>>,
    /// One run at a time; callers on several threads queue here.
    turn: Mutex<()>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish()
    }
}

impl Pool {
    /// A pool of `threads` workers, the caller of [`run`](Self::run) included. The instruction set
    /// in force here stays in force on the threads that it starts.
    ///
    /// # Errors
    /// The operating system's, when it refuses to start a thread.
    pub fn new(threads: NonZeroUsize) -> std::io::Result<Self> {
        let shared = Arc::new(PoolState {
            gate: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            job: UnsafeCell::new(None),
            seats: (0..threads.get()).map(|_| Seat(UnsafeCell::new(Scratch::default()))).collect(),
            panic: Mutex::new(None),
            sleepers: AtomicUsize::new(0),
            shutdown: AtomicBool::new(false),
            sleep: Mutex::new(()),
            opened: Condvar::new(),
            emptied: Condvar::new(),
        });
        // The pool exists before its threads do, so that a refused thread ends those already
        // started.
        let mut pool =
            Self { shared, handles: Vec::with_capacity(threads.get() - 1), turn: Mutex::new(()) };
        let set = InstructionSet::in_force();
        for index in 1..threads.get() {
            let shared = Arc::clone(&pool.shared);
            let thread = std::thread::Builder::new().name(format!("overdrive-cpu-{index}"));
            pool.handles.push(thread.spawn(move || set.during(|| shared.serve(index)))?);
        }
        // Starting a thread allocates: meet them all, so that no later run sees it happen.
        let met = Barrier::new(threads.get());
        pool.run(threads.get(), |_, _| {
            met.wait();
        });
        Ok(pool)
    }

    /// How many tasks can execute at the same time.
    pub fn threads(&self) -> usize {
        self.shared.seats.len()
    }

    /// Calls `task(i, worker)` once for each `i` in `0..tasks`, in any order and on any worker, and
    /// returns when all have finished.
    ///
    /// # Panics
    /// With a task's own panic, after the tasks in flight have ended; and when called from within a
    /// task.
    pub fn run(&self, tasks: usize, task: impl Fn(usize, &mut Worker<'_>) + Sync) {
        if tasks == 0 {
            return;
        }
        assert!(
            !IN_TASK.get(),
            "a task of a pool may not start another run: it would wait for itself"
        );
        let turn = lock(&self.turn);
        let shared = &*self.shared;
        let task: &TaskFn<'_> = &task;
        // SAFETY: only the lifetime changes, and `close` below waits for every thread that could
        // see `job`.
        let task: *const TaskFn<'static> = unsafe { std::mem::transmute(task) };
        let job = Job { task, tasks };
        shared.next.store(0, Ordering::Relaxed);
        let helped = !self.handles.is_empty() && tasks > 1;
        if helped {
            // SAFETY: the gate is closed and empty, so that no other thread reads `job`.
            unsafe { *shared.job.get() = Some(job) };
            shared.open(tasks - 1);
        }
        // SAFETY: `turn` is held, so this thread alone is worker 0.
        unsafe { shared.work(0, job) };
        if helped {
            shared.close();
        }
        drop(turn);
        if let Some(payload) = lock(&shared.panic).take() {
            resume_unwind(payload);
        }
    }

    /// Most bytes of scratch that a task has asked for since the last look, times the workers.
    /// These tasks need as much, whatever others have left.
    pub fn take_asked(&self) -> usize {
        let _turn = lock(&self.turn);
        // SAFETY: `turn` is held and the gate is closed and empty: no worker touches its seat.
        let asked = self.shared.seats.iter().map(|seat| unsafe { (*seat.0.get()).take_asked() });
        asked.max().unwrap_or(0) * self.threads()
    }

    /// Grows every worker's scratch to that of the worker with the most. So after a run of each
    /// kind, no worker has to grow its own in a later run.
    pub fn level_scratch(&self) {
        let most = {
            let _turn = lock(&self.turn);
            // SAFETY: `turn` is held and the gate is closed and empty: no worker touches its seat.
            self.shared.seats.iter().map(|seat| unsafe { (*seat.0.get()).len() }).max()
        };
        self.reserve_scratch(most.unwrap_or(0));
    }

    /// Grows every worker's scratch to at least `bytes`, so that no later task has to.
    pub fn reserve_scratch(&self, bytes: usize) {
        let _turn = lock(&self.turn);
        for seat in &self.shared.seats {
            // SAFETY: `turn` is held and the gate is closed and empty: no worker touches its seat.
            unsafe { (*seat.0.get()).bytes(bytes) };
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.shutdown.store(true, Ordering::SeqCst);
        drop(lock(&self.shared.sleep));
        self.shared.opened.notify_all();
        for handle in self.handles.drain(..) {
            handle.join().expect("a worker catches the panics of its tasks");
        }
    }
}

/// No mutex of this module guards data that a panic could leave half-written.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PoolState {
    /// Draws tasks until none is left, or one has panicked.
    ///
    /// # Safety
    /// The calling thread alone holds `index`, and `job.task` is alive until it returns.
    unsafe fn work(&self, index: usize, job: Job) {
        // SAFETY: `job.task` lives until this returns, and the calling thread alone holds seat
        // `index`.
        let (task, scratch) = unsafe { (&*job.task, &mut *self.seats[index].0.get()) };
        let mut worker = Worker { index, scratch };
        IN_TASK.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| {
            loop {
                let i = self.next.fetch_add(1, Ordering::Relaxed);
                if i >= job.tasks {
                    break;
                }
                task(i, &mut worker);
            }
        }));
        IN_TASK.set(false);
        if let Err(payload) = result {
            self.next.store(job.tasks, Ordering::Relaxed);
            lock(&self.panic).get_or_insert(payload);
        }
    }

    /// Lets workers in and wakes at most `helpers` of those that sleep.
    fn open(&self, helpers: usize) {
        let run = (self.gate.load(Ordering::Relaxed) / RUN).wrapping_add(1) % (u64::MAX / RUN);
        self.gate.store(run * RUN + OPEN, Ordering::SeqCst);
        // Either this load sees a worker that is falling asleep, or that worker sees the open gate.
        // Both sides write, then read, in one total order.
        let sleepers = self.sleepers.load(Ordering::SeqCst);
        if sleepers > 0 {
            drop(lock(&self.sleep));
            for _ in 0..sleepers.min(helpers) {
                self.opened.notify_one();
            }
        }
    }

    /// Lets nobody in any more and waits until everybody has left.
    fn close(&self) {
        self.gate.fetch_and(!OPEN, Ordering::AcqRel);
        for _ in 0..SPINS {
            if inside(self.gate.load(Ordering::Acquire)) == 0 {
                return;
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.sleep);
        self.gate.fetch_or(CALLER_SLEEPS, Ordering::AcqRel);
        while inside(self.gate.load(Ordering::Acquire)) > 0 {
            guard = self.emptied.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The life of worker `index`: join each run once, leave, wait for the next.
    fn serve(&self, index: usize) {
        let mut served = 0;
        while let Some(run) = self.join(served) {
            served = run;
            // SAFETY: this worker is inside, so the caller keeps `job` in place and its closure
            // alive.
            unsafe {
                let job = (*self.job.get()).expect("a run is described before its gate opens");
                self.work(index, job);
            }
            let before = self.gate.fetch_sub(JOINED, Ordering::AcqRel);
            if before & CALLER_SLEEPS != 0 && inside(before) == 1 {
                drop(lock(&self.sleep));
                self.emptied.notify_one();
            }
        }
    }

    /// Waits for a run later than `served` and joins it; `None` when the pool is dropped.
    fn join(&self, served: u64) -> Option<u64> {
        for _ in 0..SPINS {
            if let Some(run) = self.try_join(served) {
                return Some(run);
            }
            if self.shutdown.load(Ordering::Relaxed) {
                return None;
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.sleep);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let joined = loop {
            if let Some(run) = self.try_join(served) {
                break Some(run);
            }
            if self.shutdown.load(Ordering::SeqCst) {
                break None;
            }
            guard = self.opened.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        joined
    }

    fn try_join(&self, served: u64) -> Option<u64> {
        let mut gate = self.gate.load(Ordering::SeqCst);
        while gate & OPEN != 0 && gate / RUN != served {
            match self.gate.compare_exchange_weak(
                gate,
                gate + JOINED,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => return Some(gate / RUN),
                Err(now) => gate = now,
            }
        }
        None
    }
}
