//! Ranks that run together: how they meet, and how each hears of one that fails.
//!
//! - [`Meeting`]: ranks of one process show each other bytes through shared memory.
//! - [`run`]: a thread for each rank of a mesh.
//! - [`Launch`]: what a launcher (torchrun, mpirun, srun) says of the processes that it started.
//! - [`join`]: ranks that are processes meet, over the [`Transport`] that the launch says.
//!
//! Invariant: a rank that ends early, hangs, or does something else than the others ends all of
//! them, with an error that names it.

mod frame;
mod join;
mod launch;
mod meeting;
#[cfg(feature = "mpi")]
mod mpi;
mod slurm;
mod tcp;
mod threads;

pub use join::join;
pub use launch::{Launch, LaunchError, Transport};
pub use meeting::{Meeting, Member};
pub use threads::run;
