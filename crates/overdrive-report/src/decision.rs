//! What a reader decides by: of each workload the fastest configuration, the smallest and the most
//! accurate, each with its figure and with what it gives up.
//!
//! A winner is named only where intervals decide and outputs agree, by the rules of
//! [`leaders`] and [`quality`](super::quality). Exact counts need no interval.

mod accurate;
mod beside;
mod fastest;
mod smallest;
#[cfg(test)]
mod tests;

use super::judged::{Compared, Judged};
use super::leaders::Lead;
use super::{leaders, overview};
use crate::quality;
use overdrive_bench::digits;
use overdrive_bench::quality::{Difference, FAR, metrics};
use overdrive_bench::results::Variant;
use overdrive_bench::speedup::Speedup;
use overdrive_bench::table::{Align, Table};

/// The cards of every workload of which something was measured.
pub(super) struct Decision {
    pub(super) subjects: Vec<Subject>,
    /// Said once, where the figures are a screening's.
    pub(super) screening: Option<&'static str>,
}

/// One workload.
pub(super) struct Subject {
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

/// One part in so many of a size is no loss to speak of: names and scales.
const NOTHING: u64 = 100;

/// The answer to one question.
pub(super) struct Card {
    pub(super) title: &'static str,
    /// The winner's configuration; absent where nothing decides.
    pub(super) winner: Option<String>,
    /// The winner's case: two studies may have a row of one configuration.
    pub(super) id: Option<String>,
    /// What the winner is, and the command that makes it.
    pub(super) about: Option<String>,
    pub(super) made_by: Option<String>,
    /// Its value with its interval, or the short answer where there is no winner.
    pub(super) figure: String,
    /// Against what, or why there is no winner.
    pub(super) detail: String,
    /// The winner's quality and size, a phrase each, where it was not chosen by them.
    pub(super) beside: Vec<String>,
    /// What who takes it loses, a sentence each without its full stop; empty where nothing is
    /// known.
    pub(super) gives_up: Vec<String>,
    /// Anchors of the records that it rests on.
    pub(super) anchors: Vec<String>,
}

/// The rows of a workload, to ask questions of.
struct Question<'j, 'r> {
    judged: &'j Judged<'r>,
    rows: Vec<&'j Compared<'r>>,
    /// Those whose times may be recommended, and who of them is first: worked out once, for it
    /// takes a bootstrap for each.
    timed: Vec<&'j Compared<'r>>,
    lead: Option<Lead<'j, 'r>>,
}

/// Works out every card, in the order of the records.
pub(super) fn decide(judged: &Judged<'_>) -> Decision {
    let mut groups: Vec<Vec<&Compared<'_>>> = Vec::new();
    for row in &judged.rows {
        let workload = |row: &Compared<'_>| row.record.case.workload.clone();
        match groups.iter_mut().find(|group| workload(group[0]) == workload(row)) {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    groups.retain(|group| group.iter().any(|row| row.measurement().is_some()));
    let subject = |rows: Vec<&Compared<'_>>| {
        let workload = rows[0].record.case.workload.clone();
        let mut studies: Vec<String> = Vec::new();
        for row in rows.iter().filter(|row| row.measurement().is_some()) {
            if !studies.contains(&row.record.case.study) {
                studies.push(row.record.case.study.clone());
            }
        }
        let timed = fastest::candidates(judged, &rows);
        let lead = leaders::fastest(&timed);
        let question = Question { judged, rows, timed, lead };
        let cards =
            [fastest::card(&question), smallest::card(&question), accurate::card(&question)];
        let cards = cards.map(|card| card.explained(judged));
        let baseline = beside::baseline(&question);
        let beside = baseline.and_then(|baseline| beside::table(&question, baseline, &cards));
        let baseline = baseline.map(|row| row.id.clone());
        let model = workload.name.split(", ").next().unwrap_or_default().to_owned();
        Subject {
            study: studies.join(", "),
            workload: workload.to_string(),
            model,
            cards,
            baseline,
            beside,
        }
    };
    let subjects = groups.into_iter().map(subject).collect();
    Decision { subjects, screening: overview::screening(judged.results) }
}

impl Card {
    /// A winner among `rows`.
    fn won(title: &'static str, winner: &Compared<'_>, figure: String) -> Self {
        let (id, winner) = (Some(winner.id.clone()), Some(winner.label.clone()));
        Self { title, winner, id, ..Self::open(title, figure, String::new()) }
    }

    /// No winner, and why.
    fn open(title: &'static str, figure: impl Into<String>, detail: impl Into<String>) -> Self {
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

    /// With what its winner is, where the run recorded that.
    fn explained(self, judged: &Judged<'_>) -> Self {
        let row = self.id.as_ref().and_then(|id| judged.find(id));
        match row.and_then(|row| judged.variant(row)).cloned() {
            Some(Variant { about, made_by, .. }) => Self { about: Some(about), made_by, ..self },
            None => self,
        }
    }

    fn resting_on(mut self, rows: &[&Compared<'_>]) -> Self {
        self.anchors = rows.iter().map(|row| row.anchor.clone()).collect();
        self
    }

    /// `cpu compile f32 t2, 215 µs [204, 249]`, or the short answer alone.
    pub(super) fn answer(&self) -> String {
        match &self.winner {
            Some(winner) => format!("`{winner}`, {}", self.figure),
            None => self.figure.clone(),
        }
    }
}

impl Card {
    /// `Gives up ...`, of a winner.
    pub(super) fn cost(&self) -> Option<String> {
        self.winner.as_ref()?;
        Some(match self.gives_up.as_slice() {
            [] => "Gives up nothing that is known".to_owned(),
            some => format!("Gives up: {}", some.join("; ")),
        })
    }
}

impl Decision {
    /// The workload to decide by and the other ones, where all are of one model: the first is the
    /// one that most is known of, since studies of the whole model come before those of a part.
    pub(super) fn of_one_model(&self) -> Option<(&Subject, &[Subject])> {
        let (first, others) = self.subjects.split_first()?;
        others.iter().all(|other| other.model == first.model).then_some((first, others))
    }
}

/// A row for each workload.
pub(super) fn rows(subjects: &[Subject]) -> Table {
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

impl Question<'_, '_> {
    /// `cosine 0.9994`, `54.4 MiB`, `63 ms`: what a row has beside what it won by.
    fn has(&self, row: &Compared<'_>) -> Vec<String> {
        let quality = metrics().find_map(|metric| {
            let reading = metric.read(row.measurement()?)?;
            Some(format!("{} {}", metric.word, metric.short(&reading)))
        });
        let size = smallest::size(self).and_then(|size| size.of(row)).map(digits::bytes);
        quality.into_iter().chain(size).chain(self.times(row)).collect()
    }

    /// `63 ms`, of a row that is not the fastest.
    fn times(&self, row: &Compared<'_>) -> Option<String> {
        self.lead.as_ref().filter(|lead| lead.winner.id != row.id)?;
        Some(fastest::median(row)).filter(|time| !time.is_empty())
    }

    /// The time that `row` takes more than the fastest, where an interval shows it.
    fn slower(&self, row: &Compared<'_>) -> Option<String> {
        let lead = self.lead.as_ref()?;
        let fastest = lead.winner;
        if fastest.id == row.id || lead.alike.iter().any(|other| other.id == row.id) {
            return None;
        }
        let name = fastest.label.clone();
        match Speedup::between(row.record, fastest.record) {
            Ok(gain) if gain.interval().low > 1.0 => {
                Some(format!("time: {} that of `{name}`", gain.figure()))
            }
            Ok(_) => None,
            Err(_) => Some(format!("time: unknown, no claim against `{name}`")),
        }
    }

    /// The quality that `row` lost against the model it was made from, or against the best.
    fn worse(&self, row: &Compared<'_>) -> Option<String> {
        metrics().find_map(|metric| {
            let mine = metric.read(row.measurement()?)?;
            let baseline = row.record.baseline.as_deref().and_then(|id| self.judged.find(id));
            let others = self.rows.iter().copied().filter(|other| other.id != row.id);
            // How sure it is that `other` is better.
            let lost = |other: &Compared<'_>| match quality::difference(metric, row, other)? {
                Difference::Worse => Some(""),
                Difference::FarWorse => Some(FAR),
                Difference::Better | Difference::Unknown => None,
            };
            let title = metric.title;
            // Likeness to the original is itself what is lost.
            if metric.is_likeness {
                return baseline.map(|_| format!("{title}: {}", metric.figure(&mine)));
            }
            // The best of those that are better says most.
            let best = others
                .filter(|other| lost(other).is_some())
                .min_by(|a, b| quality::rank(metric, a).total_cmp(&quality::rank(metric, b)));
            let fell = |before: &Compared<'_>| {
                let doubt = lost(before)?;
                Some(format!("{title} {}{doubt}", quality::course(metric, row, before)?))
            };
            let beside = |other: &Compared<'_>| {
                let doubt = lost(other)?;
                let name = other.label.clone();
                let theirs = metric.read(other.measurement()?)?;
                let [mine, theirs] = [&mine, &theirs].map(|reading| metric.figure(reading));
                Some(format!("{title}: {mine}, `{name}` has {theirs}{doubt}"))
            };
            baseline.and_then(fell).or_else(|| beside(best?))
        })
    }

    /// The bytes that `row` takes more than the smallest.
    fn larger(&self, row: &Compared<'_>) -> Option<String> {
        let size = smallest::size(self)?;
        let smallest = size.least(self)?;
        let (mine, least) = (size.of(row)?, size.of(smallest)?);
        let more = mine.checked_sub(least).filter(|more| *more > least / NOTHING)?;
        let more = digits::bytes(more);
        Some(format!("{}: {more} more than `{}`", size.name, smallest.label))
    }
}
