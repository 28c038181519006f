//! Synthetic clocks, subjects, samples and results, for the tests of this crate and of those that
//! read its records. Time passes only when a test says so.

mod example;

pub use example::example;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::case::{Case, Configuration, Workload};
use crate::clock::{Clock, Timer};
use crate::deviation::Deviation;
use crate::environment::{Cache, Cpu, Environment, Revision, Toolchain};
use crate::failure::Failure;
use crate::measurement::{Agreement, Measurement};
use crate::outcome::Outcome;
use crate::record::Record;
use crate::results::{Results, SCHEMA_VERSION};
use crate::series::{Basis, Conditions, Depth, Sample, Series, Settling, Stopped, TimedCalls};
use crate::subject::Subject;

/// A clock that advances only on request.
#[derive(Debug, Clone, Default)]
pub struct SyntheticClock(Arc<AtomicU64>);

impl SyntheticClock {
    /// Lets this much time pass.
    pub fn advance(&self, ns: u64) {
        self.0.fetch_add(ns, Ordering::Relaxed);
    }
}

impl Clock for SyntheticClock {
    fn name(&self) -> &'static str {
        "synthetic"
    }

    fn now_ns(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A subject whose every call takes the time that `cost_ns` says, given the number of calls made
/// before it.
#[derive(Debug)]
pub struct Synthetic<F> {
    /// The clock that its calls advance.
    pub clock: SyntheticClock,
    /// The time of a call.
    pub cost_ns: F,
    /// Calls made so far.
    pub made: u64,
    /// Every range of calls that was asked to be prepared.
    pub prepared: Vec<Range<u64>>,
    /// The answer of [`verify`](Subject::verify).
    pub deviation: Option<Deviation>,
}

impl<F: FnMut(u64) -> u64> Synthetic<F> {
    /// A subject on this clock whose outputs agree.
    pub fn new(clock: &SyntheticClock, cost_ns: F) -> Self {
        let deviation =
            Some(Deviation { values: 1, absolute: 0.0, relative: 0.0, share_of_tolerance: 0.0 });
        Self { clock: clock.clone(), cost_ns, made: 0, prepared: Vec::new(), deviation }
    }
}

impl<F: FnMut(u64) -> u64> Subject for Synthetic<F> {
    fn prepare(&mut self, calls: Range<u64>) -> Result<(), Failure> {
        self.prepared.push(calls);
        Ok(())
    }

    fn call(&mut self, _index: u64) -> Result<(), Failure> {
        let cost = (self.cost_ns)(self.made);
        self.made += 1;
        self.clock.advance(cost);
        Ok(())
    }

    fn verify(&mut self, _seed: u64) -> Result<Option<Deviation>, Failure> {
        Ok(self.deviation)
    }
}

/// Conditions of a full measurement of one call per sample on the synthetic clock.
pub fn conditions() -> Conditions {
    Conditions {
        depth: Depth::Full,
        timer: Timer { clock: "synthetic".into(), overhead_ns: 0, tick_ns: 1 },
        basis: Basis::Host,
        launches_per_call: None,
        calls_per_sample: 1,
        warmup: vec![TimedCalls { calls: 1, host_ns: 1000 }; 10],
        settling: Settling::Fixed,
        stopped: Stopped::Precise,
        involuntary_switches: None,
        session: None,
    }
}

/// Samples of one process with these spans on the host.
pub fn samples(spans_ns: &[u64]) -> Vec<Sample> {
    let sample = |(index, &host_ns)| Sample {
        process: 0,
        index: index as u32,
        host_ns,
        device_ns: None,
        cycles: None,
        start_ns: None,
        end_ns: None,
        flags: Vec::new(),
    };
    spans_ns.iter().enumerate().map(sample).collect()
}

/// A record of `study: work x=1` in mode `mode` with these spans and verified outputs.
pub fn record(mode: &str, spans_ns: &[u64]) -> Record {
    let mut series = Series::new(conditions(), samples(spans_ns)).expect("the spans are positive");
    if series.summary.relative_half_width().is_none_or(|width| width > 0.01) {
        series.conditions.stopped = Stopped::Limit;
    }
    let worst = Deviation { values: 100, absolute: 1e-7, relative: 1e-6, share_of_tolerance: 0.1 };
    let agreement = Agreement { reference: "f64".into(), seeds: 5, worst };
    let measurement = Measurement { agreement: Some(agreement), ..Measurement::timed(series) };
    Record {
        case: case(mode),
        baseline: None,
        seed: 1,
        command: "overdrive run study".into(),
        outcome: Outcome::Ok(Box::new(measurement)),
    }
}

/// The key of [`record`].
pub fn case(mode: &str) -> Case {
    Case {
        study: "study".into(),
        workload: Workload { name: "work".into(), dimensions: BTreeMap::from([("x".into(), 1)]) },
        configuration: Configuration {
            backend: "cpu".into(),
            device: "cpu".into(),
            mode: mode.into(),
            dtype: "f32".into(),
            threads: 1,
            variant: None,
        },
    }
}

/// Results without a record, from no machine in particular.
pub fn results() -> Results {
    Results {
        schema_version: SCHEMA_VERSION,
        imported: None,
        started_unix_s: 1_795_190_709,
        command: "overdrive run study".into(),
        revision: Revision {
            version: "0.1.0".into(),
            commit: Some("0123456789abcdef".into()),
            dirty: Some(false),
        },
        environment: Environment {
            os: "linux".into(),
            kernel: Some("6.1".into()),
            cpu: Cpu {
                model: "Some CPU".into(),
                logical: Some(2),
                physical: Some(2),
                smt: Some(false),
                governor: Some("performance".into()),
                turbo: None,
                max_mhz: Some(3500),
                virtualised: Some(true),
                caches: vec![Cache { level: 1, bytes: 49152 }],
                features: vec!["avx2".into(), "fma".into()],
                instruction_set: None,
            },
            allowed_cpus: Some(2),
            quota_cpus: None,
            memory_bytes: Some(8 << 30),
            load_average: Some(0.04),
            devices: Vec::new(),
            toolchain: Toolchain {
                rustc: "rustc 1.95.0".into(),
                target: "x86_64-unknown-linux-gnu".into(),
                profile: "release".into(),
                flags: String::new(),
            },
        },
        seed: 7,
        harness_overhead: None,
        ceilings: Vec::new(),
        records: Vec::new(),
        ladders: Vec::new(),
        notes: Vec::new(),
        variants: vec![],
        regression: None,
    }
}
