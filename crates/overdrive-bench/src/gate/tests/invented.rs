//! Processes on a machine that a test describes: each has an effect of its own, calls have spikes, the whole
//! session drifts, clocks drop.

use std::collections::BTreeMap;

use crate::environment::Environment;
use crate::gate::block::Side;
use crate::gate::observation::{Observations, Observed};
use crate::gate::session::{Evidence, Progress, Request, Step};
use crate::gate::verdicts::{GATE_VERSION, Program, Verdicts};
use crate::gate::{Processes, Session, control, judge};
use crate::outcome::Failure;
use crate::statistics::Sorted;

/// Nobody watches.
pub(super) struct Silent;

impl Progress for Silent {
    fn step(&self, _step: &Step) {}
}

/// A machine, its noise and the programs on it.
pub(super) struct Machine {
    pub(super) rng: fastrand::Rng,
    /// Standard deviation of the log of a process's own factor.
    pub(super) process_noise: f64,
    /// Share of calls that take eight times as long.
    pub(super) spikes: f64,
    /// Log growth of every time from the first process of a session to its hundredth.
    pub(super) drift: f64,
    /// The current's time over the baseline's, by case.
    pub(super) slowdowns: BTreeMap<&'static str, f64>,
    /// The device's clock relative to its best, by side and process; with it, cycles are counted.
    pub(super) clock: Option<fn(Side, usize) -> f64>,
}

impl Machine {
    pub(super) fn quiet(seed: u64, slowdowns: &[(&'static str, f64)]) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            process_noise: 0.01,
            spikes: 0.0,
            drift: 0.0,
            slowdowns: slowdowns.iter().copied().collect(),
            clock: None,
        }
    }

    /// A standard normal number, by Box and Muller.
    fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.rng.f64(), self.rng.f64());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    fn observe(&mut self, side: Side, process: usize, slowdown: f64) -> Observed {
        let drift = (self.drift * process as f64 / 100.0).exp();
        let own = (self.process_noise * self.normal()).exp();
        let work = if side == Side::Current { slowdown } else { 1.0 };
        let calls: Vec<f64> = (0..20)
            .map(|_| {
                let spike = if self.rng.f64() < self.spikes { 8.0 } else { 1.0 };
                let jitter = 1.0 + 0.01 * self.rng.f64();
                1e6 * work * own * drift * jitter * spike
            })
            .collect();
        let median = Sorted::new(&calls).unwrap().median();
        match self.clock {
            None => Observed::of_time(median),
            Some(clock) => {
                let clock = clock(side, process);
                Observed { cycles: Some(1.5 * median), ..Observed::of_time(median / clock) }
            }
        }
    }
}

impl Processes for Machine {
    fn run(&mut self, side: Side, request: &Request<'_>) -> Result<Observations, Failure> {
        let cases: Vec<(&str, f64)> =
            self.slowdowns.iter().map(|(case, slowdown)| (*case, *slowdown)).collect();
        let wanted =
            cases.into_iter().filter(|(case, _)| request.cases.is_empty() || request.cases.contains(*case));
        Ok(wanted
            .map(|(case, slowdown)| (case.to_owned(), Ok(self.observe(side, request.process, slowdown))))
            .collect())
    }
}

/// A session on any processes.
pub(super) fn session(processes: &mut dyn Processes) -> Verdicts {
    verdicts(&Session::new(processes, &Silent, 1).run())
}

/// Verdicts from evidence, on no machine in particular.
pub(super) fn verdicts(evidence: &Evidence) -> Verdicts {
    let program = |name: &str, commit: &str| Program {
        name: name.to_owned(),
        commit: Some(commit.to_owned()),
        command: "overdrive run kernels --quick".to_owned(),
    };
    let environment = Environment { load_average: Some(0.04), ..crate::testing::results().environment };
    Verdicts {
        gate_version: GATE_VERSION,
        started_unix_s: 1_795_190_709,
        command: "overdrive regress --baseline main --current HEAD".to_owned(),
        seed: 1,
        baseline: program("main", "0123456789abcdef"),
        current: program("HEAD", "fedcba9876543210"),
        environment,
        control: control(evidence),
        cases: judge(evidence),
        lost_processes: evidence.lost.iter().map(|(side, failure)| format!("{side}: {failure}")).collect(),
        ended_early: evidence.ended_early.clone(),
        notes: Vec::new(),
    }
}
