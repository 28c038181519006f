//! Numbers that fill values, and products with them: where exporters write a constant, a broadcast
//! of it stands in the graph.

use overdrive_ir::{Binary, DType, Graph, Prim, Tensor, Value};

/// The number that fills a value.
pub(super) fn number(graph: &Graph, mut value: Value) -> Option<f64> {
    loop {
        let node = graph.producer(value)?;
        match node.op.prim()? {
            Prim::Constant { value } => return filled(value),
            Prim::Broadcast { .. } | Prim::Reshape { .. } => value = node.operands[0],
            _ => return None,
        }
    }
}

/// The number that all elements of a tensor are; of one element only, since folding leaves no
/// other.
fn filled(tensor: &Tensor) -> Option<f64> {
    (tensor.ty().elements() == 1 && tensor.ty().dtype != DType::Bool).then(|| tensor.to_f64()[0])
}

/// x and c of `x c`, of floats.
pub(super) fn scaled(graph: &Graph, value: Value) -> Option<(Value, f64)> {
    let node = graph.producer(value)?;
    let (Some(Prim::Binary { kind: Binary::Mul }), &[x, y]) = (node.op.prim(), &node.operands[..])
    else {
        return None;
    };
    if !graph.ty(value).dtype.is_float() {
        return None;
    }
    number(graph, y).map(|c| (x, c)).or_else(|| number(graph, x).map(|c| (y, c)))
}
