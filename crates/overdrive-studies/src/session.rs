//! A session: several entries compiled, checked and then sampled in alternation.

mod entry;
mod relate;
mod resources;

pub use entry::Entry;
pub(crate) use entry::{prepare, ready};
pub(crate) use relate::relate;

use crate::drawn::Drawn;
use crate::peers::{self, Entrant};
use crate::{Context, Workload};
use entry::ReadyEntry;
use overdrive_bench::case::Case;
use overdrive_bench::ceilings::{Ceiling, CeilingKind};
use overdrive_bench::failure::Failure;
use overdrive_bench::measurement::{CeilingShare, Measurement, Overhead};
use overdrive_bench::oracle::Oracle;
use overdrive_bench::outcome::Outcome;
use overdrive_bench::record::Record;
use overdrive_bench::runner::Stop;
use overdrive_bench::session_calls::Calls;
use overdrive_bench::status::{Physics, Status};
use overdrive_bench::subject::Subject;
use overdrive_bench::work::Work;
use overdrive_ir::DType;
use resources::{Resources, resources};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Turns a panic of a back end into a failure, so that the other cases go on. After a request to
/// end nothing begins.
fn guarded<T>(
    stop: &Stop,
    what: &str,
    call: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    if stop.is_requested() {
        return Err(Failure::skipped("interrupted before it was complete"));
    }
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Err(Failure::failed(format!("{what} panicked: {words}")))
    })
}

/// Measures the entries in one session; the first is the baseline of those with its workload.
/// `extra` takes part in the session and gives its outcomes last: a library called directly, say.
/// No record at all where the session was not asked for.
pub fn measure(
    context: &Context<'_>,
    study: &str,
    entries: &[Entry<'_>],
    extra: &mut [(Case, &mut dyn Subject)],
) -> Vec<Record> {
    let own = entries.iter().map(|entry| entry.case(study));
    let cases: Vec<Case> = own.chain(extra.iter().map(|(case, _)| case.clone())).collect();
    if !context.journal.wants(&cases) {
        return vec![];
    }
    if let Some(mut records) = context.taken_earlier(&cases) {
        records.extend(peers::taken_earlier(context, &cases));
        return records;
    }
    context.journal.progress.stage("drawing parameters");
    let drawn = Drawn::on(context.reference.description().memory_bytes);
    let known = distinct(entries);
    let workloads: Vec<Workload> = known.iter().map(|workload| drawn.workload(workload)).collect();
    let of_drawn = |entry: &Entry<'_>| {
        let position = known.iter().position(|w| std::ptr::eq(*w, entry.workload));
        &workloads[position.expect("every entry's workload is known")]
    };
    let entries: Vec<Entry<'_>> =
        entries.iter().map(|entry| entry.valued(of_drawn(entry), &drawn)).collect();
    let entries = &entries[..];
    context.journal.progress.stage("choosing who computes the reference");
    let oracles: Vec<Oracle<'_>> = oracles(context, entries);
    let oracle_of = |entry: &Entry<'_>| {
        let position = distinct(entries).iter().position(|w| std::ptr::eq(*w, entry.workload));
        &oracles[position.expect("every entry's workload has its oracle")]
    };
    let mut entrants = entrants(context, study, entries, &oracle_of);
    context.journal.progress.stage("compiling");
    let mut compiled = compiled(context, entries);
    let paid: Vec<Option<Overhead>> =
        compiled.iter().map(|c| c.as_ref().ok().map(|ready| ready.paid.clone())).collect();
    let keeps_time: Vec<bool> =
        compiled.iter().flatten().map(|ready| ready.session.keeps_time()).collect();
    let clocks_differ = keeps_time.contains(&true) && keeps_time.contains(&false);
    context.journal.progress.stage("computing the reference");
    let mut subjects: Vec<Result<Calls<'_>, Failure>> = entries
        .iter()
        .zip(&mut compiled)
        .map(|(entry, compiled)| {
            let compiled = compiled.as_mut().map_err(|failure| failure.clone())?;
            let calls = guarded(&context.sampling.stop, "preparing", || {
                prepare(context, entry, oracle_of(entry), compiled)
            })?;
            Ok(if clocks_differ { calls.beside_host_clocks() } else { calls })
        })
        .collect();
    let mut running: Vec<&mut dyn Subject> =
        subjects.iter_mut().flatten().map(|calls| calls as &mut dyn Subject).collect();
    running.extend(extra.iter_mut().map(|(_, subject)| &mut **subject as &mut dyn Subject));
    let timed = entrants.iter_mut().filter_map(|(_, opened)| opened.as_mut().ok());
    running.extend(timed.map(|timed| timed as &mut dyn Subject));
    context.journal.progress.stage("calls that are checked, and timed");
    let mut measured = context.sampling.runner().compare(&mut running).into_iter();
    let outcomes: Vec<Outcome> = subjects
        .into_iter()
        .map(|subject| match subject {
            Ok(_) => measured.next().expect("one outcome per subject"),
            Err(failure) => Outcome::Failure(failure),
        })
        .collect();
    context.journal.progress.stage("memory, copies and energy");
    let baseline = entries.first().map(|entry| entry.case(study));
    let mut records = Vec::new();
    for (i, (entry, outcome)) in entries.iter().zip(outcomes).enumerate() {
        let mut record = record(context, entry.case(study), baseline.as_ref(), outcome);
        if let Some(measurement) = record.outcome.measurement_mut() {
            let ready = compiled[i].as_mut().ok();
            complete(context, (entry, oracle_of(entry)), (ready, paid[i].as_ref()), measurement);
        }
        records.push(record);
    }
    for (case, _) in extra.iter() {
        let outcome = measured.next().expect("one outcome per subject");
        records.push(record(context, case.clone(), baseline.as_ref(), outcome));
    }
    for (case, opened) in entrants {
        let outcome = match &opened {
            Ok(_) => measured.next().expect("one outcome per subject"),
            Err(failure) => Outcome::Failure(failure.clone()),
        };
        let mut record = record(context, case, baseline.as_ref(), outcome);
        if let (Some(measurement), Ok(timed)) = (record.outcome.measurement_mut(), opened) {
            let same = |entry: &&Entry<'_>| entry.workload.key == record.case.workload;
            measurement.overhead = timed.overhead.clone();
            measurement.work = entries.iter().find(same).map(|entry| entry.workload.work());
        }
        records.push(record);
    }
    records
}

/// Other frameworks on the workloads of the entries with all threads, each once.
fn entrants<'a>(
    context: &'a Context<'_>,
    study: &str,
    entries: &[Entry<'a>],
    oracle_of: &dyn Fn(&Entry<'a>) -> &'a Oracle<'a>,
) -> Vec<Entrant<'a>> {
    let mut entrants: Vec<Entrant<'a>> = Vec::new();
    for entry in entries.iter().filter(|entry| entry.device.threads == context.device().threads) {
        let known = |(case, _): &Entrant<'_>| {
            case.workload == entry.workload.key && case.configuration.dtype == entry.dtype.name()
        };
        if !entrants.iter().any(known) {
            let workload = (study, entry.workload);
            entrants.extend(peers::entrants(context, workload, entry.dtype, oracle_of(entry)));
        }
    }
    entrants
}

/// Every entry compiled, engines at their own expense.
fn compiled(context: &Context<'_>, entries: &[Entry<'_>]) -> Vec<Result<ReadyEntry, Failure>> {
    let is_guest = |entry: &Entry<'_>| {
        context.parties.engines.iter().any(|engine| std::ptr::eq(engine, entry.device))
    };
    let compile =
        |entry: &Entry<'_>| guarded(&context.sampling.stop, "compiling", || ready(context, entry));
    let compiled = entries.iter().map(|entry| match is_guest(entry) {
        true => context.sampling.at_own_expense(entry.device.backend.name(), || compile(entry)),
        false => compile(entry),
    });
    compiled.collect()
}

/// Adds further figures to a latency: work, shares of ceilings, memory, copies, energy.
fn complete(
    context: &Context<'_>,
    (entry, oracle): (&Entry<'_>, &Oracle<'_>),
    (ready, paid): (Option<&mut ReadyEntry>, Option<&Overhead>),
    measurement: &mut Measurement,
) {
    measurement.overhead = Overhead {
        first_call_ns: measurement.overhead.first_call_ns,
        ..paid.cloned().unwrap_or_default()
    };
    let work = entry.workload.work();
    measurement.statuses.extend(impossible(entry, &work, measurement));
    let of = (entry.device.threads, entry.dtype);
    measurement.ceiling_shares = shares(&context.probes.ceilings, of, &work, measurement);
    measurement.work = Some(work);
    // Quantities that cannot be measured are absent; the case ran all the same.
    if let Some(Ok(Resources { memory, copies, energy })) =
        ready.map(|ready| resources(context, (entry, oracle), ready))
    {
        (measurement.memory, measurement.copies) = (Some(memory), copies);
        measurement.energy = energy;
    }
}

/// The distinct workloads, in order.
fn distinct<'a>(entries: &[Entry<'a>]) -> Vec<&'a Workload> {
    let mut workloads: Vec<&Workload> = Vec::new();
    for entry in entries {
        if !workloads.iter().any(|w| std::ptr::eq(*w, entry.workload)) {
            workloads.push(entry.workload);
        }
    }
    workloads
}

fn oracles<'a>(context: &'a Context<'_>, entries: &[Entry<'a>]) -> Vec<Oracle<'a>> {
    let workloads = distinct(entries);
    let count = workloads.len();
    workloads.into_iter().map(|workload| workload.oracle_of_many(context, count)).collect()
}

fn record(context: &Context<'_>, case: Case, baseline: Option<&Case>, outcome: Outcome) -> Record {
    let comparable = baseline.filter(|b| b.workload == case.workload && **b != case);
    let baseline = comparable.map(Case::id);
    let command = context.journal.command_of(&case.study);
    Record { case, baseline, seed: context.sampling.seed, command, outcome }
}

/// Rates as shares of the ceilings of the same threads: bandwidth, and products in a type.
pub(crate) fn shares(
    ceilings: &[Ceiling],
    (threads, dtype): (u32, DType),
    work: &Work,
    measurement: &Measurement,
) -> Vec<CeilingShare> {
    let Some(latency) = &measurement.latency else { return vec![] };
    let dtype = format!(" {dtype} ");
    let applies = |c: &&Ceiling| {
        c.threads == threads && (c.kind == CeilingKind::Bandwidth || c.name.contains(&dtype))
    };
    let share = |c: &Ceiling| c.share(work, latency.summary.median_ns);
    ceilings.iter().filter(applies).map(share).collect()
}

/// The status of a time that the device's data sheet rules out, where the device tells its peaks.
fn impossible(entry: &Entry<'_>, work: &Work, measurement: &Measurement) -> Option<Status> {
    let peaks = &entry.device.backend.description().peaks;
    let fits = |&&(bytes, _): &&(u64, f64)| work.bytes <= bytes;
    let level = peaks.levels.iter().find(fits).or(peaks.levels.last());
    let physics = Physics {
        flops_per_second: peaks
            .flops_per_second
            .get(&entry.dtype)
            .copied()
            .unwrap_or(f64::INFINITY),
        bytes_per_second: level.map_or(f64::INFINITY, |&(_, rate)| rate),
    };
    physics.check(measurement.latency.as_ref()?.summary.median_ns, work)
}
