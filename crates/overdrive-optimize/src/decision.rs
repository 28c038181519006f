//! What was decided, with the fate of everything that was tried.

use crate::Form;
use crate::gate::{Judgement, Verdict};
use serde::{Deserialize, Serialize};

/// How a search ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// A form is better and keeps the limit.
    Taken,
    /// Nothing is better than the float model.
    KeepFloat,
    /// What is better loses more than the limit.
    NoneWithin,
    /// What is better may keep the limit; the samples do not tell.
    Undecided,
    /// It ended before anything was judged.
    Unfinished,
}

/// What became of a form.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "is", content = "why")]
pub enum Fate {
    /// The model as it was brought.
    Brought,
    /// The model as it was brought, in another engine.
    Beside,
    /// It is the one.
    Taken,
    /// Not better than the float model, so its quality was not looked at.
    NoBetterThanFloat,
    /// Clearly worse than this form, which keeps the limit: its quality was not looked at.
    Beaten(String),
    /// It keeps the limit where forms are chosen, and others are better.
    Kept,
    /// It loses too much where forms are chosen.
    LosesTooMuch,
    /// It was among the last, and this is the verdict.
    Judged(Verdict),
    /// It cannot be had, for this reason.
    Declined(String),
    /// The search ended before.
    NotReached,
}

/// A form that was tried, with all that is known of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Tried {
    /// The form.
    pub form: Form,
    /// What its kernels read; empty of a mix and of the float model.
    pub format: String,
    /// What became of it.
    pub fate: Fate,
    /// Its time over that of the float model, with the ends of its 95 % interval.
    pub time: Option<[f64; 3]>,
    /// Its median time of a call.
    pub time_ns: Option<f64>,
    /// Bytes on the device while it runs.
    pub peak_bytes: Option<u64>,
    /// Bytes of its parameters.
    pub bytes: Option<u64>,
    /// What it loses where forms are chosen.
    pub chosen_by: Option<Judgement>,
    /// The verdict of the samples that are looked at once.
    pub judged: Option<Judgement>,
    /// Whether nothing else is as fast, as small and as good.
    pub on_front: bool,
}

impl Tried {
    pub(crate) fn new(form: Form, format: &str, fate: Fate) -> Self {
        Self {
            form,
            format: format.to_owned(),
            fate,
            time: None,
            time_ns: None,
            peak_bytes: None,
            bytes: None,
            chosen_by: None,
            judged: None,
            on_front: false,
        }
    }

    /// What it loses, by the better of the two looks at it.
    pub fn lost(&self) -> Option<f64> {
        self.judged.as_ref().or(self.chosen_by.as_ref()).map(|judged| judged.lost[0])
    }
}

/// A decision.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Decision {
    /// How it ended.
    pub outcome: Outcome,
    /// The form to deploy. If there is none, the form that came nearest, if any did.
    pub form: Option<Form>,
    /// Everything that was tried, in the order in which it was.
    pub tried: Vec<Tried>,
    /// Samples that judge.
    pub samples: usize,
    /// Samples with which a form that loses nothing would pass, by the spread of the first form
    /// that was judged; `None` where none was, or no number would do.
    pub samples_to_pass: Option<u64>,
    /// Whether the search came to its end.
    pub whole: bool,
}

impl Decision {
    /// What is known of a form.
    pub fn of(&self, name: &str) -> Option<&Tried> {
        self.tried.iter().find(|tried| tried.form.name == name)
    }

    /// What is known of the form to deploy.
    pub fn taken(&self) -> Option<&Tried> {
        self.of(&self.form.as_ref()?.name)
    }
}

/// Marks what nothing dominates: what was timed, weighed and judged, and for which nothing else is
/// as fast, as small and as good, and better in one of them. Times whose intervals meet are equal.
pub(crate) fn mark_front(tried: &mut [Tried]) {
    let known: Vec<Option<([f64; 3], u64, f64)>> = tried
        .iter()
        .map(|one| Some((one.time?, one.bytes?, one.lost().filter(|lost| lost.is_finite())?)))
        .collect();
    let slower = |a: [f64; 3], b: [f64; 3]| a[1] > b[2];
    let dominates = |(time, bytes, lost): ([f64; 3], u64, f64), than: ([f64; 3], u64, f64)| {
        let as_good = lost <= than.2 && bytes <= than.1 && !slower(time, than.0);
        as_good && (lost < than.2 || bytes < than.1 || slower(than.0, time))
    };
    for (one, mine) in tried.iter_mut().zip(&known) {
        one.on_front =
            mine.is_some_and(|mine| !known.iter().flatten().any(|&other| dominates(other, mine)));
    }
}
