//! `Compression`: the schemes, and their names.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How gradients are sent for ranks to sum them. Text and JSON have the same names: `f32`, `bf16`,
/// `int8`, `fp8`, `topk:0.01`, `powersgd:4`.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Compression {
    /// As they are, in two hops. No byte is saved, but copies between devices can carry both hops,
    /// which occupy no multiprocessor.
    F32,
    /// Rounded to bf16, in two hops.
    Bf16,
    /// Codes of int8 with a scale for each block, in two hops.
    Int8,
    /// The same with codes of fp8 (e4m3).
    Fp8,
    /// The largest elements alone, the others later.
    TopK {
        /// Share of the elements that each rank sends, above 0 and at most 1.
        share: f64,
    },
    /// Two thin factors of each matrix.
    PowerSgd {
        /// Columns of each factor, from 1 to 32.
        rank: usize,
    },
}

/// Most columns of a factor. They are made orthogonal one after another, so that many take long.
const MOST_COLUMNS: usize = 32;

/// Why a text names no compression.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a compression: expected {expected}, found `{found}`; write it like `{example}`")]
pub struct BadCompression {
    /// The expected text.
    pub expected: &'static str,
    /// The text found.
    pub found: String,
    /// A text that is right.
    pub example: &'static str,
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F32 => f.write_str("f32"),
            Self::Bf16 => f.write_str("bf16"),
            Self::Int8 => f.write_str("int8"),
            Self::Fp8 => f.write_str("fp8"),
            Self::TopK { share } => write!(f, "topk:{share}"),
            Self::PowerSgd { rank } => write!(f, "powersgd:{rank}"),
        }
    }
}

impl FromStr for Compression {
    type Err = BadCompression;

    fn from_str(text: &str) -> Result<Self, BadCompression> {
        let bad = |expected, example| BadCompression { expected, found: text.to_owned(), example };
        let (name, value) = text.split_once(':').map_or((text, None), |(n, v)| (n, Some(v)));
        match (name, value) {
            ("f32", None) => Ok(Self::F32),
            ("bf16", None) => Ok(Self::Bf16),
            ("int8", None) => Ok(Self::Int8),
            ("fp8", None) => Ok(Self::Fp8),
            ("topk", value) => {
                let share = value.and_then(|value| value.parse::<f64>().ok());
                let share = share.filter(|share| *share > 0.0 && *share <= 1.0);
                let wrong = || bad("a share above 0 and at most 1", "topk:0.01");
                share.map(|share| Self::TopK { share }).ok_or_else(wrong)
            }
            ("powersgd", value) => {
                let rank = value.and_then(|value| value.parse::<usize>().ok());
                let rank = rank.filter(|rank| (1..=MOST_COLUMNS).contains(rank));
                let wrong = || bad("a rank from 1 to 32", "powersgd:4");
                rank.map(|rank| Self::PowerSgd { rank }).ok_or_else(wrong)
            }
            _ => Err(bad("f32, bf16, int8, fp8, topk:SHARE or powersgd:RANK", "int8")),
        }
    }
}

impl TryFrom<String> for Compression {
    type Error = BadCompression;

    fn try_from(text: String) -> Result<Self, BadCompression> {
        text.parse()
    }
}

impl From<Compression> for String {
    fn from(scheme: Compression) -> Self {
        scheme.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_read_as_they_are_written() {
        for text in ["f32", "bf16", "int8", "fp8", "topk:0.01", "topk:1", "powersgd:4"] {
            let scheme: Compression = text.parse().unwrap();
            assert_eq!(scheme.to_string(), text);
            let json = serde_json::to_string(&scheme).unwrap();
            assert_eq!(json, format!("{text:?}"));
            assert_eq!(serde_json::from_str::<Compression>(&json).unwrap(), scheme);
        }
        for text in ["", "int4", "int8:2", "topk", "topk:0", "topk:1.5", "topk:NaN", "powersgd:0"] {
            let error = text.parse::<Compression>().unwrap_err().to_string();
            assert!(error.contains("write it like"), "{error}");
        }
    }
}
