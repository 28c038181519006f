//! The search's machine: makes forms of the user's model, times them on her device, and judges them
//! on her samples.

use super::step::DecodingStep;
use super::underway::Underway;
use crate::commands::quantize::{Chosen, Samples, Subject, in_mode, recipe};
use crate::failure::Failure;
use overdrive::bench::clock::Clock;
use overdrive::bench::failure::Failure as Unable;
use overdrive::bench::rules::Rules;
use overdrive::ir::{Backend, Graph, GraphError, Tensor};
use overdrive::models::CacheCodes;
use overdrive::optimize::{Care, Effort, Form, Halt, Stage};
use overdrive::passes::{Preparation, Quantization, QuantizationMode, bind, code_caches, layers};
use overdrive::studies::quantization::{Conditions, Judge};
use overdrive::train::Recipe;
use overdrive_process::Stop;
use std::cell::{Cell, OnceCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Samples of a session that only leaves out what is clearly slower.
const SCREENED: usize = 15;
/// The share of the time that is left in which what layers lose is found. Mixes need the rest.
const SHARE: f64 = 0.6;
/// Forms that stay made: the one at hand and the finalists.
const KEPT: usize = 4;

/// Until when new forms are tried. Timing must leave time for judging, judging for mixes, and mixes
/// for caches.
#[derive(Copy, Clone)]
pub(super) struct Budget {
    begun: Instant,
    all: Duration,
    /// Whether caches are tried.
    pub(super) caches: bool,
}

impl Budget {
    pub(super) fn of(all: Duration) -> Self {
        Self { begun: Instant::now(), all, caches: false }
    }

    /// Seconds that a stage has left. The verdict may take the time that it needs.
    pub(super) fn left_s(self, stage: Stage) -> f64 {
        let share = match stage {
            Stage::Timing => 0.4,
            Stage::Choosing => 0.75,
            Stage::Mixing if self.caches => 0.9,
            Stage::Mixing | Stage::Caching => 1.0,
            Stage::Judging => return f64::INFINITY,
        };
        (share * self.all.as_secs_f64() - self.begun.elapsed().as_secs_f64()).max(0.0)
    }
}

/// Everything that a form is made, timed and judged with.
pub(super) struct OwnMachine<'a> {
    pub(super) backend: &'a dyn Backend,
    pub(super) subject: &'a Subject,
    /// The float model in its sizes.
    pub(super) float: Graph,
    pub(super) samples: &'a Samples<'a>,
    /// How many of the samples that can judge do.
    pub(super) judged: Rc<Cell<u64>>,
    /// They, from the first look on.
    pub(super) judge: OnceCell<Judge<'a>>,
    pub(super) clock: &'a dyn Clock,
    pub(super) stop: &'a Stop,
    pub(super) effort: Effort,
    pub(super) recipe: Recipe,
    pub(super) seed: u64,
    pub(super) time: Budget,
    /// The share of the time that is left in which what layers lose is found.
    pub(super) share: f64,
    pub(super) underway: &'a Underway,
    /// The stage of the search; at first none that is limited.
    pub(super) stage: Stage,
    /// The step of decoding, where its time counts.
    pub(super) step: Option<DecodingStep<'a>>,
    /// Other engines that are there, by name.
    pub(super) engines: Vec<(String, &'a dyn Backend)>,
    /// Forms that were made, the latest last.
    pub(super) made: Vec<(Form, Chosen)>,
}

impl<'a> OwnMachine<'a> {
    /// The machine for a model and the samples that judge it, on a device. A step of decoding and
    /// other engines can be given to it.
    pub(super) fn new(
        (backend, subject, samples): (&'a dyn Backend, &'a Subject, &'a Samples<'a>),
        (clock, underway, stop): (&'a dyn Clock, &'a Underway, &'a Stop),
        (effort, seed): (Effort, u64),
        allowed: Duration,
    ) -> Result<Self, Failure> {
        let float = bind(&subject.template.graph, &subject.template.dimensions);
        let float = float.map_err(|error| Failure::bad_input(error.to_string()))?;
        let recipe = recipe(subject, (None, seed));
        let (time, engines, made) = (Budget::of(allowed), Vec::new(), Vec::new());
        Ok(Self {
            backend,
            subject,
            float,
            samples,
            judged: Rc::new(Cell::new(samples.judge.samples())),
            judge: OnceCell::new(),
            clock,
            stop,
            effort,
            recipe,
            seed,
            time,
            share: SHARE,
            underway,
            stage: Stage::Judging,
            step: None,
            engines,
            made,
        })
    }

    /// The weights of a form, made now or before.
    pub(super) fn made(&mut self, form: &Form) -> Result<&Chosen, Halt> {
        let form = &form.of_weights();
        if let Some(at) = self.made.iter().position(|(known, _)| known == form) {
            let known = self.made.remove(at);
            self.made.push(known);
        } else {
            self.tell("making", &form.said());
            let chosen = self.make(form)?;
            if chosen.made.layers.is_empty() {
                return Err(Halt::Declined("no layer of the model can take it".to_owned()));
            }
            if self.made.len() == KEPT {
                self.made.remove(0);
            }
            self.made.push((form.clone(), chosen));
        }
        Ok(&self.made.last().expect("it was pushed").1)
    }

    fn make(&self, form: &Form) -> Result<Chosen, Halt> {
        // A descent takes minutes: it ends where a stop or the time ends it, and is not kept.
        let going = || self.going().map_err(|_| Unable::skipped("the search goes on without it"));
        if form.layers.is_empty() {
            let mode = QuantizationMode::find(&form.name).expect("rungs are modes");
            let quantization = self.subject.quantization(mode.quantization());
            return in_mode(
                (self.backend, self.subject),
                self.samples,
                (mode, quantization),
                &self.recipe,
                &going,
            )
            .map_err(|failure| self.halted(&failure.to_string()));
        }
        let (quantization, preparation) = (self.mixed(form)?, prepared(form)?);
        let how = (preparation, &quantization);
        let made = self.subject.apply(self.backend, how, &self.samples.seen, &going);
        let made = made.map_err(|unable| self.halt(&unable))?;
        Ok(Chosen { name: form.said(), quantization, made, trained_as_long: None })
    }

    /// The quantization of each layer of a mix.
    fn mixed(&self, form: &Form) -> Result<Quantization, Halt> {
        let found = layers(&self.subject.template.graph);
        let (found, _) = found.map_err(|error| Halt::Declined(error.to_string()))?;
        let meant = |mode: &str| {
            let mode = QuantizationMode::find(mode).expect("mixes are of modes");
            self.subject.quantization(mode.quantization())
        };
        let of: BTreeMap<&String, Quantization> =
            form.layers.values().map(|mode| (mode, meant(mode))).collect();
        let scheme = |name: &String| of[form.layers.get(name)?].of(name);
        let layers = found.iter().map(|layer| (layer.name.clone(), scheme(&layer.name))).collect();
        let first = of.values().next().expect("a mix has a mode").clone();
        Ok(Quantization { layers, ..first })
    }

    /// The graph of a form whose time counts.
    pub(super) fn timed(&mut self, form: &Form) -> Result<Graph, Halt> {
        let declined = |error: GraphError| Halt::Declined(error.to_string());
        let is_float = form.of_weights().is_float();
        if let Some(step) = self.step {
            let step = step.with(codes(form));
            let made = if is_float { None } else { Some(self.made(form)?) };
            return step.graph(made).map_err(declined);
        }
        if is_float {
            return Ok(self.float.clone());
        }
        let dimensions = &self.subject.template.dimensions;
        bind(&self.made(form)?.made.graph, dimensions).map_err(declined)
    }

    /// The graph of a form whose quality counts, in any sizes.
    pub(super) fn judged(&mut self, form: &Form) -> Result<Graph, Halt> {
        let graph = match form.of_weights().is_float() {
            true => self.subject.template.graph.clone(),
            false => self.made(form)?.made.graph.clone(),
        };
        match codes(form) {
            None => Ok(graph),
            Some(codes) => match code_caches(&graph, codes.rows()) {
                Ok((_, 0)) => {
                    let reason = "no attention of whole sequences was found, which would judge it";
                    Err(Halt::Declined(reason.to_owned()))
                }
                Ok((graph, _)) => Ok(graph),
                Err(error) => Err(Halt::Declined(error.to_string())),
            },
        }
    }

    /// Inputs of such a graph.
    pub(super) fn inputs(&self, seed: u64) -> Vec<Tensor> {
        match &self.step {
            Some(step) => step.inputs(seed),
            None => (self.samples.draw)(seed),
        }
    }

    /// Whether the stage goes on.
    pub(super) fn going(&self) -> Result<(), Halt> {
        if self.stop.is_requested() {
            return Err(Halt::Stopped);
        }
        if self.time.left_s(self.stage) > 0.0 { Ok(()) } else { Err(Halt::OutOfTime) }
    }

    /// Seconds in which what layers lose is found.
    pub(super) fn allowed_s(&self) -> f64 {
        self.share * self.time.left_s(self.stage)
    }

    pub(super) fn tell(&self, doing: &str, name: &str) {
        self.underway.tell(doing, name, self.time.left_s(self.stage));
    }

    /// Why a call gave nothing.
    pub(super) fn halt(&self, unable: &Unable) -> Halt {
        self.halted(&unable.reason)
    }

    fn halted(&self, reason: &str) -> Halt {
        self.going().err().unwrap_or_else(|| Halt::Declined(reason.to_owned()))
    }

    pub(super) fn conditions(&self, care: Care) -> Conditions<'_> {
        let rules = match care {
            Care::Screening => Rules::full().with_trials(3, SCREENED),
            Care::Deciding => Rules::full(),
        };
        Conditions { clock: self.clock, rules, seed: self.seed, stop: self.stop }
    }
}

/// The codes of a form's cache, whose names are those that `Machine::caches` gives.
fn codes(form: &Form) -> Option<CacheCodes> {
    let name = form.cache.as_deref()?;
    Some(CacheCodes::find(name).expect("caches have these names"))
}

/// How a mix prepares the model: as the modes of its layers do.
fn prepared(form: &Form) -> Result<Preparation, Halt> {
    let mut found: Option<&QuantizationMode> = None;
    for name in form.layers.values() {
        let mode = QuantizationMode::find(name).expect("mixes are of modes");
        match found {
            _ if mode.preparation == Preparation::None => {}
            Some(other) if other.preparation != mode.preparation => {
                return Err(Halt::Declined(format!(
                    "`{}` and `{}` prepare the model in different ways",
                    other.name, mode.name
                )));
            }
            _ => found = Some(mode),
        }
    }
    Ok(found.map_or(Preparation::None, |mode| mode.preparation))
}
