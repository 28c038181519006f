//! Folders in Hugging Face's format with random configs and random bytes: read or refused, and
//! never a panic.

use overdrive_studies::pretrained::Pretrained;
use proptest::prelude::*;
use std::fs;
use std::path::Path;

/// A copy of a fixture that can be damaged.
fn copy(name: &str) -> tempfile::TempDir {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pretrained").join(name);
    let place = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(fixture).unwrap().map(Result::unwrap) {
        if entry.path().is_file() {
            fs::copy(entry.path(), place.path().join(entry.file_name())).unwrap();
        }
    }
    place
}

/// Values that a field of JSON can have, among them those that overflow.
fn value() -> impl Strategy<Value = serde_json::Value> {
    use serde_json::json;
    prop_oneof![
        Just(json!(null)),
        any::<bool>().prop_map(|b| json!(b)),
        any::<i64>().prop_map(|n| json!(n)),
        (0u64..5000).prop_map(|n| json!(n)),
        Just(json!(u64::MAX)),
        Just(json!(1u64 << 24)),
        any::<f64>().prop_map(|x| json!(x)),
        "[a-z_]{0,8}".prop_map(|s| json!(s)),
        Just(json!([1, "x"])),
        Just(json!({ "rope_type": "llama3", "factor": 1e-300 })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_config_is_read_or_refused_whatever_it_says(
        which in 0usize..17,
        changes in prop::collection::vec((any::<prop::sample::Index>(), value()), 1..4),
    ) {
        let name = [
            "gpt2", "llama", "mistral", "qwen2", "qwen3", "bert", "sentence", "phi3", "gemma3",
            "gemma2", "qwen3_moe", "phi", "vit", "clip", "whisper", "roberta",
            "distilbert",
        ][which];
        let place = copy(name);
        let path = place.path().join("config.json");
        let text = fs::read_to_string(&path).unwrap();
        let mut config: serde_json::Value = serde_json::from_str(&text).unwrap();
        let fields = config.as_object_mut().unwrap();
        for (index, value) in changes {
            let names: Vec<String> = fields.keys().cloned().collect();
            fields.insert(index.get(&names).clone(), value);
        }
        fs::write(&path, config.to_string()).unwrap();
        // `sentence` without its pooling folder is refused or read as the changed config says;
        // either is fine.
        match Pretrained::read(place.path()) {
            Ok(model) => prop_assert!(model.template().is_ok()),
            Err(error) => prop_assert!(error.to_string().len() > 10),
        }
    }

    #[test]
    fn files_of_any_bytes_are_refused(
        which in 0usize..4,
        bytes in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let file = ["config.json", "model.safetensors.index.json",
            "model-00001-of-00002.safetensors", "tokenizer.json"][which];
        let place = copy("llama");
        fs::write(place.path().join(file), bytes).unwrap();
        prop_assert!(Pretrained::read(place.path()).is_err());
    }
}
