//! In chunks: products whose terms ranks sum are cut, so that a chunk is on its way while the
//! device multiplies another.
//!
//! Layers that ranks split end with a sum of whole activations, and the next layer waits for it. A
//! row of the sum needs that row of the product alone. Work that goes row by row stays in chunks
//! behind the sum too, up to the next product and its epilogue. It hides the last chunk. Chunks are
//! joined for readers of all rows; loops and products write them into the joined value.
//!
//! Two ranks exchange their terms, and each adds both. These are as many bytes as for a sum, and a
//! gather needs no multiprocessor if it goes by copies. Sums of which each rank keeps a part stay
//! whole: cut along the batch, their parts have to be transposed twice. Source: Wang et al.,
//! "Overlap communication with dependent computation via decomposition in large deep learning
//! models", ASPLOS 2023. Invariant: a chunk follows the one before it with all that it needs, in
//! one order on all ranks.

mod cuts;

use crate::bucket::BUCKET_BYTES;
use crate::parts::Cut;
use crate::rebuild::live;
use cuts::{Cuts, sum};
use overdrive_ir::{Builder, Channel, Expr, Graph, GraphError, Node, Prim, Reducer, Target, Value};
use std::collections::HashMap;

/// Bytes of a chunk. Two of them are more than a bucket, so that they are never merged again.
pub(crate) const CHUNK_BYTES: usize = BUCKET_BYTES / 2 + 1;

/// Cuts sums into chunks of at least `least` bytes, on devices that compute meanwhile.
pub(crate) fn in_chunks(
    graph: &Graph,
    target: &dyn Target,
    least: usize,
) -> Result<Graph, GraphError> {
    let cuts = match target.description().overlaps_collectives {
        true => Cuts::of(graph, least),
        false => Cuts::default(),
    };
    if cuts.is_empty() {
        return Ok(graph.clone());
    }
    let b = Builder::new(graph.name());
    let channels = graph.nodes().iter().filter_map(|node| node.op.prim()?.channel());
    let mut chunks = Chunks {
        b: &b,
        graph,
        cuts: &cuts,
        map: b.declare(graph).into_iter().collect(),
        parts: HashMap::new(),
        exchanged: HashMap::new(),
        next_channel: channels.map(|channel| channel.id + 1).max().unwrap_or(0),
    };
    let live = live(graph);
    for node in graph.nodes().iter().filter(|n| n.results.iter().any(|v| live[v.0 as usize])) {
        match (sum(node), cuts.cut(node.results[0])) {
            (Some(channel), Some(cut)) => chunks.exchange(node, channel, cut),
            // Chunks come once somebody needs them.
            (None, Some(_)) => {}
            (_, None) => drop(chunks.whole(node.results[0])),
        }
    }
    b.conclude(graph, |value| chunks.whole(value));
    b.finish()
}

/// The graph with chunks under construction.
struct Chunks<'b, 'g> {
    b: &'b Builder,
    graph: &'g Graph,
    cuts: &'g Cuts<'g>,
    /// Whole values.
    map: HashMap<Value, Expr<'b>>,
    /// Chunks, by their cut and number.
    parts: HashMap<(Value, Cut, usize), Expr<'b>>,
    /// Results of the collectives of chunks, by the sum and the number of the chunk.
    exchanged: HashMap<(Value, usize), Expr<'b>>,
    next_channel: u64,
}

impl<'b> Chunks<'b, '_> {
    /// Sends each chunk of a product as soon as it is there.
    fn exchange(&mut self, node: &Node, channel: &Channel, cut: Cut) {
        for at in 0..cut.count {
            let term = self.part(node.operands[0], cut, at);
            let channel = Channel { id: self.next_channel, group: channel.group.clone() };
            self.next_channel += 1;
            let _scope = self.b.scope_path(&node.scope);
            let result = match channel.ranks() {
                2 => {
                    let term = term.reshape([vec![1], term.sizes()].concat());
                    self.b.op1(Prim::AllGather { axis: 0, channel }, &[term])
                }
                _ => self.b.op1(Prim::AllReduce { reducer: Reducer::Sum, channel }, &[term]),
            };
            self.exchanged.insert((node.results[0], at), result);
        }
    }

    /// All rows of a value.
    fn whole(&mut self, value: Value) -> Expr<'b> {
        if let Some(&whole) = self.map.get(&value) {
            return whole;
        }
        if let Some(cut) = self.cuts.cut(value) {
            let parts: Vec<Expr<'b>> = (0..cut.count).map(|at| self.part(value, cut, at)).collect();
            let whole = self.b.concat(&parts, cut.dim);
            self.map.insert(value, whole);
            return whole;
        }
        let graph = self.graph;
        let node = graph.producer(value).expect("inputs and states are declared");
        let operands: Vec<Expr<'b>> = node.operands.iter().map(|&v| self.whole(v)).collect();
        self.map.extend(node.results.iter().copied().zip(self.b.again(node, &operands)));
        self.map[&value]
    }

    /// A chunk of a value: computed alone if the value is cut so, or else a view of it.
    fn part(&mut self, value: Value, cut: Cut, at: usize) -> Expr<'b> {
        let key = (value, cut, at);
        if let Some(&part) = self.parts.get(&key) {
            return part;
        }
        let is_cut = self.cuts.cut(value) == Some(cut);
        let graph = self.graph;
        match graph.producer(value).filter(|_| is_cut) {
            Some(node) => self.compute(node, at),
            None => {
                let whole = self.whole(value);
                let size = whole.size(cut.dim) / cut.count;
                let part = whole.slice_axis(cut.dim, at * size, (at + 1) * size);
                self.parts.insert(key, part);
            }
        }
        self.parts[&key]
    }

    /// A chunk of each result of a node.
    fn compute(&mut self, node: &Node, at: usize) {
        let cut_of = |value: Value| self.cuts.cut(value).expect("all results are cut");
        let cuts: Vec<Cut> = node.results.iter().map(|&value| cut_of(value)).collect();
        let results = match self.exchanged.get(&(node.results[0], at)) {
            Some(&terms) => vec![self.added(node, terms)],
            None => {
                let rows = self.cuts.rows(node).expect("a value is cut with the rows of its node");
                let mut operands = vec![];
                for (place, &value) in node.operands.iter().enumerate() {
                    operands.push(match rows.of_operand(place) {
                        Some(cut) => self.part(value, cut, at),
                        None => self.whole(value),
                    });
                }
                let op = rows.op(&self.graph.types(&node.results));
                let _scope = self.b.scope_path(&node.scope);
                self.b.node(op, &operands, node.regions.clone())
            }
        };
        for ((&value, cut), part) in node.results.iter().zip(cuts).zip(results) {
            self.parts.insert((value, cut, at), part);
        }
    }

    /// The sum that a collective gives: its result, or that of the two terms which it gathered.
    fn added(&self, node: &Node, gathered: Expr<'b>) -> Expr<'b> {
        if gathered.rank() == self.graph.ty(node.results[0]).rank() {
            return gathered;
        }
        let _scope = self.b.scope_path(&node.scope);
        let sizes = gathered.sizes()[1..].to_vec();
        let term = |at| gathered.slice_axis(0, at, at + 1).reshape(sizes.clone());
        term(0) + term(1)
    }
}

#[cfg(test)]
mod tests;
