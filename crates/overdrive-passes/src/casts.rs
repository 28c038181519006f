//! `casts`: a `cast_transpose` takes in the work around it, where the device has a kernel for that.
//!
//! - Sums down the columns of x, the gradients of biases, become sums of bands of the same launch,
//!   which a small loop adds up.
//! - Elementwise work by which x is computed, and which nothing else needs, becomes a region of the
//!   cast. A GELU behind a product and its gradient are such work. A product of codes is so fast
//!   that its epilogue would take as long as itself, while a cast waits for memory.
//!
//! Invariant: a region reads tensors of 16 bits that are stored anyway, so that no byte more is
//! written.

mod lead;
#[cfg(test)]
mod tests;

use crate::dce::dce;
use crate::readers::Readers;
use lead::lead;
use overdrive_ir::ops::CastTranspose;
use overdrive_ir::{
    Builder, Call, Expr, Graph, GraphError, Node, Operation, Origin, Prim, Reducer, Target,
    TensorType, Value,
};
use std::collections::HashMap;

/// A cast, and the work that it takes in.
struct Cast<'g> {
    node: &'g Node,
    /// The tensors that x is computed from, or x alone, before they are matrices.
    of: Vec<Value>,
    region: Option<Graph>,
    /// Values that are sums of its columns, of the type of sums.
    sums: Vec<Value>,
}

impl Cast<'_> {
    fn op(&self) -> CastTranspose {
        let op = self.node.op.composite::<CastTranspose>().expect("it is a cast");
        CastTranspose { sums: !self.sums.is_empty(), ..*op }
    }

    /// Whether it differs from the node, and the device has a kernel for it.
    fn is_taken(&self, graph: &Graph, target: &dyn Target) -> bool {
        let [x, scales @ ..] = &self.node.operands[..] else { return false };
        let x = graph.ty(*x);
        let matrix = |v: &Value| x.with_dtype(graph.ty(*v).dtype);
        let scales = scales.iter().map(|v| graph.ty(*v).clone());
        let operands: Vec<TensorType> = self.of.iter().map(matrix).chain(scales).collect();
        let (op, regions) = (Operation::from(self.op()), self.region.as_slice());
        let differs = self.region.is_some() || !self.sums.is_empty();
        differs
            && target
                .kernel(&Call::Op { op: &op, operands: &operands, regions, wanted: &[] })
                .is_ok()
    }

    /// Its results in a new graph, where the values of the old one are as `get` gives them. x has
    /// these sizes.
    fn build<'b>(
        &self,
        b: &'b Builder,
        sizes: [usize; 2],
        get: &dyn Fn(Value) -> Expr<'b>,
    ) -> Vec<Expr<'b>> {
        let _scope = b.scope_path(&self.node.scope);
        let matrix = |v: &Value| get(*v).reshape(sizes);
        let scales = self.node.operands[1..].iter().map(|v| get(*v));
        let operands: Vec<Expr<'b>> = self.of.iter().map(matrix).chain(scales).collect();
        b.node(self.op(), &operands, self.region.iter().cloned().collect())
    }
}

/// The graph with casts that have taken in what stands around them.
pub(crate) fn casts(graph: &Graph, target: &dyn Target) -> Result<Graph, GraphError> {
    let readers = Readers::of(graph);
    let taken = |node| of_node(graph, node, &readers).find(|cast| cast.is_taken(graph, target));
    let is_cast = |node: &&Node| {
        node.op.composite::<CastTranspose>().is_some_and(|op| !op.sums) && node.regions.is_empty()
    };
    let casts: Vec<Cast<'_>> = graph.nodes().iter().filter(is_cast).filter_map(taken).collect();
    if casts.is_empty() {
        return Ok(graph.clone());
    }
    // The casts by their own results and by the sums that come of them.
    let mut of: HashMap<Value, usize> = HashMap::new();
    for (i, cast) in casts.iter().enumerate() {
        of.extend(cast.sums.iter().chain(&cast.node.results[..1]).map(|v| (*v, i)));
    }
    let b = Builder::new(graph.name());
    let mut map: HashMap<Value, Expr<'_>> = b.declare(graph).into_iter().collect();
    let mut built: HashMap<usize, Vec<Expr<'_>>> = HashMap::new();
    for node in graph.nodes() {
        let Some(&i) = of.get(&node.results[0]) else {
            let operands: Vec<Expr<'_>> = node.operands.iter().map(|v| map[v]).collect();
            map.extend(node.results.iter().copied().zip(b.again(node, &operands)));
            continue;
        };
        let cast = &casts[i];
        let sizes = graph.ty(cast.node.operands[0]).sizes();
        let build = || cast.build(&b, [sizes[0], sizes[1]], &|v| map[&v]);
        let results = built.entry(i).or_insert_with(build).clone();
        if std::ptr::eq(node, cast.node) {
            map.extend(node.results.iter().copied().zip(results));
        } else {
            let _scope = b.scope_path(&node.scope);
            let sum = results[CastTranspose::SUMS].reduce(Reducer::Sum, &[0]);
            map.insert(node.results[0], sum);
        }
    }
    b.conclude(graph, |v| map[&v]);
    dce(&b.finish()?)
}

/// The forms that a cast may take, the best first.
fn of_node<'g>(
    graph: &'g Graph,
    node: &'g Node,
    readers: &Readers,
) -> impl Iterator<Item = Cast<'g>> {
    // x before it was made a matrix.
    let x = node.operands[0];
    let wide =
        graph.producer(x).filter(|node| matches!(node.op.prim(), Some(Prim::Reshape { .. })));
    let wide = wide.map_or(x, |node| node.operands[0]);
    let is_matrix = graph.ty(wide).sizes().last() == graph.ty(x).sizes().last();
    let mut seen = vec![node.results[0]];
    let sums =
        if is_matrix { column_sums(graph, (node, wide), readers, &mut seen) } else { vec![] };
    // Nodes that read nothing more once sums come of the cast, and the one that makes `wide` x.
    seen.push(x);
    let is_read = |v: Value| {
        let mut nodes = readers.nodes(v).iter();
        readers.is_kept(v) || nodes.any(|id| !seen.contains(&graph.node(*id).results[0]))
    };
    let led = (!is_read(wide) && !is_read(x)).then(|| lead(graph, wide, x));
    let led = led.flatten().map(|(of, region)| (of, Some(region)));
    let plain = (vec![wide], None);
    let leads: Vec<_> = led.into_iter().chain([plain]).collect();
    leads.into_iter().map(move |(of, region)| Cast { node, of, region, sums: sums.clone() })
}

/// Values that are sums of the columns of `wide`, in the type of sums. The scales of the cast must
/// be there before them. `seen` gets the first results of nodes that then need not read `wide`.
fn column_sums(
    graph: &Graph,
    (cast, wide): (&Node, Value),
    readers: &Readers,
    seen: &mut Vec<Value>,
) -> Vec<Value> {
    let sum = graph.ty(wide).dtype.accumulation();
    let leading: Vec<usize> = (0..graph.ty(wide).rank() - 1).collect();
    let id = |v: Value| match graph.origin(v) {
        Origin::Node(id, _) => Some(id),
        _ => None,
    };
    let is_sum = |node: &Node| {
        let Some(Prim::Reduce { reducer: Reducer::Sum, axes }) = node.op.prim() else {
            return false;
        };
        let is_before = |scale: &Value| id(*scale) < id(node.results[0]);
        *axes == leading && cast.operands[1..].iter().all(is_before)
    };
    let widens = |node: &Node| {
        matches!(node.op.prim(), Some(Prim::Convert { .. }))
            && graph.ty(node.results[0]).dtype == sum
    };
    let mut sums = Vec::new();
    for node in readers.nodes(wide).iter().map(|id| graph.node(*id)) {
        let result = node.results[0];
        // Sums, each of which widens afterwards, or was widened before.
        let of_result = readers.nodes(result).iter().filter(|_| !readers.is_kept(result));
        let inner: Vec<&Node> = of_result.map(|id| graph.node(*id)).collect();
        let of: Vec<Value> = if is_sum(node) && graph.ty(result).dtype == sum {
            vec![result]
        } else if (is_sum(node) && inner.iter().all(|node| widens(node)))
            || (widens(node) && inner.iter().all(|node| is_sum(node)))
        {
            inner.iter().map(|node| node.results[0]).collect()
        } else {
            continue;
        };
        if !of.is_empty() {
            seen.push(result);
            sums.extend(of);
        }
    }
    sums
}
