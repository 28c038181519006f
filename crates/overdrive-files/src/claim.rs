//! The data of a claimed place on disk. The place gives it up, or an end gives it up for all places
//! at once.
//!
//! A process that a signal ends runs no destructors: whoever ends it calls [`give_up_places`]
//! first, so that no empty folder and no lock stay behind.

use crate::lock::Lock;
use std::fs;
use std::mem;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The lock of a place, and the folders that were made for it.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    pub(crate) lock: Option<Lock>,
    /// The outermost first.
    pub(crate) made: Vec<PathBuf>,
}

/// The claims of all places that this process holds.
static HELD: Mutex<Vec<Weak<Mutex<Claim>>>> = Mutex::new(Vec::new());

impl Claim {
    /// One that holds nothing yet.
    pub(crate) fn begin() -> Arc<Mutex<Self>> {
        let claim = Arc::default();
        let mut held = locked(&HELD);
        held.retain(|other| other.strong_count() > 0);
        held.push(Arc::downgrade(&claim));
        claim
    }

    /// Leaves the disk as it was, but for folders that something was put into.
    pub(crate) fn give_up(&mut self) {
        // The lock may lie in a folder that was made.
        self.lock = None;
        for folder in self.made.drain(..).rev() {
            // The system refuses this if the folder is not empty, as intended.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Gives up every place that this process has claimed and not filled, just before it ends. Whoever
/// claims or fills a place from now on waits for that end.
pub fn give_up_places() {
    let held = locked(&HELD);
    // A later place may lie in the folder of an earlier one, which its lock would keep.
    for claim in held.iter().rev().filter_map(Weak::upgrade) {
        let mut claimed = locked(&claim);
        claimed.give_up();
        mem::forget(claimed);
    }
    mem::forget(held);
}

/// Data left by a panic of another thread is still valid: paths and a file.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
