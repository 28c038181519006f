//! The answer to one of a reader's questions.

use crate::judged::{JudgedResults, JudgedRow};
use overdrive_bench::results::Variant;

/// The short answer where nothing is known that could decide.
const NO_CLAIM: &str = "no claim";

/// The answer to one question.
pub(crate) struct Card {
    pub(crate) title: &'static str,
    /// The winner's configuration; absent where nothing decides.
    pub(crate) winner: Option<String>,
    /// The winner's case: two studies may have a row of one configuration.
    pub(crate) id: Option<String>,
    /// A description of the winner, and the command that makes it.
    pub(crate) about: Option<String>,
    pub(crate) made_by: Option<String>,
    /// Its value with its interval, or the short answer where there is no winner.
    pub(crate) figure: String,
    /// Against what, or why there is no winner.
    pub(crate) detail: String,
    /// The winner's quality and size, a phrase each, where it was not chosen by them.
    pub(crate) beside: Vec<String>,
    /// The losses of whoever takes it, a sentence each without its full stop; empty where nothing
    /// is known.
    pub(crate) gives_up: Vec<String>,
    /// Anchors of the records that it rests on.
    pub(crate) anchors: Vec<String>,
}

impl Card {
    /// A winner among `rows`.
    pub(super) fn won(title: &'static str, winner: &JudgedRow<'_>, figure: String) -> Self {
        let (id, winner) = (Some(winner.id.clone()), Some(winner.label.clone()));
        Self { title, winner, id, ..Self::open(title, figure, String::new()) }
    }

    /// No winner, and why.
    pub(super) fn open(
        title: &'static str,
        figure: impl Into<String>,
        detail: impl Into<String>,
    ) -> Self {
        let (figure, detail) = (figure.into(), detail.into());
        Self {
            title,
            winner: None,
            id: None,
            about: None,
            made_by: None,
            figure,
            detail,
            beside: Vec::new(),
            gives_up: Vec::new(),
            anchors: Vec::new(),
        }
    }

    /// No answer, since what would decide is not known.
    pub(super) fn unknown(title: &'static str, why: impl Into<String>) -> Self {
        Self::open(title, NO_CLAIM, why)
    }

    /// Whether it says anything.
    pub(super) fn is_known(&self) -> bool {
        self.figure != NO_CLAIM
    }

    /// Adds the description of its winner, if the run recorded one.
    pub(super) fn explained(self, judged: &JudgedResults<'_>) -> Self {
        let row = self.id.as_ref().and_then(|id| judged.find(id));
        match row.and_then(|row| judged.variant(row)).cloned() {
            Some(Variant { about, made_by, .. }) => Self { about: Some(about), made_by, ..self },
            None => self,
        }
    }

    pub(super) fn resting_on(mut self, rows: &[&JudgedRow<'_>]) -> Self {
        self.anchors = rows.iter().map(|row| row.anchor.clone()).collect();
        self
    }

    /// `cpu compile f32 t2, 215 µs [204, 249]`, or the short answer alone.
    pub(crate) fn answer(&self) -> String {
        match &self.winner {
            Some(winner) => format!("`{winner}`, {}", self.figure),
            None => self.figure.clone(),
        }
    }

    /// `Gives up ...`, of a winner.
    pub(crate) fn cost(&self) -> Option<String> {
        self.winner.as_ref()?;
        Some(match self.gives_up.as_slice() {
            [] => "Gives up nothing that is known".to_owned(),
            some => format!("Gives up: {}", some.join("; ")),
        })
    }
}
