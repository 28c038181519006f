//! Differences between the names in files and those of states that are known and harmless:
//! prefixes, buffers, heads.
//!
//! Checkpoints of one architecture differ by who saved them: the bare model or one with a head, an
//! old version or a new one. Each rule here says in a note what it did. Invariant: no value is
//! changed, and what no rule knows stays, to be listed as a difference.

use super::facts::Facts;
use overdrive_formats::Tensors;
use overdrive_ir::Graph;
use std::collections::{BTreeMap, BTreeSet};

/// The tensors of a folder, sorted.
pub(super) struct Fitted {
    /// Under the names of the states of the graph, and with what no rule knows.
    pub(super) tensors: Tensors,
    /// States whose names here and in the files differ by a prefix: name of the state, name in the
    /// files.
    pub(super) renamed: BTreeMap<String, String>,
    /// Tensors known to be no part of the graph, under their own names.
    pub(super) left_out: Tensors,
}

/// The tensors under the names of the states of `graph`, without what is known to be no part of it.
pub(super) fn fit(
    facts: &Facts,
    graph: &Graph,
    tensors: Tensors,
    notes: &mut Vec<String>,
) -> Fitted {
    let states: BTreeSet<&str> = graph.states().iter().map(|state| state.name.as_str()).collect();
    let known = |name: &str| {
        let packed = PACKED.iter().filter_map(|part| name.strip_suffix(part));
        [name].into_iter().chain(packed).any(|name| states.contains(name))
    };
    let mut fitted = Tensors::new();
    let (mut renamed, mut left_out) = (BTreeMap::new(), Tensors::new());
    for (name, tensor) in tensors {
        let own = candidates(facts, &name).into_iter().find(|other| known(other));
        match own {
            Some(own) => {
                // Two names for one state: the second stays under its own, which is then a
                // difference.
                let free = if fitted.contains_key(&own) { name.clone() } else { own };
                if free != name {
                    renamed.insert(free.clone(), name);
                }
                fitted.insert(free, tensor);
            }
            None if facts.leaves_out(&name) => _ = left_out.insert(name, tensor),
            None => _ = fitted.insert(name, tensor),
        }
    }
    let mut said: Vec<String> =
        renamed.iter().map(|(own, name)| format!("{name} is {own}")).collect();
    said.sort();
    note(notes, "tensors have other names in the files", said);
    let said = left_out.keys().cloned().collect();
    note(notes, "tensors are no part of this graph and left out", said);
    if let Some(head) = facts.head_weight().filter(|_| facts.tied)
        && !states.contains(head.as_str())
        && !fitted.contains_key(&head)
    {
        notes.push("the output layer shares the embedding's weights".to_owned());
    }
    Fitted { tensors: fitted, renamed, left_out }
}

/// The layer of `graph` that the files call `name`, or that name where there is none.
pub(super) fn layer_of(facts: &Facts, graph: &Graph, name: &str) -> String {
    let states: BTreeSet<&str> = graph.states().iter().map(|state| state.name.as_str()).collect();
    let weights = candidates(facts, &format!("{name}.weight"));
    let found = weights.iter().find(|weight| states.contains(weight.as_str()));
    let layer = found.and_then(|weight| weight.strip_suffix(".weight"));
    layer.unwrap_or(name).to_owned()
}

/// Suffixes that compressed-tensors adds to the name of a weight, if a graph has no state of that
/// name.
const PACKED: [&str; 3] = ["_packed", "_shape", "_global_scale"];

/// Names that a tensor's state may have, the likeliest first.
pub(super) fn candidates(facts: &Facts, name: &str) -> Vec<String> {
    let prefix = facts.prefix;
    // TensorFlow's names of scale and shift of a norm.
    let newer = match (name.strip_suffix(".gamma"), name.strip_suffix(".beta")) {
        (Some(stem), _) => format!("{stem}.weight"),
        (_, Some(stem)) => format!("{stem}.bias"),
        (None, None) => name.to_owned(),
    };
    let stripped = newer.strip_prefix(prefix).map(str::to_owned);
    let prefixed = format!("{prefix}{newer}");
    [Some(newer), stripped, Some(prefixed)].into_iter().flatten().collect()
}

fn note(notes: &mut Vec<String>, what: &str, names: Vec<String>) {
    const LISTED: usize = 4;
    if names.is_empty() {
        return;
    }
    let more = if names.len() > LISTED { ", ..." } else { "" };
    notes.push(format!(
        "{} {what}: {}{more}",
        names.len(),
        names[..names.len().min(LISTED)].join(", ")
    ));
}
