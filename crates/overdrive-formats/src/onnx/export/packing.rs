//! Which states of a graph a file holds packed, for MatMulNBits (`n_bits`).
//!
//! Invariant: only states that nothing else reads are packed.

use super::dialect::Dialect;
use overdrive_ir::ops::QuantizedLinear;
use overdrive_ir::ops::quantized_linear::{Activations, WeightScales};
use overdrive_ir::{DType, Graph, Node, Origin, TensorType};
use std::collections::HashMap;

/// The sizes of a block that ONNX Runtime's kernels have.
const BLOCKS: [usize; 5] = [16, 32, 64, 128, 256];
/// Sizes of a matrix that readers hold in an i32.
const MOST: usize = i32::MAX as usize;

/// A state that the file holds packed.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(in crate::onnx) enum Packing {
    /// Codes, so many in a block.
    Codes(usize),
    /// Zero points.
    Zeros,
}

/// The packed states by name.
pub(in crate::onnx) type Packings = HashMap<String, Packing>;

/// The states of a graph that are packed in a file of this dialect.
pub(in crate::onnx) fn packings(graph: &Graph, dialect: Dialect) -> Packings {
    let layers = graph.nodes().iter().filter(|_| dialect == Dialect::Microsoft);
    let counts = graph.use_counts();
    layers.filter_map(|node| packed_by((graph, &counts), node)).flatten().collect()
}

/// The states that a node reads packed; `None` if it cannot be a MatMulNBits.
fn packed_by((graph, counts): (&Graph, &[usize]), node: &Node) -> Option<Vec<(String, Packing)>> {
    let layer = node.op.composite::<QuantizedLinear>()?;
    let types = graph.types(&node.operands);
    let block = block_of(layer, &types)?;
    let parts = [(CODES, Packing::Codes(block)), (ZERO, Packing::Zeros)];
    let parts = parts.into_iter().filter(|(at, _)| *at < types.len());
    let own = |(at, packing): (usize, Packing)| match graph.origin(node.operands[at]) {
        Origin::State(state) if counts[node.operands[at].0 as usize] == 1 => {
            Some((graph.states()[state].name.clone(), packing))
        }
        _ => None,
    };
    parts.map(own).collect()
}

/// Positions of operands.
pub(super) const CODES: usize = 1;
pub(super) const SCALE: usize = 2;
pub(super) const ZERO: usize = 3;

/// Codes in a block of a layer that engines have as a MatMulNBits.
fn block_of(layer: &QuantizedLinear, types: &[TensorType]) -> Option<usize> {
    let (x, codes, scale) = (&types[0], &types[CODES], &types[SCALE]);
    let zero = types.get(ZERO).map(|zero| zero.dtype);
    let ([n, k], [rows, blocks]) = (matrix(codes)?, matrix(scale)?);
    let block = k.checked_div(blocks)?;
    let is_coded = codes.dtype == DType::I4 || (codes.dtype == DType::I8 && blocks > 1);
    let is_float =
        layer.activations == Activations::Float && layer.weights != WeightScales::TwoLevel;
    let fits =
        rows == n && n <= MOST && k <= MOST && BLOCKS.contains(&block) && block * blocks == k;
    let wide = [x, scale].iter().any(|ty| ty.dtype == DType::F64);
    let whole = zero.is_none_or(|dtype| dtype == codes.dtype);
    (is_coded && is_float && fits && !wide && whole && x.elements() > 0).then_some(block)
}

pub(super) fn matrix(ty: &TensorType) -> Option<[usize; 2]> {
    ty.sizes().try_into().ok()
}
