//! The behaviour of a session where processes fail, clocks drop, figures are missing or time runs
//! out.

use std::time::Duration;

use super::invented::{Machine, PROCESS, Silent, session, verdicts};
use crate::session::ProcessRequest;
use crate::{GateSession, Processes};
use overdrive_bench::exit::Exit;
use overdrive_bench::failure::{Failure, FailureKind};
use overdrive_bench::runner::Stop;
use overdrive_bench::status::StatusKind;
use overdrive_bench::verdicts::{
    Compared, Figure, MEDIAN, Observations, Observed, Side, Verdict, Verdicts,
};

fn headlines(verdicts: &Verdicts) -> impl Iterator<Item = &Figure> {
    verdicts.cases.iter().filter_map(|case| case.compared()).filter_map(Compared::headline)
}

fn regressed(verdicts: &Verdicts) -> bool {
    verdicts.cases.iter().any(|case| case.word() == "REGRESSED")
}

/// A slowdown of everything is still seen after Holm's correction, at a later look.
#[test]
fn a_slowdown_of_everything_is_still_seen() {
    let names: Vec<&'static str> =
        (0..40).map(|i| &*Box::leak(format!("case {i:02}").into_boxed_str())).collect();
    let cases: Vec<(&str, f64)> = names.iter().map(|name| (*name, 1.12)).collect();
    let found = session(&mut Machine::quiet(1, &cases));
    assert!(
        headlines(&found).all(|figure| figure.verdict == Verdict::Regressed),
        "{}",
        found.headline()
    );
    assert!(found.evidence.blocks.len() <= 28, "{} blocks", found.evidence.blocks.len());
}

/// A third of calls is three times slower: the median stands still, the mean does not.
#[test]
fn slow_calls_are_a_regression_of_the_mean() {
    let found = session(&mut Machine {
        slow_calls: 0.3,
        process_noise: 0.03,
        ..Machine::quiet(1, &[("a", 1.0)])
    });
    assert_eq!(found.exit(), Exit::Regression, "{found:?}");
    let said = found.cases[0].reasons().join("; ");
    assert!(said.contains("`mean_ns` REGRESSED: 1."), "{said}");
}

/// The device's clock falls by a fifth: in the second half of the session, whenever the current
/// runs, or at random. Cycles stay what they were.
#[test]
fn a_low_clock_is_throttled_and_no_regression() {
    let from_the_middle = |_: Side, process: usize| if process >= 40 { 0.8 } else { 1.0 };
    let with_the_current = |side: Side, _: usize| if side == Side::Current { 0.8 } else { 1.0 };
    let at_random =
        |_: Side, process: usize| if process * 2_654_435_761 % 97 < 30 { 0.8 } else { 1.0 };
    for (clock, name) in [
        (from_the_middle as fn(Side, usize) -> f64, "from the middle"),
        (with_the_current, "with the current"),
        (at_random, "at random"),
    ] {
        for seed in 0..20 {
            let mut machine = Machine { clock: Some(clock), ..Machine::quiet(seed, &[("a", 1.0)]) };
            assert!(!regressed(&session(&mut machine)), "{name}, seed {seed}");
        }
    }
    let mut machine = Machine { clock: Some(with_the_current), ..Machine::quiet(1, &[("a", 1.0)]) };
    let found = session(&mut machine);
    let said = found.cases[0].reasons().join("; ");
    assert!(
        said.contains("throttled: 80 of 240") && said.contains("the clock changed, not the work"),
        "{said}"
    );
    assert_eq!(found.exit(), Exit::Inconclusive);
    // More work at a steady clock is still seen.
    let steady = Machine { clock: Some(|_, _| 1.0), ..Machine::quiet(1, &[("a", 1.1)]) };
    assert!(regressed(&session(&mut { steady })));
}

/// Says what a function says, each process taking its time.
struct Scripted<F>(F, Duration);

impl<F: FnMut(Side, &ProcessRequest) -> Result<Observations, Failure>> Processes for Scripted<F> {
    fn run(&mut self, side: Side, request: &ProcessRequest) -> Result<Observations, Failure> {
        self.1 += PROCESS;
        (self.0)(side, request)
    }

    fn elapsed(&self) -> Duration {
        self.1
    }
}

fn scripted<F: FnMut(Side, &ProcessRequest) -> Result<Observations, Failure>>(
    said: F,
) -> Scripted<F> {
    Scripted(said, Duration::ZERO)
}

fn one(case: &str, said: Result<Observed, Failure>) -> Observations {
    Observations::from([(case.to_owned(), said)])
}

/// Something slows down whoever runs as the control: the baseline differs from itself, and nothing
/// binds.
#[test]
fn a_baseline_that_differs_from_itself_makes_every_verdict_advisory() {
    let mut machine = Machine::quiet(1, &[("a", 1.0)]);
    let found = session(&mut scripted(|side, request| {
        let mut said = machine.run(side, request)?;
        for observed in said.values_mut().flatten().filter(|_| side != Side::Baseline) {
            observed.figures.values_mut().for_each(|ns| *ns *= 1.2);
        }
        Ok(said)
    }));
    assert!(found.is_advisory() && regressed(&found), "{found:?}");
    assert_eq!(found.exit(), Exit::Inconclusive);
    assert!(found.headline().contains("ADVISORY ONLY"), "{}", found.headline());
}

#[test]
fn zero_cases_have_not_passed() {
    let found = session(&mut scripted(|_, _| Ok(Observations::new())));
    assert_eq!((found.exit(), found.cases.len()), (Exit::Harness, 0));
    assert_eq!(found.evidence.blocks.len(), 2, "there is nothing to wait for");
    assert!(found.headline().contains("nothing was compared"));
}

#[test]
fn failures_have_their_exit_codes() {
    let exit = |failure: Failure, fails: fn(Side) -> bool| {
        session(&mut scripted(move |side, _| {
            let said = if fails(side) { Err(failure.clone()) } else { Ok(Observed::of_time(1e6)) };
            Ok(one("a", said))
        }))
    };
    let current = |side: Side| side == Side::Current;
    let panicked = exit(Failure::failed("panicked: index out of range"), current);
    assert_eq!((panicked.exit(), panicked.cases[0].word().as_str()), (Exit::Harness, "FAILED"));
    assert!(panicked.cases[0].reasons()[0].contains("in 4 of 4 processes of the current"));
    let wrong = exit(Failure::incorrect("by 1"), current);
    assert_eq!(
        (wrong.exit(), wrong.cases[0].word().as_str()),
        (Exit::WrongOutputs, "WRONG OUTPUTS")
    );
    let gone = exit(Failure::skipped("not reached"), current);
    assert_eq!((gone.exit(), gone.cases[0].word().as_str()), (Exit::Harness, "MISSING"));
    // Alone, a new case compares nothing; beside another it does no harm.
    let new = exit(Failure::unsupported("no such case"), |side| side != Side::Current);
    assert_eq!((new.exit(), new.cases[0].word().as_str()), (Exit::Harness, "NEW"));
}

#[test]
fn a_program_that_never_runs_is_not_tried_twice() {
    let mut calls = Vec::new();
    let found = session(&mut scripted(|side, _| {
        calls.push(side);
        match side {
            Side::Baseline | Side::Control => Ok(one("a", Ok(Observed::of_time(1e6)))),
            Side::Current => Err(Failure::failed("exit code 101: no such library")),
        }
    }));
    assert_eq!(calls.iter().filter(|side| **side == Side::Current).count(), 1);
    assert_eq!(found.exit(), Exit::Harness);
    assert!(found.headline().contains("no such library"), "{}", found.headline());
}

#[test]
fn one_lost_process_costs_its_block_only() {
    let found = session(&mut scripted(|_, request| match request.process {
        5 | 11 => Err(Failure::timeout("it ran past 600 s")),
        process => Ok(one("a", Ok(Observed::of_time(1e6 + process as f64)))),
    }));
    assert_eq!(found.evidence.lost.len(), 2);
    assert_eq!(found.exit(), Exit::Fine, "{found:?}");
    assert!(headlines(&found).all(|figure| figure.blocks >= 10));
}

#[test]
fn an_interruption_keeps_what_was_measured() {
    let stop = Stop::default();
    let asked = stop.clone();
    let mut machine = Machine::quiet(1, &[("a", 1.2)]);
    let mut processes = scripted(|side, request: &ProcessRequest| {
        if request.process == 6 * 4 + 3 {
            asked.request(overdrive_process::Signal::Interrupt);
            return Err(Failure::skipped("interrupted"));
        }
        machine.run(side, request)
    });
    let found = verdicts(GateSession::new(&mut processes, &Silent, 1).with_stop(stop).run());
    let reasons = found.cases[0].reasons().join("; ");
    assert!(reasons.contains("4 complete blocks, and an interval needs 8"), "{reasons}");
    assert_eq!(found.evidence.ended_early.as_ref().unwrap().kind, FailureKind::Skipped);
    assert_eq!(found.exit(), Exit::Inconclusive);
    assert_eq!(
        found.evidence.blocks.last().unwrap().runs.len(),
        3,
        "the block that was cut is kept too"
    );
}

#[test]
fn time_ends_a_session_and_all_its_blocks_count() {
    let noisy = || Machine { process_noise: 0.3, ..Machine::quiet(2, &[("a", 1.0)]) };
    let found = session(&mut noisy());
    assert_eq!((found.exit(), found.evidence.blocks.len()), (Exit::Inconclusive, 40), "a minute");
    assert_eq!(headlines(&found).next().unwrap().blocks, 40);
    let said = found.cases[0].reasons().join("; ");
    assert!(said.contains("blocks more (") && said.contains("--budget"), "{said}");
    let budget = Duration::from_secs(15);
    let found = verdicts(GateSession::new(&mut noisy(), &Silent, 1).with_budget(budget).run());
    assert_eq!(found.evidence.blocks.len(), 10);
    // A quiet machine needs no minute.
    let found = session(&mut Machine::quiet(1, &[("a", 1.0), ("b", 1.2), ("c", 0.8)]));
    let words: Vec<String> = found.cases.iter().map(|case| case.word()).collect();
    assert_eq!(words, ["REGRESSED", "IMPROVED", "SAME"]);
    assert!(found.evidence.settled && found.evidence.blocks.len() < 20);
}

/// A process whose time varies a little, with these quantities.
fn with_quantities(
    request: &ProcessRequest,
    quantities: &[(&str, f64)],
) -> Result<Observations, Failure> {
    let mut observed = Observed::of_time(1e6 + (request.process * 7919 % 97) as f64);
    observed.figures.extend(quantities.iter().map(|(name, value)| ((*name).to_owned(), *value)));
    Ok(one("a", Ok(observed)))
}

#[test]
fn exact_quantities_judge_without_times() {
    let found = session(&mut scripted(|side, _| {
        let bytes = if side == Side::Current { 1100.0 } else { 1000.0 };
        let figures = [("file_bytes".to_owned(), bytes)].into_iter().collect();
        Ok(one("a", Ok(Observed { figures, ..Observed::default() })))
    }));
    assert_eq!((found.exit(), found.cases[0].word().as_str()), (Exit::Regression, "REGRESSED"));
    assert_eq!(found.cases[0].reasons(), ["`file_bytes` grew from 1000 to 1100, by more than 10"]);
    assert_eq!(found.evidence.blocks.len(), 2);
}

#[test]
fn rates_accuracies_and_memory_are_judged_whether_they_vary_or_not() {
    let gated = |name: &'static str, old: f64, new: f64, noise: f64| {
        session(&mut scripted(move |side, request| {
            let wobble = 1.0 + noise * (request.process * 7919 % 13) as f64 / 13.0;
            let value = if side == Side::Current { new } else { old };
            with_quantities(request, &[(name, value * wobble)])
        }))
    };
    for (name, old, new) in [
        ("rate", 100.0, 10.0),
        ("tokens_per_s", 100.0, 90.0),
        ("top1_percent", 92.0, 90.0),
        ("resident_peak_bytes", 1e8, 1.2e8),
    ] {
        for noise in [0.0, 0.002] {
            let found = gated(name, old, new, noise);
            assert_eq!(found.exit(), Exit::Regression, "{name} {noise}: {found:?}");
            assert_eq!(gated(name, old, old, noise).exit(), Exit::Fine, "{name} {noise}");
        }
    }
    for noise in [0.0, 0.002] {
        let unclear = gated("widgets", 100.0, 10.0, noise);
        assert_eq!(
            (unclear.exit(), unclear.cases[0].word().as_str()),
            (Exit::Inconclusive, "UNDECIDED")
        );
        assert!(
            unclear.cases[0].reasons().join("; ").contains("which way is better"),
            "{unclear:?}"
        );
    }
}

#[test]
fn what_is_missing_on_one_side_fails() {
    let gated = |lacking: Side, what: &'static str| {
        session(&mut scripted(move |side, request| {
            let mut said = with_quantities(request, &[("top1_percent", 92.0)])?;
            let observed = said.get_mut("a").unwrap().as_mut().unwrap();
            observed.agrees = true;
            if (side == Side::Current) == (lacking == Side::Current) {
                observed.agrees = what != "agreement";
                observed.figures.remove(what);
            }
            Ok(said)
        }))
    };
    for side in [Side::Current, Side::Baseline] {
        for (what, word) in [
            ("top1_percent", "`top1_percent` is missing in"),
            ("agreement", "whether outputs agree is missing in"),
            (MEDIAN, "`median_ns` is missing in"),
        ] {
            let found = gated(side, what);
            assert_eq!(
                (found.exit(), found.cases[0].word().as_str()),
                (Exit::Harness, "MISSING"),
                "{what}"
            );
            let said = found.cases[0].reasons().join("; ");
            assert!(
                said.contains(word) && said.contains(&format!("processes of the {side}")),
                "{said}"
            );
        }
    }
    assert_eq!(gated(Side::Current, "nothing").exit(), Exit::Fine);
}

#[test]
fn what_processes_say_of_their_samples_stands_beside_the_verdict() {
    let found = session(&mut scripted(|_, request| {
        let mut observed = Observed::of_time(1e6 + request.process as f64);
        observed.statuses.insert(StatusKind::Imprecise);
        if request.process.is_multiple_of(2) {
            observed.statuses.insert(StatusKind::Noisy);
        }
        Ok(one("a", Ok(observed)))
    }));
    assert_eq!(found.cases[0].reasons(), ["of 60 processes: noisy in 30"]);
}
