//! Several ranks on the CPU: sharded graphs against the whole graph in f64, each collective against
//! its definition, and ranks that fail.

use overdrive_cpu::CpuBackend;
use overdrive_ir::eval::{States, eval, eval_ranks, philox};
use overdrive_ir::ops::Attention;
use overdrive_ir::{
    Array, Backend, BackendError, Builder, Channel, Communicator, DType, Graph, Mesh, Mode, Port,
    Prim, RankError, Reducer, Sharding, State, Tensor, TensorType, Tuning,
};
use overdrive_passes::{ContextExchange, Sharded, shard, shard_with};
use overdrive_ranks::run;
use std::sync::Arc;
use std::time::Duration;
use testkit::{
    Tolerance, compare, derivative, meshes, random_graph, random_inputs, random_shardings,
};

/// Longer than any test waits.
const PATIENCE: Duration = Duration::from_secs(300);

/// Outputs and states of one rank after two calls.
type Results = (Vec<Tensor>, Vec<Tensor>);

/// Two calls of a graph as one rank.
fn call(
    rank: Arc<dyn Communicator>,
    graph: &Graph,
    mode: Mode,
    inputs: &[Tensor],
) -> Result<Results, BackendError> {
    let backend = CpuBackend::new(Some(1))?.on(rank);
    let mut session = backend.compile(graph, mode, &Tuning::default())?.session()?;
    let mut state = State::initial(graph, &backend)?;
    let inputs: Vec<_> = inputs.iter().map(|x| backend.upload(x)).collect::<Result<_, _>>()?;
    let types = graph.outputs().iter().map(|port| graph.ty(port.value));
    let mut outputs = types.map(|ty| backend.output(ty)).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..2 {
        session.run(state.with(&inputs, &mut outputs))?.wait()?;
    }
    let outputs = outputs.iter().map(|x| backend.download(x)).collect::<Result<_, _>>()?;
    let states = graph.states().iter().map(|s| backend.download(&state.buffers[&s.name]));
    Ok((outputs, states.collect::<Result<_, _>>()?))
}

/// Two calls of all ranks of a sharded graph.
fn call_all(
    sharded: &Sharded,
    (whole, mode): (&Graph, Mode),
    inputs: &[Array],
) -> Result<Vec<Results>, BackendError> {
    let results = run(&sharded.mesh, PATIENCE, |rank| {
        let at = rank.rank();
        let graph = sharded.at_rank(whole, at).unwrap();
        let part = |(x, s): (&Array, &Sharding)| sharded.part(&x.to_tensor(), s, at);
        let inputs: Vec<Tensor> = inputs.iter().zip(&sharded.inputs).map(part).collect();
        call(rank, &graph, mode, &inputs)
    });
    results.into_iter().collect()
}

/// Graphs on up to 8 ranks. Those after them are on 12 and 16.
const SEEDS: u64 = 150;

/// Fails unless the ranks together have the results of the whole graph, twice with the same bits. A
/// graph runs on two meshes, on the second in the mode that moves collectives.
fn agrees(seed: u64, graph: &Graph, inputs: &[Array]) {
    let all = meshes();
    let (few, many) = all.split_at(5);
    let of = if seed < SEEDS { few } else { many };
    let at = |place: u64| &of[place as usize % of.len()];
    let mode = [Mode::Eager, Mode::Jit, Mode::Compile][seed as usize / of.len() % 3];
    agrees_on(at(seed), seed, (graph, mode), inputs);
    agrees_on(at(seed + 3), seed, (graph, Mode::Compile), inputs);
}

/// The same on one mesh.
fn agrees_on(mesh: &Mesh, seed: u64, (graph, mode): (&Graph, Mode), inputs: &[Array]) {
    let sharded = shard(graph, mesh, &random_shardings(graph, mesh, seed)).unwrap();
    let place = format!("seed {seed} on {mesh} in mode {mode}");
    agrees_as(&place, (graph, mode), &sharded, inputs);
}

fn agrees_as(place: &str, (graph, mode): (&Graph, Mode), sharded: &Sharded, inputs: &[Array]) {
    let run = || {
        call_all(sharded, (graph, mode), inputs)
            .unwrap_or_else(|e| panic!("{place}: {e}\n{}", sharded.graph))
    };
    let found = run();
    assert!(found == run(), "{place}: the same ranks give the same bits");
    let mut states = States::new();
    eval(graph, inputs, &mut states);
    let outputs = eval(graph, inputs, &mut states);
    let check = |name: &str, expected: &Array, parts: Vec<Tensor>, sharding: &Sharding| {
        let found = Array::from(&sharded.join(&parts, sharding));
        let magnitude = expected.to_f64().into_iter().fold(1.0, |max: f64, x| max.max(x.abs()));
        let tolerance = Tolerance::new(DType::F64, 1 << 10, magnitude);
        compare(expected, &found, tolerance).unwrap_or_else(|e| panic!("{place}, `{name}`: {e}"));
    };
    for (i, port) in graph.outputs().iter().enumerate() {
        let parts = found.iter().map(|(outputs, _)| outputs[i].clone()).collect();
        check(&port.name, &outputs[i], parts, &sharded.outputs[i]);
    }
    for (i, state) in graph.states().iter().enumerate().filter(|(_, s)| s.update.is_some()) {
        let parts = found.iter().map(|(_, states)| states[i].clone()).collect();
        check(&state.name, &states[&state.name], parts, &sharded.states[i]);
    }
}

#[test]
fn sharded_random_graphs_mean_what_the_whole_graphs_mean() {
    for seed in 0..SEEDS + 12 {
        let graph = random_graph(seed, DType::F64);
        agrees(seed, &graph, &random_inputs(&graph, seed));
    }
}

/// Round a ring, by heads, and both. The plans of ranks differ after the choices by rank; their
/// collectives do not.
#[test]
fn ranks_share_a_sequence_in_every_way() {
    use ContextExchange::{Groups, Ring, Ulysses};
    let b = Builder::new("attention");
    let input = |name: &str, heads| b.input(name, TensorType::new(DType::F64, [2, heads, 16, 4]));
    let (q, k, v) = (input("q", 4), input("k", 2), input("v", 2));
    // As in a model: a projection reads all heads of a position together.
    let joined = q.attention(k, v, Attention::CAUSAL)[0].transpose(&[0, 2, 1, 3]);
    let weight = b.input("weight", TensorType::new(DType::F64, [16usize, 16]));
    b.output("out", joined.reshape([2usize, 16, 16]).linear(weight, None));
    let forward = b.finish().unwrap();
    let inputs = random_inputs(&forward, 1);
    let (gradient, point) = derivative(&forward, &inputs, 1).unwrap();
    for (mesh, exchange) in [
        ("context=2", Ring),
        ("context=4", Ring),
        ("data=2,context=2", Ring),
        ("data=2,context=2", Ulysses),
        ("context=4", Ulysses),
        ("context=4", Groups(2)),
    ] {
        let mesh: Mesh = mesh.parse().unwrap();
        for (graph, inputs) in [(&forward, &inputs), (&gradient, &point)] {
            let sequence = |port: &Port| {
                let to = Sharding::whole(4).and_split(2, &"context".into());
                let is_batched = mesh.axes.len() > 1;
                (port.value, if is_batched { to.and_split(0, &"data".into()) } else { to })
            };
            let is_sequence = |port: &&Port| graph.ty(port.value).rank() == 4;
            let split = graph.inputs().iter().filter(is_sequence).map(sequence).collect();
            let sharded = shard_with(graph, &mesh, &split, Some(exchange)).unwrap();
            for mode in [Mode::Jit, Mode::Compile] {
                agrees_as(
                    &format!("{mesh} by {exchange} in mode {mode}"),
                    (graph, mode),
                    &sharded,
                    inputs,
                );
            }
        }
    }
}

#[test]
fn their_gradients_do_too() {
    for seed in 200..245 {
        let graph = random_graph(seed, DType::F64);
        let (gradient, point) = derivative(&graph, &random_inputs(&graph, seed), seed).unwrap();
        agrees(seed, &gradient, &point);
    }
}

/// Each rank folds what its place makes known. In these graphs collectives would start in an order
/// of its own.
#[test]
fn ranks_that_fold_different_work_start_collectives_in_one_order() {
    let mesh = Mesh::new([("data", 3), ("tensor", 2)]);
    for (seed, is_gradient) in [(80, false), (16, true), (51, true)] {
        let graph = random_graph(seed, DType::F64);
        let inputs = random_inputs(&graph, seed);
        let (graph, inputs) = match is_gradient {
            true => derivative(&graph, &inputs, seed).unwrap(),
            false => (graph, inputs),
        };
        agrees_on(&mesh, seed, (&graph, Mode::Compile), &inputs);
    }
}

const SIZES: [usize; 3] = [4, 6, 12];

fn mesh() -> Mesh {
    Mesh::new([("data", 2), ("tensor", 3)])
}

/// A graph of one collective over `tensor`.
fn of_one(dtype: DType, prim: impl FnOnce(Channel) -> Prim) -> Graph {
    let b = Builder::new("collective");
    let x = b.input("x", TensorType::new(dtype, SIZES));
    let channel = Channel { id: b.channel(), group: mesh().along(&"tensor".into()) };
    b.output("y", b.op1(prim(channel), &[x]));
    b.finish().unwrap()
}

/// Small whole numbers, whose sums and products are exact in every format.
fn numbers(dtype: DType, rank: usize) -> Array {
    let value = |at: &[usize]| {
        let flat = at.iter().zip(SIZES).fold(0, |flat, (i, n)| flat * n + i) as u64;
        let bits = philox::bits(7, rank as u64, flat);
        if dtype == DType::Bool { f64::from(bits % 2) } else { f64::from(bits % 4) }
    };
    Array::build(dtype, &SIZES, value)
}

/// Fails unless all ranks have exactly the results of the definition.
fn is_exact(graph: &Graph, dtype: DType) {
    let inputs: Vec<Vec<Array>> = (0..6).map(|rank| vec![numbers(dtype, rank)]).collect();
    let expected = eval_ranks(graph, &mesh(), &inputs, &mut vec![States::new(); 6]);
    let found = run(&mesh(), PATIENCE, |rank| {
        let input = inputs[rank.rank()][0].to_tensor();
        call(rank, graph, Mode::Compile, &[input])
    });
    for (rank, (expected, found)) in expected.iter().zip(found).enumerate() {
        let found = found.unwrap_or_else(|e| panic!("{dtype}: {e}\n{graph}"));
        assert!(expected[0].to_tensor() == found.0[0], "{dtype}, rank {rank}\n{graph}");
    }
}

#[test]
fn every_collective_on_every_axis_is_what_it_is_defined_to_be() {
    let numbers = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I64,
        DType::I32,
        DType::I16,
        DType::I8,
        DType::U64,
        DType::U32,
        DType::U16,
        DType::U8,
    ];
    for dtype in numbers {
        for reducer in [Reducer::Sum, Reducer::Prod, Reducer::Max, Reducer::Min] {
            is_exact(&of_one(dtype, |channel| Prim::AllReduce { reducer, channel }), dtype);
        }
        let reducer = Reducer::Sum;
        is_exact(
            &of_one(dtype, |channel| Prim::ReduceScatter { reducer, axis: 1, channel }),
            dtype,
        );
    }
    for reducer in [Reducer::And, Reducer::Or] {
        let dtype = DType::Bool;
        is_exact(&of_one(dtype, |channel| Prim::AllReduce { reducer, channel }), dtype);
    }
    for dtype in [DType::F32, DType::BF16, DType::F8E4M3, DType::I64, DType::Bool] {
        for axis in 0..3 {
            is_exact(&of_one(dtype, |channel| Prim::AllGather { axis, channel }), dtype);
        }
        for (split, concat) in [1, 2].into_iter().flat_map(|s| [(s, 0), (s, 1), (s, 2)]) {
            let exchange = |channel| Prim::AllToAll { split, concat, channel };
            is_exact(&of_one(dtype, exchange), dtype);
        }
        let pairs = vec![(0, 2), (2, 1)];
        is_exact(&of_one(dtype, |channel| Prim::Permute { pairs, channel }), dtype);
    }
}

/// Sums of floats depend on their order: it is that of the ranks.
#[test]
fn sums_go_in_the_order_of_ranks() {
    let graph = of_one(DType::F32, |channel| Prim::AllReduce { reducer: Reducer::Sum, channel });
    let values = [1e8f32, 1.0, -1e8];
    let found = run(&mesh(), PATIENCE, |rank| {
        let all = vec![values[rank.rank() % 3]; SIZES.iter().product()];
        call(rank, &graph, Mode::Compile, &[Tensor::from_f32(SIZES, &all)])
    });
    for result in found {
        let sum = result.unwrap().0[0].to_f64();
        assert!(sum.iter().all(|&x| x == f64::from((1e8f32 + 1.0) - 1e8)), "{sum:?}");
    }
}

#[test]
fn a_rank_that_fails_ends_the_others_with_its_name() {
    let graph = of_one(DType::F32, |channel| Prim::AllReduce { reducer: Reducer::Sum, channel });
    let input = numbers(DType::F32, 0).to_tensor();
    let found = run(&mesh(), PATIENCE, |rank| match rank.rank() {
        4 => Err(BackendError::Device { step: "upload".to_owned(), message: "lost".to_owned() }),
        _ => call(rank, &graph, Mode::Compile, std::slice::from_ref(&input)),
    });
    for (rank, result) in found.into_iter().enumerate().filter(|(rank, _)| *rank != 4) {
        let error = result.unwrap_err();
        let names = matches!(error, BackendError::Ranks(RankError::Gone { rank: 4, .. }));
        assert!(names, "rank {rank}: {error}");
    }
}

#[test]
fn ranks_of_different_graphs_are_found_before_they_run() {
    let found = run(&mesh(), PATIENCE, |rank| {
        let reducer = if rank.rank() == 3 { Reducer::Max } else { Reducer::Sum };
        let graph = of_one(DType::F32, |channel| Prim::AllReduce { reducer, channel });
        call(rank, &graph, Mode::Compile, &[numbers(DType::F32, 0).to_tensor()])
    });
    for result in found {
        let text = result.unwrap_err().to_string();
        assert!(text.starts_with("rank 3: expected collectives of `collective`"), "{text}");
        assert!(text.contains("found") && text.contains("Max"), "{text}");
    }
}

#[test]
fn graphs_of_ranks_are_refused_without_the_others() {
    let graph = of_one(DType::F32, |channel| Prim::AllReduce { reducer: Reducer::Sum, channel });
    let alone = CpuBackend::new(Some(1)).unwrap();
    let refused = |backend: &CpuBackend| {
        let compiled = backend.compile(&graph, Mode::Compile, &Tuning::default());
        compiled.err().unwrap().to_string()
    };
    assert!(refused(&alone).contains("it is one rank of tensor=3"), "{}", refused(&alone));
    let found = run(&Mesh::new([("tensor", 2)]), PATIENCE, |rank| {
        Ok::<_, ()>(refused(&CpuBackend::new(Some(1)).unwrap().on(rank)))
    });
    let text = found[0].as_ref().unwrap();
    assert!(text.contains("expected one with tensor=3, found tensor=2"), "{text}");
}
