//! Models that are written as files of GGUF against files that the package `gguf` wrote of the
//! same models, and read back.
//!
//! `peers/gguf_files.py` made the files to compare with.

use overdrive_formats::gguf::{self, GgufType};
use overdrive_studies::pretrained::Pretrained;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pretrained").join(name)
}

fn model(name: &str) -> Pretrained {
    Pretrained::read(&folder(name)).unwrap()
}

#[test]
fn files_have_the_tensors_that_the_converter_writes() {
    for name in ["llama", "qwen2", "qwen3"] {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("m.gguf");
        let model = model(name);
        model.write_gguf(&path, GgufType::F16, NonZero::<usize>::MIN).unwrap();
        let decode = |path: &Path| gguf::decode(path, fs::read(path).unwrap()).unwrap();
        let (found, expected) =
            (decode(&path), decode(&folder("../gguf").join(format!("{name}.gguf"))));
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (tensor, expected) in &expected {
            assert_eq!(found[tensor].ty().shape, expected.ty().shape, "{name}: {tensor}");
            let pairs = found[tensor].to_f32().into_iter().zip(expected.to_f32());
            let near = |(a, b): (f32, f32)| (a - b).abs() <= 1e-3 * b.abs().max(1e-4);
            assert!(pairs.into_iter().all(near), "{name}: {tensor}");
        }
        // Sizes, rotary positions and the tokenizer are compared there.
        let again = model.read_gguf(&path).unwrap();
        assert_eq!(again.ends, model.ends);
        assert!(!again.notes.join("; ").contains("not known here"), "{:?}", again.notes);
        assert!(again.tokenizer.is_some(), "{name}");
    }
}

#[test]
fn a_file_of_another_model_is_not_taken_for_this_one() {
    let error = model("llama").read_gguf(&folder("../gguf/qwen3.gguf")).unwrap_err().to_string();
    assert!(error.contains("keys of the architecture"), "{error}");
}

#[test]
fn models_that_a_file_does_not_describe_are_refused() {
    for (name, words) in [
        ("gpt2", ["model_type", "llama, mistral, qwen2 or qwen3"]),
        ("smollm3", ["model_type", "smollm3"]),
        ("mixtral", ["model_type", "mixtral"]),
        ("qwen2_window", ["sliding_window", "a window of"]),
        ("yarn", ["rope_", "yarn"]),
    ] {
        let error = model(name).check_gguf().unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{name}: `{word}` is not in: {error}");
        }
        assert!(error.contains("-o DIR"), "{error}");
    }
}
