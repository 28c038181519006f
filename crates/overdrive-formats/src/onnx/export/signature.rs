//! Types of a node that is written.

use overdrive_ir::TensorType;

/// Types of a node.
pub(super) struct Signature {
    pub(super) operands: Vec<TensorType>,
    pub(super) results: Vec<TensorType>,
}

impl Signature {
    /// Extents of an operand.
    pub(super) fn sizes(&self, index: usize) -> Vec<usize> {
        self.operands[index].sizes()
    }
}
