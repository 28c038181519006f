//! Differences between the names in files and those of states that are known and harmless: prefixes, buffers, heads.
//!
//! Checkpoints of one architecture differ by who saved them: the bare model or one with a head, an old version or a new
//! one. Each rule here says in a note what it did. Invariant: no value is changed, and what no rule knows stays, to be
//! listed as a difference.

use super::Architecture;
use overdrive_formats::Tensors;
use overdrive_ir::Graph;
use std::collections::BTreeSet;

/// The tensors under the names of the states of `graph`, without what is known to be no part of it.
pub(super) fn fit(
    architecture: &Architecture,
    graph: &Graph,
    tensors: Tensors,
    notes: &mut Vec<String>,
) -> Tensors {
    let states: BTreeSet<&str> = graph.states().iter().map(|state| state.name.as_str()).collect();
    let mut fitted = Tensors::new();
    let (mut renamed, mut left_out) = (Vec::new(), Vec::new());
    for (name, tensor) in tensors {
        let own = candidates(architecture, &name).into_iter().find(|other| states.contains(other.as_str()));
        match own {
            Some(own) => {
                if own != name {
                    renamed.push(format!("{name} is {own}"));
                }
                // Two names for one state: the second stays under its own, which is then a difference.
                let free = if fitted.contains_key(&own) { name } else { own };
                fitted.insert(free, tensor);
            }
            None if is_no_part(architecture, &name) => left_out.push(name),
            None => _ = fitted.insert(name, tensor),
        }
    }
    note(notes, "tensors have other names in the files", renamed);
    note(notes, "tensors are no part of this graph and left out", left_out);
    if architecture.is_tied() && !states.contains("lm_head.weight") && !fitted.contains_key("lm_head.weight")
    {
        notes.push("the head is the table of tokens".to_owned());
    }
    fitted
}

/// Names that a tensor's state may have, the likeliest first.
fn candidates(architecture: &Architecture, name: &str) -> Vec<String> {
    let prefix = match architecture {
        Architecture::Gpt2(_) => "transformer.",
        Architecture::Llama(..) => "model.",
        Architecture::Bert(_) => "bert.",
    };
    // What TensorFlow called scale and shift of a norm.
    let newer = match (name.strip_suffix(".gamma"), name.strip_suffix(".beta")) {
        (Some(stem), _) => format!("{stem}.weight"),
        (_, Some(stem)) => format!("{stem}.bias"),
        (None, None) => name.to_owned(),
    };
    let stripped = newer.strip_prefix(prefix).map(str::to_owned);
    let prefixed = format!("{prefix}{newer}");
    [Some(newer), stripped, Some(prefixed)].into_iter().flatten().collect()
}

/// Whether a tensor is known to be none of this graph's: buffers that are computed, heads of other tasks, and the head
/// where it is the table of tokens.
fn is_no_part(architecture: &Architecture, name: &str) -> bool {
    let heads = ["cls.", "classifier.", "qa_outputs.", "pooler.", "bert.pooler."];
    match architecture {
        Architecture::Gpt2(_) => {
            name.ends_with(".attn.bias")
                || name.ends_with(".attn.masked_bias")
                || (name == "lm_head.weight" && architecture.is_tied())
        }
        Architecture::Llama(..) => {
            name.ends_with(".rotary_emb.inv_freq") || (name == "lm_head.weight" && architecture.is_tied())
        }
        Architecture::Bert(_) => {
            name.ends_with("embeddings.position_ids") || heads.iter().any(|head| name.starts_with(head))
        }
    }
}

fn note(notes: &mut Vec<String>, what: &str, names: Vec<String>) {
    const LISTED: usize = 4;
    if names.is_empty() {
        return;
    }
    let more = if names.len() > LISTED { ", ..." } else { "" };
    notes.push(format!("{} {what}: {}{more}", names.len(), names[..names.len().min(LISTED)].join(", ")));
}
