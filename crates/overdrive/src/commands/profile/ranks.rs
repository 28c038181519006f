//! The profiles of all ranks of a training step, each on a thread with a device of its own.

use crate::asked_graph::AskedModel;
use crate::cli::Profile as Arguments;
use crate::devices::ForRanks;
use crate::failure::Failure;
use overdrive::bench::failure;
use overdrive::bench::profile::Profile;
use overdrive::bench::session_calls::CallTarget;
use overdrive::ir::{
    Backend, BackendError, Communicator, Exchange, Graph, Mesh, Mode, State, Tensor, Tuning,
};
use overdrive::passes::Sharded;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Longest time for which a rank waits for another: the slowest compilation, with room.
const PATIENCE: Duration = Duration::from_secs(120);

/// The profile of each rank of the mesh, over the same calls.
///
/// # Errors
/// When the mesh does not divide the model, when there are fewer devices, and as one rank alone.
pub(super) fn profiles(arguments: &Arguments, mesh: &Mesh) -> Result<Vec<Profile>, Failure> {
    let model = AskedModel::load(&arguments.subject)?;
    let (workload, whole) = model.of_ranks(arguments.subject.batch, (mesh, 1))?;
    let sharded = arguments.ranks.sharded(&whole, mesh).map_err(Failure::bad_input)?;
    let devices = ForRanks::of(&arguments.subject.machine, mesh.ranks())?;
    let inputs = workload.inputs(arguments.subject.machine.seed);
    let work = Work { arguments, whole: &whole, sharded: &sharded, inputs: &inputs };
    // The first rank to fail says why; the others fail since it did.
    let cause: Mutex<Option<failure::Failure>> = Mutex::default();
    let of_rank = |communicator: Arc<dyn Communicator>| {
        let profiled = devices
            .open(Arc::clone(&communicator))
            .and_then(|backend| work.profile(backend.as_ref(), communicator.as_ref()));
        profiled.map_err(|failure| {
            let rank = communicator.rank();
            let reason = format!("rank {rank}: {}", failure.reason);
            let failure = failure::Failure { reason, ..failure };
            cause.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(failure);
        })
    };
    let found: Result<Vec<Profile>, ()> =
        overdrive::ranks::run(mesh, PATIENCE, of_rank).into_iter().collect();
    if let Some(failure) = cause.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(Failure::unmeasured(failure));
    }
    let named = |profile: Profile| Profile { name: workload.key.name.clone(), ..profile };
    Ok(found.expect("no rank failed").into_iter().map(named).collect())
}

/// The work that ranks take their parts of.
struct Work<'a> {
    arguments: &'a Arguments,
    whole: &'a Graph,
    sharded: &'a Sharded,
    inputs: &'a [Tensor],
}

impl Work<'_> {
    /// The profile of a rank.
    fn profile(
        &self,
        backend: &dyn Backend,
        communicator: &dyn Communicator,
    ) -> Result<Profile, failure::Failure> {
        let rank = communicator.rank();
        let mode: Mode = self.arguments.subject.mode.into();
        let damaged = |error| failure::Failure::failed(format!("{error}"));
        let graph = self.sharded.at_rank(self.whole, rank).map_err(damaged)?;
        let executable = backend.compile(&graph, mode, &Tuning::default())?;
        let mut session = executable.session()?;
        let mut state = State::initial(&graph, backend)?;
        let parts = self.inputs.iter().zip(&self.sharded.inputs);
        let inputs: Vec<Tensor> =
            parts.map(|(whole, sharding)| self.sharded.part(whole, sharding, rank)).collect();
        let target = CallTarget { backend, session: session.as_mut(), state: &mut state };
        let group: Vec<usize> = (0..communicator.mesh().ranks()).collect();
        let exchange = Exchange { group: &group, what: "the start of a call", bytes: &[] };
        let mut meet = || {
            let met = communicator.share(&exchange, &mut |_, _| ());
            met.map_err(|error| BackendError::from(error).into())
        };
        Profile::take_of_rank(target, &inputs, self.arguments.calls, &mut meet)
    }
}
