//! From the evidence of a session to what is said of each case.

use std::collections::BTreeSet;

use super::block::{Block, Side};
use super::exact::exact;
use super::judgement::{ALPHA, Estimate, JUDGING_BLOCKS, LIMIT, Objection, Spread, Verdict};
use super::observation::Observed;
use super::session::{Blocks, Evidence, cases};
use super::verdicts::{BlockTimes, CaseVerdict, Control, Finding, Flagged, Timed};
use crate::outcome::{Failure, FailureKind};
use crate::statistics::{Sorted, fewest_differences, holm, sign_flip_p};
use crate::status::{StatusKind, THROTTLED_SHARE};

/// A clock this far below the median clock of the case's processes is low.
const LOW_CLOCK: f64 = 0.95;

/// What is said of every case, worst first.
pub fn judge(evidence: &Evidence) -> Vec<CaseVerdict> {
    let all = || evidence.rivals.screening.iter().chain(&evidence.rivals.judging);
    let names = cases(all());
    let timed = timed(&evidence.rivals, Flip::None);
    let mut verdicts: Vec<CaseVerdict> = names
        .into_iter()
        .map(|case| {
            let figures = timed.iter().find(|(name, _)| *name == case).map(|(_, timed)| timed.clone());
            let finding = broken(&evidence.rivals, &case).unwrap_or_else(|| match figures {
                Some(timed) => Finding::Timed(Box::new(timed)),
                None => untimed(&evidence.rivals, &case),
            });
            let exact = exact(all().flat_map(|block| block.observed(&case)));
            let blocks = times(&evidence.rivals, &case);
            CaseVerdict { case, finding, exact, blocks }
        })
        .collect();
    verdicts.sort_by_key(CaseVerdict::rank);
    verdicts
}

/// What the baseline against itself shows. Its sides are names, so a difference either way is a false one.
pub fn control(evidence: &Evidence) -> Control {
    let blocks = &evidence.control;
    let mut flagged = Vec::new();
    for flip in [Flip::None, Flip::Sides] {
        let regressed = timed(blocks, flip).into_iter().filter(|(_, t)| t.verdict == Verdict::Regressed);
        flagged.extend(regressed.map(|(case, timed)| Flagged { case, time: timed.time }));
    }
    let complete = |block: &&Block| block.runs.len() == 4;
    let count = blocks.screening.iter().chain(&blocks.judging).filter(complete).count();
    Control { blocks: count, rejudged: blocks.candidates.len(), flagged }
}

/// Whether the sides of a block are exchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flip {
    None,
    Sides,
}

/// One case's complete blocks, the fresh ones if it has any.
struct Sampled<'b> {
    case: &'b str,
    blocks: Vec<&'b Block>,
    spread: Spread,
    logs: Vec<f64>,
    is_fresh: bool,
    sign: f64,
}

/// Verdicts on every case with an interval.
fn timed(blocks: &Blocks, flip: Flip) -> Vec<(String, Timed)> {
    let names = cases(blocks.screening.iter().chain(&blocks.judging));
    let sampled: Vec<Sampled<'_>> = names.iter().filter_map(|case| sample(blocks, case, flip)).collect();
    // The family of tests is what was tested: the candidates, chosen on other data.
    // A program may measure more than it was asked for; that is not tested.
    let is_tested = |s: &&Sampled<'_>| s.is_fresh && blocks.candidates.contains(s.case);
    let fresh: Vec<f64> = sampled.iter().filter(is_tested).map(|s| sign_flip_p(&s.logs)).collect();
    let mut adjusted = holm(&fresh).into_iter();
    let judging = JUDGING_BLOCKS.max(fewest_differences(blocks.candidates.len().max(1), ALPHA));
    sampled
        .iter()
        .map(|sampled| {
            let p = if is_tested(&sampled) { adjusted.next() } else { None };
            let candidate = blocks.candidates.contains(sampled.case);
            (sampled.case.to_owned(), verdict(sampled, p, Plan { candidate, judging }))
        })
        .collect()
}

fn sample<'b>(blocks: &'b Blocks, case: &'b str, flip: Flip) -> Option<Sampled<'b>> {
    let sign = if flip == Flip::Sides { -1.0 } else { 1.0 };
    let of = |blocks: &'b [Block]| {
        let complete: Vec<(&Block, f64)> = blocks
            .iter()
            .filter_map(|block| Some((block, sign * block.log_ratio(case, |o| o.median_ns)?)))
            .collect();
        let logs: Vec<f64> = complete.iter().map(|(_, log)| *log).collect();
        Spread::of(&logs).map(|spread| (complete.into_iter().map(|(block, _)| block).collect(), spread, logs))
    };
    let (found, is_fresh) = match of(&blocks.judging) {
        Some(found) => (found, true),
        None => (of(&blocks.screening)?, false),
    };
    let (blocks, spread, logs) = found;
    Some(Sampled { case, blocks, spread, logs, is_fresh, sign })
}

/// What was planned for a case.
struct Plan {
    candidate: bool,
    judging: usize,
}

fn verdict(sampled: &Sampled<'_>, p: Option<f64>, plan: Plan) -> Timed {
    let Sampled { spread, logs, .. } = sampled;
    let observed = || sampled.blocks.iter().flat_map(|block| block.observed(sampled.case));
    let cycle_log = |block: &&Block| Some(sampled.sign * block.log_ratio(sampled.case, |o| o.cycles)?);
    let cycles: Option<Vec<f64>> = sampled.blocks.iter().map(cycle_log).collect();
    let cycles = cycles.and_then(|logs| Spread::of(&logs)).map(|spread| spread.estimate());
    let runs: Vec<&Observed> = observed().map(|(_, observed)| observed).collect();
    let mut objections = Vec::new();
    objections.extend(throttled(&runs));
    objections
        .extend(cycles.filter(|cycles| cycles.low <= 1.0).map(|cycles| Objection::CyclesDisagree { cycles }));
    let verdict = spread.verdict(p, &objections);
    let time = spread.estimate();
    let mut reasons: Vec<String> = Vec::new();
    if verdict == Verdict::Ambiguous {
        // Without objections, is it still a regression? Then they are the reason.
        if spread.verdict(p, &[]) == Verdict::Regressed {
            reasons.extend(objections.iter().map(Objection::to_string));
        } else {
            reasons.push(doubt(sampled, p, &plan));
        }
    }
    reasons.extend(remarks(&runs));
    let side_median = |side: Side| {
        let medians: Vec<f64> =
            observed().filter(|(s, _)| *s == side).filter_map(|(_, o)| o.median_ns).collect();
        Sorted::new(&medians).expect("a complete block has both sides").median()
    };
    let blocks_to_decide = (verdict == Verdict::Ambiguous).then(|| spread.blocks_to_decide()).flatten();
    Timed {
        verdict,
        time,
        p,
        minimum_detectable: spread.minimum_detectable(plan.judging),
        blocks: logs.len(),
        blocks_to_decide,
        baseline_ns: side_median(Side::Baseline),
        current_ns: side_median(Side::Current),
        cycles,
        reasons,
    }
}

/// Why the statistics leave a case undecided.
fn doubt(sampled: &Sampled<'_>, p: Option<f64>, plan: &Plan) -> String {
    let Estimate { ratio, low, .. } = sampled.spread.estimate();
    let slower = 100.0 * (LIMIT - 1.0);
    let why = match p {
        None if plan.candidate => {
            "it looked slower, and the fresh blocks that would judge it are missing".to_owned()
        }
        Some(p) if ratio > LIMIT && low > 1.0 => {
            format!("p is {p:.3} after Holm's correction, not under {ALPHA}")
        }
        Some(_) if ratio > LIMIT => "the interval includes 1".to_owned(),
        _ => format!("a slowdown over {slower:.0} % is not excluded by {} blocks", sampled.logs.len()),
    };
    match sampled.spread.blocks_to_decide() {
        Some(blocks) => format!("{why}; about {blocks} blocks of this noise would decide"),
        None => format!("{why}; no reasonable number of blocks would decide so close to the limit"),
    }
}

fn throttled(runs: &[&Observed]) -> Option<Objection> {
    let clocks: Vec<f64> = runs.iter().filter_map(|run| run.clock_ghz()).collect();
    let median = Sorted::new(&clocks).map(|sorted| sorted.median());
    let is_low = |run: &&&Observed| {
        let slow = run.clock_ghz().zip(median).is_some_and(|(clock, median)| clock < LOW_CLOCK * median);
        slow || run.statuses.contains(&StatusKind::Throttled)
    };
    let low = runs.iter().filter(is_low).count();
    (low as f64 > THROTTLED_SHARE * runs.len() as f64).then_some(Objection::Throttled { low, of: runs.len() })
}

/// What the processes said of their own samples, where a third of them or more said it.
fn remarks(runs: &[&Observed]) -> Option<String> {
    let kinds: BTreeSet<StatusKind> = runs.iter().flat_map(|run| run.statuses.iter().copied()).collect();
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
fn broken(blocks: &Blocks, case: &str) -> Option<Finding> {
    let failures: Vec<(Side, &Failure)> = failures(blocks, case).collect();
    let said = |kinds: &[FailureKind]| {
        let (side, failure) = failures.iter().find(|(_, failure)| kinds.contains(&failure.kind))?;
        let of_kind = |(s, failure): &&(Side, &Failure)| s == side && kinds.contains(&failure.kind);
        let count = failures.iter().filter(of_kind).count();
        let all = runs(blocks).filter(|(s, said)| s == side && said.contains_key(case)).count();
        Some(format!("in {count} of {all} processes of the {side}: {failure}"))
    };
    if let Some(reason) = said(&[FailureKind::Incorrect]) {
        return Some(Finding::WrongOutputs(reason));
    }
    said(&[FailureKind::Failed, FailureKind::OutOfMemory, FailureKind::Timeout]).map(Finding::Failed)
}

/// Why a case without an interval has none.
fn untimed(blocks: &Blocks, case: &str) -> Finding {
    let all = || blocks.screening.iter().chain(&blocks.judging);
    let ran = |side: Side| all().flat_map(|block| block.observed(case)).any(|(s, _)| s == side);
    match (ran(Side::Baseline), ran(Side::Current)) {
        (true, false) => Finding::OnlyInBaseline,
        (false, true) => Finding::OnlyInCurrent,
        (false, false) => {
            let reason = failures(blocks, case).next().map(|(_, failure)| failure.to_string());
            Finding::NotRun(reason.unwrap_or_else(|| "no process ran it".to_owned()))
        }
        (true, true) if all().flat_map(|b| b.observed(case)).all(|(_, o)| o.median_ns.is_none()) => {
            Finding::ExactOnly
        }
        (true, true) => {
            let complete = |block: &&Block| block.log_ratio(case, |o| o.median_ns).is_some();
            Finding::TooFewBlocks(all().filter(complete).count())
        }
    }
}

fn runs(blocks: &Blocks) -> impl Iterator<Item = &(Side, super::observation::Observations)> {
    blocks.screening.iter().chain(&blocks.judging).flat_map(|block| &block.runs)
}

fn failures<'b>(blocks: &'b Blocks, case: &'b str) -> impl Iterator<Item = (Side, &'b Failure)> {
    runs(blocks).filter_map(move |(side, said)| Some((*side, said.get(case)?.as_ref().err()?)))
}

fn times(blocks: &Blocks, case: &str) -> Vec<BlockTimes> {
    let of = |block: &Block, fresh: bool| {
        let processes: Vec<(Side, f64)> =
            block.observed(case).filter_map(|(side, observed)| Some((side, observed.median_ns?))).collect();
        (!processes.is_empty()).then_some(BlockTimes { fresh, processes })
    };
    let screening = blocks.screening.iter().filter_map(|block| of(block, false));
    screening.chain(blocks.judging.iter().filter_map(|block| of(block, true))).collect()
}
