//! The plan of every built-in model, on a device that exists only as data. It has steps, work and
//! bytes, without a GPU and without running anything. A change of a pass shows here as a change of
//! figures that somebody has to accept.

use overdrive_ir::eval::{States, eval};
use overdrive_ir::plan::{Note, Pace, Space, StepKind, timelines};
use overdrive_ir::{
    Call, DType, Decline, Described, Description, Graph, Kernel, Mesh, Mode, Plan, Target, Tuning,
    Value,
};
use overdrive_models::{MODELS, find};
use overdrive_passes::{PlanError, Rematerialize, bind, differentiate, plan, rematerialize};
use overdrive_train::data;
use overdrive_train::{Recipe, Sharing, sharded_step, training_step_on, with_loss};
use std::fmt::Write;
use testkit::random_inputs;

/// A device with kernels for attention and what no loop can do, and with plenty of memory.
fn device() -> impl Target {
    let description = Description {
        device: "paper".into(),
        memory_bytes: 1 << 44,
        contraction_dtypes: [DType::F64, DType::F32, DType::BF16].into(),
        loop_dtypes: DType::ALL.into(),
        flops_per_byte: 10.0,
        ..Description::default()
    };
    Described { description, answer }
}

fn answer(call: &Call<'_>) -> Result<Kernel, Decline> {
    match call {
        Call::Op { op, regions: [], .. } if KERNELS.contains(&op.name().as_str()) => {
            Ok(Kernel::default())
        }
        _ => Err(Decline::NoKernel),
    }
}

/// The ops that it has kernels for.
const KERNELS: [&str; 7] =
    ["attention", "attention_grad", "gather", "scatter", "sort", "dynamic_slice", "reduce_window"];

fn planned(graph: &Graph, mode: Mode) -> Plan {
    plan(graph, mode, &device(), &Tuning::default())
        .unwrap_or_else(|e| panic!("{} {mode}: {e}", graph.name()))
}

fn bound(name: &str, batch: Option<usize>) -> Graph {
    let model = find(name).unwrap_or_else(|e| panic!("{e}"));
    let graph = (model.build)().unwrap_or_else(|e| panic!("{name}: {e}"));
    at_batch(&graph, batch.unwrap_or(model.dimensions[0].1))
}

fn at_batch(graph: &Graph, batch: usize) -> Graph {
    bind(graph, &[("batch".to_owned(), batch)].into()).unwrap_or_else(|e| panic!("{e}"))
}

fn count(plan: &Plan, matches: fn(&StepKind) -> bool) -> usize {
    plan.steps.iter().filter(|step| matches(&step.kind)).count()
}

#[test]
fn models_plan_to_these_steps_and_bytes() {
    let mut table = String::from(
        "model            mode     gemm conv loop kernel other            FLOP           moved  \
         \x20    arena        live\n",
    );
    for model in MODELS {
        let graph = bound(model.name, None);
        for mode in [Mode::Jit, Mode::Compile] {
            let plan = planned(&graph, mode);
            let gemms = count(&plan, |k| matches!(k, StepKind::Gemm(_)));
            let convolutions = count(&plan, |k| matches!(k, StepKind::Convolution(_)));
            let loops = count(&plan, |k| matches!(k, StepKind::Loop(_)));
            let kernels = count(&plan, |k| matches!(k, StepKind::Kernel(_)));
            let other = plan.steps.len() - gemms - convolutions - loops - kernels;
            let (cost, arena): (_, usize) = (plan.cost(), plan.arena_bytes.iter().sum());
            writeln!(
                table,
                "{:16} {:8} {gemms:4} {convolutions:4} {loops:4} {kernels:6} {other:5} {:15} \
                 {:15} {arena:11} {:11}",
                model.name,
                mode.name(),
                cost.flops,
                cost.bytes,
                plan.live_bytes
            )
            .expect("writing to a string");
        }
    }
    insta::assert_snapshot!("models", table);
}

#[test]
fn the_plan_of_one_block_reads_like_this() {
    insta::assert_snapshot!(
        "quick-inference",
        planned(&bound("quick-inference", None), Mode::Compile).to_string()
    );
}

#[test]
fn arenas_are_close_to_the_bytes_that_must_live() {
    for name in ["transformer", "conv", "quick-memory", "gpt-125m"] {
        let plan = planned(&bound(name, None), Mode::Compile);
        let arena: usize = plan.arena_bytes.iter().sum();
        assert!(
            arena as f64 <= 1.15 * plan.live_bytes as f64,
            "{name}: {arena} for {} live",
            plan.live_bytes
        );
    }
}

#[test]
fn compiling_never_adds_steps_or_traffic() {
    for model in MODELS {
        let graph = bound(model.name, None);
        let [jit, compiled] = [Mode::Jit, Mode::Compile].map(|mode| planned(&graph, mode));
        assert!(compiled.steps.len() < jit.steps.len(), "{}", model.name);
        assert!(compiled.cost().bytes < jit.cost().bytes, "{}", model.name);
    }
}

/// Loss and the gradient of every parameter.
fn training_step(name: &str, batch: usize) -> Graph {
    let model = find(name).unwrap_or_else(|e| panic!("{e}"));
    let forward = (model.build)().unwrap_or_else(|e| panic!("{name}: {e}"));
    let graph = at_batch(
        &with_loss(&forward, data::Target::Classes).unwrap_or_else(|e| panic!("{e}")),
        batch,
    );
    let loss: Vec<Value> =
        graph.outputs().iter().filter(|o| o.name == "loss").map(|o| o.value).collect();
    let parameters: Vec<Value> = graph.states().iter().map(|s| s.value).collect();
    differentiate(&graph, &loss, &parameters).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// The plan alone shows what recomputing each block saves, and what it costs.
#[test]
fn rematerializing_gpt_350m_saves_most_of_the_peak_for_a_fifth_of_the_work() {
    let step = training_step("gpt-350m", 8);
    let again = rematerialize(
        &step,
        "loss",
        (Rematerialize::EveryBlock, &Description::default()),
        &mut vec![],
    )
    .unwrap();
    let [kept, recomputed] = [&step, &again].map(|graph| planned(graph, Mode::Compile));
    let peak = |plan: &Plan| plan.arena_bytes.iter().sum::<usize>() as f64;
    let (saved, extra) = (
        1.0 - peak(&recomputed) / peak(&kept),
        again.cost().flops as f64 / step.cost().flops as f64 - 1.0,
    );
    println!(
        "gpt-350m, batch 8: {:.1} % less peak for {:.1} % more FLOPs",
        100.0 * saved,
        100.0 * extra
    );
    assert!(saved >= 0.6, "{saved}: {} of {}", peak(&recomputed), peak(&kept));
    assert!(extra <= 0.2, "{extra}");
}

/// Whatever a policy drops, every output keeps its bits.
#[test]
fn rematerializing_changes_no_result() {
    let step = training_step("digits-mlp", 2);
    let inputs = random_inputs(&step, 1);
    let expected = eval(&step, &inputs, &mut States::new());
    for saved_bytes in [u64::MAX, 4096, 0] {
        let (policy, mut notes) = (Rematerialize::Budget { saved_bytes }, vec![]);
        let again =
            rematerialize(&step, "loss", (policy, &Description::default()), &mut notes).unwrap();
        assert_eq!(notes.is_empty(), saved_bytes == u64::MAX, "{notes:?}");
        assert_eq!(eval(&again, &inputs, &mut States::new()), expected, "{saved_bytes}");
        assert_eq!(
            again.nodes().len() > step.nodes().len(),
            saved_bytes < u64::MAX,
            "{saved_bytes}"
        );
    }
}

/// A limit below the peak is met by recomputing as little as possible. A limit that cannot be met
/// is refused, and the error names one that can.
#[test]
fn a_training_step_fits_a_memory_limit_by_computing_values_again() {
    let step = training_step("text-transformer", 8);
    let planned = |memory_limit| {
        let tuning = Tuning { memory_limit, ..Tuning::default() };
        plan(&step, Mode::Compile, &device(), &tuning)
    };
    let peak = |plan: &Plan| plan.peak_bytes(Space::MAIN);
    let recomputed = |plan: &Plan| plan.notes.iter().any(Note::is_recomputed_for_memory);
    let free = planned(None).unwrap();
    let most = peak(&free);
    assert_eq!(planned(Some(most)).unwrap(), free, "what fits is left alone");
    let Err(PlanError::OverLimit { needed, least, .. }) = planned(Some(1)) else {
        panic!("one byte holds no training step")
    };
    assert!(needed == most && least < most, "{needed} {least}");
    let [some, all] = [(most + least) / 2, least].map(|limit| {
        let plan = planned(Some(limit)).unwrap();
        assert!(plan.offloaded.is_empty(), "this device has no other memory");
        assert!(peak(&plan) <= limit && recomputed(&plan), "{limit}");
        plan
    });
    assert_eq!(peak(&all), least, "the error says what fits");
    let work = [&free, &some, &all].map(|plan| plan.cost().flops);
    assert!(work[0] < work[1] && work[1] <= work[2], "{work:?}");
}

/// A limit a little below the peak costs no product: norms and activations are computed again, and
/// not before the backward part needs them.
#[test]
fn a_limit_near_the_peak_computes_no_product_again() {
    let model = find("gpt-125m").unwrap();
    let forward = at_batch(&(model.build)().unwrap(), 16);
    let recipe = Recipe { precision: DType::BF16, ..Recipe::default() };
    let forward = with_loss(&forward, data::Target::Classes).unwrap();
    let step = training_step_on(&forward, &recipe, &Mesh::default()).unwrap();
    let planned = |memory_limit| {
        let tuning = Tuning { memory_limit, ..Tuning::default() };
        plan(&step, Mode::Compile, &device(), &tuning).unwrap()
    };
    let free = planned(None);
    let limit = free.peak_bytes(Space::MAIN) * 17 / 20;
    let limited = planned(Some(limit));
    assert!(limited.peak_bytes(Space::MAIN) <= limit);
    let [free, limited] = [free, limited].map(|plan| plan.cost().flops as f64);
    assert!(limited > free && limited < 1.01 * free, "{limited} of {free}");
}

/// Streams that wait for events, as a GPU has them, and one for everything, as a CPU has it.
#[test]
fn stages_of_a_pipeline_never_wait_for_each_other() {
    let model = find("text-transformer").unwrap();
    let forward = with_loss(&(model.build)().unwrap(), data::Target::Classes).unwrap();
    let forward = at_batch(&forward, 2);
    for overlaps_collectives in [false, true] {
        let device = Description { overlaps_collectives, ..device().description().clone() };
        let pace = Pace::of(&device);
        let target = Described { description: device.clone(), answer };
        for (stages, batches) in [(2, 1), (2, 5), (3, 4), (5, 7)] {
            let mesh = Mesh::new([("pipeline", stages)]);
            let recipe = Recipe { batch: 2, accumulate: batches, ..Recipe::default() };
            let whole = training_step_on(&forward, &recipe, &mesh).unwrap();
            let sharded = sharded_step(&whole, &mesh, Sharing::default(), None).unwrap();
            let plan = |rank| {
                let graph = sharded.placed(rank).unwrap();
                plan(&graph, Mode::Compile, &target, &Tuning::default()).unwrap()
            };
            let plans: Vec<Plan> = (0..stages).map(plan).collect();
            let times = timelines(&plans, &pace);
            let work: f64 = times.iter().map(|time| time.work_seconds).sum();
            let longest = times.iter().map(|time| time.seconds).fold(0.0, f64::max);
            let share = work / (stages as f64 * longest);
            assert!(share > 1.0 / stages as f64, "stages overlap: {share}");
        }
    }
}
