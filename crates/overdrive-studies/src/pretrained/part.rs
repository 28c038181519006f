//! The part of a decoder that one of several ranks holds and reads, and the graphs of that rank.
//!
//! Layers are split along the mesh axis `tensor` by [`tensor_parallel`]. All graphs of a decoder
//! share its weights, so one of them, that of a whole sequence, says how weights lie. Invariant: in
//! every graph of the rank a weight has the type of the part that was read.

use super::architecture::Architecture;
use super::error::PretrainedError;
use super::facts::Facts;
use super::names::candidates;
use overdrive_formats::huggingface::{Config, FolderWeights};
use overdrive_formats::{Cut, Differences};
use overdrive_ir::{Axis, Graph, GraphError, Mesh, Sharding, TensorType};
use overdrive_models::Span;
use overdrive_passes::{
    Piece, ResidualStream, ShardError, Sharded, bind, separate, shard, tensor_parallel,
};
use std::collections::{BTreeMap, BTreeSet};

/// The axis along which layers are split.
const TENSOR: &str = "tensor";

/// One rank of several that decode together.
#[derive(Clone, Debug)]
pub(super) struct RankPart {
    mesh: Mesh,
    rank: usize,
    /// How each weight lies on the ranks.
    shardings: BTreeMap<String, Sharding>,
    /// Each state of the files: its type, and the parts of it that this rank reads.
    stored: BTreeMap<String, (TensorType, Vec<Cut>)>,
    /// The graph of one rank, whose states are the weights.
    graph: Graph,
    digest: String,
}

impl RankPart {
    /// The part of a rank of a mesh.
    ///
    /// # Errors
    /// When the model is no decoder, or the ranks along `tensor` do not divide its layers.
    pub(super) fn of(
        architecture: &Architecture,
        (mesh, rank): (&Mesh, usize),
    ) -> Result<Self, PretrainedError> {
        // A few tokens do: no weight has a dimension of them.
        let tokens = architecture.context().clamp(1, 16);
        let sizes = [("batch".to_owned(), 1), ("tokens".to_owned(), tokens)].into();
        let joined = architecture.span(Span::Whole).and_then(|graph| bind(&graph, &sizes));
        let joined = joined.map_err(ShardError::Graph)?;
        let (whole, pieces) = separate(&joined).map_err(ShardError::Graph)?;
        let sharded = sharded(&whole, mesh, None).map_err(|error| {
            let undivided = undivided(architecture, mesh.size(&TENSOR.into()));
            undivided.unwrap_or(error.into())
        })?;
        let mut part = Self {
            mesh: mesh.clone(),
            rank,
            shardings: BTreeMap::new(),
            stored: BTreeMap::new(),
            graph: sharded.graph,
            digest: String::new(),
        };
        let joined_type = |name: &str| {
            let state = joined.states().iter().find(|state| state.name == name);
            joined.ty(state.expect("a piece is of a state").value).clone()
        };
        for (state, sharding) in whole.states().iter().zip(sharded.states) {
            let piece = pieces.iter().find(|piece| piece.name == state.name);
            let ty = whole.ty(state.value);
            let stored = piece.map_or(&state.name, |piece| &piece.of).clone();
            let cut = part.cut((&state.name, ty), &sharding, piece);
            part.stored
                .entry(stored)
                .or_insert_with_key(|name| (joined_type(name), vec![]))
                .1
                .push(cut);
            part.shardings.insert(state.name.clone(), sharding);
        }
        Ok(part)
    }

    /// This rank's part of a state, in the state of the files that has it.
    fn cut(
        &self,
        (name, ty): (&str, &TensorType),
        sharding: &Sharding,
        piece: Option<&Piece>,
    ) -> Cut {
        let sizes = sharding.local(&ty.sizes(), &self.mesh);
        let position = |axis: &Axis| self.mesh.position(self.rank, axis);
        let position = |axis: &Option<Axis>| axis.as_ref().map_or(0, position);
        let mut start: Vec<usize> =
            sizes.iter().zip(&sharding.split).map(|(size, axis)| size * position(axis)).collect();
        if let Some(Piece { axis, start: first, .. }) = piece {
            start[*axis] += first;
        }
        Cut { name: name.to_owned(), start, sizes }
    }

    /// The parts of a tensor of the files that this rank reads; all of one that is not as declared.
    pub(super) fn cuts(&self, facts: &Facts, name: &str, ty: &TensorType) -> Option<Vec<Cut>> {
        let known = candidates(facts, name).into_iter().find_map(|own| self.stored.get(&own));
        match known {
            Some((whole, cuts)) => {
                (ty.shape == whole.shape && ty.dtype.bits() >= 8).then(|| cuts.clone())
            }
            None => facts.leaves_out(name).then(Vec::new),
        }
    }

    /// Notes which model it is a part of.
    pub(super) fn note(&mut self, config: &Config, weights: &FolderWeights) {
        let mut digest = weights.digest.clone();
        digest.add(config.to_json().to_string().as_bytes());
        self.digest = digest.finish();
    }

    /// The model that it is a part of.
    pub(super) fn digest(&self) -> &str {
        &self.digest
    }

    /// The graph that declares the weights of this rank.
    pub(super) fn declared(&self) -> &Graph {
        &self.graph
    }

    /// The graph of a span as this rank computes it. States are the caller's to bring.
    ///
    /// # Errors
    /// When the ranks do not divide it.
    pub(super) fn graph(&self, whole: &Graph) -> Result<Graph, GraphError> {
        let sharded = sharded(whole, &self.mesh, Some(&self.shardings));
        sharded.map_err(|error| graph_error(whole, error))?.placed(self.rank)
    }

    /// Differences of weights in the words of the files, whose tensors are whole.
    pub(super) fn in_files(&self, found: Differences) -> Differences {
        let stored = |name: &str| {
            let of = |(_, (_, cuts)): &(&String, &(TensorType, Vec<Cut>))| {
                cuts.iter().any(|cut| cut.name == name)
            };
            self.stored.iter().find(of).map(|(name, (ty, _))| (name.clone(), ty.clone()))
        };
        let unread: BTreeSet<&String> = found.unexpected.iter().map(|(name, _)| name).collect();
        let mut missing: Vec<(String, TensorType)> = vec![];
        let mut mismatched = found.mismatched.clone();
        for (name, ty) in &found.missing {
            let whole = stored(name).unwrap_or_else(|| (name.clone(), ty.clone()));
            // Its tensor is there, of another type than declared.
            if !unread.contains(&whole.0) && !missing.contains(&whole) {
                missing.push(whole);
            }
        }
        for (name, expected, _) in &mut mismatched {
            if let Some((_, whole)) = stored(name) {
                *expected = whole;
            }
        }
        let mut unexpected = vec![];
        for (name, ty) in &found.unexpected {
            match self.stored.get(name) {
                Some((whole, _)) => mismatched.push((name.clone(), whole.clone(), ty.clone())),
                None => unexpected.push((name.clone(), ty.clone())),
            }
        }
        Differences { graph: found.graph, missing, unexpected, mismatched }
    }
}

/// A graph split over a mesh; with `weights`, states of these names lie so.
fn sharded(
    whole: &Graph,
    mesh: &Mesh,
    weights: Option<&BTreeMap<String, Sharding>>,
) -> Result<Sharded, ShardError> {
    // A step has one token of each sequence: one sum behind each pair of layers costs least.
    let residual = ResidualStream::Whole;
    let mut shardings = tensor_parallel(whole, mesh, &BTreeMap::new(), residual)?;
    for state in whole.states() {
        if let Some(sharding) = weights.and_then(|weights| weights.get(&state.name)) {
            shardings.insert(state.value, sharding.clone());
        }
    }
    shard(whole, mesh, &shardings)
}

/// The error that names the layers that so many ranks do not divide.
fn undivided(architecture: &Architecture, ranks: usize) -> Option<PretrainedError> {
    let layers = architecture.divided();
    let name = |(size, what): &(usize, &str)| format!("{size} {what}");
    let wrong = layers.iter().find(|(size, _)| !size.is_multiple_of(ranks))?;
    let least = layers.iter().map(|(size, _)| *size).min().unwrap_or(1);
    let divides_all = |n: &usize| layers.iter().all(|(size, _)| size.is_multiple_of(*n));
    let fitting: Vec<String> = (1..=least).filter(divides_all).map(|n| n.to_string()).collect();
    Some(PretrainedError::Undivided { wrong: name(wrong), ranks, fitting: fitting.join(", ") })
}

fn graph_error(graph: &Graph, error: ShardError) -> GraphError {
    match error {
        ShardError::Graph(error) => error,
        error => GraphError {
            op: "shard".into(),
            scope: graph.name().into(),
            expected: "a graph whose weights are split as those of a whole sequence".into(),
            found: error.to_string(),
            remedy: "decode it on one rank".into(),
        },
    }
}
