//! `transform_config`: rotations of the inputs of layers, in the words of compressed-tensors.
//!
//! Layers have the transform `hadamard` of blocks of `head_dim` in two places. Readers apply it to
//! inputs; in the weights it is done already. Every field is written, so that a program that reads
//! and writes the config changes none. Source: `TransformConfig` of compressed-tensors 0.20.

use serde_json::{Value as Json, json};
use std::collections::BTreeMap;

/// The field of `quantization_config`.
pub const TRANSFORMS: &str = "transform_config";

/// The config of layers by the blocks of their rotations, if there is one.
pub(super) fn transform_config(rotated: &BTreeMap<usize, Vec<String>>) -> Option<Json> {
    let at = |targets: &[String], location: &str, inverse: bool| -> Json {
        json!({ "targets": targets, "location": location, "inverse": inverse, "ignore": [] })
    };
    let group = |(block, layers): (&usize, &Vec<String>)| {
        let scheme = json!({
            "type": "hadamard",
            "apply": [at(layers, "input", false), at(layers, "weight_input", true)],
            "randomize": false, "requires_grad": false, "head_dim": block,
            "precision": "torch.float32",
        });
        (format!("hadamard_{block}"), scheme)
    };
    let groups: serde_json::Map<String, Json> = rotated.iter().map(group).collect();
    (!groups.is_empty()).then(|| json!({ "config_groups": groups }))
}

/// A field that is not as expected.
#[derive(Debug, PartialEq)]
pub struct FieldDifference {
    /// Its place below the value that was compared.
    pub field: String,
    /// The value that it should have.
    pub expected: String,
    /// The value that it has.
    pub found: String,
}

/// The first field in which two values of JSON differ. A field that is absent is null.
pub fn field_difference(expected: &Json, found: &Json) -> Option<FieldDifference> {
    let below = |name: String, [expected, found]: [&Json; 2]| {
        let inner = field_difference(expected, found)?;
        Some(FieldDifference { field: format!("{name}{}", inner.field), ..inner })
    };
    match (expected, found) {
        (Json::Object(left), Json::Object(right)) => {
            let mut names = left.keys().chain(right.keys());
            names.find_map(|name| below(format!(".{name}"), [&expected[name], &found[name]]))
        }
        (Json::Array(left), Json::Array(right)) if left.len() == right.len() => {
            let mut pairs = left.iter().zip(right).enumerate();
            pairs.find_map(|(at, (left, right))| below(format!("[{at}]"), [left, right]))
        }
        _ => (expected != found).then(|| FieldDifference {
            field: String::new(),
            expected: expected.to_string(),
            found: found.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rotation_is_in_the_words_of_the_format() {
        assert_eq!(transform_config(&BTreeMap::new()), None);
        let found = transform_config(&[(32, vec!["a.b".to_owned()])].into()).unwrap();
        let at = |location: &str, inverse: bool| -> Json {
            json!({ "targets": ["a.b"], "location": location, "inverse": inverse, "ignore": [] })
        };
        let expected = json!({ "config_groups": { "hadamard_32": {
            "type": "hadamard", "apply": [at("input", false), at("weight_input", true)],
            "randomize": false, "requires_grad": false, "head_dim": 32,
            "precision": "torch.float32",
        } } });
        assert_eq!(found, expected);
    }

    #[test]
    fn the_first_field_that_differs_is_named() {
        let expected = json!({ "a": [{ "b": 1, "c": null }, 2] });
        let named = |found: Json| field_difference(&expected, &found).map(|found| found.field);
        assert_eq!(named(json!({ "a": [{ "b": 1 }, 2] })), None);
        assert_eq!(named(json!({ "a": [{ "b": 3 }, 2] })).as_deref(), Some(".a[0].b"));
        assert_eq!(named(json!({ "a": [{ "b": 1, "d": 0 }, 2] })).as_deref(), Some(".a[0].d"));
        assert_eq!(named(json!({ "a": [] })).as_deref(), Some(".a"));
        assert_eq!(named(json!(null)).as_deref(), Some(""));
        let found = field_difference(&expected, &json!({ "a": [{ "b": 1 }, "2"] })).unwrap();
        assert_eq!((found.expected.as_str(), found.found.as_str()), ("2", "\"2\""));
    }
}
