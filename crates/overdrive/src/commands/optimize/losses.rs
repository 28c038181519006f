//! The loss of the model by each group of layers in each mode, all others in float. It is scanned
//! where that fits the time, else estimated by gradients.
//!
//! A scan judges the model once for each group and mode. An estimate takes a few backward passes
//! for all of them. Whichever it is, the record says it, and mixes are measured as a whole.

use super::machine::OwnMachine;
use super::underway::Counted;
use overdrive::bench::failure::Failure as Unable;
use overdrive::ir::GraphError;
use overdrive::optimize::{Halt, LossSource, Parts};
use overdrive::passes::{Evidence, LayerGroup, Quantization, quantize};
use overdrive::studies::quantization::{Judge, calibrate, loss_estimates};
use std::time::Instant;

/// Samples on which each group is scanned, or losses are estimated.
const SCANNED: u64 = 64;

/// Modes with their meaning for this model.
type Meant<'a> = [(&'a str, Quantization)];

/// The loss of a group in a mode, and the bytes of its codes.
type Found = Vec<((String, String), (f64, u64))>;

/// Fills in what each group of `parts` loses in each mode, and its bytes; `names` are all layers of
/// the model.
pub(super) fn losses(
    machine: &OwnMachine<'_>,
    parts: &mut Parts,
    (names, meant): (&[String], &Meant<'_>),
) -> Result<(), Halt> {
    let mut statistics: Vec<_> = meant.iter().flat_map(|(_, one)| one.statistics()).collect();
    statistics.sort();
    statistics.dedup();
    let evidence = calibrate(machine.backend, &machine.float, &statistics, &machine.samples.seen);
    let evidence = evidence.map_err(|unable| machine.halt(&unable))?;
    let screen = machine.samples.chooser.screening(SCANNED);
    let groups: Vec<LayerGroup> =
        parts.groups().into_iter().map(|group| of(parts, group)).collect();
    // All of the model: a layer that is not named would take the mode too.
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let scanned = scanned((machine, &screen), &groups, (&names, meant), &evidence)?;
    let found = match scanned {
        Some(found) => found,
        None => {
            parts.source = LossSource::Estimated;
            estimated((machine, &screen), &groups, meant, &evidence)?
        }
    };
    for ((group, mode), (lost, bytes)) in found {
        parts.lost.entry(group.clone()).or_default().insert(mode.clone(), lost);
        parts.bytes.entry(group).or_default().insert(mode, bytes);
    }
    Ok(())
}

/// A group with its layers.
fn of(parts: &Parts, group: &str) -> LayerGroup {
    let layers = parts.layers.iter().filter(|facts| facts.group == group);
    let layers = layers.map(|facts| facts.name.clone()).collect();
    LayerGroup { name: group.to_owned(), layers }
}

/// The losses by judging each group in each mode. `None` as soon as that would take more than its
/// share of the time that is left.
fn scanned(
    (machine, screen): (&OwnMachine<'_>, &Judge<'_>),
    groups: &[LayerGroup],
    (names, meant): (&[&str], &Meant<'_>),
    evidence: &Evidence,
) -> Result<Option<Found>, Halt> {
    let halt = |unable: Unable| machine.halt(&unable);
    let graph = &machine.subject.template.graph;
    let (begun, allowed_s) = (Instant::now(), machine.allowed_s());
    let float = [screen.scores(graph).map_err(halt)?];
    let asked = groups.iter().flat_map(|group| meant.iter().map(move |mode| (group, mode)));
    let all = groups.len() * meant.len();
    let mut found = Found::new();
    for (done, (group, (mode, meant))) in asked.enumerate() {
        let one_s = begun.elapsed().as_secs_f64() / (done + 1) as f64;
        if one_s * (all + 1) as f64 > allowed_s {
            return Ok(None);
        }
        machine.going()?;
        machine.underway.comes_to(Counted::Scan, [done + 1, all]);
        machine.tell("judging", &format!("{} in {mode}", group.name));
        let layers: Vec<&str> = group.layers.iter().map(String::as_str).collect();
        let made = quantize(graph, &meant.only(&layers, names), evidence);
        let made = made.map_err(|error: GraphError| Halt::Declined(error.to_string()))?;
        if made.layers.len() == layers.len() {
            let scores = [screen.scores(&made.graph).map_err(halt)?];
            let lost = screen.metric.loss(&float, &scores).value;
            let bytes = made.layers.iter().map(|l| l.code_bytes + l.scale_bytes).sum();
            found.push(((group.name.clone(), (*mode).to_owned()), (lost, bytes)));
        }
    }
    Ok(Some(found))
}

/// The losses by gradients. Passes end when their share of the time is over.
fn estimated(
    (machine, screen): (&OwnMachine<'_>, &Judge<'_>),
    groups: &[LayerGroup],
    meant: &Meant<'_>,
    evidence: &Evidence,
) -> Result<Found, Halt> {
    machine.going()?;
    let (begun, allowed_s) = (Instant::now(), machine.allowed_s());
    let mut halted = None;
    let mut going = |done: usize, all: usize| {
        machine.underway.comes_to(Counted::Passes, [done, all]);
        machine.tell("estimating", "what layers lose");
        halted = machine.going().err();
        halted.is_none() && begun.elapsed().as_secs_f64() < allowed_s
    };
    let found = loss_estimates(screen, (groups, meant), evidence, &mut going);
    let found = found.map_err(|unable| machine.halt(&unable))?;
    if let Some(halt) = halted {
        return Err(halt);
    }
    let key = |group: &str, mode: &str| (group.to_owned(), mode.to_owned());
    let found = found.into_iter();
    Ok(found.map(|e| (key(&e.part.group, &e.part.mode), (e.lost, e.part.bytes))).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::evidence::Named;
    use super::*;
    use crate::cli::MetricName;
    use crate::commands::optimize::underway::Underway;
    use overdrive::bench::clock::SystemClock;
    use overdrive::cpu::CpuBackend;
    use overdrive::optimize::{
        Asked, Asking, Care, Effort, Form, Machine, Part, Record, Rung, Stage, Target, TimedForms,
        search,
    };
    use overdrive::studies::quantization::{Metric, Scores};
    use overdrive_process::Stop;
    use std::collections::BTreeMap;
    use std::time::Duration;

    /// A machine that tries no more than two modes.
    struct OfTwoModes<'a>(OwnMachine<'a>);

    const MODES: [&str; 2] = ["int8-weights", "mxfp4"];

    impl Machine for OfTwoModes<'_> {
        fn rungs(&mut self) -> Vec<Rung> {
            let mut rungs = self.0.rungs();
            rungs.retain(|rung| MODES.contains(&rung.mode.as_str()));
            rungs
        }
        fn begins(&mut self, stage: Stage, place: [usize; 2]) {
            self.0.begins(stage, place);
        }
        fn time(&mut self, forms: &[Form], care: Care) -> Result<TimedForms, Halt> {
            self.0.time(forms, care)
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

    #[test]
    fn there_are_mixes_where_a_scan_does_not_fit_the_time() {
        let backend = CpuBackend::new(Some(1)).unwrap();
        let (model, data) = ("digits-mlp", Some("digits"));
        let named = Named { model, data, shapes: &[], batches: 2, head: false, seed: 1 };
        let subject = named.subject().unwrap();
        let samples = named.samples(Some(MetricName::Perplexity), (&backend, &subject)).unwrap();
        let (clock, underway, stop) = (SystemClock::new(), Underway::new(), Stop::default());
        for (share, source) in [(1.0, LossSource::Scanned), (0.0, LossSource::Estimated)] {
            let of = (&backend as _, &subject, &samples);
            let with = (&clock as _, &underway, &stop);
            let allowed = Duration::from_secs(1 << 20);
            let machine = OwnMachine::new(of, with, (Effort::Normal, 1), allowed);
            let machine = machine.unwrap_or_else(|_| panic!("the model has its sizes"));
            let mut machine = OfTwoModes(machine);
            machine.0.share = share;
            let [float, coarse] = [Form::float(), Form::of("mxfp4")]
                .map(|form| [machine.scores(&form, Part::Choosing).unwrap()]);
            // Within half of what four bits lose, no more than some layers have them.
            let limit = 0.5 * Metric::Perplexity.loss(&float, &coarse).value;
            let asked = Asked {
                target: Target::Size,
                decode: None,
                metric: Metric::Perplexity,
                limit,
                error: 0.1,
                effort: Effort::Normal,
            };
            let mut keep = |_: &Record| {};
            let mut asking = Asking::of(&mut machine, Record::default(), &mut keep);
            let _ = search(&mut asking, &asked);
            let record = asking.record();
            let parts = record.parts.values().next().unwrap();
            assert_eq!(parts.source, source);
            assert_eq!(parts.lost.len(), 3, "{:?}", parts.lost);
            for (group, lost) in &parts.lost {
                assert_eq!(lost.values().filter(|lost| lost.is_finite()).count(), 2, "{lost:?}");
                let bytes = &parts.bytes[group];
                assert!(bytes["mxfp4"] < bytes["int8-weights"], "{group}: {bytes:?}");
            }
            let is_mixed = |layers: &BTreeMap<String, String>| {
                MODES.iter().all(|mode| layers.values().any(|taken| taken == mode))
            };
            assert!(record.mixes.values().any(is_mixed), "{:?}", record.mixes);
        }
    }
}
