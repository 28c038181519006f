//! A child process that does not outlive its owner.
//!
//! It leads a process group of its own: Ctrl-C at the terminal reaches us alone, and we end it
//! together with all that it started. So it is never ended in the middle of something that we still
//! wait for.

use crate::process_group::{Force, signal};
use crate::stop::Stop;
use std::io;
use std::process::{Child, Command};

/// A child, registered with the request to end.
#[derive(Debug)]
pub struct Running {
    /// The process, for its pipes and for waiting.
    pub child: Child,
    stop: Stop,
}

impl Stop {
    /// Starts a child that is asked to end when this is requested.
    ///
    /// # Errors
    /// When the system does not start it.
    pub fn spawn(&self, command: &mut Command) -> io::Result<Running> {
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        let child = command.spawn()?;
        self.add(child.id());
        Ok(Running { child, stop: self.clone() })
    }
}

impl Running {
    /// Ends it at once with all that it started, and waits for it.
    ///
    /// # Errors
    /// When the system does not let us.
    pub fn kill(&mut self) -> io::Result<()> {
        signal(self.child.id(), Force::Killed);
        // For systems without process groups.
        let _ = self.child.kill();
        self.child.wait().map(drop)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.kill();
        }
        self.stop.remove(self.child.id());
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use crate::Signal;
    use std::io::{BufRead, BufReader, Read};
    use std::process::{ChildStdout, Stdio};

    /// A shell that holds its end of a pipe for as long as it, or what it started, lives.
    fn shell(stop: &Stop, line: &str) -> (Running, BufReader<ChildStdout>) {
        let mut command = Command::new("/bin/sh");
        let mut running = stop.spawn(command.args(["-c", line]).stdout(Stdio::piped())).unwrap();
        let mut from = BufReader::new(running.child.stdout.take().unwrap());
        from.read_line(&mut String::new()).unwrap();
        (running, from)
    }

    /// Returns only when nobody holds the other end any more.
    fn rest(mut from: BufReader<ChildStdout>) -> String {
        let mut text = String::new();
        from.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn a_request_reaches_children_and_theirs() {
        let stop = Stop::default();
        // The inner shell reports that it runs. If the outer one did, its child might still have
        // the handler of TERM, and would lose a signal of that moment.
        let line = "trap 'echo kept; exit 3' TERM; sh -c 'echo on; exec sleep 600' & wait";
        let (mut running, from) = shell(&stop, line);
        stop.request(Signal::Interrupt);
        assert_eq!(running.child.wait().unwrap().code(), Some(3));
        assert_eq!(rest(from), "kept\n");
        let (mut late, from) = shell(&stop, "echo on; sleep 600");
        assert!(!late.child.wait().unwrap().success(), "it was started after the request");
        rest(from);
    }

    #[test]
    fn what_does_not_listen_is_killed_with_all_that_it_started() {
        let stop = Stop::default();
        let deaf = "trap '' TERM; sleep 600 & echo on; sleep 600";
        let (running, from) = shell(&stop, deaf);
        drop(running);
        rest(from);
        let (_running, from) = shell(&stop, deaf);
        stop.kill_children();
        rest(from);
    }
}
