//! `shard`: the graph of one rank of a mesh, from the whole graph and a few shardings.
//!
//! Shardings of inputs, states and any other value are annotations. The rest follows from what each
//! node does to each dimension. Collectives are inserted where two of them disagree
//! (docs/decisions/0009). All ranks run the same graph. Differentiate first, shard second. Tests
//! run all ranks in lockstep and compare them with the whole graph.

mod attention_sizes;
pub(crate) mod classes;
mod context;
mod context_exchange;
mod error;
mod layout;
mod line;
mod parts;
pub(crate) mod relation;
mod ring;
mod ulysses;
mod walk;

pub use context_exchange::{BadContextExchange, ContextExchange};
pub use error::ShardError;
pub(crate) use layout::part;

use crate::pipeline::Stages;
use crate::rebuild::live;
use layout::Laid;
use overdrive_ir::plan::Note;
use overdrive_ir::{
    Axis, Builder, DType, Graph, GraphError, Init, Mesh, Prim, Sharding, Tensor, TensorType, Value,
};
use parts::ShardPart;
use std::collections::BTreeMap;
use walk::Ranks;

/// Elements of less than a byte are cut and joined as these, which hold each of them.
const WHOLE_BYTES: DType = DType::F32;

/// The graph of one rank, and the shardings of its inputs, outputs and states.
#[derive(Clone, PartialEq, Debug)]
pub struct Sharded {
    /// The same on every rank. States that are split and not constant start as NaN: `at_rank` gives
    /// them their part.
    pub graph: Graph,
    /// The mesh it was made for.
    pub mesh: Mesh,
    /// The sharding of each input.
    pub inputs: Vec<Sharding>,
    /// The sharding of each output; never partial.
    pub outputs: Vec<Sharding>,
    /// The sharding of each state.
    pub states: Vec<Sharding>,
    /// Which ops were expanded, which values were gathered, and why.
    pub notes: Vec<Note>,
}

impl Sharded {
    /// The graph of one rank: its positions are constants. Choices by them are made here, and
    /// nothing is computed for those not taken. A stage of a pipeline has its own states alone. For
    /// a caller that brings the states: no initial
    /// value is computed.
    pub fn placed(&self, rank: usize) -> Result<Graph, GraphError> {
        let stage = self.mesh.position(rank, &Mesh::PIPELINE.into());
        let stages = Stages::of(&self.graph);
        let of_stage = stages.map(|stages| stages.placed(&self.graph, stage)).transpose()?;
        let graph = of_stage.as_ref().unwrap_or(&self.graph).rewrite(
            &mut |b, node, _| match node.op.prim() {
                Some(Prim::RankIndex { along }) => {
                    let position = self.mesh.position(rank, along) as i128;
                    Some(vec![b.constant(Tensor::from_ints(DType::I32, [0usize; 0], &[position]))])
                }
                _ => None,
            },
        )?;
        crate::dce(&crate::fold(&graph)?)
    }

    /// The same with states that start as its parts of those of `whole`.
    pub fn at_rank(&self, whole: &Graph, rank: usize) -> Result<Graph, GraphError> {
        let graph = self.placed(rank)?;
        let init = |name: &str, local: &TensorType| {
            let Some(index) = whole.states().iter().position(|state| state.name == name) else {
                // A later pass added it, as each rank has it.
                let added = self.graph.states().iter().find(|state| state.name == name);
                return added.expect("the name is that of a state").init.clone();
            };
            let (state, sharding) = (&whole.states()[index], &self.states[index]);
            let ty = whole.ty(state.value);
            match &state.init {
                init if ty == local => init.clone(),
                Init::Constant(value) => Init::Constant(*value),
                init => Init::Value(self.part(&init.tensor(name, ty), sharding, rank)),
            }
        };
        Ok(graph.with_initial_values(init))
    }

    /// The part of a whole tensor that a rank holds.
    pub fn part(&self, whole: &Tensor, sharding: &Sharding, rank: usize) -> Tensor {
        let dtype = whole.ty().dtype;
        if dtype.bits() < 8 {
            return self.part(&whole.convert(WHOLE_BYTES), sharding, rank).convert(dtype);
        }
        let sizes = whole.ty().sizes();
        let local = sharding.local(&sizes, &self.mesh);
        let ty = whole.ty().with_shape(local.clone());
        let start = self.start(&local, sharding, rank);
        let part = ShardPart { whole: &sizes, sizes: &local, start: &start };
        let (width, mut found) = (dtype.bits() / 8, vec![0; ty.bytes()]);
        part.runs(&mut |from, to, count| {
            let run = &whole.bytes()[from * width..][..count * width];
            found[to * width..][..count * width].copy_from_slice(run);
        });
        Tensor::from_bytes(ty, found).expect("runs are all of a part")
    }

    /// The whole tensor from the parts of all ranks.
    pub fn join(&self, parts: &[Tensor], sharding: &Sharding) -> Tensor {
        let (dtype, local) = (parts[0].ty().dtype, parts[0].ty().sizes());
        if dtype.bits() < 8 {
            let wide: Vec<Tensor> = parts.iter().map(|part| part.convert(WHOLE_BYTES)).collect();
            return self.join(&wide, sharding).convert(dtype);
        }
        let ty = self.whole_type(parts[0].ty(), sharding);
        let sizes = ty.sizes();
        let (width, mut found) = (dtype.bits() / 8, vec![0; ty.bytes()]);
        for (rank, own) in parts.iter().enumerate() {
            let start = self.start(&local, sharding, rank);
            let part = ShardPart { whole: &sizes, sizes: &local, start: &start };
            part.runs(&mut |to, from, count| {
                let run = &own.bytes()[from * width..][..count * width];
                found[to * width..][..count * width].copy_from_slice(run);
            });
        }
        Tensor::from_bytes(ty, found).expect("parts are all of the whole")
    }

    /// The type of the whole, from that of each rank's part.
    pub fn whole_type(&self, part: &TensorType, sharding: &Sharding) -> TensorType {
        let scale = |(n, axis): (usize, &Option<Axis>)| {
            n * axis.as_ref().map_or(1, |axis| self.mesh.size(axis))
        };
        let sizes = part.sizes().into_iter().zip(&sharding.split).map(scale);
        part.with_shape(sizes.collect::<Vec<usize>>())
    }

    /// The start of a rank's part of these sizes in the whole, in each dimension.
    pub fn start(&self, local: &[usize], sharding: &Sharding, rank: usize) -> Vec<usize> {
        let position =
            |axis: &Option<Axis>| axis.as_ref().map_or(0, |axis| self.mesh.position(rank, axis));
        local.iter().zip(&sharding.split).map(|(n, axis)| n * position(axis)).collect()
    }
}

/// Shards a bound graph. `shardings` annotates inputs, states and any other value; inputs and
/// states without annotation are whole on every rank. Attention whose sequence is split takes the
/// exchange that an estimate finds fastest.
///
/// # Errors
/// When an annotation does not fit its value or the mesh.
pub fn shard(
    graph: &Graph,
    mesh: &Mesh,
    shardings: &BTreeMap<Value, Sharding>,
) -> Result<Sharded, ShardError> {
    shard_with(graph, mesh, shardings, None)
}

/// The same with this exchange of every attention whose sequence is split.
///
/// # Errors
/// As [`shard`], and when the ranks of a group do not divide the heads.
pub fn shard_with(
    graph: &Graph,
    mesh: &Mesh,
    shardings: &BTreeMap<Value, Sharding>,
    exchange: Option<ContextExchange>,
) -> Result<Sharded, ShardError> {
    for (&value, sharding) in shardings {
        check(graph, mesh, value, sharding)?;
    }
    let (mesh, shardings) = &apart(mesh, shardings);
    let annotated = |value: Value| {
        let whole = || Sharding::whole(graph.ty(value).rank());
        shardings.get(&value).cloned().unwrap_or_else(whole)
    };
    let b = Builder::new(graph.name());
    let mut known = BTreeMap::new();
    let local = |value: Value| {
        let (ty, sharding) = (graph.ty(value), annotated(value));
        (ty.with_shape(sharding.local(&ty.sizes(), mesh)), sharding)
    };
    let mut inputs = vec![];
    for port in graph.inputs() {
        let (ty, sharding) = local(port.value);
        let laid =
            Laid::new(graph.ty(port.value).clone(), sharding.clone(), b.input(&port.name, ty));
        known.insert(port.value, laid);
        inputs.push(sharding);
    }
    let mut states = vec![];
    for state in graph.states() {
        let (ty, sharding) = local(state.value);
        let init = match &state.init {
            init if ty == *graph.ty(state.value) => init.clone(),
            Init::Constant(value) => Init::Constant(*value),
            _ => Init::Constant(f64::NAN),
        };
        let expr = b.state_named(&state.name, ty, init);
        known.insert(state.value, Laid::new(graph.ty(state.value).clone(), sharding.clone(), expr));
        states.push(sharding);
    }
    let (notes, of_heads) = (vec![], BTreeMap::new());
    let mut ranks = Ranks { b: &b, mesh, notes, exchange, of_heads, refused: None };
    let known = ranks.graph(graph, known, (shardings, &live(graph)));
    let Ranks { notes, refused, .. } = ranks;
    if let Some(refused) = refused {
        return Err(refused);
    }
    let mut outputs = vec![];
    for port in graph.outputs() {
        let laid = &known[&port.value];
        let sharding = Sharding { partial: vec![], ..laid.sharding.clone() };
        b.output(&port.name, laid.at(&b, mesh, &sharding));
        outputs.push(sharding);
    }
    for state in graph.states() {
        if let Some(update) = state.update {
            b.update(&state.name, known[&update].at(&b, mesh, &annotated(state.value)));
        }
    }
    let graph = crate::dce(&crate::cse(&b.finish()?)?)?;
    Ok(Sharded { graph, mesh: mesh.clone(), inputs, outputs, states, notes })
}

/// The axes of more than one rank: the others split nothing.
fn apart(mesh: &Mesh, shardings: &BTreeMap<Value, Sharding>) -> (Mesh, BTreeMap<Value, Sharding>) {
    let axes = mesh.axes.iter().filter(|(_, ranks)| *ranks > 1).cloned().collect();
    let mut shardings = shardings.clone();
    let splits = shardings.values_mut().flat_map(|sharding| &mut sharding.split);
    splits
        .filter(|split| split.as_ref().is_some_and(|axis| mesh.size(axis) == 1))
        .for_each(|split| *split = None);
    (Mesh { axes }, shardings)
}

/// Errs unless an annotation fits its value and the mesh.
fn check(graph: &Graph, mesh: &Mesh, value: Value, sharding: &Sharding) -> Result<(), ShardError> {
    let name = name_of(graph, value);
    let ty = graph.ty(value);
    let wrong = |expected: &str, remedy: &str| ShardError::Annotation {
        value: name.clone(),
        expected: expected.to_owned(),
        found: format!("{sharding} for {ty} on the mesh {mesh}"),
        remedy: remedy.to_owned(),
    };
    if sharding.split.len() != ty.rank() {
        return Err(wrong("an entry for each dimension", "write None for those that stay whole"));
    }
    if !sharding.partial.is_empty() {
        return Err(wrong("no partial sums", "annotate the sum"));
    }
    for (dim, (axis, size)) in sharding.split.iter().zip(ty.sizes()).enumerate() {
        let Some(axis) = axis else { continue };
        if !mesh.axes.iter().any(|(name, _)| name == axis) {
            return Err(wrong("axes of the mesh", "add the axis to the mesh"));
        }
        if sharding.dim_of(axis) != Some(dim) {
            return Err(wrong("each axis once", "split each dimension along an axis of its own"));
        }
        let ranks = mesh.size(axis);
        if !size.is_multiple_of(ranks) {
            return Err(undivided(name, (dim, &[size]), (axis, ranks)));
        }
    }
    Ok(())
}

/// The name of a value in messages.
pub(crate) fn name_of(graph: &Graph, value: Value) -> String {
    let ports = graph.inputs().iter().map(|p| (p.value, format!("input `{}`", p.name)));
    let states = graph.states().iter().map(|s| (s.value, format!("state `{}`", s.name)));
    let named = ports.chain(states).find(|(v, _)| *v == value).map(|(_, name)| name);
    named.unwrap_or_else(|| match graph.producer(value) {
        Some(node) => format!("{} at {}", node.op.name(), node.scope),
        None => format!("%{}", value.0),
    })
}

/// The error that ranks along an axis do not divide a dimension. `sizes` are its own, and those
/// that the ranks would have to divide too.
pub(crate) fn undivided(
    value: String,
    (dim, sizes): (usize, &[usize]),
    (axis, ranks): (&Axis, usize),
) -> ShardError {
    let least = sizes.iter().copied().min().unwrap_or(1).min(4096);
    let divisors = (1..=least).filter(|d| sizes.iter().all(|size| size.is_multiple_of(*d)));
    let divisors: Vec<String> = divisors.map(|d| d.to_string()).collect();
    let (axis, divisors) = (axis.to_string(), divisors.join(", "));
    ShardError::Undivided { value, dim, size: sizes[0], axis, ranks, divisors }
}
