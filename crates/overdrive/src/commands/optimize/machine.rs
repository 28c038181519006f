//! The search's machine: makes forms of the user's model, times them on her device, and judges them
//! on her samples.

use super::parts;
use crate::commands::quantize::{Chosen, Samples, Subject, fit_together, in_mode};
use crate::progress::Spinner;
use overdrive::bench::clock::Clock;
use overdrive::bench::failure::Failure as Unable;
use overdrive::bench::rules::Rules;
use overdrive::ir::{Backend, Graph, Mode, Tuning};
use overdrive::optimize::{Block, Care, Effort, Form, Halt, Machine, Part, Parts, Rung, Session};
use overdrive::passes::{
    MODES, Preparation, Quantization, QuantizationMode, RangeRule, bind, layers,
};
use overdrive::studies::Progress;
use overdrive::studies::quantization::{
    Conditions, Footprint, Scores, Timed, latency_of_blocks, latency_on,
};
use overdrive::train::Recipe;
use overdrive_process::Stop;
use std::collections::BTreeMap;
use std::slice;
use std::time::{Duration, Instant};

/// Samples of a session that only leaves out what is clearly slower.
const SCREENED: usize = 15;
/// Forms that stay made: the one at hand and the finalists.
const KEPT: usize = 4;

/// Until when new forms are tried. What is timed must leave time to be judged, and what is judged
/// must leave time for mixes.
#[derive(Copy, Clone)]
pub(super) struct Budget {
    begun: Instant,
    all: Duration,
}

/// A stage of a search.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) enum Stage {
    Timing,
    Choosing,
    Mixing,
}

impl Budget {
    pub(super) fn of(all: Duration) -> Self {
        Self { begun: Instant::now(), all }
    }

    /// Seconds that a stage has left.
    pub(super) fn left_s(self, stage: Stage) -> f64 {
        let share = match stage {
            Stage::Timing => 0.4,
            Stage::Choosing => 0.75,
            Stage::Mixing => 1.0,
        };
        (share * self.all.as_secs_f64() - self.begun.elapsed().as_secs_f64()).max(0.0)
    }
}

/// Everything that a form is made, timed and judged with.
pub(super) struct OwnMachine<'a> {
    pub(super) backend: &'a dyn Backend,
    pub(super) subject: &'a Subject,
    pub(super) samples: &'a Samples<'a>,
    pub(super) clock: &'a dyn Clock,
    pub(super) stop: &'a Stop,
    pub(super) effort: Effort,
    pub(super) recipe: Recipe,
    pub(super) seed: u64,
    pub(super) time: Budget,
    pub(super) progress: &'a Spinner,
    /// Other engines that are there, by name.
    pub(super) engines: Vec<(String, &'a dyn Backend)>,
    /// Forms that were made, the latest last.
    pub(super) made: Vec<(Form, Chosen)>,
}

impl OwnMachine<'_> {
    /// The form, made now or before.
    pub(super) fn made(&mut self, form: &Form) -> Result<&Chosen, Halt> {
        if let Some(at) = self.made.iter().position(|(known, _)| known == form) {
            let known = self.made.remove(at);
            self.made.push(known);
        } else {
            self.tell(&format!("making {}", form.said()));
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
        if form.layers.is_empty() {
            let mode = QuantizationMode::find(&form.name).expect("rungs are modes");
            let quantization = self.subject.quantization(mode.quantization());
            return in_mode(
                (self.backend, self.subject),
                self.samples,
                (mode, quantization),
                &self.recipe,
            )
            .map_err(|failure| self.halted(&failure.to_string()));
        }
        let quantization = self.mixed(form)?;
        let how = (Preparation::None, &quantization);
        let made = self.subject.apply(self.backend, how, &self.samples.seen);
        let made = made.map_err(|unable| self.halt(&unable))?;
        Ok(Chosen { name: form.said(), quantization, made, trained_as_long: None })
    }

    /// What each layer of a mix becomes.
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

    /// The graph of a form in its sizes.
    fn graph(&mut self, form: &Form) -> Result<Graph, Halt> {
        let template = &self.subject.template;
        let graph = match form.is_float() {
            true => bind(&template.graph, &template.dimensions),
            false => bind(&self.made(form)?.made.graph, &template.dimensions),
        };
        graph.map_err(|error| Halt::Declined(error.to_string()))
    }

    /// Whether there is time to try more.
    pub(super) fn going(&self, stage: Stage) -> Result<(), Halt> {
        if self.stop.is_requested() {
            return Err(Halt::Stopped);
        }
        if self.time.left_s(stage) > 0.0 { Ok(()) } else { Err(Halt::OutOfTime) }
    }

    pub(super) fn tell(&self, doing: &str) {
        let left = self.time.left_s(Stage::Mixing) as u64;
        let left = match left {
            0 => "deciding".to_owned(),
            _ => format!("{}:{:02} left to try", left / 60, left % 60),
        };
        Progress::study(self.progress, &format!("{left}: {doing}"));
    }

    /// Why a call gave nothing.
    pub(super) fn halt(&self, unable: &Unable) -> Halt {
        self.halted(&unable.reason)
    }

    fn halted(&self, reason: &str) -> Halt {
        if self.stop.is_requested() { Halt::Stopped } else { Halt::Declined(reason.to_owned()) }
    }

    pub(super) fn conditions(&self, care: Care) -> Conditions<'_> {
        let rules = match care {
            Care::Screening => Rules::full().with_trials(3, SCREENED),
            Care::Deciding => Rules::full(),
        };
        Conditions { clock: self.clock, rules, seed: self.seed, stop: self.stop }
    }
}

impl Machine for OwnMachine<'_> {
    fn rungs(&mut self) -> Vec<Rung> {
        let tried = MODES.iter().filter(|mode| match self.effort {
            Effort::Quick => !searches(mode) && !mode.is_trained(),
            Effort::Normal => !mode.is_trained(),
            Effort::High => !mode.is_trained() || self.samples.parts.is_some(),
        });
        let mut rungs: Vec<Rung> = tried.map(|mode| self.rung(mode)).collect();
        // Modes of one format stand together, in the order in which formats come.
        let mut formats: Vec<String> = Vec::new();
        for rung in &rungs {
            if !formats.contains(&rung.format) {
                formats.push(rung.format.clone());
            }
        }
        rungs.sort_by_key(|rung| formats.iter().position(|format| *format == rung.format));
        rungs
    }

    fn time(&mut self, forms: &[Form], care: Care) -> Result<Session, Halt> {
        if care == Care::Screening {
            self.going(stage_of(forms, Stage::Timing))?;
        }
        let graphs = forms.iter().map(|form| self.graph(form)).collect::<Result<Vec<_>, _>>()?;
        let named: Vec<String> = forms.iter().skip(1).map(Form::said).collect();
        self.tell(&format!("timing {} beside float", named.join(", ")));
        let graphs: Vec<&Graph> = graphs.iter().collect();
        let mut names: Vec<String> = forms.iter().map(|form| form.name.clone()).collect();
        let whole = fit_together(self.backend, &graphs);
        let blocks = if whole {
            let conditions = self.conditions(care);
            let mut placed: Vec<_> = graphs.iter().map(|graph| (self.backend, *graph)).collect();
            // What an engine cannot run is no reason to decide nothing.
            let engines = self
                .engines
                .iter()
                .filter(|(_, engine)| care == Care::Deciding && runs(*engine, graphs[0]));
            for (name, engine) in engines {
                placed.push((*engine, graphs[0]));
                names.push(name.clone());
            }
            let timed = latency_on(&placed, &mut [], &*self.samples.draw, conditions);
            vec![(1, timed.map_err(|unable| self.halt(&unable))?)]
        } else {
            let conditions = self.conditions(care);
            let draw = &*self.samples.draw;
            let timed = latency_of_blocks(self.backend, &graphs, draw, &conditions);
            let timed = timed.map_err(|unable| self.halt(&unable))?;
            timed.into_iter().map(|block| (block.times, block.timed)).collect()
        };
        if self.stop.is_requested() {
            return Err(Halt::Stopped);
        }
        let peak_bytes = (0..names.len()).map(|at| {
            blocks.iter().map(|(times, timed)| *times as u64 * timed[at].peak_bytes).sum()
        });
        let peak_bytes = peak_bytes.collect();
        let blocks = blocks
            .into_iter()
            .map(|(times, timed)| {
                let samples_ns = timed.iter().map(times_of).collect::<Result<_, _>>()?;
                Ok(Block { times, samples_ns })
            })
            .collect::<Result<_, Halt>>()?;
        Ok(Session { forms: names, care, blocks, peak_bytes })
    }

    fn scores(&mut self, form: &Form, part: Part) -> Result<Scores, Halt> {
        if part == Part::Choosing {
            self.going(stage_of(slice::from_ref(form), Stage::Choosing))?;
        }
        let (samples, template) = (self.samples, &self.subject.template);
        let judge = match part {
            Part::Choosing => &samples.chooser,
            Part::Judging => &samples.judge,
        };
        let graph = match form.is_float() {
            true => template.graph.clone(),
            false => self.made(form)?.made.graph.clone(),
        };
        self.tell(&format!("judging {}", form.said()));
        let found = judge.scores(&graph).map_err(|unable| self.halt(&unable))?;
        if self.stop.is_requested() { Err(Halt::Stopped) } else { Ok(found) }
    }

    fn bytes(&mut self, form: &Form) -> Result<u64, Halt> {
        if form.is_float() {
            return Ok(Footprint::float(&self.subject.template.graph).total());
        }
        self.going(stage_of(slice::from_ref(form), Stage::Timing))?;
        Ok(Footprint::of(&self.made(form)?.made).total())
    }

    fn parts(&mut self, modes: &[String]) -> Result<Parts, Halt> {
        parts::parts(self, modes)
    }
}

impl OwnMachine<'_> {
    fn rung(&self, mode: &QuantizationMode) -> Rung {
        let quantization = self.subject.quantization(mode.quantization());
        // Two modes take the same time where their layers multiply the same and nothing is added.
        let adds = match mode.preparation {
            Preparation::None => "",
            Preparation::Smooth(_) | Preparation::Awq if is_in_place(&quantization) => "",
            Preparation::Smooth(_) | Preparation::Awq => ", inputs multiplied",
            Preparation::Prune(_) => ", 2:4 sparse",
        };
        let scheme = quantization.scheme;
        let format = format!("{:?} by {:?}{adds}", scheme.weights, scheme.activations);
        let mixes = mode.preparation == Preparation::None
            && !mode.is_trained()
            && quantization.range == RangeRule::MinMax;
        Rung { mode: mode.name.to_owned(), format, mixes }
    }
}

fn is_in_place(quantization: &Quantization) -> bool {
    quantization.additions == overdrive::passes::Additions::None
}

/// Whether a mode looks for its codes, which takes time.
fn searches(mode: &QuantizationMode) -> bool {
    let scheme = mode.quantization().scheme;
    scheme.rounding == overdrive::passes::Rounding::Gptq
        || matches!(mode.preparation, Preparation::Awq | Preparation::Prune(_))
}

/// The stage that asks for these forms: mixes come last.
fn stage_of(forms: &[Form], of_modes: Stage) -> Stage {
    if forms.iter().any(|form| !form.layers.is_empty()) { Stage::Mixing } else { of_modes }
}

/// Whether an engine takes the model.
fn runs(engine: &dyn Backend, graph: &Graph) -> bool {
    engine.compile(graph, Mode::Compile, &Tuning::default()).is_ok()
}

/// The samples of a graph, or why there are none.
fn times_of(timed: &Timed) -> Result<Vec<f64>, Halt> {
    let measured = timed.outcome.measurement().and_then(|found| found.latency.as_ref());
    match (measured, timed.outcome.failure()) {
        (Some(series), _) => Ok(series.times_ns()),
        (None, Some(failure)) => Err(Halt::Declined(failure.reason.clone())),
        (None, None) => Err(Halt::Declined("it was not measured".to_owned())),
    }
}
