//! Derives the verdict on each case from the evidence of a session. All functions are pure, so that
//! verdicts can be derived again from what is stored.

use std::collections::BTreeSet;

use super::block::contrast;
use super::exact;
use super::judgement::{
    Objection, blocks_to_decide, estimate, is_bounded_tail, minimum_detectable, verdict,
};
use super::metric::{Better, Metric, Scale};
use super::sampled::{Sampled, cases, missing, names, observed, sampled, steady, values};
use super::sequential::{Course, Look, Seen, see};
use overdrive_bench::failure::{Failure, FailureKind};
use overdrive_bench::statistics::Sorted;
use overdrive_bench::status::{StatusKind, THROTTLED_SHARE};
use overdrive_bench::verdicts::{
    Block, CaseVerdict, Compared, Control, Evidence, ExactChange, Figure, Finding, Flagged, MEDIAN,
    Observed, Side, UNCLEAR, Verdict,
};

/// A clock this far below the median clock of the case's processes is low.
const LOW_CLOCK: f64 = 0.95;

/// The verdict on every case, worst first.
pub fn judge(evidence: &Evidence) -> Vec<CaseVerdict> {
    let course = if evidence.settled { Course::Open } else { Course::Over };
    let mut verdicts = judged(evidence, course);
    verdicts.sort_by_key(CaseVerdict::rank);
    verdicts
}

/// Whether everything is decided, mean and tails by the limit of the median too.
pub(super) fn is_settled(evidence: &Evidence) -> bool {
    let is_open = |case: &CaseVerdict| match &case.finding {
        Finding::Compared(compared) => {
            compared.verdict == Verdict::Undecided
                || compared.figures.iter().any(|figure| figure.verdict == Verdict::Undecided)
        }
        _ => false,
    };
    !judged(evidence, Course::Open).iter().any(is_open)
}

/// The difference that the baseline shows against itself: either way, it is a false one.
pub fn control(evidence: &Evidence) -> Control {
    let figures = sampled(evidence, Side::Control, Course::Over);
    let differs = |one: &&Sampled<'_>| {
        matches!(verdict(&one.seen, one.p, &one.metric), Verdict::Regressed | Verdict::Improved)
    };
    let flagged = |one: &Sampled<'_>| Flagged {
        case: one.case.to_owned(),
        figure: one.name.to_owned(),
        change: estimate(&one.seen, one.metric.scale),
    };
    Control {
        blocks: figures.iter().map(|one| one.seen.blocks).max().unwrap_or(0),
        flagged: figures.iter().filter(differs).map(flagged).collect(),
    }
}

fn judged(evidence: &Evidence, course: Course) -> Vec<CaseVerdict> {
    let figures = sampled(evidence, Side::Current, course);
    let of_case = |case: &str| {
        let finding =
            broken(evidence, case).or_else(|| absent(evidence, case)).unwrap_or_else(|| {
                let figures: Vec<&Sampled<'_>> =
                    figures.iter().filter(|one| one.case == case).collect();
                Finding::Compared(Box::new(compared(evidence, case, &figures)))
            });
        CaseVerdict { case: case.to_owned(), finding }
    };
    cases(evidence).into_iter().map(of_case).collect()
}

/// Judges a case that ran on both sides.
fn compared(evidence: &Evidence, case: &str, sampled: &[&Sampled<'_>]) -> Compared {
    let runs: Vec<&Observed> = observed(evidence, case).map(|(_, observed)| observed).collect();
    let cycles = cycles(evidence, case);
    let throttled = throttled(&runs);
    let seconds = evidence.elapsed_s / evidence.blocks.len().max(1) as f64;
    let (mut figures, mut exact, mut reasons) = (Vec::new(), Vec::new(), Vec::new());
    let mut verdicts = BTreeSet::from([Verdict::Same]);
    for (name, metric) in names(evidence, case) {
        let values = values(evidence, case, name);
        if let Some(both) = steady(&values, name) {
            let found = exact::judged(name, &metric, both);
            verdicts.extend(match found.change {
                ExactChange::Worse => Some(Verdict::Regressed),
                ExactChange::Unclear => Some(Verdict::Undecided),
                ExactChange::Fine => None,
            });
            reasons.extend(found.sentence());
            exact.push(found);
            continue;
        }
        let Some(one) = sampled.iter().find(|one| one.name == name) else {
            if metric.better != Better::Unknown && values.iter().all(|values| !values.is_empty()) {
                verdicts.insert(Verdict::Undecided);
                reasons.push(too_few(evidence, case, name, &metric));
            }
            continue;
        };
        let plain = verdict(&one.seen, one.p, &metric);
        let is_change = matches!(plain, Verdict::Regressed | Verdict::Improved);
        if metric.better == Better::Unknown {
            if is_change {
                verdicts.insert(Verdict::Undecided);
                let change = estimate(&one.seen, metric.scale);
                reasons.push(format!("`{name}` is {change} of the baseline's; {UNCLEAR}"));
            }
            continue;
        }
        let objections: Vec<Objection> =
            throttled.clone().into_iter().chain(disagreeing(cycles.as_ref(), plain)).collect();
        let judged = if is_change && !objections.is_empty() { Verdict::Undecided } else { plain };
        let figure = figure(one, judged, &values);
        match judged {
            Verdict::Undecided if is_change => {
                verdicts.insert(judged);
                reasons.extend(objections.iter().map(|objection| format!("`{name}`: {objection}")));
            }
            Verdict::Undecided => {
                if !is_bounded_tail(&one.seen, &metric) {
                    verdicts.insert(judged);
                }
                reasons.push(doubt(one, &figure, seconds));
            }
            _ => {
                verdicts.insert(judged);
                if judged != Verdict::Same && name != MEDIAN {
                    reasons.push(format!("`{name}` {judged}: {}", figure.change));
                }
            }
        }
        figures.push(figure);
    }
    reasons.extend(remarks(&runs));
    let cycles = cycles.map(|seen| estimate(&seen, Scale::Ratio));
    let verdict = verdicts.into_iter().next().expect("it holds one at least");
    Compared { verdict, figures, exact, missing: missing(evidence, case), cycles, reasons }
}

fn figure(one: &Sampled<'_>, verdict: Verdict, values: &[Vec<f64>; 2]) -> Figure {
    let median = |values: &[f64]| Sorted::new(values).map_or(f64::NAN, |sorted| sorted.median());
    let detectable = minimum_detectable(&one.seen, &one.metric);
    let undecided = verdict == Verdict::Undecided;
    Figure {
        name: one.name.to_owned(),
        verdict,
        change: estimate(&one.seen, one.metric.scale),
        p: one.p,
        minimum_detectable: if one.metric.scale == Scale::Ratio {
            detectable.exp()
        } else {
            detectable
        },
        blocks: one.seen.blocks,
        blocks_to_decide: undecided.then(|| blocks_to_decide(&one.seen, &one.metric)).flatten(),
        baseline: median(&values[0]),
        current: median(&values[1]),
    }
}

/// Why a figure is not decided, and what would decide it.
fn doubt(one: &Sampled<'_>, figure: &Figure, seconds_a_block: f64) -> String {
    let Sampled { name, metric, seen, .. } = one;
    let allowed = match metric.scale {
        Scale::Ratio => "5 %".to_owned(),
        Scale::Difference(allowed) => allowed.to_string(),
    };
    let same = metric.same();
    let why = if seen.low > *same.start() && seen.high < *same.end() {
        "the middle of the blocks is the same and their mean is not: a few processes differ greatly"
            .to_owned()
    } else if is_bounded_tail(seen, metric) {
        format!("{} may differ by over {allowed}, which a mean or a tail is allowed", figure.change)
    } else if seen.high <= *same.end() {
        format!(
            "{}: no loss over {allowed}, and no gain over {allowed} shown or excluded",
            figure.change
        )
    } else {
        format!("{}: a loss over {allowed} is neither shown nor excluded", figure.change)
    };
    let more = figure.blocks_to_decide.map(|blocks| blocks - figure.blocks);
    let needed = match more {
        Some(more) => {
            let seconds = (more as f64 * seconds_a_block).ceil();
            format!("about {more} blocks more ({seconds} s) would decide: --budget")
        }
        None => "no reasonable number of blocks would decide so close to the limit".to_owned(),
    };
    format!("`{name}` {why}; {needed}")
}

/// Why a figure that both sides have is without an interval.
fn too_few(evidence: &Evidence, case: &str, name: &str, metric: &Metric) -> String {
    let has = |block: &&Block| {
        contrast(block, (case, Side::Current), metric, |observed| observed.figure(name)).is_some()
    };
    match evidence.blocks.iter().filter(has).count() {
        0 => format!(
            "`{name}` is not a positive number in every process of any block, so it has no ratio"
        ),
        count => {
            format!(
                "`{name}`: {count} complete blocks, and an interval needs 8; --budget gives more \
                 time"
            )
        }
    }
}

/// The device cycles that the blocks show, where they were counted in every process.
fn cycles(evidence: &Evidence, case: &str) -> Option<Seen> {
    let metric = super::metric::metric(MEDIAN)?;
    let of = |block: &Block| contrast(block, (case, Side::Current), &metric, |o| o.cycles);
    let contrasts: Option<Vec<f64>> = evidence.blocks.iter().map(of).collect();
    let contrasts = contrasts?;
    see(&contrasts, Look::latest(contrasts.len(), Course::Over)?)
}

fn disagreeing(cycles: Option<&Seen>, verdict: Verdict) -> Option<Objection> {
    let cycles = cycles?;
    let agrees = match verdict {
        Verdict::Regressed => cycles.low > 0.0,
        Verdict::Improved => cycles.high < 0.0,
        Verdict::Undecided | Verdict::Same => true,
    };
    (!agrees).then(|| Objection::CyclesDisagree { cycles: estimate(cycles, Scale::Ratio) })
}

fn throttled(runs: &[&Observed]) -> Option<Objection> {
    let clocks: Vec<f64> = runs.iter().filter_map(|run| run.clock_ghz()).collect();
    let median = Sorted::new(&clocks).map(|sorted| sorted.median());
    let is_low = |run: &&&Observed| {
        let slow =
            run.clock_ghz().zip(median).is_some_and(|(clock, median)| clock < LOW_CLOCK * median);
        slow || run.statuses.contains(&StatusKind::Throttled)
    };
    let low = runs.iter().filter(is_low).count();
    (low as f64 > THROTTLED_SHARE * runs.len() as f64)
        .then_some(Objection::Throttled { low, of: runs.len() })
}

/// The findings of the processes on their own samples, where a third of them or more said so.
fn remarks(runs: &[&Observed]) -> Option<String> {
    let kinds: BTreeSet<StatusKind> =
        runs.iter().flat_map(|run| run.statuses.iter().copied()).collect();
    let said: Vec<String> = kinds
        .into_iter()
        // Twenty samples always end at their limit, which is not about the machine.
        .filter(|kind| *kind != StatusKind::Imprecise)
        .map(|kind| (kind, runs.iter().filter(|run| run.statuses.contains(&kind)).count()))
        .filter(|(_, count)| 3 * count >= runs.len())
        .map(|(kind, count)| format!("{kind} in {count}"))
        .collect();
    (!said.is_empty()).then(|| format!("of {} processes: {}", runs.len(), said.join(", ")))
}

/// Wrong outputs, or a failure in any process, on either side.
fn broken(evidence: &Evidence, case: &str) -> Option<Finding> {
    let failures: Vec<(Side, &Failure)> = failures(evidence, case).collect();
    let said = |kinds: &[FailureKind]| {
        let (side, failure) = failures.iter().find(|(_, failure)| kinds.contains(&failure.kind))?;
        let of_kind = |(s, failure): &&(Side, &Failure)| s == side && kinds.contains(&failure.kind);
        let count = failures.iter().filter(of_kind).count();
        let runs = evidence.blocks.iter().flat_map(|block| &block.runs);
        let all = runs.filter(|(s, said)| s == side && said.contains_key(case)).count();
        Some(format!("in {count} of {all} processes of the {side}: {failure}"))
    };
    if let Some(reason) = said(&[FailureKind::Incorrect]) {
        return Some(Finding::WrongOutputs(reason));
    }
    said(&[FailureKind::Failed, FailureKind::OutOfMemory, FailureKind::Timeout])
        .map(Finding::Failed)
}

/// Why a case cannot be compared.
fn absent(evidence: &Evidence, case: &str) -> Option<Finding> {
    let ran =
        |wanted: bool| observed(evidence, case).any(|(side, _)| (side == Side::Current) == wanted);
    match [ran(false), ran(true)] {
        [true, true] => None,
        [true, false] => Some(Finding::OnlyInBaseline),
        [false, true] => Some(Finding::OnlyInCurrent),
        [false, false] => {
            let reason = failures(evidence, case).next().map(|(_, failure)| failure.to_string());
            Some(Finding::NotRun(reason.unwrap_or_else(|| "no process ran it".to_owned())))
        }
    }
}

fn failures<'e>(evidence: &'e Evidence, case: &str) -> impl Iterator<Item = (Side, &'e Failure)> {
    let runs = evidence.blocks.iter().flat_map(|block| &block.runs);
    runs.filter_map(move |(side, said)| Some((*side, said.get(case)?.as_ref().err()?)))
}
