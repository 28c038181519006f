//! A plan on its way through the passes, and the description and changes of each pass.

use crate::plan::PlanError;
use crate::rematerialize::Rematerialize;
use overdrive_ir::plan::{Note, Plan};
use overdrive_ir::{Graph, GraphError, Mode, Target, Tuning};
use std::borrow::Cow;
use std::fmt;

/// One entry of the list.
#[derive(Copy, Clone)]
pub struct Pass {
    /// Its one name.
    pub name: &'static str,
    /// What it does, in a sentence.
    pub does: &'static str,
    /// The modes in which it runs.
    pub modes: &'static [Mode],
    /// The pass itself.
    pub(crate) run: fn(&mut Draft<'_>) -> Result<(), PlanError>,
}

impl fmt::Debug for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").field("name", &self.name).field("modes", &self.modes).finish()
    }
}

/// What there is of a plan between two passes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct DraftSize {
    /// Nodes of the graph.
    pub nodes: usize,
    /// Steps of the plan; none before the pass `steps`.
    pub steps: usize,
}

/// What one pass changed.
#[derive(Clone, Debug)]
pub struct PassChange {
    /// The pass.
    pub pass: &'static Pass,
    /// What it was given.
    pub before: DraftSize,
    /// What it made.
    pub after: DraftSize,
    /// The notes that it added: what it expanded, declined, cast.
    pub notes: Vec<Note>,
}

/// A plan on its way through the list.
pub(crate) struct Draft<'a> {
    /// The graph that was asked for.
    pub asked: &'a Graph,
    /// The graph as far as it is rewritten.
    pub graph: Cow<'a, Graph>,
    /// What the device can do.
    pub target: &'a dyn Target,
    /// What it must fit.
    pub tuning: &'a Tuning,
    /// What is kept from the forward to the backward.
    pub policy: Rematerialize,
    /// The notes so far; from `steps` on all of it.
    pub plan: Plan,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(
        asked: &'a Graph,
        (mode, target): (Mode, &'a dyn Target),
        (tuning, policy): (&'a Tuning, Rematerialize),
    ) -> Self {
        let plan = Plan { name: asked.name().to_owned(), mode, ..Plan::default() };
        Self { asked, graph: Cow::Borrowed(asked), target, tuning, policy, plan }
    }

    /// Runs one pass of graphs.
    pub(crate) fn rewrite(
        &mut self,
        pass: impl FnOnce(&Graph, &dyn Target, &mut Vec<Note>) -> Result<Graph, GraphError>,
    ) -> Result<(), PlanError> {
        self.graph = Cow::Owned(pass(&self.graph, self.target, &mut self.plan.notes)?);
        Ok(())
    }
}
