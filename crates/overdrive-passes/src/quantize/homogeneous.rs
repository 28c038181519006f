//! Follows channels from the layer that makes them to the layers that read them, through functions
//! that a positive factor passes: `f(s x) = s f(x)`.
//!
//! ReLU, leaky ReLU, pooling and reshapes are such functions, GELU and a clip at 6 are not. No op
//! is asked for by its name: rules for primitives decide, on the expansion of each op. Invariant:
//! if readers are found, nothing else reads the channels. So a factor of a channel can be taken out
//! at the one end and put in at the other.

use overdrive_ir::{Binary, Graph, Node, NodeId, Operation, Pad, Prim, Reducer, Unary, Value};

/// How a value follows from channels that are scaled.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Follows {
    /// No positive factor changes it.
    Not,
    /// The same, and all of it is 0.
    Zero,
    /// It has the factors of the channels along an axis. Each channel is `spread` neighbours there.
    Channels { axis: usize, spread: usize },
}

impl Follows {
    fn has_channels(self) -> bool {
        matches!(self, Follows::Channels { .. })
    }
}

/// A layer's product that reads scaled channels.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct ChannelReader {
    /// The product, whose first operand they are.
    pub(super) node: NodeId,
    /// Inputs of the layer that share a channel.
    pub(super) spread: usize,
}

/// A graph in which channels are followed.
pub(super) struct Followed<'g> {
    graph: &'g Graph,
    /// Values before any is scaled.
    before: Vec<Follows>,
}

impl<'g> Followed<'g> {
    pub(super) fn new(graph: &'g Graph) -> Self {
        Self { graph, before: beginning(graph) }
    }

    /// The products that read the channels along `axis` of a value, if nothing else does. `reads`
    /// gives the axis that a product of a layer sums over.
    pub(super) fn readers(
        &self,
        (value, axis): (Value, usize),
        reads: &dyn Fn(NodeId) -> Option<usize>,
    ) -> Option<Vec<ChannelReader>> {
        let graph = self.graph;
        let mut known = self.before.clone();
        known[value.0 as usize] = Follows::Channels { axis, spread: 1 };
        let mut found = Vec::new();
        for (index, node) in graph.nodes().iter().enumerate() {
            if !node.operands.iter().any(|v| known[v.0 as usize].has_channels()) {
                continue;
            }
            let id = NodeId(index as u32);
            let others = || node.operands[1..].iter().any(|v| known[v.0 as usize].has_channels());
            match (reads(id), known[node.operands[0].0 as usize]) {
                (Some(summed), Follows::Channels { axis, spread })
                    if summed == axis && !others() =>
                {
                    found.push(ChannelReader { node: id, spread });
                }
                (Some(_), _) => return None,
                (None, _) => pass(graph, node, &mut known)?,
            }
        }
        let updates = graph.states().iter().filter_map(|state| state.update);
        let mut shown = graph.outputs().iter().map(|port| port.value).chain(updates);
        let is_shown = shown.any(|v| known[v.0 as usize].has_channels());
        (!is_shown && !found.is_empty()).then_some(found)
    }
}

/// Values before any is scaled: none follows, and constants may be 0.
fn beginning(graph: &Graph) -> Vec<Follows> {
    let mut known = vec![Follows::Not; graph.value_count()];
    for node in graph.nodes() {
        let zero = match node.op.prim() {
            Some(Prim::Constant { value }) => value.to_f64().iter().all(|x| *x == 0.0),
            Some(Prim::Broadcast { .. } | Prim::Reshape { .. } | Prim::Convert { .. }) => {
                known[node.operands[0].0 as usize] == Follows::Zero
            }
            _ => false,
        };
        if zero {
            known[node.results[0].0 as usize] = Follows::Zero;
        }
    }
    known
}

/// Notes how the results of a node follow; `None` where factors do not pass.
fn pass(graph: &Graph, node: &Node, known: &mut [Follows]) -> Option<()> {
    let operands: Vec<Follows> = node.operands.iter().map(|v| known[v.0 as usize]).collect();
    let results = match &node.op {
        _ if !node.regions.is_empty() => return None,
        Operation::Prim(prim) => vec![primitive(prim, graph, node, &operands)?],
        Operation::Composite(_) => {
            let flat = node.op.expansion(&graph.types(&node.operands), &[]);
            let mut inner = beginning(&flat);
            for (port, follows) in flat.inputs().iter().zip(&operands) {
                inner[port.value.0 as usize] = *follows;
            }
            for node in flat.nodes() {
                if node.operands.iter().any(|v| inner[v.0 as usize].has_channels()) {
                    pass(&flat, node, &mut inner)?;
                }
            }
            flat.outputs().iter().map(|port| inner[port.value.0 as usize]).collect()
        }
    };
    node.results.iter().zip(results).for_each(|(v, result)| known[v.0 as usize] = result);
    Some(())
}

/// How the result of a primitive follows, one of whose operands has channels.
fn primitive(prim: &Prim, graph: &Graph, node: &Node, operands: &[Follows]) -> Option<Follows> {
    use Follows::{Channels, Not, Zero};
    match (prim, operands) {
        (Prim::Unary { kind: Unary::Neg | Unary::Abs }, &[x]) => Some(x),
        (Prim::Unary { kind: Unary::Sign }, _) => Some(Not),
        (Prim::Convert { to, .. }, &[x]) if to.is_arithmetic_float() => Some(x),
        (Prim::Binary { kind }, &[a, b]) => match kind {
            Binary::Add | Binary::Sub | Binary::Max | Binary::Min => alike(a, b),
            Binary::Mul if a == Not || b == Not => Some(if a == Not { b } else { a }),
            Binary::Div if b == Not => Some(a),
            _ => None,
        },
        // Which of two is larger stays as it is.
        (Prim::Compare { .. }, &[a, b]) => alike(a, b).map(|_| Not),
        (Prim::Select, &[Not | Zero, yes, no]) => alike(yes, no),
        (_, &[Channels { axis, spread }, ref others @ ..]) => {
            let [from, to] = [node.operands[0], node.results[0]].map(|v| graph.ty(v).shape.known());
            let (from, to) = (from?, to?);
            moved(prim, (axis, spread), others, [&from, &to])
        }
        _ => None,
    }
}

/// How a sum, a maximum or a choice of two values follows.
fn alike(a: Follows, b: Follows) -> Option<Follows> {
    match (a, b) {
        (Follows::Zero, other) | (other, Follows::Zero) => Some(other),
        (a, b) => (a == b).then_some(a),
    }
}

/// The channels after a primitive that moves or folds elements from one shape to another.
fn moved(
    prim: &Prim,
    (axis, spread): (usize, usize),
    others: &[Follows],
    [from, to]: [&[usize]; 2],
) -> Option<Follows> {
    let at = |axis: usize| Some(Follows::Channels { axis, spread });
    let folds = |reducer: &Reducer| matches!(reducer, Reducer::Sum | Reducer::Max | Reducer::Min);
    match prim {
        Prim::Broadcast { dims, .. } => {
            let placed = *dims.get(axis)?;
            if to[placed] == from[axis] { at(placed) } else { None }
        }
        Prim::Transpose { perm } => at(perm.iter().position(|&p| p == axis)?),
        Prim::Slice { .. } if to[axis] == from[axis] => at(axis),
        Prim::Pad { pads } if others == [Follows::Zero] && pads[axis] == Pad::default() => at(axis),
        Prim::Reduce { reducer, axes } if folds(reducer) && !axes.contains(&axis) => {
            at(axis - axes.iter().filter(|&&folded| folded < axis).count())
        }
        Prim::ReduceWindow { reducer, windows } if folds(reducer) => {
            let w = windows[axis];
            let alone = (w.size, w.stride, w.pad_low, w.pad_high) == (1, 1, 0, 0);
            if alone { at(axis) } else { None }
        }
        Prim::Reshape { .. } => {
            let before: usize = from[..axis].iter().product();
            let behind = spread * from[axis + 1..].iter().product::<usize>();
            let channels = from[axis] / spread;
            (0..to.len()).find_map(|axis| {
                let (first, rest) = (to[..axis].iter().product::<usize>(), &to[axis + 1..]);
                let rest: usize = rest.iter().product();
                let spread = behind.checked_div(rest).filter(|spread| spread * rest == behind)?;
                let fits = first == before && to[axis] == channels * spread && spread > 0;
                fits.then_some(Follows::Channels { axis, spread })
            })
        }
        _ => None,
    }
}
