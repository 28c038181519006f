//! `--sensitivity` and `--search`: what each layer costs alone, and which layer should take which
//! mode.

use super::chosen::{Chosen, harness, refused, rules};
use super::judged::Samples;
use super::subject::Subject;
use super::tables;
use super::times::slowdown;
use crate::cli::Quantize;
use crate::failure::Failure;
use crate::terminal::{say, tell};
use overdrive::bench::clock::SystemClock;
use overdrive::passes::QuantizationMode;
use overdrive::studies::quantization::{Candidate, Conditions, Search, search, sensitivities};
use overdrive_process::Stop;

/// Modes that layers may take unless the user says otherwise.
pub(super) const MODES: [&str; 2] = ["int8-dynamic", "int4-gptq"];
/// Samples on which each layer is scanned.
const SCANNED: u64 = 64;
/// Models along the path of a search that are made and timed.
const POINTS: usize = 8;

/// The outcome of a scan or a search.
pub(super) enum Choice {
    /// The model to write.
    Chosen(Box<Chosen>),
    /// Only the scan was asked for.
    Scanned,
    /// No smaller model keeps the user's limit.
    NoneWithin,
    /// Those that do are slower than the user allows.
    TooSlow,
}

/// Scans, and where a search was asked for picks the smallest model of the front that keeps the
/// limit.
pub(super) fn choose(
    (arguments, stop): (&Quantize, &Stop),
    subject: &Subject,
    samples: &Samples<'_>,
    modes: &[&'static QuantizationMode],
) -> Result<Choice, Failure> {
    if let Some(mode) =
        modes.iter().find(|mode| mode.quantization().range != modes[0].quantization().range)
    {
        let text = format!(
            "`{}` and `{}` find ranges in different ways: expected modes that agree",
            modes[0].name, mode.name
        );
        return Err(Failure::bad_input(text));
    }
    let meant =
        |mode: &&'static QuantizationMode| (*mode, subject.quantization(mode.quantization()));
    let meant: Vec<_> = modes.iter().map(meant).collect();
    let _rows_so_far = stop.heed();
    let screening = samples.chooser.screening(SCANNED);
    let scanned = sensitivities(&screening, &meant, &samples.seen, stop).map_err(refused)?;
    say!("{}", tables::sensitivities(screening.metric, &scanned))?;
    if stop.is_requested() {
        return Err(Failure::interrupted(
            "the layers scanned by then stand above; nothing was written",
        ));
    }
    if !arguments.search {
        return Ok(Choice::Scanned);
    }
    let clock = SystemClock::new();
    let conditions =
        Conditions { clock: &clock, rules: rules(arguments), seed: arguments.machine.seed, stop };
    let asked = Search { modes: &meant, seen: &samples.seen, points: POINTS };
    let found =
        search(&samples.chooser, asked, &scanned, &*samples.draw, conditions).map_err(harness)?;
    tell!("{}", tables::front(samples.chooser.metric, &subject.template.graph, &found))?;
    if stop.is_requested() {
        return Err(Failure::interrupted(
            "the models made by then stand above; nothing was written",
        ));
    }
    let float =
        found.iter().find(|candidate| candidate.made.is_none()).and_then(|float| float.time_ns);
    let within = |candidate: &&Candidate| {
        let lost = candidate.lost.value;
        candidate.made.is_some()
            && lost.is_finite()
            && arguments.max_loss.is_none_or(|limit| lost <= limit)
    };
    let mut smallest: Vec<&Candidate> =
        found.iter().filter(|candidate| candidate.on_front).filter(within).collect();
    smallest.sort_by_key(|candidate| candidate.bytes);
    let Some(first) = smallest.first() else {
        let needed =
            if arguments.max_loss.is_some() { "keeps --max-loss" } else { "has finite outputs" };
        say!("no mix of {} {needed}: nothing was written", names(modes))?;
        return Ok(Choice::NoneWithin);
    };
    let slowdown = |candidate: &Candidate| slowdown(float, candidate.time_ns);
    let most = arguments.max_slowdown;
    let is_quick =
        |candidate: &&&Candidate| slowdown(candidate).is_none_or(|found| found.low <= most);
    let Some(best) = smallest.iter().find(is_quick) else {
        let found = slowdown(first).map_or(String::new(), |found| found.to_string());
        say!(
            "every mix that keeps the loss is slower than --max-slowdown {most} allows, the \
             smallest takes {found} the \
             float model's time: nothing was written; --max-slowdown {:.1} allows it",
            slowdown(first).map_or(most, |found| found.high.max(0.1) + 0.05)
        )?;
        return Ok(Choice::TooSlow);
    };
    let time = slowdown(best).map_or("time not measured".to_owned(), |found| found.against_float());
    tell!("taken: {}; {time}", tables::assignment(best))?;
    if !std::ptr::eq(*first, *best) {
        let time = slowdown(first).map_or(String::new(), |found| found.against_float());
        tell!("left: the smaller {}; {time}; --max-slowdown allows it", tables::assignment(first))?;
    }
    let (made, quantization) = (best.made.clone(), best.quantization.clone());
    let chosen = made.zip(quantization).map(|(made, quantization)| Chosen {
        name: format!("search of {}", names(modes)),
        quantization,
        made,
        trained_as_long: None,
    });
    Ok(Choice::Chosen(Box::new(chosen.expect("what is not the float model was made"))))
}

fn names(modes: &[&'static QuantizationMode]) -> String {
    modes.iter().map(|mode| mode.name).collect::<Vec<_>>().join(", ")
}
