//! Models in Hugging Face's format that go on learning: against PyTorch, and as folders that are
//! read back.
//!
//! `peers/fine_tuned.py` made the expected steps in `pretrained/`.

use overdrive_cpu::CpuBackend;
use overdrive_formats::{Tensors, npz, safetensors};
use overdrive_ir::{DType, Graph, Init, Tensor, Tuning};
use overdrive_passes::Lora;
use overdrive_studies::pretrained::Pretrained;
use overdrive_train::data::{Batch, Parts, Target, Tokens};
use overdrive_train::{
    Checkpoint, Decay, Ending, Fit, Observer, Optimizer, Recipe, Schedule, Sharing, StepReport,
    Trainer, fit, initial_parameters, parameters, with_loss,
};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pretrained").join(name)
}

fn model(name: &str) -> Pretrained {
    Pretrained::read(&folder(name)).unwrap()
}

/// Whole sequences of the batch in `fine_tuned.npz`.
fn graph(model: &Pretrained) -> Graph {
    let sizes = [("batch".to_owned(), 2), ("tokens".to_owned(), 8)].into();
    model.template().unwrap().graph_of(&sizes).unwrap()
}

/// The recipe of `peers/fine_tuned.py`.
fn recipe(lora: Option<Lora>) -> Recipe {
    Recipe {
        batch: 2,
        optimizer: Optimizer::Adamw { betas: [0.9, 0.999], eps: 1e-4, weight_decay: 0.1 },
        schedule: Schedule { peak: 1e-2, warmup: 0, decay: Decay::Constant },
        clip_norm: None,
        lora,
        ..Recipe::default()
    }
}

fn batch() -> Batch {
    let given = npz::read(&folder("gpt2").join("fine_tuned.npz")).unwrap();
    Batch { x: given["x"].clone(), labels: given["labels"].clone(), mask: None, text_bytes: vec![] }
}

/// Trained parameters after some steps on the batch, and the loss of the first.
fn trained(graph: &Graph, recipe: &Recipe, steps: usize) -> (Tensors, f64) {
    let backend = CpuBackend::new(Some(1)).unwrap();
    let initial = initial_parameters(graph, 1);
    let mut trainer = Trainer::new(
        &backend,
        &with_loss(graph, Target::Classes).unwrap(),
        recipe,
        &initial,
        &Tuning::default(),
    )
    .unwrap();
    let losses: Vec<f64> = (0..steps).map(|_| trainer.step(&[batch()]).unwrap().loss).collect();
    (trainer.parameters().unwrap(), losses[0])
}

fn difference(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.ty().shape, b.ty().shape);
    let pairs = a.to_f64().into_iter().zip(b.to_f64());
    pairs
        .map(|(a, b)| (a - b).abs())
        .reduce(|a, b| if a.is_nan() || a > b { a } else { b })
        .unwrap()
}

/// AdamW's first step is `1e-2 g / (|g| + 1e-4)`, whose slope is at most 100. Gradients of up to 1
/// are rounded to 1e-7 in f32, so a step of 1e-2 is off by 1e-5 at most. Weights add their own
/// rounding.
#[test]
fn a_step_of_adamw_is_that_of_pytorch() {
    for name in ["gemma2", "gpt2", "llama", "phi3", "qwen3"] {
        let expected = npz::read(&folder(name).join("fine_tuned.npz")).unwrap();
        let model = model(name);
        let (found, loss) = trained(&graph(&model), &recipe(None), 1);
        assert!((loss - expected["loss"].to_f64()[0]).abs() < 2e-6, "{name}: loss {loss}");
        let after: Vec<_> =
            expected.iter().filter(|(name, _)| name.starts_with("after/")).collect();
        assert_eq!(after.len(), found.len(), "{name}: every parameter is trained");
        for (state, tensor) in after {
            let state = state.trim_start_matches("after/");
            let off = difference(&found[state], tensor);
            assert!(off <= 1e-5, "{name}, {state} is off by {off}");
            let moved = difference(&found[state], &model.weights[state].convert(DType::F32));
            assert!(moved > 1e-3, "{name}, {state} moved by {moved}");
        }
    }
}

#[test]
fn adapters_alone_learn_and_hold_the_only_moments() {
    let lora = Lora { rank: 2, alpha: 8.0 };
    for name in ["gpt2", "llama", "phi3"] {
        let graph = graph(&model(name));
        let adapted = lora.adapted(&graph, &Lora::layers(&graph).unwrap()).unwrap();
        let recipe = recipe(Some(lora));
        let names: Vec<&str> = parameters(&adapted, &recipe).map(|(name, _)| name).collect();
        let layers = if name == "llama" { 7 } else { 4 };
        assert_eq!(
            names.len(),
            2 * 2 * layers,
            "{name}: A and B of each layer of two blocks: {names:?}"
        );
        let backend = CpuBackend::new(Some(1)).unwrap();
        let initial = initial_parameters(&adapted, 1);
        let mut trainer = Trainer::new(
            &backend,
            &with_loss(&adapted, Target::Classes).unwrap(),
            &recipe,
            &initial,
            &Tuning::default(),
        )
        .unwrap();
        let [first, second] = [0, 1].map(|_| trainer.step(&[batch()]).unwrap().loss);
        assert!(second < first, "{name}: {first}, then {second}");
        let frozen = |state: &String| initial.contains_key(state) && !Lora::is_adapter(state);
        let states: Vec<String> = trainer.graph().states().iter().map(|s| s.name.clone()).collect();
        assert!(states.iter().filter(|s| s.contains("optimizer.m.")).all(|s| Lora::is_adapter(s)));
        for state in states.iter().filter(|state| frozen(state)) {
            let buffer = &trainer.state_mut().buffers[state];
            let now = overdrive_ir::Backend::download(&backend, buffer).unwrap();
            assert_eq!(now, initial[state], "{name}, {state} stays");
        }
        let whole = with_loss(&graph, Target::Classes).unwrap();
        let all = Recipe { lora: None, ..recipe };
        let full = Trainer::new(
            &backend,
            &whole,
            &all,
            &initial_parameters(&graph, 1),
            &Tuning::default(),
        )
        .unwrap();
        let [adapters, full] = [trainer.memory(), full.memory()];
        assert!(adapters.state_bytes < full.state_bytes / 2, "{name}: {adapters:?}, {full:?}");
        assert!(
            trainer.snapshot_bytes() < adapters.state_bytes / 2,
            "{name}: checkpoints are small"
        );
    }
}

/// Ends a run after so many steps.
struct StopAfter(u64);

impl Observer for StopAfter {
    fn stepped(&mut self, report: &StepReport) -> ControlFlow<()> {
        if report.step + 1 == self.0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn adapters_go_on_from_a_small_checkpoint_and_from_the_same_weights_alone() {
    let (backend, graph) = (CpuBackend::new(Some(1)).unwrap(), graph(&model("llama")));
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("checkpoint");
    let text = Tokens::of_bytes("the hand and the tin. ".repeat(60).into_bytes());
    let parts = Parts::of_text(&Arc::new(text), 8).unwrap();
    let recipe =
        Recipe { steps: 6, evaluate_every: 3, ..recipe(Some(Lora { rank: 2, alpha: 4.0 })) };
    let (train, validation) = (parts.train.as_ref(), &parts.validation);
    let (resume, checkpoint) = (None, None);
    let run = Fit {
        backend: &backend,
        model: &graph,
        recipe: &recipe,
        train,
        validation,
        resume,
        checkpoint,
        memory_limit: None,
        ranks: None,
        sharing: Sharing::default(),
    };
    let whole = fit(&run, &mut ()).unwrap();
    let run = Fit { checkpoint: Some(&file), ..run };
    assert_eq!(fit(&run, &mut StopAfter(4)).unwrap().ending, Ending::Interrupted);
    let kept = Checkpoint::read(&file).unwrap();
    assert!(kept.state.keys().all(|name| Lora::is_adapter(name) || name.starts_with("optimizer.")));
    let resumed = Fit { resume: Some(&kept), ..run };
    assert_eq!(fit(&resumed, &mut ()).unwrap(), whole);
    let other = graph.clone().with_initial_values(|_, _| Init::Constant(0.5));
    let error = fit(&Fit { model: &other, ..resumed }, &mut ()).unwrap_err().to_string();
    assert!(error.contains("frozen weights of SHA-256"), "{error}");
}

#[test]
fn a_trained_model_is_written_as_it_was_read() {
    for name in ["gpt2", "llama", "gemma"] {
        let before = model(name);
        let place = tempfile::tempdir().unwrap();
        let (trained, _) = trained(&graph(&before), &recipe(None), 1);
        let types: Vec<_> =
            before.weights.iter().map(|(name, w)| (name.clone(), w.ty().clone())).collect();
        let config = before.config.clone();
        let after = before.retrained(&trained);
        let written = place.path().join("written");
        after.write(&written).unwrap();
        let read = Pretrained::read(&written).unwrap();
        let found: Vec<_> =
            read.weights.iter().map(|(name, w)| (name.clone(), w.ty().clone())).collect();
        assert_eq!(found, types, "{name}: names and types are those of the original");
        assert_eq!(read.weights, after.weights);
        assert_eq!(read.config, config);
        assert!(read.tokenizer.is_some() && read.ends == [0]);
        let stored = safetensors::read(&written.join("model.safetensors")).unwrap();
        assert!(
            !stored.contains_key("lm_head.weight") || name != "gpt2",
            "{name} has no head of its own"
        );
    }
}
