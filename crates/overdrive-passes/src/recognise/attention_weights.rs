//! Traces attention weights back to their scores, through the softmax and the ops around it.
//!
//! Exporters guard rows that see no key, and training drops weights. A model with sinks (gpt-oss)
//! joins a column of logits to the scores and cuts its weights off again. Its eager attention also
//! takes the maximum of each row off first. Invariant: what is found multiplies the same numbers
//! with the values, up to rounding.

use super::movement::{DimFactor, Movement, trace};
use super::number::number;
use crate::nan_guard::nan_guard;
use overdrive_ir::ops::{Dropout, Softmax};
use overdrive_ir::{Binary, Graph, Node, Prim, Reducer, Value};

/// The parts of attention weights.
pub(super) struct AttentionWeights {
    /// Before the softmax, without a column of sinks.
    pub(super) scores: Value,
    /// The column of sinks, whose weights nobody reads.
    pub(super) column: Option<Value>,
    /// Whether weights that are no numbers become 0.
    pub(super) guarded: bool,
    pub(super) dropout: Option<Dropout>,
    pub(super) seed: Option<Value>,
}

impl AttentionWeights {
    /// Those of a value, whose last dimension is that of the keys. Adds the values between it and
    /// the scores to `interior`.
    pub(super) fn of(graph: &Graph, value: Value, interior: &mut Vec<Value>) -> Option<Self> {
        let mut found =
            Self { scores: value, column: None, guarded: false, dropout: None, seed: None };
        let (mut at, mut cut) = (value, false);
        let softmax = loop {
            interior.push(at);
            let node = graph.producer(at)?;
            let guard = nan_guard(graph, node);
            if let Some([test, _, inner]) =
                guard.filter(|&[_, other, _]| number(graph, other) == Some(0.0))
            {
                interior.push(test);
                (found.guarded, at) = (true, inner);
            } else if let Some(dropout) = node.op.composite::<Dropout>() {
                // Numbers are drawn for the weights of keys alone, and once.
                if cut || found.dropout.is_some() {
                    return None;
                }
                (found.dropout, found.seed) = (Some(*dropout), Some(node.operands[1]));
                at = node.operands[0];
            } else if is_cut(graph, node) && !cut {
                (cut, at) = (true, node.operands[0]);
            } else {
                break node;
            }
        };
        let last = graph.ty(at).rank() - 1;
        if softmax.op.composite::<Softmax>()?.axis != last {
            return None;
        }
        found.scores = softmax.operands[0];
        if cut {
            let joined = unshifted(graph, found.scores, interior).unwrap_or(found.scores);
            let node = graph.producer(joined)?;
            let (Some(Prim::Concat { axis }), &[scores, column]) =
                (node.op.prim(), &node.operands[..])
            else {
                return None;
            };
            if *axis != last || graph.ty(column).sizes()[last] != 1 {
                return None;
            }
            interior.push(joined);
            (found.scores, found.column) = (scores, Some(column));
        }
        Some(found)
    }
}

/// Whether a node leaves out the last column and nothing else.
fn is_cut(graph: &Graph, node: &Node) -> bool {
    let Some(Prim::Slice { start, limit, stride }) = node.op.prim() else { return false };
    let mut kept = graph.ty(node.operands[0]).sizes();
    if let Some(columns) = kept.last_mut() {
        *columns = columns.saturating_sub(1);
    }
    start.iter().all(|&n| n == 0) && stride.iter().all(|&n| n == 1) && *limit == kept
}

/// x of `x - max(x)`, each row less its maximum, which no softmax sees.
fn unshifted(graph: &Graph, value: Value, interior: &mut Vec<Value>) -> Option<Value> {
    let node = graph.producer(value)?;
    let (Some(Prim::Binary { kind: Binary::Sub }), &[x, shift]) =
        (node.op.prim(), &node.operands[..])
    else {
        return None;
    };
    let (mut at, mut between) = (shift, vec![value]);
    loop {
        between.push(at);
        let node = graph.producer(at)?;
        match node.op.prim()? {
            Prim::Broadcast { .. } | Prim::Reshape { .. } => at = node.operands[0],
            Prim::Reduce { reducer: Reducer::Max, axes } => {
                let last = graph.ty(x).rank() - 1;
                // The same maximum for all columns of a row, and each row its own.
                let moved = trace(graph, shift).filter(|moved| moved.source == at)?;
                let (rows, columns) = moved.movement.dims.split_at(last);
                let is_own = rows.iter().flatten().all(|part| matches!(part, DimFactor::Source(_)))
                    && columns.iter().flatten().all(|part| matches!(part, DimFactor::Repeat(_)));
                let found = node.operands[0] == x && *axes == [last] && is_own;
                if found {
                    interior.extend(between);
                }
                return found.then_some(x);
            }
            _ => return None,
        }
    }
}

/// A logit of each head.
pub(super) struct Sink {
    pub(super) source: Value,
    /// To `[H]`.
    pub(super) movement: Movement,
    pub(super) factor: f64,
}

impl Sink {
    /// Those of a column `[..., T, 1]`, which differs along the dimension of heads alone.
    pub(super) fn of(graph: &Graph, column: Value, heads: Option<usize>) -> Option<Self> {
        let moved = trace(graph, column)?;
        let is_repeated =
            |dim: &[DimFactor]| dim.iter().all(|part| matches!(part, DimFactor::Repeat(_)));
        let dims = &moved.movement.dims;
        let fits = (0..dims.len()).all(|i| Some(i) == heads || is_repeated(&dims[i]));
        let own = heads.map_or(vec![], |heads| dims[heads].clone());
        let movement = moved.movement.arranged(vec![own]);
        fits.then_some(Self { source: moved.source, movement, factor: moved.factor })
    }
}
