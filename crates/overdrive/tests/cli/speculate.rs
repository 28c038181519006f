//! `generate --speculate`: the text stays the same, and the last line says whether it paid off.

use crate::invocation::{Folder, Outcome};
use serde_json::Value;
use std::path::Path;

/// Runs `generate` with a tiny random model, beside the tests that compare it with the framework
/// that it came from.
#[track_caller]
fn run(folder: &Folder, rest: &str) -> Outcome {
    let models =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-studies/tests/pretrained");
    let rest = rest.replace("MODELS", &models.display().to_string());
    let words = ["generate"].into_iter().chain(rest.split_whitespace()).chain(["--threads", "1"]);
    folder.overdrive(&words.collect::<Vec<_>>())
}

#[track_caller]
fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.ends(0, &[]).stdout).unwrap()
}

#[test]
fn a_text_is_the_same_with_and_without_proposals() {
    let folder = Folder::new();
    std::fs::write(folder.path("prompts.txt"), "hand in hand\nno\nhand\n").unwrap();
    // In f32: some processors multiply bf16, whose rounding decides near ties.
    let made =
        |rest: &str| run(&folder, &format!("MODELS/qwen3 --dtype f32 --max-tokens 40 {rest}"));
    for drawn in ["", "--temperature 1 --top-p 0.8 --seed 5"] {
        let plain = json(&made(&format!("--prompt hand --json {drawn}")));
        assert!(plain["speculation"].is_null(), "{plain}");
        for ahead in ["--speculate 4", "--speculate 3 --draft MODELS/qwen3"] {
            let found = json(&made(&format!("--prompt hand --json {drawn} {ahead}")));
            assert_eq!(found["tokens"], plain["tokens"], "{ahead} {drawn}");
            assert_eq!(found["text"], plain["text"]);
        }
        let all = |rest: &str| {
            let made =
                json(&made(&format!("--prompts prompts.txt --batch 2 --json {drawn} {rest}")));
            let of = |text: &Value| text["tokens"].clone();
            let texts: Vec<Value> = made["texts"].as_array().unwrap().iter().map(of).collect();
            (texts, made["speculation"]["proposed"].as_u64())
        };
        let ahead = "--speculate 5 --draft MODELS/gpt2 --page-size 4";
        let (found, proposed) = all(ahead);
        assert_eq!(found, all("").0, "{drawn}");
        assert!(proposed.unwrap() > 0);
        let (found, proposed) = all(&format!("{ahead} --cache int8"));
        assert!(found.len() == 3 && proposed.unwrap() > 0);
    }
    let own = json(&made("--prompt hand --speculate 3 --draft MODELS/qwen3 --json"));
    let ahead = &own["speculation"];
    assert_eq!(ahead["accepted"], ahead["proposed"], "a model is right about itself: {own}");
    assert!(ahead["tokens_per_run"].as_f64().unwrap() > 3.0, "{own}");
    made("--prompt hand --speculate 3 --draft MODELS/qwen3")
        .ends(0, &["--speculate 3: ", "tokens per run of the model", "compare"]);
}

#[test]
fn what_cannot_be_checked_several_at_a_time_is_refused() {
    let folder = Folder::new();
    let refused = |rest: &str, said: &[&str]| {
        run(&folder, rest).ends(2, said);
    };
    refused("text-transformer --prompt a --speculate 4", &["--speculate 4", "has no cache"]);
    refused("MODELS/qwen3 --prompt a --draft MODELS/qwen3", &["--speculate"]);
    refused("MODELS/qwen3 --prompt a --speculate 0", &["1..=16"]);
    refused("MODELS/qwen3 --judge t.txt --speculate 2", &["cannot be used with"]);
    let draft = "MODELS/qwen3 --prompt a --speculate 2 --draft";
    refused(&format!("{draft} text-transformer"), &["--draft text-transformer", "cache of keys"]);
    refused(&format!("{draft} MODELS/bert"), &["--draft", "expected the tokenizer of"]);
    refused(&format!("{draft} nowhere"), &["nowhere"]);
}
