//! The elementwise work by which a value is computed, as a region over matrices.

use crate::fuse::{MAX_MEMBERS, is_cloned};
use overdrive_ir::{Builder, DType, Expr, Graph, Node, Prim, TensorType, Value};
use std::collections::HashMap;

/// The tensors of 16 bits that `value` is computed from element by element, and a region that does
/// so. In it they and the result have the shape of `matrix`, a reshape of `value`. `None` where
/// something else is needed, or nothing is computed.
pub(super) fn lead(graph: &Graph, value: Value, matrix: Value) -> Option<(Vec<Value>, Graph)> {
    let b = Builder::new("x");
    let (known, of) = (HashMap::new(), Vec::new());
    let mut leading = Lead { graph, value, matrix: graph.ty(matrix), b: &b, known, of, nodes: 0 };
    let result = leading.pull(value)?;
    let (of, nodes) = (std::mem::take(&mut leading.of), leading.nodes);
    b.output("x", result);
    let region = b.finish().ok()?;
    let computes = |node: &Node| {
        let prim = node.op.prim();
        prim.is_some_and(|prim| prim.is_elementwise() && !matches!(prim, Prim::Convert { .. }))
    };
    (nodes <= MAX_MEMBERS && region.nodes().iter().any(computes)).then_some((of, region))
}

/// A region that grows from its result.
struct Lead<'g, 'b> {
    graph: &'g Graph,
    value: Value,
    matrix: &'g TensorType,
    b: &'b Builder,
    known: HashMap<Value, Expr<'b>>,
    of: Vec<Value>,
    nodes: usize,
}

impl<'b> Lead<'_, 'b> {
    /// A value of the graph in the region.
    fn pull(&mut self, value: Value) -> Option<Expr<'b>> {
        if let Some(expr) = self.known.get(&value) {
            return Some(*expr);
        }
        let ty = self.graph.ty(value);
        if ty.sizes() != self.graph.ty(self.value).sizes() || self.nodes > MAX_MEMBERS {
            return None;
        }
        self.nodes += 1;
        let computed = self.graph.producer(value).filter(|_| value == self.value || is_wide(ty));
        let expr = match computed.and_then(|node| Some((node, node.op.prim()?))) {
            Some((node, Prim::Broadcast { .. })) => self.number(node)?,
            Some((node, prim)) if prim.is_elementwise() => {
                let operands: Option<Vec<_>> =
                    node.operands.iter().map(|v| self.pull(*v)).collect();
                self.b.op1(prim.clone(), &operands?)
            }
            _ if ty.dtype.bits() == 16 && value != self.value && self.is_stored(value) => {
                self.of.push(value);
                self.b.input(&self.of.len().to_string(), self.matrix.with_dtype(ty.dtype))
            }
            _ => return None,
        };
        self.known.insert(value, expr);
        Some(expr)
    }

    /// Whether a value is more than a view, which would have to be written out.
    fn is_stored(&self, value: Value) -> bool {
        self.graph.producer(value).is_none_or(|node| !is_cloned(self.graph, node))
    }

    /// A number that is spread over the whole shape.
    fn number(&self, node: &Node) -> Option<Expr<'b>> {
        let constant = self.graph.producer(node.operands[0])?;
        let is_number = self.graph.ty(node.operands[0]).elements() == 1;
        let prim @ Prim::Constant { .. } = constant.op.prim()? else { return None };
        is_number.then(|| {
            let number = self.b.op1(prim.clone(), &[]).reshape(overdrive_ir::Shape::default());
            number.broadcast_in(&self.matrix.shape, &[])
        })
    }
}

/// Whether a value is computed rather than stored: no number of 16 bits.
fn is_wide(ty: &TensorType) -> bool {
    matches!(ty.dtype, DType::F32 | DType::Bool)
}
