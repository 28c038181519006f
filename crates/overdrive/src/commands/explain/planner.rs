//! `Planner`: the asked plan, as all parts of `explain` need it.

use crate::asked_graph::AskedModel;
use crate::cli::Explain;
use crate::failure::Failure;
use overdrive::ir::{Graph, Mesh, Mode, Target, Tuning};
use overdrive::train::{Shards, Sharing, step_of_one_rank};

/// Who plans, for which device and within which limits.
pub(super) struct Planner<'a> {
    pub(super) arguments: &'a Explain,
    pub(super) model: AskedModel<'a>,
    pub(super) target: &'a dyn Target,
    pub(super) mode: Mode,
    pub(super) tuning: Tuning,
}

impl Planner<'_> {
    /// The part of a step that the first rank of a mesh takes.
    pub(super) fn part(&self, whole: &Graph, mesh: &Mesh) -> Result<Graph, Failure> {
        let states = self.arguments.shard.map_or(Shards::Nothing, Shards::from);
        let sharing = Sharing { states, context: self.arguments.context };
        step_of_one_rank(whole, mesh, sharing, self.arguments.compress).map_err(Failure::bad_input)
    }
}
