//! A training step in stages: each rank holds a run of layers, and several batches are under way.
//! Its scaling is strong: one rank takes the same batches, one after another.

use super::joint::{Joint, Judge, Split, of_shards};
use super::training::{ROUNDINGS, Training, samples};
use crate::training::language::{self, of_training};
use overdrive_bench::case::Workload;
use overdrive_bench::failure::Failure;
use overdrive_bench::work::Items;
use overdrive_ir::{DType, Mesh};
use overdrive_passes::Stages;
use overdrive_train::{Recipe, Shards, sharded_step, training_step, training_step_on};

/// The step of a language model in stages.
pub(super) struct Pipeline {
    /// The model, and the samples of each batch.
    pub(super) training: Training,
    /// Batches of an update.
    pub(super) batches: usize,
}

impl Joint for Pipeline {
    fn workload(&self, ranks: usize) -> Workload {
        let sizes =
            [self.training.batch, language::tokens(self.training.model), self.batches, ranks];
        let dimensions = ["B", "T", "batches", "ranks"].into_iter();
        let dimensions = dimensions.zip(sizes.map(|size| size as u64));
        Workload::new(format!("training step of {}", self.training.model), dimensions)
    }

    fn variant(&self) -> Option<&'static str> {
        Some("pipeline")
    }

    fn dtype(&self) -> DType {
        self.training.precision
    }

    fn items(&self, _ranks: usize) -> Option<Items> {
        let tokens =
            (self.training.batch * language::tokens(self.training.model) * self.batches) as u64;
        Some(Items { per_call: tokens, name: "tokens".to_owned() })
    }

    fn axis(&self) -> &'static str {
        Mesh::PIPELINE
    }

    fn split(&self, ranks: usize) -> Result<Split, Failure> {
        let Training { batch, precision, .. } = self.training;
        let forward = self.training.forward(batch)?;
        let recipe = Recipe { batch, precision, accumulate: self.batches, ..Recipe::default() };
        if ranks == 1 {
            let all =
                Stages::divide(&forward, 1).and_then(|one| one.pipeline(&forward, self.batches));
            let recipe = Recipe { accumulate: 1, ..recipe };
            let whole = training_step(&all.map_err(of_shards)?, &recipe).map_err(of_training)?;
            return Ok(Split { whole, sharded: None, inputs: samples });
        }
        let mesh = Mesh::new([(Mesh::PIPELINE, ranks)]);
        let whole = training_step_on(&forward, &recipe, &mesh).map_err(of_training)?;
        let sharded = sharded_step(&whole, &mesh, Shards::Nothing, None).map_err(of_training)?;
        Ok(Split { whole, sharded: Some(sharded), inputs: samples })
    }

    fn judge(&self, _ranks: usize) -> Result<Judge, Failure> {
        Ok(Judge::OneRank { rtol: ROUNDINGS * self.training.precision.epsilon().max(1e-5) })
    }
}
