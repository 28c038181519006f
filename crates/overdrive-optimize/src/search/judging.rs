//! The end of a search: the best forms are timed together and judged, until one passes.

use super::Search;
use crate::Form;
use crate::asked::FINALISTS;
use crate::decision::{Fate, Outcome, Tried};
use crate::ending::{lost, without_pass};
use crate::gate::Verdict;
use crate::machine::{Care, Halt, Part, Stage};
use std::collections::BTreeSet;

impl Search<'_, '_> {
    /// Times the best that keep the limit together, and judges them in that order until one passes.
    /// If none does, the formats that they had beaten are looked at, while verdicts are left.
    pub(super) fn judge(&mut self) -> Result<(Outcome, Option<Form>), Halt> {
        let mut verdicts = FINALISTS;
        loop {
            let mut finalists = self.finalists(verdicts);
            if finalists.is_empty() {
                match verdicts > 0 && self.look_at_beaten()? {
                    true => continue,
                    false => return Ok(without_pass(&self.ranking())),
                }
            }
            self.time_finalists(&finalists)?;
            finalists.sort_by(|&a, &b| self.ranking().order(a, b));
            let all = finalists.len();
            for (nth, at) in finalists.into_iter().enumerate() {
                if !self.ranking().is_better(at) {
                    self.leave_format(at);
                    continue;
                }
                self.asking.begins(Stage::Judging, [nth + 1, all]);
                match self.verdict(at)? {
                    Some(Verdict::Pass) => {
                        self.tried[at].fate = Fate::Taken;
                        return Ok((Outcome::Taken, Some(self.tried[at].form.clone())));
                    }
                    Some(_) => verdicts -= 1,
                    None => {}
                }
            }
        }
    }

    /// The best forms that keep the limit where forms are chosen, and may be judged. A format has
    /// one, the one that loses least. It has none if another form of it was judged. Weights have
    /// one, with a cache or without. They have no other cache once one of these was judged: it only
    /// adds to what the weights lose.
    fn finalists(&self, most: usize) -> Vec<usize> {
        let mut best: Vec<usize> = Vec::new();
        for (at, tried) in self.tried.iter().enumerate().filter(|(_, t)| t.fate == Fate::Kept) {
            let of_format = self.of_format(&tried.format);
            if of_format.iter().any(|&other| self.tried[other].judged.is_some()) {
                continue;
            }
            match best.iter_mut().find(|other| of_format.contains(other)) {
                Some(other) if lost(tried) < lost(&self.tried[*other]) => *other = at,
                Some(_) => {}
                None => best.push(at),
            }
        }
        let weights = |at: usize| self.tried[at].form.of_weights().name;
        // Float is judged beside every other form.
        let judged: BTreeSet<String> = (1..self.tried.len())
            .filter(|&at| self.tried[at].judged.is_some())
            .map(weights)
            .collect();
        best.retain(|&at| {
            let form = &self.tried[at].form;
            let is_open = form.cache.is_none() || !judged.contains(&weights(at));
            is_open && self.asking.may_judge(form, FINALISTS)
        });
        best.sort_by(|&a, &b| self.ranking().order(a, b));
        let mut seen = BTreeSet::new();
        best.retain(|&at| seen.insert(weights(at)));
        best.truncate(most);
        best
    }

    /// Leaves out a form that is not better than float, with what has its time.
    pub(super) fn leave_format(&mut self, at: usize) {
        for other in self.of_format(&self.tried[at].format).into_iter().chain([at]) {
            let fate = &mut self.tried[other].fate;
            if matches!(fate, Fate::NotReached | Fate::Kept) {
                *fate = Fate::NoBetterThanFloat;
            }
        }
    }

    /// Looks at the formats that were left out for others; whether one keeps the limit.
    fn look_at_beaten(&mut self) -> Result<bool, Halt> {
        let beaten = |tried: &Tried| matches!(tried.fate, Fate::Beaten(_));
        let mut formats = Vec::new();
        for tried in self.tried.iter_mut().filter(|tried| beaten(tried)) {
            tried.fate = Fate::NotReached;
            formats.push(tried.format.clone());
        }
        formats.dedup();
        let chosen = self.choose(&formats.iter().map(String::as_str).collect::<Vec<_>>());
        self.in_time(chosen)?;
        Ok(!self.finalists(1).is_empty())
    }

    /// Looks at a form where forms are judged. There is no verdict where that cannot be done.
    fn verdict(&mut self, at: usize) -> Result<Option<Verdict>, Halt> {
        let form = self.tried[at].form.clone();
        if !self.asking.may_judge(&form, FINALISTS) {
            self.tried[at].fate = Fate::NotReached;
            return Ok(None);
        }
        let float = self.asking.scores(&Form::float(), Part::Judging)?;
        self.samples = float.samples.len();
        self.tried[0].judged = Some(self.asked.gate().judge(self.asked.metric, &float, &float));
        let found = match self.asking.scores(&form, Part::Judging) {
            Ok(found) => found,
            Err(Halt::Declined(reason)) => {
                self.tried[at].fate = Fate::Declined(reason);
                return Ok(None);
            }
            Err(halt) => return Err(halt),
        };
        let judged = self.asked.gate().judge(self.asked.metric, &float, &found);
        let verdict = judged.verdict;
        self.tried[at].judged = Some(judged);
        self.tried[at].fate = Fate::Judged(verdict);
        Ok(Some(verdict))
    }

    /// Times all remaining forms in one long session. If that fails, their earlier times stay.
    fn time_finalists(&mut self, finalists: &[usize]) -> Result<(), Halt> {
        self.asking.begins(Stage::Judging, [0, finalists.len()]);
        let mut forms = vec![Form::float()];
        forms.extend(finalists.iter().map(|&at| self.tried[at].form.clone()));
        let session = match self.asking.time(&forms, Care::Deciding) {
            Ok(session) => session,
            Err(Halt::Declined(_)) => return Ok(()),
            Err(halt) => return Err(halt),
        };
        for (index, at) in [0].into_iter().chain(finalists.iter().copied()).enumerate() {
            self.tried[at].timed(&session, index);
        }
        self.tried.retain(|tried| tried.fate != Fate::Beside);
        for (at, engine) in session.forms.iter().enumerate().skip(forms.len()) {
            let mut tried = Tried::new(Form::of(engine), "", Fate::Beside);
            tried.timed(&session, at);
            self.tried.push(tried);
        }
        Ok(())
    }
}
