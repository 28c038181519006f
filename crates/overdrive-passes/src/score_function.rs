//! Everything between a product of queries and keys and a softmax, read as a function of one score.
//!
//! Padding masks and biases are data, so no pass can know what they hide or add. Operands that do
//! not come from the product become captured tensors, read in their shape before broadcasting.
//! Scores then never exist as a whole. Source: Dong et al., "Flex attention", arXiv:2412.05496.

use overdrive_ir::ops::Embedding;
use overdrive_ir::ops::attention::{mask_region, score_region};
use overdrive_ir::{
    Binary, DotGeneral, Expr, Graph, GraphError, Init, Node, Origin, Precision, Prim, Tensor,
    TensorType, Value,
};

/// The scores of attention `[B, H, Tq, Tk]` as a function of the product.
pub(crate) struct ScoreFunction {
    pub(crate) product: Value,
    /// Factor on the product, which the op applies.
    pub(crate) scale: f64,
    scores: ScoreExpr,
    /// Whether the pair is visible at all.
    visible: Option<ScoreExpr>,
    pub(crate) captures: Vec<Value>,
    /// Values from the scores to the product.
    pub(crate) interior: Vec<Value>,
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
    /// At a pair; `score` is its scaled product.
    fn at<'b>(
        &self,
        score: Option<Expr<'b>>,
        index: [Expr<'b>; 4],
        captures: &[Expr<'b>],
    ) -> Expr<'b> {
        let b = index[0].builder();
        match self {
            Self::Product => score.expect("visibility does not depend on the product"),
            Self::Constant(value) => b.op1(Prim::Constant { value: value.clone() }, &[]),
            Self::Read(capture, dimensions) => {
                let first = index[0].constant(0.0);
                let at = |d: &Option<usize>| d.map_or(first, |d| index[d]);
                captures[*capture].at(&dimensions.iter().map(at).collect::<Vec<_>>())
            }
            Self::Elementwise(prim, operands) => {
                let operands: Vec<Expr<'b>> =
                    operands.iter().map(|o| o.at(score, index, captures)).collect();
                b.op1(prim.clone(), &operands)
            }
        }
    }

    fn has_product(&self) -> bool {
        match self {
            Self::Product => true,
            Self::Elementwise(_, operands) => operands.iter().any(Self::has_product),
            Self::Constant(_) | Self::Read(..) => false,
        }
    }

    /// Whether it may be -∞ by other than the product.
    fn may_hide(&self, graph: &Graph, captures: &[Value]) -> bool {
        match self {
            Self::Product => false,
            Self::Constant(number) => number.to_f64() == [f64::NEG_INFINITY],
            Self::Read(capture, _) => !is_finite(graph, captures[*capture]),
            Self::Elementwise(_, operands) => operands.iter().any(|o| o.may_hide(graph, captures)),
        }
    }
}

impl ScoreFunction {
    /// That of the operand of a softmax, where one product of heads is all that it comes from.
    pub(crate) fn of(graph: &Graph, scores: Value, uses: &[usize]) -> Option<Self> {
        let product = product(graph, scores)?;
        let is_read_once = uses[product.0 as usize] == 1;
        let mut reader =
            Reader { graph, product, is_read_once, scale: 1.0, captures: vec![], interior: vec![] };
        let read = reader.scores(scores)?;
        let (scores, visible) = split(read);
        let Reader { scale, captures, mut interior, .. } = reader;
        interior.push(product);
        Some(Self { product, scale, scores, visible, captures, interior })
    }

    /// Whether all scores of a row may be -∞ by other than the product. Their softmax is then no
    /// number, and their attention 0.
    pub(crate) fn may_hide(&self, graph: &Graph) -> bool {
        self.visible.is_some() || self.scores.may_hide(graph, &self.captures)
    }

    /// The score and the mask function, as far as it takes them.
    pub(crate) fn regions(&self, graph: &Graph) -> Result<Vec<Graph>, GraphError> {
        let types: Vec<TensorType> = self.captures.iter().map(|&v| graph.ty(v).clone()).collect();
        let score = (!matches!(self.scores, ScoreExpr::Product)).then(|| {
            score_region(graph.ty(self.product).dtype, &types, |score, index, captures| {
                self.scores.at(Some(score), index, captures)
            })
        });
        let mask = self.visible.as_ref().map(|visible| {
            mask_region(&types, |index, captures| visible.at(None, index, captures))
        });
        score.into_iter().chain(mask).collect()
    }
}

/// A score, and apart from it the condition without which it is -∞: kernels skip what is hidden.
fn split(read: ScoreExpr) -> (ScoreExpr, Option<ScoreExpr>) {
    let is_hidden = |part: &ScoreExpr| match part {
        ScoreExpr::Constant(number) => number.to_f64() == [f64::NEG_INFINITY],
        _ => false,
    };
    match read {
        ScoreExpr::Elementwise(Prim::Select, parts)
            if is_hidden(&parts[2]) && !parts[0].has_product() =>
        {
            let mut parts = parts.into_iter();
            let visible = parts.next();
            (parts.next().expect("a selection has three parts"), visible)
        }
        other => (other, None),
    }
}

/// A product of matrices, one for each head of each sequence, that sums over the left one's columns
/// and takes no shortcut.
pub(crate) fn heads(node: &Node) -> Option<&DotGeneral> {
    let Some(Prim::DotGeneral(dot)) = node.op.prim() else { return None };
    let fits = dot.batch == [(0, 0), (1, 1)] && dot.contract.len() == 1 && dot.contract[0].0 == 3;
    (fits && dot.precision == Precision::Exact).then_some(dot)
}

/// The one number that a value consists of.
pub(crate) fn constant(graph: &Graph, value: Value) -> Option<&Tensor> {
    let node = graph.producer(value)?;
    match node.op.prim()? {
        Prim::Constant { value } if value.ty().rank() == 0 => Some(value),
        Prim::Broadcast { .. } => constant(graph, node.operands[0]),
        _ => None,
    }
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

/// Whether all elements are finite whatever the inputs are. Training keeps finite weights finite.
fn is_finite(graph: &Graph, value: Value) -> bool {
    if !graph.ty(value).dtype.is_float() {
        return true;
    }
    let node = match graph.origin(value) {
        Origin::Input(_) => return false,
        Origin::State(i) => {
            return match &graph.states()[i].init {
                Init::Value(tensor) | Init::Widened(tensor) => {
                    tensor.to_f64().iter().all(|x| x.is_finite())
                }
                Init::Constant(number) => number.is_finite(),
                _ => true,
            };
        }
        Origin::Node(at, _) => graph.node(at),
    };
    if node.op.composite::<Embedding>().is_some() {
        return is_finite(graph, node.operands[0]);
    }
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
        )
        | (Some(Prim::Gather { .. }), &[x, _]) => is_finite(graph, x),
        (Some(Prim::Select), &[_, a, b]) => is_finite(graph, a) && is_finite(graph, b),
        _ => false,
    }
}
