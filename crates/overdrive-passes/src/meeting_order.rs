//! The order of collectives that all ranks keep.
//!
//! Ranks meet in every collective, so that all must come to them in one order. If the graphs of all
//! ranks are the same, any pass orders them alike. A permutation is how ranks do different work in
//! turns (a ring), so the work around it may differ. So it does around what the stages of a
//! pipeline exchange. Nothing moves past either: each rank would move something else.
//!
//! A rank also folds what its place makes known, so that its plan may start collectives in an order
//! of its own. Ranks then plan again, and no collective moves past another (`plan::of_rank`).

use overdrive_ir::plan::{Step, StepKind};
use overdrive_ir::{Channel, Graph, Node, Prim, Value};
use std::collections::HashMap;

/// Collectives that stay in the order of the graph, among themselves and to all others.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Ordered {
    /// Those of ranks with different work.
    Turns,
    /// All, so that the order is the graph's, and hangs on nothing that a rank folds.
    All,
}

impl Ordered {
    fn has(self, prim: &Prim) -> bool {
        self == Self::All || is_turn(prim)
    }
}

/// For each collective, by the number of its node: results of those that no rank may do later.
pub(crate) fn met_before(graph: &Graph, ordered: Ordered) -> HashMap<u32, Vec<Value>> {
    let mut before = HashMap::new();
    // The last of those that stay, and what came after it.
    let (mut last, mut since): (Option<Value>, Vec<Value>) = (None, vec![]);
    for (index, node) in graph.nodes().iter().enumerate().filter(|(_, node)| meets(node)) {
        let result = node.results[0];
        let mut known: Vec<Value> = last.into_iter().collect();
        if node.op.prim().is_some_and(|prim| ordered.has(prim)) {
            known.append(&mut since);
            last = Some(result);
        } else {
            since.push(result);
        }
        before.insert(index as u32, known);
    }
    before
}

/// Whether other ranks take part in a node.
pub(crate) fn meets(node: &Node) -> bool {
    node.op.prim().and_then(Prim::channel).is_some_and(|channel| channel.ranks() > 1)
}

/// Whether ranks with different work meet in a collective.
fn is_turn(prim: &Prim) -> bool {
    matches!(prim, Prim::Permute { .. }) || prim.channel().is_some_and(Channel::joins_stages)
}

/// Whether a step is the start of a collective that stays in its place among the others.
pub(crate) fn stays(step: &Step, ordered: Ordered) -> bool {
    matches!(&step.kind, StepKind::CollectiveStart { prim } if ordered.has(prim))
}

/// Whether two steps are collectives whose order stays.
pub(crate) fn keeps_order(a: &Step, b: &Step, ordered: Ordered) -> bool {
    let starts = |step: &Step| matches!(step.kind, StepKind::CollectiveStart { .. });
    starts(a) && starts(b) && (stays(a, ordered) || stays(b, ordered))
}
