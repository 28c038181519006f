//! The thread that makes all MPI calls of a rank, and takes part in exchanges for it.
//!
//! Each member of a group sends every other one a frame that names its exchange, then its bytes.
//! Invariant: the thread waits for nobody longer than the patience, and a rank that finds a fault
//! tells all ranks. When the patience is over, ranks tell each other for whom they wait. So the
//! blame is on the rank at the end of the chain, which answers nothing.

use super::wire::{Flight, Wire};
use crate::frame::{Frame, share};
use crate::meeting::gone_meanwhile;
use overdrive_ir::{Exchange, RankError};
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at MPI while the rank works.
const LOOK: Duration = Duration::from_millis(5);

/// How long to ask MPI without a pause for ranks that do not come.
const SPIN: Duration = Duration::from_millis(20);

/// Between two looks after that.
const REST: Duration = Duration::from_micros(100);

/// Time for ranks to say for whom they wait.
const ANSWER: Duration = Duration::from_secs(2);

/// How long to wait for the rank that failed to end first, so that its exit code is mpirun's.
pub(super) const ENDING: Duration = Duration::from_secs(3);

/// An order to the thread.
pub(super) enum Order {
    Share { group: Vec<usize>, what: String, bytes: Vec<u8> },
    Leave,
}

/// Faults that a rank knows of.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Why the ranks cannot go on.
    pub(super) fault: OnceLock<RankError>,
    /// The first rank that ended without leaving.
    pub(super) failed: OnceLock<usize>,
    /// How often the thread has looked at MPI. If it stands still, a call of MPI hangs.
    pub(super) looks: AtomicU64,
}

impl Known {
    /// Why a rank at no exchange cannot go on.
    pub(super) fn error(&self) -> Option<RankError> {
        let fault = self.fault.get().cloned();
        fault.or_else(|| self.failed.get().map(|&rank| gone_meanwhile(rank)))
    }
}

/// The bytes that all members of a group have shown.
pub(super) type Shown = Result<Vec<Vec<u8>>, RankError>;

/// An exchange that a rank is at.
#[derive(Clone)]
struct At {
    group: Vec<usize>,
    what: String,
    /// Number of bytes that it shows.
    count: usize,
}

impl At {
    fn is_same(&self, other: &Self) -> bool {
        (&self.group, &self.what) == (&other.group, &other.what)
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of ranks {:?}", self.what, self.group)
    }
}

/// A rank and what it knows of the others.
pub(super) struct Talk {
    wire: Wire,
    rank: usize,
    patience: Duration,
    known: Arc<Known>,
    /// The exchanges that each rank has come to and this one has not; `None` is its end.
    came: Vec<VecDeque<Option<At>>>,
    has_left: Vec<bool>,
    /// For whom a rank waits whose patience is over.
    waits: Vec<Option<usize>>,
    /// Frames under way.
    told: Vec<Flight>,
}

impl Talk {
    pub(super) fn new(
        wire: Wire,
        (rank, size): (usize, usize),
        patience: Duration,
        known: Arc<Known>,
    ) -> Self {
        let came = (0..size).map(|_| VecDeque::new()).collect();
        let (has_left, waits, told) = (vec![false; size], vec![None; size], vec![]);
        Self { wire, rank, patience, known, came, has_left, waits, told }
    }

    /// Does what the rank orders, until it leaves or is gone.
    pub(super) fn serve(mut self, orders: &Receiver<Order>, answers: &Sender<Shown>) {
        loop {
            match orders.recv_timeout(LOOK) {
                Ok(Order::Share { group, what, bytes }) => {
                    // Nobody waits for the answer once the rank is gone.
                    let _ = answers.send(self.exchange(group, what, bytes));
                }
                Ok(Order::Leave) => {
                    self.leave();
                    let _ = answers.send(Ok(vec![]));
                    return;
                }
                Err(RecvTimeoutError::Timeout) => self.hear(),
                Err(RecvTimeoutError::Disconnected) => return self.fail_and_end(),
            }
        }
    }

    fn exchange(&mut self, group: Vec<usize>, what: String, bytes: Vec<u8>) -> Shown {
        let (me, own) = (self.rank, At { group, what, count: bytes.len() });
        let At { group, what, count } = &own;
        let others = || group.iter().copied().filter(|&rank| rank != me);
        let count = (*count as u64).to_le_bytes();
        self.told.push(self.wire.tell(share(&Exchange { group, what, bytes: &count }), others()));
        let mut shown = Some(self.wire.show(bytes, others()));
        let mut all: Vec<Option<At>> = vec![None; group.len()];
        self.wait(what, SPIN, |talk| {
            for (&rank, at) in group.iter().zip(&mut all).filter(|(_, at)| at.is_none()) {
                *at = match talk.came[rank].front() {
                    _ if rank == me => Some(own.clone()),
                    None => return Ok(Some((rank, 0))),
                    Some(None) => {
                        let rank = *talk.known.failed.get().unwrap_or(&rank);
                        return Err(RankError::Gone { rank, what: what.clone() });
                    }
                    Some(Some(_)) => talk.came[rank].pop_front().flatten(),
                };
            }
            Ok(None)
        })?;
        let all: Vec<At> = all.into_iter().flatten().collect();
        if let Some(place) = all.iter().position(|at| !at.is_same(&all[0])) {
            return Err(self.fail(RankError::Differs {
                rank: group[place],
                other: group[0],
                expected: format!("to be at {}", all[0]),
                found: format!("that it is at {}", all[place]),
            }));
        }
        let flight = |(&rank, at): (&usize, &At)| match rank == me {
            true => shown.take().expect("a rank is in its group once"),
            false => self.wire.see(rank, at.count),
        };
        let mut flights: Vec<Flight> = group.iter().zip(&all).map(flight).collect();
        self.wait(what, Duration::MAX, |_| {
            let late = flights.iter_mut().filter_map(Flight::waits_for);
            Ok(late.reduce(|(rank, count), (_, more)| (rank, count + more)))
        })?;
        Ok(flights.into_iter().map(Flight::into_bytes).collect())
    }

    /// Waits until `missing` finds nothing. It gives a rank, and how many messages are under way:
    /// while these become fewer, nobody hangs. After `spin` it is asked less often.
    fn wait(
        &mut self,
        what: &str,
        spin: Duration,
        mut missing: impl FnMut(&mut Self) -> Result<Option<(usize, usize)>, RankError>,
    ) -> Result<(), RankError> {
        let (mut since, mut messages) = (Instant::now(), 0);
        let mut asked: Option<Instant> = None;
        loop {
            self.hear();
            // A rank that failed since then takes nothing from an exchange that is complete.
            let (rank, left) = match (missing(self), self.known.fault.get()) {
                (Ok(None), _) => break,
                (_, Some(fault)) => return Err(fault.clone()),
                (Err(fault), None) => return Err(self.fail(fault)),
                (Ok(Some(found)), None) => found,
            };
            if left != messages {
                (since, messages) = (Instant::now(), left);
            }
            let is_late = since.elapsed() >= self.patience;
            if asked.is_none() && (is_late || self.waits.iter().any(Option::is_some)) {
                self.waits[self.rank] = Some(rank);
                self.tell(&Frame::Waits(rank));
                asked = Some(Instant::now());
            }
            if is_late && asked.is_some_and(|asked| asked.elapsed() >= ANSWER) {
                let (rank, seconds) = (self.culprit(rank), self.patience.as_secs());
                return Err(self.fail(RankError::Late { rank, what: what.to_owned(), seconds }));
            }
            if since.elapsed() < spin { thread::yield_now() } else { thread::sleep(REST) }
        }
        self.waits[self.rank] = None;
        Ok(())
    }

    /// Whom a rank waits for in the end: it may wait elsewhere itself.
    fn culprit(&self, mut rank: usize) -> usize {
        for _ in 0..self.waits.len() {
            let Some(next) = self.waits[rank] else { break };
            rank = next;
        }
        rank
    }

    /// Takes in what others have sent.
    fn hear(&mut self) {
        self.known.looks.fetch_add(1, Ordering::Relaxed);
        while let Some((from, frame)) = self.wire.hear() {
            match frame {
                Ok(Frame::Share { group, what, bytes }) if bytes.len() == 8 => {
                    let count = bytes.try_into().map_or(0, u64::from_le_bytes) as usize;
                    self.came[from].push_back(Some(At { group, what, count }));
                    self.waits[from] = None;
                }
                Ok(Frame::Waits(rank)) if rank < self.waits.len() => self.waits[from] = Some(rank),
                Ok(Frame::Leave) => {
                    self.came[from].push_back(None);
                    self.has_left[from] = true;
                }
                Ok(Frame::Failed(rank)) => {
                    self.came[from].push_back(None);
                    self.known.failed.get_or_init(|| rank);
                }
                Ok(Frame::Told(fault)) => drop(self.known.fault.set(fault)),
                _ => {
                    let message = "expected a message of this version of Overdrive, found another; \
                                   start all ranks with the same version";
                    let message = message.to_owned();
                    let _ = self.known.fault.set(RankError::Unreachable { rank: from, message });
                }
            }
        }
        self.told.retain_mut(|flight| flight.waits_for().is_some());
    }

    fn tell(&mut self, frame: &Frame) {
        let others = (0..self.came.len()).filter(|&rank| rank != self.rank);
        self.told.push(self.wire.tell(frame.to_bytes(), others));
    }

    /// Makes it the fault of the run, and tells all ranks.
    fn fail(&mut self, fault: RankError) -> RankError {
        self.tell(&Frame::Told(fault.clone()));
        self.known.fault.get_or_init(|| fault).clone()
    }

    /// Waits until all ranks are done, then ends MPI. MPI is left as it is if one does not come.
    fn leave(mut self) {
        self.tell(&Frame::Leave);
        self.has_left[self.rank] = true;
        let start = Instant::now();
        while !self.told.is_empty() || self.has_left.contains(&false) {
            self.hear();
            if self.known.error().is_some() || start.elapsed() >= self.patience {
                return;
            }
            thread::sleep(REST);
        }
        self.wire.end();
    }

    /// The rank has failed: tells all, and lets the one that failed first end first.
    fn fail_and_end(mut self) {
        let known = Arc::clone(&self.known);
        if known.fault.get().is_none() {
            self.tell(&Frame::Failed(*known.failed.get().unwrap_or(&self.rank)));
        }
        let first = match known.fault.get() {
            // Who hangs does not end.
            Some(RankError::Late { .. }) => None,
            Some(
                RankError::Gone { rank, .. }
                | RankError::Differs { rank, .. }
                | RankError::Unreachable { rank, .. },
            ) => Some(rank),
            None => known.failed.get(),
        };
        let waits = first.is_some_and(|&first| first != self.rank);
        let start = Instant::now();
        while start.elapsed() < ENDING && (waits || !self.told.is_empty()) {
            self.told.retain_mut(|flight| flight.waits_for().is_some());
            thread::sleep(REST);
        }
    }
}
