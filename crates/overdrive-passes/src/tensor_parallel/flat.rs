//! `Flat`: a graph with every composite replaced by its expansion, under the graph's own values.
//!
//! Values of the graph keep their numbers; those inside of expansions have numbers behind them.
//! Invariant: nodes stand in an order in which operands come first.

use crate::shard::classes::Dimension;
use crate::shard::relation::{FactorKind, Relation, relation};
use overdrive_ir::{Graph, Node, Operation, Prim, TensorType, Value};
use std::collections::{HashMap, HashSet};

/// A primitive.
pub(super) struct FlatNode {
    pub(super) prim: Prim,
    pub(super) operands: Vec<Value>,
    pub(super) results: Vec<Value>,
    pub(super) relation: Relation,
}

impl FlatNode {
    /// Whether it is a product of two operands.
    pub(super) fn contracts(&self) -> bool {
        matches!(self.prim, Prim::DotGeneral(_) | Prim::Convolution(_))
    }

    /// The dimensions of each factor.
    pub(super) fn tied(&self) -> Vec<Vec<Dimension>> {
        let mut tied = vec![vec![]; self.relation.factors.len()];
        let operands = self.operands.iter().zip(&self.relation.operands);
        for (&value, dims) in operands.chain(self.results.iter().zip(&self.relation.results)) {
            for (dim, factor) in dims.iter().enumerate() {
                factor.iter().for_each(|&factor| tied[factor].push((value, dim)));
            }
        }
        tied
    }

    /// Whether a factor of an operand belongs to that operand alone, or is summed: all but those of
    /// a batch.
    pub(super) fn is_inner(&self, operand: usize, factor: usize) -> bool {
        let is_elsewhere = (0..self.operands.len())
            .any(|other| other != operand && self.relation.dim(other, factor).is_some());
        self.relation.factors[factor] != FactorKind::Parallel || !is_elsewhere
    }
}

/// The primitives of a graph.
pub(super) struct Flat {
    pub(super) nodes: Vec<FlatNode>,
    types: Vec<TensorType>,
    /// The graph's own value that each value is, or in whose expansion it stands.
    own: Vec<Value>,
    /// Values that follow from states and constants alone, with the first of these states.
    fixed: HashMap<Value, Option<Value>>,
}

impl Flat {
    pub(super) fn of(graph: &Graph) -> Self {
        let types = graph.values().map(|value| graph.ty(value).clone()).collect();
        let states = graph.states().iter().map(|state| (state.value, Some(state.value)));
        let (own, fixed) = (graph.values().collect(), states.collect());
        let mut flat = Flat { nodes: vec![], types, own, fixed };
        for node in graph.nodes() {
            flat.add(node, node.operands.clone(), node.results.clone());
        }
        flat
    }

    fn add(&mut self, node: &Node, operands: Vec<Value>, results: Vec<Value>) {
        let types: Vec<TensorType> = operands.iter().map(|&v| self.ty(v).clone()).collect();
        if let Some(prim) = node.op.prim() {
            self.push(prim, (operands, &types), results, &node.regions);
            return;
        }
        let expansion = node.op.expansion(&types, &node.regions);
        let inputs = expansion.inputs().iter().map(|port| port.value);
        let mut names: HashMap<Value, Value> = inputs.zip(operands).collect();
        for (port, &result) in expansion.outputs().iter().zip(&results) {
            names.entry(port.value).or_insert(result);
        }
        let place = self.own[results[0].0 as usize];
        for inner in expansion.nodes() {
            for &value in &inner.results {
                names.entry(value).or_insert_with(|| {
                    self.types.push(expansion.ty(value).clone());
                    self.own.push(place);
                    Value(self.types.len() as u32 - 1)
                });
            }
            let named = |values: &[Value]| values.iter().map(|value| names[value]).collect();
            let (operands, results) = (named(&inner.operands), named(&inner.results));
            self.add(inner, operands, results);
        }
        for (port, &result) in expansion.outputs().iter().zip(&results) {
            let known = names[&port.value];
            if known != result {
                let ty = self.ty(result).clone();
                let copy = Prim::Reshape { shape: ty.shape.clone() };
                self.push(&copy, (vec![known], &[ty]), vec![result], &[]);
            }
        }
    }

    fn push(
        &mut self,
        prim: &Prim,
        (operands, types): (Vec<Value>, &[TensorType]),
        results: Vec<Value>,
        regions: &[Graph],
    ) {
        let result_types: Vec<TensorType> = results.iter().map(|&v| self.ty(v).clone()).collect();
        let op = Operation::Prim(prim.clone());
        let relation = relation(&op, types, &result_types, regions);
        let node = FlatNode { prim: prim.clone(), operands, results, relation };
        if !node.contracts() && node.operands.iter().all(|value| self.is_fixed(*value)) {
            let state = node.operands.iter().find_map(|value| self.state(*value));
            self.fixed.extend(node.results.iter().map(|&result| (result, state)));
        }
        self.nodes.push(node);
    }

    fn ty(&self, value: Value) -> &TensorType {
        &self.types[value.0 as usize]
    }

    pub(super) fn sizes(&self, value: Value) -> Vec<usize> {
        self.ty(value).sizes()
    }

    pub(super) fn rank(&self, value: Value) -> usize {
        self.ty(value).rank()
    }

    /// The graph's own value that this value is, or in whose expansion it stands.
    pub(super) fn own(&self, value: Value) -> Value {
        self.own[value.0 as usize]
    }

    /// Whether a value follows from states and constants alone.
    pub(super) fn is_fixed(&self, value: Value) -> bool {
        self.fixed.contains_key(&value)
    }

    /// The state that a value follows from, with constants and other states if any.
    pub(super) fn state(&self, value: Value) -> Option<Value> {
        self.fixed.get(&value).copied().flatten()
    }

    /// Whether a node cuts a part out of a state, in the graph itself.
    pub(super) fn is_cut(&self, node: &FlatNode) -> bool {
        let is_own = node.results.iter().all(|&result| self.own(result) == result);
        matches!(node.prim, Prim::Slice { .. }) && is_own && self.state(node.operands[0]).is_some()
    }

    /// For each node, whether some contraction depends on it or it is one. So the forward and the
    /// backward are in; the norm of the gradients and the updates are not.
    pub(super) fn before_contractions(&self) -> Vec<bool> {
        let mut needed: HashSet<Value> = HashSet::new();
        let mut before: Vec<bool> = vec![];
        for node in self.nodes.iter().rev() {
            let is_in = node.contracts() || node.results.iter().any(|v| needed.contains(v));
            if is_in {
                needed.extend(&node.operands);
            }
            before.push(is_in);
        }
        before.reverse();
        before
    }
}
