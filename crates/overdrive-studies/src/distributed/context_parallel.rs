//! Causal attention over a context that the ranks share. Each rank has a part of the queries, keys
//! and values along T. A graph of the whole is split by `shard_with`, for each exchange.

use super::joint::{Joint, Judge, Split, normal, of_graph, of_shards};
use crate::attention::{AttentionPart, AttentionVariant, graph};
use overdrive_bench::case::Workload;
use overdrive_bench::failure::Failure;
use overdrive_bench::work::Items;
use overdrive_ir::{DType, Mesh, Sharding};
use overdrive_passes::{ContextExchange, shard_with};
use serde_json::{Value, json};

/// The axis along which T is split.
const AXIS: &str = "context";
/// T at which outputs are held against f64, for each rank, and heads for each.
const SMALL: (usize, usize) = (128, 2);

/// Attention of `[B, H, T, D]`.
pub(super) struct ContextParallel {
    pub(super) part: AttentionPart,
    pub(super) sizes: [usize; 4],
    pub(super) dtype: DType,
    /// The ring, or all ranks by heads.
    pub(super) exchange: ContextExchange,
}

impl ContextParallel {
    fn of_sizes(&self, sizes: [usize; 4], ranks: usize) -> Result<Split, Failure> {
        let case = (AttentionVariant::Causal, self.part);
        let whole = graph(case, (self.dtype, sizes)).map_err(of_graph)?;
        let (mesh, axis) = (Mesh::new([(AXIS, ranks)]), AXIS.into());
        let along = |port: &overdrive_ir::Port| {
            (port.value, Sharding::whole(sizes.len()).and_split(2, &axis))
        };
        let shardings = whole.inputs().iter().map(along).collect();
        let sharded = (ranks > 1)
            .then(|| shard_with(&whole, &mesh, &shardings, Some(self.exchange)))
            .transpose()
            .map_err(of_shards)?;
        Ok(Split { whole, sharded, inputs: normal })
    }
}

impl Joint for ContextParallel {
    fn workload(&self, _ranks: usize) -> Workload {
        let name = format!("causal attention{}", self.part.suffix());
        let [b, h, t, d] = self.sizes.map(|size| size as u64);
        Workload::new(name, [("B", b), ("H", h), ("T", t), ("D", d)])
    }

    fn variant(&self) -> Option<&'static str> {
        Some(match self.exchange {
            ContextExchange::Ring => "context parallel",
            ContextExchange::Ulysses => "ulysses",
            ContextExchange::Groups(_) => "ulysses in groups",
        })
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn items(&self, _ranks: usize) -> Option<Items> {
        let tokens = (self.sizes[0] * self.sizes[2]) as u64;
        Some(Items { per_call: tokens, name: "tokens".to_owned() })
    }

    fn axis(&self) -> &'static str {
        AXIS
    }

    fn split(&self, ranks: usize) -> Result<Split, Failure> {
        self.of_sizes(self.sizes, ranks)
    }

    fn judge(&self, ranks: usize) -> Result<Judge, Failure> {
        let ([_, _, _, d], (tokens, heads)) = (self.sizes, SMALL);
        let small = self.of_sizes([1, heads * ranks, tokens * ranks, d], ranks)?;
        Ok(Judge::Small(Box::new(small), self.dtype))
    }

    fn peers(&self) -> Vec<(&'static str, Value)> {
        if self.exchange != ContextExchange::Ring {
            return vec![];
        }
        let backward = self.part == AttentionPart::Both;
        vec![("context parallel", json!({ "sizes": self.sizes, "backward": backward }))]
    }
}
