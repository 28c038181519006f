//! Token files: the tokens of their texts, whole or refused, and runs that learn from them.

use crate::training::StopAfter;
use overdrive_cpu::CpuBackend;
use overdrive_formats::huggingface::Tokenizer;
use overdrive_ir::Graph;
use overdrive_models::find;
use overdrive_train::data::{Dataset, Parts, Token, Tokenized, Tokens, books, open, tokenize};
use overdrive_train::{Checkpoint, Fit, Recipe, TrainError, fit};
use proptest::prelude::*;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// The tokenizer of a tiny model.
fn fixture(name: &str) -> Tokenizer {
    let models =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-studies/tests/pretrained");
    Tokenizer::read(&models.join(name).join("tokenizer.json"), usize::MAX).unwrap()
}

/// A tokenizer of words, of single characters else, and of `?` for any other.
fn of_words(folder: &Path, words: &[String]) -> Tokenizer {
    let ascii = (0..128u8).map(|byte| char::from(byte).to_string());
    let tokens = ascii.chain(words.iter().cloned()).enumerate();
    let vocabulary: serde_json::Map<String, serde_json::Value> =
        tokens.map(|(id, token)| (token, id.into())).collect();
    let file = serde_json::json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "post_processor": null,
        "decoder": null, "truncation": null, "padding": null,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[a-z0-9]+| "},
            "behavior": "Isolated", "invert": false},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "?"},
    });
    let path = folder.join("tokenizer.json");
    fs::write(&path, file.to_string()).unwrap();
    Tokenizer::read(&path, usize::MAX).unwrap()
}

/// Texts by the names of their files, and the token file `made.tokens` of them.
struct Made {
    folder: TempDir,
    texts: Vec<PathBuf>,
}

impl Made {
    fn of(texts: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let write = |(name, text): &(&str, &str)| {
            let path = folder.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        Self { texts: texts.iter().map(write).collect(), folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("made.tokens")
    }

    fn tokenize(
        &self,
        tokenizer: &Tokenizer,
        separator: Option<u32>,
    ) -> Result<Option<Tokenized>, TrainError> {
        let (file, mut told) = (self.file(), Vec::new());
        let mut tell = |done, all| {
            told.push((done, all));
            ControlFlow::Continue(())
        };
        let made = tokenize(&self.texts, (tokenizer, separator), (&file, &file), &mut tell);
        if made.is_ok() {
            let (done, all) = told.last().unwrap();
            assert!(done == all && told.is_sorted(), "{told:?}");
        }
        made
    }

    fn tokens(&self) -> Arc<Tokens> {
        text_of(&self.file())
    }
}

fn text_of(path: &Path) -> Arc<Tokens> {
    match open(path.to_str().unwrap()).unwrap() {
        Dataset::Text(tokens) => tokens,
        Dataset::Samples(_) => panic!("{path:?} is text"),
    }
}

fn all(tokens: &Tokens) -> Vec<Token> {
    tokens.tokens(0, tokens.len() as usize).unwrap()
}

/// Sentences without a pattern that repeats with pieces or blocks.
fn sentences(count: usize) -> String {
    let one = |i: usize| format!("{i} ships; {} came\n  home (by {}),\n\n", i * i, i % 17);
    (0..count).map(one).collect()
}

#[test]
fn tokens_of_a_file_are_those_of_the_whole_text() {
    let text = sentences(12_000);
    let made = Made::of(&[("a.txt", &text)]);
    for (name, other) in [("gpt2", "bert"), ("bert", "gpt2")] {
        let tokenizer = fixture(name);
        let _ = fs::remove_file(made.file());
        let told = made.tokenize(&tokenizer, None).unwrap().unwrap();
        let (tokens, expected) = (all(&made.tokens()), tokenizer.tokens(&text).unwrap());
        assert_eq!((told.tokens, told.text_bytes), (tokens.len() as u64, text.len() as u64));
        assert!(tokens.len() > 2 << 16, "more than two blocks: {}", tokens.len());
        assert!(tokens == expected, "{name}: tokens differ");
        // A text that is encoded when it is opened takes the same way.
        let encoded = text_of(&made.texts[0]).encoded(&tokenizer).unwrap();
        assert!(all(&encoded) == expected, "{name}: tokens of the text differ");
        let read = made.tokens().read((1 << 16) - 3, 9).unwrap();
        let ids: Vec<u32> = expected.iter().map(|(id, _)| *id).collect();
        assert_eq!(read, ids[(1 << 16) - 3..][..9], "across two blocks");
        let hashes = |tokens: &Arc<Tokens>| {
            let parts = Parts::of_text(tokens, 64).unwrap();
            [parts.train, parts.validation, parts.test].map(|part| part.hash().unwrap())
        };
        assert_eq!(hashes(&made.tokens()), hashes(&encoded), "the same data have one hash");
        let other = text_of(&made.texts[0]).encoded(&fixture(other)).unwrap();
        assert_ne!(hashes(&other), hashes(&encoded));
    }
}

#[test]
fn large_ids_and_long_tokens_keep_their_values() {
    let words: Vec<String> = (0..70_000).map(|i| format!("w{i}")).collect();
    let long = "z".repeat(100_000);
    let text = format!("w69999 w3 {} {long} w65407 w65408 w65409\n", "z".repeat(255));
    let made = Made::of(&[("a.txt", &text)]);
    let tokenizer = of_words(made.folder.path(), &words);
    made.tokenize(&tokenizer, None).unwrap();
    let tokens = made.tokens();
    assert_eq!(tokens.vocabulary(), 70_128);
    let mark = u32::from(b'?');
    let space = (u32::from(b' '), 1);
    let found = all(&tokens);
    assert_eq!(found[..5], [(70_127, 6), space, (131, 2), space, (mark, 255)]);
    // A word without white space around it is cut where a piece ends.
    let lengths: u32 = found.iter().filter(|(id, _)| *id == mark).map(|(_, bytes)| bytes).sum();
    assert_eq!(lengths, 255 + 100_000);
    assert!(found.iter().any(|(_, bytes)| *bytes > 1 << 15));
    assert_eq!(found.iter().map(|(_, bytes)| *bytes as usize).sum::<usize>(), text.len());
    let ids: Vec<u32> = found[found.len() - 6..].iter().map(|(id, _)| *id).collect();
    assert_eq!(ids, [65_535, 32, 65_536, 32, 65_537, 10]);
}

#[test]
fn documents_end_with_the_separator() {
    let lines = "{\"text\": \"b\\n c\", \"id\": 1}\n\n{\"text\": \"a\"}\n";
    let made = Made::of(&[("a.txt", "a b"), ("b.jsonl", lines), ("c.txt", "c")]);
    let tokenizer = of_words(made.folder.path(), &["end".to_owned()]);
    made.tokenize(&tokenizer, tokenizer.id("end")).unwrap();
    let ids = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let documents = ["a b", "b\n c", "a", "c"];
    let expected: Vec<u32> =
        documents.iter().flat_map(|text| [ids(text), vec![128]].concat()).collect();
    let tokens = made.tokens();
    assert_eq!(tokens.read(0, tokens.len() as usize).unwrap(), expected);
    assert_eq!(all(&tokens).iter().map(|(_, bytes)| bytes).sum::<u32>(), 3 + 4 + 1 + 1);
    fs::remove_file(made.file()).unwrap();
    fs::write(&made.texts[1], "{\"text\": \"a\"}\n{\"words\": \"b\"}\n").unwrap();
    let error = made.tokenize(&tokenizer, None).unwrap_err().to_string();
    assert!(error.contains("b.jsonl, line 2: expected a JSON object with a `text`"), "{error}");
    fs::remove_file(made.file()).unwrap();
    fs::write(&made.texts[2], b"c \xff").unwrap();
    let error = made.tokenize(&tokenizer, None).unwrap_err().to_string();
    assert!(error.contains("c.txt: expected UTF-8 text, found other bytes at offset 2"), "{error}");
    assert!(!made.file().exists(), "texts are looked at first");
}

/// A cut to a number of tokens is for rows of a model; a corpus would end there.
#[test]
fn a_tokenizer_that_cuts_does_not_cut_a_corpus() {
    let text = sentences(200);
    let made = Made::of(&[("a.txt", &text)]);
    let path = made.folder.path().join("tokenizer.json");
    of_words(made.folder.path(), &[]);
    let mut file: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    file["truncation"] = serde_json::json!({
        "direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0,
    });
    fs::write(&path, file.to_string()).unwrap();
    let tokenizer = Tokenizer::read(&path, usize::MAX).unwrap();
    assert_eq!(tokenizer.encode(&text).unwrap().len(), 8);
    let told = made.tokenize(&tokenizer, None).unwrap().unwrap();
    assert!(told.tokens > 1000, "{told:?}");
}

#[test]
fn work_that_is_ended_before_says_so() {
    let made = Made::of(&[("a.txt", &sentences(9000))]);
    let (file, mut calls) = (made.file(), 0);
    let mut once = |_, _| {
        calls += 1;
        ControlFlow::Break(())
    };
    let ended = tokenize(&made.texts, (&fixture("gpt2"), None), (&file, &file), &mut once);
    assert_eq!((ended.unwrap(), calls), (None, 1));
    // The bytes that were written until then are no token file.
    let error = open(file.to_str().unwrap()).and_then(|data| data.windows(64)).err();
    assert!(error.is_some());
}

/// A small token file of three long tokens and some others.
fn small() -> (Made, Vec<u8>, Vec<Token>) {
    let text = format!("{} a b {0} c {0}\n", "z".repeat(300));
    let made = Made::of(&[("a.txt", &text)]);
    let tokenizer = of_words(made.folder.path(), &[]);
    made.tokenize(&tokenizer, None).unwrap();
    let (bytes, tokens) = (fs::read(made.file()).unwrap(), all(&made.tokens()));
    (made, bytes, tokens)
}

/// Opens a file of these bytes and reads all of it.
fn read(made: &Made, bytes: &[u8]) -> Result<Vec<Token>, String> {
    let path = made.file();
    fs::write(&path, bytes).unwrap();
    let tokens = Tokens::of_file(&path).map_err(|error| error.to_string())?;
    let read = tokens.tokens(0, tokens.len() as usize);
    read.map_err(|error| error.to_string())
}

#[test]
fn any_change_of_any_byte_is_an_error_that_names_the_file() {
    let (made, whole, tokens) = small();
    assert_eq!(read(&made, &whole).unwrap(), tokens);
    for place in 0..whole.len() {
        for flipped in [1, 0x80] {
            let mut bytes = whole.clone();
            bytes[place] ^= flipped;
            let error = read(&made, &bytes).expect_err(&format!("byte {place}"));
            assert!(error.contains("made.tokens") && error.contains("expected"), "{error}");
        }
    }
    for length in 16..whole.len() {
        let error = read(&made, &whole[..length]).expect_err(&format!("{length} bytes"));
        assert!(error.contains("made.tokens") && error.contains("cut short"), "{error}");
    }
    let error = read(&made, &[whole.clone(), vec![0]].concat()).unwrap_err();
    assert!(error.contains("for the 12 tokens of its header"), "{error}");
    let mut newer = whole.clone();
    newer[16] = 2;
    let error = read(&made, &newer).unwrap_err();
    assert!(error.contains("expected a token file of version 1, found version 2"), "{error}");
    assert!(read(&made, b"").unwrap_err().contains("an empty file"));
}

#[test]
fn a_damaged_block_is_found_when_it_is_read_and_others_are_given() {
    let made = Made::of(&[("a.txt", &sentences(12_000))]);
    made.tokenize(&fixture("gpt2"), None).unwrap();
    let mut bytes = fs::read(made.file()).unwrap();
    let expected = all(&made.tokens());
    // In the second block of 65,536 tokens of 3 bytes.
    bytes[120 + (3 << 16) + 9] ^= 4;
    fs::write(made.file(), &bytes).unwrap();
    let tokens = made.tokens();
    assert_eq!(tokens.tokens(0, 1 << 16).unwrap(), expected[..1 << 16]);
    for _ in 0..2 {
        let error = tokens.tokens((1 << 16) - 1, 2).unwrap_err().to_string();
        assert!(
            error.contains("made.tokens, tokens 65536 to 131071: expected checksum"),
            "{error}"
        );
        assert!(error.contains("it is damaged; make it again"), "{error}");
    }
    assert_eq!(tokens.tokens(1 << 17, 9).unwrap(), expected[1 << 17..][..9]);
}

#[test]
fn a_file_that_is_cut_while_it_is_open_is_an_error() {
    let (made, _, _) = small();
    let tokens = made.tokens();
    fs::OpenOptions::new().write(true).open(made.file()).unwrap().set_len(50).unwrap();
    let error = tokens.read(0, 2).unwrap_err().to_string();
    assert!(error.contains("made.tokens: expected") && error.contains("found 50"), "{error}");
}

#[test]
fn a_file_of_another_tokenizer_is_refused_with_both_names() {
    let made = Made::of(&[("a.txt", "some words")]);
    made.tokenize(&fixture("gpt2"), None).unwrap();
    let tokens = made.tokens();
    assert!(Arc::ptr_eq(&tokens, &tokens.encoded(&fixture("gpt2")).unwrap()));
    let error = tokens.encoded(&fixture("bert")).unwrap_err().to_string();
    for word in ["made.tokens: expected tokens of", "bert/tokenizer.json", "gpt2/tokenizer.json"] {
        assert!(error.contains(word), "{error}");
    }
    // Written again by us, a tokenizer is the same.
    let copy = made.folder.path().join("copy.json");
    for name in ["gpt2", "bert"] {
        let tokenizer = fixture(name);
        tokenizer.write(&copy).unwrap();
        let again = Tokenizer::read(&copy, usize::MAX).unwrap();
        assert_eq!(tokenizer.digest(), again.digest(), "{name}");
    }
}

fn text_model() -> Graph {
    (find("text-transformer").unwrap().build)().unwrap()
}

/// A run that is resumed from a token file, opened anew, ends as one on the text that was not
/// interrupted.
#[test]
fn a_run_on_a_token_file_is_resumed_bit_for_bit() {
    let made = Made::of(&[("a.txt", &sentences(3000))]);
    let tokenizer = of_words(made.folder.path(), &["ships".to_owned(), "came".to_owned()]);
    made.tokenize(&tokenizer, None).unwrap();
    let (model, backend) = (text_model(), CpuBackend::new(Some(1)).unwrap());
    let parts = |tokens: Arc<Tokens>| {
        let mut parts = Dataset::Text(tokens).parts(&model, 0).unwrap();
        parts.validation = Arc::new(overdrive_train::data::Subset::evenly(parts.validation, 2));
        parts
    };
    let recipe = Recipe { steps: 4, batch: 2, evaluate_every: 2, ..Recipe::default() };
    let file = made.folder.path().join("checkpoint");
    let whole = parts(text_of(&made.texts[0]).encoded(&tokenizer).unwrap());
    let whole = fit(&Fit::anew((&backend, &model), &recipe, &whole), &mut ()).unwrap();
    let first = parts(made.tokens());
    let first = Fit { checkpoint: Some(&file), ..Fit::anew((&backend, &model), &recipe, &first) };
    assert_eq!(fit(&first, &mut StopAfter(1)).unwrap().progress.done, 1);
    let checkpoint = Checkpoint::read(&file).unwrap();
    let again = parts(made.tokens());
    let again = Fit { resume: Some(&checkpoint), ..Fit::anew((&backend, &model), &recipe, &again) };
    assert_eq!(fit(&again, &mut ()).unwrap(), whole);
    // Other tokens are other data.
    let other = parts(books());
    let other = Fit { resume: Some(&checkpoint), ..Fit::anew((&backend, &model), &recipe, &other) };
    let error = fit(&other, &mut ()).unwrap_err().to_string();
    assert!(error.contains("training samples"), "{error}");
}

proptest! {
    /// For any bytes behind a magic there is an error, and never a panic.
    #[test]
    fn readers_of_token_files_survive_any_bytes(
        bytes in prop::collection::vec(any::<u8>(), 0..300),
    ) {
        let made = Made::of(&[]);
        let bytes = [&b"\x89overdrivetokens\x01\0\0\0"[..], &bytes].concat();
        prop_assert!(read(&made, &bytes).is_err());
    }
}
