//! Errors of back ends and of ranks that run together.

/// Why a back end could not do what was asked. The process can go on after each of them.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BackendError {
    /// The graph needs something that the device lacks.
    #[error("{backend} cannot run `{op}` at {scope}: {reason}")]
    Unsupported {
        /// Name of the back end.
        backend: String,
        /// Name of the op.
        op: String,
        /// Scope of the node.
        scope: String,
        /// The missing feature and how to get around it.
        reason: String,
    },
    /// The plan does not fit in memory.
    #[error("the plan needs {needed} bytes, there are {available}: {remedy}")]
    OutOfMemory {
        /// Bytes that the plan needs.
        needed: u64,
        /// Bytes that there are.
        available: u64,
        /// The change that would make it fit.
        remedy: String,
    },
    /// A buffer of the wrong type was passed, or a state is missing.
    #[error("{what}: expected {expected}, found {found}")]
    Mismatch {
        /// Which argument.
        what: String,
        /// The declaration of the graph.
        expected: String,
        /// The argument that was passed.
        found: String,
    },
    /// The device reported an error, in its own words.
    #[error("{step} failed: {message}")]
    Device {
        /// The step that failed.
        step: String,
        /// The device's own words.
        message: String,
    },
    /// Ranks that run together cannot go on.
    #[error(transparent)]
    Ranks(#[from] RankError),
}

impl BackendError {
    /// Errs unless as many `what` were passed as expected.
    ///
    /// # Errors
    /// `Mismatch` with both numbers.
    pub fn check_count(what: &str, expected: usize, found: usize) -> Result<(), Self> {
        if expected == found {
            return Ok(());
        }
        let (expected, found) = (expected.to_string(), found.to_string());
        Err(Self::Mismatch { what: format!("number of {what}"), expected, found })
    }
}

/// Why ranks cannot go on together. Every rank is told the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RankError {
    /// A rank ended early.
    #[error(
        "rank {rank} ended, while others were at {what}: expected all ranks to stay until the end; \
         what it said itself tells why"
    )]
    Gone {
        /// The rank.
        rank: usize,
        /// The meeting or exchange that the others were at.
        what: String,
    },
    /// A rank lives, but does not come.
    #[error(
        "rank {rank} did not come to {what} in {seconds} s: expected every rank there; look into \
         that process, then start all ranks again"
    )]
    Late {
        /// The rank.
        rank: usize,
        /// The meeting or exchange that waits for it.
        what: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// Two ranks do not do the same.
    #[error(
        "rank {rank}: expected {expected}, as rank {other} has, found {found}; start all ranks \
         with the same version, model, data and options"
    )]
    Differs {
        /// The rank that differs.
        rank: usize,
        /// The rank that it was compared with.
        other: usize,
        /// The other rank's side of the difference.
        expected: String,
        /// This rank's side of it.
        found: String,
    },
    /// The way to a rank is broken, in the words of the transport.
    #[error("cannot reach rank {rank}: {message}")]
    Unreachable {
        /// The rank.
        rank: usize,
        /// The fault, and how to mend it.
        message: String,
    },
}
