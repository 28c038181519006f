//! `PeerGroup`: one rank's links to the members of its group, and the order of their copies.
//!
//! A copy from one member to another goes in four steps, all of them on streams. The receiver says
//! that its place is free, and the sender waits for that. The sender copies and says that the copy
//! has arrived, and the receiver waits for that. Both count the copies between them, so that each
//! flag only grows. Invariant: after `abort` no stream waits here, and every later call fails.

use super::flags::{Flag, Flags, MOST_MEMBERS};
use super::link::{Greeting, Link, random};
use super::memory::{ExportedBytes, Import, ShownBlock};
use super::shared_page::SharedPage;
use crate::memory::copy;
use crate::{Device, Error};
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaEvent, CudaStream};
use overdrive_ir::{Communicator, Exchange};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at what is under way.
const LOOK: Duration = Duration::from_micros(50);

/// How long work that nothing holds up any more may take to end.
const ENDING: Duration = Duration::from_secs(5);

/// Copies by which an aborted flag is ahead of every wait.
const AHEAD: u32 = 1 << 30;

/// One rank of a group, all of whose members share a host.
#[derive(Debug)]
pub(crate) struct PeerGroup {
    device: Arc<Device>,
    communicator: Arc<dyn Communicator>,
    /// Ranks, in the order of the group.
    members: Vec<usize>,
    position: usize,
    /// By member.
    links: Vec<Link>,
    /// The members' pages; the own one is at `position`.
    flags: Vec<Flags>,
    progress: Mutex<Progress>,
    /// Blocks of other members that sessions write to.
    imports: Mutex<Vec<Import>>,
}

/// The enqueued copies.
#[derive(Debug)]
struct Progress {
    /// Copies to each member.
    sent: Vec<u32>,
    /// Copies from each member.
    received: Vec<u32>,
    /// After the last of them.
    last: CudaEvent,
    is_aborted: bool,
}

/// Bytes for a member.
#[derive(Copy, Clone, Debug)]
pub(super) struct Delivery {
    /// Position of the member.
    pub(super) to: usize,
    /// Address of the bytes, and of their place as this device reaches it.
    pub(super) places: (CUdeviceptr, CUdeviceptr),
    pub(super) bytes: usize,
}

/// A member's block with the numbers that it showed beside it.
#[derive(Debug)]
pub(crate) struct Introduced {
    pub(crate) block: Import,
    pub(crate) offsets: Vec<u64>,
}

impl PeerGroup {
    /// Meets the other members; all of them come here at the same time.
    ///
    /// # Errors
    /// When another rank fails meanwhile. The inner error is the same on all members: it says in
    /// words why they do not all reach each other's memory.
    pub(crate) fn meet(
        device: &Arc<Device>,
        communicator: &Arc<dyn Communicator>,
        members: &[usize],
    ) -> Result<Result<Self, String>, Error> {
        let rank = communicator.rank();
        let position = members.iter().position(|&r| r == rank).expect("a rank is in its group");
        let show = |what, bytes: &[u8]| {
            let mut shown = vec![];
            let exchange = Exchange { group: members, what, bytes };
            communicator.share(&exchange, &mut |_, bytes| shown.push(bytes.to_vec()))?;
            Ok::<_, Error>(shown)
        };
        let own = Own::new(device, members.len());
        let greeting = own.as_ref().map_or(vec![], |own| own.greeting.to_bytes());
        let greetings = show("the greeting of peers", &greeting)?;
        let linked = match &own {
            Ok(_) => link(device, (members, position), &greetings),
            Err(reason) => Err(reason.clone()),
        };
        let reason = linked.as_ref().err().map_or("", String::as_str);
        let reasons = show("the links of peers", reason.as_bytes())?;
        // Nobody looks for this rank's page and block from here on.
        if let Some(member) = reasons.iter().position(|reason| !reason.is_empty()) {
            let reason = String::from_utf8_lossy(&reasons[member]);
            return Ok(Err(format!("rank {}: {reason}", members[member])));
        }
        let nobody_minds = "no member has a reason against it";
        let (links, mut flags) = linked.expect(nobody_minds);
        let mut own = own.expect(nobody_minds).flags;
        own.hide();
        flags.insert(position, own);
        let none = || vec![0; members.len()];
        let last = device.context().new_event(None)?;
        let progress = Progress { sent: none(), received: none(), last, is_aborted: false };
        Ok(Ok(Self {
            device: Arc::clone(device),
            communicator: Arc::clone(communicator),
            members: members.to_vec(),
            position,
            links,
            flags,
            progress: Mutex::new(progress),
            imports: Mutex::default(),
        }))
    }

    /// Ranks of the members.
    pub(crate) fn members(&self) -> &[usize] {
        &self.members
    }

    /// This rank's position among them.
    pub(crate) fn position(&self) -> usize {
        self.position
    }

    /// Shows all members a block of this rank, with some offsets, and returns theirs in the order
    /// of members.
    ///
    /// # Errors
    /// When another rank fails meanwhile; the driver's error.
    pub(crate) fn introduce(
        &self,
        (block, offsets): (&ExportedBytes, &[u64]),
        what: &str,
    ) -> Result<Vec<Introduced>, Error> {
        let mut bytes = block.shown().to_bytes();
        bytes.extend(offsets.iter().flat_map(|offset| offset.to_le_bytes()));
        let mut shown = vec![];
        let exchange = Exchange { group: &self.members, what, bytes: &bytes };
        self.communicator.share(&exchange, &mut |_, bytes| shown.push(bytes.to_vec()))?;
        let read = |(link, bytes): (&Link, &Vec<u8>)| {
            let (block, offsets) =
                bytes.split_first_chunk().expect("members show blocks at the same time");
            let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
            Ok(Introduced {
                block: link.import(&self.device, ShownBlock::from_bytes(block))?,
                offsets: offsets.chunks_exact(size_of::<u64>()).map(number).collect(),
            })
        };
        self.links.iter().zip(&shown).map(read).collect()
    }

    /// Keeps blocks open for as long as the group lives.
    pub(crate) fn keep(&self, blocks: impl IntoIterator<Item = Import>) {
        self.imports.lock().unwrap_or_else(PoisonError::into_inner).extend(blocks);
    }

    /// Enqueues copies to members, those for one of them in a row, and waiting for a copy from each
    /// of `sources`. The places that sources write to are free once the stream is here.
    ///
    /// # Safety
    /// The bytes of each delivery stay as they are until the stream has copied them. Its place has
    /// as many bytes, and is the one that the member has introduced.
    ///
    /// # Errors
    /// The driver's error; `Peers` or `Ranks` once the group is aborted, as it then is.
    pub(super) unsafe fn deliver(
        &self,
        stream: &CudaStream,
        deliveries: &[Delivery],
        sources: &[usize],
    ) -> Result<(), Error> {
        let mut progress = self.progress();
        self.alive(&progress)?;
        self.device.context().bind_to_thread()?;
        // SAFETY: the caller promises the same.
        let enqueued = unsafe { self.enqueue(stream, (deliveries, sources), &mut progress) };
        let recorded = progress.last.record(stream);
        let enqueued = enqueued.and_then(|()| Ok(recorded?));
        if enqueued.is_err() {
            self.abort_from(progress);
        }
        enqueued
    }

    /// # Safety
    /// As `deliver`.
    unsafe fn enqueue(
        &self,
        stream: &CudaStream,
        (deliveries, sources): (&[Delivery], &[usize]),
        progress: &mut Progress,
    ) -> Result<(), Error> {
        let here = self.position;
        for &source in sources {
            let count = progress.received[source].wrapping_add(1);
            progress.received[source] = count;
            self.flags[source].write(stream, (here, Flag::Free), count)?;
        }
        for copies in deliveries.chunk_by(|a, b| a.to == b.to) {
            let to = copies[0].to;
            if to == here {
                for Delivery { places, bytes, .. } in copies {
                    // SAFETY: as the caller of `deliver` promised.
                    unsafe { copy(stream, *places, *bytes)? };
                }
                continue;
            }
            let count = progress.sent[to].wrapping_add(1);
            progress.sent[to] = count;
            self.flags[here].wait(stream, (to, Flag::Free), count)?;
            for Delivery { places, bytes, .. } in copies {
                // SAFETY: as the caller of `deliver` promised, and the wait has made sure.
                unsafe { copy(stream, *places, *bytes)? };
            }
            self.flags[to].write(stream, (here, Flag::Arrived), count)?;
        }
        for &source in sources {
            let count = progress.received[source];
            self.flags[here].wait(stream, (source, Flag::Arrived), count)?;
        }
        Ok(())
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn alive(&self, progress: &Progress) -> Result<(), Error> {
        if progress.is_aborted {
            self.communicator.check()?;
            let message = "an earlier collective has failed; start all ranks again".to_owned();
            return Err(Error::Peers { message });
        }
        Ok(())
    }

    /// Errs once the group is aborted.
    pub(crate) fn check(&self) -> Result<(), Error> {
        // Whoever holds it enqueues copies, and finds the same.
        let Ok(progress) = self.progress.try_lock() else { return Ok(()) };
        self.alive(&progress)
    }

    /// Ends all waits of this device for other members; no later call succeeds.
    pub(crate) fn abort(&self) {
        self.abort_from(self.progress());
    }

    fn abort_from(&self, mut progress: MutexGuard<'_, Progress>) {
        progress.is_aborted = true;
        let deadline = Instant::now() + ENDING;
        loop {
            // Again and again: a copy of another member that still arrives sets its flag back.
            for member in 0..self.members.len() {
                let flags = &self.flags[self.position];
                let [sent, received] = [&progress.sent, &progress.received];
                flags.set((member, Flag::Free), sent[member].wrapping_add(AHEAD));
                flags.set((member, Flag::Arrived), received[member].wrapping_add(AHEAD));
            }
            if !self.is_under_way(&progress) || Instant::now() >= deadline {
                return;
            }
            thread::sleep(LOOK);
        }
    }

    /// Waits for what is under way, as long as no rank fails, and aborts the group. True if all
    /// copies ended by themselves, so that no other member writes to this one any more.
    pub(crate) fn end(&self) -> bool {
        let progress = self.progress();
        let deadline = Instant::now() + ENDING;
        while self.is_under_way(&progress)
            && self.communicator.check().is_ok()
            && Instant::now() < deadline
        {
            thread::sleep(LOOK);
        }
        let is_well = !progress.is_aborted && !self.is_under_way(&progress);
        self.abort_from(progress);
        is_well
    }

    /// Whether copies that were enqueued have not ended.
    fn is_under_way(&self, progress: &Progress) -> bool {
        // After a fault of the device nothing runs on it.
        self.device.context().bind_to_thread().is_ok()
            && progress.last.try_is_complete().is_ok_and(|is_complete| !is_complete)
    }
}

impl Drop for PeerGroup {
    fn drop(&mut self) {
        self.end();
    }
}

/// A rank's own part of a meeting.
struct Own {
    flags: Flags,
    greeting: Greeting,
    /// The others try their way to it.
    _block: ExportedBytes,
}

impl Own {
    fn new(device: &Arc<Device>, members: usize) -> Result<Self, String> {
        if members > MOST_MEMBERS {
            return Err(format!("expected at most {MOST_MEMBERS} ranks, found {members}"));
        }
        let id = random();
        let page = SharedPage::create(id)?;
        let said = |error: Error| error.to_string();
        let flags = Flags::new(device, page).map_err(said)?;
        let block = ExportedBytes::new(device, 1).map_err(said)?;
        let greeting = Greeting::new(device, id, block.shown());
        Ok(Self { flags, greeting, _block: block })
    }
}

/// Links to all members, and the flags of the others, in the order of members.
fn link(
    device: &Arc<Device>,
    (members, position): (&[usize], usize),
    greetings: &[Vec<u8>],
) -> Result<(Vec<Link>, Vec<Flags>), String> {
    let (mut links, mut flags) = (vec![Link::ThisProcess; members.len()], vec![]);
    for (member, greeting) in greetings.iter().enumerate().filter(|(at, _)| *at != position) {
        let rank = members[member];
        let greeting = Greeting::from_bytes(greeting)
            .ok_or_else(|| format!("rank {rank} has no memory to show"))?;
        let (link, theirs) = Link::to(device, &greeting)
            .map_err(|reason| format!("no way to the memory of rank {rank}: {reason}"))?;
        links[member] = link;
        flags.push(theirs);
    }
    Ok((links, flags))
}
