//! `Pass`: a named step from graph to graph, for lists and command lines.

use crate::{cse, dce, fold, recognise, to_f64};
use overdrive_ir::{Graph, GraphError};

/// A step that needs nothing but the graph.
#[derive(Copy, Clone, Debug)]
pub struct Pass {
    /// Its one name.
    pub name: &'static str,
    /// What it does.
    pub run: fn(&Graph) -> Result<Graph, GraphError>,
}

/// The steps that need nothing but the graph, in the order in which they are usually run. The
/// others take data: sizes, outputs, a recipe, a policy.
pub const PASSES: &[Pass] = &[
    Pass { name: "recognise", run: recognise },
    Pass { name: "fold", run: fold },
    Pass { name: "cse", run: cse },
    Pass { name: "dce", run: dce },
    Pass { name: "to_f64", run: to_f64 },
];
