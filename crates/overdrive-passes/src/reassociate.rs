//! Reassociate: a product of products is multiplied in the order that multiplies less.
//!
//! `(a b) c` is `a (b c)`, up to rounding. The two differ in cost where a matrix is only a step on
//! the way. The gradient of a weight that adapters add to is one: `dyᵀ x`, of `2 T N K` FLOPs, is
//! read only by products with matrices of rank r. Multiplied by these first, it is never made, and
//! `4 T r (N + K)` FLOPs are left. Source: the matrix chain problem, for chains of three (Godbole,
//! "On efficient computation of matrix chain products", IEEE Transactions on Computers 1973).
//!
//! Invariant: a product goes only where all of its readers do without it.

use crate::readers::Readers;
use crate::rebuild::{NodeToCopy, rebuild};
use overdrive_ir::{Binary, DotGeneral, Expr, Graph, GraphError, Node, Precision, Prim, Value};
use std::collections::{BTreeSet, HashMap};

/// The graph with products of products in the order that multiplies less.
///
/// # Errors
/// When the graph is ill-formed.
pub fn reassociate(graph: &Graph) -> Result<Graph, GraphError> {
    let readers = Readers::of(graph);
    let mut found: HashMap<Value, Triple<'_>> = HashMap::new();
    for node in graph.nodes() {
        // The parts of one that is already multiplied otherwise would have to be made for this.
        let Some(first) = Product::of(node).filter(|_| !found.contains_key(&node.results[0]))
        else {
            continue;
        };
        let Some(triples) = triples(graph, &readers, first) else { continue };
        // One reader may have two such products. It does without the first of them.
        let results: BTreeSet<Value> = triples.iter().map(|(result, _)| *result).collect();
        if results.len() < triples.len() || results.iter().any(|of| found.contains_key(of)) {
            continue;
        }
        let costs = triples.iter().map(|(_, triple)| triple.costs(graph));
        let [now, then] = costs.fold([first.cost(graph), 0], |[a, b], [c, d]| [a + c, b + d]);
        if then < now {
            found.extend(triples);
        }
    }
    if found.is_empty() {
        return Ok(graph.clone());
    }
    rebuild(graph, &Clone::clone, &mut |place| match found.get(&place.node.results[0]) {
        Some(triple) => Ok(vec![triple.build(graph, place)]),
        None => Ok(place.keep(place.node.regions.clone())),
    })
}

/// A contraction without batch dimensions.
#[derive(Copy, Clone)]
struct Product<'g> {
    node: &'g Node,
    dot: &'g DotGeneral,
}

impl<'g> Product<'g> {
    fn of(node: &'g Node) -> Option<Self> {
        match node.op.prim()? {
            Prim::DotGeneral(dot) if dot.batch.is_empty() && dot.precision == Precision::Exact => {
                Some(Self { node, dot })
            }
            _ => None,
        }
    }

    /// The contracted axes of a side.
    fn contracted(self, side: usize) -> Vec<usize> {
        self.dot.contract.iter().map(|&(l, r)| [l, r][side]).collect()
    }

    /// The axes of a side that the result has.
    fn free(self, graph: &Graph, side: usize) -> Vec<usize> {
        let contracted = self.contracted(side);
        let rank = graph.ty(self.node.operands[side]).rank();
        (0..rank).filter(|axis| !contracted.contains(axis)).collect()
    }

    /// Multiplications.
    fn cost(self, graph: &Graph) -> u128 {
        let free = self.free(graph, 1).into_iter();
        let sizes = graph.ty(self.node.operands[1]).sizes();
        elements(&graph.ty(self.node.operands[0]).sizes())
            * elements(&free.map(|axis| sizes[axis]).collect::<Vec<_>>())
    }
}

fn elements(sizes: &[usize]) -> u128 {
    sizes.iter().map(|&size| size as u128).product()
}

/// A product whose side `side` is a [`View`] of the product `first`.
struct Triple<'g> {
    first: Product<'g>,
    then: Product<'g>,
    side: usize,
    /// The axis of `first` that each axis of the view is.
    axes: Vec<usize>,
    /// The side of `first` that is multiplied first now, and its axis that `then` contracts.
    near: (usize, usize),
    /// The number by which the view multiplies.
    factor: f64,
}

/// Values that are a product of the graph but for the order of axes, the format and a factor.
struct View {
    value: Value,
    /// The axis of the product that each axis is.
    axes: Vec<usize>,
    factor: f64,
}

/// The number that all elements of a constant are.
fn number(graph: &Graph, value: Value) -> Option<f64> {
    let node = graph.producer(value)?;
    match node.op.prim()? {
        Prim::Constant { value } => {
            (value.ty().elements() == 1 && value.ty().dtype.is_float()).then(|| value.to_f64()[0])
        }
        Prim::Broadcast { .. } | Prim::Reshape { .. } => number(graph, node.operands[0]),
        _ => None,
    }
}

/// All readers of a product as triples, by their results; `None` where one of them is something
/// else.
fn triples<'g>(
    graph: &'g Graph,
    readers: &Readers,
    first: Product<'g>,
) -> Option<Vec<(Value, Triple<'g>)>> {
    let dtype = graph.ty(first.node.operands[0]).dtype;
    let rank = graph.ty(first.node.results[0]).rank();
    let whole = View { value: first.node.results[0], axes: (0..rank).collect(), factor: 1.0 };
    let (mut views, mut found) = (vec![whole], vec![]);
    while let Some(View { value, axes, factor }) = views.pop() {
        if readers.is_kept(value) {
            return None;
        }
        for id in readers.nodes(value) {
            let node = &graph.nodes()[id.0 as usize];
            let result = node.results[0];
            match node.op.prim()? {
                Prim::Transpose { perm } => {
                    let axes = perm.iter().map(|&axis| axes[axis]).collect();
                    views.push(View { value: result, axes, factor });
                }
                Prim::Convert { .. } if graph.ty(result).dtype.is_float() => {
                    views.push(View { value: result, axes: axes.clone(), factor });
                }
                Prim::Binary { kind: Binary::Mul } => {
                    let by = node.operands.iter().find_map(|&by| number(graph, by))?;
                    views.push(View { value: result, axes: axes.clone(), factor: factor * by });
                }
                _ => {
                    let then = Product::of(node)?;
                    let side = node.operands.iter().position(|&operand| operand == value)?;
                    let same = [first.node.operands[1], node.operands[1 - side]];
                    let fits = same.iter().all(|&operand| graph.ty(operand).dtype == dtype);
                    let squared = node.operands[0] == node.operands[1];
                    let [axis] = then.contracted(side)[..] else { return None };
                    if !fits || squared {
                        return None;
                    }
                    let free = [0, 1].map(|side| first.free(graph, side));
                    let of_lhs = free[0].len();
                    let near = match axes[axis] {
                        axis if axis < of_lhs => (0, free[0][axis]),
                        axis => (1, free[1][axis - of_lhs]),
                    };
                    let axes = axes.clone();
                    found.push((result, Triple { first, then, side, axes, near, factor }));
                }
            }
        }
    }
    Some(found)
}

impl Triple<'_> {
    /// Multiplications of `then` as it is, and of both products in the other order.
    fn costs(&self, graph: &Graph) -> [u128; 2] {
        let sizes =
            |product: Product<'_>, side: usize| graph.ty(product.node.operands[side]).sizes();
        let (near, axis) = self.near;
        let others = sizes(self.then, 1 - self.side);
        let free = self.then.free(graph, 1 - self.side);
        let added = elements(&free.iter().map(|&axis| others[axis]).collect::<Vec<_>>());
        let beside: Vec<usize> = self.first.free(graph, near);
        let near_sizes = sizes(self.first, near);
        let beside = beside.iter().filter(|&&free| free != axis).map(|&free| near_sizes[free]);
        let beside = elements(&beside.collect::<Vec<_>>());
        let far = elements(&sizes(self.first, 1 - near));
        [self.then.cost(graph), added * (elements(&near_sizes) + far * beside)]
    }

    /// The result of `then`.
    fn build<'b>(&self, graph: &Graph, place: &NodeToCopy<'b, '_>) -> Expr<'b> {
        let (near, axis) = self.near;
        let [near_value, far_value] =
            [near, 1 - near].map(|side| place.get(self.first.node.operands[side]));
        let other = place.get(self.then.node.operands[1 - self.side]);
        let [other_axis] = self.then.contracted(1 - self.side)[..] else {
            panic!("one axis is contracted")
        };
        // Behind the axes of the other operand, so that those contracted next are contiguous.
        let inner = other.dot_to(near_value, &[], &[(other_axis, axis)], far_value.dtype());
        let added = self.then.free(graph, 1 - self.side).len();
        let kept = |of_near: usize| added + of_near - usize::from(of_near > axis);
        let contract = self.first.dot.contract.iter();
        let pairs = contract.map(|&(l, r)| ([l, r][1 - near], kept([l, r][near])));
        let pairs: Vec<(usize, usize)> = pairs.collect();
        // Axes of the first product have their numbers there, those of the other operand follow.
        let free = [0, 1].map(|side| self.first.free(graph, side));
        let number = |side: usize, position: usize| position + side * free[0].len();
        let rank = free[0].len() + free[1].len();
        let others: Vec<usize> = (rank..rank + added).collect();
        let of_far = (0..free[1 - near].len()).map(|position| number(1 - near, position));
        let of_far: Vec<usize> = of_far.collect();
        let of_near = (0..free[near].len())
            .filter(|&position| free[near][position] != axis)
            .map(|position| number(near, position));
        let of_inner: Vec<usize> = others.iter().copied().chain(of_near).collect();
        let of_view = self.then.free(graph, self.side).into_iter().map(|axis| self.axes[axis]);
        let wanted: Vec<usize> = match self.side {
            0 => of_view.chain(others).collect(),
            _ => others.into_iter().chain(of_view).collect(),
        };
        let out = self.then.dot.out;
        let rows = |x: Expr<'b>, contracted: &mut dyn Iterator<Item = usize>| {
            let sizes = x.sizes();
            elements(&sizes) / contracted.map(|axis| sizes[axis] as u128).product::<u128>().max(1)
        };
        // Devices have kernels for products of few rows.
        let of_inner_are_fewer = rows(inner, &mut pairs.iter().map(|pair| pair.1))
            <= rows(far_value, &mut pairs.iter().map(|pair| pair.0));
        let (outer, has) = if of_inner_are_fewer {
            let turned: Vec<(usize, usize)> = pairs.iter().map(|&(far, of)| (of, far)).collect();
            (inner.dot_to(far_value, &[], &turned, out), [of_inner, of_far].concat())
        } else {
            (far_value.dot_to(inner, &[], &pairs, out), [of_far, of_inner].concat())
        };
        let place_of = |axis: &usize| has.iter().position(|other| other == axis);
        let perm: Vec<usize> =
            wanted.iter().map(|axis| place_of(axis).expect("the same axes")).collect();
        let turned = outer.transpose(&perm);
        if self.factor == 1.0 { turned } else { turned * self.factor }
    }
}
