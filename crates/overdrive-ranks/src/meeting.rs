//! `Meeting`: where ranks of one process show each other bytes.
//!
//! Each group has a room. A member leaves its bytes in its mailbox there, and waits until all have;
//! then each reads them all. A mailbox has two sides, which exchanges use in turn. Before a member
//! writes to a side again, all members have entered the exchange in between, so they have read it.
//! Invariant: nobody waits for a rank that has failed, or longer than the meeting's patience. Every
//! rank is told the first fault.

use overdrive_ir::{Communicator, Exchange, Mesh, RankError};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Ranks of one process.
#[derive(Debug)]
pub struct Meeting {
    mesh: Mesh,
    patience: Duration,
    book: Mutex<Book>,
    changed: Condvar,
}

/// One rank of a meeting.
#[derive(Debug)]
pub struct Member {
    rank: usize,
    meeting: Arc<Meeting>,
}

/// The known state of all ranks.
#[derive(Debug)]
struct Book {
    rooms: BTreeMap<Vec<usize>, Room>,
    ranks: Vec<Presence>,
    /// The first that failed: others may end because it did.
    failed: Option<usize>,
    fault: Option<RankError>,
}

/// The state of a rank.
#[derive(Clone, PartialEq, Debug)]
enum Presence {
    /// Something of its own.
    Busy,
    /// Waits for the rest of this group.
    Waiting(Arc<[usize]>),
    /// It is done.
    Left,
    /// It ended without saying so.
    Failed,
}

#[derive(Debug)]
struct Room {
    group: Arc<[usize]>,
    mailboxes: Arc<[Mailbox]>,
    /// Exchanges that were complete.
    complete: u64,
    /// The exchange that each member is at, if it has arrived.
    at: Vec<String>,
    has_come: Vec<bool>,
}

type Mailbox = [RwLock<Vec<u8>>; 2];

impl Room {
    fn new(group: &[usize]) -> Self {
        Self {
            group: group.into(),
            mailboxes: group.iter().map(|_| Mailbox::default()).collect(),
            complete: 0,
            at: vec![String::new(); group.len()],
            has_come: vec![false; group.len()],
        }
    }

    fn missing(&self) -> impl Iterator<Item = usize> {
        self.group.iter().zip(&self.has_come).filter(|(_, has_come)| !**has_come).map(|(r, _)| *r)
    }

    /// The first member that is at something else than another.
    fn difference(&self) -> Option<RankError> {
        let other = self.at.iter().position(|at| *at != self.at[0])?;
        Some(RankError::Differs {
            rank: self.group[other],
            other: self.group[0],
            expected: format!("to be at {}", self.at[0]),
            found: format!("that it is at {}", self.at[other]),
        })
    }
}

impl Meeting {
    /// The members of a new meeting, in the order of ranks. Whoever waits longer than `patience`
    /// for another takes it for hung.
    pub fn of(mesh: &Mesh, patience: Duration) -> Vec<Member> {
        let ranks = vec![Presence::Busy; mesh.ranks()];
        let book = Book { rooms: BTreeMap::new(), ranks, failed: None, fault: None };
        let (book, changed) = (Mutex::new(book), Condvar::new());
        let meeting = Arc::new(Self { mesh: mesh.clone(), patience, book, changed });
        (0..mesh.ranks()).map(|rank| Member { rank, meeting: Arc::clone(&meeting) }).collect()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for news beyond `known`, and returns it.
    pub(crate) fn news(&self, known: &News) -> News {
        let mut book = self.book();
        loop {
            let now = book.news();
            if now != *known {
                return now;
            }
            book = self.changed.wait(book).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The end of a rank becomes the fault of the meeting, unless there is one.
    pub(crate) fn end(&self) {
        let mut book = self.book();
        if let Some(rank) = book.failed {
            book.fail(gone_meanwhile(rank));
            self.changed.notify_all();
        }
    }

    /// Waits until all ranks but this one have ended, at most so long.
    pub(crate) fn wait_for_others_to_end(&self, rank: usize, most: Duration) {
        let deadline = Instant::now() + most;
        let mut book = self.book();
        let here = |book: &Book| {
            (0..book.ranks.len()).any(|other| other != rank && !book.has_ended(other))
        };
        while here(&book) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let waited = self.changed.wait_timeout(book, left);
            book = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// News for ranks that are at no exchange.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct News {
    /// Why they cannot go on.
    pub(crate) fault: Option<RankError>,
    /// The first rank that ended without saying so.
    pub(crate) failed: Option<usize>,
    /// All have ended.
    pub(crate) is_over: bool,
}

impl Book {
    /// Makes it the fault of the meeting, unless there is one.
    fn fail(&mut self, fault: RankError) -> RankError {
        self.fault.get_or_insert(fault).clone()
    }

    fn has_ended(&self, rank: usize) -> bool {
        matches!(self.ranks[rank], Presence::Left | Presence::Failed)
    }

    /// A rank that has ended and that a group still waits for.
    fn absent(&self, group: &[usize]) -> Option<usize> {
        let absent = self.rooms[group].missing().find(|&rank| self.has_ended(rank));
        absent.map(|rank| self.failed.unwrap_or(rank))
    }

    fn news(&self) -> News {
        let is_over = (0..self.ranks.len()).all(|rank| self.has_ended(rank));
        News { fault: self.fault.clone(), failed: self.failed, is_over }
    }

    /// Whom the members of a group wait for in the end: who is missing may wait elsewhere itself.
    fn culprit(&self, group: &[usize]) -> usize {
        let missing = |group: &[usize]| self.rooms[group].missing().next().unwrap_or(group[0]);
        let mut rank = missing(group);
        for _ in 0..self.ranks.len() {
            let Presence::Waiting(elsewhere) = &self.ranks[rank] else { break };
            rank = missing(elsewhere);
        }
        rank
    }
}

impl Communicator for Member {
    fn rank(&self) -> usize {
        self.rank
    }

    fn mesh(&self) -> &Mesh {
        &self.meeting.mesh
    }

    fn share(
        &self,
        exchange: &Exchange<'_>,
        read: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), RankError> {
        let Exchange { group, what, bytes } = *exchange;
        let meeting = &self.meeting;
        let place = group.iter().position(|&rank| rank == self.rank);
        let place = place.expect("a rank takes part in exchanges of its own groups");
        let mut book = meeting.book();
        if !book.rooms.contains_key(group) {
            book.rooms.insert(group.to_vec(), Room::new(group));
        }
        let room = &book.rooms[group];
        let (number, mailboxes) = (room.complete, Arc::clone(&room.mailboxes));
        let side = (number % 2) as usize;
        drop(book);
        {
            let mut mailbox =
                mailboxes[place][side].write().unwrap_or_else(PoisonError::into_inner);
            mailbox.clear();
            mailbox.extend_from_slice(bytes);
        }
        self.wait(meeting.book(), (group, number), (place, what))?;
        for (position, mailbox) in mailboxes.iter().enumerate() {
            read(position, &mailbox[side].read().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(())
    }

    fn patience(&self) -> Duration {
        self.meeting.patience
    }

    fn check(&self) -> Result<(), RankError> {
        let book = self.meeting.book();
        if let Some(fault) = &book.fault {
            return Err(fault.clone());
        }
        book.failed.map_or(Ok(()), |rank| Err(gone_meanwhile(rank)))
    }

    fn leave(&self) {
        self.meeting.book().ranks[self.rank] = Presence::Left;
        self.meeting.changed.notify_all();
    }
}

/// Said of a rank that ended while the others were at no exchange.
pub(crate) fn gone_meanwhile(rank: usize) -> RankError {
    RankError::Gone { rank, what: "work of their own".to_owned() }
}

impl Member {
    /// The meeting that it is a member of.
    pub(crate) fn meeting(&self) -> &Arc<Meeting> {
        &self.meeting
    }

    /// Whether it ended as it should.
    pub(crate) fn has_left(&self) -> bool {
        self.meeting.book().ranks[self.rank] == Presence::Left
    }

    /// It has ended; a failure unless it left before.
    pub(crate) fn ended(&self) {
        let mut book = self.meeting.book();
        if book.ranks[self.rank] != Presence::Left {
            book.ranks[self.rank] = Presence::Failed;
            book.failed.get_or_insert(self.rank);
            drop(book);
            self.meeting.changed.notify_all();
        }
    }

    /// Nobody hears of it any more, which is the fault of the meeting; unless it left before.
    pub(crate) fn lost(&self, fault: RankError) {
        let mut book = self.meeting.book();
        if book.ranks[self.rank] != Presence::Left {
            book.fail(fault);
        }
        drop(book);
        self.ended();
    }

    /// Comes to exchange `number` of a group and waits for the others.
    fn wait(
        &self,
        mut book: MutexGuard<'_, Book>,
        (group, number): (&[usize], u64),
        (place, what): (usize, &str),
    ) -> Result<(), RankError> {
        let meeting = &self.meeting;
        let Book { rooms, ranks, fault, .. } = &mut *book;
        if let Some(fault) = fault {
            return Err(fault.clone());
        }
        let room = rooms.get_mut(group).expect("the room was entered");
        room.at[place].clear();
        room.at[place].push_str(what);
        room.has_come[place] = true;
        if room.has_come.iter().all(|has_come| *has_come) {
            meeting.changed.notify_all();
            if let Some(difference) = room.difference() {
                return Err(book.fail(difference));
            }
            room.complete += 1;
            room.has_come.fill(false);
            return Ok(());
        }
        if ranks[self.rank] == Presence::Busy {
            ranks[self.rank] = Presence::Waiting(Arc::clone(&room.group));
        }
        let deadline = Instant::now() + meeting.patience;
        loop {
            if book.rooms[group].complete > number {
                break;
            }
            if let Some(fault) = &book.fault {
                return Err(fault.clone());
            }
            if let Some(rank) = book.absent(group) {
                meeting.changed.notify_all();
                return Err(book.fail(RankError::Gone { rank, what: what.to_owned() }));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                meeting.changed.notify_all();
                let (rank, seconds) = (book.culprit(group), meeting.patience.as_secs());
                return Err(book.fail(RankError::Late { rank, what: what.to_owned(), seconds }));
            }
            let waited = meeting.changed.wait_timeout(book, left);
            book = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        // The process of a rank may end while its bytes still wait here.
        if matches!(book.ranks[self.rank], Presence::Waiting(_)) {
            book.ranks[self.rank] = Presence::Busy;
        }
        Ok(())
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.ended();
    }
}
