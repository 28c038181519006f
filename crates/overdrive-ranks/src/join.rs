//! `join`: this process becomes a rank, over the transport that its launch says.

#[cfg(feature = "mpi")]
use crate::mpi;
use crate::{Launch, Meeting, Transport, tcp};
use overdrive_ir::{Communicator, Mesh, RankError};
use std::sync::Arc;
use std::time::Duration;

/// Meets the other ranks of a run, and gives the way to them once all are here. `mesh` has the
/// launch's number of ranks; whoever waits longer than `patience` for another takes it for hung.
///
/// # Errors
/// When ranks do not come, differ in version or mesh, or cannot be reached.
pub fn join(
    launch: &Launch,
    mesh: &Mesh,
    patience: Duration,
) -> Result<Arc<dyn Communicator>, RankError> {
    assert_eq!(mesh.ranks(), launch.size, "the mesh is of the ranks that were started");
    if launch.size == 1 {
        return Ok(Arc::new(Meeting::of(mesh, patience).remove(0)));
    }
    match launch.transport {
        Transport::Tcp => tcp::join(launch, mesh, patience),
        #[cfg(feature = "mpi")]
        Transport::Mpi => mpi::join(launch, mesh, patience),
    }
}
