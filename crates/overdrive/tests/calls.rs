//! The calls of the facade do what the commands do, and refuse what those refuse.

#![allow(clippy::unwrap_used)]

use overdrive::calls::Model;
use overdrive::formats::Tensors;
use overdrive::ir::{DType, Mode, Tensor};

fn digits() -> Model {
    Model::open("digits-mlp").unwrap().with_threads(1).unwrap().with_size("batch", 2)
}

fn inputs(values: [f32; 2]) -> Tensors {
    let rows: Vec<f32> = values.iter().flat_map(|&value| [value; 64]).collect();
    Tensors::from([("x".to_owned(), Tensor::from_f32([2, 64], &rows))])
}

#[test]
fn a_model_is_evaluated_quantized_written_and_read_again() {
    let model = digits();
    let outputs = model.eval(&inputs([0.25, 0.5])).unwrap();
    let first = outputs.values().next().unwrap();
    assert_eq!(first.ty().sizes(), [2, 10]);
    let smaller = model.quantize("int8-dynamic", &[]).unwrap();
    let (before, after) =
        (model.score("digits").unwrap().accuracy(), smaller.score("digits").unwrap().accuracy());
    assert!(before > 0.9, "the weights that come with it are trained: {before}");
    assert!((before - after).abs() < 0.02, "{before}, {after}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small");
    smaller.write(&path).unwrap();
    let read = Model::open(path.to_str().unwrap()).unwrap().with_threads(1).unwrap();
    assert_eq!(
        read.eval(&inputs([0.25, 0.5])).unwrap(),
        smaller.eval(&inputs([0.25, 0.5])).unwrap()
    );
    let file = folder.path().join("model.onnx");
    model.export_onnx(&file).unwrap();
    let onnx = Model::open(file.to_str().unwrap()).unwrap().with_threads(1).unwrap();
    let again = onnx.eval(&inputs([0.25, 0.5])).unwrap();
    let values = |tensors: &Tensors| tensors.values().next().unwrap().to_f32();
    for (a, b) in values(&again).iter().zip(values(&outputs)) {
        assert!((a - b).abs() < 1e-5, "{a}, {b}");
    }
}

#[test]
fn every_mode_and_number_format_that_was_asked_for_has_a_record() {
    let asked = [DType::F32, DType::BF16];
    let results =
        digits().bench().modes(&[Mode::Eager, Mode::Compile]).precisions(&asked).trials(5).run();
    let records = results.unwrap().records;
    let named: Vec<String> = records
        .iter()
        .map(|record| {
            assert!(record.outcome.measurement().is_some(), "{:?}", record.outcome);
            format!("{} {}", record.case.configuration.mode, record.case.configuration.dtype)
        })
        .collect();
    assert_eq!(named, ["eager f32", "compile f32", "eager bf16", "compile bf16"]);
}

#[test]
fn what_does_not_fit_is_refused_with_what_was_expected() {
    for (refused, words) in [
        (Model::open("no-such-model").err(), "no-such-model"),
        (digits().quantize("int3", &[]).err(), "int8-dynamic"),
        (digits().quantize("qat-int4", &[]).err(), "int8-dynamic"),
        (digits().score("text").err(), ""),
    ] {
        let reason = refused.unwrap().reason;
        assert!(reason.contains(words), "{reason}");
    }
    let wrong = Tensors::from([("x".to_owned(), Tensor::from_f32([2, 63], &[0.0; 126]))]);
    let reason = digits().eval(&wrong).unwrap_err().reason;
    assert!(reason.contains("expected") && reason.contains("63"), "{reason}");
    assert!(digits().eval(&Tensors::new()).unwrap_err().reason.contains("found none"));
}
