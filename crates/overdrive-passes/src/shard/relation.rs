//! `Relation`: which dimensions of a node's operands and results are the same dimension.
//!
//! A dimension that several operands and results share is a *factor*: split it in all of them, and
//! each rank computes its part alone. Relations are written for primitives; that of a composite is
//! derived from its expansion, as in Shardy. Invariant: no factor occurs twice in one operand.

use super::classes::Classes;
use overdrive_ir::{
    Binary, DotGeneral, Graph, Node, Operation, Pad, Prim, Reducer, TensorType, Unary, Value,
    Window,
};
use std::collections::{HashMap, HashSet};

/// The result of a rank that has a part of a factor.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum FactorKind {
    /// Its part of the results.
    Parallel,
    /// A term of a sum.
    Summed,
    /// A term of another fold.
    Folded(Reducer),
    /// The rows of a table that it holds, and zeros for the others: a term of a sum.
    Looked,
}

/// The factors of a node. A dimension without one must be whole on every rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct Relation {
    /// The kind of each factor.
    pub(crate) factors: Vec<FactorKind>,
    /// Factor of each dimension of each operand.
    pub(crate) operands: Vec<Vec<Option<usize>>>,
    /// Factor of each dimension of each result.
    pub(crate) results: Vec<Vec<Option<usize>>>,
    /// Sets of operands in which the node is linear: where they are partial sums and the others are
    /// not, the result is one.
    pub(crate) linear: Vec<Vec<usize>>,
    /// For a composite: how each result is folded from results of parts, if it is.
    pub(crate) folds: Vec<Option<Reducer>>,
}

impl Relation {
    /// No factors: everything whole.
    pub(crate) fn whole(operands: &[TensorType], results: &[TensorType]) -> Self {
        let blank = |types: &[TensorType]| types.iter().map(|t| vec![None; t.rank()]).collect();
        Relation { operands: blank(operands), results: blank(results), ..Relation::default() }
    }

    /// A new factor at these (operand, dimension) and (result, dimension).
    fn tie(&mut self, kind: FactorKind, operands: &[(usize, usize)], results: &[(usize, usize)]) {
        let factor = self.factors.len();
        self.factors.push(kind);
        operands.iter().for_each(|&(o, dim)| self.operands[o][dim] = Some(factor));
        results.iter().for_each(|&(r, dim)| self.results[r][dim] = Some(factor));
    }

    /// The dimension of an operand that has this factor.
    pub(crate) fn dim(&self, operand: usize, factor: usize) -> Option<usize> {
        self.operands[operand].iter().position(|&f| f == Some(factor))
    }
}

/// The relation of a node with operands and results of these types.
pub(crate) fn relation(
    op: &Operation,
    operands: &[TensorType],
    results: &[TensorType],
    regions: &[Graph],
) -> Relation {
    match op {
        Operation::Prim(prim) => of_prim(prim, operands, results),
        Operation::Composite(of) => {
            let folds = (0..results.len()).map(|result| of.fold(result)).collect();
            derive(&op.expansion(operands, regions), (operands, results), folds)
        }
    }
}

fn of_prim(prim: &Prim, operands: &[TensorType], results: &[TensorType]) -> Relation {
    let mut r = Relation::whole(operands, results);
    let rank = |i: usize| operands.get(i).map_or(0, TensorType::rank);
    match prim {
        prim if prim.is_elementwise() => {
            let all = |dim: usize| (0..operands.len()).map(|o| (o, dim)).collect::<Vec<_>>();
            (0..rank(0)).for_each(|dim| r.tie(FactorKind::Parallel, &all(dim), &[(0, dim)]));
            r.linear = linear(prim, operands);
        }
        // Between stages of a pipeline, from before the graph was sharded.
        Prim::Permute { .. } | Prim::AllReduce { .. } => {
            (0..rank(0)).for_each(|dim| r.tie(FactorKind::Parallel, &[(0, dim)], &[(0, dim)]));
            r.linear = linear(prim, operands);
        }
        Prim::Broadcast { dims, .. } => {
            let sizes = results[0].sizes();
            for (dim, &size) in sizes.iter().enumerate() {
                let from = dims.iter().position(|&to| to == dim);
                let from = from.filter(|&from| operands[0].sizes()[from] == size);
                let from: Vec<(usize, usize)> = from.map(|from| (0, from)).into_iter().collect();
                r.tie(FactorKind::Parallel, &from, &[(0, dim)]);
            }
        }
        Prim::Iota { axis, .. } => (0..results[0].rank())
            .filter(|dim| dim != axis)
            .for_each(|dim| r.tie(FactorKind::Parallel, &[], &[(0, dim)])),
        Prim::Reshape { .. } => {
            for (from, to) in outermost(&operands[0].sizes(), &results[0].sizes()) {
                r.tie(FactorKind::Parallel, &[(0, from)], &[(0, to)]);
            }
            r.linear = vec![vec![0]];
        }
        Prim::Transpose { perm } => {
            let tie = |(to, &from): (usize, &usize)| {
                r.tie(FactorKind::Parallel, &[(0, from)], &[(0, to)]);
            };
            perm.iter().enumerate().for_each(tie);
            r.linear = vec![vec![0]];
        }
        Prim::Slice { .. } | Prim::DynamicSlice { .. } => {
            untouched(&mut r, &[&operands[0], &results[0]], &[(0, 0)]);
            if matches!(prim, Prim::Slice { .. }) {
                r.linear = vec![vec![0]];
            }
        }
        Prim::DynamicUpdateSlice => {
            untouched(&mut r, &[&operands[0], &operands[1]], &[(0, 0), (1, 0)])
        }
        Prim::Pad { pads } => free(&mut r, pads.iter().map(|pad| *pad == Pad::default())),
        Prim::ReduceWindow { windows, .. } => {
            let point = Window { size: 1, stride: 1, dilation: 1, pad_low: 0, pad_high: 0 };
            let whole = |w: &Window| Window { dilation: 1, ..*w } == point;
            free(&mut r, windows.iter().map(whole));
        }
        Prim::Concat { axis } => {
            for dim in (0..rank(0)).filter(|dim| dim != axis) {
                let all: Vec<(usize, usize)> = (0..operands.len()).map(|o| (o, dim)).collect();
                r.tie(FactorKind::Parallel, &all, &[(0, dim)]);
            }
            r.linear = vec![(0..operands.len()).collect()];
        }
        Prim::Sort { axis, .. } => (0..rank(0))
            .filter(|dim| dim != axis)
            .for_each(|dim| r.tie(FactorKind::Parallel, &[(0, dim)], &[(0, dim), (1, dim)])),
        Prim::Reduce { reducer, axes } => reduce(&mut r, *reducer, axes, rank(0)),
        Prim::DotGeneral(dot) => dot_general(&mut r, dot, [rank(0), rank(1)]),
        Prim::Convolution(conv) => {
            r.tie(FactorKind::Parallel, &[(0, 0)], &[(0, 0)]);
            if conv.groups == 1 {
                r.tie(FactorKind::Parallel, &[(1, 0)], &[(0, 1)]);
                r.tie(FactorKind::Summed, &[(0, 1), (1, 1)], &[]);
            }
        }
        Prim::Gather { axes } => gather(&mut r, axes, [rank(0), rank(1)]),
        Prim::Scatter { axes, reducer } => scatter(&mut r, axes, *reducer, [rank(0), rank(1)]),
        _ => {}
    }
    r
}

/// The kept dimensions are parallel, the others folded.
fn reduce(r: &mut Relation, reducer: Reducer, axes: &[usize], rank: usize) {
    let mut kept = 0;
    for dim in 0..rank {
        match (axes.contains(&dim), reducer) {
            (true, Reducer::Sum) => r.tie(FactorKind::Summed, &[(0, dim)], &[]),
            (true, reducer) => r.tie(FactorKind::Folded(reducer), &[(0, dim)], &[]),
            (false, _) => {
                r.tie(FactorKind::Parallel, &[(0, dim)], &[(0, kept)]);
                kept += 1;
            }
        }
    }
    if reducer == Reducer::Sum {
        r.linear = vec![vec![0]];
    }
}

/// Dimensions of the result: those of the batch, then the free ones of each operand.
fn dot_general(r: &mut Relation, dot: &DotGeneral, ranks: [usize; 2]) {
    let mut at = 0;
    let mut next = || {
        at += 1;
        [(0, at - 1)]
    };
    for &(left, right) in &dot.batch {
        r.tie(FactorKind::Parallel, &[(0, left), (1, right)], &next());
    }
    for (operand, rank) in ranks.into_iter().enumerate() {
        let side = |pair: &(usize, usize)| if operand == 0 { pair.0 } else { pair.1 };
        let taken: Vec<usize> = dot.batch.iter().chain(&dot.contract).map(side).collect();
        for dim in (0..rank).filter(|dim| !taken.contains(dim)) {
            r.tie(FactorKind::Parallel, &[(operand, dim)], &next());
        }
    }
    for &(left, right) in &dot.contract {
        r.tie(FactorKind::Summed, &[(0, left), (1, right)], &[]);
    }
}

/// `ranks` are those of the table and of the indices.
fn gather(r: &mut Relation, axes: &[usize], ranks: [usize; 2]) {
    let leading = ranks[1] - 1;
    (0..leading).for_each(|dim| r.tie(FactorKind::Parallel, &[(1, dim)], &[(0, dim)]));
    let rows = (0..ranks[0]).filter(|dim| !axes.contains(dim)).enumerate();
    rows.for_each(|(i, dim)| r.tie(FactorKind::Parallel, &[(0, dim)], &[(0, leading + i)]));
    if let [axis] = axes[..] {
        r.tie(FactorKind::Looked, &[(0, axis)], &[]);
    }
}

/// As for `gather`; added updates are summed.
fn scatter(r: &mut Relation, axes: &[usize], reducer: Option<Reducer>, ranks: [usize; 2]) {
    let leading = ranks[1] - 1;
    let rows = (0..ranks[0]).filter(|dim| !axes.contains(dim)).enumerate();
    for (i, dim) in rows {
        r.tie(FactorKind::Parallel, &[(0, dim), (2, leading + i)], &[(0, dim)]);
    }
    if reducer == Some(Reducer::Sum) {
        (0..leading).for_each(|dim| r.tie(FactorKind::Summed, &[(1, dim), (2, dim)], &[]));
    }
}

/// Sets of operands in which an elementwise primitive is linear.
fn linear(prim: &Prim, operands: &[TensorType]) -> Vec<Vec<usize>> {
    match prim {
        Prim::Unary { kind: Unary::Neg }
        | Prim::Permute { .. }
        | Prim::AllReduce { reducer: Reducer::Sum, .. } => vec![vec![0]],
        Prim::Binary { kind: Binary::Add | Binary::Sub } => vec![vec![0, 1]],
        Prim::Binary { kind: Binary::Mul } => vec![vec![0], vec![1]],
        Prim::Binary { kind: Binary::Div } if operands[0].dtype.is_float() => vec![vec![0]],
        Prim::Select => vec![vec![1, 2]],
        // A narrower type would round each term instead of the sum.
        Prim::Convert { to, .. } if to.is_float() && operands[0].dtype.is_float() => {
            if to.bits() >= operands[0].dtype.bits() { vec![vec![0]] } else { vec![] }
        }
        _ => vec![],
    }
}

/// Ties dimensions of operand 0 and result 0 where this says so.
fn free(r: &mut Relation, dims: impl Iterator<Item = bool>) {
    for (dim, _) in dims.enumerate().filter(|(_, free)| *free) {
        r.tie(FactorKind::Parallel, &[(0, dim)], &[(0, dim)]);
    }
}

/// Ties the dimensions that a slice leaves whole.
fn untouched(r: &mut Relation, [whole, slice]: &[&TensorType; 2], operands: &[(usize, usize)]) {
    for (dim, (n, part)) in whole.sizes().into_iter().zip(slice.sizes()).enumerate() {
        if n == part {
            let operands: Vec<(usize, usize)> = operands.iter().map(|&(o, _)| (o, dim)).collect();
            r.tie(FactorKind::Parallel, &operands, &[(0, dim)]);
        }
    }
}

/// Pairs of dimensions whose equal parts hold the same elements. They are the outermost ones of
/// each group of dimensions with equal products.
fn outermost(from: &[usize], to: &[usize]) -> Vec<(usize, usize)> {
    let mut pairs = vec![];
    if from.contains(&0) {
        return pairs;
    }
    let (mut i, mut j) = (0, 0);
    loop {
        while from.get(i) == Some(&1) {
            i += 1;
        }
        while to.get(j) == Some(&1) {
            j += 1;
        }
        let (Some(&first), Some(&second)) = (from.get(i), to.get(j)) else { return pairs };
        pairs.push((i, j));
        let (mut left, mut right) = (first, second);
        (i, j) = (i + 1, j + 1);
        while left != right {
            if left < right {
                left *= from[i];
                i += 1;
            } else {
                right *= to[j];
                j += 1;
            }
        }
    }
}

/// The relation of a composite: the dimensions that pass through its expansion, where no node
/// folds, counts or moves them. Results that the composite itself declares as folds are the
/// exception.
fn derive(
    expansion: &Graph,
    (operands, results): (&[TensorType], &[TensorType]),
    folds: Vec<Option<Reducer>>,
) -> Relation {
    let mut classes = Classes::default();
    for value in expansion.values() {
        for dim in 0..expansion.ty(value).rank() {
            classes.of((value, dim));
        }
    }
    let parts = expansion.outputs().iter().zip(&folds).filter(|(_, fold)| fold.is_none());
    let mut needed: HashSet<Value> = parts.map(|(port, _)| port.value).collect();
    for node in expansion.nodes().iter().rev() {
        if node.results.iter().any(|value| needed.contains(value)) {
            needed.extend(&node.operands);
        }
    }
    for node in expansion.nodes() {
        if node.results.iter().any(|value| needed.contains(value)) {
            through(&mut classes, (expansion, node), &needed);
        }
    }
    let mut r = Relation { folds, ..Relation::whole(operands, results) };
    let mut factors: HashMap<usize, usize> = HashMap::new();
    let mut diagonal = vec![];
    let sides = [(true, expansion.inputs()), (false, expansion.outputs())];
    for (is_operand, ports) in sides {
        for (i, port) in ports.iter().enumerate() {
            if !is_operand && r.folds[i].is_some() {
                continue;
            }
            for dim in 0..expansion.ty(port.value).rank() {
                let class = classes.of((port.value, dim));
                if classes.marked[class] {
                    continue;
                }
                let next = r.factors.len();
                let factor = *factors.entry(class).or_insert(next);
                if factor == next {
                    r.factors.push(FactorKind::Parallel);
                }
                let lists = if is_operand { &mut r.operands } else { &mut r.results };
                if lists[i].contains(&Some(factor)) {
                    diagonal.push(factor);
                }
                lists[i][dim] = Some(factor);
            }
        }
    }
    // A part of a diagonal is no part of the matrix.
    let dims = r.operands.iter_mut().chain(&mut r.results).flatten();
    dims.filter(|f| f.is_some_and(|f| diagonal.contains(&f))).for_each(|dim| *dim = None);
    r
}

/// Joins the dimensions that a node of an expansion relates, and marks those that must be whole.
/// All of them must be if a `needed` result is a fold over them.
fn through(classes: &mut Classes, (graph, node): (&Graph, &Node), needed: &HashSet<Value>) {
    let (operands, results) = (graph.types(&node.operands), graph.types(&node.results));
    let r = relation(&node.op, &operands, &results, &node.regions);
    let mut folds = node.results.iter().zip(&r.folds);
    let is_folded = folds.any(|(value, fold)| fold.is_some() && needed.contains(value));
    let mut first: Vec<Option<usize>> = vec![None; r.factors.len()];
    let sides = [(&node.operands, &r.operands), (&node.results, &r.results)];
    for (values, lists) in sides {
        for (&value, dims) in values.iter().zip(lists) {
            for (dim, factor) in dims.iter().enumerate() {
                let class = classes.of((value, dim));
                match factor {
                    None => classes.marked[class] = true,
                    Some(factor) => {
                        let other = *first[*factor].get_or_insert(class);
                        let class = classes.join(other, class);
                        classes.marked[class] |=
                            is_folded || r.factors[*factor] != FactorKind::Parallel;
                        first[*factor] = Some(class);
                    }
                }
            }
        }
    }
}
