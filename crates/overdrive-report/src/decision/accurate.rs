//! The most accurate configuration, by an interval. If no quality was measured, by the distance of
//! outputs from the reference.

use super::super::judged::JudgedRow;
use super::card::Card;
use super::question::Question;
use crate::quality;
use overdrive_bench::measurement::Agreement;
use overdrive_bench::quality::{Difference, Measure, metrics, samples};

const TITLE: &str = "Most accurate";

pub(super) fn card(question: &Question<'_, '_>) -> Card {
    let measured = metrics().find_map(|metric| {
        let has =
            |row: &&JudgedRow<'_>| row.measurement().is_some_and(|m| metric.read(m).is_some());
        let rows: Vec<&JudgedRow<'_>> = question.rows.iter().copied().filter(has).collect();
        (rows.len() > 1).then_some((metric, rows))
    });
    match measured {
        Some((metric, rows)) => by_quality(question, metric, &rows),
        None => by_agreement(question),
    }
}

fn by_quality(question: &Question<'_, '_>, metric: &Measure, rows: &[&JudgedRow<'_>]) -> Card {
    let reading = |row: &JudgedRow<'_>| row.measurement().and_then(|m| metric.read(m));
    let figure =
        |row: &JudgedRow<'_>| reading(row).map_or(String::new(), |found| metric.figure(&found));
    let difference =
        |row: &JudgedRow<'_>, other: &JudgedRow<'_>| quality::difference(metric, row, other);
    let better = |row: &JudgedRow<'_>, other: &JudgedRow<'_>| {
        row.id == other.id || difference(row, other) == Some(Difference::Better)
    };
    if let Some(winner) = rows.iter().find(|row| rows.iter().all(|other| better(row, other))) {
        let found = reading(winner);
        let samples = found.as_ref().and_then(samples).map_or(String::new(), |n| format!(", {n}"));
        let title = metric.title;
        let count = rows.len() - 1;
        let nearest = rows
            .iter()
            .filter(|row| row.id != winner.id)
            .min_by(|a, b| quality::rank(metric, a).total_cmp(&quality::rank(metric, b)));
        let detail = match (original(question, metric, winner), nearest) {
            (Some(original), _) => format!(
                "after the original, `{}`; {title}{samples}; better than each of the {count} \
                 others: its interval lies apart",
                original.label
            ),
            (None, Some(nearest)) if metric.is_likeness => format!(
                "the original itself; of {count} others `{}` is nearest: {}",
                nearest.label,
                figure(nearest)
            ),
            (None, _) => format!(
                "{title}{samples}; better than each of the {count} others: its interval lies apart"
            ),
        };
        return Card {
            detail,
            gives_up: [question.slower(winner), question.larger(winner)]
                .into_iter()
                .flatten()
                .collect(),
            ..Card::won(TITLE, winner, found.map_or(String::new(), |found| metric.named(&found)))
        }
        .resting_on(rows);
    }
    // Everybody whom nobody beats by an interval.
    let worse = |row: &JudgedRow<'_>, other: &JudgedRow<'_>| {
        row.id != other.id
            && matches!(difference(row, other), Some(Difference::Worse | Difference::FarWorse))
    };
    let (beaten, alike): (Vec<&JudgedRow<'_>>, Vec<&JudgedRow<'_>>) =
        rows.iter().partition(|row| rows.iter().any(|other| worse(row, other)));
    let shown: Vec<String> =
        alike.iter().take(2).map(|row| format!("`{}` {}", row.label, figure(row))).collect();
    let clear = match beaten.len() {
        0 => "nobody is clearly worse".to_owned(),
        1 => format!("only `{}` is clearly worse", beaten[0].label),
        count => format!("{count} others are clearly worse"),
    };
    let answer = format!("{} of {} alike", alike.len(), rows.len());
    let after = match original(question, metric, rows[0]) {
        Some(original) => format!("the original, `{}`, is above them; ", original.label),
        None => String::new(),
    };
    let detail = format!("{after}{clear}; {}: {}", metric.title, shown.join(", "));
    Card::open(TITLE, answer, detail).resting_on(rows)
}

/// The row that `row` is likened to, where `metric` is likeness.
fn original<'j, 'r>(
    question: &Question<'j, 'r>,
    metric: &Measure,
    row: &JudgedRow<'r>,
) -> Option<&'j JudgedRow<'r>> {
    let baseline = row.record.baseline.as_deref().filter(|_| metric.is_likeness)?;
    question.judged.find(baseline)
}

fn by_agreement(question: &Question<'_, '_>) -> Card {
    let mut checked: Vec<(&JudgedRow<'_>, &Agreement)> = question
        .rows
        .iter()
        .filter_map(|row| Some((*row, row.measurement()?.agreement.as_ref()?)))
        .filter(|(_, agreement)| agreement.holds())
        .collect();
    let error = |agreement: &Agreement| agreement.worst.absolute;
    checked.sort_by(|(_, a), (_, b)| error(a).total_cmp(&error(b)));
    let ran = question.rows.iter().filter(|row| row.measurement().is_some()).count();
    let (Some((least, first)), Some((most, last))) = (checked.first(), checked.last()) else {
        return Card::unknown(TITLE, "neither quality nor agreement with a reference is known");
    };
    let all = if checked.len() == ran { "all".to_owned() } else { format!("{} of", checked.len()) };
    let name = |row: &JudgedRow<'_>| row.label.clone();
    let errors = if checked.len() == 1 {
        format!("largest error {:.1e}", error(first))
    } else {
        let (low, high) = (error(first), error(last));
        format!("largest errors {low:.1e} (`{}`) to {high:.1e} (`{}`)", name(least), name(most))
    };
    let rows: Vec<&JudgedRow<'_>> = checked.iter().map(|(row, _)| *row).collect();
    let against = format!("with the reference ({})", first.reference);
    let detail =
        format!("{against}; {errors}; no data set was given, so accuracy itself is unknown");
    Card::open(TITLE, format!("{all} {ran} agree"), detail).resting_on(&rows)
}
