//! Constant folding and algebraic identities, to a fixed point.
//!
//! Much is known before a bound model runs. Its shape arithmetic, masks and scalar factors are
//! constants. Gradients leave sums with zero and products with one. Imported and rewritten graphs
//! move the same data twice.
//!
//! Only identities that hold in floating point are used. `x * 0` stays, since it is NaN for
//! infinite x. Nothing is reassociated. The sign of a zero may change in `x + 0`. Invariant:
//! folding never makes a value larger than the limit, so that a broadcast stays a broadcast.

mod constants;
mod identities;

use crate::rebuild::{rebuild, regions};
use constants::Constants;
use overdrive_ir::{Graph, GraphError};

/// Rounds after which even a small graph must have settled.
const FEW: usize = 64;

/// The graph with constants computed and identities applied, in regions too.
pub fn fold(graph: &Graph) -> Result<Graph, GraphError> {
    let mut graph = once(graph)?;
    // One identity may leave something for another to take, but hardly ever more often than there
    // are nodes.
    let rounds = FEW.max(2 * graph.nodes().len());
    for _ in 0..rounds {
        let next = once(&graph)?;
        // Inputs and states stay, and comparing the states would read all weights.
        if next.nodes() == graph.nodes() {
            return Ok(graph);
        }
        graph = next;
    }
    panic!(
        "folding `{}` must settle within {rounds} rounds: two identities undo each other",
        graph.name()
    )
}

fn once(graph: &Graph) -> Result<Graph, GraphError> {
    let constants = Constants::of(graph);
    rebuild(graph, &Clone::clone, &mut |place| {
        if let Some(value) = constants.replacement(place.builder, graph, place.node) {
            return Ok(vec![value]);
        }
        if let Some(values) = identities::simpler(graph, &constants, place) {
            return Ok(values);
        }
        Ok(place.keep(regions(place.node, fold)?))
    })
}
