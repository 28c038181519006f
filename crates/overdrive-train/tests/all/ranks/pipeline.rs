//! Stages of a pipeline: ranks that hold a part of the model each learn what one rank learns.
//!
//! Long because each way to combine stages is compared with the same run of one rank.

use super::runs::{self, Beside, PATIENCE, ROUNDING, Task, alone, close, held, of_rank, on, same};
use overdrive_cpu::CpuBackend;
use overdrive_ir::eval::{States, eval};
use overdrive_ir::{
    Array, Backend, BackendError, Buffer, Builder, DType, Expr, Graph, Init, Mesh, Prim, State,
    Tensor, TensorType, Tuning,
};
use overdrive_models::find;
use overdrive_passes::{bind, to_f64};
use overdrive_ranks::run;
use overdrive_train::data::{Dataset, Parts, Subset, Target, books};
use overdrive_train::{
    Checkpoint, EarlyStop, Formats, Recipe, Shards, Sharing, sharded_step, training_step,
    training_step_on, with_loss,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The digits in several batches a step.
fn of_digits() -> Task {
    let recipe =
        Recipe { steps: 4, batch: 12, accumulate: 3, evaluate_every: 2, ..Recipe::default() };
    Task { recipe, ..runs::of_digits() }
}

/// A transformer whose output layer is its table of tokens.
fn of_text() -> Task {
    let model = (find("text-transformer").unwrap().build)().unwrap();
    let parts = Dataset::Text(books()).parts(&model, 0).unwrap();
    let validation = Arc::new(Subset::evenly(parts.validation, 8));
    let recipe =
        Recipe { steps: 2, batch: 4, accumulate: 4, evaluate_every: 2, ..Recipe::default() };
    Task { model, parts: Parts { validation, ..parts }, recipe }
}

#[test]
fn stages_learn_what_one_rank_learns() {
    let task = of_digits();
    let (expected, watched) = alone(&task);
    for mesh in ["pipeline=2", "pipeline=3", "data=2,pipeline=2", "pipeline=2,data=3"] {
        let all = on(&task, mesh, Beside::default());
        same(&expected.parameters, &all[0].0.parameters, ROUNDING);
        for (fitted, watch) in &all {
            assert_eq!(watch.losses, all[0].1.losses, "{mesh}: all ranks know the loss");
            assert_eq!(fitted.progress, all[0].0.progress);
            close("loss", &watched.losses, &watch.losses, 1e-5);
            close("norm", &watched.norms, &watch.norms, 1e-4);
            assert_eq!(watch.validation.len(), 2);
            for (one, of_all) in watched.validation.iter().zip(&watch.validation) {
                close("validation", &one.losses, &of_all.losses, 1e-3);
                assert_eq!(one.hits, of_all.hits);
            }
            assert!(held(watch) < held(&watched), "{mesh}: a stage holds less than the model");
            let flops = watch.flops as f64 / watched.flops as f64;
            assert!((0.9..1.25).contains(&flops), "{mesh}: {flops} of the work of one rank");
        }
        let again = on(&task, mesh, Beside::default());
        assert!(all[0].0 == again[0].0, "{mesh}: the same bits again");
    }
}

#[test]
fn a_table_at_both_ends_is_held_by_one_stage() {
    let task = of_text();
    let (expected, watched) = alone(&task);
    let all = on(&task, "pipeline=4", Beside::default());
    same(&expected.parameters, &all[0].0.parameters, 1e-4);
    close("loss", &watched.losses, &all[0].1.losses, 1e-5);
    let states: u64 = all.iter().map(|(_, watch)| held(watch)).sum();
    // Each has its own count of updates.
    assert!(states <= held(&watched) + 4 * 8, "{states} bytes of {}", held(&watched));
    let largest = all.iter().map(|(_, watch)| held(watch)).max().unwrap();
    assert!(2 * largest < held(&watched), "{largest} bytes of {}", held(&watched));
}

/// Stages compute values again, each its own, and bits stay.
#[test]
fn stages_fit_a_limit_of_memory() {
    let task = of_text();
    let free = on(&task, "pipeline=3", Beside::default());
    // The first two hold fewer parameters than activations.
    let limits: Vec<u64> = free.iter().map(|(_, watch)| watch.peak * 95 / 100).collect();
    let mesh: Mesh = "pipeline=3".parse().unwrap();
    let limited = run(&mesh, PATIENCE, |communicator| {
        let rank = communicator.rank();
        let memory_limit = limits.get(rank).copied().filter(|_| rank < 2);
        of_rank(&task, Some(communicator), Beside { memory_limit, ..Beside::default() })
    });
    for (rank, result) in limited.into_iter().enumerate() {
        let (fitted, watch) = result.unwrap();
        assert!(fitted == free[rank].0, "stage {rank}: the same bits");
        assert!(rank == 2 || watch.peak <= limits[rank] && watch.recomputed > 0, "stage {rank}");
    }
}

#[test]
fn stages_go_with_other_ways_to_share_work() {
    let task = of_text();
    let (expected, _) = alone(&task);
    for (mesh, states) in [
        ("data=2,pipeline=2", Shards::Parameters),
        ("pipeline=2,data=2", Shards::Optimizer),
        ("pipeline=2,tensor=2", Shards::Nothing),
        ("pipeline=2,context=2", Shards::Nothing),
    ] {
        let beside = Beside { sharing: states.into(), ..Beside::default() };
        let all = on(&task, mesh, beside);
        same(&expected.parameters, &all[0].0.parameters, 1e-4);
    }
    let half = Task { recipe: Recipe { precision: DType::BF16, ..task.recipe.clone() }, ..task };
    let (_, watched) = alone(&half);
    for (_, watch) in on(&half, "pipeline=3", Beside::default()) {
        close("loss", &watched.losses, &watch.losses, 1e-3);
    }
}

/// Each part of a state is written once, whatever the stages hold.
#[test]
fn a_checkpoint_of_stages_goes_on_at_any_mesh_bit_for_bit() {
    let early_stop = Some(EarlyStop { patience: 9 });
    let recipe = |task: &Task| Recipe { early_stop, steps: 4, ..task.recipe.clone() };
    let (digits, text) = (of_digits(), of_text());
    let (of_digits, of_text) = (recipe(&digits), recipe(&text));
    let half = Recipe { precision: DType::F16, batch: 2, accumulate: 2, ..of_text };
    for (task, mesh, states) in [
        (Task { recipe: of_digits.clone(), ..digits.clone() }, "pipeline=2", Shards::Nothing),
        (
            Task { recipe: of_digits.clone(), ..digits.clone() },
            "pipeline=2,data=2",
            Shards::Nothing,
        ),
        (Task { recipe: of_digits, ..digits }, "data=3,pipeline=2", Shards::Parameters),
        (Task { recipe: half, ..text }, "pipeline=2", Shards::Nothing),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.checkpoint");
        let sharing = states.into();
        let kept = Beside { checkpoint: Some(&path), last: Some(1), sharing, ..Beside::default() };
        let whole = on(&task, mesh, Beside { sharing, ..Beside::default() });
        on(&task, mesh, kept);
        let checkpoint = Checkpoint::read(&path).unwrap();
        let resumed = Beside { resume: Some(&checkpoint), ..Beside::default() };
        let again = on(&task, mesh, Beside { sharing, ..resumed });
        assert!(again[0].0 == whole[0].0, "{mesh}: it goes on as if it had not been stopped");
        let within = if task.recipe.precision == DType::F16 { 1e-2 } else { ROUNDING };
        let other = on(&task, "data=2", resumed);
        same(&whole[0].0.parameters, &other[0].0.parameters, within);
        let one = of_rank(&task, None, resumed).unwrap();
        same(&whole[0].0.parameters, &one.0.parameters, within);
    }
}

/// Gradients of several batches are added in f32, whatever the products are in.
#[test]
fn no_sum_over_batches_is_rounded_to_the_format_of_products() {
    let task = of_digits();
    let recipe = Recipe { precision: DType::BF16, ..task.recipe.clone() };
    let sizes = [("batch".to_owned(), recipe.batch)].into();
    let forward = with_loss(&bind(&task.model, &sizes).unwrap(), Target::Classes).unwrap();
    let step = training_step_on(&forward, &recipe, &"pipeline=2".parse().unwrap()).unwrap();
    let sums = step.nodes().iter().filter(|node| {
        node.scope.is_empty() && matches!(node.op.prim(), Some(Prim::Binary { .. }))
    });
    let sums: Vec<DType> = sums.map(|node| step.ty(node.results[0]).dtype).collect();
    assert!(sums.len() >= 6 * 2, "two for each of six parameters: {sums:?}");
    assert!(sums.iter().all(|dtype| *dtype == DType::F32), "{sums:?}");
}

#[test]
fn what_has_no_stages_is_said_before_the_first_step() {
    let refused = |task: &Task, mesh: &str| {
        let mesh: Mesh = mesh.parse().unwrap();
        let all = run(&mesh, PATIENCE, |rank| of_rank(task, Some(rank), Beside::default()));
        all.into_iter().find_map(Result::err).unwrap().to_string()
    };
    let task = of_digits();
    let found = refused(&task, "pipeline=64");
    assert!(found.contains("expected layers for 64 stages along `pipeline`, found"), "{found}");
    let codes = task.recipe.clone().in_formats(Formats::named("fp8").unwrap().clone());
    let found = refused(&Task { recipe: codes, ..of_digits() }, "pipeline=2");
    assert!(found.contains("a recipe without codes of fp8"), "{found}");
    let recipe = Recipe { compression: Some("int8".parse().unwrap()), ..of_digits().recipe };
    let found = refused(&Task { recipe, ..of_digits() }, "data=2,pipeline=2");
    assert!(found.contains("compression of gradients, `int8`: expected one stage"), "{found}");
}

/// A stack of layers, some of which read earlier values again or share a weight.
#[derive(Clone, Debug)]
struct Stack {
    /// For each layer: how many values back its second operand is, and which weight it has.
    layers: Vec<(usize, Weight)>,
    stages: usize,
    batches: usize,
    data: usize,
}

/// The weight of a layer.
#[derive(Copy, Clone, PartialEq, Debug)]
enum Weight {
    Own,
    /// That of the first layer.
    First,
    /// The sum of those of the first layer and of the layer before.
    Sum,
}

const WIDTH: usize = 6;
const ROWS: usize = 2;

fn stack() -> impl Strategy<Value = Stack> {
    let weight =
        prop_oneof![4 => Just(Weight::Own), 1 => Just(Weight::First), 1 => Just(Weight::Sum)];
    let layers = prop::collection::vec((1..4_usize, weight), 3..9);
    (layers, 2..4_usize, 1..6_usize, 1..3_usize).prop_map(|(layers, stages, batches, data)| Stack {
        layers,
        stages,
        batches,
        data,
    })
}

impl Stack {
    fn model(&self, batch: usize) -> Graph {
        let b = Builder::new("stack");
        let x = b.input("x", TensorType::new(DType::F32, [batch, WIDTH]));
        let mut values = vec![x];
        let mut weights: Vec<Expr<'_>> = vec![];
        for (index, &(back, kind)) in self.layers.iter().enumerate() {
            let _scope = b.scope(&format!("layer{index}"));
            let own = || {
                let init = Init::Normal { std: 0.5, seed: index as u64 };
                let ty = TensorType::new(DType::F32, [WIDTH, WIDTH]);
                b.state_named(&format!("layer{index}.weight"), ty, init)
            };
            let own = match (kind, &weights[..]) {
                (Weight::First, [first, ..]) => *first,
                (Weight::Sum, [first, .., last]) => *first + *last,
                _ => own(),
            };
            weights.push(own);
            let other = values[values.len().saturating_sub(back)];
            let next = values[values.len() - 1].linear(own, None).tanh() + other;
            values.push(next);
        }
        b.output("y", values[values.len() - 1]);
        with_loss(&b.finish().unwrap(), Target::Classes).unwrap()
    }

    /// The inputs of all batches, one after another.
    fn inputs(&self, graph: &Graph) -> Vec<Array> {
        let of = |port: &overdrive_ir::Port| {
            let (ty, sizes) = (graph.ty(port.value), graph.ty(port.value).sizes());
            Array::build(ty.dtype, &sizes, |at| match at {
                [] => 0.1,
                [row] => ((row * 7 + 3) % WIDTH) as f64,
                [row, column, ..] => ((row * 5 + column * 3) % 7) as f64 / 3.0 - 1.0,
            })
        };
        graph.inputs().iter().map(of).collect()
    }
}

/// Rows of a whole array that a batch has.
fn rows(whole: &Array, batch: usize, batches: usize) -> Tensor {
    let tensor = whole.to_tensor();
    if tensor.ty().rank() == 0 {
        return tensor;
    }
    let mut sizes = tensor.ty().sizes();
    sizes[0] /= batches;
    let ty = tensor.ty().with_shape(sizes);
    let part = &tensor.bytes()[batch * ty.bytes()..][..ty.bytes()];
    Tensor::from_bytes(ty, part.to_vec()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// All batches at once through any stages change states as one step on all rows does.
    #[test]
    fn any_stack_in_stages_is_the_whole(case in stack()) {
        let Stack { stages, batches, data, .. } = case;
        let recipe = Recipe { batch: ROWS * data, accumulate: batches, ..Recipe::default() };
        let one = Recipe { accumulate: 1, ..recipe.clone() };
        let all = case.model(ROWS * data * batches);
        let reference = to_f64(&training_step(&all, &one).unwrap()).unwrap();
        let inputs = case.inputs(&reference);
        let mut expected = States::new();
        let outputs = eval(&reference, &inputs, &mut expected);
        let mesh = Mesh::new([("data", data), ("pipeline", stages)]);
        let whole = match training_step_on(&case.model(ROWS * data), &recipe, &mesh) {
            Ok(whole) => to_f64(&whole).unwrap(),
            // So few weights may be left that they make no stages.
            Err(error) => {
                prop_assert!(error.to_string().contains("stages along"), "{error}");
                return Ok(());
            }
        };
        let sharded = sharded_step(&whole, &mesh, Sharing::default(), None).unwrap();
        let ranks = run(&mesh, PATIENCE, |communicator| {
            let rank = communicator.rank();
            let graph = sharded.at_rank(&whole, rank).unwrap();
            let backend = CpuBackend::new(Some(1)).unwrap().on(communicator);
            let mode = backend.description().fastest_mode();
            let mut session =
                backend.compile(&graph, mode, &Tuning::default())?.session()?;
            let mut state = State::default();
            for declared in graph.states() {
                let ty = graph.ty(declared.value);
                let tensor = declared.init.tensor(&declared.name, ty);
                state.buffers.insert(declared.name.clone(), backend.upload(&tensor)?);
            }
            let mut given = vec![];
            for (port, sharding) in whole.inputs().iter().zip(&sharded.inputs) {
                let (name, batch) = port.name.split_once('#').unwrap_or((&port.name, "0"));
                let at = reference.inputs().iter().position(|port| port.name == name).unwrap();
                let rows = rows(&inputs[at], batch.parse().unwrap(), batches);
                given.push(backend.upload(&sharded.part(&rows, sharding, rank))?);
            }
            let types = graph.outputs().iter().map(|port| graph.ty(port.value));
            let mut found: Vec<Buffer> =
                types.map(|ty| backend.output(ty)).collect::<Result<_, _>>()?;
            session.run(state.with(&given, &mut found))?.wait()?;
            let loss = backend.download(&found[0])?.to_f64()[0];
            let states: Vec<(String, Vec<f64>)> = state
                .buffers
                .iter()
                .map(|(name, buffer)| Ok((name.clone(), backend.download(buffer)?.to_f64())))
                .collect::<Result<_, BackendError>>()?;
            Ok::<_, BackendError>((loss, states))
        });
        let mut seen = BTreeMap::<String, usize>::new();
        for result in ranks {
            let (loss, states) = result.unwrap();
            close("loss", &outputs[0].to_f64(), &[loss], 1e-12);
            for (name, found) in states {
                // The share of a batch, such as 1/3, is rounded to f32.
                close(&name, &expected[&name].to_f64(), &found, f64::from(f32::EPSILON));
                *seen.entry(name).or_default() += 1;
            }
        }
        prop_assert_eq!(seen.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (name, count) in seen {
            let holders = if name == "optimizer.count" { data * stages } else { data };
            prop_assert_eq!(count, holders, "{}", name);
        }
    }
}
