//! Mixed precision: which layer takes which mode, so that nothing else is smaller, as near and as
//! fast.
//!
//! Layers step from f32 through ever smaller forms. The next step is always the one with the least
//! loss per saved byte, by the scan of single layers. The scan only orders the steps. Models along
//! this path, and every mode on all layers, are built, judged and timed as a whole. The front is
//! taken from these.

use super::estimate::Estimate;
use super::judge::{Judge, bound};
use super::sensitivity::Sensitivity;
use super::{Conditions, Footprint, apply, latency};
use overdrive_bench::failure::Failure;
use overdrive_ir::{Graph, Tensor};
use overdrive_passes::{Preparation, Quantization, QuantizationMode, Quantized, layers};
use std::collections::BTreeMap;

/// The mode of each layer that has one; every other stays in f32.
pub type Assignment = BTreeMap<String, &'static str>;

/// A model that was made, judged and timed.
#[derive(Debug)]
pub struct Candidate {
    /// The mode of each layer; empty for the float model.
    pub assignment: Assignment,
    /// The quantized model; `None` for the float model.
    pub made: Option<Quantized>,
    /// How, to keep beside the weights.
    pub quantization: Option<Quantization>,
    /// Its loss, paired over the judge's samples.
    pub lost: Estimate,
    /// Bytes of all states.
    pub bytes: u64,
    /// Median time of a call in ns, with its interval.
    pub time_ns: Option<Estimate>,
    /// Whether nothing else is better in one of the three and as good in the others.
    pub on_front: bool,
}

/// The input of a search.
#[derive(Copy, Clone)]
pub struct Search<'a> {
    /// Modes that layers may take, with what each means for this model.
    pub modes: &'a [(&'static QuantizationMode, Quantization)],
    /// Batches that calibrate.
    pub seen: &'a [Vec<Tensor>],
    /// Models along the path that are made.
    pub points: usize,
}

/// The models of a search, largest first, the float one included; those of the front are marked.
///
/// # Errors
/// When the back end cannot run one of them.
pub fn search(
    judge: &Judge<'_>,
    search: Search<'_>,
    scanned: &[Sensitivity],
    draw: &dyn Fn(u64) -> Vec<Tensor>,
    conditions: Conditions<'_>,
) -> Result<Vec<Candidate>, Failure> {
    let steps = path(scanned);
    let mut assignments: Vec<Assignment> = vec![Assignment::new()];
    let picked = |i: usize| (i * steps.len()).div_ceil(search.points.max(1));
    assignments.extend((1..=search.points).map(|i| after(&steps, picked(i))));
    assignments.extend(search.modes.iter().map(|mode| {
        let takes = scanned.iter().filter(|s| s.mode == mode.0.name);
        takes.map(|s| (s.layer.clone(), mode.0.name)).collect()
    }));
    let mut seen = Vec::new();
    assignments.retain(|assignment| {
        let new = !seen.contains(assignment);
        seen.push(assignment.clone());
        new
    });
    let float = [judge.scores(&judge.template.graph)?];
    let going = || !conditions.stop.is_requested();
    let made = assignments.into_iter().take_while(|_| going());
    let made = made.map(|assignment| candidate(judge, search, &float, assignment));
    let mut candidates = made.collect::<Result<Vec<_>, _>>()?;
    candidates.sort_by_key(|candidate| std::cmp::Reverse(candidate.bytes));
    let graphs = candidates.iter().map(|candidate| match &candidate.made {
        Some(made) => bound(judge.template, &made.graph),
        None => bound(judge.template, &judge.template.graph),
    });
    let graphs: Vec<Graph> = graphs.collect::<Result<_, _>>()?;
    let timed = match going() {
        true => {
            latency(judge.backend, &graphs.iter().collect::<Vec<_>>(), &mut [], draw, conditions)?
        }
        false => vec![],
    };
    for (candidate, timed) in candidates.iter_mut().zip(timed) {
        let series =
            timed.outcome.measurement().and_then(|measurement| measurement.latency.as_ref());
        candidate.time_ns = series.map(|series| {
            let summary = &series.summary;
            // Too few samples for an interval: all that is known is where they lay.
            let ends = summary
                .median_interval
                .as_ref()
                .map(|interval| [interval.low_ns, interval.high_ns]);
            let ([low, high], value) =
                (ends.unwrap_or([summary.min_ns, summary.max_ns]), summary.median_ns);
            Estimate { value, low, high }
        });
    }
    let front: Vec<bool> = candidates
        .iter()
        .map(|one| !candidates.iter().any(|other| dominates(other, one)))
        .collect();
    candidates
        .iter_mut()
        .zip(front)
        .for_each(|(candidate, on_front)| candidate.on_front = on_front);
    Ok(candidates)
}

/// Steps from f32 on, cheapest first: the layer and its next, smaller mode.
fn path(scanned: &[Sensitivity]) -> Vec<(String, &'static str)> {
    let mut now: BTreeMap<&str, (f64, u64)> =
        scanned.iter().map(|s| (s.layer.as_str(), (0.0, s.float_bytes))).collect();
    let mut steps = Vec::new();
    loop {
        let price = |s: &&Sensitivity| {
            let (lost, bytes) = now[s.layer.as_str()];
            let price = (s.lost.value - lost) / (bytes - s.bytes) as f64;
            // A step that breaks a model is the dearest, whatever the sign of its NaN.
            if price.is_nan() { f64::INFINITY } else { price }
        };
        let smaller = scanned.iter().filter(|s| s.bytes < now[s.layer.as_str()].1);
        let Some(next) = smaller.min_by(|a, b| price(a).total_cmp(&price(b))) else { return steps };
        now.insert(&next.layer, (next.lost.value, next.bytes));
        steps.push((next.layer.clone(), next.mode));
    }
}

/// The assignment after the first `count` steps.
fn after(steps: &[(String, &'static str)], count: usize) -> Assignment {
    steps[..count.min(steps.len())].iter().cloned().collect()
}

fn candidate(
    judge: &Judge<'_>,
    search: Search<'_>,
    float: &[super::Scores],
    assignment: Assignment,
) -> Result<Candidate, Failure> {
    let graph = &judge.template.graph;
    let none = Estimate::around(0.0, 0.0);
    if assignment.is_empty() {
        let bytes = Footprint::float(graph).total();
        let (made, quantization) = (None, None);
        return Ok(Candidate {
            assignment,
            made,
            quantization,
            lost: none,
            bytes,
            time_ns: None,
            on_front: false,
        });
    }
    let (found, _) = layers(graph).map_err(|e| Failure::failed(e.to_string()))?;
    let of = |name: &str| {
        let (_, meant) =
            search.modes.iter().find(|(mode, _)| Some(&mode.name) == assignment.get(name))?;
        meant.of(name)
    };
    let (_, first) = search.modes.first().expect("a search has modes");
    let layers = found.iter().map(|layer| (layer.name.clone(), of(&layer.name))).collect();
    let quantization = Quantization { layers, ..first.clone() };
    let made =
        apply(judge.backend, judge.template, (Preparation::None, &quantization), search.seen)?;
    let lost = judge.metric.loss(float, &[judge.scores(&made.graph)?]);
    let bytes = Footprint::of(&made).total();
    let (made, quantization) = (Some(made), Some(quantization));
    Ok(Candidate { assignment, made, quantization, lost, bytes, time_ns: None, on_front: false })
}

/// Whether one is as good in loss, bytes and time, and better in one of them. Times whose intervals
/// overlap are equal; a loss that is not finite is beaten by every other.
fn dominates(one: &Candidate, other: &Candidate) -> bool {
    if !other.lost.value.is_finite() {
        return one.lost.value.is_finite();
    }
    let slower = |a: &Candidate, b: &Candidate| match (a.time_ns, b.time_ns) {
        (Some(a), Some(b)) => a.low > b.high,
        (a, b) => a.is_none() && b.is_some(),
    };
    let as_good =
        one.lost.value <= other.lost.value && one.bytes <= other.bytes && !slower(one, other);
    as_good && (one.lost.value < other.lost.value || one.bytes < other.bytes || slower(other, one))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scan(layer: &str, mode: &'static str, lost: f64, bytes: u64) -> Sensitivity {
        let lost = Estimate::around(lost, 0.0);
        Sensitivity { layer: layer.into(), mode, lost, float_bytes: 400, bytes }
    }

    #[test]
    fn cheap_bytes_go_first_and_layers_only_shrink() {
        let scanned = [
            scan("a", "int8", 0.01, 100),
            scan("a", "int4", 0.02, 50),
            scan("b", "int8", 1.0, 100),
            scan("b", "int4", 9.0, 50),
        ];
        let steps = path(&scanned);
        let names: Vec<(&str, &str)> =
            steps.iter().map(|(layer, mode)| (layer.as_str(), *mode)).collect();
        assert_eq!(names, [("a", "int8"), ("a", "int4"), ("b", "int8"), ("b", "int4")]);
        assert_eq!(after(&steps, 3), [("a".to_owned(), "int4"), ("b".to_owned(), "int8")].into());
        assert_eq!(after(&steps, 0), Assignment::new());
        for broken in [f64::NAN, -f64::NAN] {
            let scanned = [scan("a", "int8", broken, 100), scan("b", "int8", 1.0, 100)];
            assert_eq!(path(&scanned)[0].0, "b", "a layer that breaks the model goes last");
        }
    }

    #[test]
    fn the_front_is_what_nothing_beats_in_all_three() {
        let candidate = |lost: f64, bytes: u64, time: f64| Candidate {
            assignment: Assignment::new(),
            made: None,
            quantization: None,
            lost: Estimate::around(lost, 0.1),
            bytes,
            time_ns: Some(Estimate::around(time, 1.0)),
            on_front: false,
        };
        let float = candidate(0.0, 400, 100.0);
        assert!(!dominates(&candidate(0.1, 100, 50.0), &float), "it lost something");
        assert!(
            dominates(&candidate(0.0, 100, 101.0), &float),
            "times that cannot be told apart are equal"
        );
        assert!(!dominates(&candidate(0.0, 100, 110.0), &float), "it is slower");
        assert!(dominates(&candidate(0.1, 100, 50.0), &candidate(0.1, 100, 60.0)));
        let broken = candidate(f64::NAN, 1, 1.0);
        assert!(dominates(&float, &broken) && !dominates(&broken, &float));
    }
}
