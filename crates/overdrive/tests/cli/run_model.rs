//! `run --model`: the studies of a model that the user brings, and every way in which it is
//! refused.

use crate::invocation::Folder;
use std::fs;
use std::path::Path;

/// The results of a run.
fn results(folder: &Folder, name: &str) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(folder.path(name).join("results.json")).unwrap())
        .unwrap()
}

/// Cases that were measured: study, mode, variant.
fn measured(results: &serde_json::Value) -> Vec<[String; 3]> {
    let records = results["records"].as_array().unwrap().iter();
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let case = |record: &serde_json::Value| {
        let case = &record["case"];
        let configuration = &case["configuration"];
        [text(&case["study"]), text(&configuration["mode"]), text(&configuration["variant"])]
    };
    records.filter(|record| record["outcome"].to_string().contains("latency")).map(case).collect()
}

#[test]
fn a_file_has_its_modes_and_its_quantizations_and_the_rest_is_a_note() {
    let folder = Folder::new();
    folder.line("export digits-mlp --onnx mine.onnx").ends(0, &[]);
    let words = ["decoding was left out", "no next token", "report.html"];
    folder
        .line("run --model mine.onnx --shape batch=4 --quick --device cpu --threads 1 -o report")
        .ends(0, &words);
    let results = results(&folder, "report");
    let found = measured(&results);
    for expected in [
        ["compilation", "eager", ""],
        ["compilation", "compile", ""],
        ["quantization", "compile", ""],
        ["quantization", "compile", "int8-dynamic"],
        ["quantization", "compile", "int4-gptq"],
    ] {
        assert!(found.contains(&expected.map(str::to_owned)), "{expected:?} of {found:?}");
    }
    // Nobody else's model takes part.
    let names: Vec<&str> = results["records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["case"]["workload"]["name"].as_str().unwrap())
        .collect();
    assert!(names.iter().all(|name| *name == names[0]), "{names:?}");
    let quality = results["records"].to_string();
    assert!(quality.contains("cosine.change") && quality.contains("file_bytes.codes"), "{quality}");
}

#[test]
fn a_decoder_is_judged_by_its_perplexity_and_decodes() {
    let folder = Folder::new();
    let model =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-studies/tests/pretrained/llama");
    let text = "the hand and the tin in a thin band; another hand than the other. ".repeat(300);
    fs::write(folder.path("text.txt"), text).unwrap();
    let line = format!(
        "run quantization decoding --model {} --data text.txt --shape batch=2 --shape tokens=8 \
         --quick \
         --device cpu --threads 1 -o report",
        model.display()
    );
    folder.line(&line).ends(0, &[]);
    let results = results(&folder, "report");
    let found = measured(&results);
    for variant in ["", "int8-dynamic", "int4-rtn", "int8-cache", "fp8-cache"] {
        let case = ["decoding", "compile", variant].map(str::to_owned);
        assert!(found.contains(&case), "{case:?} of {found:?}");
    }
    assert!(
        found
            .iter()
            .any(|[study, _, variant]| study == "quantization" && variant == "int8-weights")
    );
    assert!(results["records"].to_string().contains("perplexity.change"));
}

/// A folder that has codes is timed as it is.
#[test]
fn a_model_of_codes_decodes_and_is_not_quantized_again() {
    let folder = Folder::new();
    let model =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-studies/tests/pretrained/llama");
    let model = model.display();
    folder
        .line(&format!("quantize {model} --mode int8-weights --device cpu -o coded"))
        .ends(0, &[]);
    folder
        .line("run quantization decoding --model coded --quick --device cpu --threads 1 -o report")
        .ends(0, &["quantization was left out", "codes already (int8-weights)"]);
    let found = measured(&results(&folder, "report"));
    let case = ["decoding", "compile", ""].map(str::to_owned);
    assert!(found.contains(&case), "{found:?}");
}

#[test]
fn what_is_no_model_or_no_study_of_one_is_refused() {
    let folder = Folder::new();
    folder.line("run --model absent.onnx --quick -o report").ends(2, &["absent.onnx"]);
    folder
        .line("run kernels --model digits-mlp --quick -o report")
        .ends(2, &["kernels", "compilation"]);
    folder.line("run --data text --quick -o report").ends(2, &["--model"]);
    folder.line("run --model digits-mlp --shape rows=3 --quick -o report").ends(2, &["rows"]);
    assert_eq!(folder.files(), Vec::<String>::new());
}
