//! `Frame`: messages of ranks to each other, as bytes, over TCP and over MPI.
//!
//! A frame is four letters that say it is one of ours, its kind, the length of its content and the
//! content. Numbers are little-endian. Invariant: whatever arrives is a frame or an error, and no
//! length that somebody claims is allocated before its bytes are there.

use overdrive_ir::{Exchange, RankError};
use std::io::{self, Read};

/// Begins each frame. Another format of frames is another mark.
const MARK: [u8; 4] = *b"ODR1";

/// Bytes of a frame before its content.
const HEAD: usize = MARK.len() + 1 + 8;

/// Most bytes of what a stranger may send.
pub(crate) const MODEST: u64 = 1 << 16;

/// The first message of a process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Greeting {
    /// Tells runs apart.
    pub(crate) run: String,
    /// Version of the program.
    pub(crate) version: String,
    pub(crate) mesh: String,
    pub(crate) rank: usize,
}

/// One message. Over TCP it goes to or from rank 0, over MPI to each other rank.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Frame {
    /// To rank 0, before all else.
    Hello(Greeting),
    /// From rank 0, at once: this is its port, and the greeting is of its run.
    Known,
    /// From rank 0: all are here.
    Welcome,
    /// From rank 0 to a process that is none of this run; why.
    Refused(String),
    /// To rank 0: a rank comes to an exchange. Over MPI `bytes` has only the number of bytes.
    Share { group: Vec<usize>, what: String, bytes: Vec<u8> },
    /// From rank 0: what all have shown.
    Shown(Vec<Vec<u8>>),
    /// To rank 0: a rank is done.
    Leave,
    /// From rank 0: it knows that.
    Bye,
    /// From rank 0, in answer: the ranks cannot go on.
    Fault(RankError),
    /// From rank 0, unasked: this rank has failed.
    Failed(usize),
    /// From rank 0, unasked: the ranks cannot go on. An exchange under way has its own answer.
    Told(RankError),
    /// Over TCP, each second: the sender's process works, whatever it computes.
    Alive,
    /// To all, over MPI: the patience is over, and this is the rank that the sender waits for.
    #[cfg(feature = "mpi")]
    Waits(usize),
}

impl Frame {
    /// The bytes to send.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Frame::Hello(Greeting { run, version, mesh, rank }) => {
                let mut content = vec![];
                [run, version, mesh].into_iter().for_each(|text| put(&mut content, text));
                put_number(&mut content, *rank);
                framed(1, &[&content])
            }
            Frame::Known => framed(12, &[]),
            Frame::Alive => framed(13, &[]),
            Frame::Welcome => framed(2, &[]),
            Frame::Refused(why) => framed(3, &[why.as_bytes()]),
            Frame::Share { group, what, bytes } => share(&Exchange { group, what, bytes }),
            Frame::Shown(all) => shown(all),
            Frame::Leave => framed(6, &[]),
            Frame::Bye => framed(7, &[]),
            Frame::Fault(error) => framed(8, &[&of_error(error)]),
            Frame::Failed(rank) => framed(9, &[&(*rank as u64).to_le_bytes()]),
            Frame::Told(error) => framed(10, &[&of_error(error)]),
            #[cfg(feature = "mpi")]
            Frame::Waits(rank) => framed(11, &[&(*rank as u64).to_le_bytes()]),
        }
    }

    /// The next frame of a stream, whose content has at most so many bytes.
    ///
    /// # Errors
    /// When the stream ends or fails, or what comes is no frame.
    pub(crate) fn read(from: &mut dyn Read, most: u64) -> io::Result<Self> {
        let mut head = [0; HEAD];
        from.read_exact(&mut head)?;
        let length = u64::from_le_bytes(head[HEAD - 8..].try_into().expect("eight bytes"));
        if head[..MARK.len()] != MARK || length > most {
            return Err(garbled());
        }
        let mut content = vec![];
        from.take(length).read_to_end(&mut content)?;
        if content.len() as u64 != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Self::of(head[MARK.len()], content).ok_or_else(garbled)
    }

    fn of(kind: u8, content: Vec<u8>) -> Option<Self> {
        let mut rest = Rest(&content);
        let frame = match kind {
            1 => {
                let (run, version, mesh) = (rest.text()?, rest.text()?, rest.text()?);
                Frame::Hello(Greeting { run, version, mesh, rank: rest.number()? })
            }
            2 => Frame::Welcome,
            3 => return String::from_utf8(content).ok().map(Frame::Refused),
            4 => {
                let ranks = rest.number()?;
                let group = (0..ranks).map(|_| rest.number()).collect::<Option<_>>()?;
                let what = rest.text()?;
                Frame::Share { group, what, bytes: std::mem::take(&mut rest.0).to_vec() }
            }
            5 => {
                let ranks = rest.number()?;
                let all = (0..ranks).map(|_| rest.bytes().map(<[u8]>::to_vec));
                Frame::Shown(all.collect::<Option<_>>()?)
            }
            6 => Frame::Leave,
            7 => Frame::Bye,
            8 => Frame::Fault(to_error(&mut rest)?),
            9 => Frame::Failed(rest.number()?),
            10 => Frame::Told(to_error(&mut rest)?),
            #[cfg(feature = "mpi")]
            11 => Frame::Waits(rest.number()?),
            12 => Frame::Known,
            13 => Frame::Alive,
            _ => return None,
        };
        rest.0.is_empty().then_some(frame)
    }
}

fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what came is no message of a rank")
}

/// A `Share` without a copy of the caller's bytes of its own.
pub(crate) fn share(exchange: &Exchange<'_>) -> Vec<u8> {
    let mut content = vec![];
    put_number(&mut content, exchange.group.len());
    exchange.group.iter().for_each(|&rank| put_number(&mut content, rank));
    put(&mut content, exchange.what);
    framed(4, &[&content, exchange.bytes])
}

/// A `Shown` likewise.
pub(crate) fn shown(all: &[Vec<u8>]) -> Vec<u8> {
    let lengths: Vec<[u8; 8]> =
        all.iter().map(|bytes| (bytes.len() as u64).to_le_bytes()).collect();
    let count = (all.len() as u64).to_le_bytes();
    let mut parts: Vec<&[u8]> = vec![&count];
    for (length, bytes) in lengths.iter().zip(all) {
        parts.extend([&length[..], bytes]);
    }
    framed(5, &parts)
}

fn framed(kind: u8, parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    let mut bytes = Vec::with_capacity(HEAD + length);
    bytes.extend(MARK);
    bytes.push(kind);
    put_number(&mut bytes, length);
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

fn put_number(to: &mut Vec<u8>, number: usize) {
    to.extend((number as u64).to_le_bytes());
}

fn put(to: &mut Vec<u8>, text: &str) {
    put_number(to, text.len());
    to.extend(text.as_bytes());
}

/// The unread rest of a content.
struct Rest<'a>(&'a [u8]);

impl<'a> Rest<'a> {
    fn number(&mut self) -> Option<usize> {
        let (number, rest) = self.0.split_first_chunk::<8>()?;
        self.0 = rest;
        u64::from_le_bytes(*number).try_into().ok()
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.number()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }
}

fn of_error(error: &RankError) -> Vec<u8> {
    let mut bytes = vec![];
    match error {
        RankError::Gone { rank, what } => {
            [0, *rank].into_iter().for_each(|number| put_number(&mut bytes, number));
            put(&mut bytes, what);
        }
        RankError::Late { rank, what, seconds } => {
            let numbers = [1, *rank, *seconds as usize];
            numbers.into_iter().for_each(|number| put_number(&mut bytes, number));
            put(&mut bytes, what);
        }
        RankError::Differs { rank, other, expected, found } => {
            [2, *rank, *other].into_iter().for_each(|number| put_number(&mut bytes, number));
            [expected, found].into_iter().for_each(|text| put(&mut bytes, text));
        }
        RankError::Unreachable { rank, message } => {
            [3, *rank].into_iter().for_each(|number| put_number(&mut bytes, number));
            put(&mut bytes, message);
        }
    }
    bytes
}

fn to_error(rest: &mut Rest<'_>) -> Option<RankError> {
    let (kind, rank) = (rest.number()?, rest.number()?);
    Some(match kind {
        0 => RankError::Gone { rank, what: rest.text()? },
        1 => {
            let seconds = rest.number()? as u64;
            RankError::Late { rank, what: rest.text()?, seconds }
        }
        2 => {
            let other = rest.number()?;
            RankError::Differs { rank, other, expected: rest.text()?, found: rest.text()? }
        }
        3 => RankError::Unreachable { rank, message: rest.text()? },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Frame> {
        let text = |text: &str| text.to_owned();
        let what = || "`all_reduce` at layer".to_owned();
        vec![
            Frame::Hello(Greeting {
                run: text(""),
                version: text("0.1"),
                mesh: text("data=2"),
                rank: 1,
            }),
            Frame::Known,
            Frame::Alive,
            Frame::Welcome,
            Frame::Refused(text("another run")),
            Frame::Share { group: vec![0, 3], what: what(), bytes: vec![1, 2, 3] },
            Frame::Shown(vec![vec![], vec![7; 300]]),
            Frame::Leave,
            Frame::Bye,
            Frame::Fault(RankError::Gone { rank: 2, what: what() }),
            Frame::Fault(RankError::Late { rank: 2, what: what(), seconds: 600 }),
            Frame::Fault(RankError::Differs {
                rank: 1,
                other: 0,
                expected: text("a"),
                found: what(),
            }),
            Frame::Fault(RankError::Unreachable { rank: 0, message: text("no way") }),
            Frame::Failed(4),
            Frame::Told(RankError::Gone { rank: 2, what: what() }),
            #[cfg(feature = "mpi")]
            Frame::Waits(5),
        ]
    }

    #[test]
    fn frames_are_read_as_they_were_written() {
        let bytes: Vec<u8> = all().iter().flat_map(Frame::to_bytes).collect();
        let mut from = &bytes[..];
        for frame in all() {
            assert_eq!(Frame::read(&mut from, u64::MAX).ok(), Some(frame));
        }
        assert!(from.is_empty());
    }

    #[test]
    fn whatever_else_comes_is_an_error() {
        for frame in all() {
            let bytes = frame.to_bytes();
            for end in 0..bytes.len() {
                assert!(Frame::read(&mut &bytes[..end], u64::MAX).is_err(), "{frame:?} to {end}");
            }
            for at in 0..bytes.len() {
                let mut bytes = bytes.clone();
                bytes[at] ^= 0x80;
                // The bytes may be another valid frame. Reading them must neither panic nor
                // allocate the claimed length.
                let _ = Frame::read(&mut &bytes[..], u64::MAX);
            }
        }
        let request = b"GET / HTTP/1.1\r\nHost: rank0\r\n\r\n";
        assert!(Frame::read(&mut &request[..], MODEST).is_err());
    }
}
