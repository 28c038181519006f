//! Model folders: bit for bit, whole or not at all, and clear words for what is wrong with one.

use overdrive_files::{Existing, MANIFEST, Place, PlaceRequest};
use overdrive_formats::{FormatError, ModelConfig, ModelFolder, TableColumns, safetensors};
use overdrive_ir::{Builder, DType, Graph, Init, Tensor, TensorType};
use std::fs;
use std::path::Path;

/// A graph with a state of a type that safetensors has, and one of a type that it lacks.
fn graph() -> Graph {
    let b = Builder::new("tiny");
    let x = b.input("x", TensorType::new(DType::F32, ["batch".into(), overdrive_ir::Dim::Size(3)]));
    let w =
        b.state("w", TensorType::new(DType::F32, [3usize, 2]), Init::Normal { std: 1.0, seed: 7 });
    let codes = Tensor::from_f64(DType::I4, [3usize], &[-8.0, 7.0, 1.0]);
    let shift = b.state("shift", codes.ty().clone(), Init::Value(codes)).convert(DType::F32);
    b.output("y", (x + shift).matmul(w));
    b.finish().expect("a well-formed graph")
}

fn model() -> ModelFolder {
    let recipe = [("mode".to_owned(), serde_json::json!("int4"))].into();
    let config = ModelConfig {
        name: "tiny".into(),
        dimensions: [("batch".into(), 4)].into(),
        vocabulary: None,
        columns: Some(TableColumns { label: Some("kind".into()), ..TableColumns::default() }),
        recipe,
    };
    ModelFolder { config, graph: graph() }
}

/// Writes the model as a command does, over an older one.
fn write(folder: &Path) -> Result<(), FormatError> {
    let request =
        PlaceRequest { path: folder, option: "-o", existing: Existing::Replace, inputs: &[] };
    Place::folder(request, ModelFolder::CONTENTS)?.fill(|folder| model().write(folder))
}

fn initial(graph: &Graph) -> Vec<Tensor> {
    graph.states().iter().map(|s| s.init.tensor(&s.name, graph.ty(s.value))).collect()
}

fn message(folder: &Path) -> String {
    ModelFolder::read(folder).expect_err("a damaged folder").to_string()
}

#[test]
fn a_model_is_read_as_it_was_written_and_replaces_an_older_one() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("deep/model");
    for _ in 0..2 {
        write(&folder).unwrap();
        assert!(ModelFolder::is_at(&folder));
        let read = ModelFolder::read(&folder).unwrap();
        assert_eq!(read.config, model().config);
        assert_eq!(initial(&read.graph), initial(&graph()));
        assert_eq!(read.graph.nodes(), graph().nodes());
    }
    let beside: Vec<_> = fs::read_dir(place.path().join("deep")).unwrap().collect();
    assert_eq!(beside.len(), 1, "nothing unfinished or old is left: {beside:?}");
}

#[test]
fn a_folder_of_other_files_is_left_alone() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("thesis.tex"), "years of work").unwrap();
    let error = write(place.path()).unwrap_err().to_string();
    assert!(error.contains("did not write: `thesis.tex`"), "{error}");
    assert_eq!(fs::read_to_string(place.path().join("thesis.tex")).unwrap(), "years of work");
    assert!(!ModelFolder::is_at(place.path()));
}

#[test]
fn what_is_wrong_with_a_folder_is_told() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("model");
    // A folder of the version before manifests, so that each file is judged by what is in it.
    let damage = |file: &str, text: &str| {
        model().write(&folder).unwrap();
        fs::write(folder.join(file), text).unwrap();
        message(&folder)
    };
    let config = |version| {
        format!("{{\"overdrive_model\":{version},\"name\":\"tiny\",\"dimensions\":{{}}}}")
    };
    assert!(damage("config.json", &config(9)).contains("expected 1, found 9"));
    assert!(
        damage("config.json", "{\"overdrive_model\"")
            .contains("config.json: config: expected the config")
    );
    assert!(
        damage("graph.txt", "overdrive-ir 1\ngraph")
            .contains("graph.txt: graph: expected the text of a graph")
    );
    assert!(damage("model.safetensors", "short").contains("model.safetensors"));
    model().write(&folder).unwrap();
    let path = folder.join("model.safetensors");
    let mut states = safetensors::read(&path).unwrap();
    states.remove("w");
    states.insert("shift".into(), Tensor::from_f64(DType::U8, [9usize], &[0.0; 9]));
    safetensors::write(&path, &states).unwrap();
    let error = message(&folder);
    assert!(
        error.contains("1 missing: w f32[3, 2]")
            && error.contains("shift expected i4[3], found u8[9]"),
        "{error}"
    );
    fs::remove_file(folder.join("graph.txt")).unwrap();
    assert!(message(&folder).contains("cannot open"));
}

#[test]
fn a_flipped_bit_of_any_file_is_told() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("model");
    write(&folder).unwrap();
    for file in ["config.json", "graph.txt", "model.safetensors"] {
        let good = fs::read(folder.join(file)).unwrap();
        for at in [0, good.len() / 2, good.len() - 1] {
            let mut bytes = good.clone();
            bytes[at] ^= 4;
            fs::write(folder.join(file), bytes).unwrap();
            let said = message(&folder);
            assert!(said.contains(file) && said.contains(MANIFEST), "{said}");
        }
        fs::write(folder.join(file), good).unwrap();
    }
    ModelFolder::read(&folder).unwrap();
}

#[test]
fn a_config_that_speaks_of_a_model_of_ours_makes_none() {
    let place = tempfile::tempdir().unwrap();
    let config = r#"{"model_type": "llama", "note": "made from \"overdrive_model\" 1"}"#;
    fs::write(place.path().join("config.json"), config).unwrap();
    fs::write(place.path().join("model.safetensors"), "weights").unwrap();
    assert!(!ModelFolder::is_at(place.path()));
    assert!(
        write(place.path()).unwrap_err().to_string().contains("`config.json`, `model.safetensors`")
    );
}
