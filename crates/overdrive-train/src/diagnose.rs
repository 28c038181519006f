//! The origin of a NaN or an infinity: the first node of a graph whose results are not finite.
//!
//! The graph is run again on the same inputs and states, node by node as it stands, with one flag a
//! value added. The answer thus names an op of the model and its scope, and not a fused loop.

use crate::TrainError;
use crate::step::OPTIMIZER;
use overdrive_ir::{
    Backend, Builder, Compare, DType, Graph, Mode, Node, Reducer, State, Tensor, Tuning, Unary,
    Value,
};
use std::collections::BTreeSet;

/// The first input, state or op of `graph` with a value that is not finite, in words; `None` if all
/// are finite.
///
/// States are read, never changed.
///
/// # Errors
/// When the back end cannot run the graph.
pub fn first(
    backend: &dyn Backend,
    graph: &Graph,
    state: &State,
    tensors: &[(&str, &Tensor)],
) -> Result<Option<String>, TrainError> {
    for (name, tensor) in tensors {
        if tensor.ty().dtype.is_float() && tensor.to_f64().iter().any(|v| !v.is_finite()) {
            return Ok(Some(format!("input `{name}` {} is not finite", tensor.ty())));
        }
    }
    let mut copy = State::default();
    for declared in graph.states() {
        let tensor = backend.download(&state.buffers[&declared.name])?;
        if tensor.ty().dtype.is_float() && tensor.to_f64().iter().any(|v| !v.is_finite()) {
            return Ok(Some(format!("state `{}` {} is not finite", declared.name, tensor.ty())));
        }
        copy.buffers.insert(declared.name.clone(), backend.upload(&tensor)?);
    }
    let (flagged, watched) = flagged(graph)?;
    let mut session = backend.compile(&flagged, Mode::Eager, &Tuning::default())?.session()?;
    let given =
        |name: &str| tensors.iter().find(|(n, _)| *n == name).expect("the same inputs as before").1;
    let inputs = flagged.inputs().iter().map(|port| backend.upload(given(&port.name)));
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let types = flagged.outputs().iter().map(|port| flagged.ty(port.value));
    let mut outputs = types.map(|ty| backend.output(ty)).collect::<Result<Vec<_>, _>>()?;
    let call = copy.with(&inputs, &mut outputs);
    session.run(call)?.wait()?;
    for (buffer, value) in outputs.iter().zip(watched) {
        if backend.download(buffer)?.to_f64()[0] != 0.0 {
            continue;
        }
        let node = graph.producer(value).expect("results of nodes are watched");
        let scope = if node.scope.is_empty() { graph.name() } else { &node.scope };
        let of = of_gradients(graph, node);
        let text = format!(
            "`{}` at {scope}{of} made the first value that is not finite, in {}",
            node.op.name(),
            graph.ty(value)
        );
        return Ok(Some(text));
    }
    Ok(None)
}

/// Names the parameters from whose gradients a node of the optimizer alone computes a norm; empty
/// for any other node.
fn of_gradients(graph: &Graph, node: &Node) -> String {
    /// As many names as a line has room for.
    const MOST: usize = 4;
    let is_shared = |node: &Node| &*node.scope == OPTIMIZER;
    let mut behind: Vec<&Node> = Some(node).into_iter().filter(|node| is_shared(node)).collect();
    let mut names = BTreeSet::new();
    while let Some(node) = behind.pop() {
        for value in &node.operands {
            // The update of a parameter, which has a scope of its own, reads its gradient.
            let readers = graph.nodes().iter().filter(|reader| reader.operands.contains(value));
            let of = |reader: &Node| {
                reader.scope.strip_prefix(OPTIMIZER)?.strip_prefix('/').map(str::to_owned)
            };
            let read_by: BTreeSet<String> = readers.filter_map(of).collect();
            match graph.producer(*value) {
                Some(inner) if read_by.is_empty() && is_shared(inner) => behind.push(inner),
                _ => names.extend(read_by),
            }
        }
    }
    let shown: Vec<String> = names.iter().take(MOST).map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(MOST);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    match shown.is_empty() {
        true => String::new(),
        false => format!(", from gradients of {}{more},", shown.join(", ")),
    }
}

/// The graph without its outputs and updates but with an output for each float value: 1 where all
/// of it is finite.
fn flagged(graph: &Graph) -> Result<(Graph, Vec<Value>), TrainError> {
    let b = Builder::new(&format!("{}.finite", graph.name()));
    let values = b.append(graph)?;
    let mut watched = Vec::new();
    for &value in graph.nodes().iter().flat_map(|node| &node.results) {
        let x = values[value.0 as usize];
        if !x.dtype().is_arithmetic_float() {
            continue;
        }
        let axes: Vec<usize> = (0..x.rank()).collect();
        let finite = x.unary(Unary::Abs).compare(Compare::Lt, x.constant(f64::INFINITY));
        let all = finite.convert(DType::F32).reduce(Reducer::Min, &axes);
        b.output(&format!("%{}", value.0), all);
        watched.push(value);
    }
    Ok((b.finish()?, watched))
}
