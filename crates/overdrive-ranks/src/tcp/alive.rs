//! Signs of life, by which others tell a rank that works from one that is stopped or cut off.
//!
//! Each end of a connection sends something every second, from a thread that works while the rank
//! computes. An end that receives nothing for [`SILENT`] reads in a row takes the other for lost.
//! Reads are counted and not time, so a process that was stopped itself does not blame the others.

use overdrive_ir::RankError;
use std::io::{self, Read};
use std::net::TcpStream;
use std::time::Duration;

/// Between two signs of life; the longest time that one read waits.
pub(super) const BEAT: Duration = Duration::from_secs(1);

/// Reads in a row without a byte that are too many. A link may take a few seconds to recover.
const SILENT: u32 = 15;

/// The bytes of a connection whose other end gives signs of life. Its error is of the kind
/// `TimedOut` if that end does not.
pub(super) struct Alive<'a> {
    stream: &'a TcpStream,
    /// Reads in a row without a byte.
    silent: u32,
}

impl<'a> Alive<'a> {
    pub(super) fn new(stream: &'a TcpStream) -> io::Result<Self> {
        stream.set_read_timeout(Some(BEAT))?;
        Ok(Self { stream, silent: 0 })
    }
}

impl Read for Alive<'_> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(to) {
                // The kind differs between systems.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) =>
                {
                    self.silent += 1;
                    if self.silent >= SILENT {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                }
                read => {
                    self.silent = 0;
                    return read;
                }
            }
        }
    }
}

/// Said of a rank that gave no sign of life.
pub(super) fn silent(rank: usize) -> RankError {
    let seconds = u64::from(SILENT) * BEAT.as_secs();
    let message = format!(
        "expected a sign of life each second, found none for {seconds} s; its process is stopped, \
         or its machine or network is down: look there, then start all ranks again"
    );
    RankError::Unreachable { rank, message }
}
