//! Attend: `softmax(f(q kᵀ)) v` becomes attention with a score function, where the device has a
//! kernel for it.
//!
//! Everything between the product and the softmax is read as a function of one score
//! (`score_function.rs`). Invariant: a row whose scores are all -∞ is either guarded or impossible,
//! because its softmax is NaN and its attention 0.

mod operand;

use crate::nan_guard::nan_guard;
use crate::rebuild::{rebuild, regions};
use crate::score_function::{ScoreFunction, constant, heads};
use operand::Operand;
use overdrive_ir::ops::attention::score_region;
use overdrive_ir::ops::{Attention, Softmax};
use overdrive_ir::{Call, DType, Expr, Graph, GraphError, Node, Operation, Prim, Target, Value};
use std::collections::HashMap;

/// The graph with attention in place of products around a softmax; as it is, for a device that has
/// no kernel for it.
pub(crate) fn attend(graph: &Graph, target: &dyn Target) -> Result<Graph, GraphError> {
    let op = Operation::from(Attention::FULL);
    let any = [score_region(DType::F32, &[], |score, _, _| score)?];
    if target.kernel(&Call::Op { op: &op, operands: &[], regions: &any, wanted: &[] }).is_err() {
        return Ok(graph.clone());
    }
    let uses = graph.use_counts();
    let found: HashMap<Value, AttentionProducts> = graph
        .nodes()
        .iter()
        .filter_map(|node| Some((node.results[0], find(graph, node, &uses)?)))
        .filter(|(result, found)| found.is_private(graph, *result, &uses))
        .collect();
    if found.is_empty() {
        return Ok(graph.clone());
    }
    rebuild(graph, &Clone::clone, &mut |place| {
        let Some(found) = place.node.results.first().and_then(|v| found.get(v)) else {
            return Ok(place.keep(regions(place.node, |region| Ok(region.clone()))?));
        };
        let captures = found.function.captures.iter().map(|&v| place.get(v));
        let captures: Vec<Expr<'_>> = captures.collect();
        let regions = found.function.regions(graph)?;
        let [q, k, v] = found.operands.each_ref().map(|(operand, turned)| match turned {
            true => operand.get(graph, place).transpose(&[0, 1, 3, 2]),
            false => operand.get(graph, place),
        });
        let attention = Attention { scale: Some(found.scale), ..Attention::FULL };
        Ok(vec![q.attention_with([k, v], attention, regions, &captures)[0]])
    })
}

/// Attention as products around a softmax.
struct AttentionProducts {
    /// q, k, v, and whether the last two dimensions are the other way around.
    operands: [(Operand, bool); 3],
    scale: f64,
    function: ScoreFunction,
    /// Values that attention does not need.
    interior: Vec<Value>,
}

impl AttentionProducts {
    /// Whether nothing but the attention needs what is within.
    fn is_private(&self, graph: &Graph, result: Value, uses: &[usize]) -> bool {
        let mut within: HashMap<Value, usize> = HashMap::new();
        for &value in self.interior.iter().chain([&result]) {
            let node = graph.producer(value).expect("what is within is computed");
            node.operands.iter().for_each(|&v| *within.entry(v).or_default() += 1);
        }
        self.interior.iter().all(|v| within.get(v) == Some(&uses[v.0 as usize]))
    }
}

/// The attention that `root` computes, if nobody else sees its scores.
fn find(graph: &Graph, root: &Node, uses: &[usize]) -> Option<AttentionProducts> {
    // The op itself rounds its sum to the type of the operands.
    let rounded = matches!(root.op.prim(), Some(Prim::Convert { .. }));
    let node = if rounded { graph.producer(root.operands[0])? } else { root };
    let weighted = heads(node)?;
    let mut interior = vec![node.operands[0]];
    interior.extend(rounded.then_some(root.operands[0]));
    let mut weights = graph.producer(node.operands[0])?;
    if let Some(Prim::Convert { .. }) = weights.op.prim() {
        interior.push(weights.operands[0]);
        weights = graph.producer(weights.operands[0])?;
    }
    let is_zero = |value: Value| constant(graph, value).is_some_and(|zero| zero.to_f64() == [0.0]);
    let guarded = nan_guard(graph, weights).filter(|&[_, zero, _]| is_zero(zero));
    if let Some([guard, _, inner]) = guarded {
        interior.extend([guard, inner]);
        weights = graph.producer(inner)?;
    }
    if weights.op.composite::<Softmax>()?.axis != 3 {
        return None;
    }
    let function = ScoreFunction::of(graph, weights.operands[0], uses)?;
    let compared = graph.producer(function.product)?;
    let pairs = heads(compared)?;
    interior.extend(&function.interior);
    let dtype = graph.ty(root.results[0]).dtype;
    let matrices = [compared.operands[0], compared.operands[1], node.operands[1]];
    let plain = matrices.iter().all(|v| graph.ty(*v).dtype == dtype && graph.ty(*v).rank() == 4)
        && graph.ty(function.product).dtype == dtype.accumulation()
        && dtype.is_float();
    let safe = guarded.is_some() || !function.may_hide(graph);
    let [q, k] = [0, 1].map(|i| Operand::unscaled(graph, matrices[i]));
    let scale = function.scale * q.factor * k.factor;
    let operands = [
        (q, false),
        (k, pairs.contract[0].1 == 2),
        (Operand::whole(matrices[2]), weighted.contract[0].1 == 3),
    ];
    (plain && safe).then_some(AttentionProducts { operands, scale, function, interior })
}

#[cfg(test)]
mod tests;
