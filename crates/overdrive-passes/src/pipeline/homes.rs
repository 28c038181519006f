//! `homes`: the stage that holds each state of a forward graph.
//!
//! Stages are runs of nodes. Each begins with a node that is the first to read some state. So the
//! homes of states say all of where a graph is cut. The cut is chosen whose slowest stage is
//! fastest, by the work in it and the bytes that pass its ends.

use crate::rebuild::live_for;
use crate::shard::ShardError;
use overdrive_ir::{Graph, Value};
use std::collections::BTreeMap;

/// FLOPs that a device does while it reads or writes one byte of its memory, about.
const FLOPS_PER_BYTE: f64 = 25.0;

/// The same while it sends one byte to the next stage.
const FLOPS_PER_SENT_BYTE: f64 = 2000.0;

/// The stage, from 0, that holds each state that the output `y` needs; any output if there is no
/// `y`. The graph is bound.
///
/// # Errors
/// When the graph reads too few states for so many stages.
pub(super) fn homes(graph: &Graph, stages: usize) -> Result<BTreeMap<String, usize>, ShardError> {
    let y: Vec<Value> = graph.outputs().iter().filter(|p| p.name == "y").map(|p| p.value).collect();
    let all = || graph.outputs().iter().map(|port| port.value).collect();
    let live = live_for(graph, if y.is_empty() { all() } else { y }.into_iter());
    let reads = Reads::of(graph, &live);
    let mut starts: Vec<usize> = reads.first.iter().flatten().copied().collect();
    starts.sort_unstable();
    starts.dedup();
    if starts.len() < stages {
        let graph = graph.name().to_owned();
        return Err(ShardError::Stages { graph, stages, most: starts.len() });
    }
    let ends = cut(&starts, stages, &Costs::of(graph, &live, &reads));
    let stage = |first: usize| ends.iter().filter(|&&end| end <= first).count();
    let homes = graph.states().iter().zip(&reads.first);
    Ok(homes.filter_map(|(state, first)| Some((state.name.clone(), stage((*first)?)))).collect())
}

/// Who reads states.
struct Reads {
    /// The first node that depends on an input and reads each state, perhaps a view of it.
    first: Vec<Option<usize>>,
    /// Whether a value depends on an input and on a state.
    varies: Vec<bool>,
}

impl Reads {
    fn of(graph: &Graph, live: &[bool]) -> Self {
        let count = graph.value_count();
        let mut given = vec![false; count];
        graph.inputs().iter().for_each(|port| given[port.value.0 as usize] = true);
        let mut behind: Vec<Vec<usize>> = vec![vec![]; count];
        for (index, state) in graph.states().iter().enumerate() {
            behind[state.value.0 as usize].push(index);
        }
        let mut first = vec![None; graph.states().len()];
        for (index, node) in graph.nodes().iter().enumerate() {
            if !node.results.iter().any(|v| live[v.0 as usize]) {
                continue;
            }
            let of = |v: &Value| v.0 as usize;
            let is_given = node.operands.iter().any(|v| given[of(v)]);
            let mut states: Vec<usize> =
                node.operands.iter().flat_map(|v| behind[of(v)].iter().copied()).collect();
            states.sort_unstable();
            states.dedup();
            if is_given {
                states.iter().for_each(|&state| {
                    first[state].get_or_insert(index);
                });
            }
            for result in &node.results {
                given[of(result)] = is_given;
                behind[of(result)].clone_from(&states);
            }
        }
        let varies = given.iter().zip(&behind).map(|(given, behind)| *given && !behind.is_empty());
        Self { first, varies: varies.collect() }
    }
}

/// The work before each node, and the bytes that a cut before it sends.
struct Costs {
    before: Vec<f64>,
    sent: Vec<f64>,
}

impl Costs {
    fn of(graph: &Graph, live: &[bool], reads: &Reads) -> Self {
        let nodes = graph.nodes();
        let (mut before, mut last) = (vec![0.0; nodes.len() + 1], vec![0; graph.value_count()]);
        let mut sent = vec![0.0; nodes.len() + 1];
        for (index, node) in nodes.iter().enumerate() {
            let is_live = node.results.iter().any(|v| live[v.0 as usize]);
            let cost = if is_live { graph.node_cost(node) } else { Default::default() };
            before[index + 1] =
                before[index] + cost.flops as f64 + FLOPS_PER_BYTE * cost.bytes as f64;
            if is_live {
                node.operands.iter().for_each(|v| last[v.0 as usize] = index);
            }
        }
        for (index, node) in nodes.iter().enumerate() {
            for value in node.results.iter().filter(|v| reads.varies[v.0 as usize]) {
                let bytes = FLOPS_PER_SENT_BYTE * graph.ty(*value).bytes() as f64;
                let until = last[value.0 as usize];
                (index + 1..=until).for_each(|at| sent[at] += bytes);
            }
        }
        Self { before, sent }
    }

    /// The cost of the stage from one start to the next.
    fn stage(&self, [start, end]: [usize; 2]) -> f64 {
        self.before[end] - self.before[start] + self.sent[start] + self.sent[end]
    }
}

/// The starts of all stages but the first.
fn cut(starts: &[usize], stages: usize, costs: &Costs) -> Vec<usize> {
    let (count, all) = (starts.len(), costs.before.len() - 1);
    let at = |index: usize| if index == 0 { 0 } else { starts[index] };
    // For each number of starts taken: the least cost of the slowest of the stages so far.
    let mut best: Vec<f64> =
        (0..=count).map(|end| costs.stage([0, starts.get(end).copied().unwrap_or(all)])).collect();
    best[0] = f64::INFINITY;
    let mut from: Vec<Vec<usize>> = vec![];
    for _ in 1..stages {
        let (mut next, mut chosen) = (vec![f64::INFINITY; count + 1], vec![0; count + 1]);
        for end in 1..=count {
            let limit = if end == count { all } else { starts[end] };
            for (start, before) in best.iter().enumerate().take(end).skip(1) {
                let slowest = before.max(costs.stage([at(start), limit]));
                if slowest < next[end] {
                    (next[end], chosen[end]) = (slowest, start);
                }
            }
        }
        best = next;
        from.push(chosen);
    }
    let (mut end, mut found) = (count, vec![]);
    for chosen in from.iter().rev() {
        end = chosen[end];
        found.push(starts[end]);
    }
    found.reverse();
    found
}
