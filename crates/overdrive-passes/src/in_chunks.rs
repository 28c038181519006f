//! In chunks: products and the exchanges of ranks around them are cut, so that a chunk is on its
//! way while the device multiplies another.
//!
//! Layers that ranks split end with a sum of whole activations, and the next layer waits for it. A
//! row of the sum needs that row of the product alone. Work that goes row by row stays in chunks
//! behind the sum too, up to the next product and its epilogue. It hides the last chunk.
//! Activations that lie apart along the sequence are gathered before a product. They are gathered
//! row by row as well: a chunk comes while the one before is multiplied. Chunks are joined for
//! readers of all rows; loops and products write them into the joined value.
//!
//! Ranks add their terms themselves, two of them whole and others if each has a part of the sum. These
//! are as many bytes, and what only moves needs no multiprocessor if it goes by copies. Source: Wang et al., "Overlap communication
//! with dependent computation via decomposition in large deep learning models", ASPLOS 2023.
//! Invariant: a chunk follows the one before it with all that it needs, in one order on all ranks.

mod cuts;

use crate::bucket::BUCKET_BYTES;
use crate::rebuild::live;
use cuts::{Cut, Cuts, gather, sum};
use overdrive_ir::{
    Builder, Channel, DType, Expr, Graph, GraphError, Node, Operation, Prim, Reducer, Target, Value,
};
use std::collections::{HashMap, HashSet};

/// Bytes of a chunk. Two of them are more than a bucket, so that they are never merged again.
pub(crate) const CHUNK_BYTES: usize = BUCKET_BYTES / 2 + 1;

/// Cuts what is exchanged into chunks of at least `least` bytes, on devices that compute meanwhile.
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
            (Some(sum), Some(cut)) => chunks.exchange(node, sum, cut),
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
    fn channel(&mut self, prim: &Prim) -> Channel {
        let group = prim.channel().expect("collectives have a channel").group.clone();
        self.next_channel += 1;
        Channel { id: self.next_channel - 1, group }
    }

    /// Sends each chunk of a product as soon as it is there. The chunk before is gathered for the
    /// next product meanwhile, if it will be.
    fn exchange(&mut self, node: &Node, sum: &Prim, cut: Cut) {
        for at in 0..cut.count {
            let term = self.part(node.operands[0], cut, at);
            let channel = self.channel(sum);
            let _scope = self.b.scope_path(&node.scope);
            let (prim, term) = match sum {
                &Prim::ReduceScatter { axis, .. } => {
                    (Prim::AllToAll { split: axis, concat: axis, channel }, term)
                }
                _ if channel.ranks() == 2 => {
                    let term = term.reshape([vec![1], term.sizes()].concat());
                    (Prim::AllGather { axis: 0, channel }, term)
                }
                _ => (Prim::AllReduce { reducer: Reducer::Sum, channel }, term),
            };
            let result = self.b.op1(prim, &[term]);
            self.exchanged.insert((node.results[0], at), result);
            let Some(before) = at.checked_sub(1) else { continue };
            for &gathered in self.cuts.gathers_behind(node.results[0]) {
                let Some(cut) = self.cuts.cut(gathered) else { continue };
                if self.is_ready(gathered, Some(before), &mut HashSet::new()) {
                    self.chunk(gathered, cut, before);
                }
            }
        }
    }

    /// Whether a value, or a chunk of it, waits for no sum whose terms are still to be multiplied.
    /// `seen` are values that do not, as far as is known.
    fn is_ready(&self, value: Value, at: Option<usize>, seen: &mut HashSet<(Value, bool)>) -> bool {
        let Some(node) = self.graph.producer(value) else { return true };
        let (cut, is_sum) = (self.cuts.cut(value), sum(node).is_some());
        if self.map.contains_key(&value) || !is_sum && !seen.insert((value, at.is_some())) {
            return true;
        }
        let is_exchanged = |at: usize| self.exchanged.contains_key(&(value, at));
        match (cut, is_sum) {
            (Some(cut), true) => match at {
                Some(at) => is_exchanged(at),
                None => (0..cut.count).all(is_exchanged),
            },
            (_, true) => false,
            (_, false) => {
                let rows = self.cuts.rows(node);
                node.operands.iter().enumerate().all(|(place, &operand)| {
                    let cut = rows.and_then(|rows| rows.of_operand(place));
                    let is_part = cut.is_some() && cut == self.cuts.cut(operand);
                    self.is_ready(operand, at.filter(|_| is_part), seen)
                })
            }
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

    /// A chunk of a value: computed alone if the value is cut so, or else a view of it. Behind a
    /// gather, the next one is on its way.
    fn part(&mut self, value: Value, cut: Cut, at: usize) -> Expr<'b> {
        let part = self.chunk(value, cut, at);
        let node = self.graph.producer(value).filter(|_| self.cuts.cut(value) == Some(cut));
        if node.is_some_and(|node| gather(node).is_some()) && at + 1 < cut.count {
            self.chunk(value, cut, at + 1);
        }
        part
    }

    fn chunk(&mut self, value: Value, cut: Cut, at: usize) -> Expr<'b> {
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
                let op: Operation = match gather(node) {
                    Some(prim @ &Prim::AllGather { axis, .. }) => {
                        Prim::AllGather { axis, channel: self.channel(prim) }.into()
                    }
                    _ => rows.op(&self.graph.types(&node.results)),
                };
                let _scope = self.b.scope_path(&node.scope);
                self.b.node(op, &operands, node.regions.clone())
            }
        };
        for ((&value, cut), part) in node.results.iter().zip(cuts).zip(results) {
            self.parts.insert((value, cut, at), part);
        }
    }

    /// The sum that a collective gives: its result, or that of the terms which it brought.
    fn added(&self, node: &Node, brought: Expr<'b>) -> Expr<'b> {
        let (ranks, axis) = match sum(node) {
            Some(Prim::ReduceScatter { axis, channel, .. }) => (channel.ranks(), *axis),
            Some(Prim::AllReduce { channel, .. }) if channel.ranks() == 2 => (2, 0),
            _ => return brought,
        };
        let _scope = self.b.scope_path(&node.scope);
        // Rounded once, as by the collective.
        let wide = if brought.dtype().bits() < 32 { DType::F32 } else { brought.dtype() };
        let size = brought.size(axis) / ranks;
        let term = |at: usize| brought.slice_axis(axis, at * size, (at + 1) * size).convert(wide);
        let total = (1..ranks).map(term).fold(term(0), |total, term| total + term);
        let rank = self.graph.ty(node.results[0]).rank();
        let sizes = total.sizes();
        total.convert(brought.dtype()).reshape(sizes[sizes.len() - rank..].to_vec())
    }
}

#[cfg(test)]
mod tests;
