//! Classifiers of text in Hugging Face's format: labelled texts judge what `quantize` makes of one,
//! and `train` teaches it.

use crate::invocation::{Folder, Outcome};
use overdrive::formats::{self, Tensors};
use overdrive::ir::DType;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

const CPU: &str = "--device cpu --threads 1";
const CLASSIFIERS: [&str; 3] = ["bert_classifier", "distilbert_regression", "roberta_classifier"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-studies/tests/pretrained").join(name)
}

/// Labelled texts whose words tell the classes, or the quantity, apart.
fn labelled(folder: &Folder) {
    let words = ["the cat sat", "on the mat", "cats on mats"];
    let text = |i: usize| format!("{} {}", words[i % 3], words[i / 3 % 3]);
    let rows = |label: &dyn Fn(usize) -> String, count: usize| -> String {
        (0..count).map(|i| format!("\"{}\",{}\n", text(i), label(i))).collect()
    };
    let class = |i: usize| ["ant", "bee", "cat"][i % 3].to_owned();
    fs::write(folder.path("named.csv"), format!("text,label\n{}", rows(&class, 120))).unwrap();
    let number = |i: usize| format!("{:.1}", (i % 3) as f64 - 1.2);
    fs::write(folder.path("scores.csv"), format!("sentence,label\n{}", rows(&number, 120)))
        .unwrap();
    let line = |i: usize| {
        let object = serde_json::json!({ "label": i % 3, "sentence": text(i), "from": "here" });
        format!("{object}\n")
    };
    fs::write(folder.path("numbered.jsonl"), (0..120).map(line).collect::<String>()).unwrap();
}

/// The labelled texts that a fixture takes.
fn data(name: &str) -> &'static str {
    if name.ends_with("regression") { "scores.csv" } else { "named.csv" }
}

#[track_caller]
fn with(folder: &Folder, command: &str, model: &Path, arguments: &str) -> Outcome {
    let model = model.display().to_string();
    let words = [command, &model].into_iter().chain(arguments.split_whitespace());
    folder.overdrive(&words.chain(CPU.split_whitespace()).collect::<Vec<_>>())
}

fn json(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

fn states(folder: &Folder, name: &str) -> Tensors {
    formats::read(&folder.path(name).join("model.safetensors")).unwrap()
}

#[test]
fn a_quantized_classifier_keeps_its_head_and_labels_judge_it() {
    for (name, mode, measure) in [
        ("bert_classifier", "int8-dynamic", "top1_percent"),
        ("roberta_classifier", "int4-rtn", "top1_percent"),
        ("distilbert_regression", "int8-weights", "mean_squared_error"),
    ] {
        let folder = Folder::new();
        labelled(&folder);
        let rest = format!("--mode {mode} --data {} --trials 5 -o small", data(name));
        let made = with(&folder, "quantize", &fixture(name), &rest);
        made.ends(0, &[measure, "over 24 test samples", "120 texts, each labelled", "is a model"]);
        let (config, before) =
            (json(&folder.path("small/config.json")), json(&fixture(name).join("config.json")));
        for (field, value) in before.as_object().unwrap() {
            assert_eq!(&config[field], value, "{name}, {field}");
        }
        let layers = config["overdrive"]["layers"].as_object().unwrap();
        assert_eq!(layers.len(), 14, "{name}: 12 of the blocks, 2 of the head: {layers:?}");
        let ignored = config["quantization_config"]["ignore"].to_string();
        assert!(!ignored.contains("classifier"), "{ignored}");
        assert!(name != "bert_classifier" || !ignored.contains("pooler"), "{ignored}");
        let file = states(&folder, "small");
        let last = if name.starts_with("roberta") { "classifier.out_proj" } else { "classifier" };
        assert!(file.contains_key(&format!("{last}.weight_scale")), "{:?}", file.keys());
        assert_eq!(file[&format!("{last}.bias")].ty().dtype, DType::F16, "{name}");
        // One output, too, has a scale for each row: compressed-tensors tells it from one of all.
        let scale = file[&format!("{last}.weight_scale")].ty().sizes();
        assert_eq!(scale.len(), 2, "{name}: {scale:?}");
        // The same command reads it, at the lengths of the fixture.
        let given = fixture(name).join("expected.npz").display().to_string();
        folder
            .line(&format!("eval small --inputs {given} -o y.npz {CPU}"))
            .ends(0, &[if name.ends_with("regression") { "f32[3, 1]" } else { "f32[3, 3]" }]);
        with(&folder, "quantize", &folder.path("small"), "--mode fp8 -o again")
            .ends(2, &["is quantized already", mode]);
    }
}

#[test]
fn a_classifier_without_labels_is_judged_by_its_outputs() {
    let folder = Folder::new();
    let text = "the cat sat on the mat. ".repeat(300);
    fs::write(folder.path("words.txt"), text).unwrap();
    let rest = "--mode int8-dynamic --data words.txt --trials 5 --batches 2 -o";
    with(&folder, "quantize", &fixture("bert_classifier"), &format!("{rest} small")).ends(
        0,
        &["cosine", "windows of held-out text", "the class is that of the float model in"],
    );
    with(&folder, "quantize", &fixture("distilbert_regression"), &format!("{rest} other"))
        .ends(0, &["of one output the cosine says no more than its sign"]);
}

#[test]
fn a_classifier_learns_what_words_tell_apart() {
    for (name, data, from, to) in [
        ("bert_classifier", "named.csv", "test_loss_nats_before", "test_loss_nats"),
        ("roberta_classifier", "numbered.jsonl", "test_loss_nats_before", "test_loss_nats"),
        (
            "distilbert_regression",
            "scores.csv",
            "test_mean_squared_error_before",
            "test_mean_squared_error",
        ),
    ] {
        let folder = Folder::new();
        labelled(&folder);
        let rest = format!("--data {data} --steps 80 --lr 0.005 -o tuned");
        let made = with(&folder, "train", &fixture(name), &rest);
        made.ends(0, &["after 80 steps", "24 test samples", "before:", "120 texts, each labelled"]);
        let training = json(&folder.path("tuned/training.json"));
        let (before, after) = (training[from].as_f64().unwrap(), training[to].as_f64().unwrap());
        assert!(after < 0.2 * before, "{name}: {before}, then {after}");
        match name.ends_with("regression") {
            true => assert!(training["test_r_squared"].as_f64().unwrap() > 0.9, "{training}"),
            false => assert_eq!(training["test_accuracy"], 1.0, "{training}"),
        }
        assert_eq!(
            json(&folder.path("tuned/config.json")),
            json(&fixture(name).join("config.json"))
        );
        // A model again: it goes on learning, and it is quantized.
        let rest = format!("--data {data} --steps 1 -o more");
        with(&folder, "train", &folder.path("tuned"), &rest).ends(0, &["model: more"]);
        let rest = format!("--mode int8-dynamic --data {data} --trials 5 -o small");
        with(&folder, "quantize", &folder.path("tuned"), &rest).ends(0, &["is a model"]);
    }
}

#[test]
fn adapters_of_a_classifier_learn_beside_its_head() {
    for (name, modules) in [
        ("bert_classifier", &["bert.pooler", "classifier"][..]),
        ("roberta_classifier", &["classifier"]),
        ("distilbert_regression", &["classifier", "pre_classifier"]),
    ] {
        let folder = Folder::new();
        labelled(&folder);
        let rest =
            format!("--data {} --steps 60 --lr 0.02 --lora 4 --adapter -o tuned", data(name));
        with(&folder, "train", &fixture(name), &rest).ends(0, &["adapter: tuned/adapter"]);
        let config = json(&folder.path("tuned/adapter/adapter_config.json"));
        assert_eq!(config["task_type"], "SEQ_CLS");
        assert_eq!(config["modules_to_save"], serde_json::json!(modules), "{name}");
        assert_eq!(config["target_modules"].as_array().unwrap().len(), 12, "{name}");
        let kept = formats::read(&folder.path("tuned/adapter/adapter_model.safetensors")).unwrap();
        assert_eq!(kept.len(), 24 + 4, "{name}: A and B of 12 layers, two layers of the head");
        let (before, after) = (
            formats::read(&fixture(name).join("model.safetensors")).unwrap(),
            states(&folder, "tuned"),
        );
        let changed = |state: &&String| before[*state] != after[*state];
        let of_embeddings =
            |state: &&String| state.contains("mbeddings") || state.to_lowercase().contains("norm.");
        assert_eq!(after.keys().filter(of_embeddings).filter(changed).count(), 0, "{name}");
        assert_eq!(
            after.keys().filter(|s| s.contains("classifier")).filter(changed).count(),
            after.keys().filter(|s| s.contains("classifier")).count(),
            "{name}: the head learns"
        );
        let training = json(&folder.path("tuned/training.json"));
        let loss = |field: &str| training[field].as_f64();
        let after = loss("test_loss_nats").or(loss("test_mean_squared_error")).unwrap();
        let before =
            loss("test_loss_nats_before").or(loss("test_mean_squared_error_before")).unwrap();
        assert!(after < 0.5 * before, "{name}: {before}, then {after}");
    }
}

#[test]
fn long_texts_are_cut_and_said_to_be() {
    let folder = Folder::new();
    let row = |i: usize| format!("\"{}\",{}\n", "the cat ".repeat(1 + i % 9), i % 3);
    let rows: String = (0..60).map(row).collect();
    fs::write(folder.path("long.csv"), format!("text,label\n{rows}")).unwrap();
    let rest = "--data long.csv --steps 2 --tokens 8 -o tuned";
    with(&folder, "train", &fixture("bert_classifier"), rest)
        .ends(0, &["60 texts", "in rows of 8 tokens", "of them are longer, and cut"]);
    let rest = "--data long.csv --steps 2 --tokens 99 -o other";
    with(&folder, "train", &fixture("bert_classifier"), rest).ends(2, &["`tokens` of at most 32"]);
}

#[test]
fn labelled_texts_that_do_not_fit_are_refused_with_their_line() {
    let folder = Folder::new();
    labelled(&folder);
    let write = |name: &str, text: &str| fs::write(folder.path(name), text).unwrap();
    write("unknown.csv", "text,label\nthe cat,ant\nthe mat,dog\n");
    write("range.csv", "text,label\nthe cat,2\nthe mat,3\n");
    write("columns.csv", "words,label\nthe cat,ant\n");
    write("unlabelled.csv", "text,kind\nthe cat,ant\n");
    write("empty.csv", "");
    write("names.csv", "text,label\n");
    write("gap.csv", "text,label\nthe cat,ant\n,bee\n");
    write("torn.csv", "text,label\nthe cat, sat,ant\n");
    write("few.csv", "text,label\nthe cat,ant\nthe mat,bee\n");
    write("keys.jsonl", "{\"text\": \"the cat\"}\n");
    write("broken.jsonl", "{\"text\": \"the cat\", \"label\": 1}\n\n{\"text\": \n");
    write("nothing.jsonl", "\n\n");
    write("list.jsonl", "{\"text\": \"the cat\", \"label\": [1]}\n");
    write("words.txt", "the cat sat on the mat ");
    for (file, words) in [
        ("unknown.csv", &["unknown.csv, line 3, label", "0 to 2, or ant, bee, cat", "`dog`"][..]),
        ("range.csv", &["range.csv, line 3, label", "0 to 2", "found `3`"]),
        (
            "columns.csv",
            &["columns.csv, line 1", "`text` or `sentence` and `label`", "words, label"],
        ),
        ("unlabelled.csv", &["unlabelled.csv, line 1", "found text, kind"]),
        ("empty.csv", &["empty.csv", "at least one labelled text"]),
        ("names.csv", &["names.csv", "at least one labelled text"]),
        ("gap.csv", &["gap.csv, line 3, `text`", "fill the gap"]),
        ("torn.csv", &["torn.csv, line 2", "2 fields", "found 3", "quotes"]),
        ("few.csv", &["samples for three parts", "2 in all"]),
        ("keys.jsonl", &["keys.jsonl, line 1", "`label`", "found text"]),
        ("broken.jsonl", &["broken.jsonl, line 3", "a JSON object"]),
        ("nothing.jsonl", &["nothing.jsonl", "at least one labelled text"]),
        ("list.jsonl", &["list.jsonl, line 1, `label`", "a value"]),
        ("nowhere.csv", &["nowhere.csv"]),
    ] {
        let model = fixture("bert_classifier");
        with(&folder, "train", &model, &format!("--data {file} -o x")).ends(2, words);
        let rest = format!("--mode int8-dynamic --data {file} -o x");
        with(&folder, "quantize", &model, &rest).ends(2, words);
    }
    let bert = fixture("bert_classifier");
    with(&folder, "train", &bert, "--data words.txt -o x")
        .ends(2, &["labelled texts", "words.txt"]);
    with(&folder, "train", &bert, "--data named.csv --label kind -o x")
        .ends(2, &["`text` or `sentence` and `kind`"]);
    with(&folder, "train", &bert, "--data named.csv --target quantity -o x")
        .ends(2, &["--target", "leave the option out"]);
    with(&folder, "train", &fixture("distilbert_regression"), "--data named.csv -o x")
        .ends(2, &["line 2, label", "a finite number", "`ant`"]);
    with(&folder, "quantize", &bert, "--mode fp8 --data named.csv --metric mse -o x")
        .ends(2, &["--metric mse", "classes"]);
    let regression = fixture("distilbert_regression");
    with(&folder, "quantize", &regression, "--mode fp8 --data scores.csv --metric top1 -o x")
        .ends(2, &["--metric top1", "quantities", "expected mse"]);
    with(&folder, "train", &fixture("bert"), "--data named.csv -o x").ends(2, &["an encoder"]);
    assert!(!folder.path("x").exists());
}

#[test]
fn a_classifier_of_several_labels_is_run_and_not_trained() {
    let folder = Folder::new();
    labelled(&folder);
    fs::create_dir(folder.path("several")).unwrap();
    for file in ["model.safetensors", "tokenizer.json"] {
        fs::copy(fixture("bert_classifier").join(file), folder.path("several").join(file)).unwrap();
    }
    let mut config = json(&fixture("bert_classifier").join("config.json"));
    config["problem_type"] = "multi_label_classification".into();
    fs::write(folder.path("several/config.json"), config.to_string()).unwrap();
    with(&folder, "train", &folder.path("several"), "--data named.csv -o x")
        .ends(2, &["multi_label_classification", "one class or one quantity"]);
    let given = fixture("bert_classifier").join("expected.npz").display().to_string();
    folder
        .line(&format!("eval several --inputs {given} {CPU}"))
        .ends(0, &["any number of which may hold"]);
}

#[test]
fn every_classifier_is_measured_and_exported() {
    for name in CLASSIFIERS {
        let folder = Folder::new();
        let model = fixture(name);
        with(&folder, "bench", &model, "--text cats --trials 5 --modes compile --backends cpu")
            .ends(0, &[]);
        let model = model.display().to_string();
        folder.line(&format!("export {model} --onnx m.onnx")).ends(0, &["as ONNX"]);
        folder
            .line(&format!("generate {model} --prompt cats {CPU}"))
            .ends(2, &["found a classifier"]);
    }
}
