//! A cumulative gain, which exists only as a measured ladder: one workload, each step the one
//! before plus one change, every step run. The total is first over last as measured, never a
//! product of ratios.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::Record;
use crate::speedup::{NoClaim, Reason, Speedup};

/// The records that are the steps of a ladder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LadderKey {
    /// The ladder's subject: `transformer, eager f32 to the fastest`.
    pub title: String,
    /// The steps from the slowest on.
    pub rungs: Vec<Rung>,
}

/// One step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rung {
    /// The one change from the step before; of the first, what it is.
    pub change: String,
    /// Id of the record's case.
    pub case: String,
}

/// A ladder whose every step was measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ladder {
    steps: Vec<LadderStep>,
}

/// A step above the first.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LadderStep {
    /// The one change from the step before.
    pub change: String,
    /// Over the step before.
    pub over_previous: Speedup,
    /// Over the first step.
    pub over_first: Speedup,
}

impl Ladder {
    /// Climbs `rungs`: each change with the record that it led to.
    ///
    /// # Errors
    /// When there are fewer than two rungs, or two of them cannot be compared: a ladder with a gap
    /// has no total.
    pub fn measured(rungs: &[(&str, &Record)]) -> Result<Self, NoClaim> {
        let [(_, first), _, ..] = rungs else {
            let only = rungs.first().map_or_else(String::new, |(_, record)| record.case.id());
            let why = "a ladder needs at least two steps".to_owned();
            return Err(NoClaim {
                baseline: only.clone(),
                variant: only,
                reasons: vec![Reason::NoLadder { why }],
            });
        };
        let climb = |pair: &[(&str, &Record)]| {
            let [(_, previous), (change, record)] = pair else {
                unreachable!("windows of two hold two")
            };
            Ok(LadderStep {
                change: (*change).to_owned(),
                over_previous: Speedup::between(previous, record)?,
                over_first: Speedup::between(first, record)?,
            })
        };
        Ok(Self { steps: rungs.windows(2).map(climb).collect::<Result<_, NoClaim>>()? })
    }

    /// The steps above the first.
    pub fn steps(&self) -> &[LadderStep] {
        &self.steps
    }

    /// First over last, as measured.
    pub fn total(&self) -> &Speedup {
        &self.steps.last().expect("a ladder has a step above its first").over_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Workload;
    use crate::testing::record;

    fn spans(ns: u64) -> Vec<u64> {
        (0..20).map(|i| ns + (i * 7919) % (ns / 200)).collect()
    }

    #[test]
    fn the_total_is_first_over_last() {
        let (eager, jit, compile) = (
            record("eager", &spans(4_000_000)),
            record("jit", &spans(2_000_000)),
            record("compile", &spans(1_000_000)),
        );
        let ladder =
            Ladder::measured(&[("eager", &eager), ("planned", &jit), ("fused", &compile)]).unwrap();
        assert_eq!(ladder.steps().len(), 2);
        assert!((ladder.steps()[0].over_previous.ratio() - 2.0).abs() < 0.01);
        assert!((ladder.total().ratio() - 4.0).abs() < 0.02);
        assert_eq!(ladder.total(), &Speedup::between(&eager, &compile).unwrap());
    }

    #[test]
    fn a_gap_or_another_workload_has_no_total() {
        let eager = record("eager", &spans(4_000_000));
        let mut other = record("compile", &spans(1_000_000));
        assert!(Ladder::measured(&[("eager", &eager)]).is_err());
        other.case.workload = Workload::new("other", []);
        assert!(Ladder::measured(&[("eager", &eager), ("fused", &other)]).is_err());
        other.outcome = crate::failure::Failure::out_of_memory("1 GiB").into();
        assert!(Ladder::measured(&[("eager", &eager), ("fused", &other)]).is_err());
    }
}
