//! Functions from graph to graph, one file each, and last `plan`.
//!
//! Passes take data and run nothing; they know a device only by its capabilities. Invariant: a pass keeps what the
//! graph means, and says in notes what it expanded, declined or cast.

mod bind;
mod dce;
mod differentiate;
mod fuse;
mod legalize;
mod lower;
mod plan;
mod rebuild;
mod rematerialize;

pub use bind::bind;
pub use dce::dce;
pub use differentiate::differentiate;
pub use fuse::{groups, node_by_node};
pub use legalize::legalize;
pub use overdrive_ir::gradients;
pub use plan::{PlanError, plan};
pub use rematerialize::{Rematerialize, rematerialize};
