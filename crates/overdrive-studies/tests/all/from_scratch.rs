//! Published architectures that learn from scratch: initial values, first steps, and folders that
//! are read back.

use crate::tiny::{DECODERS, backend, folder};
use overdrive_formats::huggingface::Tokenizer;
use overdrive_formats::{Tensors, npz};
use overdrive_ir::{DType, Graph, Init, Tensor, Tuning};
use overdrive_studies::pretrained::Pretrained;
use overdrive_train::data::{Batch, Target};
use overdrive_train::{Decay, Optimizer, Recipe, Schedule, Trainer, initial_parameters, with_loss};
use std::fs;
use std::path::Path;

const VOCABULARY: f64 = 270.0;
const STEPS: usize = 12;
/// Blocks of the fixtures.
const LAYERS: f64 = 2.0;

/// A folder with the settings of a fixture, and no weights.
fn without_weights(name: &str) -> tempfile::TempDir {
    let bare = tempfile::tempdir().unwrap();
    for file in ["config.json", "tokenizer.json", "generation_config.json"] {
        if folder(name).join(file).exists() {
            fs::copy(folder(name).join(file), bare.path().join(file)).unwrap();
        }
    }
    bare
}

fn new(place: &Path) -> Pretrained {
    Pretrained::from_scratch(place).unwrap_or_else(|error| panic!("{place:?}: {error}"))
}

fn graph(model: &Pretrained) -> Graph {
    let sizes = [("batch".to_owned(), 2), ("tokens".to_owned(), 8)].into();
    model.template().unwrap().graph_of(&sizes).unwrap()
}

fn batch() -> Batch {
    let given = npz::read(&folder("gpt2").join("fine_tuned.npz")).unwrap();
    Batch { x: given["x"].clone(), labels: given["labels"].clone(), mask: None, text_bytes: vec![] }
}

/// Parameters after some steps on one batch, and the loss of each.
fn trained(model: &Pretrained, seed: u64) -> (Tensors, Vec<f64>) {
    let recipe = Recipe {
        batch: 2,
        optimizer: Optimizer::Adamw { betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1 },
        schedule: Schedule { peak: 1e-2, warmup: 0, decay: Decay::Constant },
        ..Recipe::default()
    };
    let (graph, backend) = (graph(model), backend());
    let with_loss = with_loss(&graph, Target::Classes).unwrap();
    let initial = initial_parameters(&graph, seed);
    let trainer = Trainer::new(&backend, &with_loss, &recipe, &initial, &Tuning::default());
    let mut trainer = trainer.unwrap();
    let losses = (0..STEPS).map(|_| trainer.step(&[batch()]).unwrap().loss).collect();
    (trainer.parameters().unwrap(), losses)
}

#[test]
fn every_decoder_begins_at_the_loss_of_chance_and_learns() {
    for name in DECODERS {
        let bare = without_weights(name);
        let model = new(bare.path());
        let (weights, losses) = trained(&model, 7);
        let (first, last) = (losses[0], losses[STEPS - 1]);
        assert!((first - VOCABULARY.ln()).abs() < 0.1, "{name}: {first}");
        assert!(last < first - 0.5, "{name}: {losses:?}");
        // The same seed gives the same bits, before and after; another one does not.
        assert_ne!(trained(&model, 8).1, losses, "{name}");
        assert_eq!(trained(&model, 7), (weights.clone(), losses), "{name}");

        let out = tempfile::tempdir().unwrap();
        model.clone().retrained(&weights).write(out.path()).unwrap();
        let read = Pretrained::read(out.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(model.is_new() && !read.is_new());
        assert_eq!(read.weights, weights, "{name}");
        assert!(read.stored_half().is_none(), "{name}");
        assert!(read.tokenizer.is_some(), "{name}");
    }
}

fn standard_deviation(tensor: &Tensor) -> f64 {
    let values = tensor.to_f64();
    (values.iter().map(|x| x * x).sum::<f64>() / values.len() as f64).sqrt()
}

/// A matrix of n elements has a standard deviation that is off by `1 / √(2 n)` of it, mostly.
#[test]
fn initial_values_are_those_of_the_reference() {
    let wide = |name: &str| {
        let bare = without_weights(name);
        let path = bare.path().join("config.json");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"initializer_range\": 0.02", "\"initializer_range\": 0.1"))
            .unwrap();
        let model = new(bare.path());
        let mut sizes = model.template().unwrap().dimensions;
        sizes.insert("tokens".to_owned(), 8);
        initial_parameters(&model.template().unwrap().graph_of(&sizes).unwrap(), 3)
    };
    for name in DECODERS.into_iter().chain(["bert_classifier", "roberta_classifier"]) {
        let weights = wide(name);
        for (state, tensor) in &weights {
            let values = tensor.to_f64();
            let is = |value: f64| values.iter().all(|x| *x == value);
            if tensor.ty().rank() > 1 {
                let into_residual = name == "gpt2" && state.ends_with("c_proj.weight");
                let expected = if into_residual { 0.1 / (2.0 * LAYERS).sqrt() } else { 0.1 };
                let off = 5.0 / (2.0 * values.len() as f64).sqrt();
                let found = standard_deviation(tensor) / expected;
                assert!((found - 1.0).abs() < off, "{name}, {state}: {found} of it");
            } else if state.ends_with("bias") {
                assert!(is(0.0), "{name}, {state}");
            } else {
                // Gemma adds 1 to the weights of its norms.
                assert!(is(if name.starts_with("gemma") { 0.0 } else { 1.0 }), "{name}, {state}");
            }
            assert_eq!(tensor.ty().dtype, DType::F32);
        }
    }
}

#[test]
fn weights_that_are_there_are_ignored_and_said_so() {
    let whole = new(&folder("llama"));
    assert!(whole.notes.iter().any(|note| note.contains("are ignored")), "{:?}", whole.notes);
    let bare = without_weights("llama");
    let alone = new(bare.path());
    assert!(alone.notes.iter().all(|note| !note.contains("ignored")), "{:?}", alone.notes);
    assert_eq!(graph(&whole).to_string(), graph(&alone).to_string());
    let states = |model: &Pretrained| graph(model).states().to_vec();
    assert_eq!(states(&whole), states(&alone));
    let refused = Pretrained::read(bare.path()).unwrap_err().to_string();
    let place = bare.path().display();
    for part in ["model.safetensors", &format!("overdrive train {place} --from-scratch")] {
        assert!(refused.contains(part), "{refused}");
    }
}

#[test]
fn codes_are_refused() {
    let bare = without_weights("llama");
    let path = bare.path().join("config.json");
    let text = fs::read_to_string(&path).unwrap();
    let coded = text.replacen('{', "{\"quantization_config\": {\"quant_method\": \"gptq\"},", 1);
    fs::write(&path, coded).unwrap();
    let refused = Pretrained::from_scratch(bare.path()).unwrap_err().to_string();
    for part in ["config.json", "quantization_config", "expected none", "float model"] {
        assert!(refused.contains(part), "{refused}");
    }
}

/// Tokens of another tokenizer mean nothing to one of bytes.
#[test]
fn another_tokenizer_takes_the_place_of_the_folders() {
    let bare = without_weights("llama");
    let model = new(bare.path());
    assert!(!model.ends.is_empty());
    let model = model.with_tokenizer(Tokenizer::BYTES).unwrap();
    let weights = initial_parameters(&graph(&model), 1);
    let out = tempfile::tempdir().unwrap();
    model.retrained(&weights).write(out.path()).unwrap();
    let read = Pretrained::read(out.path()).unwrap();
    let ids = read.tokenizer.as_ref().unwrap().encode("a ü").unwrap();
    assert_eq!(ids, [97, 32, 195, 188]);
    assert!(read.ends.is_empty());
    assert!(!out.path().join("generation_config.json").exists());
}

/// A built-in Llama and its folder are one graph with one set of names.
#[test]
fn a_built_in_llama_is_a_folder_too() {
    assert!(Pretrained::built_in("gpt-125m").unwrap().is_none());
    let model = Pretrained::built_in("llama-135m").unwrap().unwrap();
    let built_in = (overdrive_models::find("llama-135m").unwrap().build)().unwrap();
    let template = model.template().unwrap();
    assert_eq!(template.limits["tokens"], 2048);
    let sizes = |names: &[(&str, usize)]| {
        names.iter().map(|&(name, size)| (name.to_owned(), size)).collect()
    };
    let [own, folder] = [
        overdrive_passes::bind(&built_in, &sizes(&[("batch", 1)])).unwrap(),
        template.graph_of(&sizes(&[("batch", 1), ("tokens", 2048)])).unwrap(),
    ]
    .map(|graph| graph.with_initial_values(|_, _| Init::ZEROS));
    let body = |graph: &Graph| graph.to_string().split_once('{').unwrap().1.to_owned();
    assert_eq!(body(&own), body(&folder));
}
