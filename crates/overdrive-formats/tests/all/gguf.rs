//! Files of GGUF against what the package `gguf` and SentencePiece make of them, and damaged ones.
//!
//! `peers/gguf_files.py` made the fixtures.

use overdrive_formats::{gguf, npz};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf")
}

#[test]
fn a_tokenizer_of_sentence_piece_gives_its_ids() {
    let file = gguf::read(&folder().join("spm.gguf")).unwrap();
    let tokenizer = file.tokenizer.unwrap();
    let expected = fs::read_to_string(folder().join("spm.json")).unwrap();
    let expected: Vec<(String, Vec<u32>)> = serde_json::from_str(&expected).unwrap();
    for (text, ids) in expected {
        let found = tokenizer.encode(&text).unwrap();
        // A text begins with the token for it, which the file's own model does not add.
        assert_eq!(found[..1], [1], "{text}");
        assert_eq!(found[1..], ids, "{text}");
        assert_eq!(tokenizer.decode(&found).unwrap(), text);
    }
}

#[test]
fn every_type_is_decoded_as_the_package_does() {
    let expected = npz::read(&folder().join("blocks.npz")).unwrap();
    let found =
        gguf::decode(Path::new("blocks.gguf"), fs::read(folder().join("blocks.gguf")).unwrap());
    let found = found.unwrap();
    assert_eq!(found.len(), expected.len());
    for (name, tensor) in &expected {
        assert_eq!(&found[name], tensor, "{name}");
    }
}

#[track_caller]
fn refused(bytes: &[u8], words: &[&str]) {
    let error = gguf::decode(Path::new("m.gguf"), bytes.to_vec()).unwrap_err().to_string();
    words.iter().for_each(|word| assert!(error.contains(word), "`{word}` is not in: {error}"));
}

#[test]
fn what_does_not_hold_together_is_an_error() {
    let whole = fs::read(folder().join("blocks.gguf")).unwrap();
    refused(b"", &["4 bytes more"]);
    refused(b"GGML\x03\0\0\0", &["GGUF at the beginning"]);
    refused(b"GGUF\0\0\0\x03", &["version 2 or 3, the lowest byte first"]);
    for end in 0..whole.len() - 32 {
        assert!(gguf::decode(Path::new("m.gguf"), whole[..end].to_vec()).is_err(), "{end} bytes");
    }
    let header = |keys: u64, tensors: u64, rest: &[u8]| {
        [b"GGUF\x03\0\0\0", &tensors.to_le_bytes()[..], &keys.to_le_bytes(), rest].concat()
    };
    refused(&header(u64::MAX, 0, b""), &["8 bytes more"]);
    refused(&header(0, u64::MAX, b""), &["8 bytes more"]);
    // A key of 2^63 bytes; a list of 2^64 numbers.
    refused(&header(1, 0, &(1u64 << 63).to_le_bytes()), &["bytes more"]);
    let list = [&1u64.to_le_bytes()[..], b"k", &[9, 0, 0, 0, 0, 0, 0, 0], &[255; 8]].concat();
    refused(&header(1, 0, &list), &["1 bytes more"]);
    let nested = [&1u64.to_le_bytes()[..], b"k", &[9, 0, 0, 0, 9, 0, 0, 0], &[1; 8]].concat();
    refused(&header(1, 0, &nested), &["a list of numbers or texts"]);
    let tensor = |name: &str, sizes: &[u64], kind: u32, offset: u64| {
        let sizes_of: Vec<u8> = sizes.iter().flat_map(|size| size.to_le_bytes()).collect();
        let name_of = [&(name.len() as u64).to_le_bytes()[..], name.as_bytes()].concat();
        let rank = (sizes.len() as u32).to_le_bytes();
        [&name_of, &rank[..], &sizes_of, &kind.to_le_bytes(), &offset.to_le_bytes()].concat()
    };
    let one = |tensors: &[Vec<u8>]| {
        let mut bytes = header(0, tensors.len() as u64, &tensors.concat());
        bytes.resize(bytes.len().next_multiple_of(32) + 64, 0);
        bytes
    };
    refused(&one(&[tensor("w", &[17], 0, 0)]), &["w:", "a file of"]);
    refused(&one(&[tensor("w", &[u64::MAX, u64::MAX], 0, 0)]), &["w:"]);
    refused(&one(&[tensor("w", &[1 << 40, 1 << 40], 0, 0)]), &["w:"]);
    refused(&one(&[tensor("w", &[4], 0, u64::MAX)]), &["w:", "a file of"]);
    refused(&one(&[tensor("w", &[33], 2, 0)]), &["w:", "whole blocks of 32"]);
    refused(&one(&[tensor("w", &[4], 99, 0)]), &["`w` as one of F32", "Q6_K", "type 99"]);
    refused(&one(&[tensor("w", &[1; 5], 0, 0)]), &["at most 4 dimensions"]);
    let same = [tensor("a", &[4], 0, 0), tensor("b", &[4], 0, 8)];
    refused(&one(&same), &["b:", "bytes of its own"]);
    let twice = [tensor("a", &[4], 0, 0), tensor("a", &[4], 0, 16)];
    refused(&one(&twice), &["a:", "a second of this name"]);
}

proptest! {
    #[test]
    fn no_change_is_harmful(
        at in any::<prop::sample::Index>(),
        bytes in prop::collection::vec(any::<u8>(), 1..9),
    ) {
        let mut file = fs::read(folder().join("spm.gguf")).unwrap();
        // The header, and not the numbers.
        let at = at.index(file.len() - 2500);
        file[at..at + bytes.len()].copy_from_slice(&bytes);
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("m.gguf");
        fs::write(&path, file).unwrap();
        _ = gguf::read(&path);
    }
}
