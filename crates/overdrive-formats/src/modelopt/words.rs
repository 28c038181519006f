//! `quantization_config` of Model Optimizer, written and read.

use crate::FormatError;
use crate::huggingface::Config;
use serde_json::{Value as Json, json};
use std::path::Path;

/// `quant_method` of a config.json.
const METHOD: &str = "modelopt";
/// `quant_algo` of layers whose activations stay as they are.
const WEIGHTS_ALONE: &str = "W4A16_NVFP4";
/// That of layers whose activations engines round too.
const ACTIVATIONS_TOO: &str = "NVFP4";
/// The file of a folder whose config.json has no words.
const FILE: &str = "hf_quant_config.json";
/// Most bytes of such a file.
const MOST: u64 = 1 << 24;

/// Both ways in which a folder says what it holds.
#[derive(Debug)]
pub struct Words {
    /// `quantization_config` of config.json.
    pub config: Json,
    /// The content of `hf_quant_config.json`.
    pub file: Json,
}

impl Words {
    /// The name of the file.
    pub const FILE: &str = FILE;
}

/// The words about a folder in which these modules stay in float.
pub fn words(float: &[String]) -> Words {
    let producer = json!({ "name": "overdrive", "version": env!("CARGO_PKG_VERSION") });
    let weights = json!({ "dynamic": false, "num_bits": 4, "type": "float", "group_size": 16 });
    Words {
        config: json!({
            "config_groups": { "group_0": { "weights": weights, "targets": ["Linear"] } },
            "ignore": float, "quant_algo": WEIGHTS_ALONE, "group_size": 16,
            "producer": producer, "quant_method": METHOD,
        }),
        file: json!({
            "producer": producer,
            "quantization": {
                "quant_algo": WEIGHTS_ALONE, "kv_cache_quant_algo": null, "group_size": 16,
                "exclude_modules": float,
            },
        }),
    }
}

/// The words of such a folder.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ModelOptConfig {
    /// Whether engines are meant to round activations to NVFP4.
    pub activations_too: bool,
}

impl ModelOptConfig {
    /// `quant_method` of such a folder.
    pub const NAME: &str = METHOD;

    /// Reads `quantization_config`, or the file beside config.json where that has none; `None` of
    /// another method.
    ///
    /// # Errors
    /// When the codes are of a kind that is not known here.
    pub fn read(config: &Config, folder: Option<&Path>) -> Result<Option<Self>, FormatError> {
        const FIELD: &str = "quantization_config";
        let words = &config.to_json()[FIELD];
        let wrong = |field: &str, expected: &str, found: &Json| {
            config.wrong(&format!("{FIELD}.{field}"), expected, &found.to_string())
        };
        if !words.is_null() {
            let method = words["quant_method"].as_str().unwrap_or_default();
            return match method.starts_with(METHOD) {
                true => Self::of(words, &wrong).map(Some),
                false => Ok(None),
            };
        }
        let Some(path) = folder.map(|folder| folder.join(FILE)).filter(|path| path.exists()) else {
            return Ok(None);
        };
        let text = overdrive_files::read_text(&path, MOST)?;
        let words: Json = serde_json::from_str(&text)
            .map_err(|error| FormatError::damaged(&path, "text", "JSON", error))?;
        let wrong = |field: &str, expected: &str, found: &Json| {
            FormatError::damaged(&path, field, expected, found)
        };
        Self::of(&words, &wrong).map(Some)
    }

    fn of(
        words: &Json,
        wrong: &dyn Fn(&str, &str, &Json) -> FormatError,
    ) -> Result<Self, FormatError> {
        let inner = &words["quantization"];
        let words = if inner.is_object() { inner } else { words };
        let refused = |field: &str, expected: &str| {
            wrong(field, expected, &words[field])
                .remedy("take the folder that it was quantized from")
        };
        let known = [WEIGHTS_ALONE, ACTIVATIONS_TOO];
        let algo = words["quant_algo"].as_str().unwrap_or_default().to_ascii_uppercase();
        if !known.contains(&algo.as_str()) {
            return Err(refused("quant_algo", &known.join(" or ")));
        }
        if !words["group_size"].is_null() && words["group_size"] != 16 {
            return Err(refused("group_size", "16"));
        }
        Ok(Self { activations_too: algo == ACTIVATIONS_TOO })
    }
}
