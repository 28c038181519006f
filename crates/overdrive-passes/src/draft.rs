//! A plan on its way through the passes, and the description and changes of each pass.

use crate::meeting_order::Ordered;
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
    /// Its work, in a sentence.
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

/// The size of a draft between two passes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct DraftSize {
    /// Nodes of the graph.
    pub nodes: usize,
    /// Steps of the plan; none before the pass `steps`.
    pub steps: usize,
}

/// Changes by one pass.
#[derive(Clone, Debug)]
pub struct PassChange {
    /// The pass.
    pub pass: &'static Pass,
    /// Sizes before it.
    pub before: DraftSize,
    /// Sizes after it.
    pub after: DraftSize,
    /// The notes that it added: what it expanded, declined, cast.
    pub notes: Vec<Note>,
}

/// A plan on its way through the list.
pub(crate) struct Draft<'a> {
    /// The requested graph.
    pub asked: &'a Graph,
    /// The graph as far as it is rewritten.
    pub graph: Cow<'a, Graph>,
    /// The abilities of the device.
    pub target: &'a dyn Target,
    /// The limits to keep.
    pub tuning: &'a Tuning,
    /// The values kept from the forward to the backward part.
    pub policy: Rematerialize,
    /// The collectives that stay in the order of the graph.
    pub ordered: Ordered,
    /// The notes so far; from `steps` on all of it.
    pub plan: Plan,
}

impl<'a> Draft<'a> {
    pub(crate) fn new(
        asked: &'a Graph,
        (mode, target): (Mode, &'a dyn Target),
        (tuning, policy): (&'a Tuning, Rematerialize),
        ordered: Ordered,
    ) -> Self {
        let plan = Plan { name: asked.name().to_owned(), mode, ..Plan::default() };
        Self { asked, graph: Cow::Borrowed(asked), target, tuning, policy, ordered, plan }
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
