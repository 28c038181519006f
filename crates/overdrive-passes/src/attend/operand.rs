//! Recovers q and k as they were before exporters multiplied them by the root of the scale.
//!
//! Invariant: rounding comes before views again, where the op that makes the value does it.

use crate::rebuild::NodeToCopy;
use crate::score_function::constant;
use overdrive_ir::{Binary, DType, Expr, Graph, Prim, Value};

/// An operand before it was multiplied with a number, and what else was done to it.
pub(super) struct Operand {
    base: Value,
    /// The type that it was rounded to.
    to: Option<DType>,
    /// Nodes that only move it, the last first.
    views: Vec<Value>,
    pub(super) factor: f64,
}

impl Operand {
    pub(super) fn whole(value: Value) -> Self {
        Self { base: value, to: None, views: vec![], factor: 1.0 }
    }

    /// Exporters multiply q, k or both before their product instead of the scores; the scale of the
    /// op is free.
    pub(super) fn unscaled(graph: &Graph, value: Value) -> Self {
        let mut found = Self::whole(value);
        while let Some(node) = graph.producer(found.base) {
            match (node.op.prim(), &node.operands[..]) {
                (Some(Prim::Reshape { .. } | Prim::Transpose { .. }), &[x]) => {
                    found.views.push(found.base);
                    found.base = x;
                }
                (Some(&Prim::Convert { to, .. }), &[x])
                    if found.to.is_none() && graph.ty(x).dtype.is_float() =>
                {
                    (found.to, found.base) = (Some(to), x);
                }
                (Some(Prim::Binary { kind: Binary::Mul }), &[a, b]) => {
                    let factor = |v| constant(graph, v).map(|c| c.to_f64()[0]).filter(|&c| c > 0.0);
                    let Some((x, c)) = factor(b).map(|c| (a, c)).or_else(|| Some((b, factor(a)?)))
                    else {
                        break;
                    };
                    (found.base, found.factor) = (x, found.factor * c);
                }
                _ => break,
            }
        }
        if found.factor == 1.0 { Self::whole(value) } else { found }
    }

    pub(super) fn get<'b>(&self, graph: &Graph, place: &NodeToCopy<'b, '_>) -> Expr<'b> {
        let base = place.get(self.base);
        let rounded = self.to.map_or(base, |to| base.convert(to));
        self.views.iter().rev().fold(rounded, |x, &view| {
            let op = graph.producer(view).expect("a view is computed").op.clone();
            place.builder.op1(op, &[x])
        })
    }
}
