//! The known facts of each value before anything runs: all its elements where they are few, or the
//! one number that fills it.

use overdrive_ir::{
    Array, Builder, DType, Expr, Graph, Node, Operation, Prim, Reducer, Shape, Value,
};

/// Values with more elements than this are not computed ahead.
const LIMIT: usize = 1024;

/// Nodes with more operations than this are not computed ahead either: few elements may be much
/// work.
const WORK: u64 = 1 << 20;

/// Known values of a graph.
pub(super) struct Constants {
    /// Elements, rounded to the value's type.
    known: Vec<Option<Array>>,
    /// The scalar that fills the value.
    splat: Vec<Option<Array>>,
}

impl Constants {
    /// Nothing is known before `bind`.
    pub(super) fn of(graph: &Graph) -> Self {
        let none = || vec![None; graph.value_count()];
        let mut constants = Self { known: none(), splat: none() };
        if !graph.is_bound() {
            return constants;
        }
        for node in graph.nodes() {
            let [result] = node.results[..] else { continue };
            let known = constants.evaluate(graph, node, result);
            let filled = match &known {
                Some(array) => uniform(array),
                None => constants.fill(graph, node),
            };
            constants.known[result.0 as usize] = known;
            constants.splat[result.0 as usize] = filled;
        }
        constants
    }

    /// The number that fills a value.
    pub(super) fn splat(&self, value: Value) -> Option<f64> {
        self.splat[value.0 as usize].as_ref().map(|scalar| scalar.get(0))
    }

    fn evaluate(&self, graph: &Graph, node: &Node, result: Value) -> Option<Array> {
        let elements = graph.ty(result).elements();
        if let Some(Prim::Constant { value }) = node.op.prim() {
            return (elements <= LIMIT).then(|| Array::from(value));
        }
        let largest = node.operands.iter().map(|v| graph.ty(*v).elements()).max()?;
        if elements > LIMIT || elements > largest || !is_foldable(&node.op) {
            return None;
        }
        let known = |v: &Value| self.known[v.0 as usize].clone();
        let args = node.operands.iter().map(known).collect::<Option<Vec<Array>>>()?;
        if graph.node_cost(node).flops > WORK {
            return None;
        }
        Some(rounded(&node.op.eval(&args, &node.regions)[0]))
    }

    /// The scalar that fills the result, where scalars fill the operands.
    fn fill(&self, graph: &Graph, node: &Node) -> Option<Array> {
        let prim = node.op.prim()?;
        let filled = |v: &Value| self.splat[v.0 as usize].clone();
        let fills = node.operands.iter().map(filled).collect::<Option<Vec<Array>>>();
        match prim {
            Prim::Constant { value } => {
                let first = value.ty().dtype.bits().div_ceil(8);
                let same = value.ty().dtype.bits() >= 8
                    && value
                        .bytes()
                        .chunks(first)
                        .all(|element| element == &value.bytes()[..first]);
                (same && !value.bytes().is_empty()).then(|| {
                    let scalar = overdrive_ir::TensorType::scalar(value.ty().dtype);
                    let bytes = value.bytes()[..first].to_vec();
                    let scalar = overdrive_ir::Tensor::from_bytes(scalar, bytes);
                    Array::from(&scalar.expect("one element is as wide as its type"))
                })
            }
            _ if prim.is_elementwise() => Some(rounded(&node.op.eval(&fills?, &[])[0])),
            Prim::Broadcast { .. }
            | Prim::Reshape { .. }
            | Prim::Transpose { .. }
            | Prim::Slice { .. }
            | Prim::DynamicSlice { .. } => filled(&node.operands[0]),
            Prim::Pad { .. } | Prim::Concat { .. } | Prim::DynamicUpdateSlice => {
                let data =
                    if matches!(prim, Prim::DynamicUpdateSlice) { 2 } else { node.operands.len() };
                let parts =
                    node.operands[..data].iter().map(filled).collect::<Option<Vec<Array>>>()?;
                parts
                    .iter()
                    .all(|part| bits(part, 0) == bits(&parts[0], 0))
                    .then(|| parts[0].clone())
            }
            Prim::Reduce { reducer, .. } => {
                let elements = |v: Value| graph.ty(v).elements();
                let (all, left) = (elements(node.operands[0]), elements(node.results[0]));
                if all == 0 || left == 0 {
                    return None;
                }
                folded(*reducer, fills?.remove(0), all / left)
            }
            _ => None,
        }
    }

    /// A constant in place of `node`, unless it is one already.
    pub(super) fn replacement<'b>(
        &self,
        b: &'b Builder,
        graph: &Graph,
        node: &Node,
    ) -> Option<Expr<'b>> {
        let result = *node.results.first()?;
        let made_of = |v: &Value| graph.producer(*v).and_then(|n| n.op.prim());
        let done = match node.op.prim() {
            Some(Prim::Constant { .. }) => true,
            Some(Prim::Broadcast { .. }) => {
                let operand = &node.operands[0];
                graph.ty(*operand).rank() == 0
                    && matches!(made_of(operand), Some(Prim::Constant { .. }))
            }
            _ => false,
        };
        if done {
            return None;
        }
        if let Some(scalar) = &self.splat[result.0 as usize] {
            let shape = Shape::clone(&graph.ty(result).shape);
            return Some(b.constant(scalar.to_tensor()).broadcast_in(&shape, &[]));
        }
        self.known[result.0 as usize].as_ref().map(|array| b.constant(array.to_tensor()))
    }
}

/// The number that `count` copies of a number fold to, where that is exact but for one rounding.
fn folded(reducer: Reducer, scalar: Array, count: usize) -> Option<Array> {
    match reducer {
        Reducer::Sum if scalar.dtype.is_float() => {
            Some(rounded(&Array::float(scalar.dtype, &[], vec![scalar.get(0) * count as f64])))
        }
        Reducer::Sum => Some(Array::int(scalar.dtype, &[], vec![scalar.ints()[0] * count as i128])),
        Reducer::Prod if scalar.dtype.is_float() => {
            Some(rounded(&Array::float(scalar.dtype, &[], vec![scalar.get(0).powf(count as f64)])))
        }
        Reducer::Prod => (scalar.get(0) == 1.0).then_some(scalar),
        Reducer::Max | Reducer::Min | Reducer::And | Reducer::Or => Some(scalar),
    }
}

/// Everything that depends on its operands alone and is cheap to compute.
fn is_foldable(op: &Operation) -> bool {
    match op.prim() {
        Some(prim) => {
            let effect = matches!(prim, Prim::RankIndex { .. } | Prim::RandomBits { .. });
            let control = matches!(prim, Prim::If | Prim::While { .. });
            prim.channel().is_none() && !effect && !control
        }
        None => true,
    }
}

/// As a back end would hold it.
fn rounded(array: &Array) -> Array {
    Array::from(&array.to_tensor())
}

fn uniform(array: &Array) -> Option<Array> {
    let first = (!array.is_empty()).then(|| array.rearrange(&[], |_| 0))?;
    (1..array.len()).all(|i| bits(array, i) == bits(array, 0)).then_some(first)
}

/// The key that tells an element from every other: zeros have a sign, and NaN is itself.
fn bits(array: &Array, i: usize) -> i128 {
    match array.dtype {
        dtype if dtype.is_float() => array.get(i).to_bits() as i128,
        DType::Bool => array.get(i) as i128,
        _ => array.ints()[i],
    }
}
