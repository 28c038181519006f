//! A training step whose batch is split over the ranks, by itself or with a part of the states. It
//! is the step that `overdrive train` makes, and its scaling is weak.
//!
//! Every rank is given the same samples. The loss and the norm of the gradients of all ranks
//! together are then those of one rank, which judges them at full size.

use super::joint::{Joint, Judge, Split, below};
use crate::training::language::{self, of_training};
use overdrive_bench::case::Workload;
use overdrive_bench::failure::Failure;
use overdrive_bench::work::Items;
use overdrive_ir::{DType, Graph, Mesh, Port, Tensor};
use overdrive_passes::Compression;
use overdrive_train::{Recipe, Shards, sharded_step, training_step};
use serde_json::{Value, json};

/// The axis along which batches are split.
const AXIS: &str = "data";
/// Roundings that two orders of one sum may differ by.
pub(super) const ROUNDINGS: f64 = 4.0;

/// The step of a language model with `batch` samples a rank.
pub(super) struct Training {
    pub(super) model: &'static str,
    pub(super) batch: usize,
    pub(super) shards: Shards,
    pub(super) compression: Option<Compression>,
    pub(super) precision: DType,
}

impl Training {
    /// The forward of so many samples, with its loss.
    pub(super) fn forward(&self, batch: usize) -> Result<Graph, Failure> {
        language::forward(self.model, batch)
    }

    /// The step of so many samples.
    fn step(&self, batch: usize) -> Result<Graph, Failure> {
        let recipe = Recipe { batch, precision: self.precision, ..Recipe::default() };
        training_step(&self.forward(batch)?, &recipe).map_err(of_training)
    }
}

/// Tokens, the same on every rank: ids below 256, which every vocabulary has, and a small learning
/// rate.
pub(super) fn samples(graph: &Graph, _rank: usize) -> Vec<Tensor> {
    let of = |port: &Port| match graph.ty(port.value) {
        ty if ty.dtype.is_float() => Tensor::scalar(ty.dtype, 1e-4),
        ty => below(language::IDS, &port.name, ty),
    };
    graph.inputs().iter().map(of).collect()
}

/// The same ranks at the same work, and nothing between them: each takes the step of one rank. No
/// exchange is to blame for the time that this loses to one rank alone. Devices of one host are not
/// equally fast, and all wait for the slowest.
pub(super) struct Apart(pub(super) Training);

impl Joint for Apart {
    fn workload(&self, ranks: usize) -> Workload {
        self.0.workload(ranks)
    }

    fn variant(&self) -> Option<&'static str> {
        Some("nothing exchanged")
    }

    fn dtype(&self) -> DType {
        self.0.dtype()
    }

    fn items(&self, ranks: usize) -> Option<Items> {
        self.0.items(ranks)
    }

    fn axis(&self) -> &'static str {
        AXIS
    }

    fn split(&self, _ranks: usize) -> Result<Split, Failure> {
        self.0.split(1)
    }

    fn judge(&self, ranks: usize) -> Result<Judge, Failure> {
        self.0.judge(ranks)
    }
}

impl Joint for Training {
    fn workload(&self, ranks: usize) -> Workload {
        let sizes = [self.batch, language::tokens(self.model), ranks].map(|size| size as u64);
        let dimensions = ["B a rank", "T", "ranks"].into_iter().zip(sizes);
        Workload::new(format!("training step of {}", self.model), dimensions)
    }

    fn variant(&self) -> Option<&'static str> {
        Some(match (self.shards, self.compression) {
            (Shards::Nothing, None) => "data parallel",
            (Shards::Optimizer, None) => "zero-1",
            (Shards::Parameters, None) => "zero-3",
            (Shards::Parameters, Some(Compression::F32)) => "zero-3, gradients f32, two hops",
            (_, Some(Compression::F32)) => "gradients f32, two hops",
            (_, Some(Compression::Bf16)) => "gradients bf16",
            (_, Some(Compression::Int8)) => "gradients int8",
            (_, Some(Compression::Fp8)) => "gradients fp8",
            (_, Some(Compression::TopK { .. })) => "gradients topk",
            (_, Some(Compression::PowerSgd { .. })) => "gradients powersgd",
        })
    }

    fn dtype(&self) -> DType {
        self.precision
    }

    fn items(&self, ranks: usize) -> Option<Items> {
        let tokens = (self.batch * language::tokens(self.model) * ranks) as u64;
        Some(Items { per_call: tokens, name: "tokens".to_owned() })
    }

    fn axis(&self) -> &'static str {
        AXIS
    }

    fn split(&self, ranks: usize) -> Result<Split, Failure> {
        let whole = self.step(self.batch * ranks)?;
        let mesh = Mesh::new([(AXIS, ranks)]);
        let sharded = (ranks > 1)
            .then(|| sharded_step(&whole, &mesh, self.shards, self.compression))
            .transpose()
            .map_err(of_training)?;
        Ok(Split { whole, sharded, inputs: samples })
    }

    fn judge(&self, _ranks: usize) -> Result<Judge, Failure> {
        Ok(Judge::OneRank { rtol: ROUNDINGS * self.precision.epsilon().max(1e-5) })
    }

    fn peers(&self) -> Vec<(&'static str, Value)> {
        let sizes =
            json!({ "model": self.model, "batch": self.batch, "dtype": self.precision.name() });
        match (self.shards, self.compression) {
            (Shards::Nothing, None) => vec![("ddp", sizes)],
            (Shards::Parameters, None) => vec![("fsdp2", sizes)],
            _ => vec![],
        }
    }
}
