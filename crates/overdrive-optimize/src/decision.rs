//! The decision, with the outcome for every form that was tried.

use crate::Form;
use crate::asked::Target;
use crate::gate::{Judgement, Verdict};
use crate::machine::TimedForms;
use crate::times::{median, share};
use serde::{Deserialize, Serialize};

/// How a search ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// A form is better and keeps the limit.
    Taken,
    /// Nothing is better than the float model.
    KeepFloat,
    /// All better forms lose more than the limit.
    NoneWithin,
    /// A better form may keep the limit; the samples do not decide.
    Undecided,
    /// No form can be had here: each has its reason.
    AllDeclined,
    /// It ended before anything was judged.
    Unfinished,
}

/// The outcome for a form.
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
    /// Not clearly better than this form, to which it adds a cache: its quality was not looked at.
    NoBetterThan(String),
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

/// A mix by the sum of its parts, before it was measured as a whole.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Predicted {
    /// Its time over that of the float model, if times of all its layers are known.
    pub time: Option<f64>,
    /// Bytes of its parameters, if those of all its layers are known.
    pub bytes: Option<u64>,
    /// Its loss, in the metric's unit of loss.
    pub lost: f64,
}

/// A form that was tried, with all that is known of it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Tried {
    /// The form.
    pub form: Form,
    /// Format that its kernels read; empty for a mix, beside a cache of codes, and
    /// for the float model.
    pub format: String,
    /// Its outcome.
    pub fate: Fate,
    /// Its time over that of the float model, with the ends of its 95 % interval.
    pub time: Option<[f64; 3]>,
    /// Its median time of a call.
    pub time_ns: Option<f64>,
    /// Bytes on the device while it runs.
    pub peak_bytes: Option<u64>,
    /// Bytes of its parameters.
    pub bytes: Option<u64>,
    /// For a mix: what its parts add up to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<Predicted>,
    /// Its loss on the samples that choose.
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
            predicted: None,
            chosen_by: None,
            judged: None,
            on_front: false,
        }
    }

    /// Takes its times from a session, where it is the form at this place; the first is the float
    /// model.
    pub(crate) fn timed(&mut self, session: &TimedForms, at: usize) {
        (self.time, self.time_ns) = (share(session, at), median(session, at));
        self.peak_bytes = session.peak_bytes.get(at).copied();
    }

    /// Its loss, by the more exact of its two judgements.
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
    /// The figures of a form.
    pub fn of(&self, name: &str) -> Option<&Tried> {
        self.tried.iter().find(|tried| tried.form.name == name)
    }

    /// The figures of the form to deploy.
    pub fn taken(&self) -> Option<&Tried> {
        self.of(&self.form.as_ref()?.name)
    }
}

/// Marks the Pareto front of forms whose time, bytes and loss are known. A form is on it unless
/// another is as fast, as small and as good, and better in one of these. Times whose intervals
/// overlap are equal. The bytes are those on the device where these are asked for, else those of
/// parameters.
pub(crate) fn mark_front(tried: &mut [Tried], target: Target) {
    let known: Vec<Option<([f64; 3], u64, f64)>> = tried
        .iter()
        .map(|one| {
            let bytes = if target == Target::Memory { one.peak_bytes } else { one.bytes };
            Some((one.time?, bytes?, one.lost().filter(|lost| lost.is_finite())?))
        })
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
