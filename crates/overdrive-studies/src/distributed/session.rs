//! The session of a case: one rank, more ranks, and PyTorch's, as many of them at a time as the
//! memory of a device holds.
//!
//! Entrants that fit together alternate. A step of a large model leaves room for no other, so these
//! follow one another, and a note says so. Invariant: an efficiency is a ratio of medians that were
//! taken by the same rules in the same run.

use super::efficiency::{Entry, relate};
use super::entrant::{Known, Ours, small_outputs};
use super::joint::{Joint, Judge, Split};
use super::name::{STUDY, note};
use super::team::{RankWork, Team, WorkOf};
use crate::drawn::Drawn;
use crate::long_calls;
use crate::peers::{RankPeer, RankPeers};
use crate::tolerance::tolerance;
use crate::{Context, RankDevices, Workload};
use overdrive_bench::case::{Case, Configuration};
use overdrive_bench::deviation::Deviation;
use overdrive_bench::energy::EnergyProbe;
use overdrive_bench::failure::Failure;
use overdrive_bench::measurement::Measurement;
use overdrive_bench::memory::MemoryUse;
use overdrive_bench::outcome::Outcome;
use overdrive_bench::record::Record;
use overdrive_bench::results::Results;
use overdrive_bench::runner::Runner;
use overdrive_bench::statistics::Sorted;
use overdrive_bench::subject::Subject;
use overdrive_ir::Mesh;
use overdrive_ir::backend::MemoryReport;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::thread;

/// Calls whose steps are timed one by one; of calls beyond a second, one.
const PROFILED: u32 = 3;
const LONG_NS: f64 = 1e9;

/// State that all cases of a run share.
pub(super) struct Session<'a> {
    context: &'a Context<'a>,
    devices: RankDevices<'a>,
    peers: &'a RankPeers<'a>,
    runner: Runner<'a>,
    /// By number of ranks.
    meters: BTreeMap<usize, RefCell<EnergyProbe>>,
}

/// Work of some ranks, and how it is judged.
struct Prepared {
    split: Split,
    judge: Judge,
}

type Teams = BTreeMap<usize, Result<(Team, u64), Failure>>;

impl<'a> Session<'a> {
    pub(super) fn new(
        context: &'a Context<'a>,
        devices: RankDevices<'a>,
        peers: &'a RankPeers<'a>,
    ) -> Self {
        let runner = long_calls::runner(context);
        let at_rest = |ranks: usize| {
            let meter = (devices.meter)(ranks)?;
            let probe = EnergyProbe::at_rest(meter, context.sampling.clock, thread::sleep).ok()?;
            Some((ranks, RefCell::new(probe)))
        };
        // A screening has no time for energy.
        let counts = [1].iter().chain(devices.counts).filter(|_| !context.sampling.is_quick());
        let meters = counts.filter_map(|&ranks| at_rest(ranks)).collect();
        Self { context, devices, peers, runner, meters }
    }

    /// Measures a case at every number of ranks, and keeps its records.
    pub(super) fn take(&self, joint: &dyn Joint, results: &mut Results) {
        let one = joint.has_one().then_some(1);
        let more = self.devices.counts.iter().copied();
        let counts: Vec<usize> = one.into_iter().chain(more).collect();
        let entries = self.entries(joint, &counts);
        let cases: Vec<Case> = entries.iter().map(|entry| entry.case.clone()).collect();
        if cases.is_empty() || !self.context.journal.wants(&cases) {
            return;
        }
        if let Some(records) = self.context.taken_earlier(&cases) {
            return self.context.add(results, records);
        }
        let name = cases[0].workload.to_string();
        if let Some(reason) = self.context.sampling.over() {
            return note(results, format!("{name}: skipped, {reason}"));
        }
        let progress = self.context.journal.progress;
        progress.workload(&name);
        progress.stage("building graphs");
        let drawn = Drawn::on(self.context.reference.description().memory_bytes);
        let prepared: BTreeMap<usize, Result<Prepared, Failure>> =
            counts.iter().map(|&ranks| (ranks, prepared(joint, &drawn, ranks))).collect();
        let works: BTreeMap<usize, Box<WorkOf<'_>>> = prepared
            .iter()
            .map(|(&ranks, prepared)| {
                let work = move |rank: usize| -> Result<RankWork, Failure> {
                    prepared.as_ref().map_err(Clone::clone)?.split.of_rank(rank)
                };
                (ranks, Box::new(work) as Box<WorkOf<'_>>)
            })
            .collect();
        let outcomes = thread::scope(|scope| {
            progress.stage("compiling on all ranks");
            let mut teams = Teams::new();
            for (&ranks, work) in &works {
                let mesh = Mesh::new([(joint.axis(), ranks)]);
                let is_prepared = prepared[&ranks].as_ref().map(drop).map_err(Clone::clone);
                let start = || Team::start(scope, self.devices, mesh, work.as_ref());
                teams.insert(ranks, is_prepared.and_then(|()| start()));
            }
            let compiled = teams.values().filter_map(|team| team.as_ref().ok());
            for declined in compiled.filter_map(|(team, _)| team.ask(|m| Ok(m.declined())).ok()) {
                declined[0].iter().for_each(|text| note(results, format!("{name}: {text}")));
            }
            self.outcomes(joint, (&entries, &prepared, teams), results)
        });
        let records = self.records(joint, &entries, outcomes);
        self.context.add(results, records);
    }

    /// Ours at each number of ranks, then PyTorch's.
    fn entries(&self, joint: &dyn Joint, counts: &[usize]) -> Vec<Entry> {
        let backend = self.context.device().backend;
        let configuration = |ranks: usize| Configuration {
            backend: backend.name().split(':').next().unwrap_or_default().to_owned(),
            device: format!("{} x{ranks}", backend.description().device),
            mode: backend.description().fastest_mode().name().to_owned(),
            dtype: joint.dtype().name().to_owned(),
            threads: self.context.device().threads,
            variant: joint.variant().map(str::to_owned),
        };
        let case = |ranks: usize, configuration| Case {
            study: STUDY.to_owned(),
            workload: joint.workload(ranks),
            configuration,
        };
        let ours =
            |&ranks: &usize| Entry { case: case(ranks, configuration(ranks)), ranks, part: None };
        let mut entries: Vec<Entry> = counts.iter().map(ours).collect();
        let Some(peer) = self.peers.beside() else { return entries };
        for part in joint.peers() {
            for &ranks in counts {
                let theirs = Configuration {
                    backend: peer.name().to_owned(),
                    device: format!("{} x{ranks}", peer.device()),
                    mode: RankPeer::mode(part.0).to_owned(),
                    variant: Some(part.0.to_owned()),
                    ..configuration(ranks)
                };
                entries.push(Entry { case: case(ranks, theirs), ranks, part: Some(part.clone()) });
            }
        }
        entries
    }

    /// The outcome of each entry.
    fn outcomes(
        &self,
        joint: &dyn Joint,
        (entries, prepared, mut teams): (
            &[Entry],
            &BTreeMap<usize, Result<Prepared, Failure>>,
            Teams,
        ),
        results: &mut Results,
    ) -> Vec<Outcome> {
        let progress = self.context.journal.progress;
        progress.stage("comparing small sizes with f64");
        let small: BTreeMap<usize, Option<Result<Deviation, Failure>>> = prepared
            .iter()
            .map(|(&ranks, prepared)| match prepared {
                Ok(Prepared { judge: Judge::Small(split, dtype), .. }) => {
                    let mesh = Mesh::new([(joint.axis(), ranks)]);
                    (ranks, Some(self.small((split, *dtype), mesh)))
                }
                _ => (ranks, None),
            })
            .collect();
        let planned = |entry: &Entry| {
            teams[&entry.ranks].as_ref().map_or(0, |(_, planned_bytes)| *planned_bytes)
        };
        let bytes: Vec<u64> = entries.iter().map(planned).collect();
        let groups = long_calls::groups(&bytes, long_calls::room(self.context));
        if groups.len() > 1 {
            let name = entries[0].case.workload.to_string();
            let text = format!(
                "{name}: not all ranks fit on a device together, so that {} sessions follow one \
                 another",
                groups.len()
            );
            note(results, text);
        }
        let first_outputs = RefCell::default();
        let mut outcomes = Vec::new();
        for group in groups {
            progress.stage("calls that are checked, and timed");
            let mut subjects: Vec<Result<Box<dyn Subject + '_>, Failure>> = Vec::new();
            for entry in &entries[group.clone()] {
                if let Some((part, sizes)) = &entry.part {
                    let opened = self.peers.open(part, entry.ranks, sizes);
                    subjects.push(opened.map(|peer| Box::new(peer) as Box<dyn Subject + '_>));
                    continue;
                }
                subjects.push(match (&prepared[&entry.ranks], &teams[&entry.ranks]) {
                    (Ok(Prepared { judge, .. }), Ok((team, _))) => {
                        team.ask(|member| member.allocate()).map(|_| {
                            let known = Known {
                                mesh: Mesh::new([(joint.axis(), entry.ranks)]),
                                judge,
                                small: small[&entry.ranks].clone(),
                                one: &first_outputs,
                            };
                            Box::new(Ours { team, known }) as Box<dyn Subject + '_>
                        })
                    }
                    (Err(failure), _) | (_, Err(failure)) => Err(failure.clone()),
                });
            }
            let mut running: Vec<&mut dyn Subject> =
                subjects.iter_mut().flatten().map(|subject| subject.as_mut() as _).collect();
            let mut measured = self.runner.compare(&mut running).into_iter();
            for (entry, subject) in entries[group.clone()].iter().zip(&subjects) {
                let mut outcome = match subject {
                    Ok(_) => measured.next().expect("one outcome per subject"),
                    Err(failure) => Outcome::Failure(failure.clone()),
                };
                let team = match entry.part {
                    None => teams[&entry.ranks].as_ref().ok(),
                    Some(_) => None,
                };
                if let (Some(measurement), Some((team, planned_bytes))) =
                    (outcome.measurement_mut(), team)
                {
                    progress.stage("memory, collectives and energy");
                    let of = (entry.ranks, joint.has_one());
                    self.complete((team, *planned_bytes), of, measurement);
                }
                outcomes.push(outcome);
            }
            drop(subjects);
            // Room for the next: memory that other ranks write into lasts as long as its team.
            for entry in entries[group].iter().filter(|entry| entry.part.is_none()) {
                if let Some(Ok((team, _))) = teams.remove(&entry.ranks) {
                    team.end();
                }
            }
        }
        for (entry, outcome) in entries.iter().zip(&mut outcomes) {
            if let (Some(measurement), Ok(prepared)) =
                (outcome.measurement_mut(), &prepared[&entry.ranks])
            {
                let work = prepared.split.work(entry.ranks, joint.items(entry.ranks));
                measurement.work = Some(work);
            }
        }
        outcomes
    }

    /// How far the outputs of all ranks lie from f64 at small sizes.
    fn small(
        &self,
        (split, dtype): (&Split, overdrive_ir::DType),
        mesh: Mesh,
    ) -> Result<Deviation, Failure> {
        let seed = self.context.sampling.seed;
        let workload = Workload::new("small", [], split.whole.clone());
        let oracle = workload.oracle(self.context);
        let limit = tolerance(dtype, &workload.graph, (&oracle, seed))?;
        let inputs = oracle.inputs(seed);
        let work = |rank: usize| split.of_rank_on(rank, &inputs);
        thread::scope(|scope| {
            let (team, _) = Team::start(scope, self.devices, mesh, &work)?;
            small_outputs(&team, split, &|outputs| oracle.compare_part(seed, outputs, limit))
        })
    }

    /// Adds what is measured beside the time: memory of the rank that takes most, time of the
    /// collectives, energy of all devices.
    fn complete(
        &self,
        (team, planned_bytes): (&Team, u64),
        (ranks, has_energy): (usize, bool),
        measurement: &mut Measurement,
    ) {
        // Quantities that cannot be had are absent; the case ran all the same.
        if let Ok(reports) = team.ask(|member| Ok(member.memory())) {
            let held = |r: &MemoryReport| {
                r.transient_bytes + r.persistent_bytes + r.state_bytes + r.workspace_bytes
            };
            let most = reports.iter().max_by_key(|report| held(report)).expect("a team has ranks");
            let memory = MemoryUse {
                planned_arena_bytes: Some(most.transient_bytes),
                ..MemoryUse::default()
            };
            measurement.memory = Some(memory.with_device(most));
        }
        let quantities = &mut measurement.quantities;
        quantities.insert("planned_bytes_a_rank".to_owned(), planned_bytes as f64);
        let slowest = |all: Vec<Vec<f64>>| {
            let medians = all.iter().filter_map(|ns| Some(Sorted::new(ns)?.median()));
            medians.fold(0.0, f64::max)
        };
        let takes_ns = measurement.latency.as_ref().map_or(0.0, |l| l.summary.median_ns);
        let calls = if takes_ns > LONG_NS { 1 } else { PROFILED };
        if let Ok(all) = team.ask(move |member| member.collectives_ns(calls)) {
            quantities.insert("collectives_ns".to_owned(), slowest(all));
        }
        let device = &self.context.device().backend.description().device;
        let of_host = || self.context.probes.energy.and_then(|probes| probes.get(device));
        let probe = self.meters.get(&ranks).or_else(of_host);
        if let Some(probe) = probe.filter(|_| has_energy && !self.context.sampling.is_quick()) {
            let call = || team.ask(|member| member.calls(1)).map(drop);
            measurement.energy =
                probe.borrow_mut().of_calls(self.context.sampling.clock, call).ok();
        }
    }

    /// The records, each related to the fewest ranks of its side.
    fn records(&self, joint: &dyn Joint, entries: &[Entry], outcomes: Vec<Outcome>) -> Vec<Record> {
        let record = |(entry, outcome): (&Entry, Outcome)| {
            let alike = |other: &&Entry| other.case.workload == entry.case.workload;
            let first = entries.iter().find(alike).map(|other| &other.case);
            Record {
                case: entry.case.clone(),
                baseline: first.filter(|first| **first != entry.case).map(Case::id),
                seed: self.context.sampling.seed,
                command: self.context.journal.command_of(STUDY),
                outcome,
            }
        };
        let mut records: Vec<Record> = entries.iter().zip(outcomes).map(record).collect();
        relate(joint, entries, &mut records);
        records
    }
}

fn prepared(joint: &dyn Joint, drawn: &Drawn, ranks: usize) -> Result<Prepared, Failure> {
    if let Some(reason) = joint.refusal(ranks) {
        return Err(Failure::unsupported(reason));
    }
    let split = joint.split(ranks)?;
    let split = Split { whole: drawn.graph(&split.whole), ..split };
    Ok(Prepared { split, judge: joint.judge(ranks)? })
}
