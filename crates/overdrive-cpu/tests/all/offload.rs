//! Plans that keep a memory limit, for a device with memory beside its own. They compute the
//! results of the plan without a limit, bit for bit. Their proof of order misses no wait that
//! matters.

use overdrive_cpu::threads::Pool;
use overdrive_cpu::{CpuBackend, CpuExecutable};
use overdrive_ir::eval::philox;
use overdrive_ir::plan::{Note, SlotPlace, Space, Step, StepKind};
use overdrive_ir::{
    Backend, Builder, Call, DType, Described, Description, Executable, Graph, Init, MemorySpace,
    Mode, Plan, Port, SlotId, State, Target, Tensor, TensorType, Tuning,
};
use overdrive_passes::{PlanError, plan};
use overdrive_train::data::Target as Learnt;
use overdrive_train::{Moments, Optimizer, Parameters, Recipe, training_step, with_loss};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// The processor, as if other memory stood beside its own.
fn device(backend: &CpuBackend) -> impl Target {
    device_with(backend, None)
}

/// The same, whose other memory has a processor that reads and writes so many bytes per second.
fn device_with(backend: &CpuBackend, loop_bytes_per_second: Option<f64>) -> impl Target {
    let space = MemorySpace {
        name: "other",
        bytes: 1 << 40,
        bytes_per_second: 50e9,
        loop_bytes_per_second,
    };
    let description = Description { spaces: vec![space], ..backend.description().clone() };
    let answer = |call: &Call<'_>| backend.target().kernel(call);
    Described { description, answer }
}

/// A training step of a random network: layers of some width, some of them beside a shorter way.
fn step(seed: u64) -> Graph {
    step_by(seed, &Recipe::default())
}

fn step_by(seed: u64, recipe: &Recipe) -> Graph {
    let draw = |index: u64, below: u32| philox::bits(seed, 5, index) % below;
    let width = 256 + 64 * draw(0, 3) as usize;
    let batch = 64 << draw(1, 3);
    let b = Builder::new("network");
    let mut x = b.input("x", TensorType::new(DType::F32, [batch, width]));
    for layer in 0..2 + u64::from(draw(2, 3)) {
        let _scope = b.scope(&format!("block{layer}"));
        let init = Init::Normal { std: 0.05, seed: seed + layer };
        let w = b.state(&format!("w{layer}"), TensorType::new(DType::F32, [width, width]), init);
        let y = x.matmul(w).tanh();
        x = if draw(10 + layer, 2) == 0 { y + x } else { y };
    }
    b.output("y", x);
    let forward = b.finish().unwrap();
    training_step(&with_loss(&forward, Learnt::Classes).unwrap(), recipe).unwrap()
}

/// Outputs and states after two calls.
fn results(graph: &Graph, plan: &Plan, backend: &CpuBackend) -> Vec<Tensor> {
    results_by(graph, &[plan, plan], backend)
}

/// Outputs and states after a call of each plan, one after another.
fn results_by(graph: &Graph, plans: &[&Plan], backend: &CpuBackend) -> Vec<Tensor> {
    let pool = Arc::new(Pool::new(NonZeroUsize::new(2).unwrap()).unwrap());
    let names = |ports: &[Port]| ports.iter().map(|port| port.name.clone()).collect::<Vec<_>>();
    let names = [names(graph.inputs()), names(graph.outputs())];
    let mut state = State::initial(graph, backend).unwrap();
    let input = |(index, port): (usize, &Port)| {
        let ty = graph.ty(port.value);
        let values: Vec<f64> = philox::normals(7, index as u64).take(ty.elements()).collect();
        let values: Vec<f64> = match ty.dtype.is_float() {
            true => values,
            false => values.into_iter().map(|v| (v.abs() * 9.0).floor()).collect(),
        };
        backend.upload(&Tensor::from_f64(ty.dtype, ty.shape.clone(), &values)).unwrap()
    };
    let inputs: Vec<_> = graph.inputs().iter().enumerate().map(input).collect();
    let output = |port: &Port| backend.output(graph.ty(port.value)).unwrap();
    let mut outputs: Vec<_> = graph.outputs().iter().map(output).collect();
    for &plan in plans {
        let pool = Arc::clone(&pool);
        let executable = CpuExecutable::new(plan.clone(), pool, names.clone(), None).unwrap();
        let mut session = Arc::new(executable).session().unwrap();
        session.run(state.with(&inputs, &mut outputs)).unwrap().wait().unwrap();
    }
    outputs.iter().chain(state.buffers.values()).map(|b| backend.download(b).unwrap()).collect()
}

fn limited(graph: &Graph, mode: Mode, backend: &CpuBackend, limit: u64) -> Plan {
    let tuning = Tuning { memory_limit: Some(limit), ..Tuning::default() };
    let plan = plan(graph, mode, &device(backend), &tuning).unwrap();
    assert_eq!(plan.verify(), Ok(()), "{plan}");
    assert!(plan.peak_bytes(Space::MAIN) <= limit, "{plan}");
    plan
}

/// Bytes that a plan takes without a limit, and the least that it can do with.
fn bounds(graph: &Graph, mode: Mode, backend: &CpuBackend) -> [u64; 2] {
    let tuning = Tuning { memory_limit: Some(1), ..Tuning::default() };
    match plan(graph, mode, &device(backend), &tuning) {
        Err(PlanError::OverLimit { needed, least, .. }) => [least, needed],
        other => panic!("one byte holds no training step: {other:?}"),
    }
}

#[test]
fn whatever_the_limit_every_result_is_what_it_was() {
    let backend = CpuBackend::new(Some(2)).unwrap();
    let (mut states, mut values) = (0, 0);
    for seed in 0..6 {
        let graph = step(seed);
        for mode in [Mode::Jit, Mode::Compile] {
            let free = plan(&graph, mode, &device(&backend), &Tuning::default()).unwrap();
            let expected = results(&graph, &free, &backend);
            let [least, most] = bounds(&graph, mode, &backend);
            for part in 0..4 {
                let limit = least + (most - least) * part / 4;
                let plan = limited(&graph, mode, &backend, limit);
                let found = results(&graph, &plan, &backend);
                assert!(found == expected, "seed {seed} {mode} within {limit}: {plan}");
                states += plan.offloaded.len();
                values += plan
                    .notes
                    .iter()
                    .filter(|n| matches!(n, Note::Offloaded { scope, .. } if !scope.is_empty()))
                    .count();
            }
        }
    }
    assert!(states > 20 && values > 5, "both ways are tried: {states} states, {values} values");
}

/// A wait for the end of a copy, or for the values that it carries, cannot be left out. The
/// exceptions are waits that a wait of another step covers.
#[test]
fn a_missing_wait_is_found() {
    let backend = CpuBackend::new(Some(2)).unwrap();
    let graph = step(1);
    let [least, _] = bounds(&graph, Mode::Compile, &backend);
    let plan = limited(&graph, Mode::Compile, &backend, least);
    let (mut dropped, mut found) = (0, 0);
    for at in 0..plan.steps.len() {
        let step = &plan.steps[at];
        let matters = match step.kind {
            StepKind::CopyDone => true,
            // A copy of values that were computed just before: nothing else waits for them yet.
            StepKind::CopyStart => at > 0 && plan.steps[at - 1].writes.contains(&step.reads[0]),
            _ => false,
        };
        if matters {
            let mut broken = plan.clone();
            broken.steps[at].waits.clear();
            found += usize::from(broken.verify().is_err());
            dropped += 1;
        }
    }
    assert!(dropped > 10 && 2 * found > dropped, "{found} of {dropped}: {plan}");
    let mut early = plan.clone();
    let done = early.steps.iter().position(|s| matches!(s.kind, StepKind::CopyDone)).unwrap();
    early.steps.swap(done, done + 1);
    assert!(early.verify().is_err(), "the step after an end uses what came: {plan}");
}

/// States that other plans share stay where those look for them.
#[test]
fn shared_states_stay() {
    let backend = CpuBackend::new(Some(2)).unwrap();
    let graph = step(2);
    let [least, most] = bounds(&graph, Mode::Compile, &backend);
    let limit = Some((least + most) / 2);
    let planned = |shared| {
        let tuning = Tuning { memory_limit: limit, shared, ..Tuning::default() };
        plan(&graph, Mode::Compile, &device(&backend), &tuning)
    };
    let moved = planned([].into()).unwrap().offloaded;
    assert!(!moved.is_empty());
    let shared: std::collections::BTreeSet<String> = moved.keys().cloned().collect();
    if let Ok(plan) = planned(shared.clone()) {
        assert!(plan.offloaded.keys().all(|name| !shared.contains(name)), "{plan}");
    }
}

/// The baseline without overlap: every moment waits elsewhere, and each copy ends before anything
/// else begins.
#[test]
fn copies_that_block_change_no_result() {
    let backend = CpuBackend::new(None).unwrap();
    let graph = step(3);
    let tuning = Tuning { blocking_copies: true, ..Tuning::default() };
    let blocking = plan(&graph, Mode::Compile, &device(&backend), &tuning).unwrap();
    assert_eq!(blocking.verify(), Ok(()), "{blocking}");
    assert!(blocking.offloaded.len() > 2, "{blocking}");
    for (at, step) in blocking.steps.iter().enumerate() {
        if matches!(step.kind, StepKind::CopyStart) {
            let rest = &blocking.steps[at + 1..];
            let waits = rest.iter().take_while(|next| !step.starts(next));
            assert!(waits.clone().all(|next| next.stream != 0 || is_copy_done(next)), "{blocking}");
        }
    }
    let plain = plan(&graph, Mode::Compile, &device(&backend), &Tuning::default()).unwrap();
    assert!(plain.offloaded.is_empty(), "{plain}");
    assert_eq!(results(&graph, &blocking, &backend), results(&graph, &plain, &backend));
}

fn is_copy_done(step: &overdrive_ir::plan::Step) -> bool {
    matches!(step.kind, StepKind::CopyDone)
}

/// Rates of the other memory's processor: faster than the link, about as fast, and far slower.
const RATES: [f64; 3] = [1e12, 1e11, 1e6];

/// A plan within the least memory, some of whose updates may run where their states wait.
fn beside(graph: &Graph, backend: &CpuBackend, rate: Option<f64>) -> Plan {
    let [least, _] = bounds(graph, Mode::Compile, backend);
    let tuning = Tuning { memory_limit: Some(least), ..Tuning::default() };
    let plan = plan(graph, Mode::Compile, &device_with(backend, rate), &tuning).unwrap();
    assert_eq!(plan.verify(), Ok(()), "{plan}");
    assert!(plan.peak_bytes(Space::MAIN) <= least, "{plan}");
    plan
}

/// The steps that run in other memory.
fn elsewhere(plan: &Plan) -> Vec<usize> {
    let steps = plan.steps.iter().enumerate();
    let there = steps.filter(|(_, step)| plan.runs_in(step) != Space::MAIN);
    there.map(|(index, _)| index).collect()
}

/// Moments of AdamW and of SGD, f32 and bf16 ones, copies of parameters, sums of several batches,
/// with clipping and without. A run may also go on with another plan.
#[test]
fn updates_in_other_memory_change_no_result() {
    let backend = CpuBackend::new(Some(2)).unwrap();
    let usual = Recipe::default;
    let sgd = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 };
    let masters = Parameters::Masters;
    let recipes = [
        usual(),
        Recipe { clip_norm: None, ..usual() },
        Recipe { accumulate: 3, ..usual() },
        Recipe { optimizer: sgd, ..usual() },
        Recipe { moments: Moments::Bf16, ..usual() },
        Recipe { precision: DType::BF16, parameters: masters, ..usual() },
    ];
    let mut moved = 0;
    for (seed, recipe) in (0..).zip(&recipes) {
        let graph = step_by(seed, recipe);
        let free = plan(&graph, Mode::Compile, &device(&backend), &Tuning::default()).unwrap();
        let expected = results(&graph, &free, &backend);
        let (mut there, mut seconds) = (vec![], vec![]);
        for rate in RATES {
            let plan = beside(&graph, &backend, Some(rate));
            let device = device_with(&backend, Some(rate));
            seconds.push(plan.seconds(device.description()));
            there.push(elsewhere(&plan).len());
            let noted = plan.notes.iter().filter(|n| matches!(n, Note::RunsThere { .. }));
            assert_eq!(noted.count(), elsewhere(&plan).len(), "{plan}");
            for plans in [[&plan, &plan], [&plan, &free], [&free, &plan]] {
                let found = results_by(&graph, &plans, &backend);
                assert!(found == expected, "seed {seed}, {rate} bytes/s: {plan}");
            }
        }
        let none = beside(&graph, &backend, None);
        assert!(elsewhere(&none).is_empty(), "{none}");
        assert!(there[0] >= there[1], "{there:?}: {none}");
        assert_eq!(there[2], 0, "a slow processor has nothing to do");
        if there[0] == 0 {
            println!("{recipe:?}: no update runs there");
            continue;
        }
        moved += 1;
        let plain = none.seconds(device(&backend).description());
        assert!(seconds[0] < plain && seconds[1] <= plain, "{seconds:?}, not {plain}");
    }
    // Without clipping an update is part of the product before it; small moments stay.
    assert!(moved > 2, "{moved} of {}", recipes.len());
}

/// A step in other memory waits for the copies of its operands, and the copies of its results wait
/// for it.
#[test]
fn a_missing_wait_of_an_update_elsewhere_is_found() {
    let backend = CpuBackend::new(Some(2)).unwrap();
    let plan = beside(&step(1), &backend, Some(1e12));
    let there = elsewhere(&plan);
    assert!(!there.is_empty());
    let without = |step: usize, event: u32| {
        let mut broken = plan.clone();
        broken.steps[step].waits.retain(|wait| *wait != event);
        broken.verify()
    };
    for &at in &there {
        let step = &plan.steps[at];
        let large = step.reads.iter().filter(|slot| plan.slot(**slot).bytes() > 1 << 16);
        let starts = |slot: &SlotId| {
            let beside = |s: &Step| s.stream != 0 && s.writes.contains(slot);
            plan.steps[..at].iter().rposition(beside)
        };
        let gradient = large.filter_map(starts).max().expect("its copy starts before");
        let copied = plan.steps[gradient].records.expect("it is awaited");
        assert!(step.waits.contains(&copied), "{plan}");
        assert!(without(at, copied).is_err(), "step {at} without event {copied}: {plan}");
        let ended = step.records.expect("its results are awaited");
        let takes =
            |copy: &&usize| plan.steps[**copy].reads.iter().any(|r| step.writes.contains(r));
        let starts: Vec<usize> = (at..plan.steps.len())
            .filter(|&copy| matches!(plan.steps[copy].kind, StepKind::CopyStart))
            .collect();
        let first = starts.iter().find(takes).expect("a parameter comes back");
        assert!(plan.steps[*first].waits.contains(&ended), "{plan}");
        assert!(without(*first, ended).is_err(), "step {first} without event {ended}: {plan}");
    }
    let scalars = plan.steps[there[0]].waits.len();
    assert!(scalars > 1 && there.iter().all(|&at| plan.steps[at].waits.len() <= 2), "{plan}");
    for &event in &plan.steps[there[0]].waits {
        assert!(without(there[0], event).is_err(), "the first waits for no less: {plan}");
    }
    // A step that touches two memory spaces runs nowhere.
    let mut torn = plan.clone();
    let own = |slot: &SlotId| match &plan.slot(*slot).place {
        SlotPlace::State(name) => Some(name.clone()),
        _ => None,
    };
    let moment = plan.steps[there[0]].reads.iter().find_map(own).expect("it reads moments");
    torn.offloaded.remove(&moment);
    assert!(torn.verify().is_err_and(|error| error.contains("runs in space")), "{plan}");
}

/// Parameters that other plans read keep their place, also if their updates run elsewhere.
#[test]
fn parameters_of_updates_elsewhere_stay() {
    let backend = CpuBackend::new(Some(2)).unwrap();
    let plan = beside(&step(2), &backend, Some(1e12));
    assert!(!elsewhere(&plan).is_empty());
    assert!(plan.offloaded.keys().all(|name| name.starts_with("optimizer.")), "{plan}");
    let host: u64 = plan.peak_bytes(Space(1));
    assert!(host > plan.state_bytes(Space(1)), "copies of operands are counted there: {plan}");
}
