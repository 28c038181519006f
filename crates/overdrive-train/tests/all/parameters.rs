//! Formats of parameters: what steps in each of them learn, what they hold, and how they go on.

use crate::resumed::{resumed, whole};
use overdrive_cpu::CpuBackend;
use overdrive_ir::plan::{Plan, SlotId, SlotPlace, StepKind};
use overdrive_ir::{Builder, DType, Graph, Init, Node, Prim, Tensor, TensorType, Tuning, Value};
use overdrive_models::find;
use overdrive_passes::{Lora, bind};
use overdrive_train::data::{Batch, Dataset, Target};
use overdrive_train::{
    Decay, EarlyStop, Fit, Fitted, Formats, Moments, Optimizer, Parameters, Recipe, Schedule,
    Trainer, fit, initial_parameters, learner, training_step, with_loss,
};

const ALL: [Parameters; 3] = [Parameters::F32, Parameters::Masters, Parameters::Stochastic];

/// Bits of a bf16 behind its first one.
const MANTISSA: i32 = 7;

/// The distance of a number from the next bf16.
fn step_of(x: f64) -> f64 {
    2f64.powi(x.abs().log2().floor() as i32 - MANTISSA)
}

/// A run on fold 0 of the digits, whole, or interrupted and continued.
fn fitted(recipe: &Recipe, is_interrupted: bool) -> Fitted {
    let model = (find("digits-mlp").unwrap().build)().unwrap();
    if !is_interrupted {
        return whole(&model, recipe);
    }
    resumed(&model, recipe, |checkpoint| {
        let is_copy = |name: &String| name.starts_with("optimizer.copy.");
        assert!(!checkpoint.state.keys().any(is_copy), "masters say what their copies are");
        let narrow = recipe.parameters == Parameters::Stochastic;
        for states in [&checkpoint.state, &checkpoint.best] {
            let found = states.get("fc1.weight").map(|saved| saved.ty().dtype == DType::BF16);
            assert!(found.is_none_or(|found| found == narrow), "it holds what memory does");
        }
    })
}

fn recipe(steps: u64) -> Recipe {
    let recipe = Recipe { steps, batch: 32, evaluate_every: 5, ..Recipe::default() };
    recipe.in_formats(Formats::named("bf16").unwrap().clone())
}

/// Recipes of each kind, with the most that the loss with bf16 parameters alone is off.
fn kinds() -> Vec<(&'static str, Recipe, f64)> {
    let plain = recipe(60);
    let formats = |name: &str| plain.clone().in_formats(Formats::named(name).unwrap().clone());
    let of = |optimizer| Recipe { optimizer, ..plain.clone() };
    let weight_decay = 0.01;
    let muon = Optimizer::Muon { momentum: 0.95, betas: [0.9, 0.99], eps: 1e-8, weight_decay };
    let sgd = Recipe {
        schedule: Schedule { peak: 0.1, warmup: 5, decay: Decay::Constant },
        ..of(Optimizer::Sgd { momentum: 0.9, weight_decay })
    };
    vec![
        ("adamw", plain.clone(), 0.1),
        ("accumulate", Recipe { accumulate: 2, batch: 16, ..plain.clone() }, 0.1),
        ("sgd", sgd, 0.1),
        ("muon", of(muon), 0.1),
        ("moments in bf16", Recipe { moments: Moments::Bf16, ..plain.clone() }, 0.1),
        ("moments in fp8", Recipe { moments: Moments::Fp8, ..plain.clone() }, 0.1),
        ("f16", formats("f16"), 0.1),
        ("fp8", formats("fp8"), 0.1),
        ("fp8-current", formats("fp8-current"), 0.1),
    ]
}

#[test]
fn masters_give_the_bits_of_f32_and_bf16_alone_learns_nearly_as_much() {
    for (kind, recipe, most) in kinds() {
        let of = |parameters| fitted(&Recipe { parameters, ..recipe.clone() }, false);
        let full = of(Parameters::F32);
        let masters = of(Parameters::Masters);
        assert!(masters == full, "{kind}: a copy has the bits that a cast has");
        let narrow = of(Parameters::Stochastic);
        let (found, expected) = (narrow.progress.best_loss, full.progress.best_loss);
        println!("{kind}: {found:.4} beside {expected:.4}");
        assert!((found / expected - 1.0).abs() < most, "{kind}: {found}, f32: {expected}");
        for (name, tensor) in &narrow.parameters {
            assert_eq!(tensor.ty(), full.parameters[name].ty(), "{kind}: as the model declares it");
            let is_small = name.ends_with("bias") || name == "fc3.weight";
            let is_bf16 = tensor.convert(DType::BF16).convert(DType::F32) == *tensor;
            assert_eq!(is_bf16, !is_small, "{kind}: {name}");
        }
    }
}

#[test]
fn a_resumed_run_ends_bit_for_bit_as_a_whole_one() {
    for parameters in ALL {
        for accumulate in [1, 2] {
            let early_stop = (accumulate == 1).then_some(EarlyStop { patience: 9 });
            let recipe = Recipe { parameters, accumulate, early_stop, ..recipe(15) };
            let whole = fitted(&recipe, false);
            assert!(fitted(&recipe, true) == whole, "{parameters} {accumulate}");
            let other = fitted(&Recipe { seed: 2, ..recipe }, false);
            assert!(other.parameters != whole.parameters, "{parameters}: the seed decides");
        }
    }
}

#[test]
fn adapters_are_trained_in_each_format() {
    // Adapters of 128 x 32 are matrices in bf16; frozen weights stay as they are.
    for parameters in ALL {
        let lora = Some(Lora { rank: 32, alpha: 32.0 });
        let recipe =
            Recipe { parameters, lora, steps: 4, evaluate_every: 2, batch: 2, ..recipe(4) };
        let backend = CpuBackend::new(Some(1)).unwrap();
        let model = (find("text-transformer").unwrap().build)().unwrap();
        let data = overdrive_train::data::books();
        let parts = Dataset::Text(data).parts(&model, 0).unwrap();
        let few = overdrive_train::data::Subset::evenly(parts.validation.clone(), 2);
        let parts = overdrive_train::data::Parts { validation: std::sync::Arc::new(few), ..parts };
        let fitted = fit(&Fit::anew((&backend, &model), &recipe, &parts), &mut ()).unwrap();
        assert!(!fitted.parameters.is_empty());
        for (name, tensor) in &fitted.parameters {
            assert_eq!(tensor.ty().dtype, DType::F32, "{name}");
            let is_bf16 = tensor.convert(DType::BF16).convert(DType::F32) == *tensor;
            let narrows = tensor.ty().elements() >= 4096 && parameters == Parameters::Stochastic;
            assert!(is_bf16 || !narrows, "{parameters} {name}");
        }
    }
}

/// The weight's own gradient would be a third of all products.
#[test]
fn a_step_of_adapters_multiplies_less_than_one_of_all_weights() {
    let model = (find("gpt-125m").unwrap().build)().unwrap();
    let forward =
        with_loss(&bind(&model, &[("batch".to_owned(), 2)].into()).unwrap(), Target::Classes);
    let forward = forward.unwrap();
    let flops = |lora: Option<Lora>| {
        let recipe = Recipe { lora, batch: 2, precision: DType::BF16, ..recipe(1) };
        let graph = learner(&forward, &recipe, 2).unwrap();
        let step = training_step(&graph, &recipe).unwrap();
        let products = step.nodes().iter().filter(|node| {
            matches!(node.op.prim(), Some(Prim::DotGeneral(_))) || node.op.name() == "linear"
        });
        let elements = |value: Value| step.ty(value).elements() as f64;
        let cost = |node: &Node| {
            let [l, r] = [node.operands[0], node.operands[1]].map(elements);
            (l * r * elements(node.results[0])).sqrt()
        };
        products.map(cost).sum::<f64>()
    };
    let (all, adapters) = (flops(None), flops(Some(Lora { rank: 8, alpha: 16.0 })));
    assert!(adapters < 0.75 * all, "{adapters} beside {all}");
}

/// `loss = sum of w x`: the gradient of w is the input, whatever w is.
fn linear(shape: &[usize], value: f64) -> Graph {
    let b = Builder::new("linear");
    let x = b.input("x", TensorType::new(DType::F32, shape.to_vec()));
    b.input("labels", TensorType::new(DType::I32, [1usize]));
    let w = b.state("w", TensorType::new(DType::F32, shape.to_vec()), Init::Constant(value));
    b.output("loss", (x * w).sum(&(0..shape.len()).collect::<Vec<_>>()));
    b.finish().unwrap()
}

fn batch(shape: &[usize], gradient: &[f64]) -> Batch {
    let x = Tensor::from_f64(DType::F32, shape.to_vec(), gradient);
    let labels = Tensor::from_ints(DType::I32, [1usize], &[0]);
    Batch { x, labels, mask: None, text_bytes: vec![] }
}

fn trainer<'b>(backend: &'b CpuBackend, graph: &Graph, recipe: &Recipe) -> Trainer<'b> {
    let initial = initial_parameters(graph, 1);
    Trainer::new(backend, graph, recipe, &initial, &Tuning::default()).unwrap()
}

/// SGD that subtracts the gradient, on bf16 alone.
fn subtracts(lr: f64) -> Recipe {
    Recipe {
        parameters: Parameters::Stochastic,
        optimizer: Optimizer::Sgd { momentum: 0.0, weight_decay: 0.0 },
        schedule: Schedule { peak: lr, warmup: 0, decay: Decay::Constant },
        clip_norm: None,
        ..Recipe::default()
    }
}

#[test]
fn an_update_is_that_of_f32_rounded_to_a_neighbour_without_a_bias() {
    let backend = CpuBackend::new(Some(2)).unwrap();
    let shape = [64, 256];
    let count: usize = shape.iter().product();
    let (graph, recipe) = (linear(&shape, 0.75), subtracts(1.0));
    let mut trainer = trainer(&backend, &graph, &recipe);
    for t in 0..4 {
        let g: Vec<f64> = (0..count)
            .map(|i| f64::from((((i * 7919 + t * 104_729) % 10_007) as f32 - 5003.0) / 9e4))
            .collect();
        let before = trainer.snapshot().unwrap()["w"].to_f64();
        trainer.step(&[batch(&shape, &g)]).unwrap();
        let after = trainer.snapshot().unwrap();
        assert_eq!(after["w"].ty().dtype, DType::BF16);
        let after = after["w"].to_f64();
        let mut mean = 0.0;
        for i in 0..count {
            // The f32 sum is exact to 2^-24 of it.
            let exact = before[i] - g[i];
            let off = (after[i] - exact) / step_of(exact);
            assert!(
                off.abs() < 1.0 + 2f64.powi(-15),
                "step {t} element {i}: {exact}, {}",
                after[i]
            );
            mean += off / count as f64;
        }
        // An error of f or f - 1 with a mean of 0 has a variance of f (1 - f), at most a quarter.
        let sigma = 0.5 / (count as f64).sqrt();
        assert!(mean.abs() < 5.0 * sigma, "step {t}: a mean of {mean}, sigma {sigma}");
    }
}

/// Rounded to nearest, weights would never move.
#[test]
fn changes_far_below_a_unit_of_the_last_place_add_up() {
    let backend = CpuBackend::new(Some(2)).unwrap();
    let (shape, steps, part) = ([16, 256], 512, 64.0);
    let count: usize = shape.iter().product();
    let unit = step_of(1.25);
    let mut trainer = trainer(&backend, &linear(&shape, 1.25), &subtracts(unit / part));
    let given = batch(&shape, &vec![-1.0; count]);
    for _ in 0..steps {
        trainer.step(std::slice::from_ref(&given)).unwrap();
    }
    let found = trainer.parameters().unwrap()["w"].to_f64();
    let moved: Vec<f64> = found.iter().map(|w| (w - 1.25) / unit).collect();
    let mean = moved.iter().sum::<f64>() / count as f64;
    // Each step moves an element by a unit with probability 1/64.
    let expected = f64::from(steps) / part;
    let sigma = (f64::from(steps) / part * (1.0 - 1.0 / part) / count as f64).sqrt();
    assert!((mean - expected).abs() < 5.0 * sigma, "{mean} units, expected {expected} +- {sigma}");
    let variance = moved.iter().map(|m| (m - mean).powi(2)).sum::<f64>() / count as f64;
    let of_draws = expected * (1.0 - 1.0 / part);
    // Elements draw apart. The variance of a variance of n is about 2 / n of its square.
    let most = 5.0 * (2.5 / count as f64).sqrt() * of_draws;
    assert!((variance - of_draws).abs() < most, "{variance} beside {of_draws}");
}

/// Bytes of the states of a plan that `is` accepts.
fn state_bytes(plan: &Plan, is: impl Fn(&str) -> bool) -> usize {
    let mut seen = std::collections::BTreeMap::new();
    for slot in &plan.slots {
        if let SlotPlace::State(name) = &slot.place
            && is(name)
        {
            seen.insert(name.clone(), slot.bytes());
        }
    }
    seen.values().sum()
}

/// The model `digits-mlp` with its loss, at a batch of 32.
fn forward() -> Graph {
    let model = (find("digits-mlp").unwrap().build)().unwrap();
    with_loss(&bind(&model, &[("batch".to_owned(), 32)].into()).unwrap(), Target::Classes).unwrap()
}

#[test]
fn the_plan_holds_the_bytes_of_the_format_and_each_update_is_one_loop() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let graph = forward();
    let (large, small) = (64 * 128 + 128 * 128, 128 * 10);
    let (matrices, vectors) = (large + small, 128 + 128 + 10);
    for (parameters, of_model, of_copies) in [
        (Parameters::F32, 4 * (matrices + vectors), 0),
        (Parameters::Masters, 4 * (matrices + vectors), 2 * (matrices + vectors)),
        (Parameters::Stochastic, 2 * large + 4 * (small + vectors), 0),
    ] {
        let recipe = Recipe { parameters, ..recipe(9) };
        let trainer = trainer(&backend, &graph, &recipe);
        let plan = trainer.plan();
        let bytes = state_bytes(plan, |name| name.starts_with("fc"));
        assert_eq!(bytes, of_model, "{parameters}");
        let bytes = state_bytes(plan, |name| name.starts_with("optimizer.copy."));
        assert_eq!(bytes, of_copies, "{parameters}");
        for name in ["fc1.weight", "fc2.weight"] {
            let is_of = |slot: &SlotId, of: &str| {
                let place = &plan.slot(*slot).place;
                matches!(place, SlotPlace::State(name) if name == of)
            };
            let writes = |of: &str| -> Vec<usize> {
                let steps = plan.steps.iter().enumerate();
                let steps = steps.filter(|(_, s)| s.writes.iter().any(|slot| is_of(slot, of)));
                steps.map(|(at, _)| at).collect()
            };
            let update = writes(name);
            assert_eq!(update.len(), 1, "{parameters} {name}: {plan}");
            assert!(matches!(plan.steps[update[0]].kind, StepKind::Loop(_)), "{plan}");
            if parameters == Parameters::Masters {
                assert_eq!(writes(&format!("optimizer.copy.{name}")), update, "{name}: {plan}");
            }
        }
    }
}

#[test]
fn masters_without_contractions_that_read_copies_are_refused() {
    let recipe = Recipe { parameters: Parameters::Masters, ..Recipe::default() };
    let error = recipe.check().unwrap_err().to_string();
    assert!(error.contains("recipe, parameters: expected `f32` or `stochastic`"), "{error}");
    let recipe = Recipe { parameters: Parameters::Stochastic, ..Recipe::default() };
    recipe.check().unwrap();
    training_step(&forward(), &recipe).unwrap();
}
