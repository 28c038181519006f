//! `PlanError`: why no plan could be made, and what to do about it.

use overdrive_ir::{BackendError, GraphError, RankError};

/// Ends the remedy for a plan above its limit: some callers know whether a smaller batch fits.
pub const OR_SMALLER_BATCH: &str = ", or a smaller batch";

/// Why no plan could be made.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// A dimension is still a name.
    #[error("graph `{graph}` has unbound dimensions: bind {} before planning", names.join(", "))]
    Unbound {
        /// Name of the graph.
        graph: String,
        /// The names.
        names: Vec<String>,
    },
    /// Main memory exceeds `Tuning::memory_limit`.
    #[error(
        "`{graph}` needs {needed} bytes of memory ({} of it states, inputs and outputs), the limit \
         is {limit}; {}: use a limit of at least {least} bytes{OR_SMALLER_BATCH}",
        needed - during,
        reached((*needed, *least), *waits)
    )]
    OverLimit {
        /// Name of the graph.
        graph: String,
        /// Bytes that it takes without a limit.
        needed: u64,
        /// Those of it that live only during a call: its arena and its scratch.
        during: u64,
        /// The fewest bytes that were found by computing values again and moving them away.
        least: u64,
        /// Whether the device has other memory, where values can wait.
        waits: bool,
        /// The limit.
        limit: u64,
    },
    /// A state that `dynamic_update_slice` replaces is still read in its old form afterwards.
    #[error(
        "state `{state}` is updated by dynamic_update_slice at {scope} but {reader} needs its old \
         value too, which would copy the whole state in every call: read the updated value \
         instead, or read the old one before the update"
    )]
    CopiedState {
        /// The state.
        state: String,
        /// The scope of its update.
        scope: String,
        /// The step that reads the old value.
        reader: String,
    },
    /// Another rank failed.
    #[error(transparent)]
    Ranks(#[from] RankError),
    /// A pass found the graph ill-formed.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl PlanError {
    /// The error of a back end for a graph without a plan.
    pub fn refused_by(self, backend: &str, graph: &str) -> BackendError {
        match self {
            Self::OverLimit { needed, least, waits, limit, .. } => BackendError::OutOfMemory {
                needed,
                available: limit,
                remedy: format!(
                    "{}; use a limit of at least {least} bytes{OR_SMALLER_BATCH}",
                    reached((needed, least), waits)
                ),
            },
            Self::Ranks(error) => error.into(),
            other => BackendError::Unsupported {
                backend: backend.to_owned(),
                op: "plan".to_owned(),
                scope: graph.to_owned(),
                reason: other.to_string(),
            },
        }
    }
}

/// How far the passes got, from the bytes needed to the least that they found.
fn reached((needed, least): (u64, u64), waits: bool) -> String {
    match (least < needed, waits) {
        (true, true) => format!(
            "computing values again for the backward, and keeping some in other memory of the \
             device, gets it down to {least}"
        ),
        (true, false) => {
            format!("computing values again for the backward gets it down to {least}")
        }
        (false, _) => "computing values again saves nothing".to_owned(),
    }
}
