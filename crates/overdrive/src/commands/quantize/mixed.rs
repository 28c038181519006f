//! `--sensitivity` and `--search`: what each layer costs alone, and which layer should take which mode.

use super::samples::Samples;
use super::{Chosen, Failure, harness, refused, rules, tables};
use crate::cli::Quantize;
use overdrive::bench::clock::SystemClock;
use overdrive::passes::QuantizationMode;
use overdrive::studies::Template;
use overdrive::studies::quantization::{Candidate, Search, search, sensitivities};

/// Modes that layers may take unless the user says otherwise.
pub(super) const MODES: [&str; 2] = ["int8-dynamic", "int4-gptq"];
/// Samples on which each layer is scanned.
const SCANNED: u64 = 64;
/// Models along the path of a search that are made and timed.
const POINTS: usize = 8;

/// What became of a scan or a search.
pub(super) enum Choice {
    /// The model to write.
    Chosen(Box<Chosen>),
    /// Only the scan was asked for.
    Scanned,
    /// No smaller model keeps the user's limit.
    NoneWithin,
}

/// Scans, and where a search was asked for picks the smallest model of the front that keeps the limit.
pub(super) fn choose(
    arguments: &Quantize,
    template: &Template,
    samples: &Samples<'_>,
    modes: &[&'static QuantizationMode],
) -> Result<Choice, Failure> {
    if let Some(mode) = modes.iter().find(|mode| mode.quantization().range != modes[0].quantization().range) {
        let text = format!(
            "`{}` and `{}` find ranges in different ways: expected modes that agree",
            modes[0].name, mode.name
        );
        return Err(Failure::bad_input(text));
    }
    let screening = samples.chooser.screening(SCANNED);
    let scanned = sensitivities(&screening, modes, &samples.seen).map_err(refused)?;
    println!("{}", tables::sensitivities(screening.metric, &scanned));
    if !arguments.search {
        return Ok(Choice::Scanned);
    }
    let clock = SystemClock::new();
    let session = (&clock as _, rules(arguments), arguments.machine.seed);
    let asked = Search { modes, seen: &samples.seen, points: POINTS };
    let found = search(&samples.chooser, asked, &scanned, &*samples.draw, session).map_err(harness)?;
    println!("{}", tables::front(samples.chooser.metric, &template.graph, &found));
    let within = |candidate: &&Candidate| {
        candidate.made.is_some() && arguments.max_loss.is_none_or(|limit| candidate.lost.value <= limit)
    };
    let smallest = found.iter().filter(|candidate| candidate.on_front).filter(within);
    let Some(best) = smallest.min_by_key(|candidate| candidate.bytes) else {
        println!("no mix of {} keeps --max-loss: nothing was written", names(modes));
        return Ok(Choice::NoneWithin);
    };
    println!("taken: {}", tables::assignment(best));
    let (made, quantization) = (best.made.clone(), best.quantization.clone());
    let chosen = made.zip(quantization).map(|(made, quantization)| Chosen {
        name: format!("search of {}", names(modes)),
        quantization,
        made,
    });
    Ok(Choice::Chosen(Box::new(chosen.expect("what is not the float model was made"))))
}

fn names(modes: &[&'static QuantizationMode]) -> String {
    modes.iter().map(|mode| mode.name).collect::<Vec<_>>().join(", ")
}
