//! The one place that writes to standard output and standard error, and knows how wide they are.
//!
//! Standard output has the requested result. If its reader went away (`| head`), the command ends
//! silently, with the code of a program that SIGPIPE ends. If it cannot be written for another
//! reason (a full disk), the command has failed. Standard error has all other messages. If nobody
//! reads them, notes are lost, and the work goes on.

use crate::failure::Failure;
use indicatif::ProgressDrawTarget;
use overdrive::bench::exit::Exit;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// A line on standard output; errs where it cannot be written.
macro_rules! say {
    ($($text:tt)*) => { $crate::terminal::write(format_args!("{}\n", format_args!($($text)*))) };
}

/// A line on standard output that stands beside the result: not with `-q`.
macro_rules! tell {
    ($($text:tt)*) => { $crate::terminal::besides(format_args!("{}\n", format_args!($($text)*))) };
}

/// A line on standard error, not with `-q`.
macro_rules! note {
    ($($text:tt)*) => {
        if $crate::terminal::volume() != $crate::terminal::Volume::Quiet {
            $crate::terminal::beside(format_args!($($text)*));
        }
    };
}

pub(crate) use {note, say, tell};

/// How much is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Volume {
    /// The result, where it lies, and errors.
    Quiet,
    /// A summary.
    Normal,
    /// All tables.
    Verbose,
}

/// Set once, before anything is said.
static VOLUME: OnceLock<Volume> = OnceLock::new();
static HUSHED: AtomicBool = AtomicBool::new(false);

/// Says from now on as much as this.
pub(crate) fn speak(volume: Volume) {
    let _ = VOLUME.set(volume);
}

/// Says from now on only what `-q` would: one process speaks for several.
pub(crate) fn hush() {
    HUSHED.store(true, Ordering::Relaxed);
}

/// How much is said; errors of the command line come before anybody could choose.
pub(crate) fn volume() -> Volume {
    match HUSHED.load(Ordering::Relaxed) {
        true => Volume::Quiet,
        false => VOLUME.get().copied().unwrap_or(Volume::Normal),
    }
}

/// Columns of a standard output that is no terminal: what every screen and every log has.
pub(crate) const NO_TERMINAL: u16 = 80;
/// Columns that words need at least.
const LEAST: u16 = 40;

/// Writes to standard output, at once.
pub(crate) fn write(text: fmt::Arguments<'_>) -> Result<(), Failure> {
    // One call: what the reader gets is never the half of a table.
    let text = text.to_string();
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(unwritten)
}

/// Writes text that a model made. A terminal would obey the control characters in it, and shows
/// their codes instead.
pub(crate) fn write_made(text: &str) -> Result<(), Failure> {
    match io::stdout().is_terminal() {
        true => write(format_args!("{}", visible(text))),
        false => write(format_args!("{text}")),
    }
}

/// The text with `\u{1b}` for ESC, and so on; ends of lines and tabs stay.
fn visible(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => c.to_string(),
        c if c.is_control() => c.escape_unicode().to_string(),
        c => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// Writes text around a result to standard output, unless the user asked for quiet.
pub(crate) fn besides(text: fmt::Arguments<'_>) -> Result<(), Failure> {
    if volume() == Volume::Quiet { Ok(()) } else { write(text) }
}

/// Writes a line to standard error, if it can be.
pub(crate) fn beside(line: fmt::Arguments<'_>) {
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// The same when memory is short: the line is written in pieces and never held whole.
pub(crate) fn beside_without_memory(line: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// The target that the line of a progress bar is drawn to.
pub(crate) fn line() -> ProgressDrawTarget {
    ProgressDrawTarget::stderr()
}

/// Prints clap's text. Help and the version are requested results; everything else is a mistake of
/// the user.
pub(crate) fn usage(error: &clap::Error) -> Result<Exit, Failure> {
    let printed = error.print().and_then(|()| io::stdout().flush());
    if error.use_stderr() {
        return Ok(Exit::BadInput);
    }
    printed.map(|()| Exit::Fine).map_err(unwritten)
}

/// How wide lines on standard output may be.
pub(crate) fn width() -> u16 {
    let columns =
        io::stdout().is_terminal().then(|| console::Term::stdout().size_checked()).flatten();
    columns.map_or(NO_TERMINAL, |(_, columns)| columns.max(LEAST))
}

fn unwritten(error: io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::closed_pipe(),
        _ => Failure::harness(format!(
            "cannot write to standard output: {error}; make room, or send it elsewhere"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_codes_on_a_terminal() {
        let made = "a\tb\n\u{1b}[2Jc\rd\u{7}\u{9b}é語";
        assert_eq!(visible(made), "a\tb\n\\u{1b}[2Jc\\u{d}d\\u{7}\\u{9b}é語");
    }
}
