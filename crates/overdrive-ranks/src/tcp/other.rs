//! A rank that is not rank 0: its connection to rank 0, through which it reaches the others.
//!
//! One thread hears what rank 0 says, so that a fault is known while the rank works. Another one
//! gives signs of life. Invariant: nobody waits for an answer longer than rank 0 lives, which waits
//! for no rank longer than the patience.

use super::address::{addresses, ports_in_words};
use super::alive::{Alive, BEAT, silent};
use super::first::GREETING;
use crate::Launch;
use crate::frame::{Frame, Greeting, MODEST, share};
use crate::meeting::gone_meanwhile;
use overdrive_ir::{Communicator, Exchange, Mesh, RankError};
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long rank 0 may take beyond the patience to say whom it waited for.
const GRACE: Duration = Duration::from_secs(5);

/// Between two tries to reach rank 0, which may start later.
const AGAIN: Duration = Duration::from_millis(50);

/// Time limit for one try.
const CONNECTING: Duration = Duration::from_secs(10);

/// Any rank but 0.
#[derive(Debug)]
pub(super) struct Other {
    rank: usize,
    mesh: Mesh,
    patience: Duration,
    line: Arc<Line>,
    /// One exchange at a time.
    turn: Mutex<()>,
    inbox: Arc<Inbox>,
}

/// The connection.
#[derive(Debug)]
struct Line {
    stream: TcpStream,
    /// One message at a time.
    writing: Mutex<()>,
}

impl Line {
    fn send(&self, bytes: &[u8]) -> io::Result<()> {
        let _turn = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        (&self.stream).write_all(bytes)
    }
}

/// Messages from rank 0.
#[derive(Debug)]
struct Inbox {
    said: Mutex<Said>,
    changed: Condvar,
}

#[derive(Debug)]
struct Said {
    answer: Option<Result<Vec<Vec<u8>>, RankError>>,
    fault: Option<RankError>,
    failed: Option<usize>,
    /// Rank 0 knows that this rank is done, or is gone itself.
    is_over: bool,
    /// The exchange that this rank waits for.
    at: Option<String>,
}

impl Inbox {
    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, said: MutexGuard<'a, Said>, most: Duration) -> MutexGuard<'a, Said> {
        self.changed.wait_timeout(said, most).unwrap_or_else(PoisonError::into_inner).0
    }
}

impl Other {
    /// Greets rank 0, and waits until all are there.
    pub(super) fn join(
        launch: &Launch,
        (mesh, greeting): (&Mesh, Greeting),
        patience: Duration,
    ) -> Result<Self, RankError> {
        let rank = greeting.rank;
        let mut stream = reach(launch, &greeting, patience)?;
        let mut welcome = || {
            stream.set_read_timeout(Some(patience + GRACE))?;
            Frame::read(&mut stream, MODEST)
        };
        match welcome().map_err(|error| broken(launch, &error))? {
            Frame::Welcome => {}
            Frame::Fault(fault) => return Err(fault),
            _ => return Err(broken(launch, &io::ErrorKind::InvalidData.into())),
        }
        let said = Said { answer: None, fault: None, failed: None, is_over: false, at: None };
        let inbox = Arc::new(Inbox { said: Mutex::new(said), changed: Condvar::new() });
        let line = Arc::new(Line { stream, writing: Mutex::new(()) });
        let (from, to) = (Arc::clone(&line), Arc::clone(&inbox));
        thread::spawn(move || hear(&from.stream, &to));
        let alive = Arc::clone(&line);
        thread::spawn(move || {
            // The end of this rank closes the connection.
            while alive.send(&Frame::Alive.to_bytes()).is_ok() {
                thread::sleep(BEAT);
            }
        });
        Ok(Self { rank, mesh: mesh.clone(), patience, line, turn: Mutex::new(()), inbox })
    }
}

/// Why rank 0 does not answer as it should.
fn broken(launch: &Launch, error: &io::Error) -> RankError {
    let expected = format!("expected rank 0 at {} of {}", ports_in_words(launch), launch.host);
    let message = match error.kind() {
        io::ErrorKind::InvalidData => {
            format!("{expected}, found another program; choose another port with MASTER_PORT")
        }
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => format!(
            "{expected}, found that it does not answer; look into the process that listens there"
        ),
        _ => format!("{expected}, found that it ended ({error}); what it said tells why"),
    };
    RankError::Unreachable { rank: 0, message }
}

/// Finds rank 0, as soon as it listens, and greets it.
///
/// Strangers may listen at some of several ports. At a single one they are an error.
fn reach(launch: &Launch, greeting: &Greeting, patience: Duration) -> Result<TcpStream, RankError> {
    let deadline = Instant::now() + patience;
    let hello = Frame::Hello(greeting.clone()).to_bytes();
    let answer = if launch.port_is_held { GREETING } else { patience + GRACE };
    loop {
        let (addresses, unknown) = match addresses(launch) {
            Ok(addresses) => (addresses, None),
            // A name may be known a little later.
            Err(error) => (vec![], Some(error)),
        };
        let mut failed = None;
        for address in addresses.into_iter().flatten() {
            let mut stream = match TcpStream::connect_timeout(&address, CONNECTING) {
                Ok(stream) => stream,
                Err(error) => {
                    failed.get_or_insert(error);
                    continue;
                }
            };
            match greet(&mut stream, &hello, answer) {
                Ok(Frame::Known) => return Ok(stream),
                Ok(Frame::Fault(fault)) => return Err(fault),
                _ if launch.port_is_held => {}
                Ok(Frame::Refused(message)) => {
                    return Err(RankError::Unreachable { rank: 0, message });
                }
                Ok(_) => return Err(broken(launch, &io::ErrorKind::InvalidData.into())),
                Err(error) => return Err(broken(launch, &error)),
            }
        }
        if Instant::now() >= deadline {
            if let Some(error) = unknown {
                return Err(error);
            }
            let (host, ports) = (&launch.host, ports_in_words(launch));
            let seconds = patience.as_secs();
            let why = failed.map(|error| format!(" ({error})")).unwrap_or_default();
            let message = format!(
                "expected it to listen at {ports} of {host} within {seconds} s, found that it does \
                 not{why}; start rank 0, or set MASTER_ADDR and MASTER_PORT to where it is"
            );
            return Err(RankError::Unreachable { rank: 0, message });
        }
        thread::sleep(AGAIN);
    }
}

/// Says who this is, and gives what comes back within `answer`.
fn greet(stream: &mut TcpStream, hello: &[u8], answer: Duration) -> io::Result<Frame> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(answer))?;
    stream.write_all(hello)?;
    Frame::read(stream, MODEST)
}

/// Hears rank 0 until it ends.
fn hear(stream: &TcpStream, inbox: &Inbox) {
    let ended = heard(stream, inbox);
    let mut said = inbox.said();
    if !said.is_over {
        let fault = match (&said.at, ended.kind()) {
            (_, io::ErrorKind::TimedOut) => silent(0),
            (Some(what), _) => RankError::Gone { rank: 0, what: what.clone() },
            (None, _) => gone_meanwhile(0),
        };
        said.fault.get_or_insert(fault);
        said.is_over = true;
    }
    drop(said);
    inbox.changed.notify_all();
}

/// The same; says how it ended.
fn heard(stream: &TcpStream, inbox: &Inbox) -> io::Error {
    let mut from = match Alive::new(stream) {
        Ok(from) => from,
        Err(error) => return error,
    };
    loop {
        let frame = match Frame::read(&mut from, u64::MAX) {
            Ok(frame) => frame,
            Err(error) => return error,
        };
        let mut said = inbox.said();
        match frame {
            Frame::Alive => continue,
            Frame::Shown(all) => said.answer = Some(Ok(all)),
            Frame::Fault(fault) => said.answer = Some(Err(fault)),
            Frame::Told(fault) => drop(said.fault.get_or_insert(fault)),
            Frame::Failed(rank) => drop(said.failed.get_or_insert(rank)),
            Frame::Bye => said.is_over = true,
            _ => return io::ErrorKind::InvalidData.into(),
        }
        drop(said);
        inbox.changed.notify_all();
    }
}

impl Communicator for Other {
    fn rank(&self) -> usize {
        self.rank
    }

    fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    fn share(
        &self,
        exchange: &Exchange<'_>,
        read: &mut dyn FnMut(usize, &[u8]),
    ) -> Result<(), RankError> {
        assert!(exchange.group.contains(&self.rank), "a rank takes part in its own groups");
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        {
            let mut said = self.inbox.said();
            if let Some(fault) = &said.fault {
                return Err(fault.clone());
            }
            said.at = Some(exchange.what.to_owned());
        }
        // If this fails, the thread that hears finds the same, and whose fault it is.
        let _ = self.line.send(&share(exchange));
        let mut said = self.inbox.said();
        let all = loop {
            match said.answer.take() {
                Some(Ok(all)) => break all,
                Some(Err(fault)) => return Err(said.fault.get_or_insert(fault).clone()),
                None => {}
            }
            if let Some(fault) = said.fault.clone().filter(|_| said.is_over) {
                return Err(fault);
            }
            said = self.inbox.wait(said, BEAT);
        };
        said.at = None;
        drop(said);
        all.iter().enumerate().for_each(|(position, bytes)| read(position, bytes));
        Ok(())
    }

    fn patience(&self) -> Duration {
        self.patience
    }

    fn check(&self) -> Result<(), RankError> {
        let said = self.inbox.said();
        match (&said.fault, said.failed) {
            (Some(fault), _) => Err(fault.clone()),
            (None, Some(rank)) => Err(gone_meanwhile(rank)),
            (None, None) => Ok(()),
        }
    }

    fn leave(&self) {
        let _ = self.line.send(&Frame::Leave.to_bytes());
        let deadline = Instant::now() + GRACE;
        let mut said = self.inbox.said();
        while !said.is_over {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            said = self.inbox.wait(said, left);
        }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.line.stream.shutdown(Shutdown::Both);
    }
}
