//! `Held`: which part of each state of a step this rank holds.
//!
//! States may be split among the ranks along `data` (ZeRO: Rajbhandari et al., "ZeRO: memory
//! optimizations toward training trillion parameter models", 2020). Split states of the optimizer
//! are its stages 1 and 2. Each rank updates its part of every parameter from its part of the
//! reduced gradient, and all gather the parameters. Split parameters are stage 3: each rank keeps
//! its part of the matrices, and all gather them where they are read. A checkpoint says where each
//! part lies in the whole, so that any number of ranks continues from it.
//!
//! Errors of compressed gradients differ from rank to rank. Whole, they are those of all ranks,
//! along a dimension of their own. Their sum is what the parameters have yet to receive. So another
//! number of ranks continues with the sum on rank 0 and nothing on others.

use crate::TrainError;
use crate::checkpoint::Region;
use crate::data::Batch;
use crate::kept::copied;
use crate::step::{OPTIMIZER, is_kept};
use overdrive_ir::{
    Axis, Builder, Communicator, Exchange, Expr, Graph, GraphError, Mesh, Node, Prim, Sharding,
    StateDecl, Tensor, TensorType, Value,
};
use overdrive_passes::{ContextExchange, Sharded, Stages, of_batch};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The axis along which the positions of samples are split.
pub(crate) const CONTEXT: &str = "context";

/// The states that are sharded over the ranks, in addition to the batch.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Shards {
    /// Nothing: each rank holds every state.
    #[default]
    Nothing,
    /// The optimizer's states, along a dimension that the ranks divide; gradients with them.
    Optimizer,
    /// The same and the model's matrices. They are gathered for each layer that reads them.
    Parameters,
}

/// The parts of training that ranks share out, and how: beside batches, which they always do.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Sharing {
    /// The states that are sharded.
    pub states: Shards,
    /// How ranks along `context` compute attention; the fastest way by an estimate if none is
    /// named.
    pub context: Option<ContextExchange>,
}

impl From<Shards> for Sharing {
    fn from(states: Shards) -> Self {
        Self { states, context: None }
    }
}

/// The parts of states that a rank holds; all of those that are not listed.
#[derive(Default)]
pub(crate) struct Held {
    split: BTreeMap<String, (TensorType, Sharding)>,
    sharded: Option<Sharded>,
    stages: Option<Stages>,
}

/// How values lie on the ranks.
pub(crate) type Shardings = BTreeMap<Value, Sharding>;

/// Begins the names of states that compression of gradients keeps.
const COMPRESSION: &str = "compression.";

/// Ends the names of those that each rank has for itself.
const ERROR: &str = ".error";

/// Whether ranks share out this state of the model. Vectors are few bytes in many collectives.
fn is_matrix(graph: &Graph, state: &StateDecl) -> bool {
    let ty = graph.ty(state.value);
    optimized(state).is_none() && ty.dtype.is_float() && ty.rank() > 1
}

/// The name of the parameter whose state of the optimizer this is: `w` of `optimizer.m.w`. A copy
/// lies as parameters do.
pub(crate) fn optimized(state: &StateDecl) -> Option<&str> {
    let is_copy = copied(&state.name).is_some();
    let own = state.name.strip_prefix(OPTIMIZER)?.strip_prefix('.')?.split_once('.');
    own.filter(|_| !is_copy).map(|(_, name)| name)
}

/// Whether a dimension of a value that lies as `at` says can be divided among the ranks along
/// `axis`.
pub(crate) fn is_free(
    ty: &TensorType,
    at: &Sharding,
    dim: usize,
    (axis, mesh): (&Axis, &Mesh),
) -> bool {
    at.split[dim].is_none() && ty.sizes()[dim].is_multiple_of(mesh.size(axis))
}

/// Adds how the model's matrices lie on ranks along an axis, and that their readers find them
/// gathered. The graph is one of [`with_reads`].
pub(crate) fn parameters(whole: &Graph, along: (&Axis, &Mesh), shardings: &mut Shardings) {
    for state in whole.states().iter().filter(|state| is_matrix(whole, state)) {
        let ty = whole.ty(state.value);
        let known = shardings.get(&state.value).cloned();
        let known = known.unwrap_or_else(|| Sharding::whole(ty.rank()));
        let Some(dim) = (0..ty.rank()).find(|dim| is_free(ty, &known, *dim, along)) else {
            continue;
        };
        shardings.insert(state.value, known.clone().and_split(dim, along.0));
        gathered(whole, state, &known, shardings);
    }
}

/// Adds that the readers of a matrix find it as `known` says.
fn gathered(whole: &Graph, state: &StateDecl, known: &Sharding, shardings: &mut Shardings) {
    let reads = whole.nodes().iter().filter(|node| node.operands.contains(&state.value));
    for node in reads.filter(|node| !is_of_optimizer(node)) {
        shardings.insert(node.results[0], known.clone());
    }
}

/// The graph with a value between each matrix of the model and its readers. It is a narrower format
/// of the matrix or, where there is none, a view. Ranks gather that value. Only the optimizer reads
/// the states themselves, which it updates part by part.
///
/// # Errors
/// When the graph is ill-formed.
pub(crate) fn with_reads(whole: &Graph) -> Result<Graph, GraphError> {
    let matrices = whole.states().iter().filter(|state| is_matrix(whole, state));
    let matrices: Vec<Value> = matrices.map(|state| state.value).collect();
    let b = Builder::new(whole.name());
    let mut map: BTreeMap<Value, Expr<'_>> = b.declare(whole).into_iter().collect();
    let mut views: BTreeMap<Value, Expr<'_>> = BTreeMap::new();
    for node in whole.nodes() {
        let is_direct = is_of_optimizer(node) || narrows(whole, node);
        let mut read = |value: &Value| {
            let x = map[value];
            if is_direct || !matrices.contains(value) {
                return x;
            }
            let _scope = b.scope_path(&node.scope);
            let view = || b.op1(Prim::Reshape { shape: x.shape() }, &[x]);
            *views.entry(*value).or_insert_with(view)
        };
        let operands: Vec<Expr<'_>> = node.operands.iter().map(&mut read).collect();
        let results = b.again(node, &operands);
        map.extend(node.results.iter().copied().zip(results));
    }
    b.conclude(whole, |value| map[&value]);
    b.finish()
}

/// Whether a node comes after gradients.
pub(crate) fn is_of_optimizer(node: &Node) -> bool {
    node.scope.split('/').next() == Some(OPTIMIZER)
}

/// Whether a node converts its operand to fewer bytes.
fn narrows(graph: &Graph, node: &Node) -> bool {
    matches!(node.op.prim(), Some(Prim::Convert { .. }))
        && graph.ty(node.results[0]).bytes() < graph.ty(node.operands[0]).bytes()
}

/// Whether a state of a checkpoint continues as one of type `expected`.
pub(crate) fn continues(name: &str, found: &TensorType, expected: &TensorType) -> bool {
    let each = |ty: &TensorType| ty.sizes().get(1..).map(<[usize]>::to_vec);
    let is_of_each_rank = name.starts_with(COMPRESSION) && name.ends_with(ERROR);
    found == expected
        || is_of_each_rank
            && found.dtype == expected.dtype
            && found.rank() == expected.rank()
            && each(found) == each(expected)
}

/// A whole state of a checkpoint as the ranks of this run have it, which may be others in number.
pub(crate) fn of_ranks(saved: &Tensor, expected: &TensorType) -> Tensor {
    if saved.ty() == expected {
        return saved.clone();
    }
    let each: usize = expected.sizes()[1..].iter().product();
    let mut sums = vec![0.0; expected.elements()];
    for of_rank in saved.to_f64().chunks(each) {
        sums.iter_mut().zip(of_rank).for_each(|(sum, error)| *sum += error);
    }
    Tensor::from_f64(expected.dtype, expected.shape.clone(), &sums)
}

impl Held {
    /// Those of a step that was sharded.
    pub(crate) fn of(sharded: Sharded) -> Self {
        let states = sharded.graph.states().iter().zip(&sharded.states);
        let split = states.filter(|(_, sharding)| sharding.split.iter().any(Option::is_some));
        let split = split.map(|(state, sharding)| {
            let whole = sharded.whole_type(sharded.graph.ty(state.value), sharding);
            (state.name.clone(), (whole, sharding.clone()))
        });
        let (split, stages) = (split.collect(), Stages::of(&sharded.graph));
        Self { split, sharded: Some(sharded), stages }
    }

    /// The stages of the model, if it has several.
    pub(crate) fn stages(&self) -> Option<&Stages> {
        self.stages.as_ref()
    }

    /// The states that ranks change, this one or another, each with the type of a part of it.
    pub(crate) fn changing(&self) -> Option<impl Iterator<Item = (&str, &TensorType)>> {
        let graph = &self.sharded.as_ref()?.graph;
        let changing = graph.states().iter().filter(|state| is_kept(state));
        Some(changing.map(|state| (state.name.as_str(), graph.ty(state.value))))
    }

    /// The type of the part of a state that ranks hold which have one.
    pub(crate) fn part_type(&self, name: &str) -> Option<&TensorType> {
        let graph = &self.sharded.as_ref()?.graph;
        let state = graph.states().iter().find(|state| state.name == name)?;
        Some(graph.ty(state.value))
    }

    /// The rank that holds what `rank` would hold of a state if it were on its stage.
    fn holder(&self, name: &str, rank: usize) -> usize {
        let home = self.stages.as_ref().and_then(|stages| stages.home(name));
        let (Some(home), Some(sharded)) = (home, &self.sharded) else { return rank };
        let (mesh, axis) = (&sharded.mesh, Axis::from(Mesh::PIPELINE));
        let line = mesh.group_of(rank, &mesh.along(&axis));
        line[home]
    }

    /// Adds to the shardings of another graph that its states lie as they do here. `data` is the
    /// axis that they are shared out along.
    pub(crate) fn lay(
        &self,
        whole: &Graph,
        data: &Axis,
        shards: Shards,
        shardings: &mut Shardings,
    ) {
        for state in whole.states() {
            let Some((_, sharding)) = self.split.get(&state.name) else { continue };
            shardings.insert(state.value, sharding.clone());
            if shards == Shards::Parameters && is_matrix(whole, state) {
                let mut known = sharding.clone();
                let along = known.split.iter_mut().filter(|axis| axis.as_ref() == Some(data));
                along.for_each(|axis| *axis = None);
                gathered(whole, state, &known, shardings);
            }
        }
    }

    /// The type of a whole state. `own` is the type of the part that this rank holds.
    pub(crate) fn whole_type<'a>(&'a self, name: &str, own: &'a TensorType) -> &'a TensorType {
        self.split.get(name).map_or(own, |(ty, _)| ty)
    }

    /// Whether a rank holds less than all.
    pub(crate) fn is_split(&self) -> bool {
        !self.split.is_empty() || self.stages.is_some()
    }

    /// The place in its whole of the part that a rank holds; `own` is the type of the part.
    pub(crate) fn region(&self, name: &str, own: &TensorType, rank: usize) -> Region {
        let sizes = own.sizes();
        match (self.split.get(name), &self.sharded) {
            (Some((_, sharding)), Some(sharded)) => {
                Region { start: sharded.start(&sizes, sharding, rank), sizes }
            }
            _ => Region::whole(sizes),
        }
    }

    /// The rank that writes the part of a state that `rank` holds. Those that hold the same part
    /// take turns by the number of the state among all, so that none has to write all. If nothing
    /// is split, rank 0 writes all, and no other rank needs its disk.
    pub(crate) fn writer(&self, name: &str, own: &TensorType, rank: usize) -> usize {
        let Some(sharded) = self.sharded.as_ref().filter(|_| self.is_split()) else { return 0 };
        let of_rank = |rank| self.region(name, own, rank);
        let held = of_rank(rank);
        let holders = (0..sharded.mesh.ranks())
            .filter(|other| self.holder(name, *other) == *other && of_rank(*other) == held);
        let holders: Vec<usize> = holders.collect();
        let number = sharded.graph.states().iter().position(|state| state.name == name);
        holders[number.unwrap_or_default() % holders.len()]
    }

    /// This rank's part of a whole state.
    pub(crate) fn part(&self, name: &str, whole: &Tensor, rank: usize) -> Tensor {
        match (self.split.get(name), &self.sharded) {
            (Some((_, sharding)), Some(sharded)) => sharded.part(whole, sharding, rank),
            _ => whole.clone(),
        }
    }

    /// The inputs and labels of a batch, which is one of several, by name, as this rank's graph
    /// takes them. Rows are the rank's own already. Along `context` ranks share the samples, and
    /// each takes its positions.
    pub(crate) fn given<'t>(
        &self,
        (batch, number, count): (&'t Batch, usize, usize),
        (graph, rank): (&Graph, usize),
    ) -> Vec<(String, Cow<'t, Tensor>)> {
        let context = Axis::from(CONTEXT);
        let sharded = self.sharded.as_ref().filter(|sharded| sharded.mesh.size(&context) > 1);
        let own = |name: &str, tensor: &'t Tensor| {
            let port = graph.inputs().iter().find(|port| port.name == name)?;
            let split = Sharding::whole(tensor.ty().rank());
            let is_split = split.split.len() > 1 && graph.ty(port.value) != tensor.ty();
            Some(sharded.filter(|_| is_split)?.part(tensor, &split.and_split(1, &context), rank))
        };
        let all = batch.inputs().chain([("labels", &batch.labels)]);
        let part = |(name, tensor): (&'static str, &'t Tensor)| {
            let name = of_batch(name, number, count);
            let part = own(&name, tensor).map_or(Cow::Borrowed(tensor), Cow::Owned);
            (name, part)
        };
        all.map(part).collect()
    }

    /// On rank 0 the whole state from the parts of all ranks, which all come here; elsewhere the
    /// rank's own part, if it has one.
    pub(crate) fn gathered(
        &self,
        name: &str,
        own: Option<Tensor>,
        communicator: &dyn Communicator,
    ) -> Result<Option<Tensor>, TrainError> {
        let (rank, all) = (communicator.rank(), communicator.mesh().ranks());
        let sharding = self.split.get(name).map(|(_, sharding)| sharding);
        // Whole on each rank that holds it: one of them is enough.
        let needed = if sharding.is_some() { all } else { 1 };
        let holders: BTreeSet<usize> = (0..needed).map(|rank| self.holder(name, rank)).collect();
        let mut parts = BTreeMap::new();
        if holders.contains(&rank) {
            parts.extend(own.clone().map(|own| (rank, own)));
        }
        // In pairs: no rank but 0 needs what others have.
        for &other in holders.iter().filter(|other| **other != 0) {
            if rank != 0 && rank != other {
                continue;
            }
            let what = format!("the parts of `{name}`");
            let bytes = if rank == 0 { &[] } else { own.as_ref().map_or(&[][..], Tensor::bytes) };
            let exchange = Exchange { group: &[0, other], what: &what, bytes };
            let mut part = None;
            communicator.share(&exchange, &mut |position, bytes| {
                if rank == 0 && position == 1 {
                    part = Some(bytes.to_vec());
                }
            })?;
            let ty = self.part_type(name);
            let part = part.zip(ty).map(|(bytes, ty)| Tensor::from_bytes(ty.clone(), bytes));
            parts.extend(part.map(|part| (other, part.expect("all parts are of one type"))));
        }
        if rank != 0 {
            return Ok(own);
        }
        let of = |rank: usize| parts[&self.holder(name, rank)].clone();
        Ok(Some(match (sharding, &self.sharded) {
            (Some(sharding), Some(sharded)) => {
                sharded.join(&(0..all).map(of).collect::<Vec<_>>(), sharding)
            }
            _ => of(0),
        }))
    }
}

/// Tensors by name, as compiled graphs take them.
pub(crate) fn by_name<'t>(given: &'t [(String, Cow<'_, Tensor>)]) -> Vec<(&'t str, &'t Tensor)> {
    given.iter().map(|(name, tensor)| (name.as_str(), tensor.as_ref())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::DType;

    #[test]
    fn errors_of_other_ranks_are_those_of_the_first() {
        let errors = Tensor::from_f64(DType::F32, [3usize, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let of = |ranks: usize| TensorType::new(DType::F32, [ranks, 2]);
        let name = "compression.0.error";
        assert!(continues(name, errors.ty(), &of(2)) && continues(name, errors.ty(), &of(3)));
        assert!(!continues("optimizer.m.error", errors.ty(), &of(2)), "it is of no rank");
        assert!(!continues(name, errors.ty(), &TensorType::new(DType::F32, [2usize, 3])));
        assert_eq!(of_ranks(&errors, &of(3)), errors, "the same ranks have their own");
        assert_eq!(of_ranks(&errors, &of(2)).to_f64(), [9.0, 12.0, 0.0, 0.0]);
    }
}
