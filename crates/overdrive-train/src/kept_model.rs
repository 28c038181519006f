//! A model as a step reads the parameters that it keeps: states of fewer bits, and copies in the
//! format of contractions (`kept`).

use crate::Recipe;
use crate::kept::{COPY, NARROW, Parameters, begins_as};
use crate::moments::is_small;
use overdrive_ir::{Builder, DType, Expr, Graph, GraphError, Node, Prim, TensorType, Value};
use overdrive_passes::{moves, store};
use std::collections::{BTreeMap, BTreeSet};

impl Recipe {
    /// Whether contractions read copies of parameters.
    fn copies(&self) -> bool {
        let repeats = self.accumulate > 1;
        (repeats || self.parameters == Parameters::Masters) && self.precision != DType::F32
    }

    /// Whether a parameter, f32, is kept in bf16 alone.
    fn narrows(&self, name: &str, ty: &TensorType) -> bool {
        self.parameters == Parameters::Stochastic && self.trains(name) && !is_small(&ty.sizes())
    }
}

/// A model as it reads parameters that a step of this recipe keeps.
pub(crate) fn stored(graph: &Graph, recipe: &Recipe) -> Result<Graph, GraphError> {
    if recipe.parameters != Parameters::Stochastic {
        return Ok(graph.clone());
    }
    store(graph, &|name, ty| recipe.narrows(name, ty).then_some(NARROW))
}

/// Appends a forward graph whose parameters of these names are trained. Gives the expression of
/// each of its values, of the type that it had.
pub(crate) fn append<'b>(
    b: &'b Builder,
    graph: &Graph,
    names: &[&str],
    recipe: &Recipe,
) -> Vec<Expr<'b>> {
    let names: BTreeSet<&str> = names.iter().copied().collect();
    let mut map: BTreeMap<Value, Expr<'b>> = BTreeMap::new();
    // Trained parameters by their values in f32: those that are states of fewer bits, and others.
    let (mut narrow, mut wide) = (BTreeMap::<Value, Expr<'b>>::new(), BTreeMap::new());
    for port in graph.inputs() {
        map.insert(port.value, b.input(&port.name, graph.ty(port.value).clone()));
    }
    for state in graph.states() {
        let (name, ty) = (state.name.as_str(), graph.ty(state.value));
        let is_trained = names.contains(name);
        if is_trained && recipe.narrows(name, ty) {
            let init = begins_as(state.init.clone(), NARROW);
            narrow.insert(state.value, b.state_named(name, ty.with_dtype(NARROW), init));
        } else {
            map.insert(state.value, b.state_named(name, ty.clone(), state.init.clone()));
            if is_trained {
                wide.insert(state.value, state);
            }
        }
    }
    for node in graph.nodes() {
        // In the scope of a layer that reads it, which says its stage.
        let scope = b.scope_path(&node.scope);
        for value in &node.operands {
            if let Some(kept) = narrow.get(value) {
                map.entry(*value).or_insert_with(|| kept.convert(DType::F32));
            }
        }
        drop(scope);
        let operands: Vec<Expr<'b>> = node.operands.iter().map(|v| map[v]).collect();
        let first = node.operands.first();
        let cast = match node.op.prim() {
            Some(Prim::Convert { to, .. }) => Some(*to),
            _ => None,
        };
        let kept = first.and_then(|value| narrow.get(value)).copied();
        let master = first.and_then(|value| wide.get(value)).filter(|_| recipe.copies());
        let results = match (cast, kept, master) {
            (Some(to), Some(kept), _) => vec![kept.convert(to)],
            (Some(to), _, Some(master)) => {
                let name = format!("{COPY}{}", master.name);
                let ty = graph.ty(master.value).with_dtype(to);
                let made = || b.state_named(&name, ty, master.init.clone());
                vec![b.find_state(&name).unwrap_or_else(made)]
            }
            (None, Some(kept), _) => moved(b, node, (&operands, kept)),
            _ => b.again(node, &operands),
        };
        map.extend(node.results.iter().copied().zip(results));
    }
    for (value, kept) in narrow {
        map.entry(value).or_insert_with(|| kept.convert(DType::F32));
    }
    graph.values().map(|value| map[&value]).collect()
}

/// A node whose first operand is a parameter of fewer bits. One that only moves numbers, as the
/// rows of a table, moves those, and widens what it moved.
fn moved<'b>(
    b: &'b Builder,
    node: &Node,
    (operands, kept): (&[Expr<'b>], Expr<'b>),
) -> Vec<Expr<'b>> {
    let narrow: Vec<Expr<'b>> = [&[kept], &operands[1..]].concat();
    let types: Vec<TensorType> = narrow.iter().map(|operand| operand.ty()).collect();
    if !moves(&node.op, &types, &node.regions) {
        return b.again(node, operands);
    }
    let widened = b.again(node, &narrow).into_iter();
    widened.map(|result| result.convert(operands[0].dtype())).collect()
}
