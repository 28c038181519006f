//! Data parallel training: each rank learns from its part of every batch and keeps the whole model.
//!
//! The step is sharded from that of the whole batch. So loss, norm of gradients and update are
//! those of a run on one rank. Everything that decides how a run continues is shared: a request to
//! stop, and each rank's results on the validation samples. Invariant: after each step all ranks
//! have the same parameters and have taken the same decisions.

use crate::data::{Batch, Split, Target};
use crate::held::{self, Held, Shards};
use crate::{Evaluation, Recipe, TrainError};
use overdrive_ir::{Axis, Communicator, Exchange, Graph, Mesh, Sharding, Value, agree};
use overdrive_passes::{Sharded, shard};
use std::collections::BTreeMap;
use std::ops::Range;

/// The axis along which batches are split.
const DATA: &str = "data";

/// This rank among those of the run, and what is sharded over them. Without a communicator it is
/// the only rank.
#[derive(Copy, Clone)]
pub(crate) struct Ranks<'a>(pub(crate) Option<&'a dyn Communicator>, pub(crate) Shards);

impl Ranks<'_> {
    /// Parts of a batch.
    pub(crate) fn count(self) -> usize {
        self.0.map_or(1, |communicator| communicator.mesh().size(&DATA.into()))
    }

    /// The position of this rank.
    fn position(self) -> usize {
        self.0.map_or(0, |c| c.mesh().position(c.rank(), &DATA.into()))
    }

    /// Whether this rank writes files and talks to the user.
    pub(crate) fn is_first(self) -> bool {
        self.0.is_none_or(|communicator| communicator.rank() == 0)
    }

    /// This rank's part of `len` in equal parts, as far as there are.
    pub(crate) fn part(self, len: u64) -> Range<u64> {
        let (count, position) = (self.count() as u64, self.position() as u64);
        len * position / count..len * (position + 1) / count
    }

    /// This rank's part of a step, and the states that it holds. `whole` is the step of the whole
    /// batch.
    pub(crate) fn step(self, whole: Graph) -> Result<(Graph, Held), TrainError> {
        let Some(communicator) = self.0 else { return Ok((whole, Held::default())) };
        let sharded = sharded(&whole, communicator.mesh(), self.1)?;
        let graph = sharded.at_rank(&whole, communicator.rank())?;
        Ok((graph, Held::of(&whole, sharded)))
    }

    /// Errs unless the recipe's batch can be cut, and all ranks train the same: `lines` say what.
    pub(crate) fn check(
        self,
        recipe: &Recipe,
        lines: impl FnOnce() -> String,
    ) -> Result<(), TrainError> {
        let Some(communicator) = self.0 else { return Ok(()) };
        let (batch, count) = (recipe.batch, self.count());
        if !batch.is_multiple_of(count) {
            let fitting = (1..=batch.min(1024)).filter(|n| batch.is_multiple_of(*n));
            let fitting: Vec<String> = fitting.map(|n| n.to_string()).collect();
            let remedy =
                format!("use another batch, or as many ranks as one of {}", fitting.join(", "));
            let expected = format!("a multiple of the {count} ranks");
            return Err(TrainError::invalid("recipe, batch", expected, batch, &remedy));
        }
        Ok(agree(communicator, "what is trained", &lines())?)
    }

    /// Whether all ranks want to go on; `None` for a single rank, whose own wish decides.
    pub(crate) fn all(self, goes_on: bool) -> Result<Option<bool>, TrainError> {
        if self.count() == 1 {
            return Ok(None);
        }
        let mut all = true;
        let mine = [u8::from(goes_on)];
        self.share("the end of a step", &mine, |_, bytes| all &= bytes == [1])?;
        Ok(Some(all))
    }

    /// The bytes of rank 0.
    pub(crate) fn of_first(self, what: &str, mine: Vec<u8>) -> Result<Vec<u8>, TrainError> {
        let mut first = vec![];
        self.share(what, &mine, |rank, bytes| {
            if rank == 0 {
                first = bytes.to_vec();
            }
        })?;
        Ok(if self.0.is_some() { first } else { mine })
    }

    /// The evaluations of all ranks, in the order of their parts.
    pub(crate) fn joined(self, own: Evaluation) -> Result<Evaluation, TrainError> {
        if self.0.is_none() {
            return Ok(own);
        }
        let mut parts = vec![Evaluation::default(); self.count()];
        let mesh = self.0.map(Communicator::mesh).cloned().unwrap_or_default();
        self.share("the validation samples", &to_bytes(&own), |rank, bytes| {
            parts[mesh.position(rank, &DATA.into())] = of_bytes(bytes);
        })?;
        let mut whole = Evaluation::default();
        for part in parts {
            whole.positions = whole.positions.max(part.positions);
            whole.losses.extend(part.losses);
            whole.hits.extend(part.hits);
            whole.quantities.extend(part.quantities);
            whole.text_bytes.extend(part.text_bytes);
        }
        Ok(whole)
    }

    /// An exchange of all ranks; none, where there is one.
    fn share(
        self,
        what: &str,
        bytes: &[u8],
        mut read: impl FnMut(usize, &[u8]),
    ) -> Result<(), TrainError> {
        let Some(communicator) = self.0 else { return Ok(()) };
        let group: Vec<usize> = (0..communicator.mesh().ranks()).collect();
        Ok(communicator.share(&Exchange { group: &group, what, bytes }, &mut read)?)
    }
}

/// A training step of the whole batch, split over the ranks of a mesh.
fn sharded(whole: &Graph, mesh: &Mesh, shards: Shards) -> Result<Sharded, TrainError> {
    let (axis, ranks) = (Axis::from(DATA), mesh.size(&DATA.into()));
    let batched = whole.inputs().iter().filter(|port| whole.ty(port.value).rank() > 0);
    let rows = batched.map(|port| {
        let rank = whole.ty(port.value).rank();
        (port.value, Sharding::whole(rank).and_split(0, &axis))
    });
    let mut shardings: BTreeMap<Value, Sharding> = rows.collect();
    if shards == Shards::Optimizer && ranks > 1 {
        shardings.extend(held::optimizer(whole, &axis, ranks));
    }
    Ok(shard(whole, mesh, &shardings)?)
}

/// The part of a training step that the first of many ranks computes, with the states that it
/// holds. No rank has to be there: this is for looking at its plan.
///
/// # Errors
/// When the mesh has another axis than `data`, or the batch is no multiple of its ranks.
pub fn step_of_one_rank(whole: &Graph, mesh: &Mesh, shards: Shards) -> Result<Graph, TrainError> {
    Ok(sharded_step(whole, mesh, shards)?.at_rank(whole, 0)?)
}

/// The step of the whole batch, split over ranks that train together.
///
/// # Errors
/// As [`step_of_one_rank`].
pub fn sharded_step(whole: &Graph, mesh: &Mesh, shards: Shards) -> Result<Sharded, TrainError> {
    if let Some((axis, _)) = mesh.axes.iter().find(|(axis, _)| *axis.0 != *DATA) {
        let remedy = "training splits batches alone: name the axis `data`, as in `data=4`";
        return Err(TrainError::invalid("mesh", "the axis `data`", axis, remedy));
    }
    sharded(whole, mesh, shards)
}

/// Numbers of an evaluation, floats as their bits, which JSON keeps whatever they are.
type Bits = (Vec<u64>, Vec<u32>, Vec<u64>, usize, Vec<u64>);

fn to_bytes(evaluation: &Evaluation) -> Vec<u8> {
    let bits = |values: &[f64]| values.iter().map(|x| x.to_bits()).collect::<Vec<u64>>();
    let all: Bits = (
        bits(&evaluation.losses),
        evaluation.hits.clone(),
        bits(&evaluation.quantities),
        evaluation.positions,
        evaluation.text_bytes.clone(),
    );
    serde_json::to_vec(&all).expect("numbers are plain data")
}

fn of_bytes(bytes: &[u8]) -> Evaluation {
    let (losses, hits, quantities, positions, text_bytes): Bits =
        serde_json::from_slice(bytes).expect("all ranks have the same version");
    let floats = |bits: Vec<u64>| bits.into_iter().map(f64::from_bits).collect();
    let (losses, quantities) = (floats(losses), floats(quantities));
    Evaluation { losses, hits, quantities, positions, text_bytes }
}

/// Some neighbours of a split.
pub(crate) struct Neighbours<'a> {
    pub(crate) split: &'a dyn Split,
    pub(crate) range: Range<u64>,
}

impl Split for Neighbours<'_> {
    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn target(&self) -> Target {
        self.split.target()
    }

    fn batch(&self, samples: &[u64]) -> Result<Batch, TrainError> {
        let samples: Vec<u64> = samples.iter().map(|i| self.range.start + i).collect();
        self.split.batch(&samples)
    }

    fn hash(&self) -> Result<String, TrainError> {
        self.split.hash()
    }
}
