//! The parts that the tests of several crates share: cases made from the samples of ops,
//! tolerances, and checks. Every op and every back end has to pass the checks.
//!
//! Development only: nothing that ships depends on it. Invariant: a check returns what is wrong and
//! never skips silently; a test decides what to do with the answer.

mod backend;
mod case;
pub mod chrome_trace;
mod definition;
mod gradient;
mod graphs;
mod lockstep;
mod meshes;
mod paged_calls;
mod primitives;
pub mod programs;
pub mod row_programs;
mod skip;
mod specification;
mod tolerance;

pub use backend::{Disagreement, check_backend};
pub use case::Case;
pub use definition::{BoundedValue, define};
pub use gradient::{Gradients, derivative};
pub use graphs::{random_graph, random_inputs};
pub use lockstep::{collectives, lockstep, lockstep_with};
pub use meshes::{meshes, random_shardings};
pub use paged_calls::PagedCall;
pub use primitives::{FAMILIES, family, prim_samples};
pub use skip::{Needs, require, skip};
pub use specification::check_expansion;
pub use tolerance::{Tolerance, compare};
