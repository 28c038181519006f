//! `NcclGroup`: one rank's part in the collectives of a group of ranks.
//!
//! A call of NCCL takes a collective over within microseconds, and blocks only where another rank
//! is missed. A thread of the group (`Watch`) looks at calls that take longer. It aborts the group
//! if a rank has ended or the patience is over. Calls that return at once would need no such
//! thread, but NCCL starts one for each of them, which costs a tenth of a millisecond. Invariant:
//! once a call has failed, the group is aborted and every later call fails. That ends what NCCL
//! still runs on the device.

use super::library::{Comm, IN_PROGRESS, Library, SUCCESS, UniqueId};
use super::watch::{Handle, Watch};
use crate::{Device, Error, Library as Named};
use overdrive_ir::{Communicator, Exchange, RankError};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at the other ranks.
const LOOK: Duration = Duration::from_millis(1);

/// How long the end of another rank may take to be heard of, once NCCL has failed. Also how long
/// the last bytes to other ranks may take.
const HEARD: Duration = Duration::from_secs(5);

/// One rank of one group.
pub(super) struct NcclGroup {
    library: &'static Library,
    device: Arc<Device>,
    communicator: Arc<dyn Communicator>,
    watch: Watch,
    /// One call at a time.
    turn: Mutex<()>,
    /// This rank's position in the group.
    pub(super) position: usize,
    pub(super) ranks: usize,
}

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
        if position == 0 {
            // SAFETY: the pointer is to an id that outlives the call.
            let result = unsafe { (library.get_unique_id)(&raw mut id) };
            if result != SUCCESS {
                let message = library.words(result);
                return Err(Error::Nccl { call: "ncclGetUniqueId", message });
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
        let (ranks, own) = (members.len() as c_int, position as c_int);
        let handle = joined(library, device, communicator.as_ref(), (id, ranks, own))?;
        Ok(Self {
            library,
            device: Arc::clone(device),
            communicator: Arc::clone(communicator),
            watch: Watch::start(library, Arc::clone(communicator), handle),
            turn: Mutex::default(),
            position,
            ranks: members.len(),
        })
    }

    /// Makes calls of NCCL, which take over what they are to do; `name` is for errors.
    pub(super) fn call(
        &self,
        name: &'static str,
        calls: impl FnOnce(&Library, Comm) -> c_int,
    ) -> Result<(), Error> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let patience = self.communicator.patience();
        let Some(comm) = self.watch.begin(patience) else { return Err(self.aborted()) };
        let result = calls(self.library, comm);
        let is_late = self.watch.end();
        if result == SUCCESS && !is_late {
            return Ok(());
        }
        self.watch.abort();
        match is_late {
            true => Err(late(self.communicator.as_ref(), name)),
            false => Err(self.failed(name, result)),
        }
    }

    /// Errs where NCCL, working on by itself, has failed.
    pub(super) fn check(&self) -> Result<(), Error> {
        match self.watch.state() {
            None => Err(self.aborted()),
            Some(SUCCESS | IN_PROGRESS) => Ok(()),
            Some(failed) => Err(self.failed("a collective", failed)),
        }
    }

    /// Ends what is under way; no later call succeeds.
    pub(super) fn abort(&self) {
        if self.device.context().bind_to_thread().is_ok() {
            self.watch.abort();
        }
    }

    fn aborted(&self) -> Error {
        let message = "an earlier collective has failed; start all ranks again".to_owned();
        let of_group = Error::Nccl { call: "a collective", message };
        self.communicator.check().map_or_else(Error::from, |()| of_group)
    }

    /// Why NCCL has failed: a rank that ended, if one did, else what NCCL says.
    fn failed(&self, call: &'static str, result: c_int) -> Error {
        let message = self.library.words(result);
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

/// A communicator of all members, who are asked for at the same time. NCCL joins them on a thread
/// of its own: should a member never come, that thread is left behind.
fn joined(
    library: &'static Library,
    device: &Arc<Device>,
    communicator: &dyn Communicator,
    (id, ranks, own): (UniqueId, c_int, c_int),
) -> Result<Handle, Error> {
    const CALL: &str = "ncclCommInitRank";
    let (answer, answers) = mpsc::channel();
    let context = Arc::clone(device.context());
    thread::spawn(move || {
        let mut comm: Comm = std::ptr::null_mut();
        let bound = context.bind_to_thread();
        // SAFETY: the pointer is to what outlives the call, and the device's context is current.
        let result = bound.map(|()| unsafe { (library.init_rank)(&raw mut comm, ranks, id, own) });
        // Nobody waits any more only where another rank has failed.
        drop(answer.send((result, Handle(comm))));
    });
    let begun = Instant::now();
    loop {
        match answers.recv_timeout(LOOK) {
            Ok((Ok(SUCCESS), handle)) => return Ok(handle),
            Ok((Ok(result), _)) => {
                communicator.check()?;
                return Err(Error::Nccl { call: CALL, message: library.words(result) });
            }
            Ok((Err(error), _)) => return Err(error.into()),
            Err(_) => communicator.check()?,
        }
        if begun.elapsed() >= communicator.patience() {
            return Err(late(communicator, CALL));
        }
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
        let bound = self.device.context().bind_to_thread();
        let is_well = bound.is_ok() && self.communicator.check().is_ok();
        let comm = is_well.then(|| self.watch.begin(HEARD)).flatten();
        // SAFETY: the communicator lives: only `abort` ends it, which tells a call that is under
        // way.
        let finalized = comm.map(|comm| unsafe { (self.library.finalize)(comm) });
        let is_done = !self.watch.end() && finalized == Some(SUCCESS);
        self.watch.stop(is_done);
    }
}
