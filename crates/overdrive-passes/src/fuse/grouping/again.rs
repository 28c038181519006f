//! Readers compute a value again that a group would store for them alone, where they can do so from
//! less.
//!
//! The forward pass would store the derivative of an activation. Its readers can compute it from
//! the activation's input, which is there anyway, or is half as wide. Elementwise work beside a
//! memory access costs nothing; only bytes count. After the recomputation of PyTorch's min-cut
//! partitioner, from step to step. Invariant: bytes written and read become fewer with each value
//! that is dropped.

use super::{Grouping, MAX_BUFFERS, MAX_MEMBERS, Outline, is_contraction, one_step};
use overdrive_ir::plan::{Note, Recomputing};
use overdrive_ir::{NodeId, Target, Value};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

/// Most nodes that are computed again for one value.
const MOST_NODES: usize = 24;

/// A value that readers compute again.
struct Plan {
    nodes: BTreeSet<u32>,
    /// Groups of the readers.
    readers: BTreeSet<usize>,
    saved: i64,
}

impl Grouping<'_> {
    /// Drops stored values until none saves bytes.
    pub(super) fn compute_again(&mut self, target: &dyn Target, notes: &mut Vec<Note>) {
        for group in 0..self.groups.len() {
            let mut declined: BTreeSet<Value> = BTreeSet::new();
            while let Some((value, plan)) = self.best(group, &declined, target) {
                if !self.apply(group, &plan, target) {
                    declined.insert(value);
                    continue;
                }
                let node = self.graph.producer(value).expect("a group computes it");
                notes.push(Note::Recomputed {
                    op: node.op.name(),
                    scope: node.scope.to_string(),
                    why: Recomputing::ForTraffic { moved_bytes: plan.saved },
                });
            }
        }
    }

    /// The value of a group that saves most, and how.
    fn best(
        &self,
        group: usize,
        declined: &BTreeSet<Value>,
        target: &dyn Target,
    ) -> Option<(Value, Plan)> {
        if self.groups[group].len() < 2 {
            return None;
        }
        let outputs = self.outline_of(group).outputs;
        let candidates = outputs.iter().filter(|value| !declined.contains(value));
        candidates
            .filter_map(|&value| Some((value, self.plan_of(value, group, &outputs)?)))
            .filter(|(_, plan)| plan.saved > target.description().bytes_of_latency as i64)
            .max_by_key(|(_, plan)| plan.saved)
    }

    fn bytes(&self, value: Value) -> i64 {
        self.graph.ty(value).bytes() as i64
    }

    /// The cost of having the readers of a stored value compute it; `None` where one of them
    /// cannot.
    fn plan_of(&self, value: Value, group: usize, stored: &[Value]) -> Option<Plan> {
        let readers = self.reading(value, group)?;
        let known: BTreeMap<usize, BTreeSet<Value>> = readers
            .iter()
            .map(|&reader| (reader, self.outline_of(reader).inputs.into_iter().collect()))
            .collect();
        let search = Search { grouping: self, group, value, stored, known: &known };
        let (mut nodes, mut leaves) = (BTreeSet::new(), BTreeSet::new());
        search.walk(value, &mut nodes, &mut leaves)?;
        let written: i64 = leaves.iter().map(|&leaf| search.to_write(leaf)).sum();
        let read: i64 = leaves.iter().map(|&leaf| search.to_read(leaf)).sum();
        let now = self.bytes(value) * (1 + readers.len() as i64);
        Some(Plan { nodes, readers, saved: now - written - read })
    }

    /// The groups other than `group` that read a value and do not compute it. `None` if there is
    /// none, or if anything that is no group reads it.
    fn reading(&self, value: Value, group: usize) -> Option<BTreeSet<usize>> {
        let readers = RefCell::new(BTreeSet::new());
        let is_alone = self.any_reader(value, &|reader| {
            let of = reader.and_then(|id| Some((id, self.group_of[id as usize]?)));
            let Some((id, of)) = of else { return true };
            readers.borrow_mut().insert(of);
            readers.borrow_mut().extend(self.copies.get(&id).into_iter().flatten());
            false
        });
        let mut readers = readers.into_inner();
        readers.retain(|&reader| reader != group && !self.computes(reader, value));
        (!is_alone && !readers.is_empty()).then_some(readers)
    }

    /// Copies the nodes into the groups that read them, if each of these still is one step. Removes
    /// from `group` the nodes that nobody else needs there.
    fn apply(&mut self, group: usize, plan: &Plan, target: &dyn Target) -> bool {
        let before = (self.groups.clone(), self.copies.clone());
        for &reader in &plan.readers {
            for &node in plan.nodes.difference(&before.0[reader]) {
                self.groups[reader].insert(node);
                self.copies.entry(node).or_default().insert(reader);
            }
        }
        for &node in plan.nodes.iter().rev() {
            if self.group_of[node as usize] == Some(group) && !self.needs(group, node) {
                self.groups[group].remove(&node);
            }
        }
        // An empty group could not give back its nodes.
        let changed = plan.readers.iter().chain([&group]);
        let fits = changed.clone().all(|&group| self.holds(group, target));
        if !fits {
            (self.groups, self.copies) = before;
            return false;
        }
        // Nobody asks for a node that each of its readers computes: it is of one of them.
        let first = *plan.readers.first().expect("a plan has readers");
        for &node in &plan.nodes {
            if self.group_of[node as usize] == Some(group) && !self.groups[group].contains(&node) {
                self.group_of[node as usize] = Some(first);
                self.copies.entry(node).or_default().remove(&first);
            }
        }
        true
    }

    /// Whether a member of a group, or somebody who reads it from there, reads a node of it.
    fn needs(&self, group: usize, node: u32) -> bool {
        let members = &self.groups[group];
        self.graph.node(NodeId(node)).results.iter().any(|&result| {
            self.any_reader(result, &|reader| reader.is_some_and(|id| members.contains(&id)))
                || self.used_outside(result, members)
        })
    }

    /// Whether a group is one step, within its bounds.
    fn holds(&self, group: usize, target: &dyn Target) -> bool {
        let members = &self.groups[group];
        let Some(first) = members.first() else { return false };
        if members.len() == 1 && is_contraction(self.graph.node(NodeId(*first))) {
            return true;
        }
        let Outline { inputs, outputs } = self.outline_of(group);
        members.len() <= MAX_MEMBERS + MOST_NODES
            && inputs.len() + outputs.len() <= MAX_BUFFERS
            && one_step(&self.cut_of(group).region, target).is_ok()
    }
}

/// The search for what to compute a value from.
struct Search<'s, 'g> {
    grouping: &'s Grouping<'g>,
    group: usize,
    /// The value that is no longer stored.
    value: Value,
    /// Values that the group stores.
    stored: &'s [Value],
    /// Values that each reader reads now.
    known: &'s BTreeMap<usize, BTreeSet<Value>>,
}

impl Search<'_, '_> {
    /// Bytes that are stored more, where `leaf` is read.
    fn to_write(&self, leaf: Value) -> i64 {
        if self.is_stored(leaf) { 0 } else { self.grouping.bytes(leaf) }
    }

    fn is_stored(&self, leaf: Value) -> bool {
        !self.is_within(leaf) || leaf != self.value && self.stored.contains(&leaf)
    }

    fn is_within(&self, leaf: Value) -> bool {
        self.grouping.computes(self.group, leaf)
    }

    /// Bytes that are read more, where `leaf` is read.
    fn to_read(&self, leaf: Value) -> i64 {
        let new = self.known.values().filter(|known| !known.contains(&leaf)).count();
        self.grouping.bytes(leaf) * new as i64
    }

    /// Collects the nodes that compute a value and the leaves that they read. It takes the cheaper
    /// of two ways: reading the value, or computing it from the operands of its node. `None` where
    /// that is too much.
    fn walk(
        &self,
        value: Value,
        nodes: &mut BTreeSet<u32>,
        leaves: &mut BTreeSet<Value>,
    ) -> Option<i64> {
        let graph = self.grouping.graph;
        let producer = self.grouping.node_of(value).map(|id| (id, graph.node(NodeId(id))));
        // Views and scalars are copied to where they are read.
        if let Some((id, node)) = producer
            && self.grouping.cloned[id as usize]
        {
            let parts = node.operands.iter().map(|&v| self.walk(v, nodes, leaves));
            return parts.sum();
        }
        if producer.is_some_and(|(id, _)| nodes.contains(&id)) || leaves.contains(&value) {
            return Some(0);
        }
        // A value that a group recomputes is not a result of the group.
        let own = |(id, _)| self.grouping.group_of[id as usize] == Some(self.group);
        let is_leaf = value != self.value && (!self.is_within(value) || producer.is_some_and(own));
        let as_leaf = is_leaf.then(|| self.to_write(value) + self.to_read(value));
        let computed = producer.filter(|(id, node)| {
            self.grouping.groups[self.group].contains(id)
                && node.op.prim().is_some_and(|prim| prim.is_elementwise())
                && (value == self.value || !self.is_stored(value))
        });
        if let Some((id, node)) = computed
            && nodes.len() < MOST_NODES
        {
            let (mut deeper, mut below) = (nodes.clone(), leaves.clone());
            deeper.insert(id);
            let parts = node.operands.iter().map(|&v| self.walk(v, &mut deeper, &mut below));
            let cost: Option<i64> = parts.sum();
            if let Some(cost) = cost
                && as_leaf.is_none_or(|as_leaf| cost < as_leaf)
            {
                (*nodes, *leaves) = (deeper, below);
                return Some(cost);
            }
        }
        if as_leaf.is_some() {
            leaves.insert(value);
        }
        as_leaf
    }
}
