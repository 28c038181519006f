//! Dead code elimination: drops nodes that no output and no update needs, in regions too.
//!
//! Gradient rules build cotangents that nobody needs, and every pass leaves the nodes that it
//! replaced. This pass removes both. Everything in a graph is pure. Collectives stay all the same:
//! once the rank is known, this one may not need what it receives, but others wait for what it
//! sends. `shard` makes none that no rank needs.

use crate::rebuild::{rebuild, regions};
use overdrive_ir::{Graph, GraphError};

/// The graph without dead nodes. Inputs and states stay, since they are the interface.
pub fn dce(graph: &Graph) -> Result<Graph, GraphError> {
    rebuild(graph, &Clone::clone, &mut |place| Ok(place.keep(regions(place.node, dce)?)))
}
