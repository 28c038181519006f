//! Layers of GPTQ and AWQ against files that numpy packed, and damaged ones.
//!
//! `peers/int4_files.py` made the fixtures and decoded each by its format's definition.

use overdrive_formats::huggingface::Config;
use overdrive_formats::int4::{self, Int4Config, Int4Form, Int4Format, Int4Head};
use overdrive_formats::{FormatError, Tensors, npz, safetensors};
use overdrive_ir::{DType, Tensor};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

const LAYERS: [&str; 2] = ["asymmetric", "symmetric"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/int4")
}

fn file(name: &str) -> Tensors {
    safetensors::read(&folder().join(format!("{name}.safetensors"))).unwrap()
}

fn read(words: Value) -> Result<Option<Int4Config>, FormatError> {
    let text = json!({ "quantization_config": words }).to_string();
    Int4Config::read(&Config::parse(Path::new("config.json"), &text).unwrap())
}

fn config(name: &str) -> Int4Config {
    let words = match name {
        "awq" => Int4Format::Awq.quantization_config(16, Int4Head::Float),
        "gptq" => Int4Format::Gptq.quantization_config(16, Int4Head::Float),
        layout => json!({ "quant_method": "gptq", "bits": 4, "checkpoint_format": layout }),
    };
    read(words).unwrap().unwrap()
}

fn restored(
    name: &str,
    mut file: Tensors,
) -> Result<(Tensors, BTreeMap<String, Int4Form>), String> {
    let path = Path::new("model.safetensors");
    let forms = int4::restored(path, &config(name), &mut file).map_err(|e| e.to_string())?;
    Ok((file, forms))
}

/// `(code - zero) * scale` of the states of a layer.
fn weights(states: &Tensors, layer: &str) -> Vec<f32> {
    let [codes, scales] =
        ["weight", "weight_scale"].map(|part| states[&format!("{layer}.{part}")].to_f32());
    let zeros = states.get(&format!("{layer}.weight_zero_point"));
    let zeros = zeros.map_or(vec![0.0; scales.len()], Tensor::to_f32);
    let group = codes.len() / scales.len();
    codes.iter().enumerate().map(|(at, q)| (q - zeros[at / group]) * scales[at / group]).collect()
}

#[test]
fn every_layout_is_decoded_as_it_is_defined() {
    let expected = npz::read(&folder().join("expected.npz")).unwrap();
    for name in ["gptq", "gptq_v2", "awq"] {
        let (states, forms) = restored(name, file(name)).unwrap();
        for layer in LAYERS {
            assert_eq!(states[&format!("{layer}.weight")].ty().to_string(), "i4[16, 32]");
            assert_eq!(weights(&states, layer), expected[layer].to_f32(), "{name}, {layer}");
            let symmetric = layer == "symmetric";
            assert_eq!(forms[layer], Int4Form { group: 16, symmetric }, "{name}");
        }
        assert_eq!(states.len(), 5, "nothing is left of the file: {:?}", states.keys());
    }
}

#[test]
fn what_is_written_is_what_numpy_packed() {
    for (name, format) in [("gptq", Int4Format::Gptq), ("awq", Int4Format::Awq)] {
        let (mut states, _) = restored(name, file(name)).unwrap();
        let norm = Tensor::from_f32([2usize], &[1.0, 2.0]);
        states.insert("norm.weight".to_owned(), norm.clone());
        let layers = BTreeSet::from(LAYERS.map(str::to_owned));
        let path = Path::new("model.safetensors");
        let mut written = int4::stored(path, format, &layers, states).unwrap();
        assert_eq!(written.remove("norm.weight"), Some(norm), "other states stay");
        let expected = file(name);
        assert_eq!(written.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (tensor, expected) in &expected {
            assert_eq!(&written[tensor], expected, "{name}: {tensor}");
        }
    }
}

#[test]
fn codes_that_a_file_cannot_hold_are_refused() {
    let (states, _) = restored("gptq", file("gptq")).unwrap();
    let refused = |format, name: &str, tensor: Tensor, words: &[&str]| {
        let mut states = states.clone();
        states.insert(format!("symmetric.{name}"), tensor);
        let layers = BTreeSet::from(["symmetric".to_owned()]);
        let found = int4::stored(Path::new("m.safetensors"), format, &layers, states);
        let error = found.unwrap_err().to_string();
        words.iter().for_each(|word| assert!(error.contains(word), "`{word}` is not in: {error}"));
    };
    let narrow = Tensor::from_f64(DType::I4, [12usize, 32], &[0.0; 384]);
    let scales = |sizes: [usize; 2], x: f32| Tensor::from_f32(sizes, &vec![x; sizes[0] * sizes[1]]);
    refused(Int4Format::Awq, "weight", narrow, &["symmetric:", "i4[12, 32]"]);
    refused(Int4Format::Awq, "weight_scale", scales([16, 3], 1.0), &["8 divides", "3 groups"]);
    refused(Int4Format::Gptq, "weight_scale", scales([16, 2], 0.1), &["scales that are f16"]);
    let zeros = Tensor::from_f64(DType::I4, [16usize, 2], &[-8.0; 32]);
    refused(Int4Format::Gptq, "weight_zero_point", zeros, &["zero points from 1 to 15"]);
    assert_eq!(int4::f16_scales(&scales([1, 1], 1e6)), Err(1e6));
    assert_eq!(int4::f16_scales(&scales([1, 1], 1e-9)), Err(1e-9));
    assert_eq!(int4::f16_scales(&scales([1, 1], 0.1)).unwrap().to_f32(), [0.099_975_586]);
}

#[test]
fn a_mislabelled_layer_is_an_error() {
    let refused = |name: &str, part: &str, tensor: Option<Tensor>, words: &[&str]| {
        let mut file = file(name);
        let place = format!("symmetric.{part}");
        match tensor {
            Some(tensor) => drop(file.insert(place, tensor)),
            None => drop(file.remove(&place)),
        }
        let error = restored(name, file).unwrap_err();
        words.iter().for_each(|word| assert!(error.contains(word), "`{word}` is not in: {error}"));
    };
    let ints = |sizes: &[usize]| {
        Tensor::from_ints(DType::I32, sizes.to_vec(), &vec![0; sizes.iter().product()])
    };
    for name in ["gptq", "awq"] {
        refused(name, "qzeros", None, &["symmetric.qzeros", "no tensor of this name"]);
        refused(name, "qzeros", Some(ints(&[3, 2])), &["symmetric.qzeros", "i32[3, 2]"]);
        refused(name, "qweight", Some(ints(&[0, 0])), &["symmetric.qweight"]);
        refused(name, "qweight", Some(ints(&[4])), &["a matrix of i32", "i32[4]"]);
        refused(name, "scales", None, &["symmetric.scales"]);
        refused(name, "scales", Some(ints(&[2, 16])), &["symmetric.scales", "i32[2, 16]"]);
        let infinite = Tensor::from_f32([2usize, 16], &[f32::INFINITY; 32]);
        refused(name, "scales", Some(infinite), &["finite scales", "inf at element 0"]);
    }
    let backwards: Vec<i128> = (0..32).map(|row| (31 - row) / 16).collect();
    let backwards = Tensor::from_ints(DType::I32, [32usize], &backwards);
    refused("gptq", "g_idx", Some(backwards), &["column 0 in group 1", "desc_act false"]);
}

#[test]
fn words_of_another_layout_are_an_error() {
    assert_eq!(read(Value::Null).unwrap(), None);
    assert_eq!(read(json!({ "quant_method": "bitsandbytes" })).unwrap(), None);
    let refused = |words: Value, expected: &[&str]| {
        let error = read(words).unwrap_err().to_string();
        expected.iter().for_each(|word| assert!(error.contains(word), "{word}: {error}"));
    };
    refused(json!({ "quant_method": "gptq", "bits": 3 }), &["quantization_config.bits", "found 3"]);
    refused(json!({ "quant_method": "gptq" }), &["bits", "null"]);
    let marlin = json!({ "quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin" });
    refused(marlin, &["checkpoint_format", "gptq or gptq_v2", "marlin"]);
    let gemv = json!({ "quant_method": "awq", "bits": 4, "version": "gemv" });
    refused(gemv, &["version", "expected gemm", "gemv"]);
}
