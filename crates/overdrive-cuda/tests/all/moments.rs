//! Moments in fewer bytes: the update of a matrix is one kernel. It reads and writes them as they
//! are kept, and computes the same as on the CPU.

use crate::support::{gpu, h200};
use overdrive_cpu::CpuBackend;
use overdrive_cuda::compiler::{Architecture, resources};
use overdrive_cuda::loops::PrinterMachine;
use overdrive_cuda::{Error, Gpu, loops};
use overdrive_ir::plan::{Plan, SlotId, SlotPlace, StepKind};
use overdrive_ir::{Backend, Builder, DType, Graph, Init, Mode, Tensor, TensorType, Tuning};
use overdrive_train::data::Batch;
use overdrive_train::{Moments, Recipe, Trainer, initial_parameters, training_step};
use std::collections::BTreeMap;
use testkit::Needs;

/// Sizes of a matrix whose blocks are parts of rows, whole rows, and pieces of 160.
const SHAPES: [[usize; 2]; 3] = [[256, 768], [512, 128], [64, 320]];

/// `loss = mean of (x w)^2`, with a matrix and a vector to train.
fn layer([rows, columns]: [usize; 2]) -> Graph {
    let b = Builder::new("layer");
    let x = b.input("x", TensorType::new(DType::F32, [32, rows]));
    b.input("labels", TensorType::new(DType::I32, [1usize]));
    let init = Init::Normal { std: 0.1, seed: 1 };
    let w = b.state("w", TensorType::new(DType::F32, [rows, columns]), init);
    let bias = b.state("bias", TensorType::new(DType::F32, [columns]), Init::Constant(0.1));
    let y = x.matmul(w);
    let y = y + bias.broadcast_to(&y.shape());
    b.output("loss", (y * y).mean_keep(&[0, 1]).reshape([0usize; 0]));
    b.finish().unwrap()
}

fn slots(plan: &Plan, state: &str) -> Vec<SlotId> {
    let is = |place: &SlotPlace| matches!(place, SlotPlace::State(name) if name == state);
    let all = (0..plan.slots.len()).filter(|&i| is(&plan.slots[i].place));
    all.map(|i| SlotId(i as u32)).collect()
}

#[test]
fn the_update_of_a_matrix_is_one_kernel_that_spills_next_to_nothing() {
    for moments in [Moments::Bf16, Moments::Fp8] {
        for shape in SHAPES {
            let recipe = Recipe { moments, ..Recipe::default() };
            let step = training_step(&layer(shape), &recipe).unwrap();
            let gpu = Gpu::new(&h200());
            let plan =
                overdrive_passes::plan(&step, Mode::Graph, &gpu, &Tuning::default()).unwrap();
            let writers = |state: &str| {
                let slots = slots(&plan, state);
                let writes = plan.steps.iter().enumerate();
                let writes = writes.filter(|(_, s)| s.writes.iter().any(|w| slots.contains(w)));
                writes.map(|(at, _)| at).collect::<Vec<_>>()
            };
            let update = writers("w");
            assert_eq!(update.len(), 1, "{plan}");
            for state in ["optimizer.m.w", "optimizer.v.w"] {
                assert_eq!(writers(state), update, "{state} is written in the same step: {plan}");
            }
            let update = &plan.steps[update[0]];
            let StepKind::Loop(program) = &update.kind else { panic!("{plan}") };
            // Beside the matrix and its gradient nothing of their size is in memory.
            let large = |slot: &SlotId| plan.slot(*slot).bytes() >= 4 * shape[0] * shape[1];
            let parameter = slots(&plan, "w");
            let all = update.reads.iter().chain(&update.writes).filter(|slot| large(slot));
            let others: Vec<_> = all.filter(|slot| !parameter.contains(slot)).collect();
            assert_eq!(others.len(), 1, "the gradient alone is as large: {plan}");
            for architecture in Architecture::DECLARED {
                let machine = PrinterMachine { multiprocessors: 132, architecture };
                let sources = loops::sources(program, &update.aliases, machine)
                    .unwrap_or_else(|refusal| panic!("{refusal}"));
                assert_eq!(sources.len(), 1, "one launch: {plan}");
                let used = match resources(&sources[0], architecture) {
                    Err(missing @ Error::Missing { .. }) => {
                        return testkit::skip(Needs::Nvrtc, missing);
                    }
                    compiled => compiled.unwrap_or_else(|e| panic!("{e}\n{}", sources[0].text)),
                };
                let spilled: u32 = used.iter().map(|entry| entry.spilled_bytes).sum();
                // Four numbers of a thread, where a block is a piece of 160.
                let text = &sources[0].text;
                assert!(spilled <= 16, "{moments:?} {shape:?} {architecture:?} {spilled}\n{text}");
            }
        }
    }
}

/// Weights and moments after some steps on a back end.
fn trained(backend: &dyn Backend, shape: [usize; 2], recipe: &Recipe) -> BTreeMap<String, Tensor> {
    let graph = layer(shape);
    let initial = initial_parameters(&graph, 1);
    let mut trainer = Trainer::new(backend, &graph, recipe, &initial, &Tuning::default()).unwrap();
    for turn in 0..8u32 {
        let x =
            (0..32 * shape[0] as u32).map(|i| ((i * 7919 + turn * 31) % 2003) as f32 / 1e3 - 1.0);
        let x: Vec<f32> = x.collect();
        let x = Tensor::from_f32([32, shape[0]], &x);
        let labels = Tensor::from_ints(DType::I32, [1usize], &[0]);
        trainer.step(&[Batch { x, labels, mask: None, text_bytes: vec![] }]).unwrap();
    }
    trainer.snapshot().unwrap()
}

#[test]
fn a_gpu_keeps_the_moments_that_a_cpu_keeps() {
    let Some(gpu) = gpu() else { return };
    let cpu = CpuBackend::new(Some(2)).unwrap();
    for moments in [Moments::Bf16, Moments::Fp8] {
        for shape in SHAPES {
            let recipe = Recipe { moments, ..Recipe::default() };
            let [found, expected] =
                [&gpu as &dyn Backend, &cpu].map(|backend| trained(backend, shape, &recipe));
            for (name, expected) in &expected {
                let (found, expected) = (found[name].to_f64(), expected.to_f64());
                // Sums in another order cross a threshold of rounding here and there.
                let apart = |(a, b): &(&f64, &f64)| (*a - *b).abs() > 1e-3 * (1e-3 + b.abs());
                let off = found.iter().zip(&expected).filter(apart).count();
                let few = 4 + found.len() / 100;
                assert!(off <= few, "{moments:?} {shape:?} {name}: {off} of {}", found.len());
            }
        }
    }
}
