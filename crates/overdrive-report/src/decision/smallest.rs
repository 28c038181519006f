//! The smallest configuration: by its file, or by the memory of a call if no file was written.

use super::super::judged::JudgedRow;
use super::card::Card;
use super::question::{Question, right, size};
use crate::quality;
use overdrive_bench::digits;
use overdrive_bench::quality::{Difference, Measure, metrics};

const TITLE: &str = "Smallest";

pub(super) fn card(question: &Question<'_, '_>) -> Card {
    let rows = right(question);
    let found = size(question).and_then(|size| size.least(question).map(|least| (size, least)));
    let Some((size, least)) = found else {
        return Card::unknown(TITLE, "neither a file nor the memory of a call was counted");
    };
    let bytes = |row: &JudgedRow<'_>| size.of(row);
    let sized: Vec<&JudgedRow<'_>> = rows.into_iter().filter(|row| bytes(row).is_some()).collect();
    let most = sized.iter().copied().max_by_key(|row| bytes(row)).unwrap_or(least);
    let figure = |row: &JudgedRow<'_>| digits::bytes(bytes(row).unwrap_or(0));
    let alike: Vec<&JudgedRow<'_>> =
        sized.iter().copied().filter(|row| bytes(row) == bytes(least)).collect();
    let card = match best(&alike) {
        None if alike.len() == sized.len() => {
            let detail = format!("{}: all {} take the same", size.name, sized.len());
            Card::open(TITLE, figure(least), detail)
        }
        None => {
            let (count, names) = (alike.len(), named(&alike));
            let detail =
                format!("{}: {names} take the same; {count} of {}", size.name, sized.len());
            Card::open(TITLE, figure(least), detail)
        }
        Some(least) => {
            let most = match most.id == least.id {
                true => "the only one that was counted".to_owned(),
                false => format!("`{}` takes {}", name(most), figure(most)),
            };
            let others: Vec<&JudgedRow<'_>> =
                alike.iter().copied().filter(|row| row.id != least.id).collect();
            let same = match others.as_slice() {
                [] => String::new(),
                others => format!("; no better at that size: {}", named(others)),
            };
            let beside = question.has(least).into_iter();
            Card {
                detail: format!("{}, exact; {most}{same}", size.name),
                beside: beside.filter(|part| *part != figure(least)).collect(),
                gives_up: [question.slower(least), question.worse(least)]
                    .into_iter()
                    .flatten()
                    .collect(),
                ..Card::won(TITLE, least, figure(least))
            }
        }
    };
    card.resting_on(&sized)
}

/// Among rows of one size, the one that is better than every other. They are compared by the first
/// quality that all have and that tells them apart. A single row is the best.
fn best<'j, 'r>(rows: &[&'j JudgedRow<'r>]) -> Option<&'j JudgedRow<'r>> {
    let of = |metric: &Measure| {
        let beats = |row: &&&'j JudgedRow<'r>| {
            let mut others = rows.iter().filter(|other| other.id != row.id);
            others.all(|other| quality::difference(metric, row, other) == Some(Difference::Better))
        };
        rows.iter().find(beats).copied()
    };
    match rows {
        [only] => Some(only),
        _ => metrics().find_map(of),
    }
}

/// Two of the rows, and how many more.
fn named(rows: &[&JudgedRow<'_>]) -> String {
    let names: Vec<String> = rows.iter().map(|row| format!("`{}`", name(row))).collect();
    match names.as_slice() {
        [first, second, _, ..] => format!("{first}, {second} and {} more", names.len() - 2),
        _ => names.join(" and "),
    }
}

fn name(row: &JudgedRow<'_>) -> String {
    row.label.clone()
}
