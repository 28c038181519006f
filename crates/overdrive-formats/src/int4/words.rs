//! `quantization_config` of GPTQ and AWQ, written and read.

use crate::FormatError;
use crate::huggingface::Config;
use serde_json::{Value as Json, json};

/// A format of layers.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Int4Format {
    /// That of AutoGPTQ and GPTQModel.
    Gptq,
    /// That of AutoAWQ.
    Awq,
}

impl Int4Format {
    /// Its name, `quant_method` of a config.json.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gptq => "gptq",
            Self::Awq => "awq",
        }
    }

    /// `quantization_config` of a folder whose layers have groups of this size.
    pub fn quantization_config(self, group: usize, head: Int4Head) -> Json {
        match self {
            Self::Gptq => json!({
                "quant_method": self.name(), "bits": BITS, "group_size": group,
                "desc_act": false, "sym": true, "checkpoint_format": LESS_ONE,
                "lm_head": head == Int4Head::Coded, "pack_dtype": "int32",
            }),
            Self::Awq => json!({
                "quant_method": self.name(), "bits": BITS, "group_size": group,
                "zero_point": true, "version": GEMM, "modules_to_not_convert": null,
            }),
        }
    }
}

/// Whether the output layer has codes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Int4Head {
    Float,
    Coded,
}

const BITS: usize = 4;
/// The layout of AWQ that is known here.
const GEMM: &str = "gemm";
/// GPTQ's layouts: zero points less 1, and as they are.
const LESS_ONE: &str = "gptq";
const AS_THEY_ARE: &str = "gptq_v2";

/// The entry of a config.json about such a folder.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Int4Config {
    /// The format.
    pub format: Int4Format,
    /// Whether zero points are stored less 1.
    pub(super) zeros_less_one: bool,
}

impl Int4Config {
    /// Reads `quantization_config`; `None` where it is absent or of another method.
    ///
    /// # Errors
    /// When it asks for a layout that is not known here.
    pub fn read(config: &Config) -> Result<Option<Self>, FormatError> {
        const FIELD: &str = "quantization_config";
        let json = config.to_json();
        let words = &json[FIELD];
        let format = match words["quant_method"].as_str() {
            Some("gptq") => Int4Format::Gptq,
            Some("awq") => Int4Format::Awq,
            _ => return Ok(None),
        };
        let wrong = |field: &str, expected: &str| {
            let found = words[field].to_string();
            config
                .wrong(&format!("{FIELD}.{field}"), expected, &found)
                .remedy("take the folder that it was quantized from")
        };
        let bits = if words["w_bit"].is_null() { "bits" } else { "w_bit" };
        if words[bits] != BITS {
            return Err(wrong(bits, "4"));
        }
        let (field, otherwise, known): (_, _, &[&str]) = match format {
            Int4Format::Gptq => ("checkpoint_format", LESS_ONE, &[LESS_ONE, AS_THEY_ARE]),
            Int4Format::Awq => ("version", GEMM, &[GEMM]),
        };
        let layout = words[field].as_str().unwrap_or(otherwise).to_ascii_lowercase();
        match known.contains(&layout.as_str()) {
            true => Ok(Some(Self { format, zeros_less_one: layout == LESS_ONE })),
            false => Err(wrong(field, &known.join(" or "))),
        }
    }
}
