//! Several ranks learn what one learns from the same batches.
//!
//! Long because each way to share out the work is compared with the same run of one rank.

mod muon;
mod parameters;
mod pipeline;
mod runs;

use overdrive_formats::Tensors;
use overdrive_ir::{Axis, Communicator, DType, Mesh, Node, Prim, Sharding};
use overdrive_models::find;
use overdrive_passes::{ContextExchange, bind, shard};
use overdrive_ranks::run;
use overdrive_train::data::{Dataset, Parts, Target, books};
use overdrive_train::{
    Checkpoint, Ending, Fitted, Formats, Moments, Recipe, Shards, Sharing, TrainError,
    training_step, with_loss,
};
use runs::{
    Beside, Outcome, PATIENCE, ROUNDING, Task, Watch, alone, close, held, of_digits, of_rank, on,
    same,
};
use std::path::Path;
use std::sync::Arc;

fn mesh(ranks: usize) -> Mesh {
    Mesh::new([("data", ranks)])
}

fn together(task: &Task, ranks: usize) -> Vec<(Fitted, Watch)> {
    on(task, &mesh(ranks).to_string(), Beside::default())
}

#[test]
fn ranks_learn_what_one_learns_from_the_same_batches() {
    let task = of_digits();
    let (expected, watched) = alone(&task);
    for ranks in [2, 3, 8] {
        let all = together(&task, ranks);
        for (fitted, watch) in &all {
            assert!(fitted.parameters == all[0].0.parameters, "all ranks have the same bits");
            same(&expected.parameters, &fitted.parameters, ROUNDING);
            close("loss", &watched.losses, &watch.losses, 1e-5);
            for (one, of_all) in watched.validation.iter().zip(&watch.validation) {
                close("validation", &one.losses, &of_all.losses, 1e-3);
                assert_eq!(one.positions, of_all.positions);
            }
            assert_eq!(watch.validation.len(), 2);
        }
    }
    let [first, again] = [together(&task, 4), together(&task, 4)];
    assert!(first[0].0 == again[0].0, "ranks of the same mesh give the same bits again");
}

#[test]
fn so_they_do_of_text_in_bf16_with_several_batches_a_step() {
    let model = (find("text-transformer").unwrap().build)().unwrap();
    let parts = Dataset::Text(books()).parts(&model, 0).unwrap();
    let recipe = Recipe {
        steps: 2,
        batch: 4,
        accumulate: 2,
        evaluate_every: 10,
        precision: DType::BF16,
        ..Recipe::default()
    };
    // A look at all of the validation text would take longer than the steps.
    let validation = overdrive_train::data::Subset::evenly(parts.validation, 8);
    let parts = Parts { validation: Arc::new(validation), ..parts };
    let task = Task { model, parts, recipe };
    let (_, watched) = alone(&task);
    for (_, watch) in together(&task, 2) {
        close("loss", &watched.losses, &watch.losses, 1e-3);
    }
}

/// A scale is that of the whole batch, although each rank has only a part.
#[test]
fn ranks_find_the_scales_of_fp8_that_one_finds() {
    let formats = Formats::named("fp8").unwrap();
    let whole = of_digits();
    let recipe = Recipe { batch: 32, ..whole.recipe.clone().in_formats(formats.clone()) };
    let mut task = Task { recipe, ..whole };
    let folder = tempfile::tempdir().unwrap();
    let states = |task: &Task, ranks: usize| {
        let file = folder.path().join(format!("{ranks}.safetensors"));
        let beside = Beside { checkpoint: Some(&file), ..Beside::default() };
        let all = run(&mesh(ranks), PATIENCE, |rank| of_rank(task, Some(rank), beside));
        let parameters: Vec<_> = all.into_iter().map(|run| run.unwrap().0.parameters).collect();
        assert!(parameters.iter().all(|of_rank| *of_rank == parameters[0]));
        let kept = Checkpoint::read(&file).unwrap();
        let scales = kept.state.iter().filter(|(name, _)| name.starts_with("float8."));
        scales.map(|(name, saved)| (name.clone(), saved.read().unwrap())).collect::<Tensors>()
    };
    // With several batches codes of weights are kept, on each rank.
    for accumulate in [1, 2] {
        task.recipe.accumulate = accumulate;
        let alone = states(&task, 1);
        // A layer's three scales of both layers on codes, and how many batches there were.
        assert_eq!(alone.len(), 2 * 3 + 1, "{:?}", alone.keys());
        assert_eq!(alone, states(&task, 2));
    }
}

/// The states that a rank holds when those of the optimizer are sharded.
#[test]
fn ranks_that_share_out_the_optimizer_learn_the_same() {
    let recipes = [
        Recipe { steps: 6, batch: 24, evaluate_every: 3, ..Recipe::default() },
        Recipe { steps: 4, batch: 24, accumulate: 2, clip_norm: None, ..Recipe::default() },
    ];
    for recipe in recipes {
        let task = Task { recipe, ..of_digits() };
        let (expected, watched) = alone(&task);
        for ranks in [2, 4] {
            let beside = Beside { sharing: Shards::Optimizer.into(), ..Beside::default() };
            let all = run(&mesh(ranks), PATIENCE, |rank| of_rank(&task, Some(rank), beside));
            let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
            for (fitted, watch) in &all {
                assert!(fitted.parameters == all[0].0.parameters, "all ranks have the same bits");
                same(&expected.parameters, &fitted.parameters, ROUNDING);
                close("loss", &watched.losses, &watch.losses, 1e-5);
            }
            // Only parameters are whole on every rank; the two moments, and the sum of gradients of
            // several batches, are sharded.
            let (whole, part) = (held(&watched), held(&all[0].1));
            let tensors = if task.recipe.accumulate > 1 { 4 } else { 3 };
            let expected = whole / tensors + whole * (tensors - 1) / tensors / ranks as u64;
            let off = part.abs_diff(expected);
            assert!(off < whole / 50, "{part} of {whole} bytes are held by each of {ranks}");
        }
    }
}

/// The states that a rank holds when those of the model are sharded too.
#[test]
fn ranks_that_share_out_parameters_learn_the_same() {
    let recipes = [
        Recipe { steps: 6, batch: 24, evaluate_every: 3, ..Recipe::default() },
        Recipe { steps: 4, batch: 24, accumulate: 2, evaluate_every: 2, ..Recipe::default() },
    ];
    for recipe in recipes {
        let task = Task { recipe, ..of_digits() };
        let (expected, watched) = alone(&task);
        for mesh in ["data=2", "data=4", "tensor=2,data=2"] {
            let mesh: Mesh = mesh.parse().unwrap();
            let beside = Beside { sharing: Shards::Parameters.into(), ..Beside::default() };
            let all = run(&mesh, PATIENCE, |rank| of_rank(&task, Some(rank), beside));
            let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
            // Rank 0 has the whole parameters.
            same(&expected.parameters, &all[0].0.parameters, ROUNDING);
            for (_, watch) in &all {
                close("loss", &watched.losses, &watch.losses, 1e-5);
                for (one, of_all) in watched.validation.iter().zip(&watch.validation) {
                    close("validation", &one.losses, &of_all.losses, 1e-3);
                }
                assert_eq!(watch.validation.len(), 2);
            }
            let (whole, part) = (held(&watched), held(&all[0].1));
            // Along `tensor` this model is hardly split: `data` alone divides its states.
            let expected = whole / mesh.size(&Axis::from("data")) as u64;
            let off = part.abs_diff(expected);
            assert!(off < whole / 50, "{part} of {whole} bytes are held on {mesh}");
        }
    }
}

/// Codes of moments are shared out together with the scales of their blocks.
#[test]
fn ranks_share_out_moments_in_fewer_bytes() {
    for moments in [Moments::Bf16, Moments::Fp8] {
        for clip_norm in [None, Some(1.0)] {
            let recipe = Recipe { moments, clip_norm, ..of_digits().recipe };
            let task = Task { recipe, ..of_digits() };
            let (expected, watched) = alone(&task);
            let runs = [
                ("data=2", Shards::Optimizer),
                ("data=4", Shards::Parameters),
                ("tensor=2,data=2", Shards::Parameters),
            ];
            for (mesh, shards) in runs {
                let beside = Beside { sharing: shards.into(), ..Beside::default() };
                let mesh: Mesh = mesh.parse().unwrap();
                let all = run(&mesh, PATIENCE, |rank| of_rank(&task, Some(rank), beside));
                let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
                // A number that crosses a threshold of rounding moves a weight by more than its
                // last bits.
                same(&expected.parameters, &all[0].0.parameters, 50.0 * ROUNDING);
                close("loss", &watched.losses, &all[0].1.losses, 1e-4);
                let (whole, part) = (held(&watched), held(&all[0].1));
                let of_two = if shards == Shards::Optimizer { 0.9 } else { 0.6 };
                assert!((part as f64) < of_two * whole as f64, "{part} of {whole} on {mesh}");
            }
        }
    }
}

/// Codes and scales that four ranks wrote go on with two, whole or in parts, with equal bits.
#[test]
fn moments_in_fewer_bytes_go_on_with_other_ranks_bit_for_bit() {
    for moments in [Moments::Bf16, Moments::Fp8] {
        // Two ranks sum a gradient in one order, its norm in several.
        let recipe = Recipe { moments, clip_norm: None, ..of_digits().recipe };
        let task = Task { recipe, ..of_digits() };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("checkpoint");
        let sharing = Shards::Parameters.into();
        let beside =
            Beside { checkpoint: Some(&file), last: Some(3), sharing, ..Beside::default() };
        let stopped = run(&mesh(4), PATIENCE, |rank| of_rank(&task, Some(rank), beside));
        assert!(stopped.iter().all(Result::is_ok));
        let kept = Checkpoint::read(&file).unwrap();
        let go_on = |ranks, shards: Shards| {
            let beside =
                Beside { resume: Some(&kept), sharing: shards.into(), ..Beside::default() };
            let mut all = run(&mesh(ranks), PATIENCE, |rank| of_rank(&task, Some(rank), beside));
            all.remove(0).unwrap().0.parameters
        };
        let without_end = Beside { sharing, ..Beside::default() };
        let mut whole = run(&mesh(4), PATIENCE, |rank| of_rank(&task, Some(rank), without_end));
        let whole = whole.remove(0).unwrap().0.parameters;
        assert!(go_on(4, Shards::Parameters) == whole, "{moments:?}: as without an end");
        let of_two = go_on(2, Shards::Nothing);
        for shards in [Shards::Optimizer, Shards::Parameters] {
            assert!(go_on(2, shards) == of_two, "{moments:?} {shards:?}");
        }
    }
}

/// Ranks along `context` share the samples of a batch, and each takes a part of their positions.
#[test]
fn ranks_that_split_positions_learn_the_same() {
    let model = (find("text-transformer").unwrap().build)().unwrap();
    let parts = Dataset::Text(books()).parts(&model, 0).unwrap();
    let recipe = Recipe { steps: 2, batch: 2, evaluate_every: 10, ..Recipe::default() };
    let validation = overdrive_train::data::Subset::evenly(parts.validation, 3);
    let task = Task { model, parts: Parts { validation: Arc::new(validation), ..parts }, recipe };
    let (_, watched) = alone(&task);
    for (mesh, states, exchange) in [
        ("data=2,context=2", Shards::Parameters, ContextExchange::Ring),
        ("context=2", Shards::Nothing, ContextExchange::Ulysses),
    ] {
        let mesh: Mesh = mesh.parse().unwrap();
        let sharing = Sharing { states, context: Some(exchange) };
        let beside = Beside { sharing, ..Beside::default() };
        for result in run(&mesh, PATIENCE, |rank| of_rank(&task, Some(rank), beside)) {
            let (_, watch) = result.unwrap();
            close("loss", &watched.losses, &watch.losses, 1e-4);
            close("validation", &watched.validation[0].losses, &watch.validation[0].losses, 1e-3);
        }
    }
}

#[test]
fn what_is_shared_out_goes_on_whole_and_in_other_parts() {
    let task = of_digits();
    let (expected, _) = alone(&task);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checkpoint");
    let file: &Path = &file;
    for shards in [Shards::Optimizer, Shards::Parameters] {
        let stopped = run(&mesh(4), PATIENCE, |rank| {
            let (checkpoint, last) = (Some(file), Some(3));
            let beside = Beside { checkpoint, last, sharing: shards.into(), ..Beside::default() };
            of_rank(&task, Some(rank), beside)
        });
        assert!(stopped.iter().all(Result::is_ok));
        let kept = Checkpoint::read(file).unwrap();
        let beside = Beside { resume: Some(&kept), ..Beside::default() };
        let (fitted, _) = of_rank(&task, None, beside).unwrap();
        same(&expected.parameters, &fitted.parameters, ROUNDING);
        let beside = Beside { sharing: shards.into(), ..beside };
        let mut resumed = run(&mesh(3), PATIENCE, |rank| of_rank(&task, Some(rank), beside));
        same(&expected.parameters, &resumed.remove(0).unwrap().0.parameters, ROUNDING);
    }
}

/// A run that has ended is the same model on any mesh, bit for bit.
#[test]
fn a_checkpoint_of_split_parameters_is_the_same_model_anywhere() {
    let task = of_digits();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checkpoint");
    let shards = Shards::Parameters;
    let beside = Beside { checkpoint: Some(&file), sharing: shards.into(), ..Beside::default() };
    let mut ended = run(&mesh(2), PATIENCE, |rank| of_rank(&task, Some(rank), beside));
    let expected = ended.remove(0).unwrap().0.parameters;
    let kept = Checkpoint::read(&file).unwrap();
    let beside = Beside { resume: Some(&kept), ..Beside::default() };
    assert!(of_rank(&task, None, beside).unwrap().0.parameters == expected);
    for shards in [Shards::Nothing, Shards::Parameters] {
        let beside = Beside { sharing: shards.into(), ..beside };
        let mut again = run(&mesh(3), PATIENCE, |rank| of_rank(&task, Some(rank), beside));
        assert!(again.remove(0).unwrap().0.parameters == expected);
    }
}

/// A checkpoint holds whole states: any number of ranks continues from it.
#[test]
fn a_checkpoint_of_some_ranks_goes_on_with_others() {
    let task = of_digits();
    let (expected, _) = alone(&task);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checkpoint");
    let file: &Path = &file;
    let stopped = run(&mesh(4), PATIENCE, |rank| {
        // One rank is asked to end: all do, after the step that follows.
        let last = (rank.rank() == 2).then_some(3);
        of_rank(&task, Some(rank), Beside { checkpoint: Some(file), last, ..Beside::default() })
    });
    for result in stopped {
        let (fitted, _) = result.unwrap();
        assert_eq!((fitted.ending, fitted.progress.done), (Ending::Interrupted, 5));
    }
    let kept = Checkpoint::read(file).unwrap();
    let beside = Beside { resume: Some(&kept), ..Beside::default() };
    let (fitted, _) = of_rank(&task, None, beside).unwrap();
    same(&expected.parameters, &fitted.parameters, ROUNDING);
    let resumed = run(&mesh(2), PATIENCE, |rank| of_rank(&task, Some(rank), beside));
    for result in resumed {
        same(&expected.parameters, &result.unwrap().0.parameters, ROUNDING);
    }
}

fn errors(ranks: usize, of: impl Fn(Arc<dyn Communicator>) -> Outcome + Sync) -> Vec<TrainError> {
    run(&mesh(ranks), PATIENCE, of).into_iter().map(|result| result.err().unwrap()).collect()
}

#[test]
fn what_cannot_be_trained_together_is_said_before_the_first_step() {
    let task = of_digits();
    for error in errors(5, |rank| of_rank(&task, Some(rank), Beside::default())) {
        let text = error.to_string();
        assert!(text.contains("batch: expected a multiple of the 5 ranks, found 24"), "{text}");
        assert!(text.contains("one of 1, 2, 3, 4, 6, 8, 12, 24"), "{text}");
    }
    let other = Task { recipe: Recipe { seed: 2, ..task.recipe.clone() }, ..of_digits() };
    let of_another = |rank: Arc<dyn Communicator>| {
        let task = if rank.rank() == 1 { &other } else { &task };
        of_rank(task, Some(rank), Beside::default())
    };
    for error in errors(3, of_another) {
        assert!(error.is_of_another_rank());
        let text = error.to_string();
        assert!(text.starts_with("rank 1: expected what is trained `recipe"), "{text}");
    }
}

#[test]
fn a_rank_that_fails_ends_the_run_of_all() {
    let task = of_digits();
    let late = |rank: Arc<dyn Communicator>| {
        // No plan of rank 1 fits.
        let memory_limit = (rank.rank() == 1).then_some(1);
        of_rank(&task, Some(rank), Beside { memory_limit, ..Beside::default() })
    };
    let found = errors(3, late);
    assert!(!found[1].is_of_another_rank(), "{}", found[1]);
    for error in [&found[0], &found[2]] {
        assert!(error.to_string().starts_with("rank 1 ended"), "{error}");
    }
}

/// The norm of gradients and the optimizer read the same sums.
#[test]
fn each_gradient_is_reduced_once() {
    let Task { model, recipe, .. } = of_digits();
    let batch = [("batch".to_owned(), recipe.batch)].into();
    let with_loss = with_loss(&bind(&model, &batch).unwrap(), Target::Classes).unwrap();
    let whole = training_step(&with_loss, &recipe).unwrap();
    let rows = whole.inputs().iter().filter(|port| whole.ty(port.value).rank() > 0);
    let shardings = rows.map(|port| {
        let rank = whole.ty(port.value).rank();
        (port.value, Sharding::whole(rank).and_split(0, &Axis::from("data")))
    });
    let sharded = shard(&whole, &mesh(2), &shardings.collect()).unwrap().graph;
    let is_reduced = |node: &&Node| matches!(node.op.prim(), Some(Prim::AllReduce { .. }));
    let reduced = sharded.nodes().iter().filter(is_reduced);
    let sizes: Vec<usize> = reduced.map(|node| sharded.ty(node.results[0]).elements()).collect();
    let parameters = model.states().iter().map(|state| model.ty(state.value).elements());
    // Beside them the loss, and counts of it.
    let elements = sizes.iter().filter(|&&size| size > 1).sum::<usize>();
    assert_eq!(elements, parameters.sum::<usize>(), "{sizes:?}");
}

/// The digits with compressed gradients.
fn compressed(scheme: &str, steps: u64) -> Task {
    let whole = of_digits();
    let compression = Some(scheme.parse().unwrap());
    let recipe = Recipe { steps, evaluate_every: steps, compression, ..whole.recipe.clone() };
    Task { recipe, ..whole }
}

#[test]
fn compressed_gradients_learn_nearly_as_much() {
    let steps = 120;
    let plain = Task {
        recipe: Recipe { steps, evaluate_every: steps, ..of_digits().recipe },
        ..of_digits()
    };
    let loss = |all: &[(Fitted, Watch)]| all[0].1.validation[0].loss();
    let expected = loss(&together(&plain, 2));
    // Codes round by less than a percent. The others send a tenth, and the rest some steps later.
    for (scheme, band) in [("int8", 0.02), ("fp8", 0.05), ("topk:0.1", 0.3), ("powersgd:4", 0.3)] {
        let all = together(&compressed(scheme, steps), 2);
        assert!(all[0].0.parameters == all[1].0.parameters, "{scheme}: the same bits");
        let found = loss(&all);
        let off = found / expected - 1.0;
        assert!(off.abs() < band, "{scheme}: {found} for {expected} of plain sums");
    }
}

#[test]
fn they_go_with_other_ways_to_share_work() {
    for (scheme, shards) in [("topk:0.1", Shards::Optimizer), ("powersgd:4", Shards::Nothing)] {
        let task = compressed(scheme, 4);
        let task = Task { recipe: Recipe { accumulate: 2, ..task.recipe.clone() }, ..task };
        let beside = Beside { sharing: shards.into(), ..Beside::default() };
        let all = run(&mesh(2), PATIENCE, |rank| of_rank(&task, Some(rank), beside));
        let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
        assert!(all[0].0.parameters == all[1].0.parameters, "{scheme}: the same bits");
    }
}

/// As many ranks continue with the same bits.
#[test]
fn errors_of_compression_are_whole_in_a_checkpoint() {
    let task = compressed("topk:0.1", 6);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checkpoint");
    let parameters = |ranks, beside: Beside<'_>| {
        let all = run(&mesh(ranks), PATIENCE, |rank| of_rank(&task, Some(rank), beside));
        all.into_iter().map(|run| run.unwrap().0.parameters).collect::<Vec<_>>()
    };
    let expected = together(&task, 4);
    parameters(4, Beside { checkpoint: Some(&file), last: Some(2), ..Beside::default() });
    let kept = Checkpoint::read(&file).unwrap();
    let errors = kept.state.iter().filter(|(name, _)| name.ends_with(".error"));
    let errors: Vec<_> = errors.map(|(name, error)| (name, error.ty().sizes())).collect();
    assert_eq!(errors.len(), 2, "two of its matrices are large enough: {errors:?}");
    assert!(errors.iter().all(|(_, sizes)| sizes[0] == 4), "{errors:?}");
    let resume = Beside { resume: Some(&kept), ..Beside::default() };
    assert!(parameters(4, resume).iter().all(|found| *found == expected[0].0.parameters));
    let [first, second] = parameters(2, resume).try_into().unwrap();
    assert!(first == second, "two ranks continue too");
}

#[test]
fn one_rank_has_nothing_to_compress() {
    let error = of_rank(&compressed("int8", 4), None, Beside::default()).err().unwrap();
    let text = error.to_string();
    assert!(
        text.contains("`int8`: expected several ranks along `data`, found one; train with"),
        "{text}"
    );
}
