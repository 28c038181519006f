//! The search: time first, then quality on samples that choose, mixes, caches (`caching`), and one
//! look at the samples that judge (`judging`).

mod caching;
mod judging;

use crate::asked::{Asked, Effort};
use crate::decision::{Decision, Fate, Outcome, Tried, mark_front};
use crate::ending::{best_so_far, lost};
use crate::machine::{Care, Halt, Part, Stage, TimedForms};
use crate::mix::Mixing;
use crate::place::in_choosing;
use crate::ranking::Ranking;
use crate::record::Asking;
use crate::{Form, Rung};
use overdrive_studies::quantization::Scores;

/// Mixes that are made, at most.
const MIXES: usize = 4;
/// Margin on the loss budget of the next mix, after one that lost too much.
const BACK: f64 = 0.8;

/// Decides which form to deploy.
pub fn search(asking: &mut Asking<'_>, asked: &Asked) -> Decision {
    let mut search =
        Search { asking, asked, tried: Vec::new(), samples_to_pass: None, samples: 0, whole: true };
    let found = search.run();
    let (outcome, form) = match found {
        Ok(found) => found,
        Err(_) => {
            search.whole = false;
            best_so_far(&search.ranking())
        }
    };
    search.finish(outcome, form)
}

struct Search<'a, 'm> {
    asking: &'a mut Asking<'m>,
    asked: &'a Asked,
    tried: Vec<Tried>,
    samples_to_pass: Option<u64>,
    samples: usize,
    whole: bool,
}

impl Search<'_, '_> {
    fn run(&mut self) -> Result<(Outcome, Option<Form>), Halt> {
        self.explore()?;
        self.judge()
    }

    /// Times and screens every promising form. Each of the four stages has its own time budget, so
    /// that forms that were timed are also judged.
    fn explore(&mut self) -> Result<(), Halt> {
        self.begin()?;
        let rungs = self.asking.rungs();
        let mut formats: Vec<&str> = rungs.iter().map(|rung| rung.format.as_str()).collect();
        formats.dedup();
        for rung in &rungs {
            self.tried.push(Tried::new(Form::of(&rung.mode), &rung.format, Fate::NotReached));
        }
        let timed = formats.iter().enumerate().try_for_each(|(at, format)| {
            self.asking.begins(Stage::Timing, [at + 1, formats.len()]);
            self.time_format(format)
        });
        self.in_time(timed)?;
        let chosen = self.choose(&formats);
        self.in_time(chosen)?;
        if self.asked.effort > Effort::Quick {
            match self.mix(&rungs) {
                Err(Halt::Declined(reason)) => {
                    self.tried.push(Tried::new(Form::of("mixes"), "", Fate::Declined(reason)));
                }
                other => self.in_time(other)?,
            }
        }
        let cached = self.cache();
        self.in_time(cached)
    }

    /// A stage whose time was over leaves the search unfinished, and the next one begins.
    fn in_time(&mut self, stage: Result<(), Halt>) -> Result<(), Halt> {
        match stage {
            Err(Halt::OutOfTime) => {
                self.whole = false;
                Ok(())
            }
            other => other,
        }
    }

    /// The float model: what everything is compared with.
    fn begin(&mut self) -> Result<(), Halt> {
        let float = Form::float();
        let mut tried = Tried::new(float.clone(), "", Fate::Brought);
        tried.time = Some([1.0; 3]);
        tried.bytes = Some(self.asking.bytes(&float)?);
        self.tried.push(tried);
        Ok(())
    }

    /// Times a format by the first of its modes that runs. Leaves the format out if it is no better
    /// than the float model.
    fn time_format(&mut self, format: &str) -> Result<(), Halt> {
        for index in self.of_format(format) {
            let form = self.tried[index].form.clone();
            match self.timed_alone(&form) {
                Ok((session, bytes)) => {
                    if self.tried[0].time_ns.is_none() {
                        self.tried[0].timed(&session, 0);
                    }
                    for other in self.of_format(format) {
                        let tried = &mut self.tried[other];
                        if let Fate::Declined(_) = tried.fate {
                            continue;
                        }
                        tried.timed(&session, 1);
                        tried.bytes = Some(bytes);
                    }
                    if self.ranking().is_no_better(index) {
                        self.leave_format(index);
                    }
                    return Ok(());
                }
                Err(Halt::Declined(reason)) => self.tried[index].fate = Fate::Declined(reason),
                Err(halt) => return Err(halt),
            }
        }
        Ok(())
    }

    fn timed_alone(&mut self, form: &Form) -> Result<(TimedForms, u64), Halt> {
        let bytes = self.asking.bytes(form)?;
        let session = self.asking.time(&[Form::float(), form.clone()], Care::Screening)?;
        Ok((session, bytes))
    }

    /// Judges formats where forms are chosen, the best in the target first. A format that is
    /// clearly worse than one that keeps the limit is left out.
    fn choose(&mut self, formats: &[&str]) -> Result<(), Halt> {
        // The first mode of a format stands for all of them: its time is that of each.
        let unseen = |format: &&str| {
            let mut members = self.of_format(format);
            members.retain(|&at| self.tried[at].fate == Fate::NotReached);
            let first = members.first()?;
            self.ranking().cost(*first).is_some().then_some(members)
        };
        let mut order: Vec<Vec<usize>> = formats.iter().filter_map(unseen).collect();
        order.sort_by(|a, b| self.ranking().order(a[0], b[0]));
        let mut best: Option<usize> = None;
        for members in order {
            if let Some(best) = best
                && self.asked.effort < Effort::High
                && self.ranking().is_clearly_worse(members[0], best)
            {
                let fate = Fate::Beaten(self.tried[best].form.name.clone());
                members.iter().for_each(|&at| self.tried[at].fate = fate.clone());
                continue;
            }
            for at in members {
                self.asking.begins(Stage::Choosing, in_choosing(&self.tried));
                if self.keeps(at)? && best.is_none() {
                    best = Some(at);
                }
            }
        }
        Ok(())
    }

    /// Looks at a form where forms are chosen; whether it keeps the limit there.
    fn keeps(&mut self, at: usize) -> Result<bool, Halt> {
        let form = self.tried[at].form.clone();
        let float = self.asking.scores(&Form::float(), Part::Choosing)?;
        self.tried[0].chosen_by =
            Some(self.asked.screen().judge(self.asked.metric, &float, &float));
        let found = match self.asking.scores(&form, Part::Choosing) {
            Ok(found) => found,
            Err(Halt::Declined(reason)) => {
                self.tried[at].fate = Fate::Declined(reason);
                return Ok(false);
            }
            Err(halt) => return Err(halt),
        };
        self.size_up(&float, &found);
        let judged = self.asked.screen().judge(self.asked.metric, &float, &found);
        let keeps = judged.lost[0] <= self.asked.limit;
        self.tried[at].fate = if keeps { Fate::Kept } else { Fate::LosesTooMuch };
        self.tried[at].chosen_by = Some(judged);
        Ok(keeps)
    }

    fn size_up(&mut self, float: &Scores, found: &Scores) {
        if self.samples_to_pass.is_none() {
            self.samples_to_pass =
                self.asked.gate().samples_to_pass(self.asked.metric, float, found);
        }
    }

    /// Mixes of the modes that are worth it, each solved for within what the last one showed.
    fn mix(&mut self, rungs: &[Rung]) -> Result<(), Halt> {
        let modes = self.modes_to_mix(rungs);
        if modes.is_empty() {
            return Ok(());
        }
        let parts = self.asking.parts(&modes)?;
        let wholes: Vec<_> = modes
            .iter()
            .filter_map(|mode| {
                let tried = self.tried.iter().find(|tried| tried.form.name == *mode)?;
                Some((mode.as_str(), tried.time_ns?, tried.chosen_by.as_ref()?.lost[0]))
            })
            .collect();
        let mixing = Mixing::new(&parts, &modes, (self.tried[0].time_ns, &wholes), self.asked);
        let mut budget = self.asked.limit;
        let mut seen = Vec::new();
        for number in 1..=MIXES {
            let Some(layers) = mixing.within(budget) else { break };
            if layers.is_empty() || mixing.is_uniform(&layers) || seen.contains(&layers) {
                budget *= BACK / 2.0;
                continue;
            }
            seen.push(layers.clone());
            self.asking.begins(Stage::Mixing, [number, MIXES]);
            let predicted = Some(mixing.predicted(&layers, &self.tried[0]));
            let form = Form::mix(number, layers);
            self.asking.mix(&form);
            let tried = Tried { predicted, ..Tried::new(form, "", Fate::NotReached) };
            let Some(kept) = self.tries(tried, 0)? else {
                match self.last().fate {
                    Fate::NoBetterThanFloat => break,
                    _ => continue,
                }
            };
            let lost = lost(self.last());
            // The sum of the parts is not the whole: the next budget is what the last one taught.
            budget *= match kept {
                true => BACK / 2.0,
                false if lost.is_finite() => BACK * self.asked.limit / lost,
                false => BACK / 4.0,
            };
        }
        Ok(())
    }

    /// Times a form and looks at it where forms are chosen; whether it keeps the limit there. It is
    /// not looked at if it is no better than the form at `than`, or cannot be had.
    fn tries(&mut self, tried: Tried, than: usize) -> Result<Option<bool>, Halt> {
        let form = tried.form.clone();
        self.tried.push(tried);
        let at = self.tried.len() - 1;
        let (session, bytes) = match self.timed_alone(&form) {
            Ok(found) => found,
            Err(Halt::Declined(reason)) => {
                self.tried[at].fate = Fate::Declined(reason);
                return Ok(None);
            }
            Err(halt) => return Err(halt),
        };
        self.tried[at].timed(&session, 1);
        self.tried[at].bytes = Some(bytes);
        if self.ranking().is_no_better(at) {
            self.tried[at].fate = Fate::NoBetterThanFloat;
            return Ok(None);
        }
        let is_cached = self.tried[at].form.cache.is_some();
        if is_cached && !self.ranking().is_clearly_worse(than, at) {
            self.tried[at].fate = Fate::NoBetterThan(self.tried[than].form.name.clone());
            return Ok(None);
        }
        self.keeps(at).map(Some)
    }

    /// The form that was tried last.
    fn last(&self) -> &Tried {
        self.tried.last().expect("float was tried first")
    }

    /// The modes that a mix may have, two at most. A format that is better than float offers the
    /// mode that loses least. A mode that is no better than another and loses as much is left out.
    /// A mix trades the last mode that loses too much for the first that does not.
    fn modes_to_mix(&self, rungs: &[Rung]) -> Vec<String> {
        let mixes = |tried: &&(usize, &Tried)| {
            rungs.iter().any(|rung| rung.mixes && rung.mode == tried.1.form.name)
                && tried.1.chosen_by.is_some()
        };
        let known: Vec<(usize, &Tried)> = self.tried.iter().enumerate().collect();
        let mut best: Vec<(usize, &Tried)> = Vec::new();
        for one in known.into_iter().filter(|tried| mixes(&tried)) {
            match best.iter_mut().find(|(_, other)| other.format == one.1.format) {
                Some(other) if lost(one.1) < lost(other.1) => *other = one,
                Some(_) => {}
                None => best.push(one),
            }
        }
        best.sort_by(|a, b| self.ranking().order(a.0, b.0));
        let mut least = f64::INFINITY;
        best.retain(|(_, tried)| {
            let loses_less = lost(tried) < least;
            least = least.min(lost(tried));
            loses_less
        });
        let within = best.iter().position(|(_, tried)| lost(tried) <= self.asked.limit);
        let first =
            within.unwrap_or(best.len()).saturating_sub(1).min(best.len().saturating_sub(2));
        let modes = best.into_iter().skip(first).take(2);
        modes.map(|(_, tried)| tried.form.name.clone()).collect()
    }

    fn finish(mut self, outcome: Outcome, form: Option<Form>) -> Decision {
        mark_front(&mut self.tried, self.asked.target);
        let Self { tried, samples, samples_to_pass, whole, .. } = self;
        Decision { outcome, form, tried, samples, samples_to_pass, whole }
    }

    fn of_format(&self, format: &str) -> Vec<usize> {
        (0..self.tried.len())
            .filter(|&at| self.tried[at].format == format && !format.is_empty())
            .collect()
    }

    fn ranking(&self) -> Ranking<'_> {
        Ranking { target: self.asked.target, tried: &self.tried }
    }
}
