//! Two ranks on two GPUs: every collective against the CPU's, overlap with products, data parallel
//! training, and a rank that fails.
//!
//! A program of its own: GPUs wait for one another, and other tests would hold one of them up.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

use overdrive_cpu::CpuBackend;
use overdrive_cuda::{CudaBackend, Library, gpus};
use overdrive_ir::eval::philox;
use overdrive_ir::plan::{Note, StepKind};
use overdrive_ir::{
    Array, Backend, BackendError, Builder, Channel, Communicator, DType, Expr, Graph, Mesh, Mode,
    Prim, RankError, Reducer, State, Tensor, TensorType, Tuning,
};
use overdrive_models::find;
use overdrive_ranks::run;
use overdrive_train::data::{Dataset, Parts, digits};
use overdrive_train::{Fit, Fitted, Observer, Recipe, StepReport, fit};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;
use testkit::Needs;

const PATIENCE: Duration = Duration::from_secs(60);

const RANKS: usize = 2;

/// Whether this machine has what the tests need; says so where not.
fn has_two_gpus() -> bool {
    let found = gpus();
    if found < RANKS {
        testkit::skip(Needs::TwoGpus, format!("two GPUs are needed, found {found}"));
    } else if let Err(missing) = Library::Nccl.require() {
        testkit::skip(Needs::TwoGpus, missing);
        return false;
    }
    found >= RANKS
}

fn mesh() -> Mesh {
    Mesh::new([("data", RANKS)])
}

type Outputs = Result<Vec<Tensor>, BackendError>;

/// Two calls of a graph as one rank; the results of the second.
fn call(backend: &dyn Backend, graph: &Graph, mode: Mode, inputs: &[Tensor]) -> Outputs {
    let mut session = backend.compile(graph, mode, &Tuning::default())?.session()?;
    let mut state = State::initial(graph, backend)?;
    let inputs: Vec<_> = inputs.iter().map(|x| backend.upload(x)).collect::<Result<_, _>>()?;
    let types = graph.outputs().iter().map(|port| graph.ty(port.value));
    let mut outputs = types.map(|ty| backend.output(ty)).collect::<Result<Vec<_>, _>>()?;
    for _ in 0..2 {
        session.run(state.with(&inputs, &mut outputs))?.wait()?;
    }
    outputs.iter().map(|x| backend.download(x)).collect()
}

fn on_gpu(rank: Arc<dyn Communicator>) -> Result<CudaBackend, BackendError> {
    let opened = CudaBackend::new(rank.rank()).map_err(|error| error.during("opening the GPU"))?;
    Ok(opened.on(rank))
}

/// Results of all ranks on GPUs.
fn by_gpus(graph: &Graph, mode: Mode, inputs: &[Vec<Tensor>]) -> Vec<Outputs> {
    run(&mesh(), PATIENCE, |rank| {
        let own = &inputs[rank.rank()];
        call(&on_gpu(rank)?, graph, mode, own)
    })
}

/// Results of all ranks on the CPU.
fn by_cpus(graph: &Graph, inputs: &[Vec<Tensor>]) -> Vec<Outputs> {
    run(&mesh(), PATIENCE, |rank| {
        let own = &inputs[rank.rank()];
        call(&CpuBackend::new(Some(1))?.on(rank), graph, Mode::Compile, own)
    })
}

const SIZES: [usize; 3] = [4, 6, 10];

fn collective<'b>(x: Expr<'b>, prim: impl FnOnce(Channel) -> Prim) -> Expr<'b> {
    let b = x.builder();
    b.op1(prim(Channel { id: b.channel(), group: mesh() }), &[x])
}

/// A graph of one collective.
fn of_one(dtype: DType, prim: impl FnOnce(Channel) -> Prim) -> Graph {
    let b = Builder::new("collective");
    let x = b.input("x", TensorType::new(dtype, SIZES));
    b.output("y", collective(x, prim));
    b.finish().unwrap()
}

/// Small whole numbers, whose sums and products are exact in every format.
fn numbers(dtype: DType, rank: usize) -> Tensor {
    let value = |at: &[usize]| {
        let flat = at.iter().zip(SIZES).fold(0, |flat, (i, n)| flat * n + i) as u64;
        let bits = philox::bits(7, rank as u64, flat);
        if dtype == DType::Bool { f64::from(bits % 2) } else { f64::from(bits % 4) }
    };
    Array::build(dtype, &SIZES, value).to_tensor()
}

/// A collective of elements of a type, and the modes to try it in.
type Case<'m> = (Graph, DType, &'m [Mode]);

/// Fails unless all ranks have exactly the CPU's results. They meet once for all cases, which takes
/// longer than a case.
fn are_exact(cases: &[Case<'_>]) {
    let inputs = |dtype, rank| vec![numbers(dtype, rank)];
    let found = run(&mesh(), PATIENCE, |rank| {
        let own = rank.rank();
        let backend = on_gpu(rank)?;
        let of_case = |(graph, dtype, modes): &Case<'_>| {
            modes.iter().map(|&mode| call(&backend, graph, mode, &inputs(*dtype, own))).collect()
        };
        cases.iter().map(of_case).collect::<Result<Vec<Vec<_>>, BackendError>>()
    });
    let found: Vec<_> = found.into_iter().map(Result::unwrap).collect();
    for (index, (graph, dtype, modes)) in cases.iter().enumerate() {
        let all: Vec<_> = (0..RANKS).map(|rank| inputs(*dtype, rank)).collect();
        for (rank, expected) in by_cpus(graph, &all).into_iter().enumerate() {
            let expected = expected.unwrap();
            for (mode, found) in modes.iter().zip(&found[rank][index]) {
                let same = expected == *found;
                assert!(same, "{dtype} in {mode}, rank {rank}: {found:?}\n{graph}");
            }
        }
    }
}

#[test]
fn every_collective_is_the_cpus() {
    if !has_two_gpus() {
        return;
    }
    let folded = [
        DType::F64,
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::I64,
        DType::I32,
        DType::I8,
        DType::U64,
        DType::U32,
        DType::U8,
    ];
    let mut cases: Vec<Case<'_>> = vec![];
    for dtype in folded {
        for reducer in [Reducer::Sum, Reducer::Prod, Reducer::Max, Reducer::Min] {
            let graph = of_one(dtype, |channel| Prim::AllReduce { reducer, channel });
            cases.push((graph, dtype, &[Mode::Compile]));
        }
        for axis in 0..3 {
            let reducer = Reducer::Sum;
            let graph = of_one(dtype, |channel| Prim::ReduceScatter { reducer, axis, channel });
            cases.push((graph, dtype, &[Mode::Compile]));
        }
    }
    for reducer in [Reducer::And, Reducer::Or] {
        let graph = of_one(DType::Bool, |channel| Prim::AllReduce { reducer, channel });
        cases.push((graph, DType::Bool, &[Mode::Compile]));
    }
    for dtype in [DType::F32, DType::BF16, DType::F8E4M3, DType::I16, DType::I64, DType::Bool] {
        let modes = if dtype == DType::F32 { &Mode::ALL[..] } else { &[Mode::Graph] };
        for axis in 0..3 {
            let graph = of_one(dtype, |channel| Prim::AllGather { axis, channel });
            cases.push((graph, dtype, modes));
        }
        for (split, concat) in (0..3).flat_map(|split| [(split, 0), (split, 2)]) {
            let graph = of_one(dtype, |channel| Prim::AllToAll { split, concat, channel });
            cases.push((graph, dtype, modes));
        }
        for pairs in [vec![(0, 1), (1, 0)], vec![(1, 0)], vec![(0, 0), (1, 1)]] {
            let graph = of_one(dtype, |channel| Prim::Permute { pairs, channel });
            cases.push((graph, dtype, modes));
        }
    }
    are_exact(&cases);
}

#[test]
fn elements_that_nccl_does_not_fold_are_refused_on_all_ranks() {
    if !has_two_gpus() {
        return;
    }
    for dtype in [DType::I16, DType::F8E4M3] {
        let graph = of_one(dtype, |channel| Prim::AllReduce { reducer: Reducer::Sum, channel });
        let inputs: Vec<Vec<Tensor>> = (0..RANKS).map(|rank| vec![numbers(dtype, rank)]).collect();
        for found in by_gpus(&graph, Mode::Compile, &inputs) {
            let text = found.unwrap_err().to_string();
            assert!(text.contains(&format!("no `all_reduce` on {dtype}")), "{text}");
        }
    }
}

/// Partial sums of several sizes, which are reduced in buckets, beside products.
fn buckets(side: usize) -> Graph {
    let b = Builder::new("buckets");
    let mut x = b.input("x", TensorType::new(DType::F32, [side, side]));
    let mut sums = vec![];
    for layer in 0..6 {
        sums.push(collective(x, |channel| Prim::AllReduce { reducer: Reducer::Sum, channel }));
        x = x.matmul(b.input(&format!("w{layer}"), TensorType::new(DType::F32, [side, side])));
        let row = x.sum(&[0]);
        sums.push(collective(row, |channel| Prim::AllReduce { reducer: Reducer::Max, channel }));
    }
    for (index, sum) in sums.into_iter().enumerate() {
        b.output(&format!("y{index}"), sum * 2.0);
    }
    b.output("x", x);
    b.finish().unwrap()
}

/// Permutations by their matrices: products of whole numbers that stay exact.
fn of_buckets(graph: &Graph, side: usize, rank: usize) -> Vec<Tensor> {
    let input = |index: usize| {
        let value = |at: &[usize]| match index {
            0 => f64::from(philox::bits(3, rank as u64, (at[0] * side + at[1]) as u64) % 8),
            _ => f64::from(u8::from((at[0] + index * 7 + rank) % side == at[1])),
        };
        Array::build(DType::F32, &[side, side], value).to_tensor()
    };
    (0..graph.inputs().len()).map(input).collect()
}

#[test]
fn buckets_are_reduced_beside_products_and_exact() {
    if !has_two_gpus() {
        return;
    }
    let side = 512;
    let graph = buckets(side);
    let inputs: Vec<_> = (0..RANKS).map(|rank| of_buckets(&graph, side, rank)).collect();
    let expected: Vec<_> = by_cpus(&graph, &inputs).into_iter().map(Result::unwrap).collect();
    for mode in [Mode::Compile, Mode::Graph] {
        let found = by_gpus(&graph, mode, &inputs);
        for (expected, found) in expected.iter().zip(found) {
            for (expected, found) in expected.iter().zip(found.unwrap()) {
                assert!(*expected == found, "in {mode}");
            }
        }
    }
}

/// A large all-reduce, and products that do not need it: by the device's clock, the one runs while
/// the others do.
#[test]
fn an_all_reduce_runs_beside_products() {
    if !has_two_gpus() {
        return;
    }
    let side = 4096;
    let b = Builder::new("overlap");
    let ty = || TensorType::new(DType::BF16, [side, side]);
    let (first, w) = (b.input("x", ty()), b.input("w", ty()));
    let mut x = first;
    for _ in 0..8 {
        x = x.matmul(w);
    }
    let large = b.input("large", TensorType::new(DType::F32, [16, 1 << 20]));
    let sum = collective(large, |channel| Prim::AllReduce { reducer: Reducer::Sum, channel });
    b.output("x", x);
    b.output("sum", sum * 2.0);
    let graph = b.finish().unwrap();
    let found = run(&mesh(), PATIENCE, |rank| {
        let backend = on_gpu(rank)?;
        let executable = backend.compile(&graph, Mode::Graph, &Tuning::default())?;
        let mut session = executable.session()?;
        let mut state = State::default();
        let zeros = |ty: &TensorType| Array::build(ty.dtype, &ty.sizes(), |_| 0.0).to_tensor();
        let inputs = graph.inputs().iter().map(|port| backend.upload(&zeros(graph.ty(port.value))));
        let inputs: Vec<_> = inputs.collect::<Result<_, _>>()?;
        let outputs = graph.outputs().iter().map(|port| backend.output(graph.ty(port.value)));
        let mut outputs: Vec<_> = outputs.collect::<Result<_, _>>()?;
        session.run(state.with(&inputs, &mut outputs))?.wait()?;
        let profiles = session.profile(state.with(&inputs, &mut outputs), 3)?;
        let declined = session.plan().notes.iter().any(|note| match note {
            Note::Declined { what, .. } => what.contains("replay"),
            _ => false,
        });
        assert!(declined, "the plan says that it is launched step by step: {}", session.plan());
        let of = |wanted: fn(&StepKind) -> bool| {
            let steps = session.plan().steps.iter().zip(&profiles);
            let found = steps.filter(|(step, _)| wanted(&step.kind)).map(|(_, profile)| {
                let start = *profile.start_ns.last().unwrap();
                (start, start + profile.time_ns.last().unwrap())
            });
            found.collect::<Vec<_>>()
        };
        let reduced = of(|kind| matches!(kind, StepKind::CollectiveStart { .. }));
        let products = of(|kind| matches!(kind, StepKind::Gemm(_)));
        Ok::<_, BackendError>((reduced, products))
    });
    for result in found {
        let (reduced, products) = result.unwrap();
        let (start, end) = reduced[0];
        let beside = products.iter().filter(|(from, to)| *from < end && *to > start).count();
        println!("all-reduce {start:.0} to {end:.0} ns, products {products:.0?}");
        assert!(beside > 0, "{reduced:?} {products:?}");
    }
}

/// Losses of the steps.
#[derive(Default)]
struct Losses(Vec<f64>);

impl Observer for Losses {
    fn stepped(&mut self, report: &StepReport) -> ControlFlow<()> {
        self.0.push(report.loss);
        ControlFlow::Continue(())
    }
}

#[test]
fn two_ranks_learn_what_one_learns() {
    if !has_two_gpus() {
        return;
    }
    let model = (find("digits-mlp").unwrap().build)().unwrap();
    let parts: Parts = Dataset::Samples(digits()).parts(&model, 0).unwrap();
    let recipe = Recipe { steps: 2, batch: 64, evaluate_every: 10, ..Recipe::default() };
    let learn = |backend: &dyn Backend, ranks: Option<&dyn Communicator>| {
        let mut losses = Losses::default();
        let fit_of = Fit { ranks, ..Fit::anew((backend, &model), &recipe, &parts) };
        let fitted: Fitted = fit(&fit_of, &mut losses).unwrap();
        (fitted.parameters, losses.0)
    };
    let (one, expected) = learn(&CudaBackend::new(0).unwrap(), None);
    let all = run(&mesh(), PATIENCE, |rank| {
        let backend = on_gpu(Arc::clone(&rank)).unwrap();
        Ok::<_, ()>(learn(&backend, Some(rank.as_ref())))
    });
    let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
    assert!(all[0].0 == all[1].0, "both ranks have the same bits");
    for (expected, found) in expected.iter().zip(&all[0].1) {
        assert!((expected - found).abs() < 1e-3 * expected, "loss {expected}, found {found}");
    }
    for (name, tensor) in &one {
        let (a, b) = (tensor.to_f64(), all[0].0[name].to_f64());
        let off = a.iter().zip(&b).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / a.len() as f64;
        // A step of Adam moves a weight by 1e-3; the sign of a gradient of nearly 0 is luck.
        assert!(off.sqrt() < 1e-4, "`{name}` is off by {} (root mean square)", off.sqrt());
    }
}

#[test]
fn a_rank_that_fails_ends_the_other() {
    if !has_two_gpus() {
        return;
    }
    let graph = of_one(DType::F32, |channel| Prim::AllReduce { reducer: Reducer::Sum, channel });
    let found = run(&mesh(), PATIENCE, |rank| {
        let me = rank.rank();
        let backend = on_gpu(rank)?;
        let input = backend.upload(&numbers(DType::F32, me))?;
        let mut session = backend.compile(&graph, Mode::Compile, &Tuning::default())?.session()?;
        let mut state = State::default();
        let mut outputs = vec![backend.output(&TensorType::new(DType::F32, SIZES))?];
        let inputs = [input];
        for turn in 0..3 {
            if (me, turn) == (1, 2) {
                return Err(BackendError::Device { step: "test".into(), message: "lost".into() });
            }
            session.run(state.with(&inputs, &mut outputs))?.wait()?;
        }
        Ok(())
    });
    let error = found[0].as_ref().unwrap_err();
    let names = matches!(error, BackendError::Ranks(RankError::Gone { rank: 1, .. }));
    assert!(names, "{error}");
}

/// A missing NCCL is an error, and not a panic.
#[test]
fn a_missing_nccl_says_what_to_install() {
    match Library::Nccl.require() {
        Ok(()) => assert!(Library::Nccl.version().is_some_and(|version| version >= (2, 14))),
        Err(missing) => {
            let text = missing.to_string();
            assert!(text.starts_with("libnccl.so.2 was not found"), "{text}");
            assert!(text.contains("nvidia-nccl-cu13"), "{text}");
        }
    }
}
