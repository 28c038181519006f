//! How a graph is executed: node by node, planned, fused, or replayed whole.

use serde::{Deserialize, Serialize};
use std::fmt;

/// How a graph is executed. The modes are the baselines of every comparison, so none is slowed.
#[derive(
    Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// A node at a time, nothing fused, memory allocated as it goes, the same GEMM.
    Eager,
    /// Planned into one arena, not fused.
    Jit,
    /// Fused, tuned, cached.
    #[default]
    Compile,
    /// `Compile`, captured once as a device graph and replayed.
    Graph,
}

impl Mode {
    /// Every mode, from the plainest to the fastest.
    pub const ALL: [Mode; 4] = [Mode::Eager, Mode::Jit, Mode::Compile, Mode::Graph];

    /// Its name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Eager => "eager",
            Mode::Jit => "jit",
            Mode::Compile => "compile",
            Mode::Graph => "graph",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
