//! One step of `check`: a command that runs in the open while its output is kept.
//!
//! Output streams as it comes, so that a long step is seen to live. It is also kept, so that the
//! tests can be counted. The end of the first failure can then be shown again after everything
//! else.

use std::io::{BufRead, BufReader};
use std::ops::AddAssign;
use std::process::Command;

use anyhow::{Context, Result};

/// How many tests passed, failed and were left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    /// By their harness; a test that skips itself has passed.
    pub(crate) skipped: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl Tally {
    /// The sum of the closing lines of every test run in `lines`, those of libtest and those of
    /// nextest.
    pub(crate) fn of(lines: &[String]) -> Self {
        let mut total = Self::default();
        for tally in lines.iter().filter_map(|line| libtest(line).or_else(|| nextest(line))) {
            total += tally;
        }
        total
    }
}

/// `test result: ok. 12 passed; 0 failed; 1 ignored; ...`, not indented: nextest quotes such lines
/// from tests that failed, and has counted them itself.
fn libtest(line: &str) -> Option<Tally> {
    let counts = line.strip_prefix("test result: ")?;
    Some(Tally {
        passed: count_before(counts, "passed")?,
        failed: count_before(counts, "failed")?,
        skipped: count_before(counts, "ignored").unwrap_or(0),
    })
}

/// `Summary [ 3.2s] 12 tests run: 10 passed (1 slow), 1 failed, 1 timed out, 0 skipped`. A test
/// that ran and did not pass has failed.
fn nextest(line: &str) -> Option<Tally> {
    let counts = line.trim().strip_prefix("Summary [")?.split_once(']')?.1;
    // A cancelled run prints `7/12 tests run`: those that ran come first.
    let run: u64 = counts.split_whitespace().next()?.split('/').next()?.parse().ok()?;
    let passed = count_before(counts, "passed").unwrap_or(0);
    let skipped = count_before(counts, "skipped").unwrap_or(0);
    Some(Tally { passed, failed: run.saturating_sub(passed), skipped })
}

/// The number in front of `word`.
fn count_before(counts: &str, word: &str) -> Option<u64> {
    let words: Vec<&str> = counts.split_whitespace().collect();
    let at =
        words.iter().position(|candidate| candidate.trim_end_matches([',', ';', '.']) == word)?;
    words[at.checked_sub(1)?].parse().ok()
}

/// The output of a command, line by line, and whether it succeeded.
pub(crate) struct Finished {
    pub(crate) lines: Vec<String>,
    pub(crate) success: bool,
}

/// Runs `command`, printing its standard output and error as they come, in the order in which they
/// were written.
pub(crate) fn stream(mut command: Command) -> Result<Finished> {
    let (reader, writer) = std::io::pipe().context("cannot open a pipe")?;
    command.stdout(writer.try_clone().context("cannot share a pipe")?).stderr(writer);
    let mut child =
        command.spawn().with_context(|| format!("cannot run {:?}", command.get_program()))?;
    // `command` holds our ends of the pipe; the reader ends only once they are closed.
    drop(command);
    let mut lines = Vec::new();
    for line in BufReader::new(reader).split(b'\n') {
        let line = line.context("cannot read a command's output")?;
        let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
        println!("{line}");
        lines.push(line);
    }
    Ok(Finished { lines, success: child.wait().context("a command vanished")?.success() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(text: &str) -> Tally {
        Tally::of(&text.lines().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn libtest_runs_add_up() {
        let text = "test result: ok. 12 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; \
                    finished in 0.1s\n\
                    test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered \
                    out; finished in 0.1s";
        assert_eq!(tally(text), Tally { passed: 15, failed: 2, skipped: 1 });
    }

    #[test]
    fn nextest_counts_whatever_did_not_pass_as_failed() {
        let summary = "     Summary [   3.204s] 14 tests run: 11 passed (2 slow), 1 failed, 1 \
                       exec failed, 1 timed out, 4 skipped";
        assert_eq!(tally(summary), Tally { passed: 11, failed: 3, skipped: 4 });
        assert_eq!(
            tally("     Summary [   0.1s] 1 test run: 0 passed, 1 failed, 0 skipped"),
            Tally { passed: 0, failed: 1, skipped: 0 }
        );
        assert_eq!(
            tally("     Summary [   0.1s] 3/9 tests run: 2 passed, 1 failed, 0 skipped"),
            Tally { passed: 2, failed: 1, skipped: 0 }
        );
    }

    #[test]
    fn what_nextest_quotes_is_not_counted_twice() {
        let text = "    test result: FAILED. 0 passed; 1 failed; 0 ignored; 0 measured; 0 \
                    filtered out; finished in 0.07s\n\
                    \x20    Summary [   0.174s] 30 tests run: 29 passed, 1 failed, 0 skipped";
        assert_eq!(tally(text), Tally { passed: 29, failed: 1, skipped: 0 });
    }

    #[test]
    fn other_lines_count_nothing() {
        assert_eq!(tally("running 3 tests\n5 passed\nSummary of the docs"), Tally::default());
    }

    #[test]
    fn a_failing_command_keeps_its_output() {
        let mut command = Command::new("cargo");
        command.arg("no-such-subcommand");
        let finished = stream(command).expect("cargo runs");
        assert!(!finished.success);
        assert!(finished.lines.iter().any(|line| line.contains("no-such-subcommand")));
    }
}
