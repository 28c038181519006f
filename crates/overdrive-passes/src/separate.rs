//! `separate`: a state that is read in slices alone becomes one state for each slice.
//!
//! Published models join projections of one input in one matrix (GPT-2's `c_attn`, Phi-3's
//! `qkv_proj`). No split of such a matrix gives each rank its part of every projection. Separated,
//! each projection is split by itself. Invariant: a slice holds what it held, and no element is in
//! two states.

use overdrive_ir::{Builder, Expr, Graph, GraphError, Init, Node, Prim, StateDecl, Value};
use std::collections::BTreeMap;

/// A state that was a slice of another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    /// Its name: that of the other, and its number.
    pub name: String,
    /// The other state.
    pub of: String,
    /// The dimension that was sliced.
    pub axis: usize,
    /// The first index along it.
    pub start: usize,
}

/// A slice of a state along one dimension: the dimension, start and end.
type Along = (usize, usize, usize);

/// The graph without states that are joined, and the pieces that replace them. Pieces of a state
/// that is not constant start as NaN: the caller brings their values.
///
/// # Errors
/// When the graph is ill-formed.
pub fn separate(graph: &Graph) -> Result<(Graph, Vec<Piece>), GraphError> {
    let b = Builder::new(graph.name());
    let mut known: BTreeMap<Value, Expr<'_>> = BTreeMap::new();
    for port in graph.inputs() {
        known.insert(port.value, b.input(&port.name, graph.ty(port.value).clone()));
    }
    let mut pieces = vec![];
    let mut slices: BTreeMap<(Value, Along), Expr<'_>> = BTreeMap::new();
    for state in graph.states() {
        let whole = graph.ty(state.value);
        let Some(found) = slices_of(graph, state) else {
            let expr = b.state_named(&state.name, whole.clone(), state.init.clone());
            known.insert(state.value, expr);
            continue;
        };
        let init = match state.init {
            Init::Constant(number) => number,
            _ => f64::NAN,
        };
        for (number, along) in found.into_iter().enumerate() {
            let (axis, start, end) = along;
            let mut sizes = whole.sizes();
            sizes[axis] = end - start;
            let name = format!("{}.{number}", state.name);
            let expr = b.state_named(&name, whole.with_shape(sizes), Init::Constant(init));
            slices.insert((state.value, along), expr);
            pieces.push(Piece { name, of: state.name.clone(), axis, start });
        }
    }
    for node in graph.nodes() {
        let slice = along(graph, node).and_then(|along| slices.get(&(node.operands[0], along)));
        if let Some(&piece) = slice {
            known.insert(node.results[0], piece);
            continue;
        }
        let operands: Vec<Expr<'_>> = node.operands.iter().map(|value| known[value]).collect();
        known.extend(node.results.iter().copied().zip(b.again(node, &operands)));
    }
    b.conclude(graph, |value| known[&value]);
    Ok((b.finish()?, pieces))
}

/// The slices of a state in order, if it is read in several along one dimension and not otherwise.
fn slices_of(graph: &Graph, state: &StateDecl) -> Option<Vec<Along>> {
    let is_output = graph.outputs().iter().any(|port| port.value == state.value);
    if state.update.is_some() || is_output {
        return None;
    }
    let readers = graph.nodes().iter().filter(|node| node.operands.contains(&state.value));
    let mut found: Vec<Along> = readers.map(|node| along(graph, node)).collect::<Option<_>>()?;
    found.sort_unstable();
    found.dedup();
    let is_apart = |pair: &[Along]| pair[0].0 == pair[1].0 && pair[0].2 <= pair[1].1;
    (found.len() > 1 && found.windows(2).all(is_apart)).then_some(found)
}

/// The one dimension that a node slices, without steps.
fn along(graph: &Graph, node: &Node) -> Option<Along> {
    let Some(Prim::Slice { start, limit, stride }) = node.op.prim() else { return None };
    let sizes = graph.ty(node.operands[0]).sizes();
    let mut cut = (0..sizes.len()).filter(|&dim| limit[dim] - start[dim] < sizes[dim]);
    let axis = cut.next()?;
    let is_plain = cut.next().is_none() && stride.iter().all(|&step| step == 1);
    is_plain.then_some((axis, start[axis], limit[axis]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::eval::{States, eval};
    use overdrive_ir::{Array, DType, Tensor, TensorType};

    fn f32s(sizes: &[usize]) -> TensorType {
        TensorType::new(DType::F32, sizes)
    }

    #[test]
    fn a_joined_projection_becomes_its_parts() {
        let b = Builder::new("joined");
        let x = b.input("x", f32s(&[2, 3]));
        let w = b.state_named("w", f32s(&[3, 6]), Init::ZEROS);
        let own = b.state_named("own", f32s(&[3, 2]), Init::ZEROS);
        let [first, second] = [w.slice_axis(1, 0, 2), w.slice_axis(1, 2, 6)];
        b.output("y", x.linear(first, None));
        b.output("z", x.linear(second, None) * 2.0);
        b.output("own", x.linear(own, None));
        let graph = b.finish().unwrap();
        let (separated, pieces) = separate(&graph).unwrap();
        let piece = |name: &str, start| Piece { name: name.into(), of: "w".into(), axis: 1, start };
        assert_eq!(pieces, [piece("w.0", 0), piece("w.1", 2)]);
        let names: Vec<&str> = separated.states().iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["w.0", "w.1", "own"]);
        let numbers = |sizes: &[usize], seed: usize| {
            Array::build(DType::F32, sizes, |at| ((at[0] * 7 + at[1] * 3 + seed) % 5) as f64)
        };
        let (x, w, own) = (numbers(&[2, 3], 1), numbers(&[3, 6], 2), numbers(&[3, 2], 3));
        let mut whole: States = [("w".into(), w.clone()), ("own".into(), own.clone())].into();
        let columns = |start: usize, width: usize| {
            let values = w.to_f64();
            Array::build(DType::F32, &[3, width], |at| values[at[0] * 6 + start + at[1]])
        };
        let mut parts: States =
            [("w.0".into(), columns(0, 2)), ("w.1".into(), columns(2, 4)), ("own".into(), own)]
                .into();
        let expected = eval(&graph, std::slice::from_ref(&x), &mut whole);
        assert_eq!(eval(&separated, &[x], &mut parts), expected);
    }

    #[test]
    fn a_state_that_is_read_otherwise_stays() {
        let reads: [fn(Expr<'_>) -> Vec<Expr<'_>>; 5] = [
            |w| vec![w.slice_axis(1, 0, 2), w * 2.0],
            |w| vec![w.slice_axis(1, 0, 2)],
            |w| vec![w.slice_axis(1, 0, 2), w.slice_axis(1, 1, 4)],
            |w| vec![w.slice_axis(1, 0, 2), w.slice_axis(0, 2, 3)],
            |w| vec![w.slice_axis(1, 0, 2), w.slice_axis(1, 2, 4), w],
        ];
        for (case, read) in reads.iter().enumerate() {
            let b = Builder::new("read");
            let w = b.state_named("w", f32s(&[3, 4]), Init::ZEROS);
            for (i, expr) in read(w).into_iter().enumerate() {
                b.output(&i.to_string(), expr);
            }
            let graph = b.finish().unwrap();
            assert_eq!(separate(&graph).unwrap(), (graph, vec![]), "{case}");
        }
    }

    #[test]
    fn pieces_of_what_is_not_constant_start_as_nan() {
        let b = Builder::new("joined");
        let init = Init::Value(Tensor::from_f32([4], &[1.0, 2.0, 3.0, 4.0]));
        let w = b.state_named("w", f32s(&[4]), init);
        b.output("y", w.slice_axis(0, 0, 2));
        b.output("z", w.slice_axis(0, 2, 4));
        let (separated, _) = separate(&b.finish().unwrap()).unwrap();
        let is_nan = |s: &StateDecl| matches!(s.init, Init::Constant(number) if number.is_nan());
        assert!(separated.states().len() == 2 && separated.states().iter().all(is_nan));
    }
}
