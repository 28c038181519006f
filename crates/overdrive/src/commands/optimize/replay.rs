//! `--replay`: the decision again, from what was measured; with -o the model again too.

use super::evidence::{self, About, Evidence};
use super::machine::OwnMachine;
use super::told;
use super::underway::Underway;
use super::verdict::verdict;
use super::written::{MODEL, Places, check_all, described, fill};
use crate::cli::Optimize;
use crate::devices;
use crate::failure::Failure;
use crate::terminal::{say, tell};
use overdrive::bench::clock::SystemClock;
use overdrive::bench::exit::Exit;
use overdrive::optimize::{Asking, Decision, Outcome, Record, search};
use overdrive_process::Stop;
use std::path::Path;
use std::time::Duration;

pub(super) fn replay(arguments: &Optimize, file: &Path, stop: &Stop) -> Result<Exit, Failure> {
    let mut stored = Evidence::read(file)?;
    let mut keep = |_: &Record| {};
    let decision = search(&mut Asking::again(stored.record.clone(), &mut keep), &stored.asked);
    for section in told::sections(&stored, &decision) {
        tell!("{}", section.terminal())?;
    }
    let before = std::mem::take(&mut stored.decision);
    stored.decided(&decision)?;
    let first = verdict(&stored, &decision).into_iter().next().unwrap_or_default();
    match (before.is_null(), before == stored.decision) {
        (true, _) => say!("{first}; the file has no decision, because its search did not end")?,
        (false, true) => say!("{first}; the same decision as the file's, figure by figure")?,
        (false, false) => {
            say!(
                "{first}; NOT the decision of the file: it was changed, or is of another version"
            )?;
            return Ok(Exit::WrongOutputs);
        }
    }
    match (&arguments.out, decision.outcome) {
        (Some(out), Outcome::Taken) => again(arguments, (&stored, &decision), out, stop),
        (Some(_), _) => Err(Failure::bad_input("nothing was taken, so there is no model to make")),
        (None, _) => Ok(Exit::Fine),
    }
}

/// Makes and writes the model again, and compares its bytes.
fn again(
    arguments: &Optimize,
    (stored, decision): (&Evidence, &Decision),
    out: &Path,
    stop: &Stop,
) -> Result<Exit, Failure> {
    let about = &stored.about;
    let form = decision.form.as_ref().expect("what is taken has a form");
    if form.of_weights().is_float() {
        return Err(Failure::bad_input(format!(
            "the weights of {} are those of `{}`, so there is no model to make",
            form.said(),
            about.model
        )));
    }
    let places = Places::claim(arguments, (&about.model, out))?;
    let opened = devices::open(&arguments.machine)?;
    let backend = opened.backend.as_ref();
    let named = about.named();
    let subject = named.subject()?;
    places.exports.check(&subject)?;
    let samples = named.samples(Some(stored.asked.metric.into()), (backend, &subject))?;
    let now = About::of(&named, (&subject, &samples), described(&opened, arguments.machine.isa))?;
    about.check(&now, false).map_err(|reason| {
        Failure::bad_input(format!("the model cannot be made again: {reason}"))
    })?;
    let _whole = stop.heed();
    let (clock, underway) = (SystemClock::new(), Underway::new());
    let mut machine = OwnMachine::new(
        (backend, &subject, &samples),
        (&clock, &underway, stop),
        (stored.asked.effort, about.seed),
        Duration::ZERO,
    )?;
    let unwritten = fill((places.model, places.exports), (&mut machine, form))?;
    drop(machine);
    underway.finish();
    let digest = evidence::folder(&out.join(MODEL))?;
    let text = stored.to_json()?;
    places.evidence.put(evidence::NAME, text.as_bytes()).map_err(Failure::harness)?;
    places.evidence.finish().map_err(Failure::harness)?;
    check_all(&unwritten)?;
    match &stored.artefact {
        Some(before) if *before == digest => {
            say!("the same bytes as the chosen model: `{}/{MODEL}`", out.display())?;
            Ok(Exit::Fine)
        }
        Some(_) => {
            say!(
                "`{}/{MODEL}` has other bytes than the model that was decided on: made on another \
                 device or by another version",
                out.display()
            )?;
            Ok(Exit::WrongOutputs)
        }
        None => {
            say!(
                "`{}/{MODEL}` was written; the file has no digest to compare with",
                out.display()
            )?;
            Ok(Exit::Fine)
        }
    }
}
