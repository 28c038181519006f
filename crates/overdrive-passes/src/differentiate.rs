//! `differentiate` turns a graph into one that also computes gradients.
//!
//! The result is an ordinary graph: it can be optimised, run and differentiated again. Training
//! builds on [`gradients`](overdrive_ir::gradients) directly, because its cotangents come from a
//! loss in the same graph.

use crate::dce::dce;
use overdrive_ir::{Builder, Expr, Graph, GraphError, Origin, Port, Value, gradients};

/// The graph with its outputs and updates, and besides:
/// - an input `cotangent.<output>` for each of `outputs` (outputs of the graph with a float type);
/// - an output `grad.<name>` for each of `wrt` (inputs or states), zero where it reaches none of
///   `outputs`.
///
/// A gradient has the type of its value. A graph that was differentiated before may have a name
/// already. The new name then gets the prefix once more: `grad.grad.x`.
pub fn differentiate(graph: &Graph, outputs: &[Value], wrt: &[Value]) -> Result<Graph, GraphError> {
    if !graph.is_bound() {
        return Err(error(
            graph,
            "sizes for all dimensions",
            "a named dimension",
            "bind the graph first",
        ));
    }
    let seeds =
        outputs.iter().map(|&v| Ok((v, output_name(graph, v)?))).collect::<Result<Vec<_>, _>>()?;
    let names = wrt.iter().map(|&v| wrt_name(graph, v)).collect::<Result<Vec<_>, _>>()?;
    let b = Builder::new(graph.name());
    let map = b.append(graph)?;
    let seeds: Vec<(Value, Expr<'_>)> = seeds
        .into_iter()
        .map(|(v, name)| {
            (v, b.input(&fresh("cotangent", name, graph.inputs()), graph.ty(v).clone()))
        })
        .collect();
    let found = gradients(&b, graph, &map, &seeds, wrt);
    graph.outputs().iter().for_each(|port| b.output(&port.name, map[port.value.0 as usize]));
    for state in graph.states() {
        if let Some(update) = state.update {
            b.update(&state.name, map[update.0 as usize]);
        }
    }
    for ((value, name), cotangent) in wrt.iter().zip(names).zip(found) {
        let ty = graph.ty(*value);
        let zeros = || b.full(ty.dtype, ty.shape.clone(), 0.0);
        b.output(&fresh("grad", name, graph.outputs()), cotangent.unwrap_or_else(zeros));
    }
    dce(&b.finish()?)
}

fn fresh(prefix: &str, name: &str, taken: &[Port]) -> String {
    let mut name = format!("{prefix}.{name}");
    while taken.iter().any(|port| port.name == name) {
        name = format!("{prefix}.{name}");
    }
    name
}

fn error(graph: &Graph, expected: &str, found: &str, remedy: &str) -> GraphError {
    let [expected, found, remedy] = [expected, found, remedy].map(str::to_owned);
    GraphError { op: "differentiate".into(), scope: graph.name().into(), expected, found, remedy }
}

fn output_name(graph: &Graph, value: Value) -> Result<&str, GraphError> {
    let found = graph.outputs().iter().find(|port| port.value == value);
    let port = found.ok_or_else(|| {
        error(graph, "an output", &format!("%{}", value.0), "name the value as an output")
    })?;
    if !graph.ty(value).dtype.is_arithmetic_float() {
        let found = format!("`{}` of type {}", port.name, graph.ty(value));
        return Err(error(
            graph,
            "outputs of f64, f32, f16 or bf16",
            &found,
            "differentiate float outputs only",
        ));
    }
    Ok(&port.name)
}

fn wrt_name(graph: &Graph, value: Value) -> Result<&str, GraphError> {
    let name = match graph.origin(value) {
        Origin::Input(i) => &graph.inputs()[i].name,
        Origin::State(i) => &graph.states()[i].name,
        Origin::Node(..) => {
            let remedy = "differentiate with respect to inputs and states";
            return Err(error(graph, "an input or a state", &format!("%{}", value.0), remedy));
        }
    };
    if !graph.ty(value).dtype.is_arithmetic_float() {
        let found = format!("`{name}` of type {}", graph.ty(value));
        let remedy = "integers have no gradient";
        return Err(error(graph, "values of f64, f32, f16 or bf16", &found, remedy));
    }
    Ok(name)
}
