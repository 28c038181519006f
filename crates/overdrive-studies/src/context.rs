//! What a study is given: devices, rules, seed, and somebody to tell how far it is.

use crate::{Allowance, Peer};
use overdrive_bench::case::Case;
use overdrive_bench::ceilings::Ceiling;
use overdrive_bench::clock::Clock;
use overdrive_bench::energy::EnergyProbe;
use overdrive_bench::failure::{Failure, FailureKind};
use overdrive_bench::memory::CountingAllocator;
use overdrive_bench::record::Record;
use overdrive_bench::results::Results;
use overdrive_bench::rules::Rules;
use overdrive_bench::runner::{Runner, Stop};
use overdrive_bench::series::Depth;
use overdrive_ir::{Backend, Tuning};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A back end with the number of host threads that it was given.
pub struct Device<'a> {
    /// The back end.
    pub backend: &'a dyn Backend,
    /// Its worker threads.
    pub threads: u32,
}

impl Device<'_> {
    /// Whether its memory moves a terabyte a second and more. Sizes that keep a processor busy are
    /// lost in launches there, so studies take larger ones.
    pub fn is_accelerator(&self) -> bool {
        self.backend
            .description()
            .peaks
            .levels
            .iter()
            .any(|&(_, bytes_per_second)| bytes_per_second >= 1e12)
    }
}

/// Told what is being measured.
pub trait Progress {
    /// A study begins.
    fn study(&self, name: &str);
    /// A workload begins.
    fn workload(&self, name: &str);
    /// A part of its work begins.
    fn stage(&self, _name: &str) {}
}

/// `c = a b` in f32, row-major, of shape `[m, n, k]`.
pub type Matmul = dyn Fn(&[f32], &[f32], &mut [f32], [usize; 3]);

/// A matrix product of somebody else's, as a baseline.
pub struct MatmulPeer<'a> {
    /// The library's name.
    pub name: &'a str,
    /// Worker threads that it uses.
    pub threads: u32,
    /// The product.
    pub run: &'a Matmul,
}

/// Counters of energy by the name of what they see.
pub type EnergyProbes = BTreeMap<String, RefCell<EnergyProbe>>;

/// Everything around a study.
pub struct Context<'a> {
    /// Devices: the one to report on first, then the same with one thread where that differs.
    pub devices: &'a [Device<'a>],
    /// Engines of other people for the first device, given as many threads as it has.
    pub engines: &'a [Device<'a>],
    /// Runs graphs in f64 where the evaluator would take too long, whichever device is measured:
    /// the CPU.
    pub reference: &'a dyn Backend,
    /// Timed choices: those of earlier runs, and those that this one adds.
    pub tuning: &'a RefCell<Tuning>,
    /// Baselines for matrix products.
    pub matmul_peers: &'a [MatmulPeer<'a>],
    /// Other frameworks, which take part in every session whose workload they know.
    pub peers: &'a [Peer],
    /// Modes that they take part in, of [`PEER_MODES`](crate::PEER_MODES).
    pub peer_modes: &'a [&'a str],
    /// Ceilings measured in this run, for shares.
    pub ceilings: Vec<Ceiling>,
    /// Time source.
    pub clock: &'a dyn Clock,
    /// How long to sample and when to stop.
    pub rules: Rules,
    /// When the study under way should have ended, on `clock`; a workload that would begin later is
    /// skipped.
    pub deadline_ns: Option<u64>,
    /// What engines and frameworks may spend beside that.
    pub allowance: &'a Allowance,
    /// Seed of inputs and of the order of cases.
    pub seed: u64,
    /// Looked at between steps.
    pub stop: Stop,
    /// The process's allocator, if it counts.
    pub heap: Option<&'a CountingAllocator>,
    /// Counters of energy by the device's name in its `Description`; a device without one has no
    /// energy column.
    pub energy: Option<&'a EnergyProbes>,
    /// The command line up to the study, for the rerun command of each record.
    pub command: String,
    /// Who hears of progress.
    pub progress: &'a dyn Progress,
    /// Parts of names of cases: only sessions with a case whose name contains one of them are
    /// taken; none means all.
    pub only: &'a [String],
    /// Records of an interrupted run, which need not be taken again.
    pub earlier: &'a [Record],
    /// Keeps the results so far, after every session, so that an interrupted run loses one session
    /// at most.
    pub keep: &'a dyn Fn(&Results),
}

impl<'a> Context<'a> {
    /// The device that figures are about.
    pub fn device(&self) -> &'a Device<'a> {
        self.devices.first().expect("a context has a device")
    }

    /// The device with one thread.
    pub fn single(&self) -> &'a Device<'a> {
        self.devices.iter().find(|d| d.threads == 1).unwrap_or_else(|| self.device())
    }

    /// Whether a session of these cases was asked for.
    pub fn wants(&self, cases: &[Case]) -> bool {
        let named = |case: &Case| {
            let name = case.id();
            self.only.iter().any(|part| name.contains(part.as_str()))
        };
        self.only.is_empty() || cases.iter().any(named)
    }

    /// Adds the records of a session and has them kept.
    pub fn add(&self, results: &mut Results, records: Vec<Record>) {
        results.records.extend(records);
        (self.keep)(results);
    }

    /// The command that takes a study's cases again. One that is called as the study is, as
    /// `bench`, has named it.
    pub(crate) fn command_of(&self, study: &str) -> String {
        match self.command.split(' ').nth(1) == Some(study) {
            true => self.command.clone(),
            false => format!("{} {study}", self.command),
        }
    }

    /// What an interrupted run left of these cases, if it left all: a session is taken whole or not
    /// at all, since its cases alternated. What was skipped then is tried now.
    pub(crate) fn taken_earlier(&self, cases: &[Case]) -> Option<Vec<Record>> {
        let skipped =
            |r: &Record| r.outcome.failure().is_some_and(|f| f.kind == FailureKind::Skipped);
        let find = |case: &Case| {
            let same = |r: &&Record| {
                r.case == *case && r.command == self.command_of(&case.study) && r.seed == self.seed
            };
            self.earlier.iter().find(same).filter(|r| !skipped(r)).cloned()
        };
        cases.iter().map(find).collect()
    }

    /// A runner under these rules.
    pub fn runner(&self) -> Runner<'a> {
        Runner::new(self.clock, self.rules.clone(), self.seed).with_stop(self.stop.clone())
    }

    /// The same, comparing outputs on one seed only.
    pub(crate) fn with_one_seed(&self) -> Context<'a> {
        let rules = Rules { seeds: 1, ..self.rules.clone() };
        let ceilings = self.ceilings.clone();
        Context { rules, ceilings, stop: self.stop.clone(), command: self.command.clone(), ..*self }
    }

    /// The same, with the other framework in these modes only: a kernel alone is the same in some
    /// of its modes, and each costs a compilation.
    pub(crate) fn with_peer_modes(&self, peer_modes: &'a [&'a str]) -> Context<'a> {
        let (rules, ceilings) = (self.rules.clone(), self.ceilings.clone());
        Context {
            rules,
            ceilings,
            peer_modes,
            stop: self.stop.clone(),
            command: self.command.clone(),
            ..*self
        }
    }

    /// True for `--quick`: screening, no verdict.
    pub fn is_quick(&self) -> bool {
        self.rules.depth == Depth::Screening
    }

    /// Why no further workload begins, if none does.
    pub fn over(&self) -> Option<String> {
        if self.stop.is_requested() {
            return Some("interrupted".to_owned());
        }
        let own_ns = self.clock.now_ns().saturating_sub(self.allowance.spent_ns());
        let late = self.deadline_ns.is_some_and(|deadline| own_ns > deadline);
        late.then(|| {
            "the study's share of the time that --quick has was used up; run without it".to_owned()
        })
    }

    /// What somebody who is not one of our devices needs to make something ready, at the expense of
    /// his own allowance.
    pub(crate) fn at_own_expense<T>(
        &self,
        who: &str,
        ready: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.allowance.check(who)?;
        let start = self.clock.now_ns();
        let outcome = ready();
        self.allowance.charge(who, self.clock.now_ns() - start);
        outcome
    }

    /// The sizes of a study: few with `--quick`, unless cases were named, which are taken then too.
    pub(crate) fn sizes<'s, T>(&self, quick: &'s [T], full: &'s [T]) -> &'s [T] {
        if self.is_brief() { quick } else { full }
    }

    /// Whether time is short: with `--quick`, unless cases were named.
    pub(crate) fn is_brief(&self) -> bool {
        self.is_quick() && self.only.is_empty()
    }

    /// One of two, by depth.
    pub fn quick_or<T>(&self, quick: T, full: T) -> T {
        if self.is_quick() { quick } else { full }
    }
}
