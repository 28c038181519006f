//! A graph that is searched, with what every match in it asks.

use overdrive_ir::{Graph, Prim, Value};

/// A graph that is searched, and what every match in it asks.
pub(super) struct Scene<'g> {
    pub(super) graph: &'g Graph,
    /// Values that depend on no input and no state: constants may be shared with others.
    free: Vec<bool>,
    pub(super) uses: Vec<usize>,
}

impl<'g> Scene<'g> {
    pub(super) fn of(graph: &'g Graph) -> Self {
        Self { graph, free: free(graph), uses: graph.use_counts() }
    }

    /// Whether a value depends on no input and no state.
    pub(super) fn is_free(&self, value: Value) -> bool {
        self.free[value.0 as usize]
    }
}

/// As the field of the same name says.
fn free(graph: &Graph) -> Vec<bool> {
    let mut free = vec![false; graph.value_count()];
    for node in graph.nodes() {
        let pure = !matches!(node.op.prim(), Some(Prim::RankIndex { .. }));
        let known = pure && node.operands.iter().all(|v| free[v.0 as usize]);
        node.results.iter().for_each(|v| free[v.0 as usize] = known);
    }
    free
}
