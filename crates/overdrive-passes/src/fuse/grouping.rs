//! Greedy grouping along producer-consumer edges (mode compile).
//!
//! Nodes are visited in order. Each joins its producers' groups as long as the merged group lowers
//! to one step and no path leaves the group and comes back. This follows the greedy fusers of XLA
//! and nvFuser, with lowering itself as the test of what is possible. Then `beside` merges sums
//! that collectives read, and `again` makes readers recompute values that would be stored for them
//! alone. Groups run as soon as their operands are ready.

mod again;
mod beside;

use super::region::{Cut, Outline, cut, is_cloned, label, outline};
use super::{is_step_of_its_own, one_step};
use crate::lower::{contraction, is_contraction};
use crate::meeting_order::{Ordered, met_before};
use crate::pipeline::batch;
use crate::readers::Readers;
use crate::rematerialize::is_again;
use overdrive_ir::ops::Fused;
use overdrive_ir::plan::Note;
use overdrive_ir::{
    Builder, DType, Expr, Graph, GraphError, Node, NodeId, Origin, Port, Prim, Target, Value,
};
use std::collections::{BTreeSet, HashMap};

/// Bound on a group or a region of a cast, so that generated loops stay readable and register
/// pressure sane. An update of AdamW with moments in codes has more than 64 members.
pub(crate) const MAX_MEMBERS: usize = 80;
/// Bound on buffers of a group.
const MAX_BUFFERS: usize = 24;
/// Most tensors as large as its result that a contraction's epilogue reads. More tensors are a
/// loop's work: the result would be kept in registers for them, and the product would wait.
const MAX_EPILOGUE: usize = 3;

struct Grouping<'g> {
    graph: &'g Graph,
    /// Group of each node; index into `groups`.
    group_of: Vec<Option<usize>>,
    /// Members by node index; empty after a merge. A node may be a member of several: of the group
    /// that it is of, and of those that compute it again for themselves.
    groups: Vec<BTreeSet<u32>>,
    /// The groups that compute a node again.
    copies: HashMap<u32, BTreeSet<usize>>,
    readers: Readers,
    /// Whether each node is copied into the groups that read it.
    cloned: Vec<bool>,
    /// Whether products of codes are computed. They are so fast that their epilogues show.
    multiplies_codes: bool,
    /// Values that each collective comes after on all ranks, beside its operands.
    met_before: HashMap<u32, Vec<Value>>,
}

/// Merges what lowers into `fused` ops.
pub fn groups(
    graph: &Graph,
    target: &dyn Target,
    notes: &mut Vec<Note>,
) -> Result<Graph, GraphError> {
    groups_among(graph, target, Ordered::Turns, notes)
}

/// The same between collectives of which these stay in order.
pub(crate) fn groups_among(
    graph: &Graph,
    target: &dyn Target,
    ordered: Ordered,
    notes: &mut Vec<Note>,
) -> Result<Graph, GraphError> {
    let group_of = vec![None; graph.nodes().len()];
    let (groups, copies) = (vec![], HashMap::new());
    let mut grouping = Grouping {
        graph,
        group_of,
        groups,
        copies,
        readers: Readers::of(graph),
        cloned: graph.nodes().iter().map(|node| is_cloned(graph, node)).collect(),
        multiplies_codes: graph.nodes().iter().any(|node| multiplies_codes(graph, node)),
        met_before: met_before(graph, ordered),
    };
    for index in 0..graph.nodes().len() as u32 {
        grouping.place(index, target, notes);
    }
    grouping.merge_sums_for_ranks(target);
    grouping.compute_again(target, notes);
    grouping.rebuild()
}

impl Grouping<'_> {
    fn place(&mut self, index: u32, target: &dyn Target, notes: &mut Vec<Note>) {
        let node = self.graph.node(NodeId(index));
        if self.cloned[index as usize] || !is_step_of_its_own(self.graph, node, target) {
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
            let mergeable = match self.would_be_kept(index, candidate) {
                true => Err("what is computed again joins no work before it".to_owned()),
                false => self.mergeable([candidate, group], target),
            };
            match mergeable {
                Ok(()) => {
                    self.merge(group, candidate);
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

    /// Whether a node is computed again for the backward part, and not all of a group is. The
    /// others may be of the forward part: its result would be kept from there on.
    fn would_be_kept(&self, index: u32, group: usize) -> bool {
        let is_again = |id: u32| is_again(&self.graph.node(NodeId(id)).scope);
        is_again(index) && !self.groups[group].iter().all(|&id| is_again(id))
    }

    /// Moves the members of a group into another.
    fn merge(&mut self, group: usize, into: usize) {
        let moved = std::mem::take(&mut self.groups[group]);
        moved.iter().for_each(|&id| self.group_of[id as usize] = Some(into));
        self.groups[into].extend(moved);
    }

    /// Groups that compute operands of a node, seen through cloned views; the latest first.
    fn producer_groups(&self, index: u32) -> Vec<usize> {
        let mut found = BTreeSet::new();
        let mut pending = self.graph.node(NodeId(index)).operands.clone();
        while let Some(value) = pending.pop() {
            if let Origin::Node(id, _) = self.graph.origin(value) {
                match self.group_of[id.0 as usize] {
                    Some(group) => drop(found.insert(group)),
                    None if self.cloned[id.0 as usize] => {
                        pending.extend(&self.graph.node(id).operands);
                    }
                    None => {}
                }
            }
        }
        found.into_iter().rev().collect()
    }

    /// Whether a node rounds a vector of the model, such as a bias, to 16 bits in a graph with
    /// products of codes. Libraries add such vectors as they lie. All are rounded before anything
    /// else, in one launch. A vector that is computed or gathered is rounded where it is used.
    fn is_rounded_ahead(&self, node: &Node) -> bool {
        let is_half = |dtype: &DType| dtype.is_float() && dtype.bits() == 16;
        let narrows = matches!(node.op.prim(), Some(Prim::Convert { to, .. }) if is_half(to));
        self.multiplies_codes
            && narrows
            && self.graph.ty(node.results[0]).rank() == 1
            && matches!(self.graph.origin(node.operands[0]), Origin::State(_))
    }

    fn mergeable(&self, [a, b]: [usize; 2], target: &dyn Target) -> Result<(), String> {
        let members: BTreeSet<u32> = self.groups[a].union(&self.groups[b]).copied().collect();
        if members.len() > MAX_MEMBERS {
            return Err(format!("the group would have more than {MAX_MEMBERS} members"));
        }
        let batches = members.iter().filter_map(|&id| batch(self.graph.node(NodeId(id))));
        if batches.collect::<BTreeSet<_>>().len() > 1 {
            return Err("one batch of a pipeline would wait for another".into());
        }
        if members.iter().any(|&id| self.is_rounded_ahead(self.graph.node(NodeId(id)))) {
            return Err("one launch rounds all vectors, as libraries add them to products".into());
        }
        let Outline { inputs, outputs } =
            outline(self.graph, &members, &self.cloned, |value| self.used_outside(value, &members));
        if inputs.len() + outputs.len() > MAX_BUFFERS {
            return Err(format!("the group would touch more than {MAX_BUFFERS} buffers"));
        }
        if self.depend_on(inputs, &members) {
            return Err(
                "another step between them needs the first and is needed by the second".into()
            );
        }
        let cut = cut(self.graph, &members, |value| outputs.contains(&value));
        if let Some(node) = contraction(&cut.region) {
            let elements = cut.region.ty(node.results[0]).elements();
            let as_large = |port: &&Port| cut.region.ty(port.value).elements() >= elements;
            let (read, multiplied) = (cut.region.inputs(), node.operands.len());
            if read.iter().filter(as_large).count() > MAX_EPILOGUE + multiplied {
                return Err("the epilogue would read more than the product".into());
            }
        }
        one_step(&cut.region, target)
    }

    /// A group as a region.
    fn cut_of(&self, group: usize) -> Cut {
        cut(self.graph, &self.groups[group], |value| self.is_given(value, group))
    }

    /// The values that a group reads and gives.
    fn outline_of(&self, group: usize) -> Outline {
        let is_given = |value| self.is_given(value, group);
        outline(self.graph, &self.groups[group], &self.cloned, is_given)
    }

    /// Whether a group gives a value of its to others. It keeps what it computes again to itself.
    fn is_given(&self, value: Value, group: usize) -> bool {
        self.node_of(value).is_some_and(|id| self.group_of[id as usize] == Some(group))
            && self.used_outside(value, &self.groups[group])
    }

    /// True when somebody outside `members` reads the value and does not compute it again. Reads
    /// through cloned views by members are inside.
    fn used_outside(&self, value: Value, members: &BTreeSet<u32>) -> bool {
        self.any_reader(value, &|reader| {
            reader.is_none_or(|id| {
                let again = self.copies.get(&id).into_iter().flatten();
                let of = self.group_of[id as usize].filter(|_| !members.contains(&id));
                let alone = of.is_none() && !members.contains(&id);
                alone || again.copied().chain(of).any(|group| !self.computes(group, value))
            })
        })
    }

    /// Whether a group computes a value.
    fn computes(&self, group: usize, value: Value) -> bool {
        self.node_of(value).is_some_and(|id| self.groups[group].contains(&id))
    }

    /// The node that a value is a result of.
    fn node_of(&self, value: Value) -> Option<u32> {
        match self.graph.origin(value) {
            Origin::Node(id, _) => Some(id.0),
            _ => None,
        }
    }

    /// Whether `is` holds for a node that reads the value, itself or through cloned views, or for
    /// `None`, which stands for outputs and updates.
    fn any_reader(&self, value: Value, is: &dyn Fn(Option<u32>) -> bool) -> bool {
        let kept = self.readers.is_kept(value) && is(None);
        kept || self.readers.nodes(value).iter().any(|&reader| {
            match self.cloned[reader.0 as usize] {
                true => {
                    let results = &self.graph.node(reader).results;
                    results.iter().any(|&value| self.any_reader(value, is))
                }
                false => is(Some(reader.0)),
            }
        })
    }

    /// Does computing one of `pending` need a member of `members`, counting every group as one
    /// step?
    fn depend_on(&self, mut pending: Vec<Value>, members: &BTreeSet<u32>) -> bool {
        let first = *members.first().expect("groups are not empty");
        let mut seen = vec![false; self.graph.nodes().len()];
        while let Some(value) = pending.pop() {
            let Origin::Node(id, _) = self.graph.origin(value) else { continue };
            if members.contains(&id.0) {
                return true;
            }
            if std::mem::replace(&mut seen[id.0 as usize], true) {
                continue;
            }
            match self.group_of[id.0 as usize] {
                Some(group) if self.groups[group].last().is_some_and(|&last| last < first) => {}
                Some(group) => {
                    for &member in &self.groups[group] {
                        seen[member as usize] = true;
                        pending.extend(&self.graph.node(NodeId(member)).operands);
                    }
                }
                None if id.0 < first => {}
                None => {
                    pending.extend(&self.graph.node(id).operands);
                    pending.extend(self.met_before.get(&id.0).into_iter().flatten());
                }
            }
        }
        false
    }

    fn rebuild(&self) -> Result<Graph, GraphError> {
        let b = Builder::new(self.graph.name());
        let mut map: HashMap<Value, Expr<'_>> = b.declare(self.graph).into_iter().collect();
        let mut reads: HashMap<usize, Vec<Value>> = HashMap::new();
        for (index, node) in (0..).zip(self.graph.nodes()) {
            if self.is_rounded_ahead(node) {
                self.emit(index, &b, &mut map);
            }
        }
        for index in 0..self.graph.nodes().len() as u32 {
            // A node that only its users' regions read is not emitted on its own.
            if self.cloned[index as usize] {
                continue;
            }
            if let Some(group) = self.group_of[index as usize] {
                let reads = reads.entry(group).or_insert_with(|| self.outline_of(group).inputs);
                // A group may hold nodes that come long before and after what it reads.
                let ready = reads.iter().all(|&value| self.is_there(value, &map));
                if !ready && self.groups[group].last() != Some(&index) {
                    continue;
                }
            }
            self.emit(index, &b, &mut map);
        }
        b.conclude(self.graph, |value| self.resolve(value, &b, &mut map));
        b.finish()
    }

    /// Whether a value is emitted, or what it is a view of.
    fn is_there(&self, value: Value, map: &HashMap<Value, Expr<'_>>) -> bool {
        map.contains_key(&value)
            || self.node_of(value).is_some_and(|id| {
                let operands = &self.graph.node(NodeId(id)).operands;
                self.cloned[id as usize] && operands.iter().all(|&v| self.is_there(v, map))
            })
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
        let group = self.group_of[index as usize].filter(|&group| !alone(&self.groups[group]));
        let Some(group) = group else {
            for &value in self.met_before.get(&index).into_iter().flatten() {
                self.resolve(value, b, map);
            }
            let operands: Vec<Expr<'b>> =
                node.operands.iter().map(|&v| self.resolve(v, b, map)).collect();
            let results = b.again(node, &operands);
            map.extend(node.results.iter().copied().zip(results));
            return;
        };
        let (members, cut) = (&self.groups[group], self.cut_of(group));
        let Cut { region, inputs, outputs } = cut;
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

/// Whether a node is a product of codes of fp8.
fn multiplies_codes(graph: &Graph, node: &Node) -> bool {
    is_contraction(node) && node.operands.iter().any(|v| graph.ty(*v).dtype.is_fp8())
}
