//! `segments` cuts a bound graph into parts that run one after the other: what a model larger than
//! memory is worked on in.
//!
//! A part takes values by the names of outputs of earlier parts. Values that depend on no input
//! (tables of positions, a transposed weight) are recomputed in every part that needs them. So
//! weights never pass from part to part. Invariant: the parts together compute what the graph
//! computes, and each declares only the states that it reads.

use crate::quantize::block;
use overdrive_ir::{Builder, Expr, Graph, GraphError, NodeId, Origin, Value};
use std::collections::{BTreeMap, BTreeSet};

/// The parts of a graph that end behind these nodes, in order, and the rest.
///
/// # Errors
/// When the graph is damaged.
///
/// # Panics
/// When a state is updated: parts have no order of updates.
pub fn segments(graph: &Graph, ends: &[NodeId]) -> Result<Vec<Graph>, GraphError> {
    assert!(graph.states().iter().all(|state| state.update.is_none()), "a forward graph is cut");
    let count = graph.nodes().len();
    let mut bounds: Vec<usize> =
        ends.iter().map(|end| end.0 as usize + 1).filter(|&end| end < count).collect();
    bounds.sort_unstable();
    bounds.dedup();
    bounds.push(count);
    let lives = Lives::new(graph);
    let starts = std::iter::once(0).chain(bounds.iter().copied());
    starts.zip(&bounds).map(|(start, &end)| part(graph, &lives, [start, end])).collect()
}

/// The places to cut a graph, so that each part but the last reads at least `bytes` bytes of
/// states. Each end is the last node of a numbered block that reads a state. A graph that updates a
/// state has no ends.
pub fn block_ends(graph: &Graph, bytes: u64) -> Vec<NodeId> {
    if graph.states().iter().any(|state| state.update.is_some()) {
        return vec![];
    }
    let lives = Lives::new(graph);
    let (mut ends, mut seen, mut room) = (Vec::new(), BTreeSet::new(), 0);
    // The block under way, with its last node.
    let mut last: Option<(&str, NodeId)> = None;
    for (index, node) in graph.nodes().iter().enumerate() {
        if !node.results.iter().any(|v| lives.varies[v.0 as usize]) {
            continue;
        }
        for state in node.operands.iter().filter_map(|v| state_behind(graph, &lives, *v)) {
            let state = &graph.states()[state];
            let own = block(&state.name);
            if let Some((before, end)) = last
                && before != own
                && room >= bytes
            {
                ends.push(end);
                room = 0;
            }
            last = Some((own, NodeId(index as u32)));
            if seen.insert(&state.name) {
                room += graph.ty(state.value).bytes() as u64;
            }
        }
    }
    ends
}

/// These ends, each moved behind one of the next few nodes if fewer values are passed on there. A
/// block then ends with the sum that its last layer is added to.
pub fn narrowest(graph: &Graph, ends: &[NodeId]) -> Vec<NodeId> {
    /// Nodes behind an end that are looked at.
    const AHEAD: u32 = 3;
    let lives = Lives::new(graph);
    let last = (graph.nodes().len() as u32).saturating_sub(1);
    let passed_on = |end: &u32| lives.across(graph, *end as usize + 1).count();
    let moved = |end: &NodeId| (end.0..=(end.0 + AHEAD).min(last)).min_by_key(passed_on);
    ends.iter().map(|end| moved(end).map_or(*end, NodeId)).collect()
}

/// A block of a model, as each of several graphs of that model has it.
pub struct ModelBlock {
    /// The part of their names that the states of its first occurrence share: `layers.0`.
    pub name: String,
    /// One for each graph.
    pub parts: Vec<Graph>,
    /// How often the model has a block that does the same with other states.
    pub times: usize,
}

/// The distinct blocks of forward graphs of one model, which may differ in how they hold weights.
/// Together they apply every operation of the graphs at its sizes. Graphs that have no blocks, or
/// not as many, are one block.
///
/// # Errors
/// As [`segments`].
pub fn blocks(graphs: &[&Graph]) -> Result<Vec<ModelBlock>, GraphError> {
    let whole = || graphs.iter().map(|&graph| vec![graph.clone()]).collect();
    let ends: Vec<Vec<NodeId>> = graphs.iter().map(|graph| block_ends(graph, 1)).collect();
    let are_alike = ends.iter().all(|e| !e.is_empty() && e.len() == ends[0].len());
    let cut: Vec<Vec<Graph>> = match are_alike {
        true => {
            graphs.iter().zip(&ends).map(|(g, ends)| segments(g, ends)).collect::<Result<_, _>>()?
        }
        false => whole(),
    };
    let mut distinct: Vec<ModelBlock> = Vec::new();
    for at in 0..cut.first().map_or(0, Vec::len) {
        let parts: Vec<&Graph> = cut.iter().map(|parts| &parts[at]).collect();
        let is_known = |known: &&mut ModelBlock| {
            known.parts.iter().zip(&parts).all(|(known, part)| is_same_work(known, part))
        };
        match distinct.iter_mut().find(is_known) {
            Some(known) => known.times += 1,
            None => {
                let first = parts[0].states().first();
                let name = first.map_or(parts[0].name(), |state| block(&state.name)).to_owned();
                let parts = parts.into_iter().cloned().collect();
                distinct.push(ModelBlock { name, parts, times: 1 });
            }
        }
    }
    Ok(distinct)
}

/// Whether two graphs do the same to values of the same types, whatever the names.
fn is_same_work(a: &Graph, b: &Graph) -> bool {
    let values = |graph: &Graph| graph.outputs().iter().map(|port| port.value).collect::<Vec<_>>();
    a.nodes().len() == b.nodes().len()
        && a.value_count() == b.value_count()
        && a.values().all(|value| a.ty(value) == b.ty(value) && a.origin(value) == b.origin(value))
        && values(a) == values(b)
        && a.nodes().iter().zip(b.nodes()).all(|(a, b)| {
            let regions = a.regions.iter().zip(&b.regions);
            a.op == b.op
                && a.operands == b.operands
                && a.regions.len() == b.regions.len()
                && regions.into_iter().all(|(a, b)| is_same_work(a, b))
        })
}

/// The state that a value is a view of, if it is one.
fn state_behind(graph: &Graph, lives: &Lives, mut value: Value) -> Option<usize> {
    while !lives.varies[value.0 as usize] {
        match graph.origin(value) {
            Origin::State(state) => return Some(state),
            _ => value = *graph.producer(value)?.operands.first()?,
        }
    }
    None
}

/// When values are made and last read.
struct Lives {
    /// Whether a value depends on an input.
    varies: Vec<bool>,
    /// The node that makes a value, plus one; 0 of inputs and states.
    made: Vec<usize>,
    /// The last node that reads a value, plus one; the largest number for outputs.
    read: Vec<usize>,
}

impl Lives {
    fn new(graph: &Graph) -> Self {
        let count = graph.value_count();
        let (mut varies, mut made, mut read) = (vec![false; count], vec![0; count], vec![0; count]);
        graph.inputs().iter().for_each(|port| varies[port.value.0 as usize] = true);
        for (index, node) in graph.nodes().iter().enumerate() {
            let any = node.operands.iter().any(|v| varies[v.0 as usize]);
            node.operands.iter().for_each(|v| read[v.0 as usize] = index + 1);
            for result in &node.results {
                (varies[result.0 as usize], made[result.0 as usize]) = (any, index + 1);
            }
        }
        graph.outputs().iter().for_each(|port| read[port.value.0 as usize] = usize::MAX);
        Self { varies, made, read }
    }

    /// The values that vary, are known after `end` nodes, and are read behind them.
    fn across<'l>(&'l self, graph: &'l Graph, end: usize) -> impl Iterator<Item = Value> + 'l {
        graph.values().filter(move |v| {
            let at = v.0 as usize;
            self.varies[at] && self.made[at] <= end && self.read[at] > end
        })
    }
}

/// The name of a value between parts.
fn name(graph: &Graph, value: Value) -> String {
    match graph.origin(value) {
        Origin::Input(input) => graph.inputs()[input].name.clone(),
        _ => format!("value.{}", value.0),
    }
}

fn part(graph: &Graph, lives: &Lives, [start, end]: [usize; 2]) -> Result<Graph, GraphError> {
    let b = Builder::new(graph.name());
    let is_last = end == graph.nodes().len();
    let mut copy = SegmentBuilder { graph, b: &b, map: BTreeMap::new() };
    let own = |v: &Value| {
        let readers = graph.nodes()[start..end].iter().flat_map(|node| &node.operands);
        let given = || is_last && graph.outputs().iter().any(|port| port.value == *v);
        readers.into_iter().any(|operand| operand == v) || given()
    };
    for value in lives.across(graph, start).filter(own) {
        let input = b.input(&name(graph, value), graph.ty(value).clone());
        copy.map.insert(value, input);
    }
    for node in &graph.nodes()[start..end] {
        if node.results.iter().any(|v| lives.varies[v.0 as usize]) {
            copy.node(node);
        }
    }
    if is_last {
        graph.outputs().iter().for_each(|port| b.output(&port.name, copy.value(port.value)));
    } else {
        let made_here = lives.across(graph, end).filter(|v| lives.made[v.0 as usize] > start);
        made_here.for_each(|v| b.output(&name(graph, v), copy.map[&v]));
    }
    b.finish()
}

/// A part under construction.
struct SegmentBuilder<'a, 'b> {
    graph: &'a Graph,
    b: &'b Builder,
    map: BTreeMap<Value, Expr<'b>>,
}

impl<'b> SegmentBuilder<'_, 'b> {
    /// A value of this segment. Values that depend on no input are built on demand.
    fn value(&mut self, value: Value) -> Expr<'b> {
        if let Some(known) = self.map.get(&value) {
            return *known;
        }
        match self.graph.origin(value) {
            Origin::State(state) => {
                let state = &self.graph.states()[state];
                let ty = self.graph.ty(value).clone();
                let made = self.b.state_named(&state.name, ty, state.init.clone());
                self.map.insert(value, made);
            }
            _ => {
                let node = self.graph.producer(value).expect("inputs of a part are known before");
                self.node(node);
            }
        }
        self.map[&value]
    }

    fn node(&mut self, node: &overdrive_ir::Node) {
        let operands: Vec<Expr<'b>> = node.operands.iter().map(|v| self.value(*v)).collect();
        let results = self.b.again(node, &operands);
        self.map.extend(node.results.iter().copied().zip(results));
    }
}
