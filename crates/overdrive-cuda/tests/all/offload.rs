//! Training steps within a memory limit. The tests check their plans for a GPU that exists only as
//! data. They also check that a real GPU computes the same bits with copies beside its work.

use crate::support::{gpu, h200};
use overdrive_cpu::loops::CompiledLoop;
use overdrive_cuda::Gpu;
use overdrive_cuda::memory::PINNED;
use overdrive_ir::eval::philox;
use overdrive_ir::plan::{Note, Space, Step, StepKind};
use overdrive_ir::{
    Backend, Builder, DType, Graph, Init, Mode, Plan, Port, State, Tensor, TensorType, Tuning,
};
use overdrive_models::find;
use overdrive_passes::{PlanError, bind, plan};
use overdrive_train::data::Target as Learnt;
use overdrive_train::{Recipe, training_step, with_loss};

/// A training step of a built-in model in bf16.
fn step_of(name: &str, batch: usize) -> Graph {
    let forward = (find(name).unwrap().build)().unwrap();
    let forward = bind(&forward, &[("batch".to_owned(), batch)].into()).unwrap();
    let recipe = Recipe { precision: DType::BF16, ..Recipe::default() };
    training_step(&with_loss(&forward, Learnt::Classes).unwrap(), &recipe).unwrap()
}

/// The plan chooses what should cost least. A few values are computed again where that is enough.
/// Moments go to memory of the host where nothing less will do. The order of copies and launches is
/// proven.
#[test]
fn gpt_125m_fits_less_and_less_memory() {
    let gpu = Gpu::new(&h200());
    let step = step_of("gpt-125m", 8);
    let mut slower = 1.0;
    // It takes 5.8 GB without a limit.
    for (limit, is_moved) in [(4_000_000_000, false), (1_900_000_000, true)] {
        let tuning = Tuning { memory_limit: Some(limit), ..Tuning::default() };
        let plan = plan(&step, Mode::Graph, &gpu, &tuning).unwrap();
        let peak = plan.peak_bytes(Space::MAIN);
        assert!(peak <= limit, "{peak} of {limit}");
        let again = plan.notes.iter().any(Note::is_recomputed_for_memory);
        let (host, states) = (plan.peak_bytes(PINNED), plan.offloaded.len());
        assert!(again && (host > 0) == is_moved && (states > 0) == is_moved, "{host} {states}");
        let limited = plan.limited.expect("the limit changed it");
        assert!(limited.seconds / limited.free_seconds > slower, "{limited:?}");
        slower = limited.seconds / limited.free_seconds;
        assert_eq!(plan.verify(), Ok(()));
        // Some updates run on the host, which can run all of them.
        let there = on_host(&plan);
        assert_eq!(is_moved, !there.is_empty(), "{}", there.len());
        for step in there {
            let StepKind::Loop(program) = &step.kind else { panic!("{step:?}") };
            CompiledLoop::new(program, &|slot| plan.slot(slot).ty.dtype).unwrap();
        }
    }
}

/// The steps that the host runs.
fn on_host(plan: &Plan) -> Vec<&Step> {
    plan.steps.iter().filter(|step| plan.runs_in(step) == PINNED).collect()
}

/// A training step of a small network whose moments are large enough to be moved.
fn small_step() -> Graph {
    let b = Builder::new("network");
    let mut x = b.input("x", TensorType::new(DType::F32, [256, 384]));
    for layer in 0..4 {
        let _scope = b.scope(&format!("block{layer}"));
        let init = Init::Normal { std: 0.05, seed: layer };
        let w = b.state(&format!("w{layer}"), TensorType::new(DType::F32, [384, 384]), init);
        x = x.matmul(w).tanh() + x;
    }
    b.output("y", x);
    let forward = b.finish().unwrap();
    training_step(&with_loss(&forward, Learnt::Classes).unwrap(), &Recipe::default()).unwrap()
}

/// Outputs and states after five calls, and the plan that ran.
fn results(backend: &dyn Backend, graph: &Graph, mode: Mode, limit: Option<u64>) -> Ran {
    let tuning = Tuning { memory_limit: limit, ..Tuning::default() };
    let mut session = backend.compile(graph, mode, &tuning).unwrap().session().unwrap();
    let mut state = State::initial(graph, backend).unwrap();
    for (name, &space) in &session.plan().offloaded {
        let tensor = backend.download(&state.buffers[name]).unwrap();
        state.buffers.insert(name.clone(), backend.upload_to(&tensor, space).unwrap());
    }
    let input = |(index, port): (usize, &Port)| {
        let ty = graph.ty(port.value);
        let values: Vec<f64> = philox::normals(7, index as u64).take(ty.elements()).collect();
        let values: Vec<f64> = match ty.dtype.is_float() {
            true => values.into_iter().map(|v| 1e-3 * v.abs()).collect(),
            false => values.into_iter().map(|v| (v.abs() * 9.0).floor()).collect(),
        };
        backend.upload(&Tensor::from_f64(ty.dtype, ty.shape.clone(), &values)).unwrap()
    };
    let inputs: Vec<_> = graph.inputs().iter().enumerate().map(input).collect();
    let output = |port: &Port| backend.output(graph.ty(port.value)).unwrap();
    let mut outputs: Vec<_> = graph.outputs().iter().map(output).collect();
    for _ in 0..5 {
        session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
    }
    let all = outputs.iter().chain(state.buffers.values());
    let found = all.map(|b| backend.download(b).unwrap()).collect();
    let plan = session.plan().clone();
    assert_eq!(session.memory().offloaded_bytes, plan.peak_bytes(PINNED));
    let profiles = session.profile(state.with(&inputs, &mut outputs), 1).unwrap();
    let timed = profiles.iter().zip(&plan.steps).filter(|(_, step)| !step.prepare);
    assert!(timed.into_iter().all(|(profile, _)| profile.time_ns.len() == 1), "{plan}");
    (found, plan)
}

type Ran = (Vec<Tensor>, Plan);

#[test]
fn a_gpu_computes_the_same_bits_within_a_limit() {
    let Some(backend) = gpu() else { return };
    let graph = small_step();
    for mode in [Mode::Jit, Mode::Compile, Mode::Graph] {
        let (expected, free) = results(&backend, &graph, mode, None);
        let needed = free.peak_bytes(Space::MAIN);
        let refused = plan(
            &graph,
            mode,
            backend.target(),
            &Tuning { memory_limit: Some(1), ..Tuning::default() },
        );
        let Err(PlanError::OverLimit { least, .. }) = refused else { panic!("one byte is enough") };
        for part in [0, 1, 2, 3] {
            let limit = least + (needed - least) * part / 4;
            let (found, plan) = results(&backend, &graph, mode, Some(limit));
            let copies = plan.steps.iter().filter(|s| matches!(s.kind, StepKind::CopyStart));
            assert!(copies.count() > 0 && plan.peak_bytes(PINNED) > 0, "{plan}");
            let launches = |plan: &Plan| -> Vec<String> {
                let is_copy = |kind: &_| matches!(kind, StepKind::CopyStart | StepKind::CopyDone);
                let work = plan.steps.iter().filter(|step| !is_copy(&step.kind));
                work.map(|step| step.name.clone()).collect()
            };
            // The host rounds each product and sum, and the device some of them together.
            let here = on_host(&plan).is_empty();
            let same = here && (mode == Mode::Jit || launches(&plan) == launches(&free));
            let exact = found == expected;
            println!("{mode} within {limit} of {needed} bytes: same launches {same}, bits {exact}");
            assert!(exact || !same, "{mode} within {limit} bytes: {plan}");
            for (found, expected) in found.iter().zip(&expected) {
                let (found, expected) = (found.to_f64(), expected.to_f64());
                let largest = expected.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
                let off = found.iter().zip(&expected).map(|(a, b)| (a - b).abs());
                let off = off.fold(0.0, f64::max);
                assert!(off <= 1e-3 * largest, "{mode} within {limit} bytes: {off} of {largest}");
            }
        }
    }
}

/// Memory of the host is memory of a buffer like any other.
#[test]
fn what_goes_to_pinned_memory_comes_back() {
    let Some(backend) = gpu() else { return };
    let tensor = Tensor::from_f32([1000], &(0..1000).map(|i| i as f32).collect::<Vec<_>>());
    let mut pinned = backend.upload_to(&tensor, PINNED).unwrap();
    assert_eq!(backend.download(&pinned).unwrap(), tensor);
    let other = Tensor::from_f32([1000], &[7.0; 1000]);
    let mut device = backend.upload(&other).unwrap();
    backend.copy(&pinned, &mut device).unwrap();
    assert_eq!(backend.download(&device).unwrap(), tensor);
    backend.write(&mut device, &other).unwrap();
    backend.copy(&device, &mut pinned).unwrap();
    assert_eq!(backend.download(&pinned).unwrap(), other);
    backend.write(&mut pinned, &tensor).unwrap();
    assert_eq!(backend.download(&pinned).unwrap(), tensor);
    assert_eq!(backend.download_rows(&pinned, &[3, 5]).unwrap().to_f64(), [3.0, 5.0]);
}

/// Launched one by one or replayed as a graph, the host and the device compute the same bits, and
/// so does a second session.
#[test]
fn updates_on_the_host_are_repeatable() {
    let Some(backend) = gpu() else { return };
    let graph = small_step();
    let refused = Tuning { memory_limit: Some(1), ..Tuning::default() };
    let refused = plan(&graph, Mode::Compile, backend.target(), &refused);
    let Err(PlanError::OverLimit { least, .. }) = refused else { panic!("one byte is enough") };
    let run = |mode| results(&backend, &graph, mode, Some(least));
    let (launched, plan) = run(Mode::Compile);
    assert!(!on_host(&plan).is_empty(), "{plan}");
    for mode in [Mode::Compile, Mode::Graph] {
        let (found, other) = run(mode);
        assert_eq!(other.steps, plan.steps, "{mode}");
        assert!(found == launched, "{mode}: {plan}");
    }
}
