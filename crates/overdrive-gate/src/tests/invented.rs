//! Processes on a machine that a test describes. Each has an effect of its own; calls have spikes,
//! processes have modes, the whole session drifts, clocks drop.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::session::{ProcessRequest, Progress, SessionProgress};
use crate::{GateSession, Processes, derive};
use overdrive_bench::environment::Environment;
use overdrive_bench::failure::Failure;
use overdrive_bench::statistics::Sorted;
use overdrive_bench::verdicts::{
    Control, Evidence, GATE_VERSION, MEAN, MEDIAN, Observations, Observed, Program, Side, Verdicts,
};

/// Nobody watches.
pub(super) struct Silent;

impl Progress for Silent {
    fn block(&self, _step: &SessionProgress) {}
}

/// The time of a process of an invented session: a block takes 1.5 s, a usual session 40 blocks.
pub(super) const PROCESS: Duration = Duration::from_millis(250);

/// A machine, its noise and the programs on it.
pub(super) struct Machine {
    pub(super) rng: fastrand::Rng,
    /// Standard deviation of the log of a process's own factor.
    pub(super) process_noise: f64,
    /// Share of processes, and of stretches of the session, that take longer by this factor.
    pub(super) modes: Option<(f64, f64)>,
    /// How many processes a mode lasts, in the mean.
    pub(super) stretch: f64,
    /// Share of calls that take eight times as long.
    pub(super) spikes: f64,
    /// Share of the current's calls that take three times as long.
    pub(super) slow_calls: f64,
    /// Log growth of every time from the first process of a session to its hundredth.
    pub(super) drift: f64,
    /// The current's time over the baseline's, by case.
    pub(super) slowdowns: BTreeMap<&'static str, f64>,
    /// The device's clock relative to its best, by side and process; with it, cycles are counted.
    pub(super) clock: Option<fn(Side, usize) -> f64>,
    pub(super) is_slow: Cell<bool>,
    pub(super) elapsed: Duration,
}

impl Machine {
    pub(super) fn quiet(seed: u64, slowdowns: &[(&'static str, f64)]) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            process_noise: 0.01,
            modes: None,
            stretch: 1.0,
            spikes: 0.0,
            slow_calls: 0.0,
            drift: 0.0,
            slowdowns: slowdowns.iter().copied().collect(),
            clock: None,
            is_slow: Cell::new(false),
            elapsed: Duration::ZERO,
        }
    }

    /// A standard normal number, by Box and Muller.
    fn normal(&mut self) -> f64 {
        let (u, v) = (1.0 - self.rng.f64(), self.rng.f64());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }

    /// Whether this process is in the slow mode, which lasts from process to process.
    fn mode(&mut self) -> f64 {
        let Some((share, factor)) = self.modes else { return 1.0 };
        if self.rng.f64() < 1.0 / self.stretch {
            self.is_slow.set(self.rng.f64() < share);
        }
        if self.is_slow.get() { factor } else { 1.0 }
    }

    fn observe(&mut self, side: Side, process: usize, slowdown: f64) -> Observed {
        let drift = (self.drift * process as f64 / 100.0).exp();
        let own = (self.process_noise * self.normal()).exp() * self.mode();
        let is_current = side == Side::Current;
        let work = if is_current { slowdown } else { 1.0 };
        let calls: Vec<f64> = (0..20)
            .map(|_| {
                let spike = if self.rng.f64() < self.spikes { 8.0 } else { 1.0 };
                let slow = if is_current && self.rng.f64() < self.slow_calls { 3.0 } else { 1.0 };
                let jitter = 1.0 + 0.01 * self.rng.f64();
                1e6 * work * own * drift * jitter * spike * slow
            })
            .collect();
        let sorted = Sorted::new(&calls).unwrap();
        let clock = self.clock.map(|clock| clock(side, process));
        let factor = clock.map_or(1.0, |clock| 1.0 / clock);
        let figures = [(MEDIAN, sorted.median()), (MEAN, sorted.mean())];
        let figures =
            figures.into_iter().map(|(name, ns)| (name.to_owned(), ns * factor)).collect();
        let cycles = clock.map(|_| 1.5 * sorted.median());
        Observed { figures, cycles, ..Observed::default() }
    }
}

impl Processes for Machine {
    fn run(&mut self, side: Side, request: &ProcessRequest) -> Result<Observations, Failure> {
        self.elapsed += PROCESS;
        let cases: Vec<(&str, f64)> =
            self.slowdowns.iter().map(|(case, slowdown)| (*case, *slowdown)).collect();
        Ok(cases
            .into_iter()
            .map(|(case, slowdown)| {
                (case.to_owned(), Ok(self.observe(side, request.process, slowdown)))
            })
            .collect())
    }

    fn elapsed(&self) -> Duration {
        self.elapsed
    }
}

/// A session on any processes.
pub(super) fn session(processes: &mut dyn Processes) -> Verdicts {
    verdicts(GateSession::new(processes, &Silent, 1).run())
}

/// Verdicts from evidence, on no machine in particular.
pub(super) fn verdicts(evidence: Evidence) -> Verdicts {
    let program = |name: &str, commit: &str| Program {
        name: name.to_owned(),
        commit: Some(commit.to_owned()),
        command: "overdrive run kernels --quick".to_owned(),
    };
    let environment =
        Environment { load_average: Some(0.04), ..overdrive_bench::testing::results().environment };
    derive(Verdicts {
        gate_version: GATE_VERSION,
        started_unix_s: 1_795_190_709,
        command: "overdrive regress --baseline main --current HEAD".to_owned(),
        seed: 1,
        baseline: program("main", "0123456789abcdef"),
        current: program("HEAD", "fedcba9876543210"),
        environment,
        control: Control::default(),
        cases: Vec::new(),
        evidence,
        notes: Vec::new(),
    })
}
