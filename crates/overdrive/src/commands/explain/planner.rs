//! `Planner`: the asked plan, as all parts of `explain` need it.

use crate::asked_graph::AskedModel;
use crate::cli::Explain;
use crate::failure::Failure;
use overdrive::ir::{Graph, Mesh, Mode, Plan, Target, Tuning};

/// Who plans, for which device and within which limits.
pub(super) struct Planner<'a> {
    pub(super) arguments: &'a Explain,
    pub(super) model: AskedModel<'a>,
    pub(super) target: &'a dyn Target,
    pub(super) mode: Mode,
    pub(super) tuning: Tuning,
}

impl Planner<'_> {
    /// The step of all ranks of a mesh, on whole batches of so many samples.
    pub(super) fn whole(&self, samples: usize, mesh: &Mesh) -> Result<Graph, Failure> {
        let expected = || format!("expected a batch of at most {}, found {samples}", u32::MAX);
        let batch = u32::try_from(samples).map_err(|_| Failure::bad_input(expected()))?;
        Ok(self.model.of_ranks(Some(batch), (mesh, self.batches()))?.1)
    }

    /// Batches of an update.
    pub(super) fn batches(&self) -> usize {
        self.arguments.accumulate as usize
    }

    /// The plans of graphs.
    pub(super) fn plans<'g>(
        &self,
        parts: impl Iterator<Item = &'g Graph>,
    ) -> Result<Vec<Plan>, Failure> {
        let plan = |part: &Graph| {
            overdrive::passes::plan(part, self.mode, self.target, &self.tuning)
                .map_err(Failure::bad_input)
        };
        parts.map(plan).collect()
    }

    /// The graphs of the ranks of a mesh that differ: one for each stage, if it has several.
    pub(super) fn parts(&self, whole: &Graph, mesh: &Mesh) -> Result<Vec<Graph>, Failure> {
        let sharded = self.arguments.ranks.sharded(whole, mesh).map_err(Failure::bad_input)?;
        let axis = Mesh::PIPELINE.into();
        let first = |stage| (0..mesh.ranks()).find(|rank| mesh.position(*rank, &axis) == stage);
        let ranks = (0..mesh.size(&axis)).filter_map(first);
        ranks.map(|rank| sharded.placed(rank).map_err(Failure::harness)).collect()
    }
}
