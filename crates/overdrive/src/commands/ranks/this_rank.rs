//! This process as one rank of several, and what only rank 0 does.

use crate::devices::OfRank;
use crate::failure::Failure;
use crate::terminal::{self, note};
use overdrive::bench::exit::Exit;
use overdrive::ir::{Communicator, Mesh, RankError, agree};
use overdrive::ranks::{Launch, join};
use std::sync::Arc;
use std::time::Duration;

/// This rank among the others.
pub(crate) struct Rank {
    pub(crate) launch: Launch,
    pub(crate) communicator: Arc<dyn Communicator>,
}

impl Rank {
    /// Meets the others. All but rank 0 are silent from here on, but for their errors.
    pub(super) fn join(launch: Launch, mesh: &Mesh, patience: Duration) -> Result<Self, Failure> {
        if launch.rank > 0 {
            terminal::hush();
        }
        let joined = join(&launch, mesh, patience);
        let communicator = joined.map_err(|error| failure(error, launch.rank))?;
        note!("note: {} ranks exchange over {}", launch.size, launch.transport);
        Ok(Self { launch, communicator })
    }

    /// Errs unless all ranks have the same kind of device: they exchange tensors by its means.
    pub(crate) fn same_kind(&self, device: &str) -> Result<(), Failure> {
        let kind = device.split(':').next().unwrap_or(device);
        self.agree("the kind of device", kind)
    }

    /// Errs unless all ranks have the same text of this.
    pub(crate) fn agree(&self, what: &str, text: &str) -> Result<(), Failure> {
        let agreed = agree(self.communicator.as_ref(), what, text);
        agreed.map_err(|error| failure(error, self.launch.rank))
    }

    /// The rank's place on its machine, and its link to the other ranks.
    pub(crate) fn place(&self) -> OfRank {
        let Launch { local_rank, sharing, .. } = self.launch;
        OfRank { local_rank, sharing, communicator: Arc::clone(&self.communicator) }
    }

    pub(crate) fn is_first(&self) -> bool {
        self.launch.rank == 0
    }
}

/// A failure that names this rank is its own; any other has its cause elsewhere.
fn failure(error: RankError, own: usize) -> Failure {
    let (RankError::Gone { rank, .. }
    | RankError::Late { rank, .. }
    | RankError::Differs { rank, .. }
    | RankError::Unreachable { rank, .. }) = &error;
    match *rank == own {
        true => Failure::bad_input(error),
        false => Failure { message: error.to_string(), exit: Exit::OtherRank },
    }
}
