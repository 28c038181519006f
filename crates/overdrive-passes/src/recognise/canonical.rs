//! One way to write what people write in several: divisions by numbers and roots, powers, logistic
//! functions.
//!
//! `recognise` brings the graph and its patterns to this form, so that an op needs no pattern for
//! each exporter. Unlike what `fold` does, results may differ in the last bit. Invariant: no form
//! here costs more than the one that it replaces.

use super::number;
use crate::rebuild::{NodeToCopy, rebuild, regions};
use overdrive_ir::{Binary, Expr, Graph, GraphError, Node, Prim, Unary, Value};

/// The graph with every form that is listed here in its canonical one.
pub(super) fn canonical(graph: &Graph) -> Result<Graph, GraphError> {
    rebuild(graph, &Clone::clone, &mut |place| match simpler(graph, place) {
        Some(value) => Ok(vec![value]),
        None => Ok(place.keep(regions(place.node, canonical)?)),
    })
}

fn simpler<'b>(graph: &Graph, place: &NodeToCopy<'b, '_>) -> Option<Expr<'b>> {
    if !graph.ty(place.node.results[0]).dtype.is_float() {
        return None;
    }
    let given = &place.node.operands;
    match (place.node.op.prim()?, &place.operands[..]) {
        (Prim::Unary { kind: Unary::Reciprocal }, [_]) => reciprocal(graph, place, given[0]),
        (Prim::Binary { kind: Binary::Div }, &[x, y]) => match number(graph, given[1]) {
            Some(c) if (1.0 / c).is_normal() => Some(x * y.constant(1.0 / c)),
            Some(_) => None,
            None => reciprocal(graph, place, given[1]).map(|inverse| x * inverse),
        },
        (Prim::Binary { kind: Binary::Pow }, &[x, _]) => match number(graph, given[1])? {
            0.5 => Some(x.sqrt()),
            -0.5 => Some(x.rsqrt()),
            3.0 => Some(x * x * x),
            _ => None,
        },
        // A number times a number times x.
        (Prim::Binary { kind: Binary::Mul }, _) => {
            let (inner, outer) = super::number::scaled(graph, place.node.results[0])?;
            let (x, factor) = super::number::scaled(graph, inner)?;
            (inner != x).then(|| place.get(x) * (outer * factor))
        }
        _ => None,
    }
}

/// One over a value that has a form of its own: of a root, and of `1 + exp(-x)`, repeated or not.
fn reciprocal<'b>(graph: &Graph, place: &NodeToCopy<'b, '_>, value: Value) -> Option<Expr<'b>> {
    let node = graph.producer(value)?;
    match (node.op.prim()?, &node.operands[..]) {
        (Prim::Unary { kind: Unary::Sqrt }, &[x]) => Some(place.get(x).rsqrt()),
        (Prim::Binary { kind: Binary::Add }, &[x, y]) => {
            let exponential = match [number(graph, x), number(graph, y)] {
                [_, Some(1.0)] => x,
                [Some(1.0), _] => y,
                _ => return None,
            };
            let argument = operand(graph, exponential, |prim| {
                matches!(prim, Prim::Unary { kind: Unary::Exp })
            })?;
            let negated =
                operand(graph, argument, |prim| matches!(prim, Prim::Unary { kind: Unary::Neg }));
            let minus = || {
                super::number::scaled(graph, argument).filter(|(_, c)| *c == -1.0).map(|(x, _)| x)
            };
            Some(place.get(negated.or_else(minus)?).unary(Unary::Logistic))
        }
        (Prim::Broadcast { .. } | Prim::Reshape { .. }, &[x]) => {
            let inverse = reciprocal(graph, place, x)?;
            Some(place.builder.again(node, &[inverse])[0])
        }
        _ => None,
    }
}

/// The operand of what computes `value`, if that is such a primitive.
fn operand(graph: &Graph, value: Value, is: impl Fn(&Prim) -> bool) -> Option<Value> {
    let node: &Node = graph.producer(value)?;
    (is(node.op.prim()?)).then(|| node.operands[0])
}
