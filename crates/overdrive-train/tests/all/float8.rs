//! Training on codes of fp8. It learns by every recipe. With delayed scales it survives values
//! beyond every earlier scale, continues from a checkpoint, and is the same on all ranks.

use crate::resumed::{resumed, whole};
use overdrive_cpu::CpuBackend;
use overdrive_formats::Tensors;
use overdrive_ir::ops::block_scale::ScaleFormat;
use overdrive_ir::ops::float8_linear::Float8Granularity;
use overdrive_ir::{DType, Graph, Tensor, Tuning};
use overdrive_models::find;
use overdrive_passes::{Float8, Scaling, bind};
use overdrive_train::data::{Batch, Dataset, Parts, Target, books, digits};
use overdrive_train::{
    Checkpoint, Decay, Formats, Optimizer, Recipe, Schedule, Trainer, batches, initial_parameters,
    with_loss,
};

const DELAYED: Float8 = Float8::new(DType::F8E5M2, Float8Granularity::Tensor, Scaling::Delayed);

fn backend() -> CpuBackend {
    CpuBackend::new(Some(1)).unwrap()
}

fn model(name: &str) -> Graph {
    (find(name).unwrap().build)().unwrap()
}

fn digits_parts() -> Parts {
    Dataset::Samples(digits()).parts(&model("digits-mlp"), 0).unwrap()
}

/// Learns digits at 32 samples a batch.
fn of_digits(float8: Option<Float8>) -> Recipe {
    let precision = if float8.is_some() { DType::BF16 } else { DType::F32 };
    Recipe { steps: 200, batch: 32, precision, float8, ..Recipe::default() }
}

/// A trainer of a model by a recipe.
fn trainer<'a>(backend: &'a CpuBackend, model: &Graph, recipe: &Recipe) -> Trainer<'a> {
    let bound = bind(model, &[("batch".to_owned(), recipe.batch)].into()).unwrap();
    let forward = with_loss(&bound, Target::Classes).unwrap();
    let initial = initial_parameters(&forward, 1);
    Trainer::new(backend, &forward, recipe, &initial, &Tuning::default()).unwrap()
}

/// The scales of a snapshot.
fn scales(snapshot: &Tensors) -> Vec<(&str, f64)> {
    let scales = snapshot.iter().filter(|(name, _)| name.starts_with("float8."));
    let scales = scales.filter(|(name, _)| *name != "float8.count");
    scales.map(|(name, scale)| (name.as_str(), scale.to_f64()[0])).collect()
}

/// The same samples with x multiplied by `factor`.
fn louder(batch: &Batch, factor: f64) -> Batch {
    let values: Vec<f64> = batch.x.to_f64().iter().map(|x| x * factor).collect();
    let x = Tensor::from_f64(batch.x.ty().dtype, batch.x.ty().shape.clone(), &values);
    Batch { x, labels: batch.labels.clone(), mask: None, text_bytes: vec![] }
}

fn largest(batch: &Batch) -> f64 {
    batch.x.to_f64().iter().fold(0.0, |most, x| most.max(x.abs()))
}

/// The scale of e4m3 codes after this largest magnitude: that of twice the magnitude.
fn scale_after(largest: f64) -> f64 {
    2.0 * ScaleFormat::E8m0Up.of(largest, DType::F8E4M3)
}

/// Rounding to e4m3 moves a number by at most 2^-4 of it, to e5m2 by 2^-3: `2^-n / √3` in the root
/// mean square. A product of two codes moves by both. A gradient takes `d` products to the loss and
/// as many back, whose roundings are independent, so that their squares add up. A step along a
/// gradient that is off by a share ε, at right angles, loses a share ε² of what it gains.
fn lost(products: f64) -> f64 {
    let (e4m3, e5m2) = (2f64.powi(-8) / 3.0, 2f64.powi(-6) / 3.0);
    products * (2.0 * e4m3) + products * (e4m3 + e5m2)
}

#[test]
fn a_gpt_learns_within_the_rounding_of_codes() {
    let model = model("text-transformer");
    let parts = Dataset::Text(books()).parts(&model, 0).unwrap();
    let recipe = Recipe { batch: 2, steps: 24, ..overdrive_train::recipe_of("text-transformer") };
    let losses = |name: &str| {
        let recipe = recipe.clone().in_formats(Formats::named(name).unwrap().clone());
        let backend = backend();
        let mut trainer = trainer(&backend, &model, &recipe);
        let step = |step| {
            let samples = batches(parts.train.as_ref(), &recipe, step).unwrap();
            trainer.step(&samples).unwrap().loss
        };
        (0..recipe.steps).map(step).collect::<Vec<f64>>()
    };
    let full = losses("f32");
    let names = ["fp8", "fp8-current", "fp8-rows", "fp8-blocks", "fp8-mx"];
    let coded = names.map(|name| (name, losses(name)));
    // The mean of the last eight batches, which differ.
    let end = |losses: &[f64]| losses[losses.len() - 8..].iter().sum::<f64>() / 8.0;
    let gained = full[0] - end(&full);
    assert!(gained > 1.0, "{full:?}");
    // Query, key and value of a block are parallel, so a path through it passes four layers.
    let bound = lost(5.0 * 4.0) * gained;
    for (at, (name, losses)) in coded.iter().enumerate() {
        assert!(coded[..at].iter().all(|(_, other)| other != losses), "{name} is another recipe");
        let off = (end(losses) - end(&full)).abs();
        assert!(off < bound, "{name}: {off} of at most {bound}: {losses:?}, f32 {full:?}");
    }
}

#[test]
fn scales_follow_what_was_seen_and_fall_slowly() {
    let (backend, parts) = (backend(), digits_parts());
    let recipe = of_digits(Some(DELAYED));
    let mut trainer = trainer(&backend, &model("digits-mlp"), &recipe);
    let quiet = batches(parts.train.as_ref(), &recipe, 0).unwrap().remove(0);
    let loud = louder(&quiet, 9.0);
    let mut step = |batch: &Batch| {
        trainer.step(std::slice::from_ref(batch)).unwrap();
        trainer.snapshot().unwrap()["float8.0.x"].to_f64()[0]
    };
    let (low, high) = (scale_after(largest(&quiet)), scale_after(9.0 * largest(&quiet)));
    assert!(high > low);
    // Batch 0 is the first observed one; batches 8, 16, ... may halve the scale.
    assert_eq!(step(&quiet), low);
    assert_eq!(step(&loud), high);
    for number in 2..32 {
        let fallen = high * 0.5f64.powi(number / 8);
        assert_eq!(step(&quiet), fallen.max(low), "after batch {number}");
    }
}

#[test]
fn an_outlier_saturates_in_one_step_and_the_next_steps_have_room_for_it() {
    let (backend, parts) = (backend(), digits_parts());
    let recipe = of_digits(Some(DELAYED));
    let mut trainer = trainer(&backend, &model("digits-mlp"), &recipe);
    let mut losses = vec![];
    for number in 0..120 {
        let usual = batches(parts.train.as_ref(), &recipe, number).unwrap().remove(0);
        let batch = if number == 40 { louder(&usual, 100.0) } else { usual };
        let expected = scale_after(largest(&batch));
        let report = trainer.step(&[batch]).unwrap();
        assert!(report.applied && report.loss.is_finite(), "{report:?}");
        losses.push(report.loss);
        let snapshot = trainer.snapshot().unwrap();
        let is_power = |scale: f64| scale > 0.0 && scale.log2().fract() == 0.0;
        assert!(scales(&snapshot).iter().all(|(_, scale)| is_power(*scale)), "after {number}");
        let finite = |tensor: &Tensor| tensor.to_f64().iter().all(|x| x.is_finite());
        assert!(snapshot.values().all(finite), "after {number}");
        let found = snapshot["float8.0.x"].to_f64()[0];
        assert!(found >= expected && (number != 40 || found == expected), "after {number}");
    }
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    assert!(mean(&losses[110..]) < mean(&losses[30..40]), "{losses:?}");
}

#[test]
fn each_batch_of_a_step_is_seen() {
    let (backend, parts) = (backend(), digits_parts());
    let recipe = Recipe { accumulate: 2, ..of_digits(Some(DELAYED)) };
    let mut trainer = trainer(&backend, &model("digits-mlp"), &recipe);
    let quiet = batches(parts.train.as_ref(), &recipe, 0).unwrap().remove(0);
    let loud = louder(&quiet, 16.0);
    trainer.step(&[quiet, loud]).unwrap();
    let snapshot = trainer.snapshot().unwrap();
    assert_eq!(snapshot["float8.count"].to_ints(), [2]);
    let loud = louder(&batches(parts.train.as_ref(), &recipe, 0).unwrap().remove(0), 16.0);
    assert_eq!(snapshot["float8.0.x"].to_f64()[0], scale_after(largest(&loud)));
}

/// An update is to the scale of a weight what a batch is to others. So it falls once in eight
/// updates, and its codes are made once an update.
#[test]
fn scales_of_weights_follow_updates() {
    let (backend, parts) = (backend(), digits_parts());
    let optimizer = Optimizer::Adamw { betas: [0.9, 0.99], eps: 1e-8, weight_decay: 20.0 };
    let schedule = Schedule { peak: 5e-3, warmup: 0, decay: Decay::Constant };
    let recipe =
        Recipe { accumulate: 2, batch: 16, optimizer, schedule, ..of_digits(Some(DELAYED)) };
    let mut trainer = trainer(&backend, &model("digits-mlp"), &recipe);
    let (mut expected, mut fell) = (None::<f64>, 0);
    for update in 0..24 {
        let weight = trainer.parameters().unwrap()["fc1.weight"].to_f64();
        let largest = weight.iter().fold(0.0f64, |most, w| most.max(w.abs()));
        let held = if update % 8 == 0 { 0.5 } else { 1.0 };
        let next = scale_after(largest).max(expected.map_or(0.0, |old| old * held));
        fell += usize::from(expected.is_some_and(|old| next < old));
        expected = Some(next);
        trainer.step(&batches(parts.train.as_ref(), &recipe, update).unwrap()).unwrap();
        let snapshot = trainer.snapshot().unwrap();
        assert_eq!(snapshot["float8.0.w"].to_f64()[0], next, "after update {update}");
        assert!(!snapshot.keys().any(|name| name.starts_with("float8.codes.")));
    }
    assert!(fell > 0, "weights that decay have smaller scales at last");
}

#[test]
fn a_run_on_kept_codes_goes_on_bit_for_bit() {
    let model = model("digits-mlp");
    for name in ["fp8", "fp8-rows"] {
        let recipe = Recipe { accumulate: 2, steps: 15, evaluate_every: 5, ..of_digits(None) };
        let recipe = recipe.in_formats(Formats::named(name).unwrap().clone());
        let held = |checkpoint: &Checkpoint| {
            let is_code = |name: &String| name.starts_with("float8.codes.");
            assert!(!checkpoint.state.keys().any(is_code), "weights say what their codes are");
        };
        assert!(resumed(&model, &recipe, held) == whole(&model, &recipe), "{name}");
    }
}

#[test]
fn what_is_not_finite_says_nothing_of_a_scale() {
    let (backend, parts) = (backend(), digits_parts());
    let recipe = of_digits(Some(DELAYED));
    let mut trainer = trainer(&backend, &model("digits-mlp"), &recipe);
    let good = batches(parts.train.as_ref(), &recipe, 0).unwrap();
    trainer.step(&good).unwrap();
    let before = trainer.snapshot().unwrap();
    assert!(trainer.step(&[louder(&good[0], f64::NAN)]).is_err());
    let after = trainer.snapshot().unwrap();
    assert_eq!(scales(&before), scales(&after));
    assert!(trainer.step(&good).unwrap().applied);
}
