//! Functions from graph to graph, one file each, and last `plan`.
//!
//! Passes take data and run nothing; they know a device only by its capabilities. Invariant: a pass keeps what the
//! graph means, and says in notes what it expanded, declined or cast.

mod fuse;
mod legalize;
mod lower;
mod plan;
mod rematerialize;

pub use fuse::{groups, node_by_node};
pub use legalize::legalize;
pub use plan::{PlanError, plan};
pub use rematerialize::{Rematerialize, rematerialize};
