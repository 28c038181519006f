//! Parts of values: the rows of a node's operands and results that are computed apart.

use crate::shard::relation::{FactorKind, Relation, relation};
use overdrive_ir::{Graph, Node, Operation, Prim, TensorType, Types};

/// How a value is cut.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Cut {
    pub(crate) dim: usize,
    pub(crate) count: usize,
}

impl Cut {
    /// The type of a chunk.
    fn part(self, ty: &TensorType) -> Option<TensorType> {
        let mut sizes = ty.sizes();
        let divides = sizes[self.dim].is_multiple_of(self.count);
        sizes[self.dim] /= self.count;
        divides.then(|| ty.with_shape(sizes))
    }
}

/// The same rows of the operands of a node, and of its results, for a cut of one of them.
#[derive(Debug)]
pub(crate) struct Rows<'g> {
    pub(crate) node: &'g Node,
    relation: Relation,
    factor: usize,
    count: usize,
}

impl<'g> Rows<'g> {
    /// Through the dimension of operand `at`, or else of the first result. `None` where a node does
    /// not work row by row along it.
    pub(crate) fn of(graph: &Graph, node: &'g Node, at: Option<usize>, cut: Cut) -> Option<Self> {
        let (operands, results) = (graph.types(&node.operands), graph.types(&node.results));
        let relation = relation(&node.op, &operands, &results, &node.regions);
        let dims = at.map_or(&relation.results[0], |at| &relation.operands[at]);
        let rows = Rows { node, factor: dims[cut.dim]?, relation, count: cut.count };
        rows.take_parts(&operands, &results).then_some(rows)
    }

    /// The same where parts of the operands give terms of the only result. It is a product that
    /// contracts the dimension, or a sum over it, of 32 bits or more.
    pub(crate) fn of_terms(graph: &Graph, node: &'g Node, at: usize, cut: Cut) -> Option<Self> {
        let (operands, results) = (graph.types(&node.operands), graph.types(&node.results));
        let relation = relation(&node.op, &operands, &results, &node.regions);
        let factor = relation.operands[at][cut.dim]?;
        // Terms of fewer bits would be rounded before they are added.
        let is_exact = results[0].dtype.bits() >= 32;
        let is_sum = matches!(node.op.prim(), Some(Prim::DotGeneral(_) | Prim::Reduce { .. }))
            && relation.factors[factor] == FactorKind::Summed
            && is_exact;
        let rows = Rows { node, factor, relation, count: cut.count };
        let part = |(at, ty): (usize, &TensorType)| rows.of_operand(at)?.part(ty);
        let divides = operands.iter().enumerate().all(|operand| part(operand).is_some());
        (is_sum && divides).then_some(rows)
    }

    pub(crate) fn of_result(&self, at: usize) -> Option<Cut> {
        let dim = self.relation.results[at].iter().position(|&f| f == Some(self.factor))?;
        Some(Cut { dim, count: self.count })
    }

    pub(crate) fn of_operand(&self, at: usize) -> Option<Cut> {
        let dim = self.relation.dim(at, self.factor)?;
        Some(Cut { dim, count: self.count })
    }

    /// The op on parts of operands.
    pub(crate) fn op(&self, results: &[TensorType]) -> Operation {
        let cut = self.of_result(0);
        let shape = || cut.and_then(|cut| cut.part(&results[0])).map(|ty| ty.shape);
        match (self.node.op.prim(), shape()) {
            (Some(Prim::Slice { start, limit, stride }), Some(_)) => {
                let (start, stride, mut limit) = (start.clone(), stride.clone(), limit.clone());
                // A slice has rows only along dimensions that it takes whole.
                cut.into_iter().for_each(|cut| limit[cut.dim] /= cut.count);
                Prim::Slice { start, limit, stride }.into()
            }
            (Some(Prim::Reshape { .. }), Some(shape)) => Prim::Reshape { shape }.into(),
            (Some(Prim::Broadcast { dims, .. }), Some(shape)) => {
                Prim::Broadcast { shape, dims: dims.clone() }.into()
            }
            (Some(&Prim::Iota { dtype, axis, .. }), Some(shape)) => {
                Prim::Iota { dtype, shape, axis }.into()
            }
            _ => self.node.op.clone(),
        }
    }

    /// Whether all elements of the results stand where those of an operand did.
    pub(crate) fn stay(&self, graph: &Graph) -> bool {
        let is_kept = |at: usize| {
            let dims = &self.relation.results[at];
            let sizes = graph.ty(self.node.results[at]).sizes();
            self.node.operands.iter().enumerate().any(|(operand, &value)| {
                self.relation.operands[operand] == *dims && graph.ty(value).sizes() == sizes
            }) && dims.iter().all(Option::is_some)
        };
        (0..self.node.results.len()).all(is_kept)
    }

    /// Whether every result has these rows, and parts of the operands give parts of the results.
    fn take_parts(&self, operands: &[TensorType], results: &[TensorType]) -> bool {
        let part = |ty: &TensorType, cut: Option<Cut>| match cut {
            Some(cut) => cut.part(ty),
            None => Some(ty.clone()),
        };
        let of_operands = operands.iter().enumerate().map(|(i, ty)| part(ty, self.of_operand(i)));
        let of_results = results.iter().enumerate().map(|(i, ty)| self.of_result(i)?.part(ty));
        let (Some(given), Some(expected)) =
            (of_operands.collect::<Option<Vec<_>>>(), of_results.collect::<Option<Vec<_>>>())
        else {
            return false;
        };
        let types = Types { operands: &given, regions: &self.node.regions };
        self.relation.factors[self.factor] == FactorKind::Parallel
            && self.node.op.prim().is_none_or(|prim| prim.channel().is_none())
            && self.op(results).infer(&types).is_ok_and(|found| found == expected)
    }
}

/// Whether a node is a product, or has one in it.
pub(crate) fn multiplies(graph: &Graph, node: &Node) -> bool {
    match node.op.prim() {
        Some(prim) => matches!(prim, Prim::DotGeneral(_) | Prim::Convolution(_)),
        None => {
            let expansion = node.op.expansion(&graph.types(&node.operands), &node.regions);
            expansion.nodes().iter().any(|node| multiplies(&expansion, node))
        }
    }
}

/// For each value, whether it depends on an input. Weights do not, nor do their casts.
pub(crate) fn fed(graph: &Graph) -> Vec<bool> {
    let mut is_fed = vec![false; graph.value_count()];
    graph.inputs().iter().for_each(|port| is_fed[port.value.0 as usize] = true);
    for node in graph.nodes() {
        let reads = node.operands.iter().any(|value| is_fed[value.0 as usize]);
        node.results.iter().for_each(|value| is_fed[value.0 as usize] = reads);
    }
    is_fed
}
