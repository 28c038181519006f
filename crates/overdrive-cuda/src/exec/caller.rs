//! `Caller`: makes calls by the means of the mode, step by step or as a graph.

use super::compiled_step::CompiledStep;
use super::enqueuer::Enqueuer;
use super::replay::Replay;
use overdrive_ir::plan::{Note, Step};
use overdrive_ir::{BackendError, Mode};
use std::sync::Arc;

/// Calls of what was entered.
pub(super) struct Caller {
    pub(super) enqueuer: Enqueuer,
    replay: Option<Replay>,
}

impl Caller {
    pub(super) fn new(enqueuer: Enqueuer) -> Self {
        let replay = (enqueuer.plan.mode == Mode::Graph).then(Replay::default);
        let mut caller = Self { enqueuer, replay };
        caller.refuse_host_steps_in_graphs();
        caller.refuse_ranks_in_graphs();
        caller
    }

    /// Device memory of its graphs.
    pub(super) fn graph_bytes(&self) -> u64 {
        self.replay.as_ref().map_or(0, Replay::bytes)
    }

    /// A capture cannot wait for the host: such a plan is launched step by step, and says so.
    fn refuse_host_steps_in_graphs(&mut self) {
        let on_host = |(task, step): (&CompiledStep, &Step)| {
            (matches!(task, CompiledStep::Host(_)) && !step.prepare).then(|| step.scope.clone())
        };
        let scope = self.enqueuer.tasks.iter().zip(&self.enqueuer.plan.steps).find_map(on_host);
        if let (Some(scope), Some(_)) = (scope, &self.replay) {
            self.decline_replay(
                scope,
                "a step runs on the host, which a graph cannot wait for".to_owned(),
            );
        }
    }

    /// Captured collectives would outlive their group when another rank fails. So a plan with
    /// collectives is launched step by step, and says so.
    fn refuse_ranks_in_graphs(&mut self) {
        if self.enqueuer.ranks.is_some() && self.replay.is_some() {
            let reason = "its collectives end with any rank, which a graph cannot wait for";
            self.decline_replay(self.enqueuer.plan.name.clone(), reason.to_owned());
        }
    }

    /// Goes without graphs, as in mode `compile`, and says why.
    fn decline_replay(&mut self, scope: String, reason: String) {
        let what = "capture and replay as a graph".to_owned();
        let plan = Arc::make_mut(&mut self.enqueuer.plan);
        plan.notes.push(Note::Declined { what, scope, reason });
        plan.mode = Mode::Compile;
        self.replay = None;
    }

    /// Enqueues one call by the means of the mode.
    pub(super) fn call(&mut self) -> Result<(), BackendError> {
        // The first call loads kernels, which a capture must not.
        if !self.enqueuer.has_run {
            return self.enqueuer.enqueue(|_| Ok(()));
        }
        let Some(mut replay) = self.replay.take() else {
            return self.enqueuer.enqueue(|_| Ok(()));
        };
        match replay.call(&mut self.enqueuer)? {
            None => self.replay = Some(replay),
            Some(reason) => self.decline_replay(self.enqueuer.plan.name.clone(), reason),
        }
        Ok(())
    }
}
