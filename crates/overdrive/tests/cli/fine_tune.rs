//! `train` of folders in Hugging Face's format: all weights or adapters, and folders that commands
//! take.

use crate::invocation::{Folder, Outcome};
use overdrive::formats::{self, Tensors};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-studies/tests/pretrained").join(name)
}

/// Trains a fixture on a text of its own.
#[track_caller]
fn train(folder: &Folder, model: &str, arguments: &str) -> Outcome {
    let model = fixture(model).display().to_string();
    let text = "the hand and the tin in a thin band; another hand than the other. ".repeat(300);
    fs::write(folder.path("words.txt"), text).unwrap();
    let words = ["train", &model].into_iter().chain(arguments.split_whitespace());
    let rest = "--device cpu --threads 1 --tokens 16 --lr 0.01".split_whitespace();
    folder.overdrive(&words.chain(rest).collect::<Vec<_>>())
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn states(folder: &Folder, name: &str) -> Tensors {
    formats::read(&folder.path(name)).unwrap()
}

#[test]
fn a_published_model_learns_and_is_a_model_again() {
    for name in ["gpt2", "llama", "qwen3", "gemma2", "phi3"] {
        let folder = Folder::new();
        let made = train(&folder, name, "--data words.txt --steps 12 -o tuned");
        made.ends(
            0,
            &["after 12 steps", "bits per byte", "before:", "a step holds", "model: tuned"],
        );
        let training = json(&folder.path("tuned/training.json"));
        let loss = |field: &str| training[field].as_f64().unwrap();
        let (before, after) = (loss("test_loss_nats_before"), loss("test_loss_nats"));
        assert!(after < 0.8 * before, "{name}: {before}, then {after}");
        assert_eq!(
            json(&folder.path("tuned/config.json")),
            json(&fixture(name).join("config.json"))
        );
        assert!(folder.path("tuned/tokenizer.json").exists());
        assert!(folder.path("tuned/generation_config.json").exists());
        folder
            .line("generate tuned --prompt hand --max-tokens 3 --device cpu --threads 1")
            .ends(0, &["3 made"]);
        let further =
            "train tuned --data words.txt --steps 1 --tokens 16 -o more --device cpu --threads 1";
        folder.line(further).ends(0, &["model: more"]);
    }
}

#[test]
fn a_gate_is_trained_beside_the_weights_and_judged_by_what_it_costs() {
    let folder = Folder::new();
    train(&folder, "llama", "--data words.txt --gate 4 --steps 3 -o gated")
        .ends(0, &["gates of tiles of 4 after 3 steps", "model: gated", "--attention-gate 0.5"]);
    let mut weights = Tensors::new();
    for shard in 1..=2 {
        let name = format!("model-0000{shard}-of-00002.safetensors");
        weights.extend(formats::read(&fixture("llama").join(name)).unwrap());
    }
    assert_eq!(states(&folder, "gated/model.safetensors"), weights);
    let judge = "generate gated --judge words.txt --max-tokens 128 --device cpu --threads 1";
    let judged = folder.line(&format!("{judge} --attention-gate 0.5 --json"));
    let judged: Value = serde_json::from_str(&judged.ends(0, &[]).stdout).unwrap();
    // Windows of 64 tokens have 136 visible tiles. Rows of n tiles keep n / 2 of them, rounded up.
    let skipped = 100.0 * (1.0 - 72.0 / 136.0);
    for found in [&judged["skipped_percent"], &judged["by_place"]["skipped_percent"]] {
        assert!((found.as_f64().unwrap() - skipped).abs() < 1e-3, "{judged}");
    }
    assert_ne!(judged["perplexity"], judged["full_perplexity"]);
    assert_ne!(judged["perplexity"], judged["by_place"]["perplexity"]);
    folder.line(&format!("{judge} --attention-gate 1")).ends(2, &["a number between 0 and 1"]);
    folder
        .line("generate text-transformer --prompt a --attention-gate 0.5 --threads 1")
        .ends(2, &["expected a folder with attention_gate.safetensors", "--gate 64 -o DIR"]);
    train(&folder, "llama", "--data words.txt --gate 16 -o x").ends(2, &["smaller tiles"]);
    train(&folder, "bert_classifier", "--data words.txt --gate 4 -o x")
        .ends(2, &["expected a decoder of text", "a classifier"]);
}

/// A gate has learnt the attention of some weights, and is of no use for others.
#[test]
fn a_gate_is_for_the_weights_that_it_was_trained_for() {
    let folder = Folder::new();
    train(&folder, "llama", "--data words.txt --gate 4 --steps 3 -o gated").ends(0, &[]);
    let lost = "`attention_gate.safetensors` in `gated`, is not carried over: it was trained for";
    let machine = "--data words.txt --device cpu --threads 1";
    let quantize = "quantize gated --mode int8-weights --batches 1 --trials 5 -o coded";
    folder
        .line(&format!("{quantize} {machine}"))
        .ends(0, &[lost, "rounding changes them", "refuses codes"]);
    // No two windows are equal: copies judge nothing.
    let words = |i: u32| format!("the {i} hands and the {} tins in a band; ", i * 7919 % 1009);
    fs::write(folder.path("other.txt"), (0..900).map(words).collect::<String>()).unwrap();
    folder
        .line(
            "optimize gated --target size --effort quick --minutes 0 --batches 2 --data other.txt \
             --device cpu --threads 1 -o best",
        )
        .ends_in(&[0, 1, 4, 5], &[lost]);
    folder
        .line(&format!("train gated --steps 3 --tokens 16 -o tuned {machine}"))
        .ends(0, &[lost, "overdrive train tuned --data TEXT --gate 64"]);
    for name in ["coded", "best/model", "tuned"] {
        let gate = folder.path(name).join("attention_gate.safetensors");
        assert!(!gate.exists(), "{name}");
    }
    // It is refused, whoever brings it there.
    fs::copy(
        folder.path("gated/attention_gate.safetensors"),
        folder.path("tuned/attention_gate.safetensors"),
    )
    .unwrap();
    let judge = "--judge words.txt --max-tokens 128 --device cpu --threads 1 --attention-gate 0.5";
    folder.line(&format!("generate gated {judge}")).ends(0, &[]);
    for command in [format!("generate tuned {judge}"), "profile tuned --attention-gate 0.5".into()]
    {
        folder.line(&command).ends(
            2,
            &["`tuned/attention_gate.safetensors`: expected a gate that", "--gate 64 -o DIR"],
        );
    }
}

#[test]
fn adapters_are_merged_and_kept_for_peft() {
    let folder = Folder::new();
    let arguments = "--data words.txt --steps 12 --lora 4,16 --adapter -o tuned";
    train(&folder, "llama", arguments).ends(0, &["adapter: tuned/adapter", "before:"]);
    let config = json(&folder.path("tuned/adapter/adapter_config.json"));
    assert_eq!((&config["r"], &config["lora_alpha"]), (&4.into(), &16.0.into()));
    assert_eq!(config["peft_type"], "LORA");
    assert_eq!(config["target_modules"].as_array().unwrap().len(), 7);
    let adapters = states(&folder, "tuned/adapter/adapter_model.safetensors");
    assert_eq!(adapters.len(), 28);
    let name = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight";
    assert_eq!(adapters[name].ty().to_string(), "f32[16, 4]");
    assert!(adapters[name].to_f64().iter().any(|x| *x != 0.0), "it has learnt");
    let (before, after) = (states_of_llama(), states(&folder, "tuned/model.safetensors"));
    let changed: Vec<&String> =
        after.iter().filter(|(name, w)| before[*name] != **w).map(|(n, _)| n).collect();
    assert!(
        changed.len() >= 13 && changed.iter().all(|name| name.contains("_proj")),
        "{changed:?}"
    );
    // Without --adapter the folder holds the merged model alone, which is the same.
    train(&folder, "llama", "--data words.txt --steps 12 --lora 4,16 -o merged")
        .ends(0, &["model: merged"]);
    assert!(!folder.path("merged/adapter").exists());
    assert_eq!(states(&folder, "merged/model.safetensors"), after);
}

fn states_of_llama() -> Tensors {
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    shards.iter().flat_map(|shard| formats::read(&fixture("llama").join(shard)).unwrap()).collect()
}

#[test]
fn a_model_that_cannot_be_fine_tuned_says_why() {
    let folder = Folder::new();
    train(&folder, "bert", "--data words.txt -o x").ends(2, &["expected a decoder", "an encoder"]);
    train(&folder, "llama", "--data digits -o x")
        .ends(2, &["expected `text` or a file", "labelled samples"]);
    train(&folder, "llama", "--data words.txt --lora 0 -o x").ends(2, &["RANK"]);
    train(&folder, "llama", "--data words.txt --lora 4,-1 -o x").ends(2, &["RANK"]);
    train(&folder, "llama", "--data words.txt --adapter -o x").ends(2, &["--lora"]);
    train(&folder, "llama", "--data words.txt --lora 99 -o x").ends(2, &["a rank from 1 to 8"]);
    train(&folder, "pytorch", "--data words.txt -o x").ends(2, &["expected a decoder"]);
    let long = "--data words.txt -o x --steps 1 --device cpu --tokens 4096";
    let model = fixture("llama").display().to_string();
    let words = ["train", &model].into_iter().chain(long.split_whitespace());
    folder.overdrive(&words.collect::<Vec<_>>()).ends(2, &["`tokens` of at most 64", "4096"]);
    folder
        .line("train digits-mlp --data digits --tokens 8 -o x")
        .ends(2, &["--tokens", "Hugging Face"]);
    let quantized = "quantize MODEL --mode int8-dynamic --data words.txt -o small --trials 5 \
                     --batches 2 \
                     --device cpu --threads 1";
    folder.line(&quantized.replace("MODEL", &model)).ends(0, &[]);
    folder.line("train small --data words.txt -o x").ends(2, &["is quantized", "int8-dynamic"]);
    assert_eq!(folder.files(), ["small", "words.txt"]);
}
