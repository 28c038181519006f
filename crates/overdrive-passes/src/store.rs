//! `store` keeps states in a narrower number format and widens them where they are read.
//!
//! Widening is exact, so weights that a file has in bf16 give the same results at half of the
//! memory. Ops that only move numbers (rows of a table, slices, views) run on the narrow state, and
//! their result is widened. An embedding thus never widens its whole table. A state that is written
//! in part (a cache of keys) takes what is written rounded to its format. Every conversion is a
//! node; `precision` in the same format removes those before contractions.

use crate::rebuild::rebuild_states;
use overdrive_ir::{
    DType, Expr, Graph, GraphError, Operation, Prim, StateDecl, TensorType, Types, Value,
};
use std::collections::HashSet;

/// The graph with the f32 states for which `choose` gives a format declared in that format. States
/// that are updated as a whole, and states that are outputs, keep their type.
pub fn store(
    graph: &Graph,
    choose: &dyn Fn(&str, &TensorType) -> Option<DType>,
) -> Result<Graph, GraphError> {
    let outputs: HashSet<Value> = graph.outputs().iter().map(|port| port.value).collect();
    let format = |state: &StateDecl| {
        let (ty, in_part) = (graph.ty(state.value), written_in_part(graph, state));
        let is_shown =
            [Some(state.value), state.update].iter().flatten().any(|v| outputs.contains(v));
        let may_change = ty.dtype == DType::F32 && !is_shown && in_part;
        if may_change { choose(&state.name, ty) } else { None }
    };
    let retype = |state: &StateDecl| {
        let ty = graph.ty(state.value);
        format(state).map_or(ty.clone(), |low| ty.with_dtype(low))
    };
    rebuild_states(graph, &Clone::clone, &retype, &mut |place| {
        let regions = place.node.regions.clone();
        let before = graph.types(&place.node.operands);
        let now: Vec<TensorType> = place.operands.iter().map(|operand| operand.ty()).collect();
        let low = now.first().map(|ty| ty.dtype).filter(|dtype| *dtype != before[0].dtype);
        let is_shown = place.node.results.iter().any(|v| outputs.contains(v));
        let mut operands = place.operands.clone();
        let part = place.node.op.prim().and_then(Prim::written_part);
        match (low.filter(|_| !is_shown), part) {
            (Some(low), Some(part)) => operands[part] = operands[part].convert(low),
            (Some(_), None) if moves(&place.node.op, &now, &regions) => {}
            _ => operands = place.operands.iter().zip(&before).map(widened).collect(),
        }
        Ok(place.builder.node(place.node.op.clone(), &operands, regions))
    })
}

/// An operand in the type that it had.
fn widened<'b>((operand, before): (&Expr<'b>, &TensorType)) -> Expr<'b> {
    if operand.dtype() == before.dtype { *operand } else { operand.convert(before.dtype) }
}

/// Whether a state is never updated, or by writing a part of it where it is.
fn written_in_part(graph: &Graph, state: &StateDecl) -> bool {
    state.update.is_none_or(|update| {
        graph.producer(update).is_some_and(|node| {
            node.op.prim().is_some_and(|prim| prim.written_part().is_some())
                && node.operands[0] == state.value
        })
    })
}

/// Whether an op with these operands gives numbers of the first one and computes none.
pub fn moves(op: &Operation, types: &[TensorType], regions: &[Graph]) -> bool {
    match op {
        Operation::Prim(prim) => matches!(
            prim,
            Prim::Reshape { .. }
                | Prim::Transpose { .. }
                | Prim::Slice { .. }
                | Prim::Gather { .. }
                | Prim::DynamicSlice { .. }
        ),
        Operation::Composite(_) => {
            if op.infer(&Types { operands: types, regions }).is_err() {
                return false;
            }
            let expansion = op.expansion(types, regions);
            !expansion.nodes().is_empty()
                && expansion
                    .nodes()
                    .iter()
                    .all(|n| moves(&n.op, &expansion.types(&n.operands), &n.regions))
        }
    }
}
