//! `Context`: everything that a study is given, grouped by use.
//!
//! [`Parties`] take part, [`Sampling`] says how they are timed, and [`Probes`] measure memory and
//! other quantities. The [`Journal`] is the run as its user sees it.

mod journal;
mod parties;
mod probes;
mod sampling;

pub use journal::{Journal, Progress};
pub use parties::{
    Device, Matmul, MatmulPeer, OpenRank, PEER_MODES, Parties, RankDevices, RanksMeter,
};
pub use probes::{EnergyProbes, Probes};
pub use sampling::Sampling;

use overdrive_bench::case::Case;
use overdrive_bench::record::Record;
use overdrive_bench::results::Results;
use overdrive_bench::rules::Rules;
use overdrive_ir::{Backend, Tuning};
use std::cell::RefCell;

/// Everything around a study.
#[derive(Clone)]
pub struct Context<'a> {
    /// Who takes part.
    pub parties: Parties<'a>,
    /// Runs graphs in f64 where the evaluator would take too long, whichever device is measured:
    /// the CPU.
    pub reference: &'a dyn Backend,
    /// Timed choices: those of earlier runs, and those that this one adds.
    pub tuning: &'a RefCell<Tuning>,
    /// How to sample, and when to stop.
    pub sampling: Sampling<'a>,
    /// Memory, energy and other quantities in addition to time.
    pub probes: Probes<'a>,
    /// The run as its user sees it.
    pub journal: Journal<'a>,
}

impl<'a> Context<'a> {
    /// The device that figures are about.
    pub fn device(&self) -> &'a Device<'a> {
        self.parties.device()
    }

    /// The device with one thread.
    pub fn single(&self) -> &'a Device<'a> {
        self.parties.single()
    }

    /// Adds the records of a session and has them kept.
    pub fn add(&self, results: &mut Results, records: Vec<Record>) {
        self.journal.add(results, records);
    }

    /// Records of these cases from an interrupted run, if it has all of them.
    pub(crate) fn taken_earlier(&self, cases: &[Case]) -> Option<Vec<Record>> {
        self.journal.taken_earlier(cases, self.sampling.seed)
    }

    /// The same, comparing outputs on one seed only.
    pub(crate) fn with_one_seed(&self) -> Self {
        let mut same = self.clone();
        same.sampling.rules = Rules { seeds: 1, ..same.sampling.rules };
        same
    }

    /// The same, with the other framework in these modes only. Some of its modes are the same for a
    /// single kernel, and each costs a compilation.
    pub(crate) fn with_peer_modes(&self, peer_modes: &'a [&'a str]) -> Self {
        let mut same = self.clone();
        same.parties.peer_modes = peer_modes;
        same
    }

    /// The sizes of a study: few with `--quick`, unless cases were named, which are taken then too.
    pub(crate) fn sizes<'s, T>(&self, quick: &'s [T], full: &'s [T]) -> &'s [T] {
        if self.is_brief() { quick } else { full }
    }

    /// Whether time is short: with `--quick`, unless cases were named.
    pub(crate) fn is_brief(&self) -> bool {
        self.sampling.is_quick() && self.journal.only.is_empty()
    }

    /// One of two, by depth.
    pub fn quick_or<T>(&self, quick: T, full: T) -> T {
        if self.sampling.is_quick() { quick } else { full }
    }
}
