//! Everything that was measured, and who asks for more.
//!
//! Invariant: a decision is a function of the record alone. So an interrupted search continues from
//! it, and a decision can be repeated from it, bit for bit, without a machine.

use crate::form::weights_in;
use crate::machine::{Care, Halt, Machine, Part, Parts, Stage, TimedForms};
use crate::{Form, Rung};
use overdrive_studies::quantization::Scores;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// All measurements.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Record {
    /// The modes that could be tried.
    pub rungs: Vec<Rung>,
    /// Each session of timing.
    pub sessions: Vec<TimedForms>,
    /// The codes that caches may hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub caches: Vec<String>,
    /// Score by score, of each form on each part.
    pub scores: BTreeMap<String, BTreeMap<Part, Kept>>,
    /// Bytes of each form's parameters.
    pub bytes: BTreeMap<String, u64>,
    /// Figures of single layers, by mode.
    pub parts: BTreeMap<String, Parts>,
    /// The layers of each mix.
    pub mixes: BTreeMap<String, BTreeMap<String, String>>,
    /// Forms that cannot be had, with the reason; and forms that cannot be timed together.
    pub declined: BTreeMap<String, String>,
    /// Questions for which there was no time left.
    #[serde(default)]
    pub late: BTreeSet<String>,
    /// Looks at the samples that judge, at mixes which have been solved for anew since.
    #[serde(default)]
    pub forgotten: usize,
}

impl Record {
    /// The scores of the form of this name on a part, if it was judged there.
    pub fn scores_of(&self, form: &str, part: Part) -> Option<Scores> {
        let samples = self.scores.get(form)?.get(&part)?.0.clone();
        Some(Scores { fold: 0, samples })
    }
}

/// Scores as a file keeps them: JSON has no NaN and no infinity, which become null and NaN again.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "Vec<Option<f64>>", into = "Vec<Option<f64>>")]
pub struct Kept(pub Vec<f64>);

impl From<Vec<Option<f64>>> for Kept {
    fn from(found: Vec<Option<f64>>) -> Self {
        Self(found.into_iter().map(|score| score.unwrap_or(f64::NAN)).collect())
    }
}

impl From<Kept> for Vec<Option<f64>> {
    fn from(kept: Kept) -> Self {
        kept.0.into_iter().map(|score| score.is_finite().then_some(score)).collect()
    }
}

impl PartialEq for Kept {
    fn eq(&self, other: &Self) -> bool {
        let bits = |kept: &Self| kept.0.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        bits(self) == bits(other)
    }
}

/// Answers from the record, or from a machine, whose answers are kept.
pub struct Asking<'a> {
    record: Record,
    machine: Option<&'a mut dyn Machine>,
    keep: &'a mut dyn FnMut(&Record),
}

impl<'a> Asking<'a> {
    /// Wraps a machine, starting with what is known already. `keep` gets the record after every
    /// answer.
    pub fn of(
        machine: &'a mut dyn Machine,
        record: Record,
        keep: &'a mut dyn FnMut(&Record),
    ) -> Self {
        let late = BTreeSet::new();
        Self { record: Record { late, ..record }, machine: Some(machine), keep }
    }

    /// Answers from a record alone. A question for which there was no time is again late.
    pub fn again(record: Record, keep: &'a mut dyn FnMut(&Record)) -> Self {
        Self { record, machine: None, keep }
    }

    /// The record so far.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The rungs that the machine has now, since a higher effort has more than the record. Those of
    /// the record stay behind them: its sessions name them.
    pub(crate) fn rungs(&mut self) -> Vec<Rung> {
        if let Some(machine) = &mut self.machine {
            let mut rungs = machine.rungs();
            let before = std::mem::take(&mut self.record.rungs);
            let is_new = |rung: &Rung| rungs.iter().all(|known| known.mode != rung.mode);
            let left: Vec<Rung> = before.into_iter().filter(is_new).collect();
            rungs.extend(left);
            self.record.rungs = rungs;
        }
        self.record.rungs.clone()
    }

    /// The codes that caches may hold.
    pub(crate) fn caches(&mut self) -> Vec<String> {
        if let Some(machine) = &mut self.machine {
            self.record.caches = machine.caches();
        }
        self.record.caches.clone()
    }

    /// Tells the machine how far the search is.
    pub(crate) fn begins(&mut self, stage: Stage, place: [usize; 2]) {
        if let Some(machine) = &mut self.machine {
            machine.begins(stage, place);
        }
    }

    /// The session of exactly these forms, and of other engines behind them.
    pub(crate) fn time(&mut self, forms: &[Form], care: Care) -> Result<TimedForms, Halt> {
        let names: Vec<String> = forms.iter().map(|form| form.name.clone()).collect();
        for name in &names[1..] {
            self.whether_declined(name)?;
        }
        // Forms that cannot be timed together may still be timed alone.
        let together = names[1..].join(" beside ");
        self.whether_declined(&together)?;
        let is_it = |known: &&TimedForms| {
            let beside = known.forms.get(names.len()..).unwrap_or_default();
            known.forms.starts_with(&names)
                && known.care == care
                && beside.iter().all(|name| self.is_engine(name))
        };
        if let Some(known) = self.record.sessions.iter().find(is_it) {
            return Ok(known.clone());
        }
        let question = format!("{care:?} time of {together}");
        let found = self.asked(&question, |machine| machine.time(forms, care));
        let found = self.kept(&together, found)?;
        self.record.sessions.push(found.clone());
        self.keep();
        Ok(found)
    }

    pub(crate) fn scores(&mut self, form: &Form, part: Part) -> Result<Scores, Halt> {
        self.whether_declined(&form.name)?;
        if let Some(known) = self.record.scores_of(&form.name, part) {
            return Ok(known);
        }
        let question = format!("{part:?} scores of {}", form.name);
        let found = self.asked(&question, |machine| machine.scores(form, part));
        let found = self.kept(&form.name, found)?;
        let parts = self.record.scores.entry(form.name.clone()).or_default();
        parts.insert(part, Kept(found.samples.clone()));
        self.keep();
        Ok(found)
    }

    pub(crate) fn bytes(&mut self, form: &Form) -> Result<u64, Halt> {
        self.whether_declined(&form.name)?;
        if let Some(&known) = self.record.bytes.get(&form.name) {
            return Ok(known);
        }
        let question = format!("bytes of {}", form.name);
        let found = self.asked(&question, |machine| machine.bytes(form));
        let found = self.kept(&form.name, found)?;
        self.record.bytes.insert(form.name.clone(), found);
        self.keep();
        Ok(found)
    }

    pub(crate) fn parts(&mut self, modes: &[String]) -> Result<Parts, Halt> {
        let key = modes.join(",");
        if let Some(known) = self.record.parts.get(&key) {
            return Ok(known.clone());
        }
        let found = self.asked(&format!("parts of {key}"), |machine| machine.parts(modes))?;
        self.record.parts.insert(key, found.clone());
        self.keep();
        Ok(found)
    }

    /// Whether a look at the samples that judge is left for a form. Each look has its part of the
    /// error, also one of an earlier search that this one continues.
    pub(crate) fn may_judge(&self, form: &Form, most: usize) -> bool {
        let is_judged = |name: &String| {
            self.record.scores.get(name).is_some_and(|parts| parts.contains_key(&Part::Judging))
        };
        let float = Form::float().name;
        let names = self.record.scores.keys().filter(|name| **name != float);
        let looks = names.filter(|name| is_judged(name)).count() + self.record.forgotten;
        is_judged(&form.name) || looks < most
    }

    /// Notes the layers of a mix. One of the same name with other layers was made of other figures:
    /// what was measured of it is dropped.
    pub(crate) fn mix(&mut self, mix: &Form) {
        let before = self.record.mixes.insert(mix.name.clone(), mix.layers.clone());
        if before.is_some_and(|layers| layers != mix.layers) {
            // With a cache beside it, it is that mix too.
            let is_it = |name: &String| weights_in(name) == mix.name;
            self.record.sessions.retain(|session| !session.forms.iter().any(is_it));
            let dropped = self.record.scores.extract_if(.., |name, _| is_it(name));
            let looks = dropped.filter(|(_, parts)| parts.contains_key(&Part::Judging)).count();
            self.record.forgotten += looks;
            self.record.bytes.retain(|name, _| !is_it(name));
            self.record.declined.retain(|name, _| !is_it(name));
        }
    }

    /// Whether a name in a session is that of another engine.
    fn is_engine(&self, name: &str) -> bool {
        let name = weights_in(name);
        let is_mode = self.record.rungs.iter().any(|rung| rung.mode == name);
        !is_mode && !self.record.mixes.contains_key(name) && name != Form::float().name
    }

    /// The machine's answer. That there was no time for it is kept: a replay ends stages where they
    /// ended.
    fn asked<T>(
        &mut self,
        question: &str,
        ask: impl FnOnce(&mut (dyn Machine + 'a)) -> Result<T, Halt>,
    ) -> Result<T, Halt> {
        let Some(machine) = &mut self.machine else {
            let is_late = self.record.late.contains(question);
            return Err(if is_late { Halt::OutOfTime } else { Halt::Stopped });
        };
        let found = ask(&mut **machine);
        if matches!(found, Err(Halt::OutOfTime)) {
            self.record.late.insert(question.to_owned());
            self.keep();
        }
        found
    }

    fn whether_declined(&self, name: &str) -> Result<(), Halt> {
        let known = self.record.declined.get(name);
        known.map_or(Ok(()), |reason| Err(Halt::Declined(reason.clone())))
    }

    /// An answer; that there is none is known from then on.
    fn kept<T>(&mut self, name: &str, found: Result<T, Halt>) -> Result<T, Halt> {
        if let Err(Halt::Declined(reason)) = &found {
            self.record.declined.insert(name.to_owned(), reason.clone());
            self.keep();
        }
        found
    }

    fn keep(&mut self) {
        (self.keep)(&self.record);
    }
}
