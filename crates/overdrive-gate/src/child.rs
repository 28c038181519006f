//! A child process with a limit of time, whose output goes to a file: nothing of it is lost, and it
//! cannot block on a full pipe.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use overdrive_process::{Running, Stop};

/// How often a child is asked whether it has ended, at most and at least. Asking takes a core for a
/// moment, and a block of quick processes should not wait for the asking.
const POLL: [Duration; 2] = [Duration::from_millis(1), Duration::from_millis(50)];
/// A child is asked again after this share of the time that it has run.
const POLL_SHARE: u32 = 20;
/// How long a child may take to end by itself after a stop, which it was told of.
const GRACE: Duration = Duration::from_secs(5);
/// How much of a child's output is quoted.
const TAIL_LINES: usize = 15;

/// How a child ended.
pub(super) enum Ended {
    /// By itself.
    Exited(ExitStatus),
    /// It passed its limit and was killed.
    TimedOut,
    /// It was interrupted.
    Stopped,
}

/// Runs `command` to its end, with both its outputs in the file `log`.
///
/// # Errors
/// When it cannot be started, or the file not be made.
pub(super) fn run(
    command: &mut Command,
    log: &Path,
    limit: Option<Duration>,
    stop: &Stop,
) -> io::Result<Ended> {
    let output = File::create(log)?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let mut running = stop.spawn(command)?;
    let start = Instant::now();
    loop {
        if let Some(status) = running.child.try_wait()? {
            return Ok(if stop.is_requested() { Ended::Stopped } else { Ended::Exited(status) });
        }
        if stop.is_requested() {
            end(&mut running)?;
            return Ok(Ended::Stopped);
        }
        if limit.is_some_and(|limit| start.elapsed() > limit) {
            running.kill()?;
            return Ok(Ended::TimedOut);
        }
        std::thread::sleep((start.elapsed() / POLL_SHARE).clamp(POLL[0], POLL[1]));
    }
}

fn end(running: &mut Running) -> io::Result<()> {
    let start = Instant::now();
    while running.child.try_wait()?.is_none() {
        if start.elapsed() > GRACE {
            return running.kill();
        }
        std::thread::sleep((start.elapsed() / POLL_SHARE).clamp(POLL[0], POLL[1]));
    }
    Ok(())
}

/// The last lines of a child's output, for a message.
pub(super) fn tail(log: &Path) -> String {
    let bytes = overdrive_files::read(log, overdrive_files::TEXT).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}
