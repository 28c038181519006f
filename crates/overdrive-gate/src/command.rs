//! Fresh processes of this machine: a user's command line, or a built revision of Overdrive.
//!
//! A user's command is given to the shell with two variables: `OVERDRIVE_RESULTS`, the file that it
//! writes, and `OVERDRIVE_SEED`. Its raw results stay in the session's folder. Nothing but the
//! command tells a process on which side it is. File names of both sides are equally long, since
//! the size of the environment moves code and stack.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, io};

use super::child::Ended;
use super::session::{ProcessRequest, Processes};
use super::{child, read};
use overdrive_bench::environment::Toolchain;
use overdrive_bench::exit::Exit;
use overdrive_bench::failure::Failure;
use overdrive_bench::runner::Stop;
use overdrive_bench::verdicts::{Observations, Side};
use overdrive_process::program;

/// How a program is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invocation {
    /// A command line for the shell, which writes to the file named by `OVERDRIVE_RESULTS`.
    Shell(String),
    /// Overdrive's binary with these arguments, to which `--seed` and `--out` are added.
    Arguments {
        /// The binary.
        binary: PathBuf,
        /// The measured work.
        arguments: Vec<String>,
    },
    /// Overdrive's binary on studies, in screenings.
    Studies {
        /// The binary.
        binary: PathBuf,
        /// Names of the studies; empty for all.
        studies: Vec<String>,
    },
}

/// Describes the command of a process to a reader.
impl std::fmt::Display for Invocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Shell(line) => f.write_str(line),
            Self::Arguments { arguments, .. } => write!(f, "overdrive {}", arguments.join(" ")),
            Self::Studies { studies, .. } => {
                write!(
                    f,
                    "overdrive run {}{}--quick",
                    studies.join(" "),
                    if studies.is_empty() { "" } else { " " }
                )
            }
        }
    }
}

/// Runs the two programs and reads what they wrote.
pub struct Programs {
    /// The side to compare with.
    pub baseline: Invocation,
    /// The judged side.
    pub current: Invocation,
    /// The folder of raw results, and of logs of processes that failed.
    pub folder: PathBuf,
    /// Longest life of a process.
    pub limit: Duration,
    /// Ends the process that runs, and so the session.
    pub stop: Stop,
    /// When the session began.
    pub started: Instant,
    /// The toolchains of the two programs, once their results name them.
    pub toolchains: [Option<Toolchain>; 2],
}

impl Processes for Programs {
    fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    fn run(&mut self, side: Side, request: &ProcessRequest) -> Result<Observations, Failure> {
        let name = format!("{:05}", request.process);
        let (file, log) =
            (self.folder.join(format!("{name}.json")), self.folder.join(format!("{name}.log")));
        let invocation = match side {
            Side::Baseline | Side::Control => &self.baseline,
            Side::Current => &self.current,
        };
        let out = self.folder.join(&name);
        let places = Places { file: &file, out: &out };
        let ended = command(invocation, request, places)
            .and_then(|mut command| child::run(&mut command, &log, Some(self.limit), &self.stop))
            .map_err(|error| {
                Failure::failed(format!("`{invocation}` could not be started: {error}"))
            })?;
        let status = match ended {
            Ended::Stopped => {
                return Err(Failure::skipped(
                    "interrupted: what had been measured by then is kept",
                ));
            }
            Ended::TimedOut => {
                let limit = self.limit.as_secs();
                return Err(Failure::timeout(format!(
                    "`{invocation}` ran past {limit} s; --timeout sets the limit"
                )));
            }
            Ended::Exited(status) => status,
        };
        if !matches!(invocation, Invocation::Shell(_)) {
            // The binary writes a folder. Its results are kept; the rest can be drawn again from
            // them.
            let _ = fs::rename(out.join("results.json"), &file);
            let _ = fs::remove_dir_all(&out);
        }
        // Results with failed cases or wrong outputs are results; their records say which.
        let telling = [Exit::Fine, Exit::Harness, Exit::WrongOutputs]
            .map(|exit| Some(i32::from(exit.code())));
        if !telling.contains(&status.code()) || (!status.success() && !file.exists()) {
            return Err(Failure::failed(format!(
                "`{invocation}` ended with {status}:\n{}",
                child::tail(&log)
            )));
        }
        let (observations, results) = read(invocation, &file)?;
        let _ = fs::remove_file(&log);
        self.toolchains[usize::from(side == Side::Current)] =
            results.map(|results| results.environment.toolchain);
        Ok(observations)
    }
}

/// The places for results of a process.
struct Places<'a> {
    file: &'a Path,
    out: &'a Path,
}

fn command(
    invocation: &Invocation,
    request: &ProcessRequest,
    places: Places<'_>,
) -> io::Result<Command> {
    let seed = request.seed.to_string();
    let own = |binary: &Path, arguments: Vec<&str>| {
        let mut command = Command::new(binary);
        command.args(arguments).args(["--seed", &seed]).arg("--out").arg(places.out);
        Ok(command)
    };
    match invocation {
        Invocation::Arguments { binary, arguments } => {
            own(binary, arguments.iter().map(String::as_str).collect())
        }
        Invocation::Studies { binary, studies } => {
            let studies: Vec<&str> = studies.iter().map(String::as_str).collect();
            own(binary, [vec!["run"], studies, vec!["--quick"]].concat())
        }
        Invocation::Shell(line) => {
            let (shell, flag) = if cfg!(windows) { ("cmd", "/C") } else { ("sh", "-c") };
            let mut command = Command::new(program::find(shell)?);
            command
                .args([flag, line])
                .env("OVERDRIVE_RESULTS", places.file)
                .env("OVERDRIVE_SEED", seed)
                // Programs written for the first edition read it: empty, it asks for every case.
                .env("OVERDRIVE_CASES", "");
            Ok(command)
        }
    }
}

fn read(
    invocation: &Invocation,
    file: &Path,
) -> Result<(Observations, Option<overdrive_bench::results::Results>), Failure> {
    let text = overdrive_files::read_text(file, overdrive_files::RESULTS).map_err(|error| {
        Failure::failed(format!(
            "`{invocation}` ended well but left no results in `{}` ({error}); a command writes \
             them to the file \
             that the variable OVERDRIVE_RESULTS names",
            file.display()
        ))
    })?;
    read::read(&text).map_err(|error| {
        Failure::failed(format!("the results of `{invocation}` in `{}`: {error}", file.display()))
    })
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use super::*;
    use overdrive_bench::failure::FailureKind;

    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("overdrive-gate-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Runs one process of a shell line.
    fn shell(name: &str, line: &str) -> Result<Observations, Failure> {
        let folder = folder(name);
        let invocation = Invocation::Shell(line.to_owned());
        let mut programs = Programs {
            baseline: invocation.clone(),
            current: invocation,
            folder: folder.clone(),
            limit: Duration::from_millis(500),
            stop: Stop::default(),
            started: Instant::now(),
            toolchains: [None, None],
        };
        let said = programs.run(Side::Current, &ProcessRequest { process: 7, seed: 42 });
        fs::remove_dir_all(folder).unwrap();
        said
    }

    #[test]
    fn a_command_is_told_where_to_write_and_its_seed() {
        let line = r#"printf '{"overdrive_samples":1,
            "cases":[{"name":"bert %s","times_ns":[1,1,1,1,1]}]}' \
            "$OVERDRIVE_SEED" > "$OVERDRIVE_RESULTS""#;
        let said = shell("told", line).unwrap();
        assert_eq!(said.keys().collect::<Vec<_>>(), ["bert 42"]);
    }

    #[test]
    fn what_goes_wrong_is_quoted() {
        for (name, line, kind, word) in [
            ("crash", "echo no such library >&2; exit 9", FailureKind::Failed, "no such library"),
            ("silent", "true", FailureKind::Failed, "OVERDRIVE_RESULTS"),
            (
                "cut",
                "printf '{\"schema_version\": 1, ' > $OVERDRIVE_RESULTS",
                FailureKind::Failed,
                "line 1",
            ),
            (
                "other",
                "printf '{\"schema_version\": 99}' > $OVERDRIVE_RESULTS",
                FailureKind::Failed,
                "version 99",
            ),
            ("hang", "sleep 30", FailureKind::Timeout, "--timeout"),
        ] {
            let failure = shell(name, line).unwrap_err();
            assert_eq!(failure.kind, kind, "{failure}");
            assert!(failure.reason.contains(word), "{failure}");
        }
    }
}
