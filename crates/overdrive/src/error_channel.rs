//! How a rank that `--nproc` started hands its error to the command that started it.
//!
//! The command can then say once what all ranks say. Standard error does not tell: rank 0 draws its
//! progress there. So standard input, which a rank does not read, is the writing end of a pipe. The
//! command holds the reading end as long as it lives, so a rank also learns that it was killed.

use crate::failure::Failure;
use crate::terminal;
use std::io::{self, PipeReader, Write};
use std::process::Command;

/// Set for a process whose standard input takes its error.
const VARIABLE: &str = "OVERDRIVE_ERROR_TO_STDIN";

/// The reader of the error that `command` reports, if it fails by itself. Nothing else can be read
/// here.
pub(crate) fn of(command: &mut Command) -> io::Result<PipeReader> {
    let (reader, writer) = io::pipe()?;
    command.stdin(writer).env(VARIABLE, "1");
    Ok(reader)
}

/// Ends this process, at once, when the command that takes its error is gone.
///
/// # Errors
/// When the system gives no means to learn of that.
pub(crate) fn end_with_command() -> io::Result<()> {
    match std::env::var_os(VARIABLE) {
        #[cfg(unix)]
        Some(_) => overdrive_process::end_with_reader(writer()?),
        _ => Ok(()),
    }
}

/// Says why this process failed: to the command that asked for it, or else on standard error.
pub(crate) fn tell(failure: &Failure) {
    let asked = std::env::var_os(VARIABLE).is_some();
    if !asked || hand_over(failure).is_err() {
        terminal::beside(format_args!("{failure}"));
    }
}

#[cfg(unix)]
fn hand_over(failure: &Failure) -> io::Result<()> {
    writer()?.write_all(failure.to_string().as_bytes())
}

#[cfg(unix)]
fn writer() -> io::Result<io::PipeWriter> {
    use std::os::fd::AsFd;
    Ok(io::stdin().as_fd().try_clone_to_owned()?.into())
}

#[cfg(not(unix))]
fn hand_over(_: &Failure) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
