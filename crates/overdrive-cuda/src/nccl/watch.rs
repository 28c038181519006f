//! `Watch`: the communicator of a group, and the thread that aborts it when a call of NCCL blocks
//! on a rank that has ended.
//!
//! Invariant: the communicator is aborted or destroyed once, and nobody begins a call of it after.

use super::library::{Comm, Library, SUCCESS};
use overdrive_ir::Communicator;
use std::ffi::c_int;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Between two looks at the call under way. Calls end within microseconds where all ranks live.
const LOOK: Duration = Duration::from_millis(100);

/// A communicator of NCCL.
pub(super) struct Handle(pub(super) Comm);

// SAFETY: NCCL's communicators may be used from any thread. One of them makes calls at a time, and
// `ncclCommAbort` may come from another one meanwhile.
unsafe impl Send for Handle {}

/// The call under way.
struct Call {
    began: Instant,
    patience: Duration,
}

struct State {
    /// None once it was aborted.
    handle: Option<Handle>,
    call: Option<Call>,
    /// Whether a call took longer than its patience.
    is_late: bool,
    has_ended: bool,
}

struct Shared {
    library: &'static Library,
    communicator: Arc<dyn Communicator>,
    state: Mutex<State>,
    ended: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Aborts the communicator, whose call under way then ends with an error.
    fn abort(&self) {
        let handle = self.state().handle.take();
        if let Some(Handle(comm)) = handle {
            // SAFETY: the communicator was one, and no call of it begins any more. One that is
            // under way is what the function is there to end.
            unsafe { (self.library.abort)(comm) };
        }
    }

    fn watch(&self) {
        let mut state = self.state();
        loop {
            let waited = self.ended.wait_timeout(state, LOOK);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if state.has_ended {
                return;
            }
            let Some(call) = &state.call else { continue };
            let lasts = call.began.elapsed();
            let is_late = lasts >= call.patience;
            if is_late || (lasts >= LOOK && self.communicator.check().is_err()) {
                state.is_late |= is_late;
                drop(state);
                self.abort();
                state = self.state();
            }
        }
    }
}

/// A communicator under watch.
pub(super) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub(super) fn start(
        library: &'static Library,
        communicator: Arc<dyn Communicator>,
        handle: Handle,
    ) -> Self {
        let state = State { handle: Some(handle), call: None, is_late: false, has_ended: false };
        let (state, ended) = (Mutex::new(state), Condvar::new());
        let shared = Arc::new(Shared { library, communicator, state, ended });
        let of_thread = Arc::clone(&shared);
        Self { shared, thread: Some(thread::spawn(move || of_thread.watch())) }
    }

    /// The communicator for a call that begins now; None once it was aborted.
    pub(super) fn begin(&self, patience: Duration) -> Option<Comm> {
        let mut state = self.shared.state();
        let comm = state.handle.as_ref()?.0;
        state.call = Some(Call { began: Instant::now(), patience });
        Some(comm)
    }

    /// The call has ended; whether its patience was over before.
    pub(super) fn end(&self) -> bool {
        let mut state = self.shared.state();
        state.call = None;
        state.is_late
    }

    /// NCCL's state of the communicator; None once it was aborted.
    pub(super) fn state(&self) -> Option<c_int> {
        // The lock keeps an abort away meanwhile.
        let state = self.shared.state();
        let (comm, mut found) = (state.handle.as_ref()?.0, SUCCESS);
        // SAFETY: the communicator lives, and the pointer is to an integer that outlives the call.
        let result = unsafe { (self.shared.library.async_error)(comm, &raw mut found) };
        Some(if result == SUCCESS { found } else { result })
    }

    /// Aborts the communicator; no later call begins.
    pub(super) fn abort(&self) {
        self.shared.abort();
    }

    /// Ends the thread and the communicator, which is `finalized` or aborted.
    pub(super) fn stop(&mut self, finalized: bool) {
        self.shared.state().has_ended = true;
        self.shared.ended.notify_all();
        if let Some(thread) = self.thread.take() {
            // It panics only where a lock is poisoned, which it bears.
            drop(thread.join());
        }
        if !finalized {
            return self.abort();
        }
        if let Some(Handle(comm)) = self.shared.state().handle.take() {
            // SAFETY: the communicator is done with, and nobody uses it any more.
            unsafe { (self.shared.library.destroy)(comm) };
        }
    }
}
