//! Ceilings, measured in the same run as what is held against them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::measurement::CeilingShare;
use crate::runner::Runner;
use crate::series::Series;
use crate::subject::Subject;
use crate::work::Work;

/// A rate that this machine was seen to reach.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ceiling {
    /// Its name, unique in a run: `stream 256 MiB t2`, `matmul f32 t2`.
    pub name: String,
    /// The resource that it limits.
    pub kind: CeilingKind,
    /// Bytes or FLOPs in one call.
    pub amount_per_call: u64,
    /// Worker threads.
    pub threads: u32,
    /// The fastest candidate: `ordinary stores`, `non-temporal stores`.
    pub method: String,
    /// The samples behind it.
    pub series: Series,
}

/// The resource that a ceiling limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CeilingKind {
    /// Bytes read and written per second.
    Bandwidth,
    /// Floating-point operations per second.
    Compute,
}

/// The work that candidates for a ceiling are measured on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// See [`Ceiling::name`].
    pub name: String,
    /// See [`Ceiling::kind`].
    pub kind: CeilingKind,
    /// Bytes read plus bytes written, or FLOPs, in one call.
    pub amount_per_call: u64,
    /// Worker threads.
    pub threads: u32,
}

impl Ceiling {
    /// Measures each candidate (a way to stream, a GEMM) in one session and keeps the fastest.
    ///
    /// # Errors
    /// The first candidate's failure, when none of them ran.
    pub fn measure(
        runner: &Runner<'_>,
        probe: Probe,
        candidates: &mut [(&str, &mut dyn Subject)],
    ) -> Result<Self, Failure> {
        let names: Vec<String> = candidates.iter().map(|(name, _)| (*name).to_owned()).collect();
        let mut subjects: Vec<&mut dyn Subject> =
            candidates.iter_mut().map(|(_, subject)| &mut **subject as &mut dyn Subject).collect();
        let mut best: Option<(String, Series)> = None;
        let mut first_failure = None;
        for (name, outcome) in names.into_iter().zip(runner.compare(&mut subjects)) {
            if let Some(failure) = outcome.failure() {
                first_failure.get_or_insert_with(|| failure.clone());
            }
            let Some(series) = outcome.measurement().and_then(|m| m.latency.clone()) else {
                continue;
            };
            if best
                .as_ref()
                .is_none_or(|(_, known)| series.summary.median_ns < known.summary.median_ns)
            {
                best = Some((name, series));
            }
        }
        match best {
            Some((method, series)) => Ok(Self {
                name: probe.name,
                kind: probe.kind,
                amount_per_call: probe.amount_per_call,
                threads: probe.threads,
                method,
                series,
            }),
            None => {
                Err(first_failure.unwrap_or_else(|| Failure::skipped("there was no candidate")))
            }
        }
    }

    /// The rate at the median, in bytes or FLOPs per second.
    pub fn per_second(&self) -> f64 {
        self.amount_per_call as f64 / (self.series.summary.median_ns * 1e-9)
    }

    /// The share of this ceiling that `work` in `time_ns` reaches.
    pub fn share(&self, work: &Work, time_ns: f64) -> CeilingShare {
        let amount = match self.kind {
            CeilingKind::Bandwidth => work.bytes,
            CeilingKind::Compute => work.flops,
        };
        CeilingShare {
            ceiling: self.name.clone(),
            share: amount as f64 / (time_ns * 1e-9) / self.per_second(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Rules;
    use crate::testing::{Synthetic, SyntheticClock};

    fn measured(kind: CeilingKind, amount_per_call: u64) -> Ceiling {
        let clock = SyntheticClock::default();
        let runner = Runner::new(&clock, Rules::full(), 0);
        let (mut slow, mut fast) =
            (Synthetic::new(&clock, |_| 2_000_000), Synthetic::new(&clock, |_| 1_000_000));
        let probe = Probe { name: "c".into(), kind, amount_per_call, threads: 2 };
        Ceiling::measure(
            &runner,
            probe,
            &mut [("ordinary", &mut slow), ("non-temporal", &mut fast)],
        )
        .unwrap()
    }

    #[test]
    fn the_fastest_candidate_is_the_ceiling() {
        let ceiling = measured(CeilingKind::Bandwidth, 10_000_000);
        assert_eq!(ceiling.method, "non-temporal");
        assert!((ceiling.per_second() / 1e10 - 1.0).abs() < 1e-9);
        let work = Work { flops: 1, bytes: 5_000_000, items: None };
        assert!((ceiling.share(&work, 1e6).share - 0.5).abs() < 1e-9);
        assert!(ceiling.share(&work, 0.4e6).share > 1.0, "a measured ceiling can be beaten");
    }

    #[test]
    fn without_a_candidate_that_runs_there_is_no_ceiling() {
        let clock = SyntheticClock::default();
        let runner = Runner::new(&clock, Rules::quick(), 0);
        let probe =
            Probe { name: "c".into(), kind: CeilingKind::Compute, amount_per_call: 1, threads: 1 };
        assert!(Ceiling::measure(&runner, probe, &mut []).is_err());
    }
}
