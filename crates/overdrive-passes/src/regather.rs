//! Regather: values that ranks gather from states are gathered anew for each reader that is far
//! from the one before.
//!
//! Parameters that ranks share out (ZeRO-3, "fully sharded data parallel": Zhao et al., 2023) are
//! gathered to be read. The backward part reads them long after the forward part has. If one
//! gathered value served both, all parameters would be whole on each rank at the end of the
//! forward part. States are there from the start, so gathering again costs bytes on the wire and
//! nothing else. Readers with hardly anything gathered between them share one value. It runs after
//! `rematerialize`, whose clones read what is gathered too. Invariant: each collective has a
//! channel of its own, the same on all ranks.

use overdrive_ir::{Builder, Channel, Expr, Graph, GraphError, Node, Prim, Value};
use std::collections::HashMap;

/// Gathers again for readers between which more than `near` bytes are gathered.
pub(crate) fn regather(graph: &Graph, near: usize) -> Result<Graph, GraphError> {
    let b = Builder::new(graph.name());
    let channels = graph.nodes().iter().filter_map(|node| node.op.prim()?.channel());
    let mut copy = Rewritten {
        b: &b,
        graph,
        is_gathered: gathered(graph),
        map: b.declare(graph).into_iter().collect(),
        last: HashMap::new(),
        bytes: 0,
        near,
        next_channel: channels.map(|channel| channel.id + 1).max().unwrap_or(0),
    };
    for node in graph.nodes() {
        if node.results.iter().any(|&value| copy.is_gathered(value)) {
            continue;
        }
        let operands: Vec<Expr<'_>> = node.operands.iter().map(|&value| copy.read(value)).collect();
        let results = b.again(node, &operands);
        copy.map.extend(node.results.iter().copied().zip(results));
    }
    b.conclude(graph, |value| copy.read(value));
    b.finish()
}

/// For each value, whether it is gathered from states alone, or a view of such a value.
fn gathered(graph: &Graph) -> Vec<bool> {
    let mut of_states = vec![false; graph.value_count()];
    graph.states().iter().for_each(|state| of_states[state.value.0 as usize] = true);
    let mut gathered = vec![false; graph.value_count()];
    for node in graph.nodes() {
        let ([operand], [result]) = (&node.operands[..], &node.results[..]) else { continue };
        let (operand, result) = (operand.0 as usize, result.0 as usize);
        match node.op.prim() {
            Some(Prim::AllGather { .. }) => gathered[result] = of_states[operand],
            Some(Prim::Reshape { .. } | Prim::Transpose { .. }) => {
                gathered[result] = gathered[operand];
                of_states[result] = of_states[operand];
            }
            Some(Prim::Convert { .. }) => of_states[result] = of_states[operand],
            _ => {}
        }
    }
    gathered
}

/// A graph on its way into a builder.
struct Rewritten<'b, 'g> {
    b: &'b Builder,
    graph: &'g Graph,
    is_gathered: Vec<bool>,
    /// Values that are not gathered.
    map: HashMap<Value, Expr<'b>>,
    /// The latest form of each gathered value, and the bytes that were gathered until its last
    /// reader.
    last: HashMap<Value, (Expr<'b>, usize)>,
    /// Bytes that were gathered so far.
    bytes: usize,
    near: usize,
    next_channel: u64,
}

impl<'b, 'g> Rewritten<'b, 'g> {
    fn is_gathered(&self, value: Value) -> bool {
        self.is_gathered[value.0 as usize]
    }

    /// A value for a reader that is copied next.
    fn read(&mut self, value: Value) -> Expr<'b> {
        let producer = self.graph.producer(value).filter(|_| self.is_gathered(value));
        let Some(node) = producer else { return self.map[&value] };
        let kept = self.last.get(&value).filter(|(_, at)| self.bytes - at <= self.near);
        let expr = match kept {
            Some((expr, _)) => *expr,
            None => self.again(node),
        };
        self.last.insert(value, (expr, self.bytes));
        expr
    }

    /// A collective, or a view of its result, once more.
    fn again(&mut self, node: &'g Node) -> Expr<'b> {
        let operand = self.read(node.operands[0]);
        let Some(Prim::AllGather { axis, channel }) = node.op.prim() else {
            return self.b.again(node, &[operand])[0];
        };
        self.bytes += self.graph.ty(node.results[0]).bytes();
        let mut id = channel.id;
        if self.last.contains_key(&node.results[0]) {
            id = self.next_channel;
            self.next_channel += 1;
        }
        let channel = Channel { id, group: channel.group.clone() };
        let _scope = self.b.scope_path(&node.scope);
        self.b.op1(Prim::AllGather { axis: *axis, channel }, &[operand])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::eval::{States, eval_ranks};
    use overdrive_ir::{Array, DType, Init, Mesh, TensorType};
    use std::collections::BTreeSet;

    const SIDE: usize = 4;
    const BYTES: usize = SIDE * SIDE * 8;

    /// A chain of products with gathered weights, there and back.
    fn there_and_back(layers: usize) -> Graph {
        let b = Builder::new("step");
        let mut x = b.input("x", TensorType::new(DType::F64, [SIDE, SIDE]));
        let gathered = |layer: usize| {
            let init = Init::Normal { std: 0.5, seed: 1 };
            let ty = TensorType::new(DType::F64, [SIDE / 2, SIDE]);
            let part = b.state_named(&format!("w{layer}"), ty, init);
            let channel = Channel { id: b.channel(), group: Mesh::new([("data", 2)]) };
            b.op1(Prim::AllGather { axis: 0, channel }, &[part])
        };
        let weights: Vec<Expr<'_>> = (0..layers).map(gathered).collect();
        for w in &weights {
            x = x.matmul(*w);
        }
        for w in weights.iter().rev() {
            x = x.matmul(w.transpose(&[1, 0])).tanh();
        }
        b.output("y", x);
        b.finish().unwrap()
    }

    fn channels(graph: &Graph) -> Vec<u64> {
        let all = graph.nodes().iter().filter_map(|node| node.op.prim()?.channel());
        all.map(|channel| channel.id).collect()
    }

    #[test]
    fn far_readers_gather_again_and_near_ones_share() {
        let graph = there_and_back(3);
        for (near, expected) in [(0, 5), (BYTES, 4), (2 * BYTES, 3)] {
            let again = regather(&graph, near).unwrap();
            let found = channels(&again);
            assert_eq!(found.len(), expected, "{again}");
            assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), expected, "{again}");
            let x = Array::build(DType::F64, &[SIDE, SIDE], |at| (at[0] + 2 * at[1]) as f64);
            let inputs = vec![vec![x]; 2];
            let of = |graph: &Graph| {
                let mut states = vec![States::new(); 2];
                eval_ranks(graph, &Mesh::new([("data", 2)]), &inputs, &mut states)
            };
            let [a, b] = [of(&graph), of(&again)];
            assert_eq!(a[0][0].to_f64(), b[0][0].to_f64());
        }
    }

    #[test]
    fn each_is_gathered_right_before_its_reader() {
        let again = regather(&there_and_back(3), 0).unwrap();
        let is_gather = |node: &Node| node.op.name() == "all_gather";
        for (at, node) in again.nodes().iter().enumerate().filter(|(_, node)| is_gather(node)) {
            let next = again.nodes()[at + 1..].iter().find(|node| node.op.name() != "transpose");
            assert!(next.is_some_and(|next| !is_gather(next)), "{} in {again}", node.op.name());
        }
    }
}
