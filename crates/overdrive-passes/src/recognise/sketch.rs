//! Sketches: whether an op could stand before a value, and what its operands would be, movements
//! and types left aside.
//!
//! A pattern is exact for the types of its operands. A value has too many candidate types around it
//! to build the pattern for each. So a sketch is built once, for the types of a sample. A match
//! with the sketch names the values that the operands could be.

use super::scene::Scene;
use super::terms::{commutes, leaves, match_terms, splits};
use overdrive_ir::{Graph, Node, Operation, Origin, Prim, Value};
use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};

/// The kind of an operation, apart from its shapes. Cheap, which names are not: that of a constant
/// holds its elements.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum OpKind {
    Prim(Discriminant<Prim>, u8),
    Composite(&'static str),
}

/// The kind of an operation.
pub(super) fn kind(op: &Operation) -> OpKind {
    let prim = match op {
        Operation::Composite(composite) => return OpKind::Composite(composite.name()),
        Operation::Prim(prim) => prim,
    };
    let which = match prim {
        Prim::Unary { kind } => *kind as u8,
        Prim::Binary { kind } => *kind as u8,
        Prim::Compare { kind } => *kind as u8,
        Prim::Reduce { reducer, .. } => *reducer as u8,
        _ => 0,
    };
    OpKind::Prim(discriminant(prim), which)
}

/// Values that each operand of the sketch's op could be, if `result` could be the op's.
pub(super) fn operands(
    sketch: &Scene<'_>,
    scene: &Scene<'_>,
    result: Value,
) -> Option<Vec<Vec<Value>>> {
    let operands = vec![Vec::new(); sketch.graph.inputs().len()];
    let mut sketching = Sketching { sketch, scene, map: HashMap::new(), operands };
    sketching.value(sketch.graph.outputs()[0].value, result).then_some(sketching.operands)
}

#[derive(Clone)]
struct Sketching<'g> {
    sketch: &'g Scene<'g>,
    scene: &'g Scene<'g>,
    /// Value of the graph for each value of the sketch, both before any movement.
    map: HashMap<Value, Value>,
    operands: Vec<Vec<Value>>,
}

impl<'g> Sketching<'g> {
    fn value(&mut self, s: Value, t: Value) -> bool {
        // Values that depend on no input may or may not be folded, depending on their size.
        if self.sketch.is_free(s) {
            return self.scene.is_free(t);
        }
        let (sketch, graph) = (self.sketch.graph, self.scene.graph);
        let (s, chain) = (unmoved(sketch, s).pop().unwrap_or(s), unmoved(graph, t));
        let t = chain.last().copied().unwrap_or(t);
        let known = self.map.get(&s).copied();
        if known.is_some_and(|known| known != t) {
            return false;
        }
        let same = match (sketch.origin(s), graph.origin(t)) {
            (Origin::Input(i), _) => {
                for value in chain {
                    if !self.operands[i].contains(&value) {
                        self.operands[i].push(value);
                    }
                }
                true
            }
            _ if known.is_some() => true,
            (Origin::Node(a, i), Origin::Node(b, j)) => {
                i == j && self.node(sketch.node(a), graph.node(b))
            }
            _ => false,
        };
        if same {
            self.map.insert(s, t);
        }
        same
    }

    fn node(&mut self, s: &'g Node, t: &'g Node) -> bool {
        if kind(&s.op) != kind(&t.op) || s.operands.len() != t.operands.len() {
            return false;
        }
        match s.op.prim() {
            Some(Prim::Binary { kind }) if commutes(*kind) => {
                let terms = leaves(self.sketch.graph, s, *kind);
                let ways = splits(self.scene.graph, t.results[0], *kind, terms.len());
                ways.into_iter().any(|mut way| match_terms(self, &terms, &mut way, Self::value))
            }
            _ => s.operands.iter().zip(&t.operands).all(|(&s, &t)| self.value(s, t)),
        }
    }
}

/// A value and those from which it was moved or converted, nearest first.
pub(super) fn unmoved(graph: &Graph, value: Value) -> Vec<Value> {
    let mut chain = vec![value];
    let mut last = value;
    while let Some(node) = graph.producer(last) {
        let moves = matches!(
            node.op.prim(),
            Some(
                Prim::Broadcast { .. }
                    | Prim::Reshape { .. }
                    | Prim::Transpose { .. }
                    | Prim::Convert { .. }
            )
        );
        if !moves {
            break;
        }
        last = node.operands[0];
        chain.push(last);
    }
    chain
}
