//! A tokenizer.json as the header's tokens: the inverse of [`tokenizer`](super::tokenizer).
//!
//! Token types are those of llama.cpp, and so are the names of ways to split a text.

use super::layout::HeaderValue;
use super::splits::{LLAMA3, QWEN2};
use serde_json::Value as Json;
use std::collections::BTreeMap;

/// Kinds of tokens.
const NORMAL: i64 = 1;
const UNKNOWN: i64 = 2;
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;
const UNUSED: i64 = 5;
const BYTE: i64 = 6;

/// Tokens that the header names.
pub(super) struct TokenRoles<'r> {
    /// The first one of a text by the model's settings.
    pub(super) first: Option<u32>,
    /// The one that ends a text.
    pub(super) last: Option<u32>,
    /// The ids of an empty text: what stands around every one.
    pub(super) around: &'r [u32],
}

/// The keys of a tokenizer whose model has a table of so many rows, or why there are none.
pub(super) fn keys(
    json: &Json,
    rows: usize,
    roles: &TokenRoles<'_>,
) -> Result<Vec<(String, HeaderValue)>, String> {
    let model = &json["model"];
    if !["BPE", ""].contains(&model["type"].as_str().unwrap_or_default()) {
        return Err(format!("its model is {}, expected BPE", model["type"]));
    }
    let listed = listed(json, rows)?;
    let merges = merges(model)?;
    let mut keys = Vec::new();
    let mut set = |name: &str, value| keys.push((format!("tokenizer.ggml.{name}"), value));
    let has_bytes = model["byte_fallback"] == true;
    if has_bytes {
        set("model", HeaderValue::Text("llama".to_owned()));
        set("add_space_prefix", HeaderValue::Bool(has_prefix(json)));
        set("scores", HeaderValue::Floats(scores(&listed, &merges)));
    } else {
        set("model", HeaderValue::Text("gpt2".to_owned()));
        set("pre", HeaderValue::Text(split(&json["pre_tokenizer"])?.to_owned()));
        set("merges", HeaderValue::Texts(merges.iter().map(|merge| merge.join(" ")).collect()));
    }
    let (first, last) = match *roles.around {
        [] => (None, None),
        [one] if Some(one) == roles.last && roles.first != roles.last => (None, Some(one)),
        [first] => (Some(first), None),
        [first, last] => (Some(first), Some(last)),
        _ => return Err(format!("it puts {} tokens around a text", roles.around.len())),
    };
    if last.is_some_and(|id| Some(id) != roles.last) {
        return Err(format!("it ends a text with {last:?}, the model with {:?}", roles.last));
    }
    let mut id = |name: &str, id: Option<u32>| {
        if let Some(id) = id {
            set(&format!("{name}_token_id"), HeaderValue::Integer(id.into()));
        }
    };
    id("bos", first.or(roles.first));
    id("eos", roles.last);
    set("add_bos_token", HeaderValue::Bool(first.is_some()));
    set("add_eos_token", HeaderValue::Bool(last.is_some()));
    let (tokens, kinds): (Vec<_>, Vec<_>) = listed.into_iter().unzip();
    set("tokens", HeaderValue::Texts(tokens));
    set("token_type", HeaderValue::Integers(kinds));
    Ok(keys)
}

/// Every token with its kind, by id; rows of the table that no token has are named as llama.cpp's
/// converter names them.
fn listed(json: &Json, rows: usize) -> Result<Vec<(String, i64)>, String> {
    let model = &json["model"];
    let vocabulary = model["vocab"].as_object().ok_or("it has no vocabulary")?;
    let mut tokens: BTreeMap<u64, (String, i64)> = BTreeMap::new();
    let has_bytes = model["byte_fallback"] == true;
    for (token, id) in vocabulary {
        let is_byte = has_bytes && token.len() == 6 && token.starts_with("<0x");
        let kind = match model["unk_token"] == **token {
            true => UNKNOWN,
            false if is_byte => BYTE,
            false => NORMAL,
        };
        tokens.insert(id.as_u64().ok_or("an id is no number")?, (token.clone(), kind));
    }
    for added in json["added_tokens"].as_array().into_iter().flatten() {
        let (Some(id), Some(token)) = (added["id"].as_u64(), added["content"].as_str()) else {
            return Err("an added token has no id or no content".to_owned());
        };
        let kind = if added["special"] == true { CONTROL } else { USER_DEFINED };
        let known = tokens.get(&id).is_some_and(|(_, kind)| *kind == UNKNOWN);
        tokens.insert(id, (token.to_owned(), if known { UNKNOWN } else { kind }));
    }
    if let Some((id, _)) = tokens.last_key_value().filter(|(id, _)| **id >= rows as u64) {
        return Err(format!("it has id {id}, and the model {rows} tokens"));
    }
    let token = |id| tokens.remove(&id).unwrap_or_else(|| (format!("[PAD{id}]"), UNUSED));
    Ok((0..rows as u64).map(token).collect())
}

/// The two parts of each merge; older files have them in one text.
fn merges(model: &Json) -> Result<Vec<[String; 2]>, String> {
    let merge = |merge: &Json| -> Option<[String; 2]> {
        let owned = |parts: (&str, &str)| [parts.0.to_owned(), parts.1.to_owned()];
        match (merge.as_str(), merge.as_array().map(Vec::as_slice)) {
            (Some(text), _) => text.split_once(' ').map(owned),
            (None, Some([left, right])) => Some(owned((left.as_str()?, right.as_str()?))),
            _ => None,
        }
    };
    let all = model["merges"].as_array().ok_or("it has no merges")?;
    all.iter().map(merge).collect::<Option<_>>().ok_or("a merge is no pair".to_owned())
}

/// The name of how a text is split into words.
fn split(pre_tokenizer: &Json) -> Result<&'static str, String> {
    let parts = match pre_tokenizer["type"] == "Sequence" {
        true => pre_tokenizer["pretokenizers"].as_array().cloned().unwrap_or_default(),
        false => vec![pre_tokenizer.clone()],
    };
    let plain = |part: &Json| part["type"] == "ByteLevel" && part["add_prefix_space"] != true;
    match &parts[..] {
        [bytes] if plain(bytes) && bytes["use_regex"] != false => Ok("gpt-2"),
        [words, bytes] if plain(bytes) && words["type"] == "Split" => {
            match words["pattern"]["Regex"].as_str() {
                Some(LLAMA3) => Ok("llama-bpe"),
                Some(QWEN2) => Ok("qwen2"),
                _ => Err("it splits texts in a way that has no name here".to_owned()),
            }
        }
        _ => Err("it splits texts in a way that has no name here".to_owned()),
    }
}

/// Whether a space goes in front of a text.
fn has_prefix(json: &Json) -> bool {
    let normalizer = &json["normalizer"];
    let parts = normalizer["normalizers"].as_array().cloned();
    let parts = parts.unwrap_or_else(|| vec![normalizer.clone()]);
    let words = &json["pre_tokenizer"];
    let is_metaspace = words["type"] == "Metaspace" && words["prepend_scheme"] != "never";
    is_metaspace || parts.iter().any(|part| part["type"] == "Prepend")
}

/// Scores by which SentencePiece makes the same merges in the same order: a token has that of its
/// first merge. Others are never made, and have the least.
fn scores(listed: &[(String, i64)], merges: &[[String; 2]]) -> Vec<f64> {
    let mut first: BTreeMap<String, usize> = BTreeMap::new();
    for (rank, merge) in merges.iter().enumerate() {
        first.entry(merge.concat()).or_insert(rank);
    }
    let score = |(token, kind): &(String, i64)| match (first.get(token), *kind) {
        (_, UNKNOWN | CONTROL | BYTE) => 0.0,
        (Some(rank), _) => -(*rank as f64),
        (None, _) => -(merges.len() as f64),
    };
    listed.iter().map(score).collect()
}
