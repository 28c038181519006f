//! Collectives by copies between all GPUs of this host, up to four. Their bytes are the CPU's, also
//! in calls in a row whose data change. Ranks that fail end the others. Ranks are threads, and
//! processes: this program starts itself again for each of those.
//!
//! A program of its own: GPUs wait for one another, and other tests would hold one of them up.
//!
//! Long because threads and processes run the same cases.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

#[path = "all/support/mod.rs"]
#[allow(dead_code, unused_imports)] // A part is enough here.
mod support;

use overdrive_cpu::CpuBackend;
use overdrive_cuda::CudaBackend;
use overdrive_ir::plan::{Note, Plan};
use overdrive_ir::{
    Backend, BackendError, Builder, Channel, Choice, Communicator, DType, Expr, Graph, Mesh, Mode,
    Prim, RankError, State, Tensor, TensorType, Tuning,
};
use overdrive_ranks::{Launch, join, run};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use support::gpu::ranks;

const PATIENCE: Duration = Duration::from_secs(60);

fn mesh(ranks: usize) -> Mesh {
    Mesh::new([("data", ranks)])
}

/// A tuning that remembers one way for collectives of every size.
fn always(way: &str, ranks: usize) -> Tuning {
    let choice =
        |candidate: &str| Choice { candidate: candidate.to_owned(), timings_ns: BTreeMap::new() };
    let names = ["permute", "all_gather", "all_to_all"];
    let keys = names.into_iter().flat_map(|name| {
        (12..=26)
            .map(move |power| format!("{name} of {} bytes between {ranks} GPUs", 1usize << power))
    });
    Tuning { choices: keys.map(|key| (key, choice(way))).collect(), ..Tuning::default() }
}

/// The reasons against copies that a plan has, one for each collective.
fn declined(plan: &Plan) -> Vec<&str> {
    let reasons = plan.notes.iter().filter_map(|note| match note {
        Note::Declined { what, reason, .. } if what.contains("by copies between GPUs") => {
            Some(reason.as_str())
        }
        _ => None,
    });
    reasons.collect()
}

fn collective<'b>(x: Expr<'b>, ranks: usize, prim: impl FnOnce(Channel) -> Prim) -> Expr<'b> {
    let b = x.builder();
    b.op1(prim(Channel { id: b.channel(), group: mesh(ranks) }), &[x])
}

/// From each rank to the next.
fn ring(ranks: usize) -> Vec<(usize, usize)> {
    (0..ranks).map(|rank| (rank, (rank + 1) % ranks)).collect()
}

/// Collectives on bytes, each followed by a ring. The results of the first ones stay inside of the
/// graph, so that copies can do them. The rings write outputs, so that NCCL does them.
struct Case {
    name: String,
    graph: Graph,
}

/// Inputs of `bytes` bytes for each of `inputs`.
fn case(
    name: &str,
    (ranks, inputs, bytes): (usize, usize, usize),
    prim: impl Fn(Channel) -> Prim,
) -> Case {
    let b = Builder::new("collectives");
    for index in 0..inputs {
        let x = b.input(&format!("x{index}"), TensorType::new(DType::U8, [bytes]));
        let y = collective(x, ranks, &prim);
        let z = collective(y, ranks, |channel| Prim::Permute { pairs: ring(ranks), channel });
        b.output(&format!("z{index}"), z);
    }
    let name = format!("{name} of {inputs} times {bytes} bytes");
    Case { name, graph: b.finish().unwrap() }
}

/// Every collective that copies can do, on inputs of about `bytes` bytes.
fn cases(ranks: usize, bytes: usize) -> Vec<Case> {
    let permute = |name: &str, pairs: Vec<(usize, usize)>| {
        case(name, (ranks, 1, bytes), move |channel| Prim::Permute {
            pairs: pairs.clone(),
            channel,
        })
    };
    let back = ring(ranks).into_iter().map(|(from, to)| (to, from)).collect();
    let gather = |channel| Prim::AllGather { axis: 0, channel };
    let parts = (ranks, 1, bytes.div_ceil(ranks) * ranks);
    vec![
        permute("ring", ring(ranks)),
        permute("ring back", back),
        permute("one way", vec![(1, 0)]),
        permute("to itself and on", vec![(0, 0), (1, ranks - 1)]),
        case("gather", (ranks, 1, bytes), gather),
        case("gathers in a bucket", (ranks, 3, bytes), gather),
        case("all to all", parts, |channel| Prim::AllToAll { split: 0, concat: 0, channel }),
    ]
}

/// Bytes that tell rank, input, call and place.
fn content(graph: &Graph, rank: usize, call: usize) -> Vec<Tensor> {
    let tensor = |index: usize| {
        let ty = graph.ty(graph.inputs()[index].value).clone();
        let own = rank * 31 + index * 57 + call * 13;
        let bytes: Vec<u8> = (0..ty.bytes()).map(|at| (own + at * 7 + at / 251) as u8).collect();
        Tensor::from_bytes(ty, bytes).unwrap()
    };
    (0..graph.inputs().len()).map(tensor).collect()
}

/// Calls under way at a time.
const AT_ONCE: usize = 4;

/// Results of calls in a row, some of them under way at the same time, and what the plan declines.
type Called = (Vec<Vec<Tensor>>, Vec<String>);

fn called(
    backend: &dyn Backend,
    (graph, mode, tuning): (&Graph, Mode, &Tuning),
    (rank, calls): (usize, usize),
) -> Result<Called, BackendError> {
    let mut session = backend.compile(graph, mode, tuning)?.session()?;
    let mut state = State::default();
    let mut results = vec![];
    for first in (0..calls).step_by(AT_ONCE) {
        let mut under_way = vec![];
        for call in first..calls.min(first + AT_ONCE) {
            let inputs = content(graph, rank, call);
            let inputs: Vec<_> =
                inputs.iter().map(|x| backend.upload(x)).collect::<Result<_, _>>()?;
            let types = graph.outputs().iter().map(|port| graph.ty(port.value));
            let mut outputs: Vec<_> =
                types.map(|ty| backend.output(ty)).collect::<Result<_, _>>()?;
            let pending = session.run(state.with(&inputs, &mut outputs))?;
            under_way.push((pending, inputs, outputs));
        }
        for (pending, _, outputs) in under_way {
            pending.wait()?;
            let of_call = outputs.iter().map(|x| backend.download(x)).collect::<Result<_, _>>()?;
            results.push(of_call);
        }
    }
    let declined = declined(session.plan()).into_iter().map(str::to_owned).collect();
    Ok((results, declined))
}

fn on_gpu(rank: &Arc<dyn Communicator>) -> Result<CudaBackend, BackendError> {
    let opened = CudaBackend::new(rank.rank()).map_err(|error| error.during("opening the GPU"))?;
    Ok(opened.on(Arc::clone(rank)))
}

/// Results of a rank on the CPU.
fn expected(case: &Case, ranks: usize, calls: usize) -> Vec<Vec<Vec<Tensor>>> {
    let results = run(&mesh(ranks), PATIENCE, |rank| {
        let backend = CpuBackend::new(Some(1))?.on(Arc::clone(&rank));
        let tuning = Tuning::default();
        Ok(called(&backend, (&case.graph, Mode::Compile, &tuning), (rank.rank(), calls))?.0)
    });
    results.into_iter().map(|of_rank: Result<_, BackendError>| of_rank.unwrap()).collect()
}

/// Fails unless all ranks have exactly the CPU's bytes, by copies where the tuning says so. They
/// meet once for all cases, which takes longer than a case.
fn are_exact(cases: &[Case], ranks: usize, (mode, tuning): (Mode, &Tuning), calls: usize) {
    let found = run(&mesh(ranks), PATIENCE, |rank| {
        let backend = on_gpu(&rank)?;
        let of_case =
            |case: &Case| called(&backend, (&case.graph, mode, tuning), (rank.rank(), calls));
        cases.iter().map(of_case).collect::<Result<Vec<_>, BackendError>>()
    });
    let found: Vec<Vec<Called>> = found
        .into_iter()
        .map(|of_rank| of_rank.unwrap_or_else(|e| panic!("in {mode}: {e}")))
        .collect();
    let by_copies = tuning.choices.values().any(|choice| choice.candidate == "copies");
    for (index, case) in cases.iter().enumerate() {
        for (rank, expected) in expected(case, ranks, calls).iter().enumerate() {
            let (found, declined) = &found[rank][index];
            for (call, (expected, found)) in expected.iter().zip(found).enumerate() {
                assert!(expected == found, "{} in {mode}: rank {rank}, call {call}", case.name);
            }
            if by_copies {
                let rings = case.graph.outputs().len();
                assert_eq!(declined.len(), rings, "{}: {declined:?}", case.name);
                for reason in declined {
                    assert!(reason.contains("no fixed address"), "{}: {reason}", case.name);
                }
            }
        }
    }
}

#[test]
fn copies_move_the_bytes_that_the_cpu_moves() {
    let Some(ranks) = ranks() else { return };
    let by_copies = always("copies", ranks);
    for bytes in [ranks, 1001, 65_537, (3 << 20) + 5] {
        for mode in [Mode::Compile, Mode::Graph] {
            are_exact(&cases(ranks, bytes), ranks, (mode, &by_copies), 3);
        }
    }
}

#[test]
fn the_timed_choice_and_nccl_move_the_same() {
    let Some(ranks) = ranks() else { return };
    let cases = cases(ranks, (1 << 20) + 3);
    are_exact(&cases, ranks, (Mode::Compile, &Tuning::default()), 2);
    are_exact(&cases, ranks, (Mode::Compile, &always("nccl", ranks)), 2);
}

/// Ranks that remember different choices are at no odds: all take the timed one.
#[test]
fn ranks_that_remember_different_choices_agree() {
    let Some(ranks) = ranks() else { return };
    let case = &cases(ranks, 5000)[0];
    let expected = expected(case, ranks, 1);
    let found = run(&mesh(ranks), PATIENCE, |rank| {
        let way = if rank.rank() == 0 { "copies" } else { "nccl" };
        let backend = on_gpu(&rank)?;
        called(&backend, (&case.graph, Mode::Compile, &always(way, ranks)), (rank.rank(), 1))
    });
    for (expected, found) in expected.iter().zip(found) {
        assert!(*expected == found.unwrap().0);
    }
}

#[test]
fn a_hundred_calls_with_other_data_each_do_not_race() {
    let Some(ranks) = ranks() else { return };
    let by_copies = always("copies", ranks);
    for bytes in [4097, (1 << 20) + 1] {
        are_exact(&cases(ranks, bytes), ranks, (Mode::Compile, &by_copies), 100);
    }
}

/// Eager calls place results anew each time: NCCL moves them, and the plan says why.
#[test]
fn eager_calls_go_by_nccl() {
    let Some(ranks) = ranks() else { return };
    for case in cases(ranks, 1001) {
        let expected = expected(&case, ranks, 1);
        let found = run(&mesh(ranks), PATIENCE, |rank| {
            let backend = on_gpu(&rank)?;
            let tuning = always("copies", ranks);
            called(&backend, (&case.graph, Mode::Eager, &tuning), (rank.rank(), 1))
        });
        for (expected, found) in expected.iter().zip(found) {
            let (found, declined) = found.unwrap();
            assert!(*expected == found, "{}", case.name);
            assert!(declined.len() > case.graph.outputs().len(), "{declined:?}");
        }
    }
}

/// A call, again and again, until something ends it or `most` calls are over.
fn turns(rank: &Arc<dyn Communicator>, ranks: usize, most: usize) -> Result<(), BackendError> {
    let case = &cases(ranks, 1 << 20)[0];
    let backend = on_gpu(rank)?;
    let mode = Mode::Compile;
    let mut session = backend.compile(&case.graph, mode, &always("copies", ranks))?.session()?;
    let mut state = State::default();
    let inputs = content(&case.graph, rank.rank(), 0);
    let inputs: Vec<_> = inputs.iter().map(|x| backend.upload(x)).collect::<Result<_, _>>()?;
    let types = case.graph.outputs().iter().map(|port| case.graph.ty(port.value));
    let mut outputs: Vec<_> = types.map(|ty| backend.output(ty)).collect::<Result<_, _>>()?;
    for turn in 0..most {
        session.run(state.with(&inputs, &mut outputs))?.wait()?;
        if turn == 0 {
            say("ready");
        }
    }
    Ok(())
}

#[test]
fn a_rank_that_fails_ends_the_others() {
    let Some(ranks) = ranks() else { return };
    let found = run(&mesh(ranks), PATIENCE, |rank| {
        if rank.rank() == 1 {
            turns(&rank, ranks, 3)?;
            return Err(BackendError::Device { step: "test".into(), message: "lost".into() });
        }
        turns(&rank, ranks, usize::MAX)
    });
    for (rank, result) in found.into_iter().enumerate().filter(|(rank, _)| *rank != 1) {
        let error = result.unwrap_err();
        let names = matches!(error, BackendError::Ranks(RankError::Gone { rank: 1, .. }));
        assert!(names, "rank {rank}: {error}");
    }
}

/// The task of a rank that is a process. It is no variable of a launcher.
const ACT: &str = "OVERDRIVE_TEST_ACT";

/// Begins the lines that are not the test harness's.
const SAYS: &str = "rank says ";

/// Says something to the test that started this rank.
fn say(what: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(format!("\n{SAYS}{what}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

/// No test: the work of a rank that is a process.
#[test]
fn rank_of_a_test() {
    let Ok(act) = std::env::var(ACT) else { return };
    let launch = Launch::of_environment().unwrap().unwrap();
    let size = launch.size;
    let joined = join(&launch, &mesh(size), PATIENCE).map_err(BackendError::Ranks);
    let done = joined.and_then(|rank| {
        match act.as_str() {
            "moves" => moves(&rank, size)?,
            _ => turns(&rank, size, usize::MAX)?,
        }
        rank.leave();
        Ok(())
    });
    match done {
        Ok(()) => say("done"),
        Err(error) => say(&error.to_string()),
    }
}

/// Calls of every case, compared with the CPU's, which this process computes for all ranks.
fn moves(rank: &Arc<dyn Communicator>, ranks: usize) -> Result<(), BackendError> {
    let (backend, calls) = (on_gpu(rank)?, 20);
    for bytes in [1001, (1 << 20) + 3] {
        for case in cases(ranks, bytes) {
            let work = (&case.graph, Mode::Compile, &always("copies", ranks));
            let (found, declined) = called(&backend, work, (rank.rank(), calls))?;
            let expected = &expected(&case, ranks, calls)[rank.rank()];
            assert!(*expected == found, "{}", case.name);
            assert_eq!(declined.len(), case.graph.outputs().len(), "{declined:?}");
        }
    }
    Ok(())
}

/// A rank of ours.
struct Rank {
    child: Child,
    from: BufReader<ChildStdout>,
}

impl Rank {
    fn start(launch: &Launch, act: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["rank_of_a_test", "--exact", "--nocapture"]).envs(launch.variables());
        command.env(ACT, act).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let from = BufReader::new(child.stdout.take().unwrap());
        Self { child, from }
    }

    /// The next thing that it says, or `ended`.
    fn says(&mut self) -> String {
        let mut line = String::new();
        while self.from.read_line(&mut line).unwrap() > 0 {
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

fn start(ranks: usize, act: &str) -> Vec<Rank> {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    (0..ranks).map(|rank| Rank::start(&Launch::local(rank, ranks, port, "test"), act)).collect()
}

#[test]
fn ranks_that_are_processes_move_the_same() {
    let Some(ranks) = ranks() else { return };
    for (number, rank) in start(ranks, "moves").iter_mut().enumerate() {
        assert_eq!(rank.says(), "done", "rank {number}");
    }
}

#[test]
fn a_process_that_is_killed_ends_the_others() {
    let Some(ranks) = ranks() else { return };
    let mut all = start(ranks, "turns");
    for (number, rank) in all.iter_mut().enumerate() {
        assert_eq!(rank.says(), "ready", "rank {number}");
    }
    all[1].child.kill().unwrap();
    for (number, rank) in all.iter_mut().enumerate().filter(|(number, _)| *number != 1) {
        let said = rank.says();
        assert!(said.starts_with("rank 1 ended, while others"), "rank {number}: {said}");
    }
}
