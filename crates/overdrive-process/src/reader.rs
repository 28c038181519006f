//! A process that ends with whoever reads a pipe of it, however that one ends.

use crate::process_group::{Force, signal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::io::{self, PipeWriter};

/// Ends this process, which leads its group, at once and with all that it started, when nobody
/// holds the reading end of `pipe` any more.
///
/// # Errors
/// When the system gives no thread to wait in.
pub fn end_with_reader(pipe: PipeWriter) -> io::Result<()> {
    let wait = move || {
        // A pipe without a reader is in error; nothing else is asked for.
        let gone = loop {
            match poll(&mut [PollFd::new(&pipe, PollFlags::empty())], None) {
                Err(Errno::INTR) => {}
                answer => break answer.is_ok(),
            }
        };
        if gone {
            signal(std::process::id(), Force::Killed);
        }
    };
    std::thread::Builder::new().name("reader".to_owned()).spawn(wait).map(drop)
}
