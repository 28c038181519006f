//! Folders in Hugging Face's format, and `generate`: the text of a seed is always the same, and
//! what cannot be is refused.

use crate::invocation::{Folder, Outcome};
use overdrive::formats::npz;
use overdrive::ir::{DType, Tensor};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// A tiny random model, beside the tests that compare it with the framework that it came from.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-studies/tests/pretrained").join(name)
}

/// Runs a command line whose first word after the command is the folder of a fixture.
#[track_caller]
fn run(command: &str, model: &str, rest: &str) -> Outcome {
    let folder = fixture(model).display().to_string();
    let words =
        [command, &folder].into_iter().chain(rest.split_whitespace()).chain(["--threads", "1"]);
    Folder::new().overdrive(&words.collect::<Vec<_>>())
}

#[track_caller]
fn json(outcome: &Outcome) -> Value {
    serde_json::from_str(&outcome.ends(0, &[]).stdout).unwrap()
}

#[test]
fn text_is_the_same_for_a_seed_and_its_figures_are_told() {
    let made = |rest: &str| {
        json(&run("generate", "qwen3", &format!("--prompt hand --max-tokens 9 --json {rest}")))
    };
    let greedy = made("");
    assert_eq!(greedy["tokens"].as_array().unwrap().len(), 9, "{greedy}");
    assert_eq!(greedy["prompt_tokens"], 2);
    for figure in ["prepare_s", "first_token_s", "tokens_per_second"] {
        assert!(greedy[figure].as_f64().unwrap() > 0.0, "{greedy}");
    }
    assert_eq!(
        made("--temperature 2 --top-k 1")["tokens"],
        greedy["tokens"],
        "the likeliest of one is the likeliest"
    );
    let drawn = made("--temperature 2 --top-p 0.99 --seed 5");
    assert_eq!(made("--temperature 2 --top-p 0.99 --seed 5")["text"], drawn["text"]);
    assert_ne!(made("--temperature 2 --top-p 0.99 --seed 6")["text"], drawn["text"]);
    let shown = run("generate", "qwen3", "--prompt hand --max-tokens 9");
    shown.ends(0, &["2 tokens read, 9 made", "tokens/s (n = 8)"]);
    assert_eq!(
        shown.stdout.trim_end_matches('\n'),
        greedy["text"].as_str().unwrap().trim_end_matches('\n')
    );
}

/// Such settings of a file are for batches of an encoder.
#[test]
fn prompts_are_neither_cut_nor_filled() {
    let place = Folder::new();
    let folder = place.path("model");
    std::fs::create_dir(&folder).unwrap();
    for file in std::fs::read_dir(fixture("qwen3")).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), folder.join(file.file_name())).unwrap();
    }
    let path = folder.join("tokenizer.json");
    let mut file: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let made = || {
        let line = "generate model --prompt hand --max-tokens 5 --json --threads 1";
        json(&place.line(line))["tokens"].clone()
    };
    let plain = made();
    file["truncation"] = serde_json::json!({
        "direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0
    });
    std::fs::write(&path, file.to_string()).unwrap();
    assert_eq!(made(), plain);
    file["truncation"] = Value::Null;
    file["padding"] = serde_json::json!({
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 0,
        "pad_type_id": 0, "pad_token": "a"
    });
    std::fs::write(&path, file.to_string()).unwrap();
    assert_eq!(made(), plain);
}

/// The fixture `llama` is stored in bf16, for whose products `--isa portable` has no instructions.
#[test]
fn a_folder_of_16_bits_says_in_which_format_it_runs() {
    let made =
        |rest: &str| run("generate", "llama", &format!("--prompt hand --max-tokens 9 {rest}"));
    let (wide, narrow) = (json(&made("--json --dtype f32")), json(&made("--json --dtype bf16")));
    assert_eq!(wide["dtype"], "f32");
    assert_eq!(narrow["dtype"], "bf16");
    assert_eq!(wide["tokens"].as_array().unwrap().len(), 9);
    assert_eq!(narrow["tokens"].as_array().unwrap().len(), 9);
    made("--dtype bf16").ends(0, &["bf16 weights: 2 tokens read, 9 made"]);
    let portable = made("--isa portable");
    portable.ends(0, &["bf16 weights are widened to f32", "`--dtype bf16` keeps them"]);
    portable.ends(0, &["f32 weights: 2 tokens read"]);
    Folder::new()
        .line("generate text-transformer --prompt a --max-tokens 1 --threads 1 --dtype bf16")
        .ends(2, &["`--dtype bf16`: expected a folder"]);
}

#[test]
fn a_built_in_model_of_bytes_generates_without_a_cache() {
    let folder = Folder::new();
    let outcome =
        folder.line("generate text-transformer --prompt abc --max-tokens 3 --threads 1 --json");
    assert_eq!(json(&outcome)["prompt_tokens"], 3);
    outcome.ends(0, &["keeps no keys and values"]);
    folder.line("generate mlp --prompt abc").ends(2, &["`mlp` reads no text"]);
    folder.line("generate gpt-125m --prompt abc").ends(2, &["reads no text", "50304"]);
    folder.line("generate text-transformer --prompt= --max-tokens 3").ends(2, &["no token"]);
    folder.line("generate nowhere/at-all --prompt a").ends(2, &["no model at `nowhere/at-all`"]);
    folder.line("generate .nowhere --prompt a").ends(2, &["no model at `.nowhere`"]);
    folder.line("generate nowhere --prompt a").ends(2, &["`nowhere` is no file or folder"]);
    folder.line("generate text-transformer --prompt a --top-p 0").ends(2, &["above 0"]);
}

/// The fixtures have a context of 64 tokens, less than a tile of keys: a prompt skips nothing.
#[test]
fn a_threshold_of_attention_needs_a_text_of_several_tiles() {
    let made = |rest: &str| {
        json(&run("generate", "qwen3", &format!("--prompt hand --max-tokens 9 --json {rest}")))
    };
    assert_eq!(made("--attention-threshold 0.01")["tokens"], made("")["tokens"]);
    let folder = Folder::new();
    std::fs::write(folder.path("text.txt"), "hand ".repeat(80)).unwrap();
    let model = fixture("qwen3").display().to_string();
    folder
        .line(&format!("generate {model} --judge text.txt --attention-threshold 0.01 --threads 1"))
        .ends(2, &["--attention-threshold 0.01", "129 keys"]);
    run("generate", "qwen3", "--prompt hand --attention-threshold 1")
        .ends(2, &["expected a number between 0 and 1"]);
}

/// A prompt of the fixtures is too short for codes, and so is each window of a text.
#[test]
fn attention_in_fp8_needs_a_text_of_256_keys() {
    let made = |rest: &str| {
        json(&run("generate", "qwen3", &format!("--prompt hand --max-tokens 9 --json {rest}")))
    };
    assert_eq!(made("--attention-float8")["tokens"], made("")["tokens"]);
    let folder = Folder::new();
    std::fs::write(folder.path("text.txt"), "hand ".repeat(80)).unwrap();
    let model = fixture("qwen3").display().to_string();
    folder
        .line(&format!("generate {model} --judge text.txt --attention-float8 --threads 1"))
        .ends(2, &["--attention-float8", "128 queries and 256 keys", "leave the option out"]);
    run("generate", "qwen3", "--prompt hand --attention-float8 --attention-threshold 0.1")
        .ends(2, &["cannot be used with"]);
}

#[test]
fn what_a_model_cannot_generate_is_refused() {
    run("generate", "bert", "--prompt cat").ends(2, &["expected a decoder", "found an encoder"]);
    run("generate", "gpt2", "--prompt cat --max-tokens 100").ends(2, &["expected at most 64"]);
}

#[test]
fn eval_and_bench_take_folders_and_text() {
    let folder = Folder::new();
    for (name, ports) in [("gpt2", ["x", "x"]), ("sentence", ["x", "mask"])] {
        let all = npz::read(&fixture(name).join("expected.npz")).unwrap();
        folder.tensors("x.npz", &ports.map(|port| (port, all[port].clone())));
        folder.tensors("y.npz", &[("y", all["y"].clone())]);
        let model = fixture(name).display().to_string();
        let eval = [
            "eval",
            &model,
            "--inputs",
            "x.npz",
            "--expect",
            "y.npz",
            "--atol",
            "1e-4",
            "--threads",
            "1",
        ];
        folder.overdrive(&eval).ends(0, &["agrees"]);
    }
    folder.tensors("x.npz", &[("x", Tensor::from_ints(DType::I32, [1, 65], &[1; 65]))]);
    let model = fixture("llama").display().to_string();
    let eval = ["eval", &model, "--inputs", "x.npz", "--threads", "1"];
    folder.overdrive(&eval).ends(2, &["`tokens` of at most 64", "found 65"]);
    let bench = run("bench", "sentence", "--text cats --trials 5 --modes compile --batch 2 --json");
    let workload = &json(&bench)["records"][0]["case"]["workload"];
    assert_eq!(workload["dimensions"]["tokens"], 4, "[CLS] cat ##s [SEP]: {workload}");
    folder.line("bench mlp --text cats --trials 5").ends(2, &["`mlp` reads no text"]);
}

#[test]
fn lines_of_a_file_are_continued_together_as_each_alone() {
    let folder = Folder::new();
    std::fs::write(folder.path("prompts.txt"), "hand\nhand in hand\n\nno\n").unwrap();
    let model = fixture("qwen3").display().to_string();
    let made = |rest: &str| {
        let words = ["generate", &model, "--max-tokens", "7", "--threads", "1"];
        folder.overdrive(&words.into_iter().chain(rest.split_whitespace()).collect::<Vec<_>>())
    };
    let together = json(&made("--prompts prompts.txt --batch 2 --json"));
    assert_eq!(together["batch"], 2);
    assert!(together["tokens_per_second"].as_f64().unwrap() > 0.0, "{together}");
    let texts = together["texts"].as_array().unwrap();
    let lines: Vec<&Value> = texts.iter().map(|text| &text["line"]).collect();
    assert_eq!(lines, [0, 1, 3], "an empty line is none, and is counted");
    // As documented: line i is drawn with the seed + i.
    let drawn = json(&made("--prompts prompts.txt --temperature 2 --seed 5 --json"));
    let alone = json(&made("--prompt no --temperature 2 --seed 8 --json"));
    assert_eq!(drawn["texts"][2]["tokens"], alone["tokens"]);
    for (line, text) in ["hand", "no"].into_iter().zip([&texts[0], &texts[2]]) {
        let alone = json(&made(&format!("--prompt {line} --json")));
        assert_eq!(text["tokens"], alone["tokens"], "{line}");
        assert_eq!(text["text"], alone["text"], "{line}");
    }
    let paged = json(&made("--prompts prompts.txt --batch 2 --page-size 4 --pages 4 --json"));
    let tokens = |all: &Value| -> Vec<Value> {
        all["texts"].as_array().unwrap().iter().map(|text| text["tokens"].clone()).collect()
    };
    assert_eq!(tokens(&paged), tokens(&together));
    made("--prompts prompts.txt --page-size 4 --pages 1")
        .ends(2, &["expected 4 pages of 4 tokens"]);
    made("--prompts prompts.txt --pages 9").ends(2, &["--page-size"]);
    let shown = made("--prompts prompts.txt");
    shown.ends(0, &["3 texts, 3 at a time, 21 tokens made", "tokens/s in all"]);
    shown.ends(0, &["left out of `prompts.txt`: 1 blank line"]);
    assert!(shown.stdout.contains("[1] hand in hand\n"), "{}", shown.stdout);
    assert!(shown.stdout.contains("[3] no\n"), "{}", shown.stdout);
    std::fs::write(folder.path("long.txt"), format!("no\n\n{}\nno\n", "hand ".repeat(90))).unwrap();
    made("--prompts long.txt")
        .ends(2, &["`long.txt`, line 2 (counted from 0)", "expected at most 64"]);
    made("--prompts none.txt").ends(2, &["none.txt"]);
    std::fs::write(folder.path("empty.txt"), "\n").unwrap();
    made("--prompts empty.txt").ends(2, &["expected a text on each line"]);
    made("--prompts prompts.txt --prompt a").ends(2, &["cannot be used with"]);
    made("").ends(2, &["--prompt", "--prompts", "--judge"]);
    made("--prompt a --top-k 3").ends(2, &["--top-k 3", "--temperature above 0"]);
    made("--prompt a --top-p 0.5 --temperature 0").ends(2, &["--top-p 0.5", "--temperature 0.8"]);
    made("--prompt a --mode graph --device cpu").ends(2, &["--mode graph", "--mode compile"]);
    folder
        .line("generate text-transformer --prompts prompts.txt --threads 1")
        .ends(2, &["expected a model that keeps keys and values"]);
}

#[test]
fn a_cache_of_codes_is_smaller_and_what_has_none_is_refused() {
    let made = |rest: &str| {
        run("generate", "qwen3", &format!("--prompt hand --max-tokens 9 --dtype f32 {rest}"))
    };
    let float = json(&made("--json"));
    assert_eq!(float["cache"], Value::Null, "{float}");
    let wide = float["cache_bytes"].as_u64().unwrap();
    for codes in ["int8", "fp8"] {
        let coded = json(&made(&format!("--json --cache {codes}")));
        assert_eq!(coded["cache"], codes, "{coded}");
        assert_eq!(coded["tokens"].as_array().unwrap().len(), 9, "{coded}");
        let bytes = coded["cache_bytes"].as_u64().unwrap();
        assert!(bytes > wide / 4 && bytes < wide / 2, "{bytes} of {wide}");
        made(&format!("--cache {codes}")).ends(0, &[&format!("keys and values as {codes} take")]);
    }
    made("").ends(0, &["; keys and values take"]);
    made("--cache int4").ends(2, &["int4", "int8, fp8"]);
    Folder::new()
        .line("generate text-transformer --prompt a --threads 1 --cache int8")
        .ends(2, &["--cache int8: expected a model that keeps keys and values", "no cache"]);
}

#[test]
fn a_text_judges_a_cache_of_codes() {
    let folder = Folder::new();
    std::fs::write(folder.path("text.txt"), "hand in hand with the band ".repeat(40)).unwrap();
    std::fs::write(folder.path("one.txt"), "a").unwrap();
    let model = fixture("qwen3").display().to_string();
    let judged = |rest: &str| {
        let words = ["generate", &model, "--threads", "1", "--dtype", "f32", "--judge"];
        folder.overdrive(&words.into_iter().chain(rest.split_whitespace()).collect::<Vec<_>>())
    };
    let figure = |of: &Value, name: &str| of[name].as_f64().unwrap_or_else(|| panic!("{of}"));
    let float = json(&judged("text.txt --max-tokens 200 --json"));
    for codes in ["int8", "fp8"] {
        let found = json(&judged(&format!("text.txt --max-tokens 200 --json --cache {codes}")));
        assert_eq!(figure(&found, "float_perplexity"), figure(&float, "perplexity"));
        let loss = figure(&found, "perplexity") / figure(&float, "perplexity") - 1.0;
        assert!((100.0 * loss - figure(&found, "loss_percent")).abs() < 1e-9, "{found}");
        assert!(loss != 0.0 && loss.abs() < 0.05, "{found}");
        assert!(figure(&found, "cache_bytes") < figure(&found, "float_cache_bytes") / 2.0);
    }
    let told = judged("text.txt --cache int8");
    let line = &told.ends(0, &[]).stdout;
    assert!(
        line.contains("with keys and values as int8") && line.contains("with numbers"),
        "{line}"
    );
    // A window has 64 tokens at most, the context of the fixture.
    let part = judged("text.txt --max-tokens 100");
    part.ends(0, &["the last 36 of 100 tokens are left out", "63 tokens in 1 window of 64 "]);
    judged("one.txt").ends(2, &["expected a text of two tokens at least"]);
    judged("text.txt --prompt a").ends(2, &["cannot be used with"]);
    folder
        .line("generate text-transformer --judge text.txt --threads 1")
        .ends(2, &["`--judge`: expected a model that keeps keys and values"]);
}
