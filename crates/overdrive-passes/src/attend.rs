//! Attend: `softmax(f(q kᵀ)) v` becomes attention with a score function, where the device has a
//! kernel for it.
//!
//! Padding masks are data, so no pass can know what they hide. So everything between the product
//! and the softmax is read as a function of one score. Operands that do not come from the product
//! become captured tensors, read in their shape before broadcasting. Scores then never exist as a
//! whole. Source: Dong et al., "Flex attention", arXiv:2412.05496. Invariant: a row whose scores
//! are all -∞ is either guarded or impossible, because its softmax is NaN and its attention 0.

mod operand;

use crate::nan_guard::nan_guard;
use crate::rebuild::{rebuild, regions};
use operand::{Operand, constant};
use overdrive_ir::ops::attention::score_region;
use overdrive_ir::ops::{Attention, Softmax};
use overdrive_ir::{
    Binary, Call, DType, DotGeneral, Expr, Graph, GraphError, Node, Operation, Precision, Prim,
    Target, Tensor, Value,
};
use std::collections::HashMap;

/// The graph with attention in place of products around a softmax; as it is, for a device that has
/// no kernel for it.
pub(crate) fn attend(graph: &Graph, target: &dyn Target) -> Result<Graph, GraphError> {
    let op = Operation::from(Attention::FULL);
    let any = [score_region(DType::F32, &[], |score, _, _| score)?];
    if target.kernel(&Call::Op { op: &op, operands: &[], regions: &any }).is_err() {
        return Ok(graph.clone());
    }
    let uses = graph.use_counts();
    let found: HashMap<Value, AttentionProducts> = graph
        .nodes()
        .iter()
        .filter_map(|node| Some((node.results[0], find(graph, node, &uses)?)))
        .filter(|(result, found)| found.is_private(graph, *result, &uses))
        .collect();
    if found.is_empty() {
        return Ok(graph.clone());
    }
    rebuild(graph, &Clone::clone, &mut |place| {
        let Some(found) = place.node.results.first().and_then(|v| found.get(v)) else {
            return Ok(place.keep(regions(place.node, |region| Ok(region.clone()))?));
        };
        let captures: Vec<Expr<'_>> = found.captures.iter().map(|&v| place.get(v)).collect();
        let types: Vec<_> = found.captures.iter().map(|&v| graph.ty(v).clone()).collect();
        let scores = graph.ty(found.product).dtype;
        let region = match &found.scores {
            ScoreExpr::Product => vec![],
            f => vec![score_region(scores, &types, |score, index, captures| {
                f.at(score, index, captures)
            })?],
        };
        let [q, k, v] = found.operands.each_ref().map(|(operand, turned)| match turned {
            true => operand.get(graph, place).transpose(&[0, 1, 3, 2]),
            false => operand.get(graph, place),
        });
        let attention = Attention { scale: Some(found.scale), ..Attention::FULL };
        Ok(vec![q.attention_with([k, v], attention, region, &captures)[0]])
    })
}

/// Attention as products around a softmax.
struct AttentionProducts {
    /// q, k, v, and whether the last two dimensions are the other way around.
    operands: [(Operand, bool); 3],
    product: Value,
    scale: f64,
    scores: ScoreExpr,
    captures: Vec<Value>,
    /// Values that attention does not need.
    interior: Vec<Value>,
}

/// The parts of a score.
enum ScoreExpr {
    /// The scaled product of a query and a key.
    Product,
    Constant(Tensor),
    /// An element of a capture; a dimension that has none of the four indices has one element.
    Read(usize, Vec<Option<usize>>),
    Elementwise(Prim, Vec<ScoreExpr>),
}

impl ScoreExpr {
    fn at<'b>(&self, score: Expr<'b>, index: [Expr<'b>; 4], captures: &[Expr<'b>]) -> Expr<'b> {
        match self {
            Self::Product => score,
            Self::Constant(value) => {
                score.builder().op1(Prim::Constant { value: value.clone() }, &[])
            }
            Self::Read(capture, dimensions) => {
                let first = index[0].constant(0.0);
                let at = |d: &Option<usize>| d.map_or(first, |d| index[d]);
                captures[*capture].at(&dimensions.iter().map(at).collect::<Vec<_>>())
            }
            Self::Elementwise(prim, operands) => {
                let operands: Vec<Expr<'b>> =
                    operands.iter().map(|o| o.at(score, index, captures)).collect();
                score.builder().op1(prim.clone(), &operands)
            }
        }
    }
}

impl AttentionProducts {
    /// Whether nothing but the attention needs what is within.
    fn is_private(&self, graph: &Graph, result: Value, uses: &[usize]) -> bool {
        let mut within: HashMap<Value, usize> = HashMap::new();
        for &value in self.interior.iter().chain([&result]) {
            let node = graph.producer(value).expect("what is within is computed");
            node.operands.iter().for_each(|&v| *within.entry(v).or_default() += 1);
        }
        self.interior.iter().all(|v| within.get(v) == Some(&uses[v.0 as usize]))
    }
}

/// The attention that `root` computes, if nobody else sees its scores.
fn find(graph: &Graph, root: &Node, uses: &[usize]) -> Option<AttentionProducts> {
    // The op itself rounds its sum to the type of the operands.
    let rounded = matches!(root.op.prim(), Some(Prim::Convert { .. }));
    let node = if rounded { graph.producer(root.operands[0])? } else { root };
    let weighted = heads(node)?;
    let mut interior = vec![node.operands[0]];
    interior.extend(rounded.then_some(root.operands[0]));
    let mut weights = graph.producer(node.operands[0])?;
    if let Some(Prim::Convert { .. }) = weights.op.prim() {
        interior.push(weights.operands[0]);
        weights = graph.producer(weights.operands[0])?;
    }
    let is_zero = |value: Value| constant(graph, value).is_some_and(|zero| zero.to_f64() == [0.0]);
    let guarded = nan_guard(graph, weights).filter(|&[_, zero, _]| is_zero(zero));
    if let Some([guard, _, inner]) = guarded {
        interior.extend([guard, inner]);
        weights = graph.producer(inner)?;
    }
    if weights.op.composite::<Softmax>()?.axis != 3 {
        return None;
    }
    let top = weights.operands[0];
    let product = product(graph, top)?;
    let compared = graph.producer(product)?;
    let pairs = heads(compared)?;
    let is_read_once = uses[product.0 as usize] == 1;
    let mut reader =
        Reader { graph, product, is_read_once, scale: 1.0, captures: vec![], interior };
    let scores = reader.scores(top)?;
    let Reader { scale, captures, mut interior, .. } = reader;
    interior.push(product);
    let dtype = graph.ty(root.results[0]).dtype;
    let matrices = [compared.operands[0], compared.operands[1], node.operands[1]];
    let plain = matrices.iter().all(|v| graph.ty(*v).dtype == dtype && graph.ty(*v).rank() == 4)
        && graph.ty(product).dtype == dtype.accumulation()
        && dtype.is_float();
    let safe = guarded.is_some() || !may_hide(graph, &scores, &captures);
    let [q, k] = [0, 1].map(|i| Operand::unscaled(graph, matrices[i]));
    let scale = scale * q.factor * k.factor;
    let operands = [
        (q, false),
        (k, pairs.contract[0].1 == 2),
        (Operand::whole(matrices[2]), weighted.contract[0].1 == 3),
    ];
    (plain && safe).then_some(AttentionProducts {
        operands,
        product,
        scale,
        scores,
        captures,
        interior,
    })
}

/// A product of matrices, one for each head of each sequence, that sums over the left one's columns
/// and takes no shortcut.
fn heads(node: &Node) -> Option<&DotGeneral> {
    let Some(Prim::DotGeneral(dot)) = node.op.prim() else { return None };
    let fits = dot.batch == [(0, 0), (1, 1)] && dot.contract.len() == 1 && dot.contract[0].0 == 3;
    (fits && dot.precision == Precision::Exact).then_some(dot)
}

/// The only product that a value is computed from element by element.
fn product(graph: &Graph, value: Value) -> Option<Value> {
    let node = graph.producer(value)?;
    if heads(node).is_some() {
        return Some(value);
    }
    let operands = node.operands.iter().filter(|_| node.op.prim().is_some_and(is_elementwise));
    let mut found = operands.filter_map(|&v| product(graph, v));
    let first = found.next()?;
    found.all(|other| other == first).then_some(first)
}

fn is_elementwise(prim: &Prim) -> bool {
    use Prim::{Binary, Compare, Convert, Select, Unary};
    matches!(prim, Unary { .. } | Binary { .. } | Compare { .. } | Select | Convert { .. })
}

/// Reads the scores back to their product.
struct Reader<'g> {
    graph: &'g Graph,
    product: Value,
    is_read_once: bool,
    scale: f64,
    captures: Vec<Value>,
    interior: Vec<Value>,
}

impl Reader<'_> {
    fn scores(&mut self, value: Value) -> Option<ScoreExpr> {
        let graph = self.graph;
        if value == self.product {
            return Some(ScoreExpr::Product);
        }
        let node = graph.producer(value);
        let Some(node) = node.filter(|_| product(graph, value) == Some(self.product)) else {
            return Some(self.read(value));
        };
        if !self.interior.contains(&value) {
            self.interior.push(value);
        }
        let prim = node.op.prim().expect("only primitives lead to the product");
        if let (Prim::Binary { kind: Binary::Mul }, &[a, b]) = (prim, &node.operands[..]) {
            let factor = |x, c| (x == self.product).then(|| constant(graph, c)).flatten();
            let factor = factor(a, b).or_else(|| factor(b, a)).map(|c| c.to_f64()[0]);
            // It is the op's own scale; kernels take their maximum before a positive one.
            if let Some(factor) = factor.filter(|&c| c > 0.0 && self.is_read_once) {
                self.scale = factor;
                return Some(ScoreExpr::Product);
            }
        }
        let operands = node.operands.iter().map(|&v| self.scores(v));
        Some(ScoreExpr::Elementwise(prim.clone(), operands.collect::<Option<_>>()?))
    }

    /// A value that does not come from the product, read in its shape before broadcasting.
    fn read(&mut self, value: Value) -> ScoreExpr {
        if let Some(number) = constant(self.graph, value) {
            return ScoreExpr::Constant(number.clone());
        }
        let (source, dims) = match self.graph.producer(value).map(|node| (node, node.op.prim())) {
            Some((node, Some(Prim::Broadcast { dims, .. }))) => (node.operands[0], dims.clone()),
            _ => (value, (0..4).collect()),
        };
        let sizes = self.graph.ty(source).sizes();
        let index = dims.iter().zip(sizes).map(|(&d, size)| (size != 1).then_some(d)).collect();
        let known = self.captures.iter().position(|&v| v == source);
        let capture = known.unwrap_or_else(|| {
            self.captures.push(source);
            self.captures.len() - 1
        });
        ScoreExpr::Read(capture, index)
    }
}

/// Whether a score may become -∞ by other than its product.
fn may_hide(graph: &Graph, scores: &ScoreExpr, captures: &[Value]) -> bool {
    match scores {
        ScoreExpr::Product => false,
        ScoreExpr::Constant(number) => number.to_f64() == [f64::NEG_INFINITY],
        ScoreExpr::Read(capture, _) => !is_finite(graph, captures[*capture]),
        ScoreExpr::Elementwise(_, operands) => {
            operands.iter().any(|o| may_hide(graph, o, captures))
        }
    }
}

/// Whether all elements are finite whatever the inputs are.
fn is_finite(graph: &Graph, value: Value) -> bool {
    if !graph.ty(value).dtype.is_float() {
        return true;
    }
    let Some(node) = graph.producer(value) else { return false };
    match (node.op.prim(), &node.operands[..]) {
        (Some(Prim::Constant { value }), _) => value.to_f64().iter().all(|x| x.is_finite()),
        (
            Some(
                Prim::Broadcast { .. }
                | Prim::Reshape { .. }
                | Prim::Transpose { .. }
                | Prim::Slice { .. },
            ),
            &[x],
        ) => is_finite(graph, x),
        (Some(Prim::Select), &[_, a, b]) => is_finite(graph, a) && is_finite(graph, b),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
