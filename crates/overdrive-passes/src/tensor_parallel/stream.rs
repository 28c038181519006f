//! The residual stream: values between blocks, where ranks that share the layers meet.
//!
//! A value of the stream has the dimension that split projections leave whole: D in `[..., T, D]`.
//! Two kinds of them are annotated. One is a value that ends a partial sum, so that norms behind it
//! and their gradients read a sum. The other is a value that a projection contracts along D, which
//! is whole: a product never gathers weights instead. Gradients are found by the same rules.

use super::flat::FlatNode;
use super::{Layout, ResidualStream};
use crate::shard::relation::FactorKind;
use overdrive_ir::{Axis, Graph, Prim, Sharding, Value};
use std::collections::{BTreeMap, BTreeSet, HashSet};

impl Layout<'_> {
    /// Adds the annotations of the stream.
    pub(super) fn stream(
        &mut self,
        graph: &Graph,
        along: (&Axis, usize),
        residual: ResidualStream,
        all: &mut BTreeMap<Value, Sharding>,
    ) {
        let widths = self.widths();
        for value in self.ends_of_sums(graph) {
            let own = self.flat.own(value);
            let Some(width) = self.width_of(own, &widths) else { continue };
            let mut sharding = self.whole(own);
            if residual == ResidualStream::AlongSequence {
                self.split_sequence(&mut sharding, (own, width), along);
            }
            all.insert(own, sharding);
        }
        for value in self.contracted(&widths) {
            let sharding = self.whole(value);
            all.insert(value, sharding);
        }
    }

    /// The classes that split weights have beside the one that is split.
    fn widths(&mut self) -> HashSet<usize> {
        let mut widths = HashSet::new();
        let flat = self.flat;
        for node in flat.nodes.iter().filter(|node| node.contracts() || looks_up(node)) {
            for (operand, &value) in node.operands.iter().enumerate() {
                if flat.state(value).is_none() || self.split_dim(value).is_none() {
                    continue;
                }
                for (dim, factor) in node.relation.operands[operand].iter().enumerate() {
                    let class = self.classes.of((value, dim));
                    if factor.is_some_and(|f| node.is_inner(operand, f))
                        && !self.split.contains(&class)
                    {
                        widths.insert(class);
                    }
                }
            }
        }
        widths
    }

    /// The dimension D of a value of the stream.
    fn width_of(&mut self, value: Value, widths: &HashSet<usize>) -> Option<usize> {
        if self.flat.is_fixed(value) || self.split_dim(value).is_some() {
            return None;
        }
        let rank = self.flat.rank(value);
        let mut dims = (0..rank).filter(|&dim| widths.contains(&self.classes.of((value, dim))));
        let width = dims.next().filter(|_| rank > 1)?;
        dims.next().is_none().then_some(width)
    }

    /// Splits the sequence, if there is one and the ranks divide it.
    fn split_sequence(
        &self,
        sharding: &mut Sharding,
        (value, width): (Value, usize),
        (axis, ranks): (&Axis, usize),
    ) {
        let sizes = self.flat.sizes(value);
        // The first dimension is the batch.
        let sequence = (1..sizes.len()).rev().find(|&dim| dim != width);
        let is_free = |dim: &usize| sharding.split[*dim].is_none();
        if let Some(dim) = sequence.filter(is_free).filter(|&d| sizes[d].is_multiple_of(ranks)) {
            sharding.split[dim] = Some(axis.clone());
        }
    }

    /// Values that are partial sums up to some node that is not linear in them alone.
    fn ends_of_sums(&mut self, graph: &Graph) -> BTreeSet<Value> {
        let flat = self.flat;
        let sums: Vec<bool> = flat.nodes.iter().map(|node| self.makes_partial(node)).collect();
        let passed: HashSet<Value> = graph.outputs().iter().map(|port| port.value).collect();
        let mut ends = BTreeSet::new();
        loop {
            let mut partial: HashSet<Value> = HashSet::new();
            // Ends of this round, and values that follow from them, which are no sums after all.
            let (mut found, mut behind) = (BTreeSet::new(), HashSet::new());
            let mut passing = vec![];
            for (node, &is_sum) in flat.nodes.iter().zip(&sums) {
                let operands = 0..node.operands.len();
                let summed: Vec<usize> =
                    operands.clone().filter(|&o| partial.contains(&node.operands[o])).collect();
                let mut others = operands.filter(|o| !summed.contains(o));
                let passes = node.relation.linear.contains(&summed)
                    && others.all(|o| flat.is_fixed(node.operands[o]));
                let values = summed.iter().map(|&o| node.operands[o]);
                if passes {
                    passing.push((values.collect::<Vec<Value>>(), node.results[0]));
                } else {
                    found.extend(values);
                }
                let open = node.results.iter().filter(|&v| (passes || is_sum) && !ends.contains(v));
                partial.extend(open);
            }
            found.extend(partial.iter().filter(|value| passed.contains(value)));
            for (values, result) in passing {
                if values.iter().any(|value| found.contains(value) || behind.contains(value)) {
                    behind.insert(result);
                }
            }
            found.retain(|value| !behind.contains(value));
            if found.is_empty() {
                return ends;
            }
            ends.extend(found);
        }
    }

    /// Whether each rank has a term of a sum behind this node.
    fn makes_partial(&mut self, node: &FlatNode) -> bool {
        let factors = node.relation.factors.iter().zip(node.tied());
        let is_split = |(kind, dims): (&FactorKind, Vec<(Value, usize)>)| {
            let is_sum = match kind {
                FactorKind::Summed => node.contracts(),
                FactorKind::Looked => true,
                _ => false,
            };
            is_sum && dims.iter().any(|&dim| self.split.contains(&self.classes.of(dim)))
        };
        let mut split = factors.map(is_split);
        split.any(|is_split| is_split)
    }

    /// Values of the stream that a product with a state contracts along D, and those whose rows are
    /// added to a table.
    fn contracted(&mut self, widths: &HashSet<usize>) -> BTreeSet<Value> {
        let (flat, mut found) = (self.flat, BTreeSet::new());
        for node in &flat.nodes {
            let is_read = |o: usize| match &node.prim {
                Prim::Scatter { .. } => o == 2,
                _ => node.contracts() && flat.state(node.operands[1 - o]).is_some(),
            };
            for operand in (0..node.operands.len()).filter(|&o| is_read(o)) {
                let value = node.operands[operand];
                let sums = !node.contracts() || self.sums_width(node, operand, widths);
                if sums && flat.own(value) == value && self.width_of(value, widths).is_some() {
                    found.insert(value);
                }
            }
        }
        found
    }

    fn sums_width(&mut self, node: &FlatNode, operand: usize, widths: &HashSet<usize>) -> bool {
        let dims = node.relation.operands[operand].iter().enumerate();
        let summed = dims.filter(|(_, factor)| {
            factor.is_some_and(|f| node.relation.factors[f] == FactorKind::Summed)
        });
        let mut classes = summed.map(|(dim, _)| self.classes.of((node.operands[operand], dim)));
        classes.any(|class| widths.contains(&class))
    }
}

fn looks_up(node: &FlatNode) -> bool {
    matches!(node.prim, Prim::Gather { .. })
}
