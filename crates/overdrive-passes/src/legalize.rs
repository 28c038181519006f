//! Legalize: expands every composite that the device has no kernel for.
//!
//! Nothing falls back silently: each expansion is a note that the plan shows. Invariant: afterwards
//! every node is a primitive, a claimed composite or `fused`.

use crate::cse::merge;
use overdrive_ir::plan::Note;
use overdrive_ir::{Caps, Expr, Graph, GraphError, Node, Operation, TensorType};

/// Expands unclaimed composites into primitives, all the way down.
pub fn legalize(graph: &Graph, caps: &Caps, notes: &mut Vec<Note>) -> Result<Graph, GraphError> {
    graph.rewrite(&mut |b, node, operands| {
        let types = types(operands);
        if !must_expand(node, &types, caps) {
            return None;
        }
        let declined = declined(&node.op, &types, caps);
        let reason = declined.unwrap_or_else(|| format!("{} has no kernel for it", caps.device));
        notes.push(Note::Expanded { op: node.op.name(), scope: node.scope.to_string(), reason });
        let flat = expansion(node, operands, caps);
        // Says where the primitives came from, so that what they fuse into keeps a name.
        let _scope = b.scope_path(&scope_of(&node.op));
        Some(b.inline(&flat, operands))
    })
}

/// The graph in primitives alone, as a device without kernels of its own would have it.
///
/// # Errors
/// When the graph is ill-formed.
pub fn to_primitives(graph: &Graph) -> Result<Graph, GraphError> {
    legalize(graph, &Caps::default(), &mut Vec::new())
}

/// Computes once what kernels would compute several times from the same values for composites that
/// were expanded: layers that share their input share its quantization, and the updates of all
/// parameters the numbers that depend on the step alone, which would be a loop for each. What loops
/// compute else is left to them: it is cheap where it is needed.
pub(crate) fn share(graph: &Graph) -> Result<Graph, GraphError> {
    merge(graph, |graph, node| {
        let is_number = node.results.iter().all(|v| graph.ty(*v).elements() == 1);
        expanded_from(&node.scope).is_some() && (node.op.prim().is_none() || is_number)
    })
}

/// Opens the last part of the scope of a node that a composite was expanded into.
const EXPANDED: char = '#';

/// The scope of what a composite is expanded into, within its own.
pub(crate) fn scope_of(op: &Operation) -> String {
    format!("{EXPANDED}{}", op.name())
}

/// The composite that a node of this scope was expanded from, if it was.
pub(crate) fn expanded_from(scope: &str) -> Option<&str> {
    scope.rsplit('/').next()?.strip_prefix(EXPANDED)
}

/// The scope in the model's own terms.
pub(crate) fn model_scope(scope: &str) -> &str {
    match expanded_from(scope) {
        Some(op) => scope[..scope.len() - op.len() - EXPANDED.len_utf8()].trim_end_matches('/'),
        None => scope,
    }
}

/// True for a composite that the device does not run as such. A kernel that also takes the op's
/// regions says so by a second claim, `attention with regions`.
pub(crate) fn must_expand(node: &Node, types: &[TensorType], caps: &Caps) -> bool {
    let regions = || caps.claims.contains(&format!("{} with regions", node.op.name()));
    let whole = is_claimed(&node.op, types, caps) && (node.regions.is_empty() || regions());
    node.op.prim().is_none() && !whole
}

/// True for a composite whose kernel hands its result to an epilogue, as a contraction does: a
/// product by another name. The device says so by a second claim, `quantized_linear with epilogue`.
pub(crate) fn takes_epilogue(op: &Operation, caps: &Caps) -> bool {
    op.prim().is_none() && caps.claims.contains(&format!("{} with epilogue", op.name()))
}

/// True for an op that the device has a kernel for: all of its forms, by its name, or those with an
/// attribute of one value, by a claim such as `quantized_linear activations=float`; not where the
/// device declines these types of operands.
pub(crate) fn is_claimed(op: &Operation, types: &[TensorType], caps: &Caps) -> bool {
    // Conversions of whole bytes are loops: what has a kernel is named with the type that it reads.
    let of_type = |ty: &TensorType| caps.claims.contains(&format!("{} of {}", op.name(), ty.dtype));
    types.first().is_some_and(of_type) || is_named(op, caps) && declined(op, types, caps).is_none()
}

fn is_named(op: &Operation, caps: &Caps) -> bool {
    let name = op.name();
    let form = |(key, value): (String, serde_json::Value)| {
        value.as_str().is_some_and(|value| caps.claims.contains(&format!("{name} {key}={value}")))
    };
    caps.claims.contains(&name) || op.prim().is_none() && op.attributes().into_iter().any(form)
}

/// Why the device does not take an op that it claims.
fn declined(op: &Operation, types: &[TensorType], caps: &Caps) -> Option<String> {
    let Operation::Composite(composite) = op else { return None };
    if is_named(op, caps) {
        caps.declines.and_then(|declines| declines(composite, types))
    } else {
        None
    }
}

/// The types of a node's operands.
pub(crate) fn types(operands: &[Expr<'_>]) -> Vec<TensorType> {
    operands.iter().map(|e| e.ty()).collect()
}

/// The primitives of one node, as a graph of its own.
fn expansion(node: &Node, operands: &[Expr<'_>], caps: &Caps) -> Graph {
    primitives(&node.op.expansion(&types(operands), &node.regions), caps)
}

/// A state-free graph with every unclaimed composite expanded, repeatedly.
pub(crate) fn primitives(graph: &Graph, caps: &Caps) -> Graph {
    let expanded = graph.rewrite(&mut |b, node, operands| {
        if !must_expand(node, &types(operands), caps) {
            return None;
        }
        Some(b.inline(&expansion(node, operands, caps), operands))
    });
    expanded.unwrap_or_else(|e| panic!("expansions are well typed: {e}"))
}
