//! ONNX: cases of its own backend tests, and of com.microsoft's ops, against the f64 definition;
//! in, and out again.

use overdrive_formats::onnx::{self, Binding, Dialect, Model};
use overdrive_formats::{FormatError, Tensors, read};
use overdrive_ir::{Dim, Graph, Tensor, eval, verify};
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/onnx")
}

fn cases() -> Vec<PathBuf> {
    let entries = fs::read_dir(folder())
        .expect("the cases are vendored")
        .map(|entry| entry.expect("a folder can be listed").path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    found.sort();
    assert!(found.len() > 40, "the cases are where they belong");
    found
}

/// The graph for these inputs, with the values bound that decide shapes.
fn fitting(model: &Model, inputs: &Tensors) -> Result<Graph, FormatError> {
    let mut binding = Binding::default();
    for (name, ty) in model.inputs()? {
        for (dim, size) in ty.shape.0.iter().zip(inputs[&name].ty().sizes()) {
            if let Dim::Named(name) = dim {
                binding.sizes.insert(name.to_string(), size);
            }
        }
    }
    loop {
        match model.graph(&binding) {
            Err(FormatError::Undecided { inputs: named, .. }) if !named.is_empty() => {
                let before = binding.values.len();
                binding
                    .values
                    .extend(named.into_iter().map(|name| (name.clone(), inputs[&name].clone())));
                assert!(binding.values.len() > before, "a bound input is known");
            }
            outcome => return outcome,
        }
    }
}

#[test]
fn cases_evaluate_to_what_onnx_expects() {
    let mut wrong = Vec::new();
    for case in cases() {
        let inputs = read(&case.join("inputs.safetensors")).unwrap();
        let expected = read(&case.join("expected.safetensors")).unwrap();
        let graph = match fitting(&Model::open(&case.join("model.onnx")).unwrap(), &inputs) {
            Ok(graph) => graph,
            Err(error) => {
                wrong.push(error.to_string());
                continue;
            }
        };
        verify(&graph).unwrap();
        let given: Vec<Tensor> =
            graph.inputs().iter().map(|port| inputs[&port.name].clone()).collect();
        let outputs = eval::eval_tensors(&graph, &given);
        for (port, output) in graph.outputs().iter().zip(outputs) {
            let Some(wanted) = expected.get(&port.name) else { continue };
            let close = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= 1e-7 + 1e-3 * b.abs();
            let same = output.to_f64().iter().zip(&wanted.to_f64()).all(close);
            if output.ty() != wanted.ty() || !same {
                wrong.push(format!(
                    "{}: {} is not {}",
                    case.display(),
                    output.to_text(),
                    wanted.to_text()
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Cases whose graphs opset 23 cannot say, with the word that their error must have.
const UNSAID: [(&str, &str); 0] = [];

#[test]
fn what_is_written_means_the_same() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("onnx-written");
    fs::create_dir_all(&folder).unwrap();
    let mut wrong = Vec::new();
    for case in cases() {
        let name = case.file_name().unwrap().to_str().unwrap().to_owned();
        let inputs = read(&case.join("inputs.safetensors")).unwrap();
        let graph = fitting(&Model::open(&case.join("model.onnx")).unwrap(), &inputs).unwrap();
        let path = folder.join(format!("{name}.onnx"));
        let written = onnx::write(&path, &graph, Dialect::Standard);
        if let Some((_, word)) = UNSAID.iter().find(|(known, _)| *known == name) {
            assert!(written.unwrap_err().to_string().contains(word), "{name}");
            continue;
        }
        let back = written.and_then(|()| Model::open(&path)?.graph(&Binding::default()));
        let back = match back {
            Ok(back) => back,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let given: Vec<Tensor> =
            graph.inputs().iter().map(|port| inputs[&port.name].clone()).collect();
        for (a, b) in
            eval::eval_tensors(&graph, &given).iter().zip(&eval::eval_tensors(&back, &given))
        {
            let close = |(a, b): (&f64, &f64)| a == b || (a - b).abs() <= 1e-6 * (1.0 + b.abs());
            if a.ty() != b.ty() || !a.to_f64().iter().zip(&b.to_f64()).all(close) {
                wrong.push(format!("{name}: {} became {}", a.to_text(), b.to_text()));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn nodes_of_one_type_that_we_lack_are_listed_together() {
    // `Add` and `Sub` are as long as `Axx` and so on: the length prefix of the string stays right.
    let bytes = fs::read(folder().join("test_add_bcast/model.onnx")).unwrap();
    let at = bytes.windows(3).position(|w| w == b"Add").unwrap();
    let changed = [&bytes[..at], b"Zzz", &bytes[at + 3..]].concat();
    let model = Model::decode(Path::new("m.onnx"), changed.into()).unwrap();
    let error = model.graph(&Binding::default()).unwrap_err().to_string();
    assert!(error.contains("1 op is lacking here: Zzz (nodes sum)"), "{error}");
}

#[test]
fn an_input_that_decides_a_shape_is_named() {
    let model = Model::open(&folder().join("test_reshape_negative_dim/model.onnx")).unwrap();
    match model.graph(&Binding::default()).unwrap_err() {
        FormatError::Undecided { inputs, value, .. } => {
            assert_eq!((inputs, value.as_str()), (vec!["shape".to_owned()], "shape"));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_file_that_is_no_model_says_so() {
    for bytes in [&b""[..], b"\x00", b"not a model at all", &[0xff; 64]] {
        let error =
            Model::decode(Path::new("m.onnx"), bytes.to_vec().into()).unwrap_err().to_string();
        assert!(error.starts_with("m.onnx: "), "{error}");
    }
}
