//! The message to a user when a command cannot go on: one message, one exit code.

use overdrive::bench::exit::Exit;
use overdrive::bench::failure::{self, FailureKind};
use overdrive::files::FileError;
use std::fmt;

/// A message for a person and the exit code for a script.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The message to the user.
    pub message: String,
    /// The exit code of the process.
    pub exit: Exit,
}

impl Failure {
    /// The user's input was wrong.
    pub(crate) fn bad_input(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), exit: Exit::BadInput }
    }

    /// We could not do the requested work.
    pub(crate) fn harness(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), exit: Exit::Harness }
    }

    /// Nothing was measured. Too little memory is something that the user can mend.
    pub(crate) fn unmeasured(failure: failure::Failure) -> Self {
        match failure.kind {
            FailureKind::OutOfMemory => Self::bad_input(failure),
            _ => Self::harness(failure),
        }
    }

    /// A signal ended it; the message says what was kept and how to go on.
    pub(crate) fn interrupted(message: impl fmt::Display) -> Self {
        Self { message: message.to_string(), exit: Exit::Interrupted }
    }

    /// The same with a sentence more.
    pub(crate) fn and(mut self, sentence: impl fmt::Display) -> Self {
        self.message += &format!(". {sentence}");
        self
    }

    /// Nobody reads standard output any more, so that there is nobody to tell.
    pub(crate) fn closed_pipe() -> Self {
        Self { message: String::new(), exit: Exit::ClosedPipe }
    }
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Self {
        Self::bad_input(error)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.exit {
            Exit::Interrupted => write!(f, "interrupted: {}", self.message),
            _ => write!(f, "error: {}", self.message),
        }
    }
}

/// `unknown study `x`: expected one of ...; did you mean `y`?`
pub(crate) fn unknown(what: &str, name: &str, known: &[&str]) -> String {
    let nearest = known.iter().max_by(|a, b| {
        let similarity = |k: &&str| strsim::jaro_winkler(name, k);
        similarity(a).total_cmp(&similarity(b))
    });
    let hint = nearest.filter(|k| strsim::jaro_winkler(name, k) > 0.7);
    let hint = hint.map_or(String::new(), |k| format!("; did you mean `{k}`?"));
    format!("unknown {what} `{name}`: expected one of {}{hint}", known.join(", "))
}
