//! Ranks that are processes: what they show each other over TCP, and what they hear of one that
//! fails. A program of its own, which starts itself again for each rank.
//!
//! Long because every way in which ranks are started and lost has a case, and a part of this
//! program.

#![allow(clippy::unwrap_used)]

use overdrive_ir::{Communicator, Exchange, Mesh, RankError, agree};
use overdrive_ranks::{Launch, join};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// The task of a rank. It is no variable of a launcher.
const ACT: &str = "OVERDRIVE_TEST_ACT";

/// Begins the lines that are not the test harness's.
const SAYS: &str = "rank says ";

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn mesh(size: usize) -> Mesh {
    Mesh::new([("data", size / 2), ("tensor", 2)])
}

/// A rank of ours.
struct Rank {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Rank {
    fn start(launch: &Launch, act: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["rank_of_a_test", "--exact", "--nocapture"]).envs(launch.variables());
        command.env(ACT, act).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, to, from: BufReader::new(from) }
    }

    /// The next thing that it says, or `ended`.
    fn says(&mut self) -> String {
        let mut line = String::new();
        while self.from.read_line(&mut line).unwrap() > 0 {
            // The harness writes the test's name before the first line.
            if let Some((_, said)) = line.trim_end().split_once(SAYS) {
                return said.to_owned();
            }
            line.clear();
        }
        self.child.wait().unwrap();
        "ended".to_owned()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts all ranks of a run; `act` says what each does.
fn start(size: usize, act: impl Fn(usize) -> String) -> Vec<Rank> {
    let port = free_port();
    let launch = |rank| Launch::local(rank, size, port, "test");
    (0..size).map(|rank| Rank::start(&launch(rank), &act(rank))).collect()
}

/// Shows bytes to a group, and returns the bytes of all members.
fn shown(
    rank: &Arc<dyn Communicator>,
    axis: &str,
    bytes: &[u8],
) -> Result<Vec<Vec<u8>>, RankError> {
    let along = rank.mesh().along(&axis.into());
    let group = rank.mesh().group_of(rank.rank(), &along);
    let mut all = vec![];
    let exchange = Exchange { group: &group, what: axis, bytes };
    rank.share(&exchange, &mut |_, bytes| all.push(bytes.to_vec()))?;
    Ok(all)
}

/// Says something to the test that started this rank.
fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{SAYS}{what}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// Waits until that test says something.
fn heed() {
    std::io::stdin().lock().read_line(&mut String::new()).unwrap();
}

/// No test: what the processes of the tests run.
#[test]
fn rank_of_a_test() {
    let Ok(act) = std::env::var(ACT) else { return };
    let mut words = act.split(' ');
    let (act, patience) = (words.next().unwrap(), words.next().unwrap().parse().unwrap());
    let launch = Launch::of_environment().unwrap().unwrap();
    let joined = join(&launch, &mesh(launch.size), Duration::from_millis(patience));
    let done = joined.and_then(|rank| acts(act, &rank));
    match done {
        Ok(()) => say("done"),
        Err(error) => say(&error.to_string()),
    }
}

fn acts(act: &str, rank: &Arc<dyn Communicator>) -> Result<(), RankError> {
    let me = rank.rank() as u8;
    for turn in 0..20u8 {
        let first = me / 2 * 2;
        let pair: Vec<Vec<u8>> = (first..first + 2).map(|r| vec![r, turn]).collect();
        assert_eq!(shown(rank, "tensor", &[me, turn])?, pair);
        // Different lengths, one of them longer than the system's buffers.
        let long = vec![turn; 1 + usize::from(me / 2) * 3_000_000];
        let all = shown(rank, "data", &long)?;
        assert!(all.iter().all(|bytes| bytes.iter().all(|byte| *byte == turn)));
        let lengths: Vec<usize> = all.iter().map(Vec::len).collect();
        assert_eq!(lengths, (0..lengths.len()).map(|r| 1 + r * 3_000_000).collect::<Vec<_>>());
    }
    match act {
        // The test ends the process while it waits.
        "stays" => {
            say("ready");
            heed();
        }
        // The same; then comes to an exchange.
        "meets" => {
            say("ready");
            heed();
            shown(rank, "tensor", &[])?;
        }
        // Waits for the others, who do not come.
        "waits" => {
            say("ready");
            shown(rank, "data", &[])?;
        }
        // Works by itself, and looks after the others.
        "works" => {
            say("ready");
            while rank.check().is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
            return rank.check();
        }
        "errs" => {
            say("ready");
            return Ok(());
        }
        "differs" => return agree(rank.as_ref(), "the model", &format!("batch {}", me / 3)),
        // Rank 0 is done first; the others go on without it.
        _ if me == 0 => {}
        _ => {
            if me >= 2 {
                shown(rank, "tensor", &[7])?;
            }
        }
    }
    rank.leave();
    Ok(())
}

/// Longer than any test waits, where nothing is to be late; in milliseconds.
const PATIENT: &str = "300000";

#[test]
fn all_see_what_each_shows_and_leave_in_any_order() {
    for mut rank in start(4, |_| format!("shows {PATIENT}")) {
        assert_eq!(rank.says(), "done");
    }
}

/// Errors of the other ranks, after one has ended early, killed or by itself.
fn without(gone: usize, act: &str) {
    let acts = |rank| match rank {
        r if r == gone => format!("{act} {PATIENT}"),
        // Ranks 0 and 2, 1 and 3 are pairs along `data`: one waits for who is gone, others work.
        r if r % 2 == gone % 2 => format!("waits {PATIENT}"),
        _ => format!("works {PATIENT}"),
    };
    let mut ranks = start(4, acts);
    if act == "stays" {
        for rank in &mut ranks {
            assert_eq!(rank.says(), "ready");
        }
        ranks[gone].child.kill().unwrap();
    }
    for (number, rank) in ranks.iter_mut().enumerate().filter(|(number, _)| *number != gone) {
        // One that ends by itself may be gone before another is ready.
        let said = match rank.says() {
            first if first == "ready" => rank.says(),
            first => first,
        };
        assert!(said.starts_with(&format!("rank {gone} ended, while others")), "{number}: {said}");
    }
}

#[test]
fn a_killed_rank_is_named_to_all() {
    without(3, "stays");
    without(2, "stays");
}

#[test]
fn so_is_rank_0_which_carries_the_bytes() {
    without(0, "stays");
}

#[test]
fn so_is_a_rank_that_ends_by_itself_without_leaving() {
    without(1, "errs");
    without(0, "errs");
}

#[test]
fn a_rank_that_hangs_is_named_and_all_end() {
    for hung in [0, 2] {
        let act = |rank| match rank {
            r if r == hung => "stays 8000".to_owned(),
            _ => "waits 8000".to_owned(),
        };
        let mut ranks = start(4, act);
        for rank in &mut ranks {
            assert_eq!(rank.says(), "ready");
        }
        for (number, rank) in ranks.iter_mut().enumerate().filter(|(n, _)| n % 2 == hung % 2) {
            if number != hung {
                let said = rank.says();
                let expected = format!("rank {hung} did not come to data in 8 s");
                assert!(said.starts_with(&expected), "rank {number}: {said}");
            }
        }
        // It finds out itself as soon as it goes on.
        let to = &mut ranks[hung].to;
        to.write_all(b"go on\n").unwrap();
    }
}

/// A rank whose process is stopped is named in seconds, also the one that carries the bytes, and
/// whether others wait for it or work.
#[cfg(unix)]
#[test]
fn a_stopped_rank_is_named_long_before_the_patience_ends() {
    for stopped in [3, 0] {
        let act = |rank| match rank {
            r if r == stopped => format!("stays {PATIENT}"),
            r if r % 2 == stopped % 2 => format!("waits {PATIENT}"),
            _ => format!("works {PATIENT}"),
        };
        let mut ranks = start(4, act);
        for rank in &mut ranks {
            assert_eq!(rank.says(), "ready");
        }
        let stop = format!("kill -s STOP {}", ranks[stopped].child.id());
        assert!(Command::new("sh").args(["-c", &stop]).status().unwrap().success());
        for (number, rank) in ranks.iter_mut().enumerate().filter(|(r, _)| *r != stopped) {
            let said = rank.says();
            let expected = format!(
                "cannot reach rank {stopped}: expected a sign of life each second, found none for \
                 15 s"
            );
            assert!(said.starts_with(&expected), "rank {number}: {said}");
        }
    }
}

/// One that computes for longer gives signs of life.
#[test]
fn a_busy_rank_is_waited_for() {
    let mut ranks = start(4, |_| format!("meets {PATIENT}"));
    for rank in &mut ranks {
        assert_eq!(rank.says(), "ready");
    }
    for number in [1, 2, 3] {
        ranks[number].to.write_all(b"go on\n").unwrap();
    }
    std::thread::sleep(Duration::from_secs(18));
    ranks[0].to.write_all(b"go on\n").unwrap();
    for rank in &mut ranks {
        assert_eq!(rank.says(), "done");
    }
}

/// How a link fails.
#[derive(Copy, Clone, PartialEq)]
enum Fault {
    /// Both ends find the connection closed.
    Cut,
    /// Nothing arrives any more, and nobody is told.
    Lost,
}

/// A port whose connection to `port` fails after so many bytes to it, in the middle of a message.
fn failing(port: u16, bytes: u64, fault: Fault) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (rank, _) = listener.accept().unwrap();
        let first = loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => break stream,
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        };
        let (back, forth) = (first.try_clone().unwrap(), rank.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut &back, &mut &forth));
        std::io::copy(&mut (&rank).take(bytes), &mut &first).unwrap();
        if fault == Fault::Lost {
            // Both connections stay open until the ranks have ended.
            let _ = std::io::copy(&mut &rank, &mut std::io::sink());
        }
        let _ = first.shutdown(Shutdown::Both);
        let _ = rank.shutdown(Shutdown::Both);
    });
    own
}

/// The last words of all ranks, of which rank 2 has a link that fails in its second long message.
fn with_failing(fault: Fault, patience: &str) -> Vec<Rank> {
    let port = free_port();
    let link = failing(port, 5_000_000, fault);
    let start = |rank| {
        let port = if rank == 2 { link } else { port };
        Rank::start(&Launch::local(rank, 4, port, "test"), &format!("shows {patience}"))
    };
    (0..4).map(start).collect()
}

#[test]
fn a_connection_that_is_cut_in_a_message_names_its_rank_to_all() {
    let mut ranks = with_failing(Fault::Cut, PATIENT);
    for number in [0, 1, 3] {
        let said = ranks[number].says();
        assert!(said.starts_with("rank 2 ended, while others"), "{number}: {said}");
    }
    // From there it is rank 0 that has gone.
    let said = ranks[2].says();
    assert!(said.starts_with("rank 0 ended, while others"), "{said}");
}

#[test]
fn a_message_that_is_lost_names_its_rank_to_all() {
    let mut ranks = with_failing(Fault::Lost, "8000");
    for number in [0, 1, 3] {
        let said = ranks[number].says();
        assert!(said.starts_with("rank 2 did not come to"), "{number}: {said}");
    }
}

/// So are its signs of life, which are missed before the patience ends.
#[test]
fn a_link_that_carries_nothing_names_its_rank_to_all() {
    let mut ranks = with_failing(Fault::Lost, PATIENT);
    for rank in &mut ranks {
        let said = rank.says();
        assert!(said.starts_with("cannot reach rank 2: expected a sign of life"), "{said}");
    }
}

#[test]
fn ranks_that_differ_are_told_what_both_have() {
    let mut ranks = start(4, |_| format!("differs {PATIENT}"));
    for rank in &mut ranks {
        let said = rank.says();
        let both = "rank 3: expected the model `batch 0`, as rank 0 has, found the model `batch 1`";
        assert!(said.starts_with(both), "{said}");
    }
}

#[test]
fn a_port_that_is_taken_is_told() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let mut first = Rank::start(&Launch::local(0, 2, port, "test"), &format!("shows {PATIENT}"));
    let said = first.says();
    assert!(said.contains(&format!("expected port {port} of 127.0.0.1 to be free")), "{said}");
    assert!(said.contains("MASTER_PORT"), "{said}");
}

/// A stand-in for torchrun's store: it holds a port, and hangs up on whoever does not speak to it
/// as its clients do.
fn store(listener: TcpListener) {
    std::thread::spawn(move || listener.incoming().for_each(drop));
}

/// Listeners at this many neighbouring ports.
fn neighbours(count: u16) -> Vec<TcpListener> {
    loop {
        let Some(end) = free_port().checked_add(count + 16) else { continue };
        let ports = end - count - 16..end - 16;
        let bound: Result<Vec<_>, _> =
            ports.map(|port| TcpListener::bind(("127.0.0.1", port))).collect();
        if let Ok(bound) = bound {
            return bound;
        }
    }
}

#[test]
fn ranks_meet_beside_the_store_of_their_launcher() {
    // The stores of two jobs that torchrun calls the same, and a program that says nothing.
    let mut held = neighbours(3);
    let _silent = held.pop();
    let ports: Vec<u16> = held.iter().map(|held| held.local_addr().unwrap().port()).collect();
    held.into_iter().for_each(store);
    let launch = |rank, port| Launch { port_is_held: true, ..Launch::local(rank, 2, port, "none") };
    let start = |(rank, port)| Rank::start(&launch(rank, port), &format!("shows {PATIENT}"));
    let ranks = [(1, ports[0]), (1, ports[1]), (0, ports[1]), (0, ports[0])].map(start);
    for mut rank in ranks {
        assert_eq!(rank.says(), "done");
    }
}

#[test]
fn another_program_at_the_port_is_no_rank_0() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let web = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        // The connection must stay open until its greeting was read.
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let mut other = Rank::start(&Launch::local(1, 2, port, "test"), &format!("shows {PATIENT}"));
    let said = other.says();
    assert!(said.contains("found another program; choose another port"), "{said}");
    drop(other);
    web.join().unwrap();
}

#[test]
fn strangers_do_not_disturb_and_other_runs_are_sent_away() {
    let port = free_port();
    let launch = |rank| Launch::local(rank, 2, port, "test");
    let mut first = Rank::start(&launch(0), &format!("shows {PATIENT}"));
    let stranger = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(mut stream) => {
                stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
                break stream;
            }
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let of_another = Launch { run: "another".to_owned(), ..launch(1) };
    let mut of_another = Rank::start(&of_another, &format!("shows {PATIENT}"));
    let said = of_another.says();
    assert!(said.contains("expected this run at its address, found another"), "{said}");
    let mut second = Rank::start(&launch(1), &format!("shows {PATIENT}"));
    assert_eq!([first.says(), second.says()], ["done", "done"]);
    drop(stranger);
}

#[test]
fn whoever_does_not_come_to_the_meeting_is_named() {
    let port = free_port();
    let of = |rank| Rank::start(&Launch::local(rank, 4, port, "test"), "shows 8000");
    let mut here = [of(0), of(2)];
    for rank in &mut here {
        let said = rank.says();
        assert!(said.starts_with("rank 1 did not come to the meeting of all ranks"), "{said}");
    }
    let mut alone = Rank::start(&Launch::local(1, 4, free_port(), "test"), "shows 500");
    let said = alone.says();
    assert!(said.contains("expected it to listen at port"), "{said}");
}
