//! `Cuts`: which values of a graph are computed in chunks, and along which dimension.

use crate::parts::{Cut, Rows, fed, multiplies};
use crate::readers::Readers;
use overdrive_ir::{Channel, Graph, Node, NodeId, Prim, Reducer, Value};
use std::collections::HashMap;

/// Most chunks of a value. More hide little more, and their products are small.
const MOST: usize = 4;

/// The channel of a sum over ranks, if a node is one.
pub(super) fn sum(node: &Node) -> Option<&Channel> {
    match node.op.prim()? {
        Prim::AllReduce { reducer: Reducer::Sum, channel } if channel.ranks() > 1 => Some(channel),
        _ => None,
    }
}

/// The values that are cut.
#[derive(Debug, Default)]
pub(super) struct Cuts<'g> {
    of: HashMap<Value, Cut>,
    /// The rows of each node whose results are cut, by the first of them. Sums have none.
    rows: HashMap<Value, Rows<'g>>,
}

impl<'g> Cuts<'g> {
    /// Cuts sums of products into chunks of at least `least` bytes, with what follows them row by
    /// row.
    pub(super) fn of(graph: &'g Graph, least: usize) -> Self {
        let mut finder = Finder {
            graph,
            least,
            readers: Readers::of(graph),
            is_fed: fed(graph),
            followed: HashMap::new(),
            cuts: Self::default(),
        };
        graph.nodes().iter().for_each(|node| finder.sum(node));
        graph.nodes().iter().for_each(|node| finder.follow(node));
        graph.nodes().iter().rev().for_each(|node| finder.leave(node));
        graph.nodes().iter().rev().for_each(|node| finder.absorb(node));
        finder.cuts
    }

    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    pub(super) fn cut(&self, value: Value) -> Option<Cut> {
        self.of.get(&value).copied()
    }

    /// The rows of a node whose results are cut.
    pub(super) fn rows(&self, node: &Node) -> Option<&Rows<'g>> {
        self.rows.get(&node.results[0])
    }

    fn insert(&mut self, rows: Rows<'g>) {
        let results = rows.node.results.iter().enumerate();
        self.of.extend(results.filter_map(|(at, &value)| Some((value, rows.of_result(at)?))));
        self.rows.insert(rows.node.results[0], rows);
    }

    fn remove(&mut self, node: &Node) {
        self.rows.remove(&node.results[0]);
        for value in &node.results {
            self.of.remove(value);
        }
    }
}

/// Cuts while they are found.
struct Finder<'g> {
    graph: &'g Graph,
    least: usize,
    readers: Readers,
    /// Whether each value depends on inputs. Weights do not.
    is_fed: Vec<bool>,
    /// Sums, and values that are cut because of one; whether there was a product in between.
    followed: HashMap<Value, bool>,
    cuts: Cuts<'g>,
}

impl<'g> Finder<'g> {
    /// Cuts a sum with all that leads to it from a product.
    fn sum(&mut self, node: &'g Node) {
        if sum(node).is_none() {
            return;
        }
        let ty = self.graph.ty(node.operands[0]);
        let count = MOST.min(ty.bytes() / self.least.max(1));
        for (dim, size) in ty.sizes().into_iter().enumerate() {
            for count in (2..=count).rev().filter(|&count| size.is_multiple_of(count)) {
                let (cut, mut led) = (Cut { dim, count }, vec![]);
                if self.leads(node.operands[0], cut, &mut led) {
                    self.cuts.of.insert(node.results[0], cut);
                    led.into_iter().for_each(|rows| self.cuts.insert(rows));
                    return;
                }
            }
        }
    }

    /// Whether rows of a value come from rows of a layer's product that nobody else reads. Then all
    /// between them are noted. Gradients of weights are no such products: the optimizer waits for
    /// them, and no layer does.
    fn leads(&self, value: Value, cut: Cut, led: &mut Vec<Rows<'g>>) -> bool {
        let Some(node) = self.graph.producer(value) else { return false };
        let alone = self.readers.nodes(value).len() == 1 && !self.readers.is_kept(value);
        if !alone || node.results.len() > 1 {
            return false;
        }
        let Some(rows) = Rows::of(self.graph, node, None, cut) else { return false };
        let leads = match multiplies(self.graph, node) {
            true => node.operands.iter().any(|value| !self.is_fed[value.0 as usize]),
            false => {
                let operands = node.operands.iter().enumerate();
                operands
                    .filter_map(|(at, &operand)| Some((operand, rows.of_operand(at)?)))
                    .filter(|&(operand, cut)| self.leads(operand, cut, led))
                    .count()
                    > 0
            }
        };
        if leads {
            led.push(rows);
        }
        leads
    }

    /// Cuts the results of a node that works row by row on something cut. That goes up to a
    /// product, and behind it as long as elements stay where they are.
    fn follow(&mut self, node: &'g Node) {
        if self.cuts.cut(node.results[0]).is_some() {
            if sum(node).is_some() {
                self.followed.insert(node.results[0], false);
            }
            return;
        }
        let at = node.operands.iter().position(|value| self.followed.contains_key(value));
        let cut = at.and_then(|at| self.cuts.cut(node.operands[at]));
        let is_behind = node.operands.iter().any(|value| self.followed.get(value) == Some(&true));
        let goes_on = |rows: &Rows<'_>| match is_behind {
            true => rows.stay(self.graph),
            false => !self.is_folded(node),
        };
        let rows = cut.and_then(|cut| Rows::of(self.graph, node, at, cut)).filter(goes_on);
        let Some(rows) = rows else { return };
        let is_multiplied = is_behind || multiplies(self.graph, node);
        self.followed.extend(node.results.iter().map(|&value| (value, is_multiplied)));
        self.cuts.insert(rows);
    }

    /// Whether something folds a result. It would read all rows, and is better computed beside it.
    fn is_folded(&self, node: &Node) -> bool {
        let mut readers = node.results.iter().flat_map(|value| self.readers.nodes(*value));
        readers.any(|id| matches!(self.graph.node(*id).op.prim(), Some(Prim::Reduce { .. })))
    }

    /// Leaves results whole that lead to no product in chunks, nor out of the graph.
    fn leave(&mut self, node: &Node) {
        let leads = |value: &Value| {
            let is_followed = |value: &Value| self.followed.contains_key(value);
            let results = |id: &NodeId| &self.graph.node(*id).results;
            let mut readers = self.readers.nodes(*value).iter();
            self.readers.is_kept(*value) || readers.any(|id| results(id).iter().any(is_followed))
        };
        let Some(&is_multiplied) = self.followed.get(&node.results[0]) else { return };
        let is_wanted = is_multiplied || sum(node).is_some();
        if !is_wanted && !node.results.iter().any(leads) {
            for value in &node.results {
                self.followed.remove(value);
            }
            self.cuts.remove(node);
        }
    }

    /// Cuts results of which only chunks are read, where elements are computed alone. Whole, they
    /// would be stored to be read in parts.
    fn absorb(&mut self, node: &'g Node) {
        let ([value], Some(prim)) = (&node.results[..], node.op.prim()) else { return };
        let is_point = prim.is_elementwise() || matches!(prim, Prim::Broadcast { .. });
        if !is_point || self.cuts.cut(*value).is_some() || self.readers.is_kept(*value) {
            return;
        }
        let read = |reader: &NodeId| {
            let reader = self.graph.node(*reader);
            let rows = self.cuts.rows(reader)?;
            let places =
                reader.operands.iter().enumerate().filter(|(_, operand)| *operand == value);
            let mut cuts = places.map(|(at, _)| rows.of_operand(at));
            let first = cuts.next()??;
            cuts.all(|cut| cut == Some(first)).then_some(first)
        };
        let cuts: Option<Vec<Cut>> = self.readers.nodes(*value).iter().map(read).collect();
        let Some([first, others @ ..]) = cuts.as_deref() else { return };
        if !others.iter().all(|cut| cut == first) {
            return;
        }
        if let Some(rows) = Rows::of(self.graph, node, None, *first) {
            self.cuts.insert(rows);
        }
    }
}
