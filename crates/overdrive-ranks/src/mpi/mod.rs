//! Ranks that mpirun started, over MPI: exchanges of CPUs at the speed of the cluster's network.
//!
//! Every rank sends its bytes straight to every other member of a group. One thread makes all MPI
//! calls ([`thread`]). None of them blocks, so that the thread sees the clock and hears of faults.
//! Nobody calls `MPI_Abort`, which would end this process before it has said why. The launcher
//! (mpirun) ends all ranks as soon as one ends without `MPI_Finalize`. Only [`leave`] makes that
//! call.
//!
//! [`leave`]: overdrive_ir::Communicator::leave

mod join;
mod thread;
mod wire;

pub(crate) use join::join;
