//! Ranks that train together on a mesh. Along `data` each learns from its part of every batch.
//! Along other axes ranks share samples, and split their positions or the model.
//!
//! The step is sharded from that of the whole batch. So loss, norm of gradients and update are
//! those of a run on one rank. Everything that decides how a run continues is shared: a request to
//! stop, and each rank's results on the validation samples. Invariant: after each step all ranks
//! have taken the same decisions, and ranks that hold the same part of a state have the same bits.

use crate::data::{Batch, Split, Target};
use crate::held::{self, CONTEXT, Held, Shardings, Shards, Sharing};
use crate::{Evaluation, Recipe, TrainError, optimizer_shards};
use overdrive_ir::{Axis, Communicator, Exchange, Graph, Mesh, Sharding, agree};
use overdrive_passes::{
    Compression, ResidualStream, Sharded, compress_gradients, shard_with, tensor_parallel,
};
use std::ops::Range;

/// The axis along which batches are split.
pub const DATA: &str = "data";

/// The axis along which the model is split.
const TENSOR: &str = "tensor";

/// This rank among those of the run, and what is sharded over them. Without a communicator it is
/// the only rank.
#[derive(Copy, Clone)]
pub(crate) struct Ranks<'a>(pub(crate) Option<&'a dyn Communicator>, pub(crate) Sharing);

/// The wishes of a rank at the end of a step, which come true if all ranks have them.
#[derive(Copy, Clone)]
pub(crate) struct Votes {
    /// To go on with the next step.
    pub(crate) goes_on: bool,
    /// To list the checkpoint under way: the rank's parts are written.
    pub(crate) is_written: bool,
    /// To write a checkpoint after a look.
    pub(crate) is_due: bool,
}

impl Ranks<'_> {
    /// Parts of a batch.
    pub(crate) fn count(self) -> usize {
        self.0.map_or(1, |communicator| communicator.mesh().size(&DATA.into()))
    }

    /// How they lie.
    pub(crate) fn mesh(self) -> Mesh {
        self.0.map(Communicator::mesh).cloned().unwrap_or_default()
    }

    /// All ranks of the run.
    pub(crate) fn all_count(self) -> usize {
        self.0.map_or(1, |communicator| communicator.mesh().ranks())
    }

    /// The position of this rank along the batch.
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

    /// The length of the longest of these parts.
    pub(crate) fn longest_part(self, len: u64) -> u64 {
        len.div_ceil(self.count() as u64)
    }

    /// This rank's part of a step or of an evaluation, and the states that it holds. `whole` is of
    /// the whole batch. If another graph has those states already, `like` says how they lie.
    pub(crate) fn graph(
        self,
        whole: Graph,
        compression: Option<Compression>,
        like: Option<&Held>,
    ) -> Result<(Graph, Held), TrainError> {
        check_compression(&self.mesh(), compression)?;
        let Some(communicator) = self.0 else { return Ok((whole, Held::default())) };
        let sharded = sharded(&whole, communicator.mesh(), self.1, like)?;
        let sharded = compressed(sharded, compression)?;
        let graph = sharded.placed(communicator.rank())?;
        Ok((graph, Held::of(sharded)))
    }

    /// Whether each rank holds every weight, and has all of its gradient.
    pub(crate) fn hold_weights(self) -> bool {
        self.count() == self.all_count() && self.1.states == Shards::Nothing
    }

    /// The number of this rank.
    pub(crate) fn rank(self) -> usize {
        self.0.map_or(0, Communicator::rank)
    }

    /// Errs unless the recipe's batch can be cut, and all ranks train the same: `lines` say what.
    pub(crate) fn check(
        self,
        recipe: &Recipe,
        lines: impl FnOnce() -> String,
    ) -> Result<(), TrainError> {
        let Some(communicator) = self.0 else { return Ok(()) };
        check_axes(communicator.mesh(), self.1)?;
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

    /// The votes of all ranks together.
    pub(crate) fn all(self, own: Votes) -> Result<Votes, TrainError> {
        let mut all = own;
        let mine = [own.goes_on, own.is_written, own.is_due].map(u8::from);
        self.share("the end of a step", &mine, |_, bytes| {
            all.goes_on &= bytes[0] == 1;
            all.is_written &= bytes[1] == 1;
            all.is_due &= bytes[2] == 1;
        })?;
        Ok(all)
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

    /// The evaluations of all ranks, in the order of their parts. Ranks at one position of `data`
    /// have judged the same samples, which count once.
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

    /// The sum of a number of each rank.
    pub(crate) fn sum(self, what: &str, mine: u64) -> Result<u64, TrainError> {
        let mut sum = if self.0.is_some() { 0 } else { mine };
        self.share(what, &mine.to_le_bytes(), |_, bytes| {
            let number = bytes.try_into().expect("eight bytes of each rank");
            sum = u64::from_le_bytes(number).saturating_add(sum);
        })?;
        Ok(sum)
    }

    /// An exchange of all ranks; none, where there is one.
    pub(crate) fn share(
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

/// Errs when a mesh has an axis that training does not know, or no ranks to share out states.
fn check_axes(mesh: &Mesh, sharing: Sharing) -> Result<(), TrainError> {
    let known = [DATA, Mesh::PIPELINE, TENSOR, CONTEXT];
    if let Some((axis, _)) = mesh.axes.iter().find(|(axis, _)| !known.contains(&&*axis.0)) {
        let remedy = "`data` splits batches, `pipeline` the model into stages, `tensor` each \
                      layer, `context` the positions of samples, as in `data=4,tensor=2`";
        let expected = "the axes `data`, `pipeline`, `tensor` and `context`";
        return Err(TrainError::invalid("mesh", expected, axis, remedy));
    }
    if sharing.states != Shards::Nothing && mesh.ranks() > 1 && mesh.size(&DATA.into()) == 1 {
        let remedy = "states are shared out along `data`: use a mesh with it, or leave them whole";
        return Err(TrainError::invalid("mesh", "several ranks along `data`", mesh, remedy));
    }
    if let (Some(exchange), 1) = (sharing.context, mesh.size(&CONTEXT.into())) {
        let place = format!("exchange of the context, `{exchange}`");
        let remedy = "it says how ranks share the positions of samples: use a mesh with them, as \
                      in `context=4`, or leave it out";
        return Err(TrainError::invalid(place, "several ranks along `context`", mesh, remedy));
    }
    Ok(())
}

/// A training step or an evaluation of the whole batch, split over the ranks of a mesh. Each line
/// adds annotations to those before it.
fn sharded(
    whole: &Graph,
    mesh: &Mesh,
    sharing: Sharing,
    like: Option<&Held>,
) -> Result<Sharded, TrainError> {
    let data = Axis::from(DATA);
    let shards = if mesh.size(&data) > 1 { sharing.states } else { Shards::Nothing };
    let along = (&data, mesh);
    let with_reads = (shards == Shards::Parameters).then(|| held::with_reads(whole)).transpose()?;
    let whole = with_reads.as_ref().unwrap_or(whole);
    let mut shardings = of_batch(whole, mesh)?;
    if let Some(held) = like {
        held.lay(whole, &data, shards, &mut shardings);
        return Ok(shard_with(whole, mesh, &shardings, sharing.context)?);
    }
    shardings = tensor_parallel(whole, mesh, &shardings, ResidualStream::default())?;
    if shards != Shards::Nothing {
        optimizer_shards::share_out(whole, along, &mut shardings);
    }
    if shards == Shards::Parameters {
        held::parameters(whole, along, &mut shardings);
    }
    Ok(shard_with(whole, mesh, &shardings, sharing.context)?)
}

/// The same with compressed gradients.
fn compressed(sharded: Sharded, compression: Option<Compression>) -> Result<Sharded, TrainError> {
    match compression {
        Some(scheme) => Ok(compress_gradients(sharded, &DATA.into(), scheme)?),
        None => Ok(sharded),
    }
}

/// Errs where gradients are to be compressed for an exchange that one rank does not make, or that
/// stages make, each its own.
fn check_compression(mesh: &Mesh, compression: Option<Compression>) -> Result<(), TrainError> {
    let Some(scheme) = compression else { return Ok(()) };
    let place = format!("compression of gradients, `{scheme}`");
    if mesh.size(&DATA.into()) == 1 {
        let remedy = "train with several ranks along `data` (--nproc N, or a launcher), or \
                      without compression";
        return Err(TrainError::invalid(place, "several ranks along `data`", "one", remedy));
    }
    if mesh.size(&Mesh::PIPELINE.into()) > 1 {
        let remedy = "train without compression, or leave `pipeline` out of the mesh";
        return Err(TrainError::invalid(place, "one stage", mesh, remedy));
    }
    Ok(())
}

/// How the inputs of a batch, and outputs of each of its samples, lie on the ranks. Rows lie along
/// `data`, and positions of inputs along `context`. Positions are dimension 1 of the labels.
fn of_batch(whole: &Graph, mesh: &Mesh) -> Result<Shardings, TrainError> {
    let [data, context] = [DATA, CONTEXT].map(Axis::from);
    let has = |axis: &Axis| mesh.size(axis) > 1;
    let mut shardings = Shardings::new();
    let labels = whole.inputs().iter().find(|port| port.name.split('#').next() == Some("labels"));
    let positions = labels.and_then(|port| whole.ty(port.value).sizes().get(1).copied());
    if has(&context) && positions.is_none() {
        let remedy = "use the axis `data` for this model";
        let expected = "a label for each position of a sample, whose positions can be split";
        return Err(TrainError::invalid("mesh, `context`", expected, "one of each sample", remedy));
    }
    for (ports, are_inputs) in [(whole.inputs(), true), (whole.outputs(), false)] {
        for port in ports {
            let sizes = whole.ty(port.value).sizes();
            let mut sharding = Sharding::whole(sizes.len());
            if has(&data) && !sizes.is_empty() {
                sharding = sharding.and_split(0, &data);
            }
            let has_positions = sizes.get(1).is_some() && sizes.get(1) == positions.as_ref();
            if are_inputs && has(&context) && has_positions {
                sharding = sharding.and_split(1, &context);
            }
            // An output of which nothing is said would lie as the positions that it comes from.
            if !are_inputs || sharding.split.iter().any(Option::is_some) {
                shardings.insert(port.value, sharding);
            }
        }
    }
    Ok(shardings)
}

/// The step of the whole batch, split over ranks that train together.
///
/// # Errors
/// When the mesh has an axis that training does not know, or does not divide the batch or the
/// positions of its samples. With compression, when batches are not split. With an exchange of the
/// context, when positions are not split, or its groups do not divide the heads.
pub fn sharded_step(
    whole: &Graph,
    mesh: &Mesh,
    sharing: impl Into<Sharing>,
    compression: Option<Compression>,
) -> Result<Sharded, TrainError> {
    let sharing = sharing.into();
    check_axes(mesh, sharing)?;
    check_compression(mesh, compression)?;
    compressed(sharded(whole, mesh, sharing, None)?, compression)
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

#[cfg(test)]
mod lockstep;
