//! The session of a model: its step in several ways, and PyTorch's. As many of them take part at a
//! time as the memory of the device holds.
//!
//! A call is one step, on the samples of the calls before. Loss and norm of the first are held
//! against their definition before a time counts. Steps that fit together alternate; else they
//! follow one another, and a note says so.

use super::step::{Model, Way};
use super::subject::{Judge, Ready, Steps, judge, ready, resources};
use crate::peers::{RankPeer, RankPeers};
use crate::{Context, long_calls};
use overdrive_bench::case::{Case, Configuration};
use overdrive_bench::ceilings::{Ceiling, CeilingKind};
use overdrive_bench::failure::Failure;
use overdrive_bench::measurement::Measurement;
use overdrive_bench::memory::{MemoryUse, Peak};
use overdrive_bench::outcome::Outcome;
use overdrive_bench::record::Record;
use overdrive_bench::results::{Note, Results};
use overdrive_bench::subject::Subject;
use overdrive_bench::work::Work;
use overdrive_ir::plan::Space;
use overdrive_train::Recipe;
use serde_json::Value;
use std::collections::BTreeMap;

/// A part of PyTorch's program, with its number format.
pub(super) type Part = (&'static str, &'static str);

/// How much more than ours a step of PyTorch may take, which says nothing before it runs.
const OF_PEER: u64 = 2;

/// Ways and parts of one model that are measured together; the first way is the baseline.
pub(super) struct Compared<'a> {
    pub(super) study: &'static str,
    pub(super) model: Model,
    pub(super) ways: &'a [Way],
    pub(super) parts: &'a [Part],
}

/// One who takes part.
enum Who<'a> {
    Ours(&'a Way, Result<Ready, Failure>),
    Theirs(&'static str, Value),
}

impl Who<'_> {
    /// Bytes of the device that it plans to take, where `first` are those of the baseline.
    fn bytes(&self, first: u64) -> u64 {
        match self {
            Self::Ours(_, Ok(ready)) => ready.executable.plan().peak_bytes(Space::MAIN),
            Self::Ours(_, Err(_)) => 0,
            Self::Theirs(..) => OF_PEER * first,
        }
    }
}

/// The judges of first calls, by whether adapters alone learn.
type Judges = BTreeMap<bool, Result<Judge, Failure>>;

/// Measures one model.
pub(super) fn take(
    context: &Context<'_>,
    peers: &RankPeers<'_>,
    compared: &Compared<'_>,
    results: &mut Results,
) {
    let cases = cases(context, peers, compared);
    if !context.journal.wants(&cases) {
        return;
    }
    if let Some(records) = context.taken_earlier(&cases) {
        return context.add(results, records);
    }
    let name = compared.model.key(&Recipe::default()).to_string();
    let mut note = |text: String| {
        results.notes.push(Note { study: compared.study.to_owned(), text });
    };
    if let Some(reason) = context.sampling.over() {
        return note(format!("{name}: skipped, {reason}"));
    }
    let progress = context.journal.progress;
    progress.workload(&name);
    progress.stage("loss and gradients by their definition");
    let judges = judges(context, compared);
    progress.stage("compiling");
    let who = compiled(context, peers, compared);
    let first = who.first().map_or(0, |first| first.bytes(0));
    let bytes: Vec<u64> = who.iter().map(|who| who.bytes(first)).collect();
    let groups = long_calls::groups(&bytes, long_calls::room(context));
    if groups.len() > 1 {
        note(format!(
            "{name}: not all steps fit on the device together, so that {} sessions follow one \
             another",
            groups.len()
        ));
    }
    let mut outcomes = Vec::new();
    for group in groups {
        progress.stage("steps that are checked, and timed");
        outcomes.extend(measured(context, peers, (compared.model, &judges), &who[group]));
    }
    let baseline = cases[0].id();
    let work = match &who[0] {
        Who::Ours(_, Ok(ready)) => Some(compared.model.work(&ready.graph)),
        _ => None,
    };
    let record = |(case, mut outcome): (Case, Outcome)| {
        if let Some(measurement) = outcome.measurement_mut() {
            complete(context, &case, work.as_ref(), measurement);
        }
        Record {
            baseline: (case.id() != baseline).then(|| baseline.clone()),
            seed: context.sampling.seed,
            command: context.journal.command_of(compared.study),
            case,
            outcome,
        }
    };
    let records = cases.into_iter().zip(outcomes).map(record).collect();
    context.add(results, records);
}

/// Ours, then PyTorch's if it takes part.
fn cases(context: &Context<'_>, peers: &RankPeers<'_>, compared: &Compared<'_>) -> Vec<Case> {
    let device = context.device();
    let configuration = |way: &Way| Configuration {
        backend: device.backend.name().to_owned(),
        device: device.backend.description().device.clone(),
        mode: device.backend.description().fastest_mode().name().to_owned(),
        dtype: way.recipe.precision.name().to_owned(),
        threads: device.threads,
        variant: way.variant.clone(),
    };
    let case = |recipe, configuration| Case {
        study: compared.study.to_owned(),
        workload: compared.model.key(recipe),
        configuration,
    };
    let ours = compared.ways.iter().map(|way| case(&way.recipe, configuration(way)));
    let theirs = peers.beside().into_iter().flat_map(|peer| {
        compared.parts.iter().map(move |&(part, dtype)| Configuration {
            backend: peer.name().to_owned(),
            device: peer.device().to_owned(),
            mode: RankPeer::mode(part).to_owned(),
            dtype: dtype.to_owned(),
            threads: device.threads,
            variant: Some(part.to_owned()),
        })
    });
    let plain = Recipe::default();
    ours.chain(theirs.map(|theirs| case(&plain, theirs))).collect()
}

/// The judge of each kind of learner.
fn judges(context: &Context<'_>, compared: &Compared<'_>) -> Judges {
    let mut judges = Judges::new();
    for way in compared.ways {
        judges
            .entry(way.recipe.lora.is_some())
            .or_insert_with(|| judge(context, &compared.model.judge(&way.recipe)?));
    }
    judges
}

/// Everyone, ours compiled.
fn compiled<'a>(
    context: &Context<'_>,
    peers: &RankPeers<'_>,
    compared: &Compared<'a>,
) -> Vec<Who<'a>> {
    let mut who: Vec<Who<'a>> = Vec::new();
    for way in compared.ways {
        let first = match who.first() {
            Some(Who::Ours(_, Ok(first))) => Some(first.executable.plan()),
            _ => None,
        };
        let limit = way.limit.zip(first).map(|(limit, first)| limit.bytes(first));
        // A plan under a limit takes a while.
        let compiled = match context.sampling.stop.is_requested() {
            true => Err(Failure::skipped("interrupted before it was complete")),
            false => ready(context, compared.model, way, limit),
        };
        who.push(Who::Ours(way, compiled));
    }
    let parts = compared.parts.iter().filter(|_| peers.beside().is_some());
    who.extend(parts.map(|&(part, dtype)| Who::Theirs(part, compared.model.sizes(dtype))));
    who
}

/// Outcomes of those who fit in the device together.
fn measured(
    context: &Context<'_>,
    peers: &RankPeers<'_>,
    (model, judges): (Model, &Judges),
    who: &[Who<'_>],
) -> Vec<Outcome> {
    let backend = context.device().backend;
    let open = |who: &Who<'_>| -> Result<Taking<'_>, Failure> {
        let (way, ready) = match who {
            Who::Theirs(part, sizes) => {
                return Ok(Taking::Theirs(peers.open(part, 1, sizes)?));
            }
            Who::Ours(way, ready) => (way, ready.as_ref().map_err(Clone::clone)?),
        };
        let known = &judges[&way.recipe.lora.is_some()];
        let judge = known.as_ref().map_err(Clone::clone)?;
        let inputs = model.inputs(&ready.graph, &judge.sample);
        let steps = Steps::new(backend, ready, &inputs, (judge.clone(), way.rtol()))?;
        Ok(Taking::Ours(Box::new(steps)))
    };
    let mut taking: Vec<Result<Taking<'_>, Failure>> = who.iter().map(open).collect();
    let mut running: Vec<&mut dyn Subject> =
        taking.iter_mut().flatten().map(Taking::subject).collect();
    let mut measured = long_calls::runner(context).compare(&mut running).into_iter();
    let mut outcomes = Vec::new();
    for (who, taking) in who.iter().zip(&mut taking) {
        let mut outcome = match taking {
            Ok(_) => measured.next().expect("one outcome per subject"),
            Err(failure) => Outcome::Failure(failure.clone()),
        };
        match (outcome.measurement_mut(), taking, who) {
            (Some(measurement), Ok(Taking::Ours(steps)), Who::Ours(_, Ok(ready))) => {
                context.journal.progress.stage("memory and energy");
                resources(context, steps, ready, measurement);
            }
            (Some(measurement), Ok(Taking::Theirs(peer)), _) => {
                let device =
                    peer.peak_bytes().map(|peak_bytes| Peak { before_bytes: 0, peak_bytes });
                measurement.memory = device.map(|_| MemoryUse { device, ..MemoryUse::default() });
            }
            _ => {}
        }
        outcomes.push(outcome);
    }
    outcomes
}

/// One who has its memory.
enum Taking<'a> {
    Ours(Box<Steps<'a>>),
    Theirs(RankPeer<'a>),
}

impl<'a> Taking<'a> {
    fn subject<'s>(&'s mut self) -> &'s mut (dyn Subject + 's)
    where
        'a: 's,
    {
        match self {
            Self::Ours(steps) => steps.as_mut(),
            Self::Theirs(peer) => peer,
        }
    }
}

/// Adds the work of a step, and its share of the ceiling of its number format.
fn complete(
    context: &Context<'_>,
    case: &Case,
    work: Option<&Work>,
    measurement: &mut Measurement,
) {
    let Some(work) = work else { return };
    measurement.work = Some(work.clone());
    let Some(latency) = &measurement.latency else { return };
    let dtype = format!(" {} ", case.configuration.dtype);
    let applies = |ceiling: &&Ceiling| {
        ceiling.threads == case.configuration.threads
            && ceiling.kind != CeilingKind::Bandwidth
            && ceiling.name.contains(&dtype)
    };
    let share = |ceiling: &Ceiling| ceiling.share(work, latency.summary.median_ns);
    measurement.ceiling_shares =
        context.probes.ceilings.iter().filter(applies).map(share).collect();
}
