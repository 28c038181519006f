//! Rematerialize: computes values again for the backward part instead of keeping them.
//!
//! The forward part of a training step is what the loss needs; everything else is backward. A stage
//! of a pipeline has no loss, but sends on what its forward computes. A forward value that the
//! backward part reads is *saved* from one to the other. A policy says which saved values are
//! dropped. The nodes that compute a dropped value are cloned right before the first backward node
//! that reads it, in a scope of their own ([`is_again`]). Sources: Chen et al., "Training deep nets
//! with sublinear memory cost", 2016. The choice by bytes per FLOP is of Korthikanti et al.,
//! "Reducing activation recomputation in large transformer models", 2022. Invariant: clones apply
//! the same operations to the same operands (random draws keep their site), so every result keeps
//! its bits. Common subexpressions must be merged before this pass, never after.

use crate::by_rows::{self, LOSS};
use crate::parts::fed;
use crate::pipeline::sends_on;
use overdrive_ir::plan::{Note, Recomputing};
use overdrive_ir::{
    Builder, Description, Expr, Graph, GraphError, Node, NodeId, Origin, Prim, Value,
};
use std::collections::{BTreeSet, HashMap};

/// The values to keep between the forward and the backward part.
#[derive(Copy, Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rematerialize {
    /// Everything.
    None,
    /// Everything but logits, which are made and read in parts.
    Rows,
    /// Only what crosses the outermost scopes (`block3`): every block is computed again.
    EveryBlock,
    /// At most this many saved bytes: the values that free most bytes for their cost are computed
    /// again first.
    Budget {
        /// Limit of saved bytes.
        saved_bytes: u64,
    },
}

/// The part of a scope that says of a node that the backward part computes it again.
const AGAIN: &str = "@again";

/// Whether a node of this scope is computed again. Work that comes before the backward part takes
/// in no such node: its result would be kept all the while.
pub(crate) fn is_again(scope: &str) -> bool {
    scope.split('/').any(|part| part == AGAIN)
}

/// Most budgets that are tried. Layers are alike, so that a model has few sorts of saved values.
const MOST_BUDGETS: usize = 16;

/// Policies that keep less and less, in the order of the FLOPs that they compute again; none for a
/// graph that is no training step.
pub(crate) fn policies(
    graph: &Graph,
    device: &Description,
) -> Result<Vec<Rematerialize>, GraphError> {
    let Some(loss) = graph.outputs().iter().find(|port| port.name == LOSS) else {
        return Ok(Vec::new());
    };
    let budgets = TrainingStep::new(graph, loss.value).budgets(device);
    let budgets = budgets.into_iter().map(|saved_bytes| Rematerialize::Budget { saved_bytes });
    let rows = (!by_rows::made_by_rows(graph).is_empty()).then_some(Rematerialize::Rows);
    let mut found = Vec::new();
    for policy in rows.into_iter().chain(budgets).chain([Rematerialize::EveryBlock]) {
        let again = rematerialize(graph, LOSS, (policy, device), &mut Vec::new())?;
        found.push((again.cost().flops, policy));
    }
    found.sort_by_key(|(flops, _)| *flops);
    Ok(found.into_iter().map(|(_, policy)| policy).collect())
}

/// Applies a policy to a bound training graph. `loss` names the output that divides forward from
/// backward. The device says what bytes and launches cost beside FLOPs. Each value that is computed
/// again is a note.
pub fn rematerialize(
    graph: &Graph,
    loss: &str,
    (policy, device): (Rematerialize, &Description),
    notes: &mut Vec<Note>,
) -> Result<Graph, GraphError> {
    let Some(port) = graph.outputs().iter().find(|o| o.name == loss) else {
        let names: Vec<&str> = graph.outputs().iter().map(|o| o.name.as_str()).collect();
        return Err(GraphError {
            op: "rematerialize".into(),
            scope: graph.name().to_owned(),
            expected: format!("an output named `{loss}`"),
            found: names.join(", "),
            remedy: "name the output that the gradients are taken of".into(),
        });
    };
    let step = TrainingStep::new(graph, port.value);
    let mut kept = match policy {
        Rematerialize::None | Rematerialize::Rows => step.saved.clone(),
        Rematerialize::EveryBlock => step.between_blocks(),
        Rematerialize::Budget { saved_bytes } => step.dearest(saved_bytes, device),
    };
    // Collectives run once; their results are never recomputed.
    let meets = |node: &&Node| node.op.prim().is_some_and(|prim| prim.channel().is_some());
    kept.extend(graph.nodes().iter().filter(meets).flat_map(|node| node.results.clone()));
    for &value in step.saved.difference(&kept) {
        let (_, node) = step.producer(value).expect("saved values are computed");
        notes.push(Note::Recomputed {
            op: node.op.name(),
            scope: node.scope.to_string(),
            why: Recomputing::ForMemory { kept_bytes: graph.ty(value).bytes() },
        });
    }
    step.rebuild(&kept)
}

/// A training step divided into forward and backward.
struct TrainingStep<'g> {
    graph: &'g Graph,
    forward: Vec<bool>,
    /// Forward values that backward nodes read.
    saved: BTreeSet<Value>,
}

impl<'g> TrainingStep<'g> {
    fn new(graph: &'g Graph, loss: Value) -> Self {
        let mut forward = vec![false; graph.nodes().len()];
        let mut pending = vec![loss];
        // The loss is that of the last stage; the forward of others is what they send on.
        let sends = graph.nodes().iter().filter(|node| sends_on(node));
        pending.extend(sends.map(|node| node.results[0]));
        while let Some(value) = pending.pop() {
            if let Origin::Node(id, _) = graph.origin(value)
                && !std::mem::replace(&mut forward[id.0 as usize], true)
            {
                pending.extend(&graph.node(id).operands);
            }
        }
        let mut saved = BTreeSet::new();
        for (node, _) in graph.nodes().iter().zip(&forward).filter(|(_, forward)| !**forward) {
            let from_forward = |v: &&Value| match graph.origin(**v) {
                Origin::Node(id, _) => forward[id.0 as usize],
                _ => false,
            };
            saved.extend(node.operands.iter().filter(from_forward).copied());
        }
        // Logits and their log-sum-exp are read right where they are made, and in parts.
        let made = by_rows::made_by_rows(graph);
        saved.retain(|value| !made.contains(value));
        Self { graph, forward, saved }
    }

    fn producer(&self, value: Value) -> Option<(NodeId, &'g Node)> {
        match self.graph.origin(value) {
            Origin::Node(id, _) => Some((id, self.graph.node(id))),
            _ => None,
        }
    }

    /// Forward values that another outermost scope reads, or none owns, or an output names.
    fn between_blocks(&self) -> BTreeSet<Value> {
        let block = |node: &'g Node| node.scope.split('/').next().unwrap_or_default();
        let mut kept: BTreeSet<Value> = self.graph.outputs().iter().map(|o| o.value).collect();
        for (node, _) in
            self.graph.nodes().iter().zip(&self.forward).filter(|(_, forward)| **forward)
        {
            let crosses =
                |v: &&Value| self.producer(**v).is_some_and(|(_, p)| block(p) != block(node));
            kept.extend(node.operands.iter().filter(crosses));
        }
        let free = |v: &&Value| self.producer(**v).is_some_and(|(_, p)| block(p).is_empty());
        kept.extend(self.saved.iter().filter(free));
        kept
    }

    /// The name of the op that computes a value.
    fn name(&self, value: Value) -> Option<String> {
        self.producer(value).map(|(_, node)| node.op.name())
    }

    /// Bytes of a value as a plan keeps it: one that was only widened is kept as it was before.
    fn bytes(&self, value: Value) -> u64 {
        let narrow = self.producer(value).and_then(|(_, node)| match node.op.prim() {
            Some(Prim::Convert { .. }) => Some(self.graph.ty(node.operands[0]).bytes()),
            _ => None,
        });
        let own = self.graph.ty(value).bytes();
        narrow.map_or(own, |narrow| own.min(narrow)) as u64
    }

    /// The saved values with the bytes that each frees for its cost, those first that free most.
    /// Results of one op stand together.
    fn by_worth(&self, device: &Description) -> Vec<(f64, Value)> {
        let flops: Vec<u64> =
            self.graph.nodes().iter().map(|n| self.graph.node_cost(n).flops).collect();
        let worth = |v: Value| {
            let (flops, read) = self.again(v, &flops);
            // A launch of its own takes as long as so many bytes.
            let moved = (read + self.bytes(v) + device.bytes_of_latency) as f64;
            self.bytes(v) as f64 / (1.0 + flops as f64 + device.flops_per_byte * moved)
        };
        let mut all: Vec<(f64, Value)> = self.saved.iter().map(|&v| (worth(v), v)).collect();
        let sort = |value: Value| (self.name(value), self.bytes(value), value);
        all.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| sort(b.1).cmp(&sort(a.1))));
        // Casts of weights come last: all of them are one launch, unless they are computed again.
        let fed = fed(self.graph);
        let (values, casts): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|(_, value)| fed[value.0 as usize]);
        [values, casts].concat()
    }

    /// Bytes that stay saved once a sort of values is dropped, and all that are worth more. Values
    /// of one sort are the results of one op in different layers: they cost the same.
    fn budgets(&self, device: &Description) -> Vec<u64> {
        let all = self.by_worth(device);
        let sort =
            |&(worth, value): &(f64, Value)| (worth.to_bits(), self.name(value), self.bytes(value));
        let mut left: u64 = all.iter().map(|(_, value)| self.bytes(*value)).sum();
        let mut sorts: Vec<(u64, u64)> = Vec::new();
        for alike in all.chunk_by(|a, b| sort(a) == sort(b)) {
            let freed = alike.iter().map(|(_, value)| self.bytes(*value)).sum();
            left -= freed;
            sorts.push((freed, left));
        }
        // The sort that frees least goes together with the next one.
        while sorts.len() > MOST_BUDGETS {
            let ends = sorts[..sorts.len() - 1].iter().enumerate();
            let least = ends.min_by_key(|(_, (freed, _))| *freed).map_or(0, |(at, _)| at);
            sorts[least + 1].0 += sorts[least].0;
            sorts.remove(least);
        }
        sorts.into_iter().map(|(_, left)| left).collect()
    }

    /// Saved values without those that free most bytes for their cost, as many as it takes to come
    /// below the limit.
    fn dearest(&self, limit: u64, device: &Description) -> BTreeSet<Value> {
        let mut kept = self.saved.clone();
        let mut total: u64 = kept.iter().map(|&v| self.bytes(v)).sum();
        for (_, value) in self.by_worth(device) {
            if total <= limit {
                break;
            }
            kept.remove(&value);
            total -= self.bytes(value);
        }
        kept
    }

    /// FLOPs of computing `value` again from the saved values, and bytes of those that are read;
    /// what another dropped one computes again is shared.
    fn again(&self, value: Value, flops: &[u64]) -> (u64, u64) {
        let (mut sum, mut read) = (0, 0);
        let (mut seen, mut leaves) = (BTreeSet::new(), BTreeSet::new());
        let mut pending = vec![value];
        while let Some(next) = pending.pop() {
            let stays = next != value && self.saved.contains(&next);
            let Some((id, node)) = self.producer(next).filter(|_| !stays) else {
                read += if leaves.insert(next) { self.bytes(next) } else { 0 };
                continue;
            };
            if seen.insert(id) {
                sum += flops[id.0 as usize];
                pending.extend(&node.operands);
            }
        }
        (sum, read)
    }

    fn rebuild(&self, kept: &BTreeSet<Value>) -> Result<Graph, GraphError> {
        let graph = self.graph;
        let b = Builder::new(graph.name());
        let mut map: HashMap<Value, Expr<'_>> = b.declare(graph).into_iter().collect();
        let mut clones: HashMap<Value, Expr<'_>> = HashMap::new();
        for (node, &forward) in graph.nodes().iter().zip(&self.forward) {
            let is_cloned = |v: &&Value| !forward && self.saved.contains(v) && !kept.contains(v);
            for &value in node.operands.iter().filter(is_cloned) {
                self.clone_late(value, kept, (&map, &mut clones), &b);
            }
            let operand = |v: &Value| if is_cloned(&v) { clones[v] } else { map[v] };
            let operands: Vec<Expr<'_>> = node.operands.iter().map(operand).collect();
            let results = b.again(node, &operands);
            map.extend(node.results.iter().copied().zip(results));
        }
        b.conclude(graph, |value| map[&value]);
        b.finish()
    }

    /// Emits the clone of a dropped value after those that it needs.
    fn clone_late<'b>(
        &self,
        value: Value,
        kept: &BTreeSet<Value>,
        (map, clones): (&HashMap<Value, Expr<'b>>, &mut HashMap<Value, Expr<'b>>),
        b: &'b Builder,
    ) {
        let mut pending = vec![value];
        while let Some(&value) = pending.last() {
            let Some((_, node)) = self.producer(value) else {
                unreachable!("inputs and states are never dropped")
            };
            let stays = |v: &Value| kept.contains(v) || self.producer(*v).is_none();
            let ready = |v: &Value| stays(v) || clones.contains_key(v);
            let missing: Vec<Value> = node.operands.iter().copied().filter(|v| !ready(v)).collect();
            if clones.contains_key(&value) {
                pending.pop();
            } else if missing.is_empty() {
                let operand = |v: &Value| if stays(v) { map[v] } else { clones[v] };
                let operands: Vec<Expr<'b>> = node.operands.iter().map(operand).collect();
                let _scope = b.scope_path(&node.scope);
                let _again = b.scope(AGAIN);
                let results = b.node(node.op.clone(), &operands, node.regions.clone());
                clones.extend(node.results.iter().copied().zip(results));
                pending.pop();
            } else {
                pending.extend(missing);
            }
        }
    }
}
