//! The cores of the host, which run loops over pinned memory one after another.

use crate::Error;
use overdrive_cpu::InstructionSet;
use overdrive_cpu::threads::Pool;
use parking_lot::Mutex;
use std::num::NonZeroUsize;
use std::thread;

/// The part of the host that loops may use.
#[derive(Copy, Clone, Debug)]
pub(crate) struct HostShare {
    pub(crate) threads: NonZeroUsize,
    /// Instructions up to these.
    pub(crate) set: InstructionSet,
}

impl Default for HostShare {
    /// All cores that this process may use.
    fn default() -> Self {
        let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        Self { threads, set: InstructionSet::best() }
    }
}

/// Threads on these cores.
#[derive(Debug)]
pub(crate) struct HostCores {
    pub(crate) pool: Pool,
    pub(crate) set: InstructionSet,
    /// The first step that failed and that no call has told of.
    failed: Mutex<Option<String>>,
}

impl HostCores {
    /// Starts their threads.
    ///
    /// # Errors
    /// `Host` when the system starts none.
    pub(crate) fn new(HostShare { threads, set }: HostShare) -> Result<Self, Error> {
        let message = |e: std::io::Error| format!("starting {threads} threads: {e}");
        let pool = set.during(|| Pool::new(threads));
        let pool = pool.map_err(|e| Error::Host { message: message(e) })?;
        Ok(Self { pool, set, failed: Mutex::default() })
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
