//! Ranks that run together: how they meet, and how each hears of one that fails.
//!
//! - [`Meeting`]: ranks of one process show each other bytes through shared memory.
//! - [`run`]: a thread for each rank of a mesh.
//!
//! Invariant: a rank that ends early, hangs, or does something else than the others ends all of
//! them, with an error that names it.

mod meeting;
mod threads;

pub use meeting::{Meeting, Member};
pub use threads::run;
