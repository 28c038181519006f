//! Greedy grouping along producer-consumer edges (mode compile).
//!
//! Nodes are visited in order; each joins its producers' groups as long as the merged group lowers
//! to one step and no path leaves the group and comes back. After XLA's and nvFuser's greedy
//! fusers, with lowering itself as the test of what is possible.

use super::region::{Cut, cut, is_cloned, label};
use super::{is_step_of_its_own, one_step};
use crate::lower::is_contraction;
use overdrive_ir::ops::Fused;
use overdrive_ir::plan::Note;
use overdrive_ir::{Builder, Caps, Expr, Graph, GraphError, NodeId, Origin, Value};
use std::collections::{BTreeSet, HashMap, HashSet};

/// Bound on a group, so that generated loops stay readable and register pressure sane.
const MAX_MEMBERS: usize = 48;
/// Bound on buffers of a group.
const MAX_BUFFERS: usize = 24;

struct Grouping<'g> {
    graph: &'g Graph,
    /// Group of each node; index into `groups`.
    group_of: Vec<Option<usize>>,
    /// Members by node index; empty after a merge.
    groups: Vec<BTreeSet<u32>>,
    /// Nodes that read each value; `None` stands for outputs and state updates.
    readers: HashMap<Value, Vec<Option<u32>>>,
}

/// Merges what lowers into `fused` ops.
pub fn groups(graph: &Graph, caps: &Caps, notes: &mut Vec<Note>) -> Result<Graph, GraphError> {
    let mut readers: HashMap<Value, Vec<Option<u32>>> = HashMap::new();
    for (index, node) in graph.nodes().iter().enumerate() {
        node.operands.iter().for_each(|&v| readers.entry(v).or_default().push(Some(index as u32)));
    }
    let results = graph
        .outputs()
        .iter()
        .map(|o| o.value)
        .chain(graph.states().iter().filter_map(|s| s.update));
    results.for_each(|v| readers.entry(v).or_default().push(None));
    let mut grouping =
        Grouping { graph, group_of: vec![None; graph.nodes().len()], groups: vec![], readers };
    for index in 0..graph.nodes().len() as u32 {
        grouping.place(index, caps, notes);
    }
    grouping.rebuild()
}

impl Grouping<'_> {
    fn place(&mut self, index: u32, caps: &Caps, notes: &mut Vec<Note>) {
        let node = self.graph.node(NodeId(index));
        if is_cloned(self.graph, node) || !is_step_of_its_own(self.graph, node, caps) {
            return;
        }
        let mut group = self.groups.len();
        self.groups.push(BTreeSet::from([index]));
        self.group_of[index as usize] = Some(group);
        if is_contraction(node) {
            return;
        }
        for candidate in self.producer_groups(index) {
            if candidate == group {
                continue;
            }
            match self.mergeable([candidate, group], caps) {
                Ok(()) => {
                    let moved = std::mem::take(&mut self.groups[group]);
                    moved.iter().for_each(|&id| self.group_of[id as usize] = Some(candidate));
                    self.groups[candidate].extend(moved);
                    group = candidate;
                }
                Err(reason) => notes.push(Note::Declined {
                    what: format!(
                        "{} into {}",
                        node.op.name(),
                        label(self.graph, &self.groups[candidate])
                    ),
                    scope: node.scope.to_string(),
                    reason,
                }),
            }
        }
    }

    /// Groups that compute operands of a node, seen through cloned views; the latest first.
    fn producer_groups(&self, index: u32) -> Vec<usize> {
        let mut found = BTreeSet::new();
        let mut pending = self.graph.node(NodeId(index)).operands.clone();
        while let Some(value) = pending.pop() {
            if let Origin::Node(id, _) = self.graph.origin(value) {
                match self.group_of[id.0 as usize] {
                    Some(group) => drop(found.insert(group)),
                    None if is_cloned(self.graph, self.graph.node(id)) => {
                        pending.extend(&self.graph.node(id).operands);
                    }
                    None => {}
                }
            }
        }
        found.into_iter().rev().collect()
    }

    fn mergeable(&self, [a, b]: [usize; 2], caps: &Caps) -> Result<(), String> {
        let members: BTreeSet<u32> = self.groups[a].union(&self.groups[b]).copied().collect();
        if members.len() > MAX_MEMBERS {
            return Err(format!("the group would have more than {MAX_MEMBERS} members"));
        }
        let cut = self.cut(&members);
        if cut.inputs.len() + cut.outputs.len() > MAX_BUFFERS {
            return Err(format!("the group would touch more than {MAX_BUFFERS} buffers"));
        }
        if cut.inputs.iter().any(|&v| self.depends_on(v, &members)) {
            return Err(
                "another step between them needs the first and is needed by the second".into()
            );
        }
        one_step(&cut.region, caps)
    }

    fn cut(&self, members: &BTreeSet<u32>) -> Cut {
        cut(self.graph, members, |value| self.used_outside(value, members))
    }

    /// True when somebody outside `members` reads the value. Reads through cloned views by members
    /// are inside.
    fn used_outside(&self, value: Value, members: &BTreeSet<u32>) -> bool {
        self.readers.get(&value).is_some_and(|readers| {
            readers.iter().any(|reader| match reader {
                None => true,
                Some(id) if members.contains(id) => false,
                Some(id) => {
                    let node = self.graph.node(NodeId(*id));
                    !is_cloned(self.graph, node)
                        || node.results.iter().any(|&v| self.used_outside(v, members))
                }
            })
        })
    }

    /// Does computing `value` need a member of `members`, counting every group as one step?
    fn depends_on(&self, value: Value, members: &BTreeSet<u32>) -> bool {
        let first = *members.first().expect("groups are not empty");
        let mut seen = HashSet::new();
        let mut pending = vec![value];
        while let Some(value) = pending.pop() {
            let Origin::Node(id, _) = self.graph.origin(value) else { continue };
            if members.contains(&id.0) {
                return true;
            }
            if !seen.insert(id.0) {
                continue;
            }
            match self.group_of[id.0 as usize] {
                Some(group) if self.groups[group].last().is_some_and(|&last| last < first) => {}
                Some(group) => {
                    for &member in &self.groups[group] {
                        seen.insert(member);
                        pending.extend(&self.graph.node(NodeId(member)).operands);
                    }
                }
                None if id.0 < first => {}
                None => pending.extend(&self.graph.node(id).operands),
            }
        }
        false
    }

    fn rebuild(&self) -> Result<Graph, GraphError> {
        let b = Builder::new(self.graph.name());
        let mut map: HashMap<Value, Expr<'_>> = b.declare(self.graph).into_iter().collect();
        for index in 0..self.graph.nodes().len() as u32 {
            let node = self.graph.node(NodeId(index));
            // A node that only its users' regions read is not emitted on its own.
            if !is_cloned(self.graph, node) {
                self.emit(index, &b, &mut map);
            }
        }
        b.conclude(self.graph, |value| self.resolve(value, &b, &mut map));
        b.finish()
    }

    /// The value in the new graph, its producer emitted on demand.
    fn resolve<'b>(
        &self,
        value: Value,
        b: &'b Builder,
        map: &mut HashMap<Value, Expr<'b>>,
    ) -> Expr<'b> {
        if let Some(&expr) = map.get(&value) {
            return expr;
        }
        let Origin::Node(id, _) = self.graph.origin(value) else {
            unreachable!("inputs and states are declared first")
        };
        self.emit(id.0, b, map);
        map[&value]
    }

    /// Emits the step that a node belongs to, after the steps that it needs.
    fn emit<'b>(&self, index: u32, b: &'b Builder, map: &mut HashMap<Value, Expr<'b>>) {
        let node = self.graph.node(NodeId(index));
        if node.results.iter().all(|v| map.contains_key(v)) && !node.results.is_empty() {
            return;
        }
        let alone = |members: &BTreeSet<u32>| members.len() == 1 && is_contraction(node);
        let group = self.group_of[index as usize].map(|g| &self.groups[g]);
        let Some(members) = group.filter(|members| !alone(members)) else {
            let operands: Vec<Expr<'b>> =
                node.operands.iter().map(|&v| self.resolve(v, b, map)).collect();
            let results = b.again(node, &operands);
            map.extend(node.results.iter().copied().zip(results));
            return;
        };
        let Cut { region, inputs, outputs } = self.cut(members);
        if outputs.iter().all(|v| map.contains_key(v)) {
            return;
        }
        let operands: Vec<Expr<'b>> = inputs.iter().map(|&v| self.resolve(v, b, map)).collect();
        let last = members.last().expect("groups are not empty");
        let _scope = b.scope_path(&self.graph.node(NodeId(*last)).scope);
        let results = b.node(Fused { label: label(self.graph, members) }, &operands, vec![region]);
        map.extend(outputs.into_iter().zip(results));
    }
}
