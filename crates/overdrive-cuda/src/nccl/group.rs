//! `NcclGroup`: one rank's part in the collectives of a group of ranks.
//!
//! Calls of NCCL return before they are done. Whoever waits for one looks at the same time whether
//! all ranks live. Invariant: once a call has failed, the group is aborted, which ends what NCCL
//! still runs on the device, and every later call fails.

use super::library::{Comm, Config, IN_PROGRESS, Library, SUCCESS, UniqueId};
use crate::{Device, Error, Library as Named};
use overdrive_ir::{Communicator, Exchange, RankError};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// A wait begins with looks one after another: NCCL takes a collective over within some
/// microseconds, and a plan has tens of them.
const EAGER: Duration = Duration::from_micros(200);

/// Between two looks at what is under way.
const LOOK: Duration = Duration::from_micros(50);

/// How long the end of another rank may take to be heard of, once NCCL has failed.
const HEARD: Duration = Duration::from_secs(5);

/// One rank of one group.
pub(super) struct NcclGroup {
    library: &'static Library,
    device: Arc<Device>,
    communicator: Arc<dyn Communicator>,
    comm: Mutex<Handle>,
    /// This rank's position in the group.
    pub(super) position: usize,
    pub(super) ranks: usize,
}

/// A communicator of NCCL; null once it was aborted.
struct Handle(Comm);

// SAFETY: NCCL's communicators may be used from any thread, one at a time, which the mutex sees to.
unsafe impl Send for Handle {}

impl std::fmt::Debug for NcclGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Group(rank {} of {})", self.position, self.ranks)
    }
}

impl NcclGroup {
    /// Meets the other members; all of them come here at the same time.
    pub(super) fn meet(
        device: &Arc<Device>,
        communicator: &Arc<dyn Communicator>,
        members: &[usize],
    ) -> Result<Self, Error> {
        let library = Library::get().ok_or_else(|| Named::Nccl.missing())?;
        let rank = communicator.rank();
        let position = members.iter().position(|&r| r == rank).expect("a rank is in its group");
        device.context().bind_to_thread()?;
        let mut id = UniqueId([0; UniqueId::BYTES]);
        let failed = |call, result| Error::Nccl {
            call,
            message: library.words(result, std::ptr::null_mut()),
        };
        if position == 0 {
            // SAFETY: the pointer is to an id that outlives the call.
            let result = unsafe { (library.get_unique_id)(&raw mut id) };
            if result != SUCCESS {
                return Err(failed("ncclGetUniqueId", result));
            }
        }
        let bytes = if position == 0 { &id.0[..] } else { &[] };
        let mut shown = None;
        let exchange = Exchange { group: members, what: "the meeting of NCCL", bytes };
        communicator.share(&exchange, &mut |member, bytes| {
            if member == 0 {
                shown = bytes.try_into().ok();
            }
        })?;
        let id = UniqueId(shown.expect("the first member shows an id"));
        let mut comm: Comm = std::ptr::null_mut();
        let mut config = Config::not_blocking();
        let (ranks, own) = (members.len() as c_int, position as c_int);
        // SAFETY: the pointers are to what outlives the call, and the device's context is current.
        let result = unsafe { (library.init_rank)(&raw mut comm, ranks, id, own, &raw mut config) };
        if comm.is_null() {
            return Err(failed("ncclCommInitRankConfig", result));
        }
        let group = Self {
            library,
            device: Arc::clone(device),
            communicator: Arc::clone(communicator),
            comm: Mutex::new(Handle(comm)),
            position,
            ranks: members.len(),
        };
        group.call("ncclCommInitRankConfig", |_, _| result)?;
        Ok(group)
    }

    fn handle(&self) -> MutexGuard<'_, Handle> {
        self.comm.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes calls of NCCL and waits until it has taken them over; `name` is for errors.
    pub(super) fn call(
        &self,
        name: &'static str,
        calls: impl FnOnce(&Library, Comm) -> c_int,
    ) -> Result<(), Error> {
        let mut handle = self.handle();
        self.alive(&handle)?;
        let result = calls(self.library, handle.0);
        let settled = self.settle(&handle, (name, result));
        if settled.is_err() {
            self.abort_handle(&mut handle);
        }
        settled
    }

    /// Errs where NCCL, working on by itself, has failed.
    pub(super) fn check(&self) -> Result<(), Error> {
        // Whoever holds it makes a call, which finds the same.
        let Ok(handle) = self.comm.try_lock() else { return Ok(()) };
        self.alive(&handle)?;
        match self.state(&handle) {
            SUCCESS | IN_PROGRESS => Ok(()),
            failed => Err(self.failed("a collective", failed, &handle)),
        }
    }

    /// Ends what is under way; no later call succeeds.
    pub(super) fn abort(&self) {
        self.abort_handle(&mut self.handle());
    }

    fn abort_handle(&self, handle: &mut Handle) {
        let comm = std::mem::replace(&mut handle.0, std::ptr::null_mut());
        if !comm.is_null() && self.device.context().bind_to_thread().is_ok() {
            // SAFETY: the communicator is one, and nobody uses it any more.
            unsafe { (self.library.abort)(comm) };
        }
    }

    fn alive(&self, handle: &Handle) -> Result<(), Error> {
        if handle.0.is_null() {
            self.communicator.check()?;
            let message = "an earlier collective has failed; start all ranks again".to_owned();
            return Err(Error::Nccl { call: "a collective", message });
        }
        Ok(())
    }

    /// NCCL's state of the communicator.
    fn state(&self, handle: &Handle) -> c_int {
        let mut state = SUCCESS;
        // SAFETY: the communicator lives, and the pointer is to an integer that outlives the call.
        let result = unsafe { (self.library.async_error)(handle.0, &raw mut state) };
        if result == SUCCESS { state } else { result }
    }

    fn settle(&self, handle: &Handle, (name, result): (&'static str, c_int)) -> Result<(), Error> {
        let mut now = result;
        let begun = Instant::now();
        while now == IN_PROGRESS {
            let waited = begun.elapsed();
            if waited < EAGER {
                std::hint::spin_loop();
            } else {
                self.communicator.check()?;
                if waited >= self.communicator.patience() {
                    return Err(late(self.communicator.as_ref(), name));
                }
                thread::sleep(LOOK);
            }
            now = self.state(handle);
        }
        if now == SUCCESS { Ok(()) } else { Err(self.failed(name, now, handle)) }
    }

    /// Why NCCL has failed: a rank that ended, if one did, else what NCCL says.
    fn failed(&self, call: &'static str, result: c_int, handle: &Handle) -> Error {
        let message = self.library.words(result, handle.0);
        let deadline = Instant::now() + HEARD;
        while Instant::now() < deadline {
            if let Err(error) = self.communicator.check() {
                return error.into();
            }
            thread::sleep(LOOK);
        }
        Error::Nccl { call, message }
    }
}

/// The patience is over. Who waits for NCCL comes to an exchange now; who hangs does not, so that
/// all hear whom they waited for.
pub(super) fn late(communicator: &dyn Communicator, what: &'static str) -> Error {
    let group: Vec<usize> = (0..communicator.mesh().ranks()).collect();
    let exchange = Exchange { group: &group, what, bytes: &[] };
    match communicator.share(&exchange, &mut |_, _| ()) {
        Err(error) => error.into(),
        Ok(()) => {
            let seconds = communicator.patience().as_secs();
            let message = format!(
                "expected it to end within {seconds} s, found it under way on every rank; set \
                 NCCL_DEBUG=INFO to see what NCCL waits for"
            );
            Error::Nccl { call: what, message }
        }
    }
}

impl From<RankError> for Error {
    fn from(error: RankError) -> Self {
        Self::Ranks(error)
    }
}

impl Drop for NcclGroup {
    /// If nothing failed, data that other ranks may still need is sent first.
    fn drop(&mut self) {
        let mut handle = self.handle();
        let is_well = !handle.0.is_null()
            && self.communicator.check().is_ok()
            && self.device.context().bind_to_thread().is_ok();
        if is_well {
            // SAFETY: the communicator lives.
            let mut state = unsafe { (self.library.finalize)(handle.0) };
            let deadline = Instant::now() + HEARD;
            while state == IN_PROGRESS && Instant::now() < deadline {
                thread::sleep(LOOK);
                state = self.state(&handle);
            }
            if state == SUCCESS {
                // SAFETY: the communicator is done with, and nobody uses it any more.
                unsafe { (self.library.destroy)(handle.0) };
                handle.0 = std::ptr::null_mut();
            }
        }
        self.abort_handle(&mut handle);
    }
}
