//! A request to stop, shared between whoever asks (a signal handler) and the runner.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that is looked at between calls. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks every holder to stop at the next call.
    pub fn request(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether a stop was asked for.
    pub fn is_requested(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
