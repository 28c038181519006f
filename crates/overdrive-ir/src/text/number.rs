//! Numbers that JSON lacks: `#[serde(with = "overdrive_ir::text::number")]` on an f64 writes
//! `"inf"`, `"-inf"` and `"NaN"` as strings, where plain serde would write `null` and lose them.

use serde::{Deserialize, Deserializer, Serialize as _, Serializer, de::Error};

#[derive(Deserialize)]
#[serde(untagged)]
enum Number {
    Finite(f64),
    Named(String),
}

/// Writes a number.
pub fn serialize<S: Serializer>(number: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    match number.is_finite() {
        true => number.serialize(serializer),
        false => serializer.serialize_str(&number.to_string()),
    }
}

/// Reads what `serialize` wrote.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    match Number::deserialize(deserializer)? {
        Number::Finite(number) => Ok(number),
        Number::Named(name) => match name.as_str() {
            "inf" => Ok(f64::INFINITY),
            "-inf" => Ok(f64::NEG_INFINITY),
            "NaN" => Ok(f64::NAN),
            _ => Err(D::Error::custom(format!(
                "expected a number, \"inf\", \"-inf\" or \"NaN\", found `{name}`"
            ))),
        },
    }
}
