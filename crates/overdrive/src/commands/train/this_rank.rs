//! This process as one rank of several, and what only rank 0 does.

use crate::cli::Train;
use crate::devices::OfRank;
use crate::failure::Failure;
use crate::terminal::{self, note};
use overdrive::bench::exit::Exit;
use overdrive::ir::{Communicator, Mesh, RankError, agree};
use overdrive::ranks::{Launch, join};
use std::sync::Arc;
use std::time::Duration;

/// The launch of this process by a launcher; `None` where it runs alone.
pub(super) fn launched(arguments: &Train) -> Result<Option<Launch>, Failure> {
    let launch = Launch::of_environment().map_err(Failure::bad_input)?;
    let asked = arguments.nproc.map(|n| n as usize);
    match (&launch, asked) {
        (Some(launch), Some(asked)) if launch.size != asked => Err(Failure::bad_input(format!(
            "--nproc {asked}: expected as many ranks as the launcher started, found {}; leave \
                 the option out under a launcher",
            launch.size
        ))),
        _ => Ok(launch),
    }
}

/// The mesh of so many ranks: the one asked for, else all along `data`.
pub(super) fn mesh(arguments: &Train, ranks: usize) -> Result<Mesh, Failure> {
    let Some(mesh) = &arguments.mesh else { return Ok(Mesh::new([("data", ranks)])) };
    let found = mesh.ranks();
    if found == ranks {
        return Ok(mesh.clone());
    }
    let remedy = match ranks {
        1 => format!("add --nproc {found}, or start with a launcher"),
        _ => format!("change the sizes, or start {found} ranks"),
    };
    Err(Failure::bad_input(format!(
        "--mesh {mesh}: expected sizes that multiply to the number of ranks, {ranks}, found \
         {found}; {remedy}"
    )))
}

/// This rank among the others.
pub(super) struct Rank {
    pub(super) launch: Launch,
    pub(super) communicator: Arc<dyn Communicator>,
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
    pub(super) fn same_kind(&self, device: &str) -> Result<(), Failure> {
        let kind = device.split(':').next().unwrap_or(device);
        let agreed = agree(self.communicator.as_ref(), "the kind of device", kind);
        agreed.map_err(|error| failure(error, self.launch.rank))
    }

    /// The rank's place on its machine, and its link to the other ranks.
    pub(super) fn place(&self) -> OfRank {
        let Launch { local_rank, sharing, .. } = self.launch;
        OfRank { local_rank, sharing, communicator: Arc::clone(&self.communicator) }
    }

    pub(super) fn is_first(&self) -> bool {
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
