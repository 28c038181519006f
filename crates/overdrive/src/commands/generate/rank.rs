//! `generate` as one rank of several, which share the layers of a model.
//!
//! Rank 0 draws the tokens and speaks for all. Invariant: ranks that would decode something else
//! than the others end before the first step, with an error that names what differs.

use super::asked::Generation;
use crate::commands::ranks::Rank;
use crate::failure::Failure;
use crate::model::Model;
use overdrive::files::Digest;
use overdrive::ir::{Graph, Init};
use overdrive::models::CacheCodes;
use overdrive::passes::{ResidualStream, ShardError, shard, tensor_parallel};
use std::collections::BTreeMap;

/// Errs unless all ranks continue the same texts with the same model, in the same way.
pub(super) fn check(
    rank: &Rank,
    asked: &Generation<'_>,
    prompts: &[Vec<u32>],
) -> Result<(), Failure> {
    let Generation { arguments, model, mode, format, codes, sampling, .. } = asked;
    let model = match model {
        Model::Pretrained(pretrained) => pretrained.digest().unwrap_or_default().to_owned(),
        Model::Template(_) | Model::Onnx(_) => digest(&model.template()?.graph),
    };
    let dtype = format.map_or("of the graph".to_owned(), |format| format.to_string());
    let cache = codes.map_or("of the dtype", CacheCodes::name);
    let top_k = sampling.top_k.map_or("none".to_owned(), |k| k.to_string());
    let batch = arguments.batch.map_or("the usual".to_owned(), |batch| batch.to_string());
    let mut lines = format!(
        "model of checksum {model}\ndtype {dtype}\ncache {cache}\nmode {}\nmax-tokens {}\n\
         temperature {}\ntop-k {top_k}\ntop-p {}\nseed {}\nbatch {batch}\n",
        mode.name(),
        asked.max_tokens(),
        sampling.temperature,
        sampling.top_p,
        sampling.seed,
    );
    for (index, prompt) in prompts.iter().enumerate() {
        lines += &format!("prompt {index} of tokens {prompt:?}\n");
    }
    rank.agree("what is generated", &lines)
}

/// A checksum of a graph and its weights.
fn digest(graph: &Graph) -> String {
    let mut digest = Digest::default();
    digest.add(graph.to_string().as_bytes());
    for state in graph.states() {
        if let Init::Value(tensor) | Init::Widened(tensor) = &state.init {
            digest.add(tensor.bytes());
        }
    }
    digest.finish()
}

/// The part of a graph that a rank computes, with its part of the weights.
pub(super) fn part(graph: &Graph, rank: &Rank) -> Result<Graph, Failure> {
    let mesh = rank.communicator.mesh();
    let layers = tensor_parallel(graph, mesh, &BTreeMap::new(), ResidualStream::default());
    let sharded = layers.and_then(|layers| shard(graph, mesh, &layers));
    let own = sharded.and_then(|sharded| {
        sharded.at_rank(graph, rank.communicator.rank()).map_err(ShardError::from)
    });
    own.map_err(Failure::bad_input)
}
