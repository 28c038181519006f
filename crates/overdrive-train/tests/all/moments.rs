//! Moments in fewer bytes: what a step computes from them, how they are rounded, and what they
//! take.

use crate::resumed::{resumed, whole};
use overdrive_cpu::CpuBackend;
use overdrive_formats::Tensors;
use overdrive_ir::eval::{Array, States, eval};
use overdrive_ir::plan::{Plan, SlotId, SlotPlace, StepKind};
use overdrive_ir::{Builder, DType, Graph, Init, Tensor, TensorType, Tuning};
use overdrive_models::find;
use overdrive_passes::bind;
use overdrive_train::data::{Batch, Dataset, Target, digits};
use overdrive_train::{
    Decay, Fit, Fitted, Moments, Optimizer, Recipe, Schedule, Trainer, fit, initial_parameters,
    with_loss,
};

const LR: f64 = 0.01;
const EPS: f64 = 1e-8;

fn recipe(moments: Moments, betas: [f64; 2]) -> Recipe {
    Recipe {
        moments,
        optimizer: Optimizer::Adamw { betas, eps: EPS, weight_decay: 0.0 },
        schedule: Schedule { peak: LR, warmup: 0, decay: Decay::Constant },
        clip_norm: None,
        ..Recipe::default()
    }
}

/// `loss = sum of w x`: the gradient of w is the input, whatever w is.
fn linear(shape: &[usize]) -> Graph {
    let b = Builder::new("linear");
    let x = b.input("x", TensorType::new(DType::F32, shape.to_vec()));
    b.input("labels", TensorType::new(DType::I32, [1usize]));
    let w = b.state("w", TensorType::new(DType::F32, shape.to_vec()), Init::Constant(0.5));
    b.output("loss", (x * w).sum(&(0..shape.len()).collect::<Vec<_>>()));
    b.finish().unwrap()
}

fn batch(shape: &[usize], gradient: &[f64]) -> Batch {
    let x = Tensor::from_f64(DType::F32, shape.to_vec(), gradient);
    let labels = Tensor::from_ints(DType::I32, [1usize], &[0]);
    Batch { x, labels, mask: None, text_bytes: vec![] }
}

/// Numbers of both signs, spread over four powers of ten.
fn spread(count: usize, turn: usize) -> Vec<f64> {
    let number = |i: usize| {
        let part = ((i * 7919 + turn * 104_729) % 10_007) as f64 / 10_007.0;
        let sign = if (i + turn).is_multiple_of(3) { -1.0 } else { 1.0 };
        f64::from((sign * 10f64.powf(4.0 * part - 5.0)) as f32)
    };
    (0..count).map(number).collect()
}

fn trainer<'b>(backend: &'b CpuBackend, graph: &Graph, recipe: &Recipe) -> Trainer<'b> {
    let initial = initial_parameters(graph, 1);
    Trainer::new(backend, graph, recipe, &initial, &Tuning::default()).unwrap()
}

/// A moment in f32. `block` is the number of elements that share a scale.
fn decoded(states: &Tensors, kind: &str, block: usize) -> Vec<f64> {
    let codes = states[&format!("optimizer.{kind}.w")].to_f64();
    let Some(scales) = states.get(&format!("optimizer.{kind}_scale.w")) else { return codes };
    let scales = scales.to_f64();
    assert_eq!(codes.len(), scales.len() * block);
    // A code of a root: four bits of exponent, from -15, and four of mantissa.
    let root = |code: f64| 2f64.powf((code / 16.0).floor() - 15.0) * (1.0 + code % 16.0 / 16.0);
    // A code of a first moment: a sign, three bits of exponent, from -7, and four of mantissa. The
    // number of code 0 is taken away.
    let signed = |code: f64| {
        let (sign, code) = if code < 128.0 { (1.0, code) } else { (-1.0, code - 128.0) };
        let above = 2f64.powf((code / 16.0).floor() - 7.0) * (1.0 + code % 16.0 / 16.0);
        sign * (above - 1.0 / 128.0)
    };
    let number = |(i, &code): (usize, &f64)| match kind {
        "v" => (root(code) * scales[i / block]).powi(2),
        _ => signed(code) * scales[i / block],
    };
    codes.iter().enumerate().map(number).collect()
}

/// How a number is kept: bits of mantissa, the number that is added before, the smallest distance
/// of two, and the largest number. These are in units of the scale; the last is 0 without one.
#[derive(Copy, Clone)]
struct Kept {
    bits: i32,
    above: f64,
    least: f64,
    largest: f64,
}

const BF16: Kept = Kept { bits: 7, above: 0.0, least: 0.0, largest: 0.0 };
const SIGNED: Kept =
    Kept { bits: 4, above: 1.0 / 128.0, least: 0.0, largest: 1.9375 - 1.0 / 128.0 };
const ROOT: Kept = Kept { bits: 4, above: 0.0, least: 1.0 / 32_768.0, largest: 1.9375 };

impl Kept {
    /// The distance between the neighbours of `x`, in a block whose largest magnitude is that.
    fn step(self, x: f64, largest: f64) -> f64 {
        let unit = if self.largest == 0.0 { 1.0 } else { largest / self.largest };
        let exponent = (x.abs() / unit + self.above).log2().floor() as i32;
        unit * 2f64.powi(exponent - self.bits).max(self.least)
    }
}

#[test]
fn updates_are_those_of_decoded_moments_and_round_to_a_neighbour() {
    let backend = CpuBackend::new(Some(2)).unwrap();
    // Whole rows, several rows and a part of a row share a scale.
    let shapes: [(&[usize], usize); 4] =
        [(&[16, 512], 256), (&[64, 64], 256), (&[40, 320], 160), (&[64, 16, 3, 3], 144)];
    for (shape, block) in shapes {
        for moments in [Moments::Bf16, Moments::Fp8] {
            let graph = linear(shape);
            let betas = [0.9, 0.99];
            let mut trainer = trainer(&backend, &graph, &recipe(moments, betas));
            let count = shape.iter().product();
            for t in 1..=6 {
                let before = trainer.snapshot().unwrap();
                let g = spread(count, t as usize);
                trainer.step(&[batch(shape, &g)]).unwrap();
                let after = trainer.snapshot().unwrap();
                let [m, v] = ["m", "v"].map(|kind| decoded(&before, kind, block));
                let [new_m, new_v] = ["m", "v"].map(|kind| decoded(&after, kind, block));
                let [w, new_w] = [&before, &after].map(|states| states["w"].to_f64());
                let m: Vec<f64> = (0..count).map(|i| betas[0] * m[i] + 0.1 * g[i]).collect();
                let v: Vec<f64> =
                    (0..count).map(|i| betas[1] * v[i] + 0.01 * g[i] * g[i]).collect();
                for i in 0..count {
                    let first = m[i] / (1.0 - betas[0].powi(t));
                    let second = v[i] / (1.0 - betas[1].powi(t));
                    let expected = w[i] - LR * first / (second.sqrt() + EPS);
                    let case = format!("{shape:?} {moments:?} step {t} element {i}");
                    assert!((new_w[i] - expected).abs() < 1e-6, "{case}: {} {expected}", new_w[i]);
                    // To nearest, or to either neighbour.
                    let near = |exact: f64, found: f64, (kept, largest): (Kept, f64), share| {
                        let (off, step) = ((exact - found).abs(), kept.step(exact, largest));
                        assert!(off <= step * share, "{case}: {exact} became {found}, {step}");
                    };
                    let largest = |of: &[f64]| {
                        let first = i / block * block;
                        of[first..first + block].iter().fold(0.0, |a: f64, x| a.max(x.abs()))
                    };
                    match moments {
                        Moments::Fp8 => {
                            near(m[i], new_m[i], (SIGNED, largest(&m)), 1.001);
                            near(v[i].sqrt(), new_v[i].sqrt(), (ROOT, largest(&v).sqrt()), 1.001);
                        }
                        _ => {
                            near(m[i], new_m[i], (BF16, 0.0), 0.501);
                            near(v[i], new_v[i], (BF16, 0.0), 1.001);
                        }
                    }
                }
            }
        }
    }
}

/// The same step as its graph means it, in f64. Sums of f32 cross a threshold of rounding here and
/// there, and then a code is its neighbour.
#[test]
fn a_step_leaves_the_states_that_the_f64_evaluator_leaves() {
    let backend = CpuBackend::new(Some(2)).unwrap();
    let shapes: [&[usize]; 3] = [&[16, 512], &[64, 64], &[16, 16, 3, 16]];
    for shape in shapes {
        for moments in [Moments::Bf16, Moments::Fp8] {
            let recipe = recipe(moments, [0.9, 0.99]);
            let mut trainer = trainer(&backend, &linear(shape), &recipe);
            let graph = trainer.graph().clone();
            for t in 0..4 {
                let batch = batch(shape, &spread(shape.iter().product(), t));
                let rate = Tensor::scalar(DType::F32, recipe.learning_rate(t as u64));
                let before = trainer.snapshot().unwrap();
                let array = |(name, state): (&String, &Tensor)| (name.clone(), Array::from(state));
                let mut expected: States = before.iter().map(array).collect();
                let given = graph.inputs().iter().map(|port| match port.name.as_str() {
                    "x" => Array::from(&batch.x),
                    "labels" => Array::from(&batch.labels),
                    _ => Array::from(&rate),
                });
                eval(&graph, &given.collect::<Vec<_>>(), &mut expected);
                trainer.step(std::slice::from_ref(&batch)).unwrap();
                for (name, found) in trainer.snapshot().unwrap() {
                    let (found, exact) = (found.to_f64(), expected[&name].to_f64());
                    let apart = |(a, b): &(&f64, &f64)| (*a - *b).abs() > 1e-5 * (1e-3 + b.abs());
                    let off = found.iter().zip(&exact).filter(apart).count();
                    let case = format!("{shape:?} {moments:?} step {t} `{name}`");
                    assert!(off <= found.len() / 500, "{case}: {off} of {}", found.len());
                }
            }
        }
    }
}

/// With β₂ = 0.999 a step changes v by less than half a unit of the last place. Rounded to nearest,
/// v would stop at a third of g² in bf16, and would never fall by itself.
#[test]
fn the_second_moment_of_a_constant_gradient_rises_and_falls_to_its_square() {
    let backend = CpuBackend::new(Some(2)).unwrap();
    let (shape, block): (&[usize], usize) = (&[16, 256], 256);
    let graph = linear(shape);
    // All of one sign and within a power of ten: each block has many different codes.
    let high: Vec<f64> = (0..4096).map(|i| 0.1 + ((i * 2753) % 4096) as f64 / 4096.0).collect();
    let low: Vec<f64> = high.iter().map(|g| f64::from((0.3 * g) as f32)).collect();
    for (moments, of_one, of_all) in [(Moments::Bf16, 0.05, 0.01), (Moments::Fp8, 0.2, 0.02)] {
        let mut trainer = trainer(&backend, &graph, &recipe(moments, [0.9, 0.999]));
        let mut expected = vec![0.0; 4096];
        for (phase, g) in [("rises", &high), ("falls", &low)] {
            let given = batch(shape, g);
            for _ in 0..1500 {
                trainer.step(std::slice::from_ref(&given)).unwrap();
            }
            let decay = 0.999f64.powi(1500);
            for (v, g) in expected.iter_mut().zip(g) {
                *v = decay * *v + (1.0 - decay) * g * g;
            }
            let found = decoded(&trainer.snapshot().unwrap(), "v", block);
            let ratios: Vec<f64> = found.iter().zip(&expected).map(|(v, e)| v / e).collect();
            let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
            let worst = ratios.iter().fold(0.0, |worst: f64, r| worst.max((r - 1.0).abs()));
            println!("{moments:?} {phase}: mean {mean:.4}, worst {worst:.4}");
            assert!((mean - 1.0).abs() < of_all, "{moments:?} {phase}: mean {mean}");
            assert!(worst < of_one, "{moments:?} {phase}: worst {worst}");
        }
    }
}

/// The model `digits-mlp` with its loss, at a batch of 32.
fn forward() -> Graph {
    let model = (find("digits-mlp").unwrap().build)().unwrap();
    with_loss(&bind(&model, &[("batch".to_owned(), 32)].into()).unwrap(), Target::Classes).unwrap()
}

/// Bytes of the states of a plan whose names begin so.
fn state_bytes(plan: &Plan, begin: &str) -> usize {
    let mut seen: Vec<&str> = vec![];
    let mut bytes = 0;
    for slot in &plan.slots {
        if let SlotPlace::State(name) = &slot.place
            && name.starts_with(begin)
            && !seen.contains(&&name[..])
        {
            seen.push(name);
            bytes += slot.bytes();
        }
    }
    bytes
}

#[test]
fn the_plan_holds_codes_and_scales_alone_and_each_update_is_one_loop() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let graph = forward();
    let (matrices, rest) = (64 * 128 + 128 * 128, 128 * 10 + 128 + 128 + 10);
    let expected = [
        (Moments::F32, 4 * matrices),
        (Moments::Bf16, 2 * matrices),
        (Moments::Fp8, matrices + 4 * matrices / 256),
    ];
    for (moments, of_matrices) in expected {
        let recipe = Recipe { moments, batch: 32, ..Recipe::default() };
        let trainer = trainer(&backend, &graph, &recipe);
        let plan = trainer.plan();
        for kind in ["optimizer.m", "optimizer.v"] {
            assert_eq!(state_bytes(plan, kind), of_matrices + 4 * rest, "{moments:?} {kind}");
        }
        for name in ["fc1.weight", "fc2.weight"] {
            let slots = |of: &str| {
                let is = |place: &SlotPlace| matches!(place, SlotPlace::State(name) if name == of);
                let all = (0..plan.slots.len()).filter(|&i| is(&plan.slots[i].place));
                all.map(|i| SlotId(i as u32)).collect::<Vec<_>>()
            };
            let touched = |of: &str| {
                let slots = slots(of);
                assert!(!slots.is_empty(), "{of} in {plan}");
                let writes = plan.steps.iter().enumerate();
                let writes =
                    writes.filter(|(_, step)| step.writes.iter().any(|s| slots.contains(s)));
                writes.map(|(at, _)| at).collect::<Vec<_>>()
            };
            let update = touched(name);
            assert_eq!(update.len(), 1, "{name} is written in place, once: {plan}");
            assert!(matches!(plan.steps[update[0]].kind, StepKind::Loop(_)), "{plan}");
            for kind in ["m", "v"] {
                let moment = touched(&format!("optimizer.{kind}.{name}"));
                assert_eq!(moment, update, "{moments:?} {kind} of {name}: {plan}");
            }
        }
    }
}

#[test]
fn vectors_small_tensors_and_those_that_no_block_divides_keep_f32() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let kept: [&[usize]; 4] = [&[8192], &[63, 65], &[4, 1021], &[2, 4 * 1021]];
    for (shape, moments) in
        kept.iter().zip([Moments::Fp8, Moments::Bf16, Moments::Fp8, Moments::Fp8])
    {
        let trainer = trainer(&backend, &linear(shape), &recipe(moments, [0.9, 0.99]));
        let plan = trainer.plan();
        let elements: usize = shape.iter().product();
        assert_eq!(state_bytes(plan, "optimizer.m"), 4 * elements, "{shape:?} {moments:?}");
    }
}

fn fitted(recipe: &Recipe, is_interrupted: bool) -> Fitted {
    let model = (find("digits-mlp").unwrap().build)().unwrap();
    if !is_interrupted {
        return whole(&model, recipe);
    }
    resumed(&model, recipe, |checkpoint| {
        let codes = &checkpoint.state["optimizer.m.fc1.weight"];
        let expected = if recipe.moments == Moments::Fp8 { DType::U8 } else { DType::BF16 };
        assert_eq!(codes.ty().dtype, expected, "a checkpoint holds moments as memory does");
    })
}

#[test]
fn they_learn_and_a_resumed_run_ends_bit_for_bit_as_a_whole_one() {
    for moments in [Moments::Bf16, Moments::Fp8] {
        for accumulate in [1, 2] {
            let recipe = Recipe {
                moments,
                accumulate,
                steps: 40,
                batch: 32,
                evaluate_every: 20,
                ..Recipe::default()
            };
            let whole = fitted(&recipe, false);
            assert_eq!(fitted(&recipe, true), whole, "{moments:?} {accumulate}");
            let plain = Recipe { moments: Moments::F32, ..recipe };
            let best = fit_loss(&plain);
            let off = (whole.progress.best_loss - best).abs() / best;
            assert!(off < 0.05, "{moments:?}: {} beside {best}", whole.progress.best_loss);
        }
    }
}

fn fit_loss(recipe: &Recipe) -> f64 {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let model = (find("digits-mlp").unwrap().build)().unwrap();
    let parts = Dataset::Samples(digits()).parts(&model, 0).unwrap();
    fit(&Fit::anew((&backend, &model), recipe, &parts), &mut ()).unwrap().progress.best_loss
}

#[test]
fn momentum_has_them_too() {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let momentum = Optimizer::Sgd { momentum: 0.9, weight_decay: 0.0 };
    let recipe = Recipe { optimizer: momentum, ..recipe(Moments::Fp8, [0.9, 0.99]) };
    let shape: &[usize] = &[32, 512];
    let mut trainer = trainer(&backend, &linear(shape), &recipe);
    let mut exact = vec![0.0; 32 * 512];
    for t in 0..20 {
        let g = spread(32 * 512, t);
        exact.iter_mut().zip(&g).for_each(|(m, g)| *m = 0.9 * *m + g);
        trainer.step(&[batch(shape, &g)]).unwrap();
    }
    assert_eq!(state_bytes(trainer.plan(), "optimizer.momentum"), 32 * 512 + 4 * 64);
    let found = decoded(&trainer.snapshot().unwrap(), "momentum", 256);
    let largest = exact.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
    let off = found.iter().zip(&exact).map(|(f, e)| (f - e).abs()).fold(0.0, f64::max);
    assert!(off < 0.2 * largest, "{off} of {largest}");
}
