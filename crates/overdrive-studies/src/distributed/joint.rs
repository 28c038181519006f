//! `Joint`: work that several ranks do together, at any number of ranks.

use super::team::RankWork;
use overdrive_bench::case::Workload;
use overdrive_bench::failure::Failure;
use overdrive_bench::work::{Items, Work};
use overdrive_ir::eval::philox;
use overdrive_ir::{DType, Graph, GraphError, Init, Tensor, TensorType};
use overdrive_passes::{ShardError, Sharded, draw};
use serde_json::Value;

/// One case of the study, written down once for any number of ranks.
pub(super) trait Joint {
    /// Name and sizes. If the work grows with the ranks, `ranks` is one of the sizes.
    fn workload(&self, ranks: usize) -> Workload;

    /// How it is split, where there are several ways.
    fn variant(&self) -> Option<&'static str> {
        None
    }

    /// The number format of its contractions, or of its elements.
    fn dtype(&self) -> DType;

    /// The axis of all ranks.
    fn axis(&self) -> &'static str;

    /// Why so many ranks cannot do it, if they cannot.
    fn refusal(&self, _ranks: usize) -> Option<String> {
        None
    }

    /// Whether one rank can do it alone: collectives need several.
    fn has_one(&self) -> bool {
        true
    }

    /// The items that a call of all ranks handles, for a throughput and for the efficiency.
    fn items(&self, _ranks: usize) -> Option<Items> {
        None
    }

    /// Bytes that each rank sends and receives at least, for a bandwidth.
    fn wire_bytes(&self, _ranks: usize) -> Option<u64> {
        None
    }

    /// The graphs and inputs of so many ranks.
    ///
    /// # Errors
    /// When the sizes cannot be split so.
    fn split(&self, ranks: usize) -> Result<Split, Failure>;

    /// How outputs are judged.
    ///
    /// # Errors
    /// As `split`.
    fn judge(&self, ranks: usize) -> Result<Judge, Failure>;

    /// The same in the program of PyTorch: the part's name there with its sizes, and how the part
    /// is called in results.
    fn peers(&self) -> Vec<(&'static str, Value)> {
        vec![]
    }
}

/// How the outputs of a case are judged.
pub(super) enum Judge {
    /// Rows of its outputs, at full size, are exactly those of this graph on the same rows of the
    /// inputs, by the evaluator. Each output holds so many blocks of rows.
    Rows { graph: Graph, blocks: usize },
    /// The same work at a small size is held against its f64 reference.
    Small(Box<Split>, DType),
    /// The outputs of the first call are those of one rank, which has the same part of the data.
    OneRank { rtol: f64 },
}

/// Gives a rank's inputs for its graph.
pub(super) type DrawInputs = fn(&Graph, usize) -> Vec<Tensor>;

/// Work of each of some ranks.
pub(super) struct Split {
    /// The work of all ranks; where nothing was sharded, that of each.
    pub(super) whole: Graph,
    /// None for one rank, and where all ranks have the same graph.
    pub(super) sharded: Option<Sharded>,
    /// Inputs of a rank's graph.
    pub(super) inputs: DrawInputs,
}

impl Split {
    /// The work of a rank.
    pub(super) fn of_rank(&self, rank: usize) -> Result<RankWork, Failure> {
        let graph = self.graph(rank)?;
        let inputs = (self.inputs)(&graph, rank);
        Ok(RankWork { graph, inputs })
    }

    /// The same on its part of these inputs of the whole.
    pub(super) fn of_rank_on(&self, rank: usize, inputs: &[Tensor]) -> Result<RankWork, Failure> {
        let graph = self.graph(rank)?;
        let inputs = match &self.sharded {
            None => inputs.to_vec(),
            Some(sharded) => {
                let pairs = inputs.iter().zip(&sharded.inputs);
                pairs.map(|(tensor, split)| sharded.part(tensor, split, rank)).collect()
            }
        };
        Ok(RankWork { graph, inputs })
    }

    fn graph(&self, rank: usize) -> Result<Graph, Failure> {
        match &self.sharded {
            Some(sharded) => sharded.at_rank(&self.whole, rank).map_err(of_graph),
            None => Ok(self.whole.clone()),
        }
    }

    /// Work of a rank in a call: its share of the whole, and its own compulsory bytes.
    pub(super) fn work(&self, ranks: usize, items: Option<Items>) -> Work {
        let graph = self.sharded.as_ref().map_or(&self.whole, |sharded| &sharded.graph);
        let ports = graph.inputs().iter().chain(graph.outputs()).map(|port| port.value);
        let values = ports.chain(graph.states().iter().map(|state| state.value));
        let bytes = values.map(|value| graph.ty(value).bytes() as u64).sum();
        let parts = if self.sharded.is_some() { ranks as u64 } else { 1 };
        Work { flops: self.whole.cost().flops / parts, bytes, items }
    }
}

/// Standard normal inputs, different on each rank.
pub(super) fn normal(graph: &Graph, rank: usize) -> Vec<Tensor> {
    let of = |name: &str, ty: &TensorType| {
        draw(&Init::Normal { std: 1.0, seed: 1 + rank as u64 }, name, ty)
    };
    graph.inputs().iter().map(|port| of(&port.name, graph.ty(port.value))).collect()
}

/// Integers below a bound, the same on each rank.
pub(super) fn below(bound: usize, name: &str, ty: &TensorType) -> Tensor {
    let uniform = philox::uniforms(1, philox::site_of(name)).take(ty.elements());
    let ids: Vec<i128> = uniform.map(|u| (u * bound as f64) as i128).collect();
    Tensor::from_ints(ty.dtype, ty.shape.clone(), &ids)
}

pub(super) fn of_graph(error: GraphError) -> Failure {
    Failure::failed(error.to_string())
}

pub(super) fn of_shards(error: ShardError) -> Failure {
    Failure::unsupported(error.to_string())
}
