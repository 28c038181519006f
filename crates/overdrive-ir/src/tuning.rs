//! Choices made for a device, as data.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Choices that change how, never what, is computed. Stored with results so that they can be
/// repeated.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Tuning {
    /// Worker threads; `None` means one per available core.
    pub threads: Option<usize>,
    /// Winners of timed candidates by site key.
    pub choices: BTreeMap<String, Choice>,
    /// Upper limit of the bytes that a call takes of main memory, with states, inputs, outputs and
    /// the scratch of kernels. Plans that exceed it make logits some rows at a time, compute
    /// values again or keep some in other memory.
    pub memory_limit: Option<u64>,
    /// Every state that can wait in other memory does, and work waits for each copy: the baseline
    /// of what copies beside work gain. Devices without other memory have no such states.
    #[serde(default)]
    pub blocking_copies: bool,
    /// States that other plans share: they stay in main memory.
    #[serde(default)]
    pub shared: BTreeSet<String>,
}

/// A remembered winner with the timings that made it so.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Choice {
    /// The chosen candidate.
    pub candidate: String,
    /// Median time of each candidate in ns.
    pub timings_ns: BTreeMap<String, f64>,
}

impl Choice {
    /// The fastest of the timed candidates; on a tie the first by name, so that the choice is
    /// reproducible.
    pub fn fastest(timings_ns: BTreeMap<String, f64>) -> Option<Self> {
        let winner =
            timings_ns.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(name, _)| name.clone());
        winner.map(|candidate| Self { candidate, timings_ns })
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |name: &String| self.timings_ns.get(name).map_or(f64::NAN, |ns| ns / 1e3);
        write!(f, "{} at {:.1} us", self.candidate, time(&self.candidate))?;
        let others: Vec<_> =
            self.timings_ns.keys().filter(|name| **name != self.candidate).collect();
        for (i, name) in others.into_iter().enumerate() {
            write!(f, "{}{name} {:.1}", if i == 0 { ", against " } else { ", " }, time(name))?;
        }
        Ok(())
    }
}
