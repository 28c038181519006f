//! `train --from-scratch`: folders without weights become folders with some.

use crate::invocation::{Folder, Outcome};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A folder `bare` with these files of a fixture, and a text.
fn bare(name: &str, files: &[&str]) -> Folder {
    let folder = Folder::new();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../overdrive-studies/tests/pretrained")
        .join(name);
    fs::create_dir(folder.path("bare")).unwrap();
    for file in files {
        fs::copy(fixture.join(file), folder.path("bare").join(file)).unwrap();
    }
    let text = "the hand and the tin in a thin band; another hand than the other. ".repeat(300);
    fs::write(folder.path("words.txt"), text).unwrap();
    folder
}

#[track_caller]
fn train(folder: &Folder, rest: &str) -> Outcome {
    folder.line(&format!("train {rest} --device cpu --threads 1"))
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn the_step_of_a_config_is_explained() {
    let folder = bare("llama", &["config.json"]);
    let machine = "--device cpu --threads 1";
    let explained = folder.line(&format!("explain bare --training --batch 2 {machine}"));
    explained.ends(0, &["optimizer", "peak", "`bare` has no weights", "--from-scratch"]);
    // A forward pass has weights, and says how to make some.
    folder
        .line(&format!("explain bare {machine}"))
        .ends(2, &["model.safetensors", "overdrive train bare --from-scratch"]);
    fs::write(folder.path("bare/config.json"), "{").unwrap();
    folder.line(&format!("explain bare --training {machine}")).ends(2, &["config.json"]);
}

#[test]
fn a_config_becomes_a_model_that_commands_take() {
    let folder = bare("llama", &["config.json", "tokenizer.json", "generation_config.json"]);
    let options = "bare --data words.txt --steps 12 --tokens 16 --lr 0.01";
    train(&folder, &format!("{options} -o none"))
        .ends(2, &["model.safetensors", "overdrive train bare --from-scratch"]);
    assert!(!folder.path("none").exists());
    let made = train(&folder, &format!("{options} --from-scratch -o new"));
    let said = made.ends(0, &["after 12 steps", "model: new"]);
    assert!(!said.stdout.contains("before:"), "{}", said.stdout);
    assert!(!said.stderr.contains("ignored"), "{}", said.stderr);
    let training = json(&folder.path("new/training.json"));
    let loss = training["test_loss_nats"].as_f64().unwrap();
    assert!(loss < 0.9 * 270f64.ln(), "{loss}");
    let betas = &training["training"]["optimizer"]["adamw"]["betas"];
    assert_eq!(betas, &serde_json::json!([0.9, 0.95]), "{training}");
    assert_eq!(json(&folder.path("new/config.json"))["dtype"], "float32");
    train(&folder, &format!("{options} --from-scratch -o again")).ends(0, &[]);
    let weights = |name: &str| fs::read(folder.path(name).join("model.safetensors")).unwrap();
    assert!(weights("new") == weights("again"));
    let machine = "--device cpu --threads 1";
    folder
        .line(&format!("generate new --prompt hand --max-tokens 3 {machine}"))
        .ends(0, &["3 made"]);
    folder
        .line(&format!(
            "quantize new --mode int8-weights --data words.txt --trials 5 -o q {machine}"
        ))
        .ends(0, &["is a model"]);
    train(&folder, "new --data words.txt --steps 2 --tokens 16 -o more").ends(0, &["before:"]);
    // The weights of a folder are passed over, and that is said.
    train(&folder, "new --from-scratch --data words.txt --steps 2 --tokens 16 -o anew")
        .ends(0, &["the weights in `new` are ignored"]);
    train(&folder, &format!("{options} --from-scratch --lora 2 -o none"))
        .ends(2, &["--lora: expected a model that has learnt", "`bare`"]);
    train(&folder, "text-transformer --from-scratch --data words.txt -o none")
        .ends(2, &["--from-scratch: expected a model in Hugging Face's format"]);
    train(&folder, "llama-135m --lora 2 --data words.txt -o none")
        .ends(2, &["--lora: expected a model that has learnt", "`llama-135m`"]);
}

#[test]
fn without_a_tokenizer_a_token_is_a_byte() {
    let folder = bare("gpt2", &["config.json"]);
    let options = "bare --from-scratch --data words.txt --steps 12 --tokens 16 --lr 0.01";
    train(&folder, &format!("{options} -o new")).ends(0, &["a token is a byte", "model: new"]);
    folder
        .line("generate new --prompt hand --max-tokens 3 --device cpu --threads 1")
        .ends(0, &["4 tokens read, 3 made"]);
}

#[test]
fn a_classifier_learns_from_scratch() {
    let folder = bare("bert_classifier", &["config.json", "tokenizer.json"]);
    let words = ["the cat sat", "on the mat", "cats on mats"];
    let class = |i: usize| ["ant", "bee", "cat"][i % 3];
    let rows = (0..120).map(|i| format!("\"{}\",{}\n", words[i % 3], class(i)));
    fs::write(folder.path("named.csv"), format!("text,label\n{}", rows.collect::<String>()))
        .unwrap();
    train(&folder, "bare --from-scratch --data named.csv --steps 60 --lr 0.01 -o new")
        .ends(0, &["100.00 % of 24 test samples", "model: new"]);
}
