//! By rows: logits and what is computed of them, part after part.
//!
//! The largest value of a language model's training step is its logits: a number for each token and
//! each word. From the product that makes them to the products that read their gradient, all work
//! goes row by row. So under a memory limit a few rows go all that way before the next ones do, and
//! only their logits are there. The gradient of the last weight is the sum of its parts. Source:
//! Hsu et al., "Liger Kernel: efficient Triton kernels for LLM training", 2024. Invariant: nothing
//! that a row needs depends on other rows.

use crate::meeting_order::meets;
use crate::parts::{Cut, Rows, multiplies};
use crate::readers::Readers;
use overdrive_ir::plan::Note;
use overdrive_ir::{Builder, Expr, Graph, GraphError, Node, Prim, Value};
use std::collections::{BTreeSet, HashMap};

/// The output that divides forward from backward in training steps.
pub(crate) const LOSS: &str = "loss";

/// Parts of the rows. Each reads and writes the gradient of the last weight once.
const PARTS: usize = 4;

/// Logits have so many times the bytes of what they are computed from, at least.
const WIDER: usize = 4;

/// The graph with its widest product in parts; as it is, where that has no rows of its own.
pub(crate) fn by_rows(graph: &Graph, notes: &mut Vec<Note>) -> Result<Graph, GraphError> {
    let Some(region) = Region::of(graph) else { return Ok(graph.clone()) };
    let (op, scope) = (region.head.op.name(), region.head.scope.to_string());
    notes.push(Note::ByRows { op, scope, parts: PARTS });
    let b = Builder::new(graph.name());
    let map = b.declare(graph).into_iter().collect();
    let mut parts = Parts { b: &b, region: &region, map, parts: HashMap::new() };
    // Results of the region come once somebody needs them.
    let outside = |node: &&Node| !region.made_by.contains_key(&node.results[0]);
    for node in graph.nodes().iter().filter(outside) {
        parts.whole(node.results[0]);
    }
    b.conclude(graph, |value| parts.whole(value));
    b.finish()
}

/// The values that are made in parts: the logits, and others that are computed of them.
pub(crate) fn made_by_rows(graph: &Graph) -> BTreeSet<Value> {
    Region::of(graph).map_or_else(BTreeSet::new, |region| region.cuts.keys().copied().collect())
}

/// The nodes that go part by part.
struct Region<'g> {
    graph: &'g Graph,
    /// The product that makes the logits.
    head: &'g Node,
    /// In the order of the graph.
    nodes: Vec<Rows<'g>>,
    /// The values that are made in parts, or in terms of a sum, and by which node.
    made_by: HashMap<Value, usize>,
    /// How parts of values are cut; sums have none.
    cuts: HashMap<Value, Cut>,
}

/// The widest products that are tried. Gradients of weights may be wider than logits.
const TRIED: usize = 8;

impl<'g> Region<'g> {
    fn of(graph: &'g Graph) -> Option<Self> {
        let rank = |node: &&Node| graph.ty(node.results[0]).rank();
        let leads = leads_to_loss(graph);
        let products = graph.nodes().iter().filter(|node| {
            leads[node.results[0].0 as usize] && rank(node) > 1 && multiplies(graph, node)
        });
        let mut products: Vec<&Node> = products.collect();
        products.sort_by_key(|node| std::cmp::Reverse(graph.ty(node.results[0]).bytes()));
        products.into_iter().take(TRIED).find_map(|head| Self::from(graph, head))
    }

    /// The region of a product whose result is much wider than its rows.
    fn from(graph: &'g Graph, head: &'g Node) -> Option<Self> {
        let ty = graph.ty(head.results[0]);
        (0..ty.rank() - 1).find_map(|dim| {
            let cut = Cut { dim, count: PARTS };
            let rows = Rows::of(graph, head, None, cut)?;
            let of = (0..head.operands.len()).find(|&at| rows.of_operand(at).is_some())?;
            let is_wide = ty.bytes() >= WIDER * graph.ty(head.operands[of]).bytes();
            is_wide.then(|| Self::behind(graph, rows))?
        })
    }

    /// The rows of the widest product with all that follows them, up to the next products.
    fn behind(graph: &'g Graph, head: Rows<'g>) -> Option<Self> {
        let large = graph.ty(head.node.results[0]).bytes() / 2;
        let mut follows: HashMap<Value, Cut> = HashMap::new();
        let mut found: HashMap<Value, Rows<'g>> = HashMap::new();
        follows.insert(head.node.results[0], head.of_result(0)?);
        let (first, product) = (head.node.results[0], head.node);
        found.insert(first, head);
        let is_large = |value: &Value| graph.ty(*value).bytes() >= large;
        for node in graph.nodes().iter().filter(|node| node.results[0] != first) {
            let Some(at) = node.operands.iter().position(|v| follows.contains_key(v)) else {
                continue;
            };
            let cut = follows[&node.operands[at]];
            let agrees = |rows: &Rows<'_>| {
                let mut operands = node.operands.iter().enumerate();
                operands.all(|(at, v)| {
                    follows.get(v).is_none_or(|cut| rows.of_operand(at) == Some(*cut))
                })
            };
            let of_rows = Rows::of(graph, node, Some(at), cut).filter(agrees);
            let is_sum = of_rows.is_none();
            let is_wide = is_large(&node.operands[at]);
            let terms = || Rows::of_terms(graph, node, at, cut).filter(|r| is_wide && agrees(r));
            match of_rows.or_else(terms) {
                Some(rows) => {
                    let ends = is_sum || multiplies(graph, node);
                    let results = node.results.iter().enumerate().filter(|_| !ends);
                    follows.extend(results.filter_map(|(i, &v)| Some((v, rows.of_result(i)?))));
                    found.insert(node.results[0], rows);
                }
                // It reads all rows at once.
                None if node.operands.iter().any(|v| follows.contains_key(v) && is_large(v)) => {
                    return None;
                }
                None => {}
            }
        }
        absorb(graph, &is_large, &mut found);
        let nodes: Vec<Rows<'g>> =
            graph.nodes().iter().filter_map(|node| found.remove(&node.results[0])).collect();
        let mut region =
            Self { graph, head: product, nodes, made_by: HashMap::new(), cuts: HashMap::new() };
        for (at, rows) in region.nodes.iter().enumerate() {
            for (i, &value) in rows.node.results.iter().enumerate() {
                region.made_by.insert(value, at);
                region.cuts.extend(rows.of_result(i).map(|cut| (value, cut)));
            }
        }
        let kept = Readers::of(graph);
        let is_read_whole = |value: &Value| {
            let outside = |id| !region.made_by.contains_key(&graph.node(id).results[0]);
            kept.is_kept(*value) || kept.nodes(*value).iter().any(|&id| outside(id))
        };
        let mut all = region.cuts.keys().filter(|v| is_large(v));
        let stays =
            all.all(|v| !is_read_whole(v)) && region.waits_for_nothing() && region.keeps_order();
        stays.then_some(region)
    }

    /// Whether collectives keep their place. The region is computed where somebody first reads a
    /// result of it, and with it all that it needs. A stage of a pipeline must send its results
    /// before it waits for a gradient.
    fn keeps_order(&self) -> bool {
        let inside = |node: &Node| self.made_by.contains_key(&node.results[0]);
        let reads = |node: &Node| node.operands.iter().any(|v| self.made_by.contains_key(v));
        let nodes = self.graph.nodes();
        let first = nodes.iter().position(|node| !inside(node) && reads(node));
        let first = first.unwrap_or(nodes.len());
        let mut needed: BTreeSet<Value> =
            self.nodes.iter().flat_map(|rows| rows.node.operands.clone()).collect();
        nodes.iter().skip(first).rev().all(|node| {
            let is_needed = !inside(node) && node.results.iter().any(|v| needed.contains(v));
            if is_needed {
                needed.extend(&node.operands);
            }
            !(is_needed && meets(node))
        })
    }

    /// Whether nothing that a part reads from outside depends on parts.
    fn waits_for_nothing(&self) -> bool {
        let mut depends: BTreeSet<Value> = BTreeSet::new();
        self.graph.nodes().iter().all(|node| {
            let rows = self.made_by.get(&node.results[0]).map(|&at| &self.nodes[at]);
            if rows.is_some() || node.operands.iter().any(|v| depends.contains(v)) {
                depends.extend(&node.results);
            }
            rows.is_none_or(|rows| {
                let mut operands = node.operands.iter().enumerate();
                operands.all(|(at, v)| match (self.cuts.get(v), rows.of_operand(at)) {
                    (Some(cut), Some(own)) => *cut == own,
                    _ => !depends.contains(v),
                })
            })
        })
    }
}

/// For each value, whether the loss depends on it; every value does where there is no loss. In a
/// stage of a pipeline that gets its loss from another, no value does.
fn leads_to_loss(graph: &Graph) -> Vec<bool> {
    let loss = graph.outputs().iter().find(|port| port.name == LOSS);
    let mut leads = vec![loss.is_none(); graph.value_count()];
    if let Some(loss) = loss {
        leads[loss.value.0 as usize] = true;
    }
    for node in graph.nodes().iter().rev() {
        if node.results.iter().any(|v| leads[v.0 as usize]) && !meets(node) {
            node.operands.iter().for_each(|v| leads[v.0 as usize] = true);
        }
    }
    leads
}

/// Takes in values that only the region reads: large ones, and those of inputs and constants alone.
/// Labels within bounds are such, numbers of classes, and a constant for all rows.
fn absorb<'g>(
    graph: &'g Graph,
    is_large: &impl Fn(&Value) -> bool,
    found: &mut HashMap<Value, Rows<'g>>,
) {
    let (readers, given) = (Readers::of(graph), given(graph));
    for node in graph.nodes().iter().rev() {
        let [value] = node.results[..] else { continue };
        let is_wanted = is_large(&value) || given.contains(&value) && graph.ty(value).rank() > 0;
        if found.contains_key(&value) || !is_wanted || readers.is_kept(value) {
            continue;
        }
        let cut_by = |id| {
            let reader: &Node = graph.node(id);
            let rows = found.get(&reader.results[0])?;
            let mut places = reader.operands.iter().enumerate().filter(|(_, v)| **v == value);
            places.try_fold(None, |cut: Option<Cut>, (at, _)| {
                let own = rows.of_operand(at)?;
                cut.is_none_or(|cut| cut == own).then_some(Some(own))
            })?
        };
        let cuts: Option<BTreeSet<(usize, usize)>> =
            readers.nodes(value).iter().map(|&id| cut_by(id).map(|c| (c.dim, c.count))).collect();
        let Some(cuts) = cuts.filter(|cuts| cuts.len() == 1) else { continue };
        let (dim, count) = cuts.into_iter().next().expect("one");
        if let Some(rows) = Rows::of(graph, node, None, Cut { dim, count })
            && !multiplies(graph, node)
        {
            found.insert(value, rows);
        }
    }
}

/// Values that are computed of inputs and constants alone, element by element or spread.
fn given(graph: &Graph) -> BTreeSet<Value> {
    let mut given: BTreeSet<Value> = graph.inputs().iter().map(|port| port.value).collect();
    for node in graph.nodes() {
        let spreads = |prim: &Prim| {
            prim.is_elementwise()
                || matches!(
                    prim,
                    Prim::Constant { .. } | Prim::Broadcast { .. } | Prim::Iota { .. }
                )
        };
        let is_plain = node.op.prim().is_some_and(spreads);
        if is_plain && node.operands.iter().all(|v| given.contains(v)) {
            given.extend(&node.results);
        }
    }
    given
}

/// The graph under construction.
struct Parts<'b, 'g> {
    b: &'b Builder,
    region: &'g Region<'g>,
    /// Whole values.
    map: HashMap<Value, Expr<'b>>,
    /// Parts, by their number and cut. Terms of sums become the sum so far.
    parts: HashMap<(Value, usize), Expr<'b>>,
}

impl<'b> Parts<'b, '_> {
    /// All rows of a value.
    fn whole(&mut self, value: Value) -> Expr<'b> {
        if let Some(&whole) = self.map.get(&value) {
            return whole;
        }
        let (graph, region) = (self.region.graph, self.region);
        let node = graph.producer(value).expect("inputs and states are declared");
        if region.made_by.contains_key(&value) {
            if !self.parts.contains_key(&(value, 0)) {
                self.compute_all();
            }
            let whole = match region.cuts.get(&value) {
                Some(cut) => {
                    let parts: Vec<Expr<'b>> =
                        (0..PARTS).map(|at| self.parts[&(value, at)]).collect();
                    self.b.concat(&parts, cut.dim)
                }
                None => self.parts[&(value, PARTS - 1)],
            };
            self.map.insert(value, whole);
            return whole;
        }
        let operands: Vec<Expr<'b>> = node.operands.iter().map(|&v| self.whole(v)).collect();
        self.map.extend(node.results.iter().copied().zip(self.b.again(node, &operands)));
        self.map[&value]
    }

    /// Everything of the first rows, then of the next.
    fn compute_all(&mut self) {
        for at in 0..PARTS {
            for rows in &self.region.nodes {
                self.compute(rows, at);
            }
        }
    }

    /// A part of each result of a node, or the sum of its terms so far.
    fn compute(&mut self, rows: &Rows<'_>, at: usize) {
        let (graph, node) = (self.region.graph, rows.node);
        let mut operands = vec![];
        for (place, &value) in node.operands.iter().enumerate() {
            operands.push(match rows.of_operand(place) {
                Some(_) if self.region.made_by.contains_key(&value) => self.parts[&(value, at)],
                Some(cut) => {
                    let whole = self.whole(value);
                    let size = whole.size(cut.dim) / cut.count;
                    whole.slice_axis(cut.dim, at * size, (at + 1) * size)
                }
                None => self.whole(value),
            });
        }
        let op = rows.op(&graph.types(&node.results));
        let _scope = self.b.scope_path(&node.scope);
        let mut results = self.b.node(op, &operands, node.regions.clone());
        if rows.of_result(0).is_none()
            && let Some(before) = at.checked_sub(1)
        {
            results[0] = self.parts[&(node.results[0], before)] + results[0];
        }
        self.parts
            .extend(node.results.iter().zip(results).map(|(&value, part)| ((value, at), part)));
    }
}

#[cfg(test)]
mod tests;
