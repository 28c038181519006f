//! Files of GGUF that we write: blocks against those of the package `gguf` and of ggml, headers
//! against what the reader makes of them.
//!
//! `peers/gguf_files.py` made the fixtures.

use overdrive_formats::gguf::{self, GgufKin, GgufSizes, GgufType, WrittenModel};
use overdrive_formats::huggingface::Tokenizer;
use overdrive_formats::{FormatError, Tensors, npz};
use overdrive_ir::Tensor;
use serde_json::json;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};

/// A number that divides no tensor's blocks.
const THREADS: NonZero<usize> = NonZero::new(3).unwrap();

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf")
}

/// A model of one matrix and the table of tokens.
fn model(weights: &Tensors) -> WrittenModel<'_> {
    WrittenModel {
        kin: GgufKin::Llama,
        name: "a model",
        sizes: GgufSizes {
            vocabulary: 4,
            context: 64,
            width: 256,
            layers: 1,
            heads: 2,
            key_heads: 2,
            depth: 128,
            hidden: 4,
        },
        eps: 1e-5,
        base: 10_000.0,
        factors: None,
        weights,
        tokenizer: None,
        ends: [Some(1), Some(2)],
        chat_template: None,
    }
}

/// The bytes of the file, and the notes.
fn written(model: &WrittenModel<'_>, ty: GgufType) -> Result<(Vec<u8>, Vec<String>), FormatError> {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("m.gguf");
    let notes = gguf::write(&path, model, ty, THREADS)?;
    Ok((fs::read(path).unwrap(), notes))
}

fn weights(matrix: Tensor) -> Tensors {
    [
        ("model.embed_tokens.weight", Tensor::from_f32([4usize, 256], &[0.5; 1024])),
        ("model.layers.0.mlp.gate_proj.weight", matrix),
        ("model.norm.weight", Tensor::from_f32([3usize], &[1.0, 0.1, -1e-9])),
        ("lm_head.weight", Tensor::from_f32([4usize, 256], &[0.25; 1024])),
    ]
    .map(|(name, tensor)| (name.to_owned(), tensor))
    .into()
}

const GATE: &str = "blk.0.ffn_gate.weight";

/// Root of the mean square error of each row.
fn errors(found: &Tensor, expected: &[f32]) -> Vec<f64> {
    let found = found.to_f32();
    let rows = found.chunks(256).zip(expected.chunks(256));
    let error = |(a, b): (&[f32], &[f32])| {
        let sum: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        (sum / 256.0).sqrt()
    };
    rows.map(error).collect()
}

#[test]
fn blocks_are_as_near_as_those_of_ggml() {
    let expected = npz::read(&folder().join("encoded.npz")).unwrap();
    let x = &expected["x"];
    let decoded = |ty| {
        let (bytes, notes) = written(&model(&weights(x.clone())), ty).unwrap();
        assert_eq!(notes.len(), 1, "only the tokenizer is missing: {notes:?}");
        gguf::decode(Path::new("m.gguf"), bytes).unwrap()
    };
    // To the bit.
    assert_eq!(decoded(GgufType::Q8_0)[GATE], expected["Q8_0"]);
    for (ty, name) in [(GgufType::Q4K, "Q4_K"), (GgufType::Q5K, "Q5_K"), (GgufType::Q6K, "Q6_K")] {
        let found = errors(&decoded(ty)[GATE], &x.to_f32());
        for (row, (found, theirs)) in found.iter().zip(expected[name].to_f64()).enumerate() {
            assert!(*found <= 1.05 * theirs, "{name}, row {row}: {found}, ggml's is {theirs}");
        }
    }
    let halves = &decoded(GgufType::F16)[GATE];
    assert_eq!(halves.ty().to_string(), "f16[4, 256]");
    assert!(errors(halves, &x.to_f32()).iter().all(|error| *error < 1e-3));
}

#[test]
fn blocks_of_one_value_keep_it() {
    for ty in [GgufType::Q8_0, GgufType::Q4K, GgufType::Q5K, GgufType::Q6K] {
        for value in [0.0, 1.0, -1.0, 65_504.0, -1e-30] {
            let x = Tensor::from_f32([1usize, 256], &[value; 256]);
            let (bytes, _) = written(&model(&weights(x)), ty).unwrap();
            let found = &gguf::decode(Path::new("m.gguf"), bytes).unwrap()[GATE];
            let near = |x: &f32| (x - value).abs() <= 2e-3 * value.abs().max(1e-6);
            assert!(found.to_f32().iter().all(near), "{} of {value}", ty.name());
        }
    }
}

#[test]
fn rows_without_whole_blocks_take_a_wider_type() {
    for (columns, expected) in [(256, "Q4_K"), (96, "Q8_0"), (24, "F16")] {
        let x = Tensor::from_f32([2usize, columns], &vec![0.5; 2 * columns]);
        let (bytes, notes) = written(&model(&weights(x)), GgufType::Q4K).unwrap();
        let said = notes.iter().any(|note| note.contains(expected) && note.contains(GATE));
        assert_eq!(said, columns != 256, "{notes:?}");
        let found = &gguf::decode(Path::new("m.gguf"), bytes).unwrap()[GATE];
        assert_eq!(found.ty().sizes(), [2, columns]);
    }
    // As llama.cpp has it, the output layer is wider: 210 bytes for 256 weights, not 144.
    let x = Tensor::from_f32([4usize, 256], &[0.5; 1024]);
    let bytes = |ty| written(&model(&weights(x.clone())), ty).unwrap().0.len();
    assert_eq!(bytes(GgufType::Q5K) - bytes(GgufType::Q4K), 2 * 4 * (176 - 144));
}

#[test]
fn a_weight_that_no_file_holds_is_refused() {
    let refused = |name: &str, value: f32, words: &[&str]| {
        let mut weights = weights(Tensor::from_f32([1usize, 256], &[0.0; 256]));
        let mut numbers = [0.0; 512];
        numbers[300] = value;
        weights.insert(name.to_owned(), Tensor::from_f32([2usize, 256], &numbers));
        let error = written(&model(&weights), GgufType::Q4K).unwrap_err().to_string();
        words.iter().for_each(|word| assert!(error.contains(word), "`{word}` is not in: {error}"));
    };
    let up = "model.layers.0.mlp.up_proj.weight";
    refused(up, f32::NAN, &["blk.0.ffn_up.weight", "NaN in row 1"]);
    refused(up, 1e6, &["65504", "1000000 in row 1"]);
    refused("model.layers.0.mlp.experts.0.up_proj.weight", 0.0, &["no name", "a folder holds"]);
}

/// A tokenizer of SentencePiece goes through a tokenizer.json and back: there merges have no
/// scores.
#[test]
fn a_tokenizer_of_sentence_piece_gives_the_same_ids() {
    let file = gguf::read(&folder().join("spm.gguf")).unwrap();
    let tokenizer = file.tokenizer.unwrap();
    let vocabulary = tokenizer.vocabulary();
    let table = Tensor::from_f32([vocabulary, 4], &vec![0.0; 4 * vocabulary]);
    let weights = Tensors::from([("model.embed_tokens.weight".to_owned(), table)]);
    let mut model = model(&weights);
    model.sizes.vocabulary = vocabulary;
    model.tokenizer = Some(&tokenizer);
    model.chat_template = Some("{{ messages }}".to_owned());
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("m.gguf");
    let notes = gguf::write(&path, &model, GgufType::F16, THREADS).unwrap();
    assert!(!notes.iter().any(|note| note.contains("no tokenizer")), "{notes:?}");
    let again = gguf::read(&path).unwrap().tokenizer.unwrap();
    for text in ["the cat sat on the mat", " two  spaces", "Grüße, 世界!", "a\nb", ""] {
        assert_eq!(again.encode(text).unwrap(), tokenizer.encode(text).unwrap(), "{text}");
    }
}

/// A way to split texts that has no name is said, and not replaced by another one.
#[test]
fn a_tokenizer_without_a_name_is_left_out_with_a_note() {
    let split = |pattern: &str| {
        json!({ "type": "Sequence", "pretokenizers": [
            { "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated",
              "invert": false },
            { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
              "use_regex": false },
        ] })
    };
    let json = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": split("\\w+"),
        "post_processor": null, "decoder": null,
        "model": { "type": "BPE", "vocab": { "a": 0, "b": 1, "ab": 2 }, "merges": [["a", "b"]] },
    });
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("tokenizer.json");
    fs::write(&path, json.to_string()).unwrap();
    let tokenizer = Tokenizer::read(&path, 4).unwrap();
    let weights = weights(Tensor::from_f32([1usize, 256], &[0.0; 256]));
    let mut model = model(&weights);
    model.tokenizer = Some(&tokenizer);
    let (_, notes) = written(&model, GgufType::F16).unwrap();
    assert!(notes.iter().any(|note| note.contains("splits texts in a way")), "{notes:?}");
}
