//! The decision as the template is given it: cards of one model's workload, and a row for each
//! other workload.

use serde::Serialize;

use super::tabled::{self, TableView};
use crate::decision::{Card, WorkloadDecision};
use crate::files::File;

/// Rows that are in sight at once.
const ROWS: usize = 12;

#[derive(Serialize)]
pub(super) struct DecisionView {
    /// The cards of one model.
    one: Option<SubjectView>,
    /// The rows of the other workloads.
    rows: Vec<SubjectView>,
}

#[derive(Serialize)]
struct SubjectView {
    study: String,
    workload: String,
    cards: Vec<CardView>,
    beside: Option<TableView>,
    /// Whether it is a button away.
    more: bool,
}

#[derive(Serialize)]
struct CardView {
    title: &'static str,
    winner: Option<String>,
    /// The figure without its interval, and the interval with what follows.
    value: String,
    interval: String,
    about: Option<String>,
    detail: String,
    made_by: Option<String>,
    cost: Option<String>,
    /// Links to the records behind it; the first is the winner's, where there is one.
    anchors: Vec<String>,
}

pub(super) fn view(file: &File<'_>) -> DecisionView {
    let subjects = &file.decision.subjects;
    let one = file.decision.of_one_model().map(|(one, _)| subject(file, one));
    let others = if one.is_some() { &subjects[1..] } else { subjects };
    let mut rows: Vec<SubjectView> =
        others.iter().map(|subject| self::subject(file, subject)).collect();
    // Every study has its share of what is in sight.
    let studies = file.judged.results.studies().len().max(1);
    let share = (ROWS / studies).max(1);
    for at in 0..rows.len() {
        let earlier = rows[..at].iter().filter(|row| row.study == rows[at].study).count();
        rows[at].more = earlier >= share && rows.len() > ROWS;
    }
    DecisionView { one, rows }
}

fn subject(file: &File<'_>, subject: &WorkloadDecision) -> SubjectView {
    SubjectView {
        study: subject.study.clone(),
        workload: subject.workload.clone(),
        cards: subject.cards.iter().map(|card| self::card(file, card)).collect(),
        beside: subject.beside.as_ref().map(tabled::table),
        more: false,
    }
}

fn card(file: &File<'_>, card: &Card) -> CardView {
    let (value, interval) = match card.figure.split_once(" [") {
        Some((value, rest)) => (value.to_owned(), format!("[{rest}")),
        None => (card.figure.clone(), String::new()),
    };
    CardView {
        title: card.title,
        winner: card.winner.clone(),
        value,
        interval,
        about: card.about.clone(),
        detail: card.detail.clone(),
        made_by: card.made_by.clone(),
        cost: card.cost(),
        anchors: card.anchors.iter().map(|anchor| format!("{}{anchor}", file.prefix)).collect(),
    }
}
