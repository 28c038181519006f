//! The one request to end, shared between who asks (a signal) and everything that takes long.
//!
//! A phase that has something to keep heeds the request: it looks at it between two steps and ends
//! by itself. While no phase does, nothing would be lost, and whoever asks may end the process at
//! once.

use crate::process_group::{self, Force};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What asked for the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ctrl-C, SIGINT.
    Interrupt,
    /// SIGTERM, and SIGHUP of a terminal that went away.
    Terminate,
}

/// A request that is looked at between steps. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// 0 while nobody asked.
    asked: AtomicU8,
    state: Mutex<StopState>,
}

#[derive(Debug, Default)]
struct StopState {
    heeding: usize,
    /// Process groups of the children.
    children: BTreeSet<u32>,
}

impl Stop {
    /// Asks every holder to stop at the next step, and children to end; the first request is the
    /// one that is told.
    pub fn request(&self, signal: Signal) {
        let code = 1 + signal as u8;
        let _ = self.0.asked.compare_exchange(0, code, Ordering::SeqCst, Ordering::SeqCst);
        self.to_children(Force::Asked);
    }

    /// Whether we are interrupted.
    pub fn is_requested(&self) -> bool {
        self.signal().is_some()
    }

    /// What asked for it.
    pub fn signal(&self) -> Option<Signal> {
        match self.0.asked.load(Ordering::Relaxed) {
            0 => None,
            1 => Some(Signal::Interrupt),
            _ => Some(Signal::Terminate),
        }
    }

    /// Begins a phase that ends by itself soon after a request.
    pub fn heed(&self) -> Heeded {
        self.state().heeding += 1;
        Heeded(self.clone())
    }

    /// Calls `end` unless a phase heeds the request. None begins meanwhile, so that `end` may end
    /// the process.
    pub fn unless_heeded(&self, end: impl FnOnce()) {
        let state = self.state();
        if state.heeding == 0 {
            state.children.iter().for_each(|&group| process_group::signal(group, Force::Killed));
            end();
        }
    }

    /// Ends the children at once.
    pub fn kill_children(&self) {
        self.to_children(Force::Killed);
    }

    fn to_children(&self, force: Force) {
        self.state().children.iter().for_each(|&group| process_group::signal(group, force));
    }

    pub(crate) fn add(&self, group: u32) {
        self.state().children.insert(group);
        // It was started while the request came.
        if self.is_requested() {
            process_group::signal(group, Force::Asked);
        }
    }

    pub(crate) fn remove(&self, group: u32) {
        self.state().children.remove(&group);
    }

    fn state(&self) -> MutexGuard<'_, StopState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A phase that heeds the request, until it is dropped.
#[must_use = "the phase ends where this is dropped"]
#[derive(Debug)]
pub struct Heeded(Stop);

impl Drop for Heeded {
    fn drop(&mut self) {
        self.0.state().heeding -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_request_is_told_to_all() {
        let stop = Stop::default();
        let other = stop.clone();
        assert_eq!(other.signal(), None);
        stop.request(Signal::Terminate);
        stop.request(Signal::Interrupt);
        assert_eq!(other.signal(), Some(Signal::Terminate));
    }

    #[test]
    fn what_heeds_a_request_is_not_ended() {
        let stop = Stop::default();
        let mut ended = 0;
        {
            let _outer = stop.heed();
            drop(stop.heed());
            stop.unless_heeded(|| ended += 1);
        }
        assert_eq!(ended, 0);
        stop.unless_heeded(|| ended += 1);
        assert_eq!(ended, 1);
    }
}
