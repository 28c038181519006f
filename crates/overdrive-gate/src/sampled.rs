//! The figures of a session: which of them both sides have, which every process says alike, and
//! what the blocks of the others show.

use std::collections::BTreeSet;

use super::block::contrast;
use super::holm::holm;
use super::metric::{Better, Metric, metric};
use super::sequential::{Course, Look, Seen, see};
use overdrive_bench::verdicts::{Block, Evidence, MEAN, MEDIAN, Observed, P95, P99, Side};

/// A figure whose blocks have an interval.
pub(super) struct Sampled<'e> {
    pub(super) case: &'e str,
    pub(super) name: &'e str,
    pub(super) metric: Metric,
    pub(super) seen: Seen,
    /// After Holm's correction over all figures of the session whose direction is known.
    pub(super) p: f64,
}

/// Every case that any process named.
pub(super) fn cases(evidence: &Evidence) -> BTreeSet<&str> {
    let runs = evidence.blocks.iter().flat_map(|block| &block.runs);
    runs.flat_map(|(_, observations)| observations.keys().map(String::as_str)).collect()
}

/// The observations of `case` by every process that has figures of it.
pub(super) fn observed<'e>(
    evidence: &'e Evidence,
    case: &str,
) -> impl Iterator<Item = (Side, &'e Observed)> {
    evidence.blocks.iter().flat_map(move |block| block.observed(case))
}

/// Names of a case's figures that belong to no other: the headline first, other times next,
/// quantities last.
pub(super) fn names<'e>(evidence: &'e Evidence, case: &str) -> Vec<(&'e str, Metric)> {
    let all: BTreeSet<(usize, &str)> = observed(evidence, case)
        .flat_map(|(_, observed)| observed.figures.keys())
        .map(|name| {
            (TIMES.iter().position(|time| time == name).unwrap_or(TIMES.len()), name.as_str())
        })
        .collect();
    all.into_iter().filter_map(|(_, name)| Some((name, metric(name)?))).collect()
}

const TIMES: [&str; 4] = [MEDIAN, MEAN, P95, P99];

/// Values in the baseline's processes, those of the control among them, and in the current's.
pub(super) fn values(evidence: &Evidence, case: &str, name: &str) -> [Vec<f64>; 2] {
    let mut values = [Vec::new(), Vec::new()];
    for (side, observed) in observed(evidence, case) {
        values[usize::from(side == Side::Current)].extend(observed.figure(name));
    }
    values
}

/// The values of both sides, where every process of a side says the same: then no statistics are
/// needed. Times never are.
pub(super) fn steady(values: &[Vec<f64>; 2], name: &str) -> Option<[f64; 2]> {
    let of = |values: &[f64]| {
        let first = *values.first()?;
        values.iter().all(|value| *value == first).then_some(first)
    };
    if TIMES.contains(&name) {
        return None;
    }
    Some([of(&values[0])?, of(&values[1])?])
}

/// Figures of `case` that one side or some processes lack and others report, in sentences. Tails
/// are judged only with enough samples, and figures without a better direction are not judged.
pub(super) fn missing(evidence: &Evidence, case: &str) -> Vec<String> {
    let mut processes = [0; 2];
    let mut agreed = [0; 2];
    for (side, observed) in observed(evidence, case) {
        let side = usize::from(side == Side::Current);
        processes[side] += 1;
        agreed[side] += usize::from(observed.agrees);
    }
    let is_judged = |name: &str, metric: &Metric| {
        metric.better != Better::Unknown && !matches!(name, P95 | P99)
    };
    let counted = names(evidence, case)
        .into_iter()
        .filter(|(name, metric)| is_judged(name, metric))
        .map(|(name, _)| {
            (format!("`{name}`"), values(evidence, case, name).map(|values| values.len()))
        });
    let agreement = ("whether outputs agree".to_owned(), agreed);
    let lacks = |(what, has): (String, [usize; 2])| {
        let lacking = (0..2).find(|side| has[*side] < processes[*side])?;
        let side = if lacking == 0 { Side::Baseline } else { Side::Current };
        if has == [0, 0] {
            return None;
        }
        let (lost, of) = (processes[lacking] - has[lacking], processes[lacking]);
        Some(format!(
            "{what} is missing in {lost} of {of} processes of the {side}, so it could not be \
             compared"
        ))
    };
    counted.chain([agreement]).filter_map(lacks).collect()
}

/// Every figure of the session that varies and that `side` and the baseline have often enough for
/// an interval.
pub(super) fn sampled(evidence: &Evidence, side: Side, course: Course) -> Vec<Sampled<'_>> {
    let mut found = Vec::new();
    for case in cases(evidence) {
        for (name, metric) in names(evidence, case) {
            if steady(&values(evidence, case, name), name).is_some() {
                continue;
            }
            let of = |block: &Block| {
                contrast(block, (case, side), &metric, |observed| observed.figure(name))
            };
            let contrasts: Vec<f64> = evidence.blocks.iter().filter_map(of).collect();
            let seen = Look::latest(contrasts.len(), course).and_then(|look| see(&contrasts, look));
            found.extend(seen.map(|seen| Sampled { case, name, metric, p: seen.p, seen }));
        }
    }
    let known = || found.iter().enumerate().filter(|(_, one)| one.metric.better != Better::Unknown);
    let (places, p): (Vec<usize>, Vec<f64>) = known().map(|(at, one)| (at, one.p)).unzip();
    for (at, p) in places.into_iter().zip(holm(&p)) {
        found[at].p = p;
    }
    found
}
