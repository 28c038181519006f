//! Files in Hugging Face's format that contradict themselves.

use overdrive_formats::huggingface::Tokenizer;
use std::fs;

/// A tokenizer of three tokens, with these fields in place of its own.
fn tokenizer(model: &str, post_processor: &str) -> String {
    format!(
        r#"{{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,
        "pre_tokenizer":null,"decoder":null,"post_processor":{post_processor},
        "model":{{"type":"BPE","dropout":null,"unk_token":null,"end_of_word_suffix":null,
        "fuse_unk":false,"byte_fallback":false,"ignore_merges":false,{model},
        "vocab":{{"a":0,"b":1,"ab":2}},"merges":[["a","b"]]}}}}"#
    )
}

#[test]
fn a_tokenizer_whose_parts_do_not_fit_is_an_error_and_no_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer.json");
    let read = |text: String| {
        fs::write(&path, text).unwrap();
        Tokenizer::read(&path, 3).map_err(|error| error.to_string())
    };
    let whole = r#""continuing_subword_prefix":null"#;
    let sound = read(tokenizer(whole, "null")).unwrap();
    assert_eq!(sound.encode("abb").unwrap(), [2, 1]);
    // The library cuts more off a token than it has, and looks up a token that nobody declared.
    let too_long = tokenizer(r#""continuing_subword_prefix":"@@@@""#, "null");
    let sequence = r#"{"Sequence":{"id":"A","type_id":0}}"#;
    let undeclared = format!(
        r#"{{"type":"TemplateProcessing",
        "single":[{{"SpecialToken":{{"id":"<s>","type_id":0}}}},{sequence}],
        "pair":[{sequence}],"special_tokens":{{}}}}"#
    );
    for text in [too_long, tokenizer(whole, &undeclared)] {
        let said = read(text).unwrap_err();
        assert!(
            said.contains("tokenizer.json") && said.contains("do not fit each other"),
            "{said}"
        );
    }
    // Every cut of a good file is read or refused.
    let text = tokenizer(whole, "null");
    for (from, length) in (0..text.len()).flat_map(|from| [1, 3, 9].map(|length| (from, length))) {
        let cut = [&text[..from], &text[text.len().min(from + length)..]].concat();
        if let Ok(tokenizer) = read(cut) {
            let _ = tokenizer.encode("ab ba").map(|ids| tokenizer.decode(&ids));
        }
    }
}
