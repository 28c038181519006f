//! A measured ladder as a table.

use super::captioned::Captioned;
use super::judged::JudgedResults;
use overdrive_bench::digits;
use overdrive_bench::ladder::{Ladder, LadderKey};
use overdrive_bench::record::Record;
use overdrive_bench::table::{Align, Table, UNKNOWN, cell};

/// The steps with their gains, or why there is no ladder.
pub(super) fn table(judged: &JudgedResults<'_>, key: &LadderKey) -> Result<Captioned, String> {
    use Align::{Left, Right};
    let rungs: Vec<(&str, &Record)> = key
        .rungs
        .iter()
        .map(|rung| match judged.find(&rung.case) {
            Some(row) => Ok((rung.change.as_str(), row.record)),
            None => Err(format!("there is no record of `{}`", rung.case)),
        })
        .collect::<Result<_, _>>()?;
    let ladder = Ladder::measured(&rungs).map_err(|refused| refused.to_string())?;
    let mut table = Table::new(&[
        ("Step", Left),
        ("Time per call [95 %]", Right),
        ("Over the step before", Right),
        ("Over the first step", Right),
    ]);
    let time = |record: &Record| {
        cell(
            record
                .outcome
                .measurement()
                .and_then(|m| m.latency.as_ref())
                .map(|s| digits::time_of(&s.summary)),
        )
    };
    let (change, first) = rungs[0];
    table.push(vec![change.to_owned(), time(first), UNKNOWN.to_owned(), UNKNOWN.to_owned()]);
    for (step, (_, record)) in ladder.steps().iter().zip(&rungs[1..]) {
        let (previous, first) = (step.over_previous.figure(), step.over_first.figure());
        table.push(vec![step.change.clone(), time(record), previous, first]);
    }
    let caption = format!(
        "Ladder {}: {}. First step over last as measured, not a product.",
        key.title,
        ladder.total()
    );
    Ok(Captioned { caption, table })
}
