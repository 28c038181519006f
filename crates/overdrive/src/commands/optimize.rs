//! `overdrive optimize`: from the user's model to the form of it that she should deploy, with the
//! evidence.
//!
//! The search itself is in the crate `overdrive-optimize`; here are its machine, the output folder,
//! and the messages. Invariant: a model is written only if it passed, and beside its evidence.

mod advice;
mod answers;
mod bounds;
mod evidence;
mod exported;
mod ladder;
mod losses;
mod machine;
mod matrix;
mod mixes;
mod parts;
mod replay;
mod sample_parts;
mod searched;
mod step;
mod told;
mod underway;
mod verdict;
mod written;

use super::quantize::{Samples, Subject};
use crate::asked_attention::{Changed, note_left_behind};
use crate::cli::Optimize;
use crate::devices;
use crate::engines::Contestants;
use crate::failure::Failure;
use crate::invoked::{command_line, command_with};
use crate::model::{self, Model};
use crate::terminal::{note, say, tell};
use advice::{Answers, CanJudge};
use bounds::Bounds;
use evidence::{About, Evidence, NAME, Named};
use machine::OwnMachine;
use overdrive::bench::clock::SystemClock;
use overdrive::bench::exit::Exit;
use overdrive::files::Place;
use overdrive::ir::Backend;
use overdrive::optimize::{Asked, Decision, Effort, Outcome, Target};
use overdrive::studies::Device;
use overdrive::studies::quantization::Metric;
use overdrive_process::Stop;
use searched::searched;
use std::path::Path;
use std::time::Duration;
use step::DecodingStep;
use underway::Underway;
use written::{MODEL, PAGES, Places, described};

/// Samples of a call, or sequences of a step, whose throughput counts.
const MANY: u32 = 32;

pub(crate) fn optimize(arguments: &Optimize, stop: &Stop) -> Result<Exit, Failure> {
    if let Some(file) = &arguments.replay {
        return replay::replay(arguments, file, stop);
    }
    let (Some(name), Some(out)) = (&arguments.model, &arguments.out) else {
        return Err(Failure::bad_input("expected MODEL and -o DIR, or --replay FILE"));
    };
    let target = Target::from(arguments.target);
    let shapes = shapes(name, arguments, target)?;
    let places = Places::claim(arguments, (name, out))?;
    note_left_behind(name, Changed::Rounded);
    let opened = devices::open(&arguments.machine)?;
    let backend = opened.backend.as_ref();
    let named = Named {
        model: name,
        data: arguments.data.as_deref(),
        shapes: &shapes,
        batches: arguments.batches,
        head: arguments.head,
        seed: arguments.machine.seed,
    };
    let subject = named.subject()?;
    places.exports.check(&subject)?;
    let samples = named.samples(arguments.metric, (backend, &subject))?;
    let asked = asked(arguments, &subject, &samples, target)?;
    let sequences = if target == Target::Throughput { MANY as usize } else { 1 };
    let step = asked.decode.map(|n| DecodingStep::of(&subject, (n, sequences), backend));
    let step = step.transpose()?;
    let about = About::of(&named, (&subject, &samples), described(&opened, arguments.machine.isa))?;
    let mut evidence = Evidence::begin(command_line(), asked, about);
    if arguments.resume {
        resume(&mut evidence, &out.join(NAME))?;
    }
    let range = [samples.least, samples.judge.samples()];
    let answers = match samples.judge.is_of_answers() {
        Ok(true) => Answers::OneASample,
        Ok(false) => Answers::None,
        Err(unable) => return Err(Failure::bad_input(unable.reason)),
    };
    note!("note: {}", CanJudge { evidence: &evidence, range }.before(answers));
    let contestants = Contestants::beside(&opened, &arguments.machine);
    let reference = devices::reference(&arguments.machine)?;
    let gpu = opened.described.is_some().then(|| backend.description());
    let started = contestants.start(None, (reference.description(), gpu))?;
    let engines = contestants.devices(&started).into_iter();
    let engines = engines.map(|(_, device)| (device.backend.name().to_owned(), device.backend));
    let _whole = stop.heed();
    let (clock, underway) = (SystemClock::new(), Underway::new());
    let mut machine = OwnMachine::new(
        (backend, &subject, &samples),
        (&clock, &underway, stop),
        (asked.effort, arguments.machine.seed),
        budget(arguments, asked.effort),
    )?;
    machine.step = step;
    machine.time.caches = step.is_some() && target != Target::Size;
    if step.is_none() {
        machine.engines = engines.collect();
    }
    if evidence.bounds.is_none() {
        machine.tell("measuring", "the rates of the device");
        let own = Device { backend, threads: opened.threads };
        let seed = arguments.machine.seed;
        let timed = step.map(|step| step.in_f32()).transpose().map_err(Failure::harness)?;
        let timed = timed.as_ref().unwrap_or(&machine.float);
        evidence.bounds = Bounds::of((timed, own), &reference, &clock, (seed, stop));
    }
    let decision = searched(&mut machine, &mut evidence, &places.evidence, range)?;
    let mut unwritten = Vec::new();
    if decision.outcome == Outcome::Taken {
        let form = decision.form.as_ref().expect("what is taken has a form");
        unwritten = written::fill((places.model, places.exports), (&mut machine, form))?;
        evidence.artefact = written::digest(form, out)?;
    }
    drop(machine);
    underway.finish();
    let exit = finish((&mut evidence, &decision), &places.evidence, out)?;
    written::check_all(&unwritten).map(|()| exit)
}

/// Takes over the measurements of an earlier search of the same subject.
fn resume(evidence: &mut Evidence, file: &Path) -> Result<(), Failure> {
    let earlier = Evidence::read(file)?;
    let refused = |reason| {
        Failure::bad_input(format!(
            "cannot resume from `{}`: {reason}; leave out --resume to begin again",
            file.display()
        ))
    };
    earlier.about.check(&evidence.about, true).map_err(refused)?;
    let (before, asked) = (earlier.asked, evidence.asked);
    if before.metric != asked.metric {
        return Err(refused(format!("its metric is {}", before.metric.name())));
    }
    if before.decode != asked.decode {
        let before = before.decode.map_or("no step".to_owned(), |n| n.to_string());
        return Err(refused(format!("its --decode is {before}")));
    }
    // A higher effort tries more; a lower one has no place for forms that were tried.
    if before.effort > asked.effort {
        let [before, asked] = [before, asked].map(|of| format!("{:?}", of.effort).to_lowercase());
        return Err(refused(format!(
            "its effort is {before}, here {asked}: go on with --effort {before}"
        )));
    }
    (evidence.record, evidence.bounds) = (earlier.record, earlier.bounds);
    evidence.judged = earlier.judged;
    Ok(())
}

/// Writes the decision next to the model, and prints it.
fn finish(
    (evidence, decision): (&mut Evidence, &Decision),
    place: &Place,
    out: &Path,
) -> Result<Exit, Failure> {
    evidence.decided(decision)?;
    let pages = [told::html(evidence, decision)?, told::markdown(evidence, decision)];
    place.put(NAME, evidence.to_json()?.as_bytes()).map_err(Failure::harness)?;
    for (name, page) in PAGES.iter().zip(pages) {
        place.put(name, page.as_bytes()).map_err(Failure::harness)?;
    }
    place.finish().map_err(Failure::harness)?;
    for section in told::sections(evidence, decision) {
        tell!("{}", section.terminal())?;
    }
    let out = out.display();
    match decision.outcome {
        Outcome::Taken => {
            let form = decision.form.as_ref().expect("what is taken has a form");
            let model = match form.of_weights().is_float() {
                true => format!("`{}`, as it is", evidence.about.model),
                false => format!("`{out}/{MODEL}`"),
            };
            say!("the model: {model}; the evidence: `{out}/{}`", PAGES[0])?;
        }
        Outcome::Unfinished => {
            return Err(Failure::interrupted(format!(
                "what was measured by then is in `{out}/{NAME}`; `{}` goes on",
                command_with(&["--resume"], "--resume")
            )));
        }
        Outcome::AllDeclined => {
            let why = verdict::verdict(evidence, decision).join("; ");
            return Err(Failure::harness(format!("{why}; the evidence: `{out}/{}`", PAGES[0])));
        }
        _ => {
            let first = verdict::verdict(evidence, decision).into_iter().next();
            say!("{}; the evidence: `{out}/{}`", first.unwrap_or_default(), PAGES[0])?;
        }
    }
    Ok(exit(decision.outcome))
}

/// The exit code for a script.
fn exit(outcome: Outcome) -> Exit {
    match outcome {
        Outcome::Taken => Exit::Fine,
        Outcome::KeepFloat => Exit::Regression,
        Outcome::NoneWithin => Exit::WrongOutputs,
        Outcome::Undecided => Exit::Inconclusive,
        Outcome::AllDeclined => Exit::Harness,
        Outcome::Unfinished => Exit::Interrupted,
    }
}

/// The sizes that the user gives; where the throughput counts also a batch.
fn shapes(
    name: &str,
    arguments: &Optimize,
    target: Target,
) -> Result<Vec<(String, usize)>, Failure> {
    let mut shapes = arguments.shapes.clone();
    if target == Target::Throughput && arguments.decode.is_none() {
        let model: Model = model::load(name)?;
        let (batch, size) = model.batch(MANY)?;
        if shapes.iter().all(|(known, _)| *known != batch) {
            note!("note: timed at {batch}={size}; --shape {batch}=N takes another size");
            shapes.push((batch, size));
        }
    }
    Ok(shapes)
}

/// The request to the search.
fn asked(
    arguments: &Optimize,
    subject: &Subject,
    samples: &Samples<'_>,
    target: Target,
) -> Result<Asked, Failure> {
    let metric = samples.judge.metric;
    let limit = match (arguments.max_loss, metric) {
        (Some(limit), _) => limit,
        (None, Metric::Top1) => 0.5,
        (None, Metric::Perplexity) => 1.0,
        (None, Metric::Cosine) => 0.005,
        (None, Metric::SquaredError) => {
            let scores = samples.chooser.scores(&subject.template.graph);
            let scores = scores.map_err(|unable| Failure::bad_input(unable.reason))?;
            0.01 * metric.of(&[scores]).value
        }
    };
    let error = 1.0 - arguments.confidence;
    let decode = arguments.decode.map(|tokens| tokens as usize);
    Ok(Asked { target, decode, metric, limit, error, effort: arguments.effort.into() })
}

/// Until when new forms are tried.
fn budget(arguments: &Optimize, effort: Effort) -> Duration {
    let minutes = arguments.minutes.unwrap_or(match effort {
        Effort::Quick => 3.0,
        Effort::Normal => 10.0,
        Effort::High => 60.0,
    });
    Duration::try_from_secs_f64(60.0 * minutes).unwrap_or(Duration::from_secs(1 << 32))
}
