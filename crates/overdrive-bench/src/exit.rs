//! What a run's results mean for its exit code. A run that measured nothing has not passed.

use crate::outcome::FailureKind;
use crate::results::Results;
use overdrive_process::Signal;

/// The exit codes of every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Exit {
    /// Everything asked for was done.
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

    /// Wrong outputs before failures, failures before success. What is unsupported here or was
    /// skipped is no failure, unless nothing else was left.
    pub fn of(results: &Results) -> Self {
        let failed = |kinds: &[FailureKind]| {
            results
                .records
                .iter()
                .filter_map(|r| r.outcome.failure())
                .any(|failure| kinds.contains(&failure.kind))
        };
        let ran = results.records.iter().any(|record| record.outcome.measurement().is_some());
        if failed(&[FailureKind::Incorrect]) {
            Self::WrongOutputs
        } else if !ran
            || failed(&[FailureKind::Failed, FailureKind::OutOfMemory, FailureKind::Timeout])
        {
            Self::Harness
        } else {
            Self::Fine
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Failure;
    use crate::testing::{record, results};

    fn code(failures: &[Failure], ran: usize) -> u8 {
        let mut found = results();
        found.records = (0..ran).map(|i| record(&format!("ran{i}"), &[1000; 6])).collect();
        for (i, failure) in failures.iter().enumerate() {
            let mut failed = record(&format!("failed{i}"), &[1000; 6]);
            failed.outcome = failure.clone().into();
            found.records.push(failed);
        }
        Exit::of(&found).code()
    }

    #[test]
    fn zero_cases_have_not_passed() {
        assert_eq!(code(&[], 0), 3);
        assert_eq!(code(&[Failure::unsupported("no GPU"), Failure::skipped("no GPU")], 0), 3);
    }

    #[test]
    fn each_failure_has_its_code() {
        assert_eq!(code(&[], 1), 0);
        assert_eq!(code(&[Failure::unsupported("no GPU"), Failure::skipped("no GPU")], 1), 0);
        assert_eq!(code(&[Failure::failed("panicked: 1")], 1), 3);
        assert_eq!(code(&[Failure::out_of_memory("1 GiB")], 1), 3);
        assert_eq!(code(&[Failure::timeout("120 s")], 1), 3);
        assert_eq!(code(&[Failure::failed("1"), Failure::incorrect("by 1")], 1), 4);
    }
}
