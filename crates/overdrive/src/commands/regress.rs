//! `overdrive regress`: two programs, a session of the gate, verdicts, and the exit code that a
//! script reads.

mod progress;

use super::output;
use super::run::chosen;
use crate::cli::Regress;
use crate::failure::Failure;
use crate::invoked::command_line;
use crate::terminal::{note, say, tell, width};
use overdrive::bench::exit::Exit;
use overdrive::bench::results::Results;
use overdrive::bench::verdicts::{Control, Evidence, GATE_VERSION, Program, Verdicts};
use overdrive::files::{Contents, Place};
use overdrive::gate;
use overdrive::gate::checkout::{CheckoutError, Commit, Repository};
use overdrive::gate::command::{Invocation, Programs};
use overdrive::gate::{GateSession, junit, markdown, terminal};
use overdrive_process::Stop;
use progress::GateProgress;
use std::time::{Duration, Instant};

/// The folder of every process's results.
const PROCESSES: &str = "processes";
/// The files that a session of the gate writes.
const GATE: Contents = Contents {
    name: "results",
    writes: |name| {
        ["gate.json", "gate.md", "gate.junit.xml"].contains(&name) || name.starts_with("processes/")
    },
    is_ours: |folder| folder.join("gate.json").is_file(),
};

pub(crate) fn regress(arguments: &Regress, stop: &Stop) -> Result<Exit, Failure> {
    let begun = Results::begin(command_line(), arguments.seed);
    let _whole = stop.heed();
    let place =
        output::place_or_new(arguments.out.as_deref(), arguments.replacing.into(), (&begun, GATE))?;
    let (contenders, notes) = contenders(arguments, stop)?;
    let raw = place.own(PROCESSES).map_err(Failure::bad_input)?;
    let [(baseline, first), (current, second)] = contenders;
    let mut programs = Programs {
        baseline: first,
        current: second,
        folder: raw,
        limit: Duration::from_secs(arguments.timeout),
        stop: stop.clone(),
        started: Instant::now(),
        toolchains: [None, None],
    };
    let progress = GateProgress::start();
    let session =
        GateSession::new(&mut programs, &progress, arguments.seed).with_stop(stop.clone());
    let session = match arguments.budget {
        Some(seconds) => session.with_budget(Duration::from_secs(seconds)),
        None => session,
    };
    let evidence = session.run();
    progress.finish();
    let mut verdicts = verdicts(evidence, begun, [baseline, current]);
    verdicts.notes = notes;
    if let [Some(old), Some(new)] = programs.toolchains {
        if old != new {
            verdicts
                .notes
                .push(format!("the two were built differently: {} and {}", old.rustc, new.rustc));
        }
        // These programs were measured, not this one.
        verdicts.environment.toolchain = old;
    }
    verdicts.notes.extend(verdicts.environment.warnings());
    tell!("{}", terminal(&verdicts, width()))?;
    write(&place, &verdicts, arguments)?;
    say!("verdicts: {}", place.path().join("gate.json").display())?;
    if stop.is_requested() {
        let place = place.path().display();
        return Err(Failure::interrupted(format!(
            "what was measured by then is judged above and kept in `{place}`; a session is not \
             gone on with"
        )));
    }
    Ok(verdicts.exit())
}

/// A program as it is reported, and how it is started.
type Contender = (Program, Invocation);

/// The two programs, built where they are revisions, and what to know of them.
fn contenders(arguments: &Regress, stop: &Stop) -> Result<([Contender; 2], Vec<String>), Failure> {
    match (&arguments.baseline, &arguments.baseline_cmd, &arguments.current_cmd) {
        (_, Some(baseline), Some(current)) => {
            let of = |line: &String| {
                let invocation = Invocation::Shell(line.clone());
                (Program { name: line.clone(), commit: None, command: line.clone() }, invocation)
            };
            Ok(([of(baseline), of(current)], Vec::new()))
        }
        (Some(baseline), ..) => revisions(arguments, baseline, stop),
        _ => Err(Failure::bad_input(
            "nothing to compare. For two revisions of Overdrive give --baseline REV (and --current \
             REV, HEAD if absent). For two programs of your own give --baseline-cmd CMD and \
             --current-cmd CMD",
        )),
    }
}

fn revisions(
    arguments: &Regress,
    baseline: &str,
    stop: &Stop,
) -> Result<([Contender; 2], Vec<String>), Failure> {
    chosen(&arguments.study)?;
    let measure = arguments.measure.as_deref().map(measured).transpose()?;
    let refuse = |error: CheckoutError| match error {
        CheckoutError::DoesNotBuild { .. } | CheckoutError::System { .. } => {
            Failure::harness(error)
        }
        CheckoutError::Interrupted => Failure::interrupted("nothing was measured by then"),
        _ => Failure::bad_input(error),
    };
    let repository = Repository::find(&arguments.repo).map_err(refuse)?;
    let commits = [
        repository.commit(baseline).map_err(refuse)?,
        repository.commit(arguments.current.as_deref().unwrap_or("HEAD")).map_err(refuse)?,
    ];
    repository.check_committed(&commits[1]).map_err(refuse)?;
    let mut notes = Vec::new();
    if commits[0].hash == commits[1].hash {
        notes.push(format!("`{}` and `{}` are the same commit", commits[0].name, commits[1].name));
    }
    let building = |commit: &Commit| note!("building {} ({})", commit.name, &commit.hash[..12]);
    let binaries = repository.binaries(&commits, stop, &building).map_err(refuse)?;
    let mut contenders = Vec::new();
    for (commit, binary) in commits.iter().zip(binaries) {
        let invocation = match &measure {
            Some(arguments) => Invocation::Arguments { binary, arguments: arguments.clone() },
            None => Invocation::Studies { binary, studies: arguments.study.clone() },
        };
        let command = invocation.to_string();
        let program =
            Program { name: commit.name.clone(), commit: Some(commit.hash.clone()), command };
        contenders.push((program, invocation));
    }
    Ok((contenders.try_into().expect("two commits give two contenders"), notes))
}

/// The words of `--measure`, which must be a command that leaves results.
fn measured(line: &str) -> Result<Vec<String>, Failure> {
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let command = words.first().map_or("", String::as_str);
    if !matches!(command, "run" | "bench") {
        return Err(Failure::bad_input(format!(
            "--measure `{line}`: expected `run ...` or `bench ...`, which leave results, found \
             `{command}`"
        )));
    }
    if let Some(own) =
        words.iter().find(|word| matches!(word.as_str(), "-o" | "--out" | "--seed" | "--json"))
    {
        return Err(Failure::bad_input(format!(
            "--measure `{line}`: {own} is set by the gate; leave it out"
        )));
    }
    Ok(words)
}

fn verdicts(evidence: Evidence, begun: Results, [baseline, current]: [Program; 2]) -> Verdicts {
    gate::derive(Verdicts {
        gate_version: GATE_VERSION,
        started_unix_s: begun.started_unix_s,
        command: begun.command,
        seed: begun.seed,
        baseline,
        current,
        environment: begun.environment,
        control: Control::default(),
        cases: Vec::new(),
        evidence,
        notes: Vec::new(),
    })
}

fn write(place: &Place, verdicts: &Verdicts, arguments: &Regress) -> Result<(), Failure> {
    let json = serde_json::to_string_pretty(verdicts).expect("verdicts are plain data") + "\n";
    let mut files = vec![("gate.json", json)];
    if arguments.ci {
        files.push(("gate.md", markdown(verdicts)));
        files.push(("gate.junit.xml", junit(verdicts)));
    }
    for (name, content) in files {
        place.put(name, content.as_bytes()).map_err(Failure::harness)?;
    }
    place.finish().map_err(Failure::harness)
}
