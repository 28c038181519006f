//! Sums, products and similar ops as terms in any order and association.

use overdrive_ir::{Binary, Graph, Node, Prim, Value};

/// Operands of one sum or product that are matched in any order.
const MOST_TERMS: usize = 5;

/// Whether its operands may change places.
pub(super) fn commutes(kind: Binary) -> bool {
    matches!(kind, Binary::Add | Binary::Mul | Binary::Max | Binary::Min | Binary::And | Binary::Or)
}

/// The operands of a value that is a sum (or product...).
fn terms_of(graph: &Graph, value: Value, kind: Binary) -> Option<[Value; 2]> {
    let node = graph.producer(value)?;
    let same = matches!(node.op.prim(), Some(Prim::Binary { kind: found }) if *found == kind);
    same.then(|| [node.operands[0], node.operands[1]])
}

/// The terms of the whole sum (or product...) that ends in `node`.
pub(super) fn leaves(graph: &Graph, node: &Node, kind: Binary) -> Vec<Value> {
    let mut pending = vec![node.operands[1], node.operands[0]];
    let mut leaves = Vec::new();
    while let Some(value) = pending.pop() {
        match terms_of(graph, value, kind)
            .filter(|_| pending.len() + leaves.len() + 2 <= MOST_TERMS)
        {
            Some([a, b]) => pending.extend([b, a]),
            None => leaves.push(value),
        }
    }
    leaves
}

/// Matches every term of a pattern with another of the graph's, by trial. `matches` says whether
/// two terms match, and `matcher` remembers what that binds. A trial that fails leaves no trace in
/// it.
pub(super) fn match_terms<M: Clone>(
    matcher: &mut M,
    pattern: &[Value],
    graph: &mut Vec<Value>,
    matches: fn(&mut M, Value, Value) -> bool,
) -> bool {
    let Some((&first, rest)) = pattern.split_first() else { return true };
    for i in 0..graph.len() {
        let before = matcher.clone();
        let term = graph.remove(i);
        if matches(matcher, first, term) && match_terms(matcher, rest, graph, matches) {
            return true;
        }
        graph.insert(i, term);
        *matcher = before;
    }
    false
}

/// The ways to read `value` as a sum (or product...) of `count` terms.
pub(super) fn splits(graph: &Graph, value: Value, kind: Binary, count: usize) -> Vec<Vec<Value>> {
    if count == 1 {
        return vec![vec![value]];
    }
    let Some([a, b]) = terms_of(graph, value, kind) else { return vec![] };
    let mut ways = Vec::new();
    for left in 1..count {
        let right = splits(graph, b, kind, count - left);
        for first in splits(graph, a, kind, left) {
            ways.extend(right.iter().map(|second| [&first[..], second].concat()));
        }
    }
    ways
}
