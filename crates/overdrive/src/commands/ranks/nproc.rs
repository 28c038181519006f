//! `--nproc N`: this command once more for each rank, as torchrun would start it.
//!
//! Rank 0 speaks for all; of the others, errors are shown with their rank before them. An error of
//! several ranks is shown once. Invariant: no rank outlives the command, and when one ends badly so
//! do all.

use crate::error_channel;
use crate::failure::Failure;
use crate::terminal;
use overdrive::bench::exit::Exit;
use overdrive::ranks::Launch;
use overdrive_process::{Running, Stop};
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::{Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Between two looks at the ranks.
const LOOK: Duration = Duration::from_millis(10);

/// How long the others may take to end by themselves once one has ended badly.
const ENDING: Duration = Duration::from_secs(10);

/// A rank of ours.
struct Rank {
    running: Running,
    /// Its messages other than errors; rank 0 prints them itself.
    said: Option<JoinHandle<()>>,
    error: Option<JoinHandle<String>>,
    ended: Option<End>,
}

/// How a rank ended.
#[derive(Copy, Clone)]
enum End {
    Itself(ExitStatus),
    /// It went on after others had ended badly.
    Killed,
}

impl End {
    fn is_bad(self) -> bool {
        !matches!(self, Self::Itself(status) if status.success())
    }

    /// Whether it ended only because another did.
    fn is_of_another(self) -> bool {
        let other = i32::from(Exit::OtherRank.code());
        matches!(self, Self::Itself(status) if status.code() == Some(other))
    }

    /// Whether somebody asked it to end, or another rank, and it did so in good order.
    fn was_asked(self) -> bool {
        matches!(self.exit(), Exit::Interrupted | Exit::Terminated)
    }

    fn words(self) -> String {
        match self {
            Self::Killed => "did not end by itself and was killed".to_owned(),
            asked if asked.was_asked() => "was asked to end".to_owned(),
            Self::Itself(status) => match status.code() {
                Some(code) => format!("ended with exit code {code}; its error is above"),
                // `signal: 9 (SIGKILL)`.
                None => format!("was ended from outside ({status})"),
            },
        }
    }

    fn exit(self) -> Exit {
        let Self::Itself(status) = self else { return Exit::Harness };
        let known = [Exit::BadInput, Exit::ClosedPipe, Exit::Interrupted, Exit::Terminated];
        let same = |exit: &Exit| status.code() == Some(i32::from(exit.code()));
        known.into_iter().find(same).unwrap_or(Exit::Harness)
    }
}

/// Runs the command on `size` ranks.
pub(super) fn run(size: usize, stop: &Stop) -> Result<Exit, Failure> {
    // The ranks are asked to end too, and report themselves what they keep.
    let _whole = stop.heed();
    let port = free_port().map_err(|error| {
        Failure::harness(format!("--nproc: this machine gives no port for ranks to meet: {error}"))
    })?;
    let run = format!("nproc-{}-{port}", std::process::id());
    let start = |rank| start(&Launch::local(rank, size, port, &run), stop);
    let mut ranks = (0..size).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut bad_in_order = vec![];
    let mut deadline = None;
    while ranks.iter().any(|rank| rank.ended.is_none()) {
        thread::sleep(LOOK);
        for (number, rank) in ranks.iter_mut().enumerate().filter(|(_, r)| r.ended.is_none()) {
            let ended = rank.running.child.try_wait().map_err(Failure::harness)?;
            rank.ended = ended.map(End::Itself);
            if rank.ended.is_some_and(End::is_bad) {
                bad_in_order.push(number);
            }
        }
        // Ranks that are asked to end may take their time to write what they keep.
        let is_of_stop = |number: &usize| ranks[*number].ended.is_some_and(End::was_asked);
        if !bad_in_order.iter().all(|number| stop.is_requested() && is_of_stop(number)) {
            let deadline = *deadline.get_or_insert_with(|| Instant::now() + ENDING);
            if Instant::now() >= deadline {
                for (number, rank) in ranks.iter_mut().enumerate() {
                    if rank.ended.is_none() {
                        rank.running.kill().map_err(Failure::harness)?;
                        rank.ended = Some(End::Killed);
                        bad_in_order.push(number);
                    }
                }
            }
        }
    }
    for said in ranks.iter_mut().filter_map(|rank| rank.said.take()) {
        // It only passes lines on.
        let _ = said.join();
    }
    let read = |rank: &mut Rank| rank.error.take().and_then(|error| error.join().ok());
    let errors: Vec<String> = ranks.iter_mut().map(|rank| read(rank).unwrap_or_default()).collect();
    for line in shown(&errors) {
        terminal::beside(format_args!("{line}"));
    }
    let ended = |number: usize| ranks[number].ended.expect("all have ended");
    let first = |is_meant: &dyn Fn(End) -> bool| {
        bad_in_order.iter().find(|&&number| is_meant(ended(number)))
    };
    // Ranks that one which was asked ends with it report SIGINT.
    let cause = first(&|end| !end.is_of_another() && !end.was_asked())
        .or_else(|| first(&|end| end.exit() == Exit::Terminated))
        .or_else(|| first(&|end| !end.is_of_another()));
    let Some(&cause) = cause.or(bad_in_order.first()) else { return Ok(Exit::Fine) };
    if let Some(signal) = stop.signal() {
        // Rank 0 has reported what was kept.
        return Ok(signal.into());
    }
    let (end, others) = (ended(cause), size - 1);
    if is_of_all(&errors) {
        return Ok(end.exit());
    }
    let message =
        format!("rank {cause} of {size} {}; the other {others} ended with it", end.words());
    Err(Failure { message, exit: end.exit() })
}

/// Whether all ranks failed, and for one reason.
fn is_of_all(errors: &[String]) -> bool {
    !errors[0].is_empty() && errors.iter().all(|error| *error == errors[0])
}

/// The errors of the ranks by their number, empty where there is none: each once, after the ranks
/// that say it. An error of rank 0 alone is said as that of one process.
fn shown(errors: &[String]) -> Vec<String> {
    if errors.len() > 1 && is_of_all(errors) {
        return vec![format!("all {} ranks: {}", errors.len(), errors[0])];
    }
    let mut by_error: Vec<(&String, Vec<usize>)> = vec![];
    for (rank, error) in errors.iter().enumerate().filter(|(_, error)| !error.is_empty()) {
        match by_error.iter_mut().find(|(said, _)| *said == error) {
            Some((_, ranks)) => ranks.push(rank),
            None => by_error.push((error, vec![rank])),
        }
    }
    let line = |(error, ranks): (&String, Vec<usize>)| match ranks[..] {
        [0] => error.clone(),
        [rank] => format!("rank {rank}: {error}"),
        _ => {
            let ranks: Vec<String> = ranks.iter().map(usize::to_string).collect();
            format!("ranks {}: {error}", ranks.join(", "))
        }
    };
    by_error.into_iter().map(line).collect()
}

/// A port that nobody listens at. Rank 0 opens it a moment later.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn start(launch: &Launch, stop: &Stop) -> Result<Rank, Failure> {
    let rank = launch.rank;
    let failed =
        |error: std::io::Error| Failure::harness(format!("cannot start rank {rank}: {error}"));
    let mut command = Command::new(std::env::current_exe().map_err(failed)?);
    command.args(std::env::args_os().skip(1)).envs(launch.variables());
    let error = error_channel::of(&mut command).map_err(failed)?;
    if rank > 0 {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
    }
    let mut running = stop.spawn(&mut command).map_err(failed)?;
    let said = running.child.stderr.take().map(|from| thread::spawn(move || pass_on(rank, from)));
    let error = Some(thread::spawn(move || whole(error)));
    Ok(Rank { running, said, error, ended: None })
}

/// All that can be read, as text.
fn whole(mut from: impl Read) -> String {
    let mut bytes = vec![];
    // Bytes read before a failure count too.
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Shows what a rank says, with its number before each line.
fn pass_on(rank: usize, from: impl Read) {
    let mut from = BufReader::new(from);
    let mut line = vec![];
    while from.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        let text = String::from_utf8_lossy(&line);
        terminal::beside(format_args!("rank {rank}: {}", text.trim_end()));
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(errors: &[&str]) -> Vec<String> {
        shown(&errors.iter().map(|&error| error.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn an_error_is_said_once_with_the_ranks_that_say_it() {
        assert_eq!(lines(&["error: a", "error: a", "error: a"]), ["all 3 ranks: error: a"]);
        assert_eq!(
            lines(&["error: a", "error: b", "", "error: b"]),
            ["error: a", "ranks 1, 3: error: b"]
        );
        assert_eq!(lines(&["", "error: b"]), ["rank 1: error: b"]);
        assert_eq!(lines(&["error: a", "error: a", ""]), ["ranks 0, 1: error: a"]);
        assert_eq!(lines(&["error: a"]), ["error: a"]);
        assert!(lines(&["", ""]).is_empty());
    }
}
