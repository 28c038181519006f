//! Runs that diverge, by outliers in a weight or by a rate too high, are told by layer and tensor.
//! They are so in f32, bf16 and fp8, with batches that are accumulated, and on ranks.

use crate::data::{Batch, Dataset, Parts, digits};
use crate::learner::learner;
use crate::trainer::seeded;
use crate::{
    Decay, Fit, Formats, Observer, Recipe, Schedule, TrainError, Trainer, batches, fit,
    initial_parameters, with_loss,
};
use overdrive_cpu::CpuBackend;
use overdrive_formats::Tensors;
use overdrive_ir::{Graph, Init, Tensor, Tuning};
use overdrive_ranks::run;
use std::sync::Arc;
use std::time::Duration;

/// Longer than any test waits.
const PATIENCE: Duration = Duration::from_secs(300);

/// Recipes of each kind.
const RECIPES: [&str; 4] = ["f32", "bf16", "fp8", "fp8-current"];

struct Task {
    model: Graph,
    parts: Parts,
    recipe: Recipe,
}

fn task(formats: &str) -> Task {
    let model = (overdrive_models::find("digits-mlp").unwrap().build)().unwrap();
    let parts = Dataset::Samples(digits()).parts(&model, 0).unwrap();
    let recipe = Recipe { batch: 32, steps: 400, evaluate_every: 400, ..Recipe::default() };
    Task { model, parts, recipe: recipe.in_formats(Formats::named(formats).unwrap().clone()) }
}

impl Task {
    fn initial(&self) -> Tensors {
        let forward = learner(&self.model, &self.recipe, self.recipe.batch).unwrap();
        initial_parameters(&forward, self.recipe.seed)
    }

    fn judged(&self) -> Graph {
        let forward = learner(&self.model, &self.recipe, self.recipe.batch).unwrap();
        with_loss(&forward, self.parts.train.target()).unwrap()
    }

    fn trainer<'a>(&self, backend: &'a CpuBackend, initial: &Tensors) -> Trainer<'a> {
        let tuning = Tuning::default();
        Trainer::new(backend, &self.judged(), &self.recipe, initial, &tuning).unwrap()
    }

    fn batches(&self, step: u64) -> Vec<Batch> {
        batches(self.parts.train.as_ref(), &self.recipe, step).unwrap()
    }
}

/// The same tensor with one outlier.
fn planted(tensor: &Tensor, outlier: f64) -> Tensor {
    let mut values = tensor.to_f64();
    let middle = values.len() / 2;
    values[middle] = outlier;
    Tensor::from_f64(tensor.ty().dtype, tensor.ty().shape.clone(), &values)
}

/// The same batch with an outlier in x.
fn louder(batch: &Batch, outlier: f64) -> Batch {
    Batch { x: planted(&batch.x, outlier), ..batch.clone() }
}

#[test]
fn the_layer_of_an_outlier_that_overflows_is_named() {
    for name in RECIPES {
        let (task, backend) = (task(name), CpuBackend::new(Some(1)).unwrap());
        let mut initial = task.initial();
        let weight = initial.get_mut("fc2.weight").unwrap();
        let outliers = vec![3e38; weight.ty().elements()];
        *weight = Tensor::from_f64(weight.ty().dtype, weight.ty().shape.clone(), &outliers);
        let mut trainer = task.trainer(&backend, &initial);
        // Delayed scales do not know the outliers before the first step.
        let steps = if name == "fp8" { 2 } else { 1 };
        let ended = (0..steps).map(|step| trainer.step(&task.batches(step)));
        let error = ended.last().unwrap().unwrap_err().to_string();
        assert!(
            error.contains(" at fc2 made the first value that is not finite"),
            "{name}: {error}"
        );
        assert_eq!(error.contains("fp8-current"), name == "fp8", "{name}: {error}");
        assert_eq!(error.contains("or train in f32"), name != "f32", "{name}: {error}");
        // Memory of calls comes back.
        assert!(trainer.step(&task.batches(1)).is_err());
    }
}

#[test]
fn the_batch_of_several_is_named() {
    let mut task = task("f32");
    task.recipe.accumulate = 3;
    let (backend, initial) = (CpuBackend::new(Some(1)).unwrap(), task.initial());
    for at in 0..3 {
        let mut trainer = task.trainer(&backend, &initial);
        trainer.step(&task.batches(0)).unwrap();
        let mut given = task.batches(1);
        given[at] = louder(&given[at], 3e38);
        let error = trainer.step(&given).unwrap_err().to_string();
        let of = format!(" (batch {} of 3); lower the learning rate", at + 1);
        let is_named = error.contains("made the first value") && error.contains(&of);
        assert!(is_named, "{error}");
    }
}

#[test]
fn the_rank_that_made_it_is_named() {
    let task = task("f32");
    let initial = task.initial();
    let get = |name: &str| initial.get(name).cloned().map(Init::Value);
    for bad in 0..2 {
        let errors = run(&"data=2".parse().unwrap(), PATIENCE, |rank| {
            let backend = CpuBackend::new(Some(1)).unwrap().on(Arc::clone(&rank));
            let ranks = crate::ranks::Ranks(Some(rank.as_ref()), crate::Sharing::default());
            let (judged, tuning) = (task.judged(), Tuning::default());
            let mut trainer =
                Trainer::of_rank((&backend, ranks), &judged, &task.recipe, &get, &tuning)?;
            let half = Recipe { batch: task.recipe.batch / 2, ..task.recipe.clone() };
            let mut batch = batches(task.parts.train.as_ref(), &half, 0)?;
            if rank.rank() == bad {
                batch[0] = louder(&batch[0], 3e38);
            }
            let error = trainer.step(&batch).unwrap_err().to_string();
            Ok::<_, TrainError>(error)
        });
        for error in errors.into_iter().map(Result::unwrap) {
            let is_named = error.contains(&format!("on rank {bad} `"));
            assert!(is_named && error.contains(" made the first value"), "{error}");
            assert!(!error.contains("all_reduce"), "{error}");
        }
    }
}

/// Keeps what it is told.
#[derive(Default)]
struct Told {
    diagnoses: Vec<(u64, String)>,
}

impl Observer for Told {
    fn diverges(&mut self, done: u64, diagnosis: &str) {
        self.diagnoses.push((done, diagnosis.to_owned()));
    }
}

fn told(task: &Task) -> Told {
    let (backend, mut told) = (CpuBackend::new(Some(1)).unwrap(), Told::default());
    let run = Fit::anew((&backend, &task.model), &task.recipe, &task.parts);
    let fitted = fit(&run, &mut told).unwrap();
    assert_eq!(fitted.progress.done, task.recipe.steps);
    told
}

#[test]
fn an_outlier_that_stays_finite_is_told_by_layer_and_tensor() {
    for name in RECIPES {
        let (task, backend) = (task(name), CpuBackend::new(Some(1)).unwrap());
        let initial = task.initial();
        let mut trainer = task.trainer(&backend, &initial);
        for step in 0..3 {
            trainer.step(&task.batches(step)).unwrap();
        }
        let weight = planted(&trainer.parameters().unwrap()["fc2.weight"], 1e5);
        trainer.write("fc2.weight", &weight).unwrap();
        // Scales see the outlier once.
        trainer.step(&task.batches(3)).unwrap();
        let before = trainer.snapshot().unwrap();
        let start = |name: &str| initial.get(name).cloned().map(Init::Value);
        let said = trainer.growth((&task.judged(), &start), &task.batches(4)).unwrap();
        assert!(said.contains("the output of layer `fc"), "{name}: {said}");
        assert!(said.contains("the weight `fc2.weight` "), "{name}: {said}");
        let lost = said.contains("% of the weight of layer `fc2` become 0 in f8e4m3");
        assert_eq!(lost, name.starts_with("fp8"), "{name}: {said}");
        assert!(trainer.snapshot().unwrap() == before, "{name}: the run goes on as it was");
    }
}

#[test]
fn a_rate_too_high_is_told_and_a_usual_one_is_not() {
    for name in RECIPES {
        let mut task = task(name);
        let usual = told(&task);
        assert!(usual.diagnoses.is_empty(), "{name}: {:?}", usual.diagnoses);
        // Runs at such rates are chaotic, and differ from processor to processor. If losses jump in
        // the first steps already, no later ones are above them all.
        let rates = [(400, 390, 1.0), (640, 630, 2.0), (400, 200, 3.0)];
        let high = rates.into_iter().map(|(steps, warmup, peak)| {
            task.recipe.schedule = Schedule { peak, warmup, decay: Decay::Constant };
            task.recipe.steps = steps;
            told(&task).diagnoses
        });
        let high: Vec<_> = high.collect();
        assert!(high.iter().all(|told| told.len() <= 1), "{name}: told twice in a run: {high:?}");
        let (done, said) = high.concat().into_iter().next().expect("one of the runs is told");
        assert!(done <= 640 && said.contains("the training loss rose from"), "{name}: {said}");
        assert!(said.contains("the output of layer `fc"), "{name}: {said}");
        assert!(said.contains("; lower the learning rate"), "{name}: {said}");
    }
}

#[test]
fn what_grew_on_ranks_is_what_grew_on_one() {
    let mut task = task("f32");
    task.recipe.schedule = Schedule { peak: 0.05, warmup: 0, decay: Decay::Constant };
    let initial = |task: &Task| {
        let forward = learner(&task.model, &task.recipe, task.recipe.batch).unwrap();
        move |name: &str| {
            let state = forward.states().iter().find(|state| state.name == name)?;
            Some(seeded(state, 1))
        }
    };
    let said = |ranks: Option<Arc<dyn overdrive_ir::Communicator>>| {
        let backend = CpuBackend::new(Some(1)).unwrap();
        let backend = match &ranks {
            Some(rank) => backend.on(Arc::clone(rank)),
            None => backend,
        };
        let sharing = crate::Sharing::from(crate::Shards::Parameters);
        let place = (
            &backend as &dyn overdrive_ir::Backend,
            crate::ranks::Ranks(ranks.as_deref(), sharing),
        );
        let start = initial(&task);
        let (judged, tuning) = (task.judged(), Tuning::default());
        let mut trainer = Trainer::of_rank(place, &judged, &task.recipe, &start, &tuning)?;
        let part = |step: u64| {
            let count = if ranks.is_some() { 2 } else { 1 };
            let rank = ranks.as_ref().map_or(0, |rank| rank.rank());
            let whole = &task.batches(step)[0];
            let rows = task.recipe.batch / count;
            let of = |tensor: &Tensor| {
                let mut sizes = tensor.ty().sizes();
                let all = tensor.to_f64();
                let each = all.len() / count;
                sizes[0] = rows;
                Tensor::from_f64(tensor.ty().dtype, sizes, &all[rank * each..(rank + 1) * each])
            };
            vec![Batch { x: of(&whole.x), labels: of(&whole.labels), ..whole.clone() }]
        };
        for step in 0..5 {
            trainer.step(&part(step))?;
        }
        trainer.growth((&judged, &start), &part(5))
    };
    let alone = said(None).unwrap();
    assert!(alone.contains("the gradient of `"), "{alone}");
    for of_rank in run(&"data=2".parse().unwrap(), PATIENCE, |rank| said(Some(rank))) {
        assert_eq!(of_rank.unwrap(), alone);
    }
}
