//! The header's tokens as a tokenizer.json: byte-level BPE, and the BPE of SentencePiece.

use super::layout::{File, HeaderValue};
use super::splits::{LLAMA3, QWEN2};
use crate::FormatError;
use serde_json::{Map, Value as Json, json};
use std::collections::BTreeMap;

/// Kinds of tokens.
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

/// Bytes of the longest token that merges make.
const LONGEST_PIECE: usize = 256;

/// The tokenizer.json, or why there is none.
pub(super) fn json(file: &File) -> Result<Result<Json, String>, FormatError> {
    let key = |name: &str| file.find(&format!("tokenizer.ggml.{name}"));
    let (Some(HeaderValue::Text(model)), Some(HeaderValue::Texts(tokens))) =
        (key("model"), key("tokens"))
    else {
        return Ok(Err("the file has none".to_owned()));
    };
    let kinds = match key("token_type") {
        Some(HeaderValue::Integers(kinds)) if kinds.len() == tokens.len() => kinds.clone(),
        _ => vec![1; tokens.len()],
    };
    let flag = |name: &str| match key(name) {
        Some(HeaderValue::Bool(flag)) => Some(*flag),
        _ => None,
    };
    let mut made = match model.as_str() {
        "gpt2" => {
            let Some(HeaderValue::Texts(merges)) = key("merges") else {
                return Err(file.wrong("tokenizer.ggml.merges", "a list of texts", "none"));
            };
            let pre = match key("pre") {
                Some(HeaderValue::Text(pre)) => pre.as_str(),
                _ => "default",
            };
            match byte_level(pre) {
                Some(parts) => with_model(parts, tokens, json!(merges)),
                None => {
                    return Ok(Err(format!("it splits texts in a way not known here, `{pre}`")));
                }
            }
        }
        "llama" => {
            let Some(HeaderValue::Floats(scores)) = key("scores") else {
                return Err(file.wrong("tokenizer.ggml.scores", "a list of numbers", "none"));
            };
            if scores.len() != tokens.len() {
                let expected = format!("{} of them", tokens.len());
                return Err(file.wrong("tokenizer.ggml.scores", expected, scores.len()));
            }
            let parts = sentence_piece(flag("add_space_prefix").unwrap_or(true));
            let mut made = with_model(parts, tokens, json!(merges(tokens, scores)));
            let unknown = kinds.iter().position(|&kind| kind == UNKNOWN);
            made["model"]["unk_token"] = unknown.map(|id| tokens[id].clone()).into();
            made["model"]["byte_fallback"] = true.into();
            made["model"]["fuse_unk"] = true.into();
            made
        }
        other => return Ok(Err(format!("it is of a kind that is not known here, `{other}`"))),
    };
    let added = tokens.iter().zip(&kinds).enumerate();
    let added = added.filter(|(_, (_, kind))| matches!(**kind, CONTROL | USER_DEFINED));
    made["added_tokens"] = added
        .map(|(id, (token, kind))| {
            json!({
                "id": id, "content": token, "special": *kind == CONTROL, "single_word": false,
                "lstrip": false, "rstrip": false, "normalized": false,
            })
        })
        .collect();
    let id_of = |name: &str| match key(name) {
        Some(HeaderValue::Integer(id)) => usize::try_from(*id).ok().filter(|&id| id < tokens.len()),
        _ => None,
    };
    let first = flag("add_bos_token").unwrap_or(model == "llama");
    let first = id_of("bos_token_id").filter(|_| first);
    let last = id_of("eos_token_id").filter(|_| flag("add_eos_token") == Some(true));
    made["post_processor"] = around(tokens, [first, last]);
    Ok(Ok(made))
}

/// Everything but the model of a tokenizer that works on bytes.
fn byte_level(pre: &str) -> Option<Json> {
    let bytes = |splits: bool| {
        json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                "use_regex": splits })
    };
    let split = |pattern: &str| {
        let split = json!({ "type": "Split", "pattern": { "Regex": pattern },
                            "behavior": "Isolated", "invert": false });
        json!({ "type": "Sequence", "pretokenizers": [split, bytes(false)] })
    };
    let (split, normalizer, ignores_merges) = match pre {
        "default" | "gpt-2" | "gpt2" => (bytes(true), Json::Null, false),
        "llama-bpe" | "llama3" | "llama-v3" => (split(LLAMA3), Json::Null, true),
        "qwen2" => (split(QWEN2), json!({ "type": "NFC" }), false),
        _ => return None,
    };
    Some(json!({ "normalizer": normalizer, "pre_tokenizer": split, "decoder": bytes(true),
                 "model": { "ignore_merges": ignores_merges } }))
}

/// Everything but the model of a tokenizer that works on characters, with `▁` for spaces.
fn sentence_piece(has_prefix: bool) -> Json {
    let replace = |from: &str, to: &str| {
        let pattern = json!({ "String": from });
        json!({ "type": "Replace", "pattern": pattern, "content": to })
    };
    let mut normalizers = vec![replace(" ", "▁")];
    let mut decoders =
        vec![replace("▁", " "), json!({ "type": "ByteFallback" }), json!({ "type": "Fuse" })];
    if has_prefix {
        normalizers.insert(0, json!({ "type": "Prepend", "prepend": "▁" }));
        decoders.push(json!({ "type": "Strip", "content": " ", "start": 1, "stop": 0 }));
    }
    json!({ "normalizer": { "type": "Sequence", "normalizers": normalizers },
            "pre_tokenizer": null, "model": {},
            "decoder": { "type": "Sequence", "decoders": decoders } })
}

fn with_model(mut parts: Json, tokens: &[String], merges: Json) -> Json {
    let vocabulary: Map<String, Json> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), id.into())).collect();
    parts["version"] = "1.0".into();
    parts["model"]["type"] = "BPE".into();
    parts["model"]["vocab"] = vocabulary.into();
    parts["model"]["merges"] = merges;
    parts
}

/// The merges that SentencePiece makes without listing them. Any two pieces that form a piece are
/// merged, the highest score first.
fn merges(tokens: &[String], scores: &[f64]) -> Vec<[String; 2]> {
    let ids: BTreeMap<&str, usize> =
        tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id)).collect();
    let mut found = Vec::new();
    // Longer ones are no pieces of a text, and would take a time that grows with their square.
    let short = tokens.iter().zip(scores).filter(|(token, _)| token.len() <= LONGEST_PIECE);
    for (token, &score) in short {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if let (Some(&left_id), Some(&right_id)) = (ids.get(left), ids.get(right)) {
                found.push((score, [left_id, right_id], [left.to_owned(), right.to_owned()]));
            }
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    found.into_iter().map(|(_, _, merge)| merge).collect()
}

/// Tokens in front of a text and behind it.
fn around(tokens: &[String], [first, last]: [Option<usize>; 2]) -> Json {
    if first.is_none() && last.is_none() {
        return Json::Null;
    }
    let special = |id: &usize| json!({ "SpecialToken": { "id": tokens[*id], "type_id": 0 } });
    let text = [json!({ "Sequence": { "id": "A", "type_id": 0 } })];
    let single: Vec<Json> =
        first.iter().map(special).chain(text).chain(last.iter().map(special)).collect();
    let pair = json!({ "Sequence": { "id": "B", "type_id": 0 } });
    let described = |id: &usize| {
        let token = &tokens[*id];
        (token.clone(), json!({ "id": token, "ids": [id], "tokens": [token] }))
    };
    let specials: Map<String, Json> = first.iter().chain(last.iter()).map(described).collect();
    let both: Vec<Json> = single.iter().cloned().chain([pair]).collect();
    json!({ "type": "TemplateProcessing", "single": single, "pair": both,
            "special_tokens": specials })
}
