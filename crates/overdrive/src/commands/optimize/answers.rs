//! The machine's answers to a search.

use super::machine::OwnMachine;
use super::parts;
use super::underway::Counted;
use crate::commands::quantize::room_together;
use overdrive::bench::digits;
use overdrive::ir::{Backend, Graph, Mode, Tuning};
use overdrive::models::CacheCodes;
use overdrive::optimize::{
    Block, Care, Effort, Form, Halt, Machine, Part, Parts, Rung, Stage, TimedForms,
};
use overdrive::passes::{
    Additions, Biases, MODES, Preparation, Quantization, QuantizationMode, RangeRule, Rounding,
};
use overdrive::studies::quantization::{Footprint, Scores, Timed, latency_of_blocks, latency_on};

impl Machine for OwnMachine<'_> {
    fn rungs(&mut self) -> Vec<Rung> {
        let tried = MODES.iter().filter(|mode| match self.effort {
            Effort::Quick => !searches(mode) && !mode.is_trained(),
            Effort::Normal => !mode.is_trained() && !takes_minutes(mode),
            Effort::High => !mode.is_trained() || self.samples.parts.is_some(),
        });
        let mut tried: Vec<&QuantizationMode> = tried.collect();
        // A step of decoding reads every weight for one token: fewest bits are most promising.
        if self.step.is_some() {
            tried.sort_by_key(|mode| mode.quantization().scheme.weights.element.bits());
        }
        let mut rungs: Vec<Rung> = tried.into_iter().map(|mode| self.rung(mode)).collect();
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

    fn caches(&mut self) -> Vec<String> {
        let all = self.step.map_or(&[][..], |_| &CacheCodes::ALL);
        all.iter().map(|codes| codes.name().to_owned()).collect()
    }

    fn begins(&mut self, stage: Stage, place: [usize; 2]) {
        self.stage = stage;
        self.underway.comes_to(Counted::Stage(stage), place);
    }

    fn time(&mut self, forms: &[Form], care: Care) -> Result<TimedForms, Halt> {
        self.going()?;
        let graphs = forms.iter().map(|form| self.timed(form)).collect::<Result<Vec<_>, _>>()?;
        let named: Vec<String> = forms.iter().skip(1).map(Form::said).collect();
        self.tell("timing", &named.join(", "));
        let graphs: Vec<&Graph> = graphs.iter().collect();
        let mut names: Vec<String> = forms.iter().map(|form| form.name.clone()).collect();
        let [needed, allowed] = room_together(self.backend, &graphs);
        let whole = needed <= allowed;
        if self.step.is_some() && !whole {
            return Err(Halt::Declined(format!(
                "beside the float model it needs {} to be timed, and {} of the device's memory may \
                 be taken: a device with {:.1}x of it would fit",
                digits::bytes(needed),
                digits::bytes(allowed),
                needed as f64 / allowed.max(1) as f64
            )));
        }
        let draw = |seed: u64| self.inputs(seed);
        let blocks = if whole {
            let conditions = self.conditions(care);
            let mut placed: Vec<_> = graphs.iter().map(|graph| (self.backend, *graph)).collect();
            // An engine that cannot run the model does not stop the decision.
            let engines = self
                .engines
                .iter()
                .filter(|(_, engine)| care == Care::Deciding && runs(*engine, graphs[0]));
            for (name, engine) in engines {
                placed.push((*engine, graphs[0]));
                names.push(name.clone());
            }
            let timed = latency_on(&placed, &mut [], &draw, conditions);
            vec![(1, timed.map_err(|unable| self.halt(&unable))?)]
        } else {
            let conditions = self.conditions(care);
            let timed = latency_of_blocks(self.backend, &graphs, &draw, &conditions);
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
        Ok(TimedForms { forms: names, care, blocks, peak_bytes })
    }

    fn scores(&mut self, form: &Form, part: Part) -> Result<Scores, Halt> {
        self.going()?;
        let samples = self.samples;
        let graph = self.judged(form)?;
        let judge = match part {
            Part::Choosing => &samples.chooser,
            Part::Judging => self.judge.get_or_init(|| samples.judge.on(self.judged.get())),
        };
        self.tell("judging", &form.said());
        let found = judge.scores(&graph).map_err(|unable| self.halt(&unable))?;
        if self.stop.is_requested() { Err(Halt::Stopped) } else { Ok(found) }
    }

    fn bytes(&mut self, form: &Form) -> Result<u64, Halt> {
        if form.of_weights().is_float() {
            return Ok(Footprint::float(&self.subject.template.graph).total());
        }
        self.going()?;
        Ok(Footprint::of(&self.made(form)?.made).total())
    }

    fn parts(&mut self, modes: &[String]) -> Result<Parts, Halt> {
        self.stage = Stage::Mixing;
        parts::parts(self, modes)
    }
}

impl OwnMachine<'_> {
    fn rung(&self, mode: &QuantizationMode) -> Rung {
        let quantization = self.subject.quantization(mode.quantization());
        // Two modes take the same time where their layers multiply the same and nothing is added.
        let adds = match mode.preparation {
            // A bias is added where a layer has none.
            Preparation::None | Preparation::Equalize if adds_biases(&quantization) => {
                ", biases corrected"
            }
            Preparation::None | Preparation::Equalize => "",
            Preparation::Smooth(_) | Preparation::Awq if is_in_place(&quantization) => "",
            Preparation::Smooth(_) | Preparation::Awq => ", inputs multiplied",
            Preparation::Prune(_) => ", 2:4 sparse",
        };
        let scheme = quantization.scheme;
        let turned = if scheme.rotation.is_some() { ", inputs rotated" } else { "" };
        let format = format!("{:?} by {:?}{adds}{turned}", scheme.weights, scheme.activations);
        // These leave the function of all layers as it is, also of those that stay in float.
        let keeps_all = match mode.preparation {
            Preparation::None | Preparation::Equalize => true,
            Preparation::Smooth(_) => is_in_place(&quantization),
            Preparation::Awq | Preparation::Prune(_) => false,
        };
        let mixes = keeps_all
            && !mode.is_trained()
            && quantization.range == RangeRule::MinMax
            && quantization.biases == Biases::Kept;
        Rung { mode: mode.name.to_owned(), format, mixes }
    }
}

fn is_in_place(quantization: &Quantization) -> bool {
    quantization.additions == Additions::None
}

fn adds_biases(quantization: &Quantization) -> bool {
    quantization.biases == Biases::Corrected && !is_in_place(quantization)
}

/// Whether a mode looks for its codes, which takes time.
fn searches(mode: &QuantizationMode) -> bool {
    let scheme = mode.quantization().scheme;
    scheme.rounding.reads_inputs()
        || matches!(mode.preparation, Preparation::Awq | Preparation::Prune(_))
}

/// Whether a mode looks for its codes for several times as long as GPTQ.
fn takes_minutes(mode: &QuantizationMode) -> bool {
    matches!(mode.quantization().scheme.rounding, Rounding::Gptaq | Rounding::AutoRound)
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
