//! The exit codes of every command.

use overdrive_process::Signal;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Exit {
    /// All requested work was done.
    Fine = 0,
    /// Something became slower, larger or less accurate.
    Regression = 1,
    /// The input or the command line was wrong.
    BadInput = 2,
    /// The harness erred, a case failed, or nothing ran.
    Harness = 3,
    /// Outputs disagree with the reference.
    WrongOutputs = 4,
    /// There was not enough evidence to decide.
    Inconclusive = 5,
    /// Another rank of the run failed, and ended this one with it; its own error tells why.
    OtherRank = 6,
    /// Ctrl-C or SIGINT; what was done is kept. As shells report it: 128 and the signal's number.
    Interrupted = 130,
    /// Who reads standard output went away, as in `| head`; a program that SIGPIPE ends is reported
    /// so.
    ClosedPipe = 141,
    /// SIGTERM or SIGHUP; what was done is kept.
    Terminated = 143,
}

impl Exit {
    /// The code for the operating system.
    pub fn code(self) -> u8 {
        self as u8
    }
}

impl From<Signal> for Exit {
    fn from(signal: Signal) -> Self {
        match signal {
            Signal::Interrupt => Self::Interrupted,
            Signal::Terminate => Self::Terminated,
        }
    }
}

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}
