//! Ranks that run together: how they meet, and how each hears of one that fails.
//!
//! - [`Meeting`]: ranks of one process show each other bytes through shared memory.
//! - [`run`]: a thread for each rank of a mesh.
//! - [`Launch`]: what a launcher (torchrun, mpirun, srun) says of the processes that it started.
//! - [`join`]: ranks that are processes meet over TCP.
//!
//! Invariant: a rank that ends early, hangs, or does something else than the others ends all of
//! them, with an error that names it.

mod launch;
mod meeting;
mod slurm;
mod tcp;
mod threads;

pub use launch::{Launch, LaunchError};
pub use meeting::{Meeting, Member};
pub use tcp::join;
pub use threads::run;
