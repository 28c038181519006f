//! `optimize` end to end: what it writes, that the decision repeats, and every way in which it is
//! refused.

use crate::invocation::{Folder, Outcome};
use crate::quantize_published::fixture;
use overdrive::ir::DType;
use overdrive::ir::Tensor;
use overdrive::ir::eval::philox;
use serde_json::Value;
use std::fs;

/// Runs `optimize digits-mlp` as briefly as it can be run.
#[track_caller]
fn optimize(folder: &Folder, arguments: &str) -> Outcome {
    folder.line(&format!("optimize digits-mlp --device cpu --threads 1 {arguments}"))
}

fn decision(folder: &Folder, name: &str) -> Value {
    let text = fs::read_to_string(folder.path(&format!("{name}/decision.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

#[test]
fn the_smallest_form_is_written_with_its_evidence_and_repeats() {
    let folder = Folder::new();
    let asked = "--data digits --target size --effort quick --max-loss 20 -o out";
    optimize(&folder, asked).ends(0, &["PASS", "deploy", "right answers turned wrong"]);
    for file in ["decision.json", "report.md", "report.html", "model/model.safetensors"] {
        assert!(folder.path(&format!("out/{file}")).is_file(), "{file}");
    }
    folder.tensors("x.npz", &[("x", x(3))]);
    folder.line("eval out/model --device cpu --inputs x.npz -o y.npz").ends(0, &["f32[3, 10]"]);
    // The decision and the model repeat from the file alone.
    folder.line("optimize --replay out/decision.json").ends(0, &["the same decision"]);
    folder
        .line("optimize --replay out/decision.json --device cpu --threads 1 -o again")
        .ends(0, &["the same bytes"]);
    let [first, second] = ["out", "again"]
        .map(|name| fs::read(folder.path(&format!("{name}/model/model.safetensors"))).unwrap());
    assert!(first == second);
    // A second search finds the folder taken.
    optimize(&folder, asked).ends(2, &["out", "--force"]);
}

#[test]
fn a_decision_follows_its_timings() {
    let folder = Folder::new();
    let asked = "--data digits --effort quick --max-loss 20 --confidence 0.9 -o out";
    optimize(&folder, asked).ends_in(&[0, 1, 5], &["float"]);
    let mut stored = decision(&folder, "out");
    // A machine on which everything but float takes a hundred times as long.
    for session in stored["record"]["sessions"].as_array_mut().unwrap() {
        for block in session["blocks"].as_array_mut().unwrap() {
            for samples in block["samples_ns"].as_array_mut().unwrap().iter_mut().skip(1) {
                for sample in samples.as_array_mut().unwrap() {
                    *sample = Value::from(100.0 * sample.as_f64().unwrap());
                }
            }
        }
    }
    fs::write(folder.path("slow.json"), stored.to_string()).unwrap();
    folder
        .line("optimize --replay slow.json")
        .ends(4, &["keep the float model", "NOT the decision of the file"]);
}

#[test]
fn a_limit_that_nothing_meets_writes_no_model() {
    let folder = Folder::new();
    optimize(&folder, "--data digits --target size --effort quick --max-loss 0 -o out")
        .ends_in(&[4, 5], &["nothing was written"]);
    assert!(!folder.path("out/model").exists());
    assert!(folder.path("out/report.md").is_file());
}

#[test]
fn an_interrupted_search_goes_on() {
    let folder = Folder::new();
    let asked = "--data digits --target size --effort quick --max-loss 20";
    optimize(&folder, &format!("{asked} --minutes 0 -o out")).ends_in(&[1, 4, 5], &["float"]);
    optimize(&folder, &format!("{asked} --resume -o out")).ends(0, &["PASS"]);
    optimize(&folder, &format!("{asked} --resume --seed 2 -o out"))
        .ends(2, &["cannot resume", "shapes, seed and head"]);
}

#[test]
fn a_decoder_is_timed_by_the_token() {
    let folder = Folder::new();
    let text = "the hand and the tin in a thin band; another hand than the other. ".repeat(300);
    fs::write(folder.path("words.txt"), text).unwrap();
    let model = fixture("llama").display().to_string();
    let of = |arguments: &str| {
        let line = format!("{arguments} --data words.txt --target size --effort quick --batches 2");
        let words = ["optimize", &model, "--device", "cpu", "--threads", "1"];
        folder.overdrive(&words.into_iter().chain(line.split_whitespace()).collect::<Vec<_>>())
    };
    of("--decode 6 --max-loss 50 -o out").ends(0, &["PASS", "a token after 6 takes"]);
    let stored = decision(&folder, "out");
    assert_eq!(stored["asked"]["decode"], 6);
    assert!(stored["record"]["sessions"].as_array().is_some_and(|all| !all.is_empty()));
    let line = "generate out/model --device cpu --prompt hand --max-tokens 3";
    folder.line(line).ends(0, &["3 made", "codes and f32 weights"]);
    // Codes stay, and everything else is in the format.
    folder.line(&format!("{line} --dtype bf16")).ends(0, &["3 made", "codes and bf16 weights"]);
    // Times of whole calls are no continuation of times of tokens.
    of("--max-loss 50 --resume -o out").ends(2, &["cannot resume", "--decode is 6"]);
    of("--decode 100000 -o no").ends(2, &["--decode 100000", "expected at most"]);
    optimize(&folder, "--decode 6 -o no").ends(2, &["expected a decoder"]);
    let model = fixture("bert").display().to_string();
    let words = ["optimize", &model, "--device", "cpu", "--decode", "6", "-o", "no"];
    folder.overdrive(&words).ends(2, &["--decode 6"]);
    assert!(!folder.path("no/model").exists());
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let folder = Folder::new();
    fs::write(folder.path("no.json"), "{}").unwrap();
    folder.line("optimize --replay no.json").ends(2, &["decision of `optimize`"]);
    folder.line("optimize --replay absent.json").ends(2, &["absent.json"]);
    folder.line("optimize digits-mlp").ends(2, &["--out"]);
    folder.line("optimize digits-mlp --confidence 1 -o out").ends(2, &["below 1"]);
    folder.line("optimize no-such-model -o out").ends(2, &["no-such-model"]);
    optimize(&folder, "--data absent.csv -o out").ends(2, &["absent.csv"]);
    assert!(!folder.path("out/model").exists());
}

fn x(rows: usize) -> Tensor {
    let values: Vec<f64> = philox::normals(5, 1).take(rows * 64).collect();
    Tensor::from_f64(DType::F32, [rows, 64], &values)
}
