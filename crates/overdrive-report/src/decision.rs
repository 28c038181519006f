//! The facts that a reader decides by: for each workload, the fastest configuration, the smallest
//! and the most accurate. Each is shown with its figure and with what it gives up.
//!
//! A winner is named only where intervals decide and outputs agree, by the rules of
//! [`leaders`] and [`quality`](super::quality). Exact counts need no interval.

mod accurate;
mod beside;
mod card;
mod fastest;
mod question;
mod smallest;
#[cfg(test)]
mod tests;

pub(crate) use card::Card;

use super::judged::{JudgedResults, JudgedRow};
use super::{leaders, overview};
use overdrive_bench::table::{Align, Table};
use question::Question;

/// The cards of every workload with measurements.
pub(super) struct Decision {
    pub(super) subjects: Vec<WorkloadDecision>,
    /// Said once, where the figures are a screening's.
    pub(super) screening: Option<&'static str>,
}

/// One workload.
pub(super) struct WorkloadDecision {
    /// The studies of it, with commas between them.
    pub(super) study: String,
    pub(super) workload: String,
    /// The model that is computed: `gpt2` of `gpt2, next token`.
    pub(super) model: String,
    /// Fastest, smallest, most accurate.
    pub(super) cards: [Card; 3],
    /// The case that the winners are compared with.
    pub(super) baseline: Option<String>,
    /// The winners beside the baseline and other engines; absent where there is one row.
    pub(super) beside: Option<Table>,
}

/// Works out every card, in the order of the records.
pub(super) fn decide(judged: &JudgedResults<'_>) -> Decision {
    let mut groups: Vec<Vec<&JudgedRow<'_>>> = Vec::new();
    for row in &judged.rows {
        let workload = |row: &JudgedRow<'_>| row.record.case.workload.clone();
        match groups.iter_mut().find(|group| workload(group[0]) == workload(row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups.retain(|group| group.iter().any(|row| row.measurement().is_some()));
    let is_timed = |rows: &[&JudgedRow<'_>]| {
        let timed = |row: &&JudgedRow<'_>| row.measurement().is_some_and(|m| m.latency.is_some());
        judged.results.imported.is_some() || rows.iter().any(timed)
    };
    let subject = |rows: Vec<&JudgedRow<'_>>| {
        let workload = rows[0].record.case.workload.clone();
        let mut studies: Vec<String> = Vec::new();
        for row in rows.iter().filter(|row| row.measurement().is_some()) {
            if !studies.contains(&row.record.case.study) {
                studies.push(row.record.case.study.clone());
            }
        }
        let has_times = is_timed(&rows);
        let timed = fastest::candidates(judged, &rows);
        let lead = leaders::fastest(&timed);
        let question = Question { judged, rows, timed, lead };
        let cards =
            [fastest::card(&question), smallest::card(&question), accurate::card(&question)];
        let cards = cards.map(|card| card.explained(judged));
        // Nothing to decide by, such as a training run alone.
        if !has_times && !cards.iter().any(Card::is_known) {
            return None;
        }
        let baseline = beside::baseline(&question);
        let beside = baseline.and_then(|baseline| beside::table(&question, baseline, &cards));
        let baseline = baseline.map(|row| row.id.clone());
        let model = workload.name.split(", ").next().unwrap_or_default().to_owned();
        Some(WorkloadDecision {
            study: studies.join(", "),
            workload: workload.to_string(),
            model,
            cards,
            baseline,
            beside,
        })
    };
    let subjects = groups.into_iter().filter_map(subject).collect();
    Decision { subjects, screening: overview::screening(judged.results) }
}

impl Decision {
    /// The workload to decide by and the other ones, where all are of one model. Most is known of
    /// the first, since studies of the whole model come before those of a part.
    pub(super) fn of_one_model(&self) -> Option<(&WorkloadDecision, &[WorkloadDecision])> {
        let (first, others) = self.subjects.split_first()?;
        others.iter().all(|other| other.model == first.model).then_some((first, others))
    }
}

/// A row for each workload.
pub(super) fn rows(subjects: &[WorkloadDecision]) -> Table {
    let titles =
        ["Workload", "Fastest", "Smallest", "Most accurate"].map(|title| (title, Align::Left));
    let mut table = Table::new(&titles);
    for subject in subjects {
        let mut row = vec![format!("{}: {}", subject.study, subject.workload)];
        row.extend(subject.cards.iter().map(Card::answer));
        table.push(row);
    }
    table
}
