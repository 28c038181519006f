//! Searches on machines whose times and losses are planted: what must never be chosen, and what
//! must.
//!
//! Long because all tests share one machine, on which everything is known.

#![allow(clippy::unwrap_used)]

use overdrive_optimize::{
    Asked, Asking, Block, Care, Effort, Fate, Form, Halt, LayerFacts, LossSource, Machine, Outcome,
    Part, Parts, Record, Rung, Stage, Target, TimedForms, Verdict, best_first, search,
};
use overdrive_studies::quantization::{Metric, Scores};
use std::collections::BTreeMap;

/// A mode of the planted machine.
#[derive(Clone)]
struct Planted {
    mode: &'static str,
    format: &'static str,
    /// Its time, in shares of the float model's.
    time: f64,
    bytes: u64,
    /// Points that it loses.
    lost: f64,
}

/// A machine on which everything is known.
struct PlantedMachine {
    modes: Vec<Planted>,
    samples: usize,
    seed: u64,
    /// Layers, each with the part of every mode's saving and loss that is its own.
    layers: Vec<(&'static str, f64, f64)>,
    asked: usize,
    stops_after: usize,
    /// Questions after which the time to explore is over.
    late_after: usize,
    /// Every place that the search came to.
    places: Vec<(Stage, [usize; 2])>,
    /// Weights that lose more on the samples that judge, in points.
    lost_when_judged: Vec<(&'static str, f64)>,
    /// Caches: the factor of the time that each gives to a form of these weights, and its loss.
    caches: Vec<(&'static str, &'static str, f64, f64)>,
}

fn planted(modes: &[(&'static str, &'static str, f64, u64, f64)]) -> PlantedMachine {
    let mode =
        |&(mode, format, time, bytes, lost): &(&'static str, &'static str, f64, u64, f64)| {
            Planted { mode, format, time, bytes, lost }
        };
    PlantedMachine {
        modes: modes.iter().map(mode).collect(),
        samples: 20_000,
        seed: 1,
        layers: Vec::new(),
        asked: 0,
        stops_after: usize::MAX,
        late_after: usize::MAX,
        places: Vec::new(),
        lost_when_judged: Vec::new(),
        caches: Vec::new(),
    }
}

impl PlantedMachine {
    fn tick(&mut self) -> Result<(), Halt> {
        self.asked += 1;
        match self.places.last() {
            _ if self.asked > self.stops_after => Err(Halt::Stopped),
            Some((Stage::Judging, _)) => Ok(()),
            _ if self.asked > self.late_after => Err(Halt::OutOfTime),
            _ => Ok(()),
        }
    }

    fn mode(&self, name: &str) -> Option<&Planted> {
        self.modes.iter().find(|mode| mode.mode == name)
    }

    /// A figure of a form: float's, a mode's, or of a mix the sum over its layers.
    fn of(&self, form: &Form, float: f64, whole: fn(&Planted) -> f64, part: usize) -> f64 {
        if let Some(codes) = &form.cache {
            let weights = form.of_weights();
            let found = self.of(&weights, float, whole, part);
            let is_it =
                |cache: &&(&str, &str, f64, f64)| [cache.0, cache.1] == [&weights.name, codes];
            let (.., time, lost) = self.caches.iter().find(is_it).unwrap();
            return [found * time, found + lost][part];
        }
        if let Some(mode) = self.mode(&form.name) {
            return whole(mode);
        }
        let change = form.layers.iter().map(|(layer, mode)| {
            let (_, time, lost) = self.layers.iter().find(|known| known.0 == layer).unwrap();
            (whole(self.mode(mode).unwrap()) - float) * [*time, *lost][part]
        });
        float + change.sum::<f64>()
    }
}

impl Machine for PlantedMachine {
    fn rungs(&mut self) -> Vec<Rung> {
        let of = |mode: &Planted| Rung {
            mode: mode.mode.to_owned(),
            format: mode.format.to_owned(),
            mixes: !self.layers.is_empty(),
        };
        self.modes.iter().map(of).collect()
    }

    fn begins(&mut self, stage: Stage, place: [usize; 2]) {
        self.places.push((stage, place));
    }

    fn caches(&mut self) -> Vec<String> {
        let mut all: Vec<String> = self.caches.iter().map(|cache| cache.1.to_owned()).collect();
        all.sort();
        all.dedup();
        all
    }

    fn time(&mut self, forms: &[Form], care: Care) -> Result<TimedForms, Halt> {
        self.tick()?;
        let mut rng = fastrand::Rng::with_seed(self.seed + self.asked as u64);
        let samples = |form: &Form| -> Vec<f64> {
            let time = 1e6 * self.of(form, 1.0, |mode| mode.time, 0);
            (0..30).map(|_| time * (1.0 + 0.02 * rng.f64())).collect()
        };
        Ok(TimedForms {
            forms: forms.iter().map(|form| form.name.clone()).collect(),
            care,
            blocks: vec![Block { times: 1, samples_ns: forms.iter().map(samples).collect() }],
            peak_bytes: forms.iter().map(|_| 1000).collect(),
        })
    }

    fn scores(&mut self, form: &Form, part: Part) -> Result<Scores, Halt> {
        self.tick()?;
        let seed = 2 * self.seed + u64::from(part == Part::Judging);
        let mut rng = fastrand::Rng::with_seed(1000 + seed);
        let more = self.lost_when_judged.iter().find(|(name, _)| form.of_weights().name == *name);
        let more = more.filter(|_| part == Part::Judging).map_or(0.0, |(_, lost)| *lost);
        let lost = (self.of(form, 0.0, |mode| mode.lost, 1) + more) / 100.0;
        let mut flip = fastrand::Rng::with_seed(seed ^ 0xf11b);
        // Nine of ten are right in float; a hundredth of all turns wrong beyond the loss, and as
        // many turn right.
        let samples = (0..self.samples).map(|_| {
            let (float, u) = (rng.f64() < 0.9, flip.f64());
            let found = if float { u >= (0.01 + lost) / 0.9 } else { u < 0.1 };
            let right = if form.is_float() { float } else { found };
            if right { 100.0 } else { 0.0 }
        });
        let samples = samples.collect();
        Ok(Scores { fold: 0, samples })
    }

    fn bytes(&mut self, form: &Form) -> Result<u64, Halt> {
        if form.is_float() {
            return Ok(400);
        }
        Ok(self.mode(&form.name).map_or(200, |mode| mode.bytes))
    }

    fn parts(&mut self, modes: &[String]) -> Result<Parts, Halt> {
        self.tick()?;
        let layers = self.layers.iter().map(|(name, ..)| LayerFacts {
            name: (*name).to_owned(),
            group: (*name).to_owned(),
            class: (*name).to_owned(),
            float_bytes: 100,
        });
        let by_mode = |of: &dyn Fn(&Planted) -> f64| -> BTreeMap<String, f64> {
            modes.iter().map(|mode| (mode.clone(), of(self.mode(mode).unwrap()))).collect()
        };
        let names = || self.layers.iter().map(|layer| layer.0.to_owned());
        let times = self.layers.iter().map(|(_, share, _)| {
            let mut times = by_mode(&|mode| 1e6 * share * mode.time);
            times.insert("float".to_owned(), 1e6 * share);
            times
        });
        let lost = self.layers.iter().map(|(.., share)| by_mode(&|mode| share * mode.lost));
        Ok(Parts {
            layers: layers.collect(),
            times_ns: names().zip(times).collect(),
            lost: names().zip(lost).collect(),
            source: LossSource::Estimated,
            bytes: names().zip(self.layers.iter().map(|_| halves(modes))).collect(),
        })
    }
}

/// Every mode has half of a layer's hundred bytes.
fn halves(modes: &[String]) -> BTreeMap<String, u64> {
    modes.iter().map(|mode| (mode.clone(), 50)).collect()
}

const ASKED: Asked = Asked {
    decode: None,
    target: Target::Latency,
    metric: Metric::Top1,
    limit: 0.5,
    error: 0.001,
    effort: Effort::Normal,
};

fn decide(machine: &mut PlantedMachine) -> overdrive_optimize::Decision {
    let mut keep = |_: &Record| {};
    search(&mut Asking::of(machine, Record::default(), &mut keep), &ASKED)
}

#[test]
fn a_mode_that_loses_too_much_is_never_taken() {
    for seed in 0..200 {
        for samples in [1_000, 20_000] {
            let mut machine = planted(&[("int8", "int8", 0.5, 100, 0.8)]);
            (machine.seed, machine.samples) = (seed, samples);
            let decision = decide(&mut machine);
            assert_ne!(decision.outcome, Outcome::Taken, "seed {seed}: {decision:#?}");
        }
    }
}

#[test]
fn a_mode_that_loses_little_passes_or_is_undecided() {
    let outcomes: Vec<Outcome> = (0..200)
        .map(|seed| {
            let mut machine = planted(&[("int8", "int8", 0.5, 100, 0.2)]);
            (machine.seed, machine.samples) = (seed, 60_000);
            decide(&mut machine).outcome
        })
        .collect();
    let count = |outcome| outcomes.iter().filter(|&&found| found == outcome).count();
    assert_eq!(count(Outcome::Taken) + count(Outcome::Undecided), 200, "{outcomes:?}");
    assert!(count(Outcome::Taken) > 160, "{outcomes:?}");
}

#[test]
fn what_is_slower_is_never_taken_for_its_time() {
    for seed in 0..50 {
        let mut machine = planted(&[
            ("int8", "int8", 0.6, 100, 0.0),
            ("int4-rtn", "int4", 1.3, 50, 0.0),
            ("int4-gptq", "int4", 1.3, 50, 0.0),
        ]);
        machine.seed = seed;
        let decision = decide(&mut machine);
        assert_eq!(decision.form, Some(Form::of("int8")));
        for slow in ["int4-rtn", "int4-gptq"] {
            let tried = decision.of(slow).unwrap();
            assert_eq!((&tried.fate, &tried.chosen_by), (&Fate::NoBetterThanFloat, &None));
        }
    }
    let mut machine = planted(&[("int4-rtn", "int4", 1.3, 50, 0.0)]);
    let decision = decide(&mut machine);
    assert_eq!((decision.outcome, decision.form), (Outcome::KeepFloat, Some(Form::float())));
}

#[test]
fn the_same_mode_is_taken_for_its_size() {
    let modes = [("int8", "int8", 0.6, 100, 0.0), ("int4-rtn", "int4", 1.3, 50, 0.0)];
    let (mut machine, mut keep) = (planted(&modes), |_: &Record| {});
    let asked = Asked { target: Target::Size, ..ASKED };
    let decision = search(&mut Asking::of(&mut machine, Record::default(), &mut keep), &asked);
    assert_eq!(decision.form, Some(Form::of("int4-rtn")));
    assert_eq!(decision.of("int8").unwrap().fate, Fate::Beaten("int4-rtn".to_owned()));
}

#[test]
fn a_better_method_of_a_format_is_found() {
    let mut machine = planted(&[
        ("int4-rtn", "int4", 0.4, 50, 3.0),
        ("int4-gptq", "int4", 0.4, 50, 0.0),
        ("int8", "int8", 0.6, 100, 0.0),
    ]);
    let decision = decide(&mut machine);
    assert_eq!(decision.form, Some(Form::of("int4-gptq")));
    assert_eq!(decision.of("int4-rtn").unwrap().fate, Fate::LosesTooMuch);
    assert_eq!(decision.of("int8").unwrap().fate, Fate::Beaten("int4-gptq".to_owned()));
}

#[test]
fn of_methods_that_cost_the_same_the_one_that_loses_least_is_taken() {
    for target in [Target::Latency, Target::Size] {
        let mut machine = planted(&[
            ("int4-rtn", "int4", 0.4, 50, 0.3),
            ("int4-gptq", "int4", 0.4, 50, 0.0),
            ("int4-hqq", "int4", 0.4, 50, 0.2),
        ]);
        machine.samples = 200_000;
        let (asked, mut keep) = (Asked { target, ..ASKED }, |_: &Record| {});
        let decision = search(&mut Asking::of(&mut machine, Record::default(), &mut keep), &asked);
        assert_eq!(decision.form, Some(Form::of("int4-gptq")));
    }
}

/// The fastest seems to keep the limit where forms are chosen, which leaves the others out.
#[test]
fn what_a_faster_form_had_beaten_is_looked_at_when_that_one_does_not_pass() {
    let mut taken = 0;
    for seed in 0..50 {
        let mut machine = planted(&[
            ("int4", "int4", 0.4, 50, 0.45),
            ("int8", "int8", 0.6, 100, 0.0),
            ("int8-slow", "int8 by rows", 0.8, 100, 0.0),
        ]);
        (machine.seed, machine.samples) = (seed, 40_000);
        let decision = decide(&mut machine);
        assert_ne!(decision.form, Some(Form::of("int4")), "seed {seed}: {decision:#?}");
        taken += usize::from(decision.form == Some(Form::of("int8")));
        assert!(decision.tried.iter().filter(|tried| tried.judged.is_some()).count() <= 4);
        if decision.of("int4").unwrap().judged.is_some() {
            let beaten = Fate::Beaten("int8".to_owned());
            assert_eq!(decision.of("int8-slow").unwrap().fate, beaten, "seed {seed}");
        }
    }
    assert!(taken >= 48, "{taken} of 50");
}

/// Three formats lose too much where they are judged, and a fourth is never judged.
#[test]
fn what_no_verdict_is_left_for_is_no_failure() {
    let mut open = 0;
    for seed in 0..40 {
        let mut machine = planted(&[
            ("a", "a", 0.4, 50, 0.9),
            ("b", "b", 0.41, 51, 0.9),
            ("c", "c", 0.42, 52, 0.9),
            ("d", "d", 0.9, 300, 0.0),
        ]);
        // Few samples choose badly, so that all of them may seem to keep the limit.
        (machine.seed, machine.samples) = (seed, 1_000);
        let decision = decide(&mut machine);
        let judged = decision.tried.iter().filter(|tried| tried.judged.is_some()).count();
        assert!(judged <= 4, "float and three forms: {decision:#?}");
        if matches!(decision.of("d").unwrap().fate, Fate::Kept | Fate::Beaten(_)) {
            assert_eq!(decision.outcome, Outcome::Undecided, "seed {seed}: {decision:#?}");
            open += 1;
        }
    }
    assert!(open > 0, "no seed shows it");
}

#[test]
fn a_search_whose_time_was_over_is_repeated_from_its_record() {
    let new = || {
        let modes = [("int4", "int4", 0.4, 50, 2.0), ("int8", "int8", 0.7, 100, 0.0)];
        let layers = vec![("ffn", 0.9, 0.0), ("head", 0.1, 1.0)];
        PlantedMachine { layers, ..planted(&modes) }
    };
    let mut cut = 0;
    for late_after in 0..12 {
        let mut machine = PlantedMachine { late_after, ..new() };
        let mut kept = Record::default();
        let decision = {
            let mut keep = |record: &Record| kept = record.clone();
            search(&mut Asking::of(&mut machine, Record::default(), &mut keep), &ASKED)
        };
        let text = serde_json::to_string(&kept).unwrap();
        let mut keep = |_: &Record| {};
        let record = serde_json::from_str(&text).unwrap();
        let again = search(&mut Asking::again(record, &mut keep), &ASKED);
        assert_eq!(again, decision, "late after {late_after}");
        cut += usize::from(!decision.whole && decision.outcome == Outcome::Taken);
        // With more time it goes on.
        let resumed = search(&mut Asking::of(&mut new(), kept, &mut keep), &ASKED);
        assert!(resumed.whole, "late after {late_after}");
        assert_eq!(resumed.outcome, Outcome::Taken, "late after {late_after}");
    }
    assert!(cut > 0, "no search was cut and took a form all the same");
}

/// A higher effort finds methods that lose less, and may not look at the samples that judge again.
#[test]
fn verdicts_are_counted_over_searches_that_go_on() {
    type Modes = [(&'static str, &'static str, f64, u64, f64)];
    let first = [("a", "a", 0.4, 50, 0.45), ("b", "b", 0.5, 60, 0.45), ("c", "c", 0.6, 70, 0.45)];
    let more = [("a2", "a", 0.4, 50, 0.4), ("b2", "b", 0.5, 60, 0.4), ("c2", "c", 0.6, 70, 0.4)];
    let mut full = 0;
    for seed in 0..20 {
        let run = |modes: &Modes, record: Record| {
            let mut machine = planted(modes);
            (machine.seed, machine.samples) = (seed, 40_000);
            let mut keep = |_: &Record| {};
            let mut asking = Asking::of(&mut machine, record, &mut keep);
            search(&mut asking, &ASKED);
            asking.record().clone()
        };
        let record = run(&first, Record::default());
        let record = run(&[&more[..], &first[..]].concat(), record);
        let is_judged = |(form, parts): &(&String, &BTreeMap<Part, _>)| {
            *form != "float" && parts.contains_key(&Part::Judging)
        };
        let looks = record.scores.iter().filter(is_judged).count();
        assert!(looks <= 3, "seed {seed}: {looks} looks");
        full += usize::from(looks == 3);
    }
    assert!(full > 0, "no seed shows it");
}

/// One of two layers has all the loss, the other nearly all the time.
#[test]
fn a_mix_gets_the_time_without_the_loss() {
    let mut machine = planted(&[("int4", "int4", 0.4, 50, 2.0), ("int8", "int8", 0.7, 100, 0.0)]);
    machine.layers = vec![("ffn", 0.9, 0.0), ("head", 0.1, 1.0)];
    let decision = decide(&mut machine);
    assert_eq!(decision.outcome, Outcome::Taken, "{decision:#?}");
    let taken = decision.taken().unwrap();
    let expected = [("ffn", "int4"), ("head", "int8")];
    let found: Vec<_> = taken.form.layers.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    assert_eq!(found, expected);
    assert!(taken.time.unwrap()[2] < 0.7);
    // Its parts add up: nine tenths of the time at 0.4 and the rest at 0.7, without a loss.
    let predicted = taken.predicted.unwrap();
    assert!((predicted.time.unwrap() - 0.43).abs() < 0.02, "{predicted:?}");
    assert!(predicted.lost.abs() < 0.3, "{predicted:?}");
    assert_eq!(predicted.bytes, Some(400 - 2 * 50));
    assert_eq!(decision.of("int8").unwrap().predicted, None);
}

/// A second fast mode that is slower and loses more than the first is of no use to a mix.
#[test]
fn a_mix_trades_the_mode_that_loses_too_much_for_the_one_that_does_not() {
    let mut machine = planted(&[
        ("static", "static", 0.42, 50, 2.5),
        ("dynamic", "dynamic", 0.4, 50, 2.0),
        ("int8", "int8", 0.7, 100, 0.0),
    ]);
    machine.layers = vec![("ffn", 0.9, 0.0), ("head", 0.1, 1.0)];
    let decision = decide(&mut machine);
    let taken = decision.taken().unwrap();
    let expected = [("ffn", "dynamic"), ("head", "int8")];
    let found: Vec<_> = taken.form.layers.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
    assert_eq!(found, expected);
}

#[test]
fn the_search_says_how_far_it_is() {
    let mut machine = planted(&[
        ("int8", "int8", 0.6, 100, 0.0),
        ("int4-rtn", "int4", 0.4, 50, 3.0),
        ("int4-gptq", "int4", 0.4, 50, 0.0),
    ]);
    decide(&mut machine);
    let expected = [
        (Stage::Timing, [1, 2]),
        (Stage::Timing, [2, 2]),
        (Stage::Choosing, [1, 3]),
        (Stage::Choosing, [2, 3]),
        (Stage::Judging, [0, 1]),
        (Stage::Judging, [1, 1]),
    ];
    assert_eq!(machine.places, expected, "int8 is beaten, and is not judged");
}

#[test]
fn the_matrix_has_the_best_form_first() {
    let mut machine = planted(&[
        ("slow", "slow", 1.3, 60, 0.0),
        ("int4-rtn", "int4", 0.4, 50, 3.0),
        ("int4-gptq", "int4", 0.4, 50, 0.0),
        ("int8", "int8", 0.6, 100, 0.0),
    ]);
    let decision = decide(&mut machine);
    let order: Vec<&str> =
        best_first(&decision, ASKED.target).iter().map(|one| one.form.name.as_str()).collect();
    assert_eq!(order, ["int4-gptq", "int8", "float", "slow", "int4-rtn"]);
}

#[test]
fn a_higher_effort_takes_in_its_modes_and_measures_nothing_again() {
    let few = [("int8", "int8", 0.7, 100, 0.0), ("int4-rtn", "int4", 0.4, 50, 3.0)];
    let more = [few[0], few[1], ("int4-autoround", "int4", 0.4, 50, 0.0)];
    let mut record = Record::default();
    let mut keep = |kept: &Record| record = kept.clone();
    search(&mut Asking::of(&mut planted(&few), Record::default(), &mut keep), &ASKED);
    let (mut machine, mut keep) = (planted(&more), |_: &Record| {});
    let mut asking = Asking::of(&mut machine, record.clone(), &mut keep);
    let asked = Asked { effort: Effort::High, ..ASKED };
    let decision = search(&mut asking, &asked);
    assert_eq!(decision.form, Some(Form::of("int4-autoround")));
    let known = asking.record().sessions.iter();
    let screened = known.filter(|session| session.care == Care::Screening).count();
    assert_eq!(screened, 2, "both formats were timed before");
}

#[test]
fn a_search_goes_on_from_where_it_was_stopped_and_repeats_bit_for_bit() {
    let modes = [("int4", "int4", 0.4, 50, 2.0), ("int8", "int8", 0.7, 100, 0.0)];
    let new = || {
        let mut machine = planted(&modes);
        machine.layers = vec![("ffn", 0.9, 0.0), ("head", 0.1, 1.0)];
        machine
    };
    let run = |machine: &mut PlantedMachine, record: Record| {
        let mut kept = record.clone();
        let decision = {
            let mut keep = |record: &Record| kept = record.clone();
            search(&mut Asking::of(machine, record, &mut keep), &ASKED)
        };
        (decision, kept)
    };
    let (_, whole) = run(&mut new(), Record::default());
    for stops_after in 0..20 {
        let mut machine = new();
        machine.stops_after = stops_after;
        let (first, kept) = run(&mut machine, Record::default());
        if first.whole {
            break;
        }
        assert_eq!(first.outcome, Outcome::Unfinished);
        let (second, _) = run(&mut new(), kept);
        assert_eq!(second.form, Some(Form::mix(1, second.taken().unwrap().form.layers.clone())));
        assert_eq!(second.outcome, Outcome::Taken, "stopped after {stops_after}");
    }
    let text = serde_json::to_string(&whole).unwrap();
    let again = |text: &str| {
        let mut keep = |_: &Record| {};
        let record: Record = serde_json::from_str(text).unwrap();
        search(&mut Asking::again(record, &mut keep), &ASKED)
    };
    let (decision, _) = run(&mut new(), whole.clone());
    assert_eq!(again(&text), decision);
    // Another machine's times give another decision, from the file alone.
    let mut slower = whole;
    for session in &mut slower.sessions {
        for (form, samples) in session.forms.iter().zip(&mut session.blocks[0].samples_ns) {
            if form != "float" {
                samples.iter_mut().for_each(|ns| *ns *= 3.0);
            }
        }
    }
    let mut keep = |_: &Record| {};
    let decision = search(&mut Asking::again(slower, &mut keep), &ASKED);
    assert_eq!(decision.outcome, Outcome::KeepFloat);
}

#[test]
fn a_machine_on_which_nothing_fits_is_no_reason_to_keep_float() {
    struct Small(PlantedMachine);
    impl Machine for Small {
        fn rungs(&mut self) -> Vec<Rung> {
            self.0.rungs()
        }
        fn time(&mut self, _: &[Form], _: Care) -> Result<TimedForms, Halt> {
            Err(Halt::Declined("the plan needs 900 bytes, there are 500".to_owned()))
        }
        fn scores(&mut self, form: &Form, part: Part) -> Result<Scores, Halt> {
            self.0.scores(form, part)
        }
        fn bytes(&mut self, form: &Form) -> Result<u64, Halt> {
            self.0.bytes(form)
        }
        fn parts(&mut self, modes: &[String]) -> Result<Parts, Halt> {
            self.0.parts(modes)
        }
    }
    let mut machine =
        Small(planted(&[("int8", "int8", 0.5, 100, 0.0), ("int4-rtn", "int4", 0.4, 50, 0.0)]));
    let mut keep = |_: &Record| {};
    let mut asking = Asking::of(&mut machine, Record::default(), &mut keep);
    let decision = search(&mut asking, &ASKED);
    assert_eq!((decision.outcome, decision.form), (Outcome::AllDeclined, None));
    assert_eq!(asking.record().bytes["int4-rtn"], 50, "what would fit is known");
}

#[test]
fn a_form_that_cannot_be_had_is_left_out_with_its_reason() {
    struct Fussy(PlantedMachine);
    impl Machine for Fussy {
        fn rungs(&mut self) -> Vec<Rung> {
            self.0.rungs()
        }
        fn time(&mut self, forms: &[Form], care: Care) -> Result<TimedForms, Halt> {
            self.0.time(forms, care)
        }
        fn scores(&mut self, form: &Form, part: Part) -> Result<Scores, Halt> {
            self.0.scores(form, part)
        }
        fn bytes(&mut self, form: &Form) -> Result<u64, Halt> {
            match form.name.as_str() {
                "int4-rtn" => Err(Halt::Declined("no layer takes it".to_owned())),
                _ => self.0.bytes(form),
            }
        }
        fn parts(&mut self, _: &[String]) -> Result<Parts, Halt> {
            Err(Halt::Declined("it would take too long".to_owned()))
        }
    }
    let mut machine =
        Fussy(planted(&[("int4-rtn", "int4", 0.4, 50, 0.0), ("int4-gptq", "int4", 0.5, 50, 0.0)]));
    let mut keep = |_: &Record| {};
    let decision = search(&mut Asking::of(&mut machine, Record::default(), &mut keep), &ASKED);
    assert_eq!(decision.form, Some(Form::of("int4-gptq")));
    let declined = Fate::Declined("no layer takes it".to_owned());
    assert_eq!(decision.of("int4-rtn").unwrap().fate, declined);
    assert_eq!(decision.taken().unwrap().judged.as_ref().unwrap().verdict, Verdict::Pass);
}

#[test]
fn a_cache_is_taken_where_it_is_faster_and_loses_little() {
    let mode = ("int8", "i8", 0.5, 100, 0.0);
    // Beside int8 and beside float: the factor of the time, and the loss in points.
    let taken = |int8: (f64, f64), float: (f64, f64)| {
        let mut machine = planted(&[mode]);
        machine.caches = vec![("int8", "fp8", int8.0, int8.1), ("float", "fp8", float.0, float.1)];
        let mut keep = |_: &Record| {};
        let mut asking = Asking::of(&mut machine, Record::default(), &mut keep);
        let decision = search(&mut asking, &ASKED);
        let record = asking.record().clone();
        assert_eq!(search(&mut Asking::again(record, &mut |_| {}), &ASKED), decision);
        assert!(machine.places.contains(&(Stage::Caching, [1, 2])));
        decision
    };
    let int8 = Form::of("int8");
    assert_eq!(taken((0.8, 0.0), (0.9, 0.0)).form, Some(int8.with_cache("fp8")));
    assert_eq!(taken((0.8, 5.0), (0.9, 0.0)).form, Some(int8.clone()));
    assert_eq!(taken((0.8, 5.0), (0.2, 0.0)).form, Some(Form::float().with_cache("fp8")));
    let slower = taken((1.0, 0.0), (1.1, 0.0));
    assert_eq!(slower.form, Some(int8.clone()));
    let fate = |form: &Form| slower.of(&form.name).unwrap().fate.clone();
    assert_eq!(fate(&int8.with_cache("fp8")), Fate::NoBetterThan("int8".to_owned()));
    assert_eq!(fate(&Form::float().with_cache("fp8")), Fate::NoBetterThanFloat);
}

/// The samples that judge see more loss than those that choose. Then weights cost one verdict with
/// a cache and one without, and the third is for others.
#[test]
fn caches_leave_verdicts_to_other_weights() {
    let modes = [("int4", "i4", 0.4, 50, 0.0), ("int8", "i8", 0.6, 100, 0.0)];
    let mut machine = planted(&modes);
    let caches = ["fp8", "int8"].map(|codes| ("int4", codes, 0.5, 0.0));
    let others = ["fp8", "int8"].map(|codes| ("float", codes, 1.5, 0.0));
    machine.caches = caches.into_iter().chain(others).collect();
    machine.lost_when_judged = vec![("int4", 5.0)];
    let decision = decide(&mut machine);
    assert_eq!(decision.form, Some(Form::of("int8")), "{decision:#?}");
}
