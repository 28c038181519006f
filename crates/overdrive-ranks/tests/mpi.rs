//! Ranks that mpirun started: they see over MPI what threads of a process see, and hear of a rank
//! that fails. A program of its own, which starts itself again by mpirun. Without that every test
//! here fails.

#![allow(clippy::unwrap_used)]

use overdrive_ir::{Communicator, Exchange, Mesh, RankError, agree};
use overdrive_ranks::{Launch, Transport, join, run};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// Tasks of the ranks, in their order. It is no variable of a launcher.
const ACTS: &str = "OVERDRIVE_TEST_ACTS";

/// Begins the lines that are not the test harness's.
const SAYS: &str = "rank says ";

/// Longer than any test waits, where nothing is to be late; in milliseconds.
const PATIENT: u64 = 300_000;

/// Ranks of a test. If it fails, they end with it.
struct Ranks {
    mpirun: Child,
    from: BufReader<ChildStdout>,
}

impl Ranks {
    /// A rank for each act.
    fn start(patience: u64, acts: &[&str]) -> Self {
        let mut command = Command::new("mpirun");
        command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n"]);
        command.arg(acts.len().to_string()).arg(std::env::current_exe().unwrap());
        command.args(["rank_of_a_test", "--exact", "--nocapture"]);
        command.env(ACTS, format!("{patience} {}", acts.join(" "))).stdin(Stdio::null());
        let mut mpirun = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("mpirun: {error}; install openmpi-bin"));
        let from = BufReader::new(mpirun.stdout.take().unwrap());
        Self { mpirun, from }
    }

    /// The next lines of `count` ranks, in the order of ranks; fewer if ranks end first.
    fn say(&mut self, count: usize) -> Vec<(usize, String)> {
        let mut all = vec![];
        let mut line = String::new();
        while all.len() < count && self.from.read_line(&mut line).unwrap() > 0 {
            // The harness writes the test's name before the first line.
            if let Some((_, said)) = line.trim_end().split_once(SAYS) {
                let (rank, said) = said.split_once(' ').unwrap();
                all.push((rank.parse().unwrap(), said.to_owned()));
            }
            line.clear();
        }
        all.sort();
        all
    }

    /// Fails unless these ranks say this.
    fn all_say(&mut self, who: &[usize], words: &str) {
        let all = self.say(who.len());
        assert_eq!(all.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), who, "{all:?}");
        for (rank, said) in &all {
            assert!(said.contains(words), "rank {rank}: {said}");
        }
    }

    /// Waits until all ranks have ended. Returns whether mpirun succeeded, and its own output.
    fn end(&mut self) -> (bool, String) {
        let mut said = String::new();
        self.mpirun.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (self.mpirun.wait().unwrap().success(), said)
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        // Killed, it would leave the ranks alone.
        if self.mpirun.try_wait().is_ok_and(|ended| ended.is_none()) {
            send("TERM", &self.mpirun.id().to_string());
            let _ = self.mpirun.wait();
        }
    }
}

fn send(signal: &str, process: &str) {
    let line = format!("kill -s {signal} {process}");
    assert!(Command::new("sh").args(["-c", &line]).status().unwrap().success());
}

/// Says something to the test that started this rank.
fn say(rank: usize, what: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{SAYS}{rank} {what}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// No test: what the processes of the tests run.
#[test]
fn rank_of_a_test() {
    let Ok(acts) = std::env::var(ACTS) else { return };
    let launch = Launch::of_environment().unwrap().unwrap();
    assert_eq!(launch.transport, Transport::Mpi);
    let (patience, acts) = acts.split_once(' ').unwrap();
    let act = acts.split(' ').nth(launch.rank).unwrap();
    if act == "absent" {
        stay();
    }
    let patience = Duration::from_millis(patience.parse().unwrap());
    let joined = join(&launch, &mesh(launch.size), patience);
    let done = joined.as_ref().map_err(Clone::clone).and_then(|rank| acts_as(act, rank));
    match &done {
        // Ends without a word.
        Ok(()) if act == "errs" => {}
        Ok(()) => say(launch.rank, "done"),
        Err(error) => say(launch.rank, &error.to_string()),
    }
    drop(joined);
    // mpirun would end the others before they have said anything.
    if act == "errs" || (done.is_err() && act != "alone") {
        stay();
    }
}

/// Until mpirun ends this process.
fn stay() -> ! {
    loop {
        thread::park();
    }
}

fn mesh(size: usize) -> Mesh {
    match size {
        4 => Mesh::new([("data", 2), ("tensor", 2)]),
        _ => Mesh::new([("data", size), ("tensor", 1)]),
    }
}

/// Shows bytes along an axis, and returns the bytes of all members.
fn shown(rank: &dyn Communicator, axis: &str, bytes: &[u8]) -> Result<Vec<Vec<u8>>, RankError> {
    let along = rank.mesh().along(&axis.into());
    let group = rank.mesh().group_of(rank.rank(), &along);
    let mut all = vec![];
    let exchange = Exchange { group: &group, what: axis, bytes };
    rank.share(&exchange, &mut |position, bytes| {
        assert_eq!(position, all.len());
        all.push(bytes.to_vec());
    })?;
    Ok(all)
}

/// The bytes that a rank sees in many exchanges: of no bytes, of few, and of more than an MPI
/// message holds. The number differs on each rank.
fn seen(rank: &dyn Communicator) -> Result<Vec<Vec<Vec<u8>>>, RankError> {
    let me = rank.rank();
    let bytes = |count: usize, turn: usize| -> Vec<u8> {
        (0..count).map(|i| (i * (me + 3) + i / 251 + turn) as u8).collect()
    };
    let mut all = vec![];
    for turn in 0..50 {
        all.push(shown(rank, "data", &bytes(me * 7 * (turn % 3), turn))?);
        all.push(shown(rank, "tensor", &bytes(5000 + me + turn, turn))?);
    }
    for turn in 0..2 {
        all.push(shown(rank, "data", &bytes(((1 << 22) + 5) * (me + turn), turn))?);
        all.push(shown(rank, "tensor", &bytes((1 << 23) - me, turn))?);
    }
    let everybody: Vec<usize> = (0..rank.mesh().ranks()).collect();
    let exchange = Exchange { group: &everybody, what: "everybody", bytes: &bytes(9, me) };
    let mut of_all = vec![];
    rank.share(&exchange, &mut |_, bytes| of_all.push(bytes.to_vec()))?;
    all.push(of_all);
    Ok(all)
}

fn acts_as(act: &str, rank: &Arc<dyn Communicator>) -> Result<(), RankError> {
    let rank = rank.as_ref();
    match act {
        "sees" => {
            let found = seen(rank)?;
            let patience = Duration::from_millis(PATIENT);
            let threads = run(rank.mesh(), patience, |rank| seen(rank.as_ref()));
            assert!(found == *threads[rank.rank()].as_ref().unwrap(), "as threads see it");
        }
        // The first is done long before the last.
        "leaves" => {
            let pairs = rank.mesh().along(&"tensor".into());
            let group = rank.mesh().group_of(rank.rank(), &pairs);
            if group[0] > 0 {
                shown(rank, "tensor", &[7])?;
            }
        }
        // The test ends the process while it waits.
        "stays" => {
            say(rank.rank(), &std::process::id().to_string());
            stay();
        }
        // Waits for the others, who do not come to one of these.
        "waits" => {
            say(rank.rank(), &std::process::id().to_string());
            shown(rank, "data", &[])?;
            shown(rank, "tensor", &[])?;
        }
        // Works by itself, and looks after the others.
        "works" => {
            while rank.check().is_ok() {
                thread::sleep(Duration::from_millis(5));
            }
            return rank.check();
        }
        "errs" => return Ok(()),
        "differs" => {
            return agree(rank, "the model", &format!("batch {}", rank.rank() / 3));
        }
        // Is elsewhere, in a group of its own.
        "strays" => {
            shown(rank, "tensor", &[])?;
        }
        "meets" => {
            agree(rank, "the loss", "")?;
        }
        other => panic!("no act is called {other}"),
    }
    rank.leave();
    Ok(())
}

/// Waits for the end of a process that is not our child.
fn is_gone(process: &str) {
    let stat = format!("/proc/{process}/stat");
    while std::fs::read_to_string(&stat).is_ok_and(|text| !text.contains(") Z ")) {
        thread::yield_now();
    }
}

#[test]
fn ranks_see_what_threads_see() {
    for size in [2, 3, 4] {
        let mut ranks = Ranks::start(PATIENT, &vec!["sees"; size]);
        let all = ranks.say(size);
        let done: Vec<_> = (0..size).map(|rank| (rank, "done".to_owned())).collect();
        let (is_well, said) = ranks.end();
        assert_eq!(all, done, "{said}");
        assert!(is_well, "{said}");
    }
}

#[test]
fn ranks_leave_in_any_order() {
    let mut ranks = Ranks::start(PATIENT, &["leaves"; 4]);
    assert_eq!(ranks.say(4).iter().filter(|(_, said)| said == "done").count(), 4);
    let (is_well, said) = ranks.end();
    assert!(is_well, "{said}");
}

#[test]
fn a_killed_rank_ends_all_and_mpirun_names_it() {
    for gone in [0, 3] {
        let acts = [0, 1, 2, 3].map(|rank| if rank == gone { "stays" } else { "waits" });
        let mut ranks = Ranks::start(PATIENT, &acts);
        let processes = ranks.say(4);
        send("KILL", &processes[gone].1);
        let (is_well, said) = ranks.end();
        assert!(!is_well && said.contains(&format!("process rank {gone} with PID")), "{said}");
        assert!(said.contains("signal 9"), "{said}");
        processes.iter().for_each(|(_, process)| is_gone(process));
    }
}

#[test]
fn a_rank_that_ends_without_leaving_is_named_to_all() {
    // Rank 1 waits for it, ranks 0 and 2 work.
    let mut ranks = Ranks::start(PATIENT, &["works", "meets", "works", "errs"]);
    ranks.all_say(&[0, 1, 2], "rank 3 ended, while others were at");
}

#[test]
fn whoever_hangs_is_named_and_not_who_waits_for_it() {
    let mut ranks = Ranks::start(8000, &["waits", "waits", "waits", "stays"]);
    ranks.all_say(&[0, 1, 2, 3], "");
    ranks.all_say(&[0, 1, 2], "rank 3 did not come to ");
}

#[test]
fn ranks_that_differ_are_told_what_both_have() {
    let mut ranks = Ranks::start(PATIENT, &["differs"; 4]);
    let both = "rank 3: expected the model `batch 0`, as rank 0 has, found the model `batch 1`";
    ranks.all_say(&[0, 1, 2, 3], both);
    // One is at an exchange of all, the other at one of its pair.
    let mut ranks = Ranks::start(PATIENT, &["meets", "strays", "works", "works"]);
    let both = "rank 1: expected to be at the loss of ranks [0, 1, 2, 3], as rank 0 has, found \
                that it is at tensor of ranks [0, 1]";
    ranks.all_say(&[0, 1, 2, 3], both);
}

#[test]
fn whoever_does_not_come_ends_all() {
    let mut ranks = Ranks::start(8000, &["waits", "absent", "waits"]);
    ranks.all_say(&[0, 2], "MPI_Init did not end in 8 s: expected all ranks there");
}

/// Another library's mpirun starts what this one takes for single processes.
#[test]
fn an_mpi_that_knows_nothing_of_mpirun_is_told() {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["rank_of_a_test", "--exact", "--nocapture"]);
    command.env(ACTS, format!("{PATIENT} alone alone")).env("OMPI_COMM_WORLD_RANK", "1");
    command.env("OMPI_COMM_WORLD_SIZE", "2").env("OMPI_COMM_WORLD_LOCAL_RANK", "1");
    let said = command.output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout);
    assert!(said.contains("expected rank 1 of 2, as mpirun says, found rank 0 of 1"), "{said}");
}
