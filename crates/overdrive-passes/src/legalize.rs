//! Legalize: expands every composite that the device has no kernel for.
//!
//! Nothing falls back silently: each expansion is a note that the plan shows. Invariant: afterwards
//! every node is a primitive, a claimed composite or `fused`.

use crate::cse::merge;
use overdrive_ir::ops::{Float8Linear, QuantizedLinear};
use overdrive_ir::plan::Note;
use overdrive_ir::{
    Call, Expr, Graph, GraphError, Node, Op, Operation, Target, TensorType, WithoutKernels,
};

/// Expands unclaimed composites into primitives, all the way down.
pub fn legalize(
    graph: &Graph,
    target: &dyn Target,
    notes: &mut Vec<Note>,
) -> Result<Graph, GraphError> {
    let uses = Uses::of(graph);
    graph.rewrite(&mut |b, node, operands| {
        let types = types(operands);
        if node.op.prim().is_some() {
            return None;
        }
        let reason = target.kernel(&Call::of(node, &types, &uses.wanted(node))).err()?;
        let mut reason = reason.reason(&target.description().device);
        let codes = node.op.composite::<Float8Linear>();
        if codes.is_some_and(|codes| codes.granularity.multiplies_numbers()) {
            reason += "; the numbers of codes are multiplied in bf16, slower than without codes";
        }
        notes.push(Note::Expanded { op: node.op.name(), scope: node.scope.to_string(), reason });
        let flat = expansion(node, operands, target);
        // The scope names the origin of the primitives, so that fused ops made of them have a name.
        let _scope = b.scope_path(&scope_of(&node.op));
        Some(b.inline(&flat, operands))
    })
}

/// The graph in primitives alone, as a device without kernels of its own would have it.
///
/// # Errors
/// When the graph is ill-formed.
pub fn to_primitives(graph: &Graph) -> Result<Graph, GraphError> {
    legalize(graph, &WithoutKernels::default(), &mut Vec::new())
}

/// Merges values of expanded composites that kernels would otherwise compute several times. Layers
/// that share their input share its codes, so that their products have one left operand. The
/// updates of all parameters share the numbers that depend on the step alone; each would be a loop.
/// Other work inside loops is not merged, since loops recompute it cheaply.
pub(crate) fn share(graph: &Graph) -> Result<Graph, GraphError> {
    let kinds = |graph: &Graph, node: &Node| {
        let Some(op) = expanded_from(&node.scope) else { return false };
        let is_number = node.results.iter().all(|v| graph.ty(*v).elements() == 1);
        let quantizes = [QuantizedLinear::NAME, Float8Linear::NAME].contains(&op);
        quantizes || node.op.prim().is_none() || is_number
    };
    merge(graph, kinds, |_| None)
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

/// How often a graph uses each of its values.
pub(crate) struct Uses<'g> {
    graph: &'g Graph,
    counts: Vec<usize>,
}

impl<'g> Uses<'g> {
    pub(crate) fn of(graph: &'g Graph) -> Self {
        Self { graph, counts: graph.use_counts() }
    }

    /// Whether each result of a node is used. A node of a region numbers other values: all of its
    /// results count as used.
    fn wanted(&self, node: &Node) -> Vec<bool> {
        let is_own = self.graph.nodes().as_ptr_range().contains(&std::ptr::from_ref(node));
        node.results.iter().map(|v| !is_own || self.counts[v.0 as usize] > 0).collect()
    }

    /// True for a composite that the device does not run as such.
    pub(crate) fn must_expand(
        &self,
        node: &Node,
        types: &[TensorType],
        target: &dyn Target,
    ) -> bool {
        let wanted = self.wanted(node);
        node.op.prim().is_none() && target.kernel(&Call::of(node, types, &wanted)).is_err()
    }
}

/// True for a composite whose kernel hands its result to an epilogue, as a contraction does: a
/// product by another name.
pub(crate) fn takes_epilogue(graph: &Graph, node: &Node, target: &dyn Target) -> bool {
    let types = graph.types(&node.operands);
    node.op.prim().is_none()
        && target.kernel(&Call::of(node, &types, &[])).is_ok_and(|kernel| kernel.takes_epilogue)
}

/// The types of a node's operands.
pub(crate) fn types(operands: &[Expr<'_>]) -> Vec<TensorType> {
    operands.iter().map(|e| e.ty()).collect()
}

/// The primitives of one node, as a graph of its own.
fn expansion(node: &Node, operands: &[Expr<'_>], target: &dyn Target) -> Graph {
    primitives(&node.op.expansion(&types(operands), &node.regions), target)
}

/// A state-free graph with every unclaimed composite expanded, repeatedly.
pub(crate) fn primitives(graph: &Graph, target: &dyn Target) -> Graph {
    let uses = Uses::of(graph);
    let expanded = graph.rewrite(&mut |b, node, operands| {
        if !uses.must_expand(node, &types(operands), target) {
            return None;
        }
        Some(b.inline(&expansion(node, operands, target), operands))
    });
    expanded.unwrap_or_else(|e| panic!("expansions are well typed: {e}"))
}
