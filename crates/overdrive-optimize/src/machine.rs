//! `Machine`: measures and judges forms of a model for a search.

use crate::{Form, LayerFacts, Rung};
use overdrive_studies::quantization::Scores;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Why there is no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Halt {
    /// This form is impossible, for this reason; the search continues without it.
    Declined(String),
    /// The time to explore is over: what is known so far is judged.
    OutOfTime,
    /// The user stopped, or the record ends here: nothing more is asked.
    Stopped,
}

/// Samples that judge.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// Those that the search may look at.
    Choosing,
    /// Those that are looked at once, at the end.
    Judging,
}

/// How exactly a session is timed.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Care {
    /// Enough to leave out what is clearly slower.
    Screening,
    /// Enough to decide.
    Deciding,
}

/// The work that a search is at.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Stage {
    /// It times formats.
    Timing,
    /// It judges forms where they are chosen.
    Choosing,
    /// It makes mixes.
    Mixing,
    /// It tries caches of codes beside the best form.
    Caching,
    /// It times and judges the last forms.
    Judging,
}

/// Forms timed in alternation, the float model first.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TimedForms {
    /// Names of the forms.
    pub forms: Vec<String>,
    /// How exactly.
    pub care: Care,
    /// The whole model; of one that is too large to be timed whole beside another, each distinct
    /// block.
    pub blocks: Vec<Block>,
    /// Bytes that each form takes on the device while it runs, all in all.
    pub peak_bytes: Vec<u64>,
}

/// Forms that were timed in one session.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Block {
    /// How often the model has it.
    pub times: usize,
    /// Nanoseconds of a call, sample by sample, of each form.
    pub samples_ns: Vec<Vec<f64>>,
}

/// The source of what parts lose.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LossSource {
    /// The model was judged once for each.
    #[default]
    Scanned,
    /// Gradients of the float model gave estimates.
    Estimated,
}

/// The costs of each part of a mix alone.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Parts {
    /// The layers.
    pub layers: Vec<LayerFacts>,
    /// Median nanoseconds of a layer of each class, by mode; float among them.
    pub times_ns: BTreeMap<String, BTreeMap<String, f64>>,
    /// The source of `lost`.
    #[serde(default)]
    pub source: LossSource,
    /// Loss of the model with one group in a mode and all others in float.
    pub lost: BTreeMap<String, BTreeMap<String, f64>>,
    /// Bytes of a group's weights in a mode.
    pub bytes: BTreeMap<String, BTreeMap<String, u64>>,
}

impl Parts {
    /// Names of the groups, in the order of their layers.
    pub fn groups(&self) -> Vec<&str> {
        let mut groups: Vec<&str> = Vec::new();
        for layer in &self.layers {
            if !groups.contains(&layer.group.as_str()) {
                groups.push(&layer.group);
            }
        }
        groups
    }
}

/// Makes, times and judges forms. All calls are deterministic except for times.
pub trait Machine {
    /// The modes that may be tried, cheapest method first within a format.
    fn rungs(&mut self) -> Vec<Rung>;

    /// The codes that a cache of keys and values may hold, by name; none where no cache is timed.
    fn caches(&mut self) -> Vec<String> {
        Vec::new()
    }

    /// The search comes to this place of so many in a stage. Later calls belong to it.
    fn begins(&mut self, _stage: Stage, _place: [usize; 2]) {}

    /// Times forms in alternation, in their order. A session that decides may have more behind
    /// them: the float model in other engines.
    ///
    /// # Errors
    /// When one cannot be made or does not run, or there is no time left. A session that decides
    /// may take the time that it needs.
    fn time(&mut self, forms: &[Form], care: Care) -> Result<TimedForms, Halt>;

    /// The score of a form on each sample. Samples that judge may take the time that they need.
    ///
    /// # Errors
    /// As [`Self::time`].
    fn scores(&mut self, form: &Form, part: Part) -> Result<Scores, Halt>;

    /// Bytes of a form's parameters.
    ///
    /// # Errors
    /// As [`Self::time`].
    fn bytes(&mut self, form: &Form) -> Result<u64, Halt>;

    /// The costs of each layer in these modes.
    ///
    /// # Errors
    /// As [`Self::time`].
    fn parts(&mut self, modes: &[String]) -> Result<Parts, Halt>;
}
