//! The linear layers that a recipe of fp8 leaves in float, as lines for the user.

use overdrive::passes::Skipped;
use std::collections::BTreeMap;

/// The layers that are not on codes of fp8, a line for each reason.
pub(crate) fn by_reason(layers: &[Skipped]) -> Vec<String> {
    let mut by_reason: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for Skipped { layer, reason } in layers {
        by_reason.entry(reason).or_default().push(layer);
    }
    let line = |(reason, layers): (&str, Vec<&str>)| {
        format!("not on codes of fp8, since {reason}: {}", layers.join(", "))
    };
    by_reason.into_iter().map(line).collect()
}
