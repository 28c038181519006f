//! Why one node could not be imported; the walk adds the file and the node.

use super::item::Sources;
use crate::FormatError;
use overdrive_ir::{GraphError, Mismatch};

/// A fault in an importer.
#[derive(Debug)]
pub(super) enum Fault {
    /// The node is not what the op allows, or not what we can express.
    Mismatch(Mismatch),
    /// The node asks for the value of operand `what`, which only these inputs decide.
    Undecided { what: String, sources: Sources },
    /// The builder holds the error.
    Built,
    /// A node inside a sub-graph failed; the error is complete.
    Inside(Box<FormatError>),
}

impl From<Mismatch> for Fault {
    fn from(mismatch: Mismatch) -> Self {
        Fault::Mismatch(mismatch)
    }
}

impl From<GraphError> for Fault {
    fn from(error: GraphError) -> Self {
        let GraphError { op, expected, found, remedy, .. } = error;
        Fault::Mismatch(Mismatch { expected: format!("{op} of {expected}"), found, remedy })
    }
}

impl From<FormatError> for Fault {
    fn from(error: FormatError) -> Self {
        Fault::Inside(Box::new(error))
    }
}

/// Expected against found.
pub(super) fn invalid(expected: impl Into<String>, found: impl Into<String>) -> Fault {
    Fault::Mismatch(Mismatch::new(expected, found).remedy("check the node's inputs and attributes"))
}

/// Something that ONNX allows and we do not.
pub(super) fn unsupported(what: impl Into<String>) -> Fault {
    let remedy = "rewrite this node with others, or run the model with another engine";
    Fault::Mismatch(Mismatch::new("a form of this op that is supported", what).remedy(remedy))
}
