//! Rank 0: it listens, and carries what the ranks show each other.
//!
//! Each other rank has a member of a meeting here, and three threads. One receives from the rank,
//! one takes part for it, one sends to it. Another thread tells all ranks of a fault. Invariant:
//! rank 0 outlives what it has to tell. It ends only after the others have and all is sent, or a
//! few seconds after a fault.

use super::alive::{Alive, BEAT, silent};
use crate::frame::{Frame, Greeting, MODEST, shown};
use crate::meeting::{Meeting, Member, News};
use overdrive_ir::{Communicator, Exchange, Mesh, RankError};
use std::io::{self, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time to wait for others to end.
const ENDING: Duration = Duration::from_secs(5);

/// Time limit for a new connection to send its greeting, and for rank 0 to say that it knows it.
pub(super) const GREETING: Duration = Duration::from_secs(10);

/// Time between two looks at the port.
const LOOK: Duration = Duration::from_millis(2);

/// A new connection and its greeting.
type Visitor = (TcpStream, Greeting);

/// Waits for all other ranks, and gives their streams in their order.
pub(super) fn gather(
    listener: &TcpListener,
    own: &Greeting,
    (size, patience): (usize, Duration),
) -> Result<Vec<TcpStream>, RankError> {
    let broken = |error: io::Error| {
        let message = format!("cannot listen: {error}; start all ranks again");
        RankError::Unreachable { rank: 0, message }
    };
    listener.set_nonblocking(true).map_err(broken)?;
    let (sender, visitors) = channel();
    let mut ranks: Vec<Option<TcpStream>> = (0..size).map(|_| None).collect();
    // Processes that say they are a rank that is here.
    let mut more = vec![];
    let mut fault: Option<RankError> = None;
    let mut deadline = Instant::now() + patience;
    while ranks[1..].iter().any(Option::is_none) && Instant::now() < deadline {
        match listener.accept() {
            Ok((stream, _)) => {
                let (sender, run): (Sender<Visitor>, _) = (sender.clone(), own.run.clone());
                thread::spawn(move || {
                    // Whoever is no rank is not answered.
                    let Ok(greeting) = greeting(&stream) else { return };
                    if greeting.run == run {
                        send(&stream, &Frame::Known);
                        let _ = sender.send((stream, greeting));
                    } else {
                        let why = "expected this run at its address, found another; choose \
                                   another port with MASTER_PORT";
                        send(&stream, &Frame::Refused(why.to_owned()));
                    }
                });
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => thread::sleep(LOOK),
            Err(error) => return Err(broken(error)),
        }
        for (stream, greeting) in visitors.try_iter() {
            let wrong = difference(own, &greeting, size).or_else(|| twice(&ranks, greeting.rank));
            let place = ranks.get_mut(greeting.rank).filter(|place| place.is_none());
            match place {
                Some(place) if greeting.rank > 0 => *place = Some(stream),
                _ => more.push(stream),
            }
            if let (None, Some(wrong)) = (&fault, wrong) {
                fault = Some(wrong);
                // Those who come a little later hear of it too.
                deadline = deadline.min(Instant::now() + ENDING);
            }
        }
    }
    let late = ranks.iter().skip(1).position(Option::is_none).map(|missing| RankError::Late {
        rank: missing + 1,
        what: "the meeting of all ranks".to_owned(),
        seconds: patience.as_secs(),
    });
    let Some(fault) = fault.or(late) else {
        let streams: Vec<TcpStream> = ranks.into_iter().flatten().collect();
        streams.iter().for_each(|stream| send(stream, &Frame::Welcome));
        return Ok(streams);
    };
    ranks.iter().flatten().chain(&more).for_each(|s| send(s, &Frame::Fault(fault.clone())));
    Err(fault)
}

/// The first message on a new connection.
fn greeting(stream: &TcpStream) -> io::Result<Greeting> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GREETING))?;
    match Frame::read(&mut &*stream, MODEST)? {
        Frame::Hello(greeting) => {
            stream.set_read_timeout(None)?;
            Ok(greeting)
        }
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// Sends if that can be done; who has gone is found out elsewhere.
fn send(mut stream: &TcpStream, frame: &Frame) {
    let _ = stream.write_all(&frame.to_bytes());
}

/// Why a rank cannot take part.
fn difference(own: &Greeting, found: &Greeting, size: usize) -> Option<RankError> {
    let differs = |[expected, found]: [String; 2], rank| {
        Some(RankError::Differs { rank, other: 0, expected, found })
    };
    let rank = found.rank;
    if found.version != own.version {
        return differs([&own.version, &found.version].map(|v| format!("version {v}")), rank);
    }
    if found.mesh != own.mesh || rank >= size {
        return differs([&own.mesh, &found.mesh].map(|mesh| format!("the mesh {mesh}")), rank);
    }
    None
}

fn twice(ranks: &[Option<TcpStream>], rank: usize) -> Option<RankError> {
    (rank == 0 || ranks[rank].is_some()).then(|| {
        let message = format!(
            "expected one process for each rank, found two processes that say they are rank \
             {rank}; let the launcher number them"
        );
        RankError::Unreachable { rank, message }
    })
}

/// Rank 0 of ranks that are processes.
#[derive(Debug)]
pub(super) struct First {
    member: Arc<Member>,
    patience: Duration,
    /// Closed once nobody sends any more.
    sending: Mutex<Receiver<Never>>,
}

/// Nothing is said through such a channel: its end is the news.
enum Never {}

impl First {
    /// Serves the ranks behind these streams, from rank 1 on.
    pub(super) fn new(mesh: &Mesh, streams: Vec<TcpStream>, patience: Duration) -> Self {
        let mut members = Meeting::of(mesh, patience).into_iter().map(Arc::new);
        let member = members.next().expect("a mesh has a rank");
        let (sends, sending) = channel();
        let mut outboxes = vec![];
        for (member, stream) in members.zip(streams) {
            outboxes.push(serve(member, stream, sends.clone()));
        }
        let meeting = Arc::clone(member.meeting());
        thread::spawn(move || tell(&meeting, &outboxes));
        Self { member, patience, sending: Mutex::new(sending) }
    }
}

/// Takes part for one rank. Returns the sender of frames to that rank, and keeps `sends` while
/// there may be some.
fn serve(member: Arc<Member>, stream: TcpStream, sends: Sender<Never>) -> Sender<Vec<u8>> {
    let stream = Arc::new(stream);
    let (outbox, to_send) = channel::<Vec<u8>>();
    let (requests, to_do) = channel();
    let (heard, from) = (Arc::clone(&member), Arc::clone(&stream));
    thread::spawn(move || {
        let ended = hear(&from, &heard, &requests);
        match ended.kind() {
            io::ErrorKind::TimedOut => heard.lost(silent(heard.rank())),
            _ => heard.ended(),
        }
    });
    let answers = outbox.clone();
    thread::spawn(move || take_part(&member, &to_do, &answers));
    thread::spawn(move || {
        loop {
            let bytes = match to_send.recv_timeout(BEAT) {
                Ok(bytes) => bytes,
                Err(RecvTimeoutError::Timeout) => Frame::Alive.to_bytes(),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            if (&*stream).write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = stream.shutdown(Shutdown::Both);
        drop(sends);
    });
    outbox
}

/// Passes on what a rank asks for until it ends; says how.
fn hear(stream: &TcpStream, member: &Member, requests: &Sender<Frame>) -> io::Error {
    let mut from = match Alive::new(stream) {
        Ok(from) => from,
        Err(error) => return error,
    };
    loop {
        match Frame::read(&mut from, u64::MAX) {
            Ok(Frame::Alive) => continue,
            Ok(frame) => {
                if frame == Frame::Leave {
                    member.leave();
                }
                if requests.send(frame).is_err() {
                    return io::ErrorKind::InvalidData.into();
                }
            }
            Err(error) => return error,
        }
    }
}

/// Does what a rank asks for until it leaves.
fn take_part(member: &Member, requests: &Receiver<Frame>, answers: &Sender<Vec<u8>>) {
    for request in requests {
        let answer = match request {
            Frame::Share { group, what, bytes } if group.contains(&member.rank()) => {
                let mut all = vec![];
                let exchange = Exchange { group: &group, what: &what, bytes: &bytes };
                let result = member.share(&exchange, &mut |_, bytes| all.push(bytes.to_vec()));
                match result {
                    Ok(()) => shown(&all),
                    Err(fault) => Frame::Fault(fault).to_bytes(),
                }
            }
            Frame::Leave => Frame::Bye.to_bytes(),
            _ => break,
        };
        if answers.send(answer).is_err() {
            break;
        }
    }
}

/// Tells all ranks of a fault, and of a rank that failed, until all have ended.
fn tell(meeting: &Meeting, outboxes: &[Sender<Vec<u8>>]) {
    let mut known = News::default();
    while !known.is_over {
        let news = meeting.news(&known);
        let fault = news.fault.clone().filter(|_| known.fault.is_none()).map(Frame::Told);
        let failed = news.failed.filter(|_| known.failed.is_none()).map(Frame::Failed);
        for frame in fault.into_iter().chain(failed) {
            for outbox in outboxes {
                // Ranks that have gone are told nothing.
                let _ = outbox.send(frame.to_bytes());
            }
        }
        known = news;
    }
}

impl Communicator for First {
    fn rank(&self) -> usize {
        self.member.rank()
    }

    fn mesh(&self) -> &Mesh {
        self.member.mesh()
    }

    fn share(
        &self,
        exchange: &Exchange<'_>,
        read: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), RankError> {
        self.member.share(exchange, read)
    }

    fn patience(&self) -> Duration {
        self.patience
    }

    fn check(&self) -> Result<(), RankError> {
        self.member.check()
    }

    /// The others may go on without rank 0, but not without its process.
    fn leave(&self) {
        self.member.leave();
        self.member.meeting().wait_for_others_to_end(0, self.patience);
    }
}

impl Drop for First {
    fn drop(&mut self) {
        if !self.member.has_left() {
            self.member.ended();
            let meeting = self.member.meeting();
            meeting.end();
            let deadline = Instant::now() + ENDING;
            meeting.wait_for_others_to_end(0, ENDING);
            // A rank that is not heard may hear: it is told which one that is.
            let sending = self.sending.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _ = sending.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        }
    }
}
