//! The cores of the host, which run loops over pinned memory one after another.

use crate::Error;
use overdrive_cpu::threads::Pool;
use parking_lot::Mutex;
use std::num::NonZeroUsize;
use std::thread;

/// All cores that this process may use.
#[derive(Debug)]
pub(crate) struct HostCores {
    pub(crate) pool: Pool,
    /// The first step that failed and that no call has told of.
    failed: Mutex<Option<String>>,
}

impl HostCores {
    /// Starts their threads.
    ///
    /// # Errors
    /// `Host` when the system starts none.
    pub(crate) fn new() -> Result<Self, Error> {
        let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let message = |e: std::io::Error| format!("starting {threads} threads: {e}");
        let pool = Pool::new(threads).map_err(|e| Error::Host { message: message(e) })?;
        Ok(Self { pool, failed: Mutex::default() })
    }

    /// Keeps the name of a step that failed, until `check` tells.
    pub(crate) fn fail(&self, step: &str) {
        self.failed.lock().get_or_insert_with(|| step.to_owned());
    }

    /// Errs with the step that failed since the last look.
    ///
    /// # Errors
    /// `Host`.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.failed.lock().take() {
            None => Ok(()),
            Some(step) => Err(Error::Host { message: format!("`{step}` panicked") }),
        }
    }
}
