//! The configuration with the lowest latency, and what it costs.

use super::super::judged::{JudgedResults, JudgedRow};
use super::super::leaders::{Lead, believed};
use super::super::side_tables::pays_back;
use super::card::Card;
use super::question::{Question, median, time};
use overdrive_bench::digits;
use overdrive_bench::series::Depth;
use overdrive_bench::speedup::Speedup;

const TITLE: &str = "Fastest";

/// The rows whose times may be recommended, of full measurements where there are any.
pub(super) fn candidates<'j, 'r>(
    judged: &JudgedResults<'r>,
    rows: &[&'j JudgedRow<'r>],
) -> Vec<&'j JudgedRow<'r>> {
    let of = |depth: Depth| {
        let at = |row: &&&'j JudgedRow<'r>| {
            believed(judged, row).is_some_and(|(_, series)| series.conditions.depth == depth)
        };
        rows.iter().filter(at).copied().collect::<Vec<_>>()
    };
    let full = of(Depth::Full);
    if full.is_empty() { of(Depth::Screening) } else { full }
}

pub(super) fn card(question: &Question<'_, '_>) -> Card {
    let candidates = &question.timed;
    match candidates.as_slice() {
        [] => Card::unknown(TITLE, untimed(question)),
        [only] => {
            let detail = "the only time that can be trusted, so nothing to compare it with";
            let gives_up = given_up(question, only);
            Card { detail: detail.into(), gives_up, ..Card::won(TITLE, only, time(only)) }
        }
        _ => match &question.lead {
            Some(lead) => Card {
                detail: against(lead, candidates) + &lead.doubt().replacen(", ", "; ", 1),
                gives_up: given_up(question, lead.winner),
                beside: question.has(lead.winner),
                ..Card::won(TITLE, lead.winner, time(lead.winner))
            },
            None => undecided(candidates),
        },
    }
    .resting_on(candidates)
}

/// Why no time counts.
fn untimed(question: &Question<'_, '_>) -> String {
    if question.judged.results.imported.is_some() {
        return "times were imported: they are shown and not judged".to_owned();
    }
    let blocked = question.rows.iter().filter_map(|row| row.measurement()?.blocks().next());
    match blocked.map(ToString::to_string).next() {
        Some(status) => status,
        None if question
            .rows
            .iter()
            .any(|row| row.measurement().is_some_and(|m| m.latency.is_some())) =>
        {
            "no outputs were shown to agree with a reference".to_owned()
        }
        None => "nothing was timed".to_owned(),
    }
}

fn undecided(candidates: &[&JudgedRow<'_>]) -> Card {
    let mut sorted = candidates.to_vec();
    let median = |row: &JudgedRow<'_>| {
        let series = row.measurement().and_then(|m| m.latency.as_ref());
        series.map_or(f64::INFINITY, |series| series.summary.median_ns)
    };
    sorted.sort_by(|a, b| median(a).total_cmp(&median(b)));
    let shown: Vec<String> =
        sorted.iter().take(2).map(|row| format!("`{}` {}", row.label, time(row))).collect();
    let why = "intervals do not tell them apart, or a ratio is not confirmed";
    Card::open(TITLE, "no winner shown", format!("{}; {why}", shown.join("; ")))
}

/// The gain over the baseline, or over the slowest that is told apart; and over the best of the
/// other engines.
fn against(lead: &Lead<'_, '_>, candidates: &[&JudgedRow<'_>]) -> String {
    let winner = lead.winner;
    let backend = |row: &JudgedRow<'_>| row.record.case.configuration.backend.clone();
    let beaten: Vec<(&JudgedRow<'_>, Speedup)> = candidates
        .iter()
        .filter_map(|row| Some((*row, Speedup::between(row.record, winner.record).ok()?)))
        .filter(|(_, gain)| gain.interval().low > 1.0)
        .collect();
    let by_ratio = |(_, a): &&(&JudgedRow<'_>, Speedup), (_, b): &&(&JudgedRow<'_>, Speedup)| {
        a.ratio().total_cmp(&b.ratio())
    };
    let is_baseline = |row: &JudgedRow<'_>| winner.record.baseline.as_ref() == Some(&row.id);
    let first =
        beaten.iter().find(|(row, _)| is_baseline(row)).or_else(|| beaten.iter().max_by(by_ratio));
    let others = beaten.iter().filter(|(row, _)| backend(row) != backend(winner));
    let rival =
        others.min_by(by_ratio).filter(|(row, _)| first.is_none_or(|(one, _)| one.id != row.id));
    let over = |(row, gain): &(&JudgedRow<'_>, Speedup)| {
        format!("{} over `{}` ({})", gain.figure(), row.label, median(row))
    };
    first.into_iter().chain(rival).map(over).collect::<Vec<_>>().join("; ")
}

fn given_up(question: &Question<'_, '_>, winner: &JudgedRow<'_>) -> Vec<String> {
    let start: u64 = winner
        .measurement()
        .map_or(0, |measurement| measurement.overhead.stages().map(|(_, ns)| ns).sum());
    let paid = pays_back(winner).filter(|calls| *calls > 1).map(|calls| {
        format!("{} at the start, paid back after {calls} calls", digits::time(start as f64, None))
    });
    [question.worse(winner), question.larger(winner), paid].into_iter().flatten().collect()
}
