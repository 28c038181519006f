//! `tokens`: what it writes, what learns from it, and what is refused with nothing left behind.
#![cfg(unix)]

use crate::invocation::Folder;
use crate::signals::Underway;
use std::fs;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../overdrive-studies/tests/pretrained").join(name)
}

/// A folder with a text and two models.
fn prepared(repeats: usize) -> Folder {
    let folder = Folder::new();
    let text = "the hand and the tin in a thin band; another hand than the other. ".repeat(repeats);
    fs::write(folder.path("words.txt"), text).unwrap();
    for name in ["gpt2", "bert"] {
        std::os::unix::fs::symlink(fixture(name), folder.path(name)).unwrap();
    }
    folder
}

fn json(path: &Path) -> serde_json::Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn a_model_learns_the_same_from_a_token_file_as_from_its_text() {
    let folder = prepared(300);
    folder
        .line("tokens words.txt --tokenizer gpt2 -o words.tokens")
        .ends(0, &["of text", "MB/s on", "tokens: words.tokens", "--data words.tokens"]);
    let train = |data: &str, out: &str| {
        folder.line(&format!(
            "train gpt2 --data {data} --steps 3 --tokens 16 --device cpu --threads 1 -o {out}"
        ))
    };
    train("words.txt", "of-text").ends(0, &["model: of-text"]);
    train("words.tokens", "of-tokens").ends(0, &["model: of-tokens"]);
    let [text, tokens] =
        ["of-text", "of-tokens"].map(|out| json(&folder.path(out).join("training.json")));
    for field in ["splits_sha256", "test_loss_nats", "test_bits_per_byte"] {
        assert!(!text[field].is_null());
        assert_eq!(text[field], tokens[field], "{field}");
    }
    let [text, tokens] =
        ["of-text", "of-tokens"].map(|out| fs::read(folder.path(out).join("model.safetensors")));
    assert_eq!(text.unwrap(), tokens.unwrap());
    let quiet = folder.line("tokens words.txt --tokenizer gpt2/tokenizer.json -o again.tokens -q");
    assert!(quiet.ends(0, &[]).stdout.starts_with("tokens: again.tokens"), "{quiet:?}");
    assert_eq!(quiet.stdout.lines().count(), 1);
    folder
        .line("train gpt2 --data words.tokens --tokenizer bert/tokenizer.json --device cpu -o none")
        .ends(2, &["words.tokens: expected tokens of", "bert/tokenizer.json", "`gpt2/tokenizer"]);
    folder
        .line("train text-transformer --data words.tokens --steps 1 --device cpu -o none")
        .ends(2, &["at most 256 classes, found 266"]);
    let path = folder.path("words.tokens");
    let whole = fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(&path, damaged).unwrap();
    train("words.tokens", "none").ends(2, &["words.tokens, tokens 0 to", "it is damaged"]);
    fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    train("words.tokens", "none").ends(2, &["words.tokens: expected", "it is cut short"]);
    assert!(!folder.files().iter().any(|file| file.starts_with("none")));
}

#[test]
fn requests_that_cannot_be_met_leave_nothing() {
    let folder = prepared(10);
    fs::write(folder.path("latin.txt"), b"caf\xe9").unwrap();
    fs::write(folder.path("empty.txt"), b"").unwrap();
    let before = folder.files();
    for (arguments, words) in [
        ("gone.txt --tokenizer gpt2", &["cannot open gone.txt"][..]),
        ("/dev/zero --tokenizer gpt2", &["found a pipe or a device"]),
        ("gpt2 --tokenizer gpt2", &["gpt2: expected a file, found a folder"]),
        ("latin.txt --tokenizer gpt2", &["latin.txt: expected UTF-8 text", "offset 3", "iconv"]),
        (
            "words.txt empty.txt --tokenizer gpt2",
            &["empty.txt: expected text, found an empty file"],
        ),
        ("words.txt --tokenizer words.txt", &["words.txt", "expected a tokenizer"]),
        ("words.txt --tokenizer gone", &["cannot open gone"]),
        (
            "words.txt --tokenizer gpt2 --separator <none>",
            &["--separator: expected a token of `gpt2/tokenizer.json`, found `<none>`"],
        ),
    ] {
        folder.line(&format!("tokens {arguments} -o out.tokens")).ends(2, words);
        assert_eq!(folder.files(), before, "{arguments}");
    }
    let kept = folder.line("tokens words.txt --tokenizer gpt2 -o words.txt");
    kept.ends(2, &["`words.txt` is an input of this command"]);
    let kept = folder.line("tokens words.txt --tokenizer gpt2 -o words.txt --force");
    kept.ends(2, &["expected a new file, or a token file", "found `words.txt`"]);
    let line = "tokens words.txt --tokenizer gpt2 -o words.tokens";
    folder.line(line).ends(0, &[]);
    folder.line(line).ends(2, &["`words.tokens` exists; --force replaces it"]);
    folder.line(&format!("{line} --force")).ends(0, &["tokens: words.tokens"]);
    folder
        .line("tokens words.tokens --tokenizer gpt2 -o more.tokens")
        .ends(2, &["words.tokens: expected text, found a token file"]);
}

#[test]
fn a_full_disk_and_a_signal_leave_nothing() {
    let folder = prepared(40_000);
    let before = folder.files();
    let line = "tokens words.txt --tokenizer gpt2 -o out.tokens";
    let full = folder.shell(&format!("ulimit -f 300; overdrive {line}"));
    full.ends(2, &["cannot write out.tokens: File too large"]);
    assert_eq!(folder.files(), before);
    let mut underway = Underway::line(&folder, line);
    underway.makes(&folder.path(".out.tokens.overdrive-part/out.tokens"));
    underway.send("TERM").end().ends(143, &["nothing was written"]);
    assert_eq!(folder.files(), before);
    // A kill leaves a part, which the next run takes away.
    let mut underway = Underway::line(&folder, line);
    underway.makes(&folder.path(".out.tokens.overdrive-part/out.tokens"));
    underway.kill();
    assert!(!folder.path("out.tokens").exists());
    folder.line(line).ends(0, &["tokens: out.tokens"]);
    let mut now = folder.files();
    now.retain(|file| file != "out.tokens");
    assert_eq!(now, before);
}
