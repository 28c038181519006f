//! Common subexpression elimination: merges nodes that compute the same from the same values.
//!
//! Everything in a graph is pure, so equal operations on equal operands are equal. Random draws
//! carry their site, collectives their channel: two of them are equal only where they are meant to
//! be one.

use crate::rebuild::{live, rebuild, regions};
use overdrive_ir::{Binary, Graph, GraphError, Node, Operation, Prim, Value};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The graph with equal nodes merged into the first of them, in regions too.
pub fn cse(graph: &Graph) -> Result<Graph, GraphError> {
    merge(graph, |_, _| true, |_| None)
}

/// The same for nodes of some kinds only. Nodes for which `apart` differs stay two.
pub(crate) fn merge(
    graph: &Graph,
    kinds: fn(&Graph, &Node) -> bool,
    apart: fn(&Node) -> Option<usize>,
) -> Result<Graph, GraphError> {
    let firsts = firsts(graph, kinds, apart);
    rebuild(graph, &Clone::clone, &mut |place| {
        let twin = |v: &Value| firsts[v.0 as usize];
        if place.node.results.iter().all(|v| twin(v) == *v) {
            return Ok(place.keep(regions(place.node, |region| merge(region, kinds, apart))?));
        }
        Ok(place.node.results.iter().map(|v| place.get(twin(v))).collect())
    })
}

/// Operands, the fingerprint of an operation, and what keeps equal nodes apart.
type Alike = (Vec<Value>, u64, Option<usize>);

/// For each value the first live one that is equal to it.
fn firsts(
    graph: &Graph,
    kinds: fn(&Graph, &Node) -> bool,
    apart: fn(&Node) -> Option<usize>,
) -> Vec<Value> {
    let live = live(graph);
    let mut firsts: Vec<Value> = graph.values().collect();
    let mut seen: HashMap<Alike, Vec<&Node>> = HashMap::new();
    let wanted = |n: &&Node| kinds(graph, n) && n.results.iter().any(|v| live[v.0 as usize]);
    for node in graph.nodes().iter().filter(wanted) {
        let mut operands: Vec<Value> = node.operands.iter().map(|v| firsts[v.0 as usize]).collect();
        if commutes(&node.op) {
            operands.sort_unstable();
        }
        let alike = seen.entry((operands, fingerprint(&node.op), apart(node))).or_default();
        match alike.iter().find(|first| first.op == node.op && first.regions == node.regions) {
            Some(first) => {
                node.results
                    .iter()
                    .zip(&first.results)
                    .for_each(|(v, f)| firsts[v.0 as usize] = *f);
            }
            None => alike.push(node),
        }
    }
    firsts
}

/// Equal for equal operations, and cheap: serialising a constant's name would write out all its
/// elements.
fn fingerprint(op: &Operation) -> u64 {
    let mut hasher = DefaultHasher::new();
    match op {
        Operation::Prim(prim) => {
            std::mem::discriminant(prim).hash(&mut hasher);
            if let Prim::Constant { value } = prim {
                (value.ty(), value.bytes()).hash(&mut hasher);
            }
        }
        Operation::Composite(composite) => composite.name().hash(&mut hasher),
    }
    hasher.finish()
}

fn commutes(op: &Operation) -> bool {
    use Binary::{Add, And, Max, Min, Mul, Or, Xor};
    matches!(op.prim(), Some(Prim::Binary { kind: Add | Mul | Max | Min | And | Or | Xor }))
}
