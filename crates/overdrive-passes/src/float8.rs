//! `float8` puts linear layers of a model that is trained on codes of fp8.
//!
//! The pass runs on the forward graph: gradients of what it emits are in the recipe's format for
//! gradients (`overdrive_ir::ops::float8_linear`). Weights are rounded from their f32, so that
//! their gradients are in f32. Activations come in the format of all other contractions.
//!
//! A layer stays as it is in two cases:
//! - fp8 has no units for its sizes, which must be multiples of 16.
//! - Nothing after it contracts. This is the layer that the loss reads, whose errors nothing
//!   averages out (Micikevicius et al., arXiv:2209.05433, keep it wider too).
//!
//! Invariant: interfaces keep their types.

use crate::precision::leads_to_a_contraction;
use crate::rebuild::rebuild;
use overdrive_ir::ops::{Float8Linear, Linear};
use overdrive_ir::{DType, Graph, GraphError, Node};

/// Extents that tensor cores of fp8 multiply.
const UNIT: usize = 16;

/// The graph with linear layers on codes of these formats, and activations between them in
/// `narrow`.
///
/// # Errors
/// When the graph is ill-formed.
pub fn float8(graph: &Graph, formats: Float8Linear, narrow: DType) -> Result<Graph, GraphError> {
    let meets = leads_to_a_contraction(graph);
    rebuild(graph, &Clone::clone, &mut |place| {
        let taken = takes(graph, place.node)
            && place.node.results.iter().any(|result| meets[result.0 as usize]);
        let (x, w, bias) = match place.operands.as_slice() {
            [x, w] if taken => (*x, *w, None),
            [x, w, bias] if taken => (*x, *w, Some(*bias)),
            _ => return Ok(place.keep(place.node.regions.clone())),
        };
        let (mut sizes, [k, n]) = (x.sizes(), [w.size(0), w.size(1)]);
        let rows = x.convert(narrow).reshape([x.ty().elements() / k, k]);
        let y = rows.float8_linear(w, formats);
        *sizes.last_mut().expect("x has a last dimension") = n;
        let y = y.reshape(sizes);
        let y = bias.map_or(y, |bias| y + bias.convert(narrow));
        Ok(vec![y.convert(x.dtype())])
    })
}

/// Whether a node is a layer in f32 whose extents the units take.
fn takes(graph: &Graph, node: &Node) -> bool {
    let (Some(Linear), [x, w, ..]) = (node.op.composite::<Linear>(), node.operands.as_slice())
    else {
        return false;
    };
    let (x, w) = (graph.ty(*x), graph.ty(*w));
    let [k, n] = [w.sizes()[0], w.sizes()[1]];
    let rows = x.elements().checked_div(k).unwrap_or(0);
    x.dtype == DType::F32 && [rows, k, n].iter().all(|&size| size > 0 && size % UNIT == 0)
}
