//! Ranks that mpirun started, in a program with the feature `mpi`. Results are, bit for bit, those
//! of ranks that are threads or use TCP. Failures name the rank that failed. Without mpirun every
//! test here fails.

use crate::invocation::Folder;
use crate::signals::{Underway, is_gone, send};
use overdrive::cpu::CpuBackend;
use overdrive::formats;
use overdrive::ir::eval::philox;
use overdrive::ir::{
    Array, Backend, BackendError, Builder, Channel, Communicator, DType, Graph, Mesh, Mode, Prim,
    Reducer, State, Tensor, TensorType, Tuning,
};
use overdrive::ranks::{Launch, Transport, join, run};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// `--bind-to none`: ranks of several tests run at once, and would have the same cores.
const MPIRUN: &str = "mpirun --allow-run-as-root --oversubscribe --bind-to none";

const TRAIN: &str = "overdrive train digits-mlp --data digits --device cpu --batch 24 --threads 1";

/// Longer than any test waits.
const PATIENCE: Duration = Duration::from_secs(300);

/// Divisible by 2, 3 and 4 ranks along each axis.
const SIZES: [usize; 2] = [12, 24];

/// Set in the processes of the test of collectives.
const IS_RANK: &str = "OVERDRIVE_TEST_RANK";

/// Every collective along `data`, of values whose sums depend on their order.
fn collectives(mesh: &Mesh) -> Vec<(Graph, DType)> {
    let ranks = mesh.ranks();
    let mut all = vec![];
    let mut add = |dtype, prim: &dyn Fn(Channel) -> Prim| {
        let b = Builder::new("collective");
        let x = b.input("x", TensorType::new(dtype, SIZES));
        let channel = Channel { id: b.channel(), group: mesh.along(&"data".into()) };
        b.output("y", b.op1(prim(channel), &[x]));
        all.push((b.finish().unwrap(), dtype));
    };
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I32] {
        for reducer in [Reducer::Sum, Reducer::Prod, Reducer::Max, Reducer::Min] {
            add(dtype, &|channel| Prim::AllReduce { reducer, channel });
        }
        for axis in 0..2 {
            let reducer = Reducer::Sum;
            add(dtype, &|channel| Prim::ReduceScatter { reducer, axis, channel });
            add(dtype, &|channel| Prim::AllGather { axis, channel });
            add(dtype, &|channel| Prim::AllToAll { split: axis, concat: 1 - axis, channel });
        }
        let pairs: Vec<_> = (1..ranks).map(|rank| (rank, rank - 1)).collect();
        add(dtype, &|channel| Prim::Permute { pairs: pairs.clone(), channel });
    }
    all
}

/// The results of each collective on a rank.
fn results(rank: &Arc<dyn Communicator>) -> Result<Vec<Tensor>, BackendError> {
    let backend = CpuBackend::new(Some(1))?.on(Arc::clone(rank));
    let mut all = vec![];
    for (graph, dtype) in collectives(rank.mesh()) {
        let value = |at: &[usize]| {
            let bits = philox::bits(7, rank.rank() as u64, (at[0] * SIZES[1] + at[1]) as u64);
            f64::from(bits) / f64::from(1 << 28) - 8.0
        };
        let input = Array::build(dtype, &SIZES, value).to_tensor();
        let mut session = backend.compile(&graph, Mode::Compile, &Tuning::default())?.session()?;
        let mut state = State::initial(&graph, &backend)?;
        let mut outputs = vec![backend.output(graph.ty(graph.outputs()[0].value))?];
        session.run(state.with(&[backend.upload(&input)?], &mut outputs))?.wait()?;
        all.push(backend.download(&outputs[0])?);
    }
    Ok(all)
}

/// No test: what the processes of the test of collectives run.
#[test]
fn rank_of_a_test() {
    if std::env::var_os(IS_RANK).is_none() {
        return;
    }
    let launch = Launch::of_environment().unwrap().unwrap();
    assert_eq!(launch.transport, Transport::Mpi);
    let mesh = Mesh::new([("data", launch.size)]);
    let rank = join(&launch, &mesh, PATIENCE).unwrap();
    let found = results(&rank).unwrap();
    let threads = run(&mesh, PATIENCE, |rank| results(&rank));
    let expected = threads[launch.rank].as_ref().unwrap();
    assert_eq!(found.len(), expected.len());
    for ((graph, _), pair) in collectives(&mesh).iter().zip(found.iter().zip(expected)) {
        assert!(pair.0 == pair.1, "rank {}: {graph}", launch.rank);
    }
    rank.leave();
}

#[test]
fn every_collective_is_bit_for_bit_that_of_threads() {
    let folder = Folder::new();
    let own = std::env::current_exe().unwrap();
    for ranks in [2, 3, 4] {
        let line = format!(
            "{IS_RANK}=1 {MPIRUN} -n {ranks} {} mpi::rank_of_a_test --exact --nocapture",
            own.display()
        );
        let ended = folder.shell(&line);
        ended.ends(0, &[]);
        assert_eq!(ended.stdout.matches("1 passed").count(), ranks, "{ended:?}");
    }
}

#[test]
fn training_gives_the_bits_of_ranks_over_tcp() {
    let folder = Folder::new();
    for (ranks, more) in [(2, ""), (3, "--shard optimizer"), (4, "")] {
        let line = format!("{TRAIN} --steps 8 {more} --nproc {ranks} -o tcp{ranks}");
        folder.shell(&line).ends(0, &[&format!("note: {ranks} ranks exchange over TCP")]);
        let line = format!("{MPIRUN} -n {ranks} {TRAIN} --steps 8 {more} -o mpi{ranks}");
        let ended = folder.shell(&line);
        ended.ends(0, &[&format!("note: {ranks} ranks exchange over MPI")]);
        assert_eq!(ended.stdout.matches("model: ").count(), 1, "one of them speaks: {ended:?}");
        let states = |name: String| {
            formats::safetensors::read(&folder.path(&name).join("model.safetensors")).unwrap()
        };
        assert!(states(format!("tcp{ranks}")) == states(format!("mpi{ranks}")), "{ranks} ranks");
    }
}

/// Ranks by their number, in a run of a folder.
fn ranks_of(folder: &Path, count: usize) -> Vec<u32> {
    let folder = folder.canonicalize().unwrap();
    let mut ranks = vec![0; count];
    while ranks.contains(&0) {
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let process = entry.path();
            if fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == folder) {
                let variables = fs::read(process.join("environ")).unwrap_or_default();
                let variables = String::from_utf8_lossy(&variables).into_owned();
                let rank = variables
                    .split('\0')
                    .find_map(|text| text.strip_prefix("OMPI_COMM_WORLD_RANK="))
                    .and_then(|rank| rank.parse::<usize>().ok());
                if let Some(rank) = rank {
                    ranks[rank] = entry.file_name().to_string_lossy().parse().unwrap();
                }
            }
        }
    }
    ranks
}

/// A long run, and its ranks once they train.
fn underway(folder: &Folder, count: usize) -> (Underway, Vec<u32>) {
    let program = env!("CARGO_BIN_EXE_overdrive");
    let train = TRAIN.strip_prefix("overdrive").unwrap();
    let more = "--steps 1000000000 --rank-timeout 15 -o model";
    let line = format!("{MPIRUN} -n {count} {program}{train} {more}");
    let words: Vec<&str> = line.split(' ').collect();
    let mut underway = Underway::with(folder, words[0], &words[1..], &[]);
    underway.says("validation loss");
    (underway, ranks_of(&folder.path(""), count))
}

#[test]
fn a_rank_that_is_killed_ends_all_and_is_named() {
    for gone in [0, 1] {
        let folder = Folder::new();
        let (mut underway, ranks) = underway(&folder, 3);
        send("KILL", ranks[gone]);
        let named = format!("process rank {gone} with PID");
        underway.end().ends(137, &[&named, "exited on signal 9"]);
        ranks.into_iter().for_each(|rank| is_gone(&rank.to_string()));
    }
}

#[test]
fn a_rank_that_hangs_ends_all_and_is_named() {
    let folder = Folder::new();
    let (mut underway, ranks) = underway(&folder, 3);
    send("STOP", ranks[1]);
    underway.end().ends(6, &["rank 1 did not come to", "in 15 s"]);
    ranks.into_iter().for_each(|rank| is_gone(&rank.to_string()));
}

#[test]
fn what_one_rank_finds_wrong_ends_all_with_its_exit_code() {
    let folder = Folder::new();
    fs::create_dir(folder.path("model")).unwrap();
    fs::write(folder.path("model/kept"), "").unwrap();
    let ended = folder.shell(&format!("{MPIRUN} -n 3 {TRAIN} --steps 8 -o model"));
    ended.ends(2, &["model", "Exit code:    2"]);
}

#[test]
fn ranks_that_differ_end_before_the_first_step() {
    let folder = Folder::new();
    let part = |lr: &str| format!("-n 1 {TRAIN} --steps 8 --lr {lr} -o model");
    let ended = folder.shell(&format!("{MPIRUN} {} : {}", part("0.1"), part("0.2")));
    assert!([2, 6].contains(&ended.code), "{ended:?}");
    ended.ends(ended.code, &["rank 1: expected", "as rank 0 has, found"]);
    assert!(folder.files().is_empty(), "{:?}", folder.files());
}
