//! Which nodes send values from stage to stage.

use super::label::is_gradient;
use overdrive_ir::{Node, Prim};

/// Whether a primitive sends between stages.
pub(crate) fn is_send(prim: &Prim) -> bool {
    matches!(prim, Prim::Permute { channel, .. } if channel.joins_stages())
}

/// Whether a node sends to a later stage.
pub(crate) fn sends_on(node: &Node) -> bool {
    node.op.prim().is_some_and(is_send) && !is_gradient(&node.scope)
}
