//! Ranks that mpirun started, over MPI: exchanges of CPUs at the speed of the cluster's network.
//!
//! Every rank sends its bytes straight to every other member of a group. One thread makes all MPI
//! calls ([`thread`]); none of them waits, so that the thread sees the clock and hears of faults.
//! Nobody calls `MPI_Abort`, which would end this process before it has said why. mpirun ends all
//! ranks by itself as soon as one ends without `MPI_Finalize`, and only [`leave`] makes that call.
//!
//! [`leave`]: overdrive_ir::Communicator::leave

mod join;
mod thread;
mod wire;

pub(crate) use join::join;
