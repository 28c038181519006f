//! How often the system took the CPU away.

use std::fs;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Context switches of every thread of this process that is alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ContextSwitches {
    /// A thread waited for something.
    pub voluntary: u64,
    /// A thread could have gone on and was not let.
    pub involuntary: u64,
}

impl ContextSwitches {
    /// Those since an earlier reading.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            voluntary: self.voluntary.saturating_sub(earlier.voluntary),
            involuntary: self.involuntary.saturating_sub(earlier.involuntary),
        }
    }
}

/// Reads the counters; `None` where the system does not tell.
pub fn context_switches() -> Option<ContextSwitches> {
    let mut sum = ContextSwitches { voluntary: 0, involuntary: 0 };
    for task in fs::read_dir("/proc/self/task").ok()?.flatten() {
        // A thread may end between the listing and the reading.
        let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
        let field = |name: &str| {
            status.lines().find_map(|line| line.strip_prefix(name))?.trim().parse::<u64>().ok()
        };
        sum.voluntary += field("voluntary_ctxt_switches:")?;
        sum.involuntary += field("nonvoluntary_ctxt_switches:")?;
    }
    Some(sum)
}
