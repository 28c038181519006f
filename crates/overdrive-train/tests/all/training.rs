//! The step, the loop around it, and going on where a run stopped.
//!
//! Long because every property of a run is checked with the same small model.

use overdrive_cpu::CpuBackend;
use overdrive_formats::Tensors;
use overdrive_ir::eval::{States, eval};
use overdrive_ir::{Array, Builder, DType, Graph, Init, Prim, Tensor, TensorType, Tuning};
use overdrive_models::find;
use overdrive_passes::{bind, precision};
use overdrive_train::data::{Batch, Dataset, Parts, Split, Subset, Target, digits};
use overdrive_train::{
    Checkpoint, Decay, EarlyStop, Ending, Evaluation, FORMATS, Fit, Fitted, NamedFormats, Observer,
    Optimizer, Progress, Recipe, Schedule, StepReport, TrainError, Trainer, batches, evaluate,
    evaluate_while, fit, initial_parameters, training_step, with_loss,
};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

fn model() -> Graph {
    (find("digits-mlp").unwrap().build)().unwrap()
}

fn parts() -> Parts {
    Dataset::Samples(digits()).parts(&model(), 0).unwrap()
}

fn recipe(steps: u64) -> Recipe {
    Recipe { steps, batch: 32, evaluate_every: 5, ..Recipe::default() }
}

fn backend() -> CpuBackend {
    CpuBackend::new(Some(1)).unwrap()
}

/// A run on fold 0 of the digits.
fn run<'a>(
    backend: &'a CpuBackend,
    model: &'a Graph,
    recipe: &'a Recipe,
    parts: &'a Parts,
) -> Fit<'a> {
    Fit::anew((backend, model), recipe, parts)
}

fn fitted(recipe: &Recipe) -> Fitted {
    fit(&run(&backend(), &model(), recipe, &parts()), &mut ()).unwrap()
}

/// `loss = mean over B of (x w - labels)^2`, with w f32[2, 1].
fn regression() -> Graph {
    let b = Builder::new("regression");
    let x = b.input("x", TensorType::new(DType::F32, [2usize, 2]));
    let labels = b.input("labels", TensorType::new(DType::I32, [2usize]));
    let w = b.state("w", TensorType::new(DType::F32, [2usize, 1]), Init::Constant(0.5));
    let off = x.matmul(w).reshape([2usize]) - labels.convert(DType::F32);
    b.output("loss", (off * off).sum(&[0]) * 0.5);
    b.finish().unwrap()
}

fn batch(x: [f32; 4], labels: [i128; 2]) -> Batch {
    let labels = Tensor::from_ints(DType::I32, [2usize], &labels);
    Batch { x: Tensor::from_f32([2usize, 2], &x), labels, mask: None, text_bytes: vec![] }
}

fn weights(trainer: &Trainer<'_>) -> Vec<f64> {
    trainer.parameters().unwrap()["w"].to_f64()
}

fn plain(optimizer: Optimizer) -> Recipe {
    let schedule = Schedule { peak: 0.1, warmup: 0, decay: Decay::Constant };
    Recipe { optimizer, schedule, clip_norm: None, batch: 2, ..Recipe::default() }
}

fn close(found: &[f64], expected: &[f64]) {
    let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6;
    assert!(
        found.len() == expected.len() && found.iter().zip(expected).all(near),
        "{found:?}, expected {expected:?}"
    );
}

#[test]
fn sgd_follows_its_formula_with_momentum_decay_and_clipping() {
    let (graph, backend) = (regression(), backend());
    let data = batch([1.0, 0.0, 0.0, 2.0], [1, 3]);
    // Residuals -0.5 and -2 at the start: the gradient is [-0.5, -4].
    let gradient = |w: &[f64]| [w[0] - 1.0, 2.0 * (2.0 * w[1] - 3.0)];
    let recipe = plain(Optimizer::Sgd { momentum: 0.9, weight_decay: 0.01 });
    let mut trainer =
        Trainer::new(&backend, &graph, &recipe, &initial_parameters(&graph, 1), &Tuning::default())
            .unwrap();
    let (mut w, mut m) = ([0.5, 0.5], [0.0, 0.0]);
    for _ in 0..4 {
        let report = trainer.step(std::slice::from_ref(&data)).unwrap();
        let g = gradient(&w);
        close(&[report.grad_norm], &[(g[0] * g[0] + g[1] * g[1]).sqrt()]);
        for i in 0..2 {
            m[i] = 0.9 * m[i] + g[i];
            w[i] -= 0.1 * (m[i] + 0.01 * w[i]);
        }
        close(&weights(&trainer), &w);
    }
    let clipped = Recipe {
        clip_norm: Some(1.0),
        ..plain(Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0 })
    };
    let mut trainer = Trainer::new(
        &backend,
        &graph,
        &clipped,
        &initial_parameters(&graph, 1),
        &Tuning::default(),
    )
    .unwrap();
    trainer.step(std::slice::from_ref(&data)).unwrap();
    let g = gradient(&[0.5, 0.5]);
    let norm = (g[0] * g[0] + g[1] * g[1]).sqrt() + 1e-6;
    close(&weights(&trainer), &[0.5 - 0.1 * g[0] / norm, 0.5 - 0.1 * g[1] / norm]);
}

#[test]
fn adamw_corrects_its_bias_and_decays_apart_from_the_gradient() {
    let (graph, backend) = (regression(), backend());
    let data = batch([1.0, 0.0, 0.0, 2.0], [1, 3]);
    let recipe = plain(Optimizer::Adamw { betas: [0.9, 0.99], eps: 1e-8, weight_decay: 0.1 });
    let mut trainer =
        Trainer::new(&backend, &graph, &recipe, &initial_parameters(&graph, 1), &Tuning::default())
            .unwrap();
    let (mut w, mut m, mut v) = ([0.5f64, 0.5], [0.0; 2], [0.0; 2]);
    for t in 1..=5 {
        trainer.step(std::slice::from_ref(&data)).unwrap();
        let g = [w[0] - 1.0, 2.0 * (2.0 * w[1] - 3.0)];
        for i in 0..2 {
            m[i] = 0.9 * m[i] + 0.1 * g[i];
            v[i] = 0.99 * v[i] + 0.01 * g[i] * g[i];
            let (first, second) = (m[i] / (1.0 - 0.9f64.powi(t)), v[i] / (1.0 - 0.99f64.powi(t)));
            w[i] -= 0.1 * (first / (second.sqrt() + 1e-8) + 0.1 * w[i]);
        }
        close(&weights(&trainer), &w);
    }
    assert_eq!(trainer.updates().unwrap(), 5);
}

#[test]
fn the_step_is_one_graph_that_the_evaluator_agrees_with() {
    let (backend, recipe, parts) = (backend(), recipe(4), parts());
    let forward = overdrive_passes::bind(&model(), &[("batch".to_owned(), 32)].into()).unwrap();
    let initial = initial_parameters(&forward, 3);
    let mut trainer = Trainer::new(
        &backend,
        &with_loss(&forward, Target::Classes).unwrap(),
        &recipe,
        &initial,
        &Tuning::default(),
    )
    .unwrap();
    let graph = trainer.graph().clone();
    let mut states: States = graph
        .states()
        .iter()
        .map(|s| {
            (
                s.name.clone(),
                initial
                    .get(&s.name)
                    .cloned()
                    .unwrap_or_else(|| s.init.tensor(&s.name, graph.ty(s.value))),
            )
        })
        .map(|(name, tensor)| (name, Array::from(&tensor)))
        .collect();
    for step in 0..2 {
        let batch = batches(parts.train.as_ref(), &recipe, step).unwrap().remove(0);
        let lr = Tensor::scalar(DType::F32, recipe.learning_rate(step));
        let given = graph.inputs().iter().map(|port| match port.name.as_str() {
            "x" => Array::from(&batch.x),
            "labels" => Array::from(&batch.labels),
            _ => Array::from(&lr),
        });
        let expected = eval(&graph, &given.collect::<Vec<_>>(), &mut states);
        let report = trainer.step(&[batch]).unwrap();
        let port = |name: &str| graph.outputs().iter().position(|p| p.name == name).unwrap();
        assert!((report.loss - expected[port("loss")].get(0)).abs() < 1e-5);
        assert!((report.grad_norm - expected[port("grad_norm")].get(0)).abs() < 1e-5);
    }
    for (name, tensor) in trainer.parameters().unwrap() {
        let worst = tensor
            .to_f64()
            .iter()
            .zip(states[&name].to_f64())
            .map(|(a, b)| (a - b).abs())
            .fold(0.0, f64::max);
        assert!(worst < 1e-5, "{name}: {worst}");
    }
}

#[test]
fn accumulating_two_halves_is_the_whole_batch() {
    let (graph, backend) = (regression(), backend());
    let sgd = plain(Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0 });
    let halves = [batch([1.0, 0.0, 0.0, 2.0], [1, 3]), batch([0.0, 1.0, 1.0, 1.0], [0, 2])];
    let recipe = Recipe { accumulate: 2, ..sgd };
    let mut trainer =
        Trainer::new(&backend, &graph, &recipe, &initial_parameters(&graph, 1), &Tuning::default())
            .unwrap();
    let mut w = [0.5, 0.5];
    for _ in 0..2 {
        let first = [w[0] - 1.0, 2.0 * (2.0 * w[1] - 3.0)];
        let (off, sum) = (w[1], w[0] + w[1] - 2.0);
        let second = [sum, off + sum];
        (0..2).for_each(|i| w[i] -= 0.1 * (first[i] + second[i]) / 2.0);
        trainer.step(&halves).unwrap();
        close(&weights(&trainer), &w);
    }
}

#[test]
fn a_model_learns_and_the_seed_decides_everything() {
    let recipe = recipe(120);
    let (first, again) = (fitted(&recipe), fitted(&recipe));
    assert_eq!(first, again);
    assert_ne!(first.parameters, fitted(&Recipe { seed: 2, ..recipe.clone() }).parameters);
    let forward = overdrive_passes::bind(&model(), &[("batch".to_owned(), 50)].into()).unwrap();
    let judge = |parameters: &Tensors| {
        evaluate(&backend(), &forward, parameters, parts().test.as_ref()).unwrap()
    };
    let (before, after) = (judge(&initial_parameters(&forward, 1)), judge(&first.parameters));
    assert!(
        before.accuracy() < 0.3 && after.accuracy() > 0.9,
        "{} to {}",
        before.accuracy(),
        after.accuracy()
    );
    assert_eq!(
        (after.losses.len(), after.positions, after.bits_per_byte()),
        (after.hits.len(), 1, None)
    );
    let mean = after.losses.iter().sum::<f64>() / after.losses.len() as f64;
    assert_eq!(after.loss(), mean);
}

/// Stops after some steps.
pub(crate) struct StopAfter(pub(crate) u64);

impl Observer for StopAfter {
    fn stepped(&mut self, report: &StepReport) -> ControlFlow<()> {
        if report.step + 1 == self.0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

fn interrupted_and_resumed(recipe: &Recipe, file: &Path) -> Fitted {
    let (backend, model, parts) = (backend(), model(), parts());
    let run = Fit { checkpoint: Some(file), ..run(&backend, &model, recipe, &parts) };
    let first = fit(&run, &mut StopAfter(7)).unwrap();
    assert_eq!((first.ending, first.progress.done), (Ending::Interrupted, 7));
    let checkpoint = Checkpoint::read(file).unwrap();
    fit(&Fit { resume: Some(&checkpoint), ..run }, &mut ()).unwrap()
}

#[test]
fn a_resumed_run_ends_bit_for_bit_as_one_that_was_not_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checkpoint");
    for NamedFormats { name, formats, .. } in FORMATS {
        for accumulate in [1, 2] {
            let early_stop = Some(EarlyStop { patience: 9 });
            let recipe = Recipe { accumulate, early_stop, ..recipe(13) };
            let recipe = recipe.in_formats(formats.clone());
            assert_eq!(
                interrupted_and_resumed(&recipe, &file),
                fitted(&recipe),
                "{name}, {accumulate}"
            );
        }
    }
}

#[test]
fn a_checkpoint_of_another_run_or_a_damaged_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checkpoint");
    let (backend, model, parts) = (backend(), model(), parts());
    let adamw = recipe(6);
    fit(&Fit { checkpoint: Some(&file), ..run(&backend, &model, &adamw, &parts) }, &mut ())
        .unwrap();
    let checkpoint = Checkpoint::read(&file).unwrap();
    let sgd =
        Recipe { optimizer: Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 }, ..recipe(6) };
    let other = Fit { resume: Some(&checkpoint), ..run(&backend, &model, &sgd, &parts) };
    let error = fit(&other, &mut ()).unwrap_err().to_string();
    assert!(
        error.contains("checkpoint, recipe: expected optimizer {")
            && error.contains("\"adamw\"")
            && error.contains("\"sgd\""),
        "{error}"
    );
    let fold = Dataset::Samples(digits()).parts(&model, 1).unwrap();
    let other = Fit { resume: Some(&checkpoint), ..run(&backend, &model, &adamw, &fold) };
    assert!(
        fit(&other, &mut ())
            .unwrap_err()
            .to_string()
            .contains("training samples and frozen weights of SHA-256")
    );
    let (part, _) = checkpoint.files.first_key_value().unwrap();
    let whole = std::fs::read(part).unwrap();
    std::fs::write(part, &whole[..whole.len() / 2]).unwrap();
    let error = |path: &Path| Checkpoint::read(path).unwrap_err().to_string();
    let said = error(&file);
    assert!(said.contains("0-of-1.safetensors: data: expected"), "{said}");
    let other = folder.path().join("other.safetensors");
    overdrive_formats::write(&other, &Tensors::new()).unwrap();
    let said = error(&other);
    assert!(said.contains("name a checkpoint that `train` wrote"), "{said}");
}

/// A checkpoint as it was before it was a folder: all states, whole, and counters as tensors.
fn file_of_an_earlier_version(checkpoint: &Checkpoint, path: &Path) {
    let mut tensors = Tensors::new();
    for (prefix, states) in [("state/", &checkpoint.state), ("best/", &checkpoint.best)] {
        let whole = states.iter().map(|(name, saved)| (name, saved.read().unwrap()));
        tensors.extend(whole.map(|(name, tensor)| (format!("{prefix}{name}"), tensor)));
    }
    let Progress { done, best_loss, stale, .. } = checkpoint.progress;
    for (name, count) in [("done", done), ("stale", stale)] {
        let count = Tensor::from_ints(DType::U64, [1usize], &[count.into()]);
        tensors.insert(format!("progress/{name}"), count);
    }
    let best = Tensor::from_f64(DType::F64, [1usize], &[best_loss]);
    tensors.insert("progress/best_loss".to_owned(), best);
    let run = serde_json::to_vec(&(&checkpoint.recipe, &checkpoint.data)).unwrap();
    let choices = serde_json::to_vec(&checkpoint.choices).unwrap();
    for (name, json) in [("run", run), ("choices", choices)] {
        let ty = TensorType::new(DType::U8, [json.len()]);
        tensors.insert(name.to_owned(), Tensor::from_bytes(ty, json).unwrap());
    }
    overdrive_formats::write(path, &tensors).unwrap();
}

#[test]
fn a_checkpoint_of_an_earlier_version_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (path, file) = (folder.path().join("checkpoint"), folder.path().join("old.safetensors"));
    let recipe = Recipe { early_stop: Some(EarlyStop { patience: 9 }), ..recipe(13) };
    let (backend, model, parts) = (backend(), model(), parts());
    let run = Fit { checkpoint: Some(&path), ..run(&backend, &model, &recipe, &parts) };
    fit(&run, &mut StopAfter(7)).unwrap();
    file_of_an_earlier_version(&Checkpoint::read(&path).unwrap(), &file);
    let old = Checkpoint::read(&file).unwrap();
    assert!(Checkpoint::is_at(&file) && old.files.is_empty());
    assert_eq!(fit(&Fit { resume: Some(&old), ..run }, &mut ()).unwrap(), fitted(&recipe));
}

#[test]
fn early_stop_keeps_the_best_parameters() {
    /// Validation losses as they were seen.
    struct Losses(Vec<(u64, f64)>);
    impl Observer for Losses {
        fn evaluated(&mut self, done: u64, evaluation: &Evaluation) {
            self.0.push((done, evaluation.loss()));
        }
    }
    // A learning rate that wanders: the best look is not the last one.
    let schedule = Schedule { peak: 0.3, warmup: 0, decay: Decay::Constant };
    let recipe = Recipe { early_stop: Some(EarlyStop { patience: 2 }), schedule, ..recipe(400) };
    let (backend, model, parts) = (backend(), model(), parts());
    let mut losses = Losses(vec![]);
    let fitted = fit(&run(&backend, &model, &recipe, &parts), &mut losses).unwrap();
    assert_eq!(fitted.ending, Ending::Early);
    let best = losses.0.iter().map(|(_, loss)| *loss).fold(f64::INFINITY, f64::min);
    assert_eq!(losses.0[losses.0.len() - 3].1, best, "{:?}", losses.0);
    let forward = overdrive_passes::bind(&model, &[("batch".to_owned(), 32)].into()).unwrap();
    let seen = Subset::evenly(parts.validation, recipe.samples_of_look(1));
    let kept = evaluate(&backend, &forward, &fitted.parameters, &seen).unwrap();
    assert_eq!(kept.loss(), best);
}

#[test]
fn a_run_that_had_stopped_early_takes_no_further_step() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checkpoint");
    let schedule = Schedule { peak: 0.3, warmup: 0, decay: Decay::Constant };
    let recipe = Recipe { early_stop: Some(EarlyStop { patience: 1 }), schedule, ..recipe(400) };
    let (backend, model, parts) = (backend(), model(), parts());
    let run = Fit { checkpoint: Some(&file), ..run(&backend, &model, &recipe, &parts) };
    let first = fit(&run, &mut ()).unwrap();
    assert_eq!(first.ending, Ending::Early);
    assert_eq!(first.validation_loss, Some(first.progress.best_loss));
    let checkpoint = Checkpoint::read(&file).unwrap();
    let again = fit(&Fit { resume: Some(&checkpoint), ..run }, &mut StopAfter(0)).unwrap();
    assert_eq!(again, first);
}

#[test]
fn without_early_stop_the_validation_loss_is_that_of_the_last_weights() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("checkpoint");
    let schedule = Schedule { peak: 0.3, warmup: 0, decay: Decay::Constant };
    let recipe = Recipe { schedule, ..recipe(40) };
    let (backend, model, parts) = (backend(), model(), parts());
    let run = Fit { checkpoint: Some(&file), ..run(&backend, &model, &recipe, &parts) };
    let whole = fit(&run, &mut ()).unwrap();
    let forward = bind(&model, &[("batch".to_owned(), 32)].into()).unwrap();
    let seen = Subset::evenly(Arc::clone(&parts.validation), recipe.samples_of_look(1));
    let last = evaluate(&backend, &forward, &whole.parameters, &seen).unwrap().loss();
    assert!(last > whole.progress.best_loss, "the rate wanders, so that another look is the best");
    assert_eq!(whole.validation_loss, Some(last));
    // A run of which only scoring was left knows it too.
    let checkpoint = Checkpoint::read(&file).unwrap();
    assert_eq!(fit(&Fit { resume: Some(&checkpoint), ..run }, &mut ()).unwrap(), whole);
    let ended = fit(&Fit { resume: None, checkpoint: None, ..run }, &mut StopAfter(7)).unwrap();
    assert_eq!(ended.validation_loss, None, "two steps after the look");
}

#[test]
fn an_evaluation_ends_when_it_is_told_to() {
    let (backend, model, parts) = (backend(), model(), parts());
    let forward = bind(&model, &[("batch".to_owned(), 32)].into()).unwrap();
    let (weights, mut told) = (initial_parameters(&forward, 1), vec![]);
    let mut goes_on = |done| {
        told.push(done);
        if done == 64 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let split = parts.test.as_ref();
    let found = evaluate_while((&backend, &forward), &weights, split, &mut goes_on).unwrap();
    assert_eq!((found, told), (None, vec![0, 32, 64]));
}

#[test]
fn a_look_takes_some_samples_in_the_format_of_the_step() {
    struct Looks(Vec<Evaluation>);
    impl Observer for Looks {
        fn evaluated(&mut self, _done: u64, evaluation: &Evaluation) {
            self.0.push(evaluation.clone());
        }
    }
    let recipe = Recipe { precision: DType::BF16, ..recipe(5) };
    let (backend, model, parts) = (backend(), model(), parts());
    let parts = Parts { validation: Arc::clone(&parts.train), ..parts };
    let mut looks = Looks(vec![]);
    let fitted = fit(&run(&backend, &model, &recipe, &parts), &mut looks).unwrap();
    let seen = Subset::evenly(Arc::clone(&parts.validation), recipe.samples_of_look(1));
    assert!(seen.len() < parts.validation.len(), "{} samples", parts.validation.len());
    let forward = bind(&model, &[("batch".to_owned(), 32)].into()).unwrap();
    let rounded =
        precision(&forward, &overdrive_passes::Recipe { contractions: DType::BF16 }).unwrap();
    let judged = |graph: &Graph| evaluate(&backend, graph, &fitted.parameters, &seen).unwrap();
    assert_eq!(looks.0, [judged(&rounded)]);
    assert_ne!(looks.0, [judged(&forward)]);
}

#[test]
fn every_recipe_by_name_learns() {
    let loss = |known: &NamedFormats| {
        let recipe = recipe(60).in_formats(known.formats.clone());
        recipe.check().unwrap_or_else(|error| panic!("{}: {error}", known.name));
        fitted(&recipe).progress.best_loss
    };
    let losses: BTreeMap<&str, f64> = FORMATS.iter().map(|of| (of.name, loss(of))).collect();
    assert_eq!(losses.len(), FORMATS.len(), "names are unique");
    for NamedFormats { name, formats, .. } in FORMATS {
        assert_eq!(formats.name(), Some(*name), "no other name has these formats");
        let (found, full) = (losses[name], losses["f32"]);
        let most = if formats.float8.is_some() { 0.08 } else { 0.05 };
        assert!((found - full).abs() < most * full, "{name}: {found}, f32: {full}");
        let plain = if formats.float8.is_some() { "bf16" } else { "f32" };
        // All layers of this model are too small for codes to pay.
        let leaves_all = formats.float8.as_ref().is_some_and(|codes| codes.break_even.is_some());
        assert_eq!(*name == plain || leaves_all, found == losses[plain], "{name} beside {plain}");
    }
}

/// Cotangents of layers are rounded like their values. Gradients of weights are sums in f32.
#[test]
fn cotangents_have_the_format_of_their_values_and_gradients_of_weights_are_f32() {
    let model = bind(&model(), &[("batch".to_owned(), 8)].into()).unwrap();
    let forward = with_loss(&model, Target::Classes).unwrap();
    let step = training_step(&forward, &Recipe { precision: DType::BF16, ..recipe(1) }).unwrap();
    let products: Vec<DType> = step
        .nodes()
        .iter()
        .filter(|node| matches!(node.op.prim(), Some(Prim::DotGeneral(_))))
        .map(|node| step.ty(node.results[0]).dtype)
        .collect();
    let of = |dtype| products.iter().filter(|&&found| found == dtype).count();
    // Three layers: the first hands nothing back.
    assert_eq!([of(DType::F32), of(DType::BF16)], [3, 2], "{step}");
}

#[test]
fn f16_lowers_the_scale_of_the_loss_until_gradients_fit_and_raises_it_again() {
    let (graph, backend) = (regression(), backend());
    let sgd = Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0 };
    let recipe = Recipe { precision: DType::F16, ..plain(sgd) };
    let mut trainer =
        Trainer::new(&backend, &graph, &recipe, &initial_parameters(&graph, 1), &Tuning::default())
            .unwrap();
    let data = batch([1.0, 0.0, 0.0, 2.0], [1, 3]);
    let reports: Vec<StepReport> =
        (0..3).map(|_| trainer.step(std::slice::from_ref(&data)).unwrap()).collect();
    // 2 x 65,536 is beyond f16: the first step is skipped, its parameters stay.
    assert!(!reports[0].applied && reports[2].applied, "{reports:?}");
    let scale =
        |trainer: &Trainer<'_>| trainer.snapshot().unwrap()["optimizer.loss_scale"].to_f64()[0];
    let lowest = scale(&trainer);
    assert!(lowest < 65536.0);
    for _ in 0..220 {
        trainer.step(std::slice::from_ref(&data)).unwrap();
    }
    assert_eq!(scale(&trainer), 2.0 * lowest);
}

#[test]
fn the_first_op_that_is_not_finite_is_named_and_parameters_stay() {
    let b = Builder::new("logarithm");
    let x = b.input("x", TensorType::new(DType::F32, [2usize, 2]));
    let labels = b.input("labels", TensorType::new(DType::I32, [2usize]));
    let w = b.state("w", TensorType::new(DType::F32, [2usize, 1]), Init::Constant(0.5));
    let y = {
        let _scope = b.scope("layer");
        x.matmul(w).log().exp()
    };
    b.output("loss", (y.reshape([2usize]) - labels.convert(DType::F32)).sum(&[0]));
    let (graph, backend) = (b.finish().unwrap(), backend());
    let recipe = plain(Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0 });
    let mut trainer =
        Trainer::new(&backend, &graph, &recipe, &initial_parameters(&graph, 1), &Tuning::default())
            .unwrap();
    trainer.step(&[batch([1.0, 1.0, 1.0, 2.0], [1, 1])]).unwrap();
    let before = weights(&trainer);
    let error = trainer.step(&[batch([1.0, 1.0, -1.0, -2.0], [1, 1])]).unwrap_err();
    assert!(matches!(error, TrainError::NonFinite { step: 1, .. }));
    let text = error.to_string();
    assert!(text.contains("`log` at layer made the first value that is not finite"), "{text}");
    assert_eq!(weights(&trainer), before);
    assert!(text.ends_with("; lower the learning rate, warm it up, or clip gradients"), "{text}");
    let error = trainer.step(&[batch([f32::NAN, 1.0, 1.0, 2.0], [1, 1])]).unwrap_err().to_string();
    assert!(error.contains("input `x`"), "{error}");
}

#[test]
fn gradients_whose_norm_overflows_are_those_of_a_parameter() {
    let (graph, backend) = (regression(), backend());
    let sgd = plain(Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 });
    let recipe = Recipe { clip_norm: Some(1.0), ..sgd };
    let mut trainer =
        Trainer::new(&backend, &graph, &recipe, &initial_parameters(&graph, 1), &Tuning::default())
            .unwrap();
    // The gradient is about 1e24, and its square no f32. So is no square of a residual.
    let error = trainer.step(&[batch([1e12, 0.0, 0.0, 1.0], [0, 0])]).unwrap_err().to_string();
    assert!(error.contains(" at optimizer, from gradients of `w`, made the first"), "{error}");
    assert!(error.ends_with("; lower the learning rate, or warm it up"), "{error}");
}

#[test]
fn a_recipe_that_makes_no_sense_is_refused() {
    for (recipe, words) in [
        (Recipe { batch: 0, ..recipe(1) }, "recipe, batch: expected at least 1, found 0"),
        (Recipe { steps: 0, ..recipe(1) }, "steps"),
        (
            Recipe { clip_norm: Some(-1.0), ..recipe(1) },
            "clip_norm: expected a number above 0, found -1",
        ),
        (
            Recipe { precision: DType::I8, ..recipe(1) },
            "precision: expected f32, bf16 or f16, found i8",
        ),
        (
            Recipe {
                schedule: Schedule { peak: f64::NAN, warmup: 0, decay: Decay::Constant },
                ..recipe(1)
            },
            "learning rate",
        ),
    ] {
        let error =
            fit(&run(&backend(), &model(), &recipe, &parts()), &mut ()).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
