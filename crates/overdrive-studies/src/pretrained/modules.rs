//! The words of compressed-tensors about the modules of `transformers`.
//!
//! Layers that are all alike are a class. Others are patterns, since the class that is loaded adds
//! a prefix or none. Names also differ by the age of `transformers`.

use super::facts::Facts;
use overdrive_formats::compressed_tensors::TRANSFORMS;
use serde_json::{Value, json};

/// The same words, about modules in place of layers.
pub(super) fn of_modules(facts: &Facts, mut words: Value) -> Value {
    let turned = words["dequantize"] == true;
    let Some(groups) = words["config_groups"].as_object_mut() else { return words };
    let alike = groups.len() == 1 && !turned;
    let mut quantized = Vec::new();
    for group in groups.values_mut() {
        let targets =
            if alike { json!(["Linear"]) } else { patterns(facts, &group["targets"]).into() };
        quantized.push(std::mem::replace(&mut group["targets"], targets));
    }
    // A head that shares the embedding is a module of its own all the same.
    let mut ignore: Vec<Value> =
        facts.head.filter(|_| facts.tied).map(|head| json!(head)).into_iter().collect();
    let is_table = |name: &Value| {
        let table = facts.tokens.and_then(|table| table.strip_suffix(".weight"));
        table.is_some_and(|table| name == table)
    };
    let names = words["ignore"].as_array().map(Vec::as_slice).unwrap_or_default();
    let left: Value = names.iter().filter(|name| !is_table(name)).cloned().collect();
    match (facts.newer_names.is_empty(), left) {
        (true, Value::Array(names)) => ignore.extend(names),
        (_, names) => ignore.extend(patterns(facts, &names)),
    }
    let escaped = |head: &&str| head.trim_end_matches('.').replace('.', "\\.");
    ignore.extend(facts.other_heads.iter().map(|head| json!(format!("re:{}.*", escaped(head)))));
    let transforms =
        words.get_mut(TRANSFORMS).and_then(|words| words["config_groups"].as_object_mut());
    for group in transforms.into_iter().flat_map(|groups| groups.values_mut()) {
        for at in group["apply"].as_array_mut().into_iter().flatten() {
            if alike && quantized == [at["targets"].clone()] {
                (at["targets"], at["ignore"]) = (json!(["Linear"]), json!(ignore));
            } else {
                at["targets"] = patterns(facts, &at["targets"]).into();
            }
        }
    }
    words["ignore"] = ignore.into();
    words
}

/// Patterns of the modules that layers of these names may be.
fn patterns(facts: &Facts, names: &Value) -> Vec<Value> {
    let pattern = |bare: String| json!(format!("re:(.*\\.)?{}$", bare.replace('.', "\\.")));
    let names = names.as_array().map(Vec::as_slice).unwrap_or_default();
    let modules = names.iter().filter_map(Value::as_str).flat_map(|name| facts.modules(name));
    modules.map(pattern).collect()
}
