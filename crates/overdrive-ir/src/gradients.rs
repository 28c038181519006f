//! Reverse-mode differentiation: walks a graph backwards and asks each op for its rule.
//!
//! The rules build ordinary nodes, so what they build can be differentiated again, to any order.
//! Passes, regions and expansions of composites all come through here. Source: Griewank and
//! Walther, "Evaluating Derivatives", SIAM 2008, chapter 3. Invariant: a cotangent has the type of
//! its value, but for the formats without arithmetic (fp8 and smaller), whose cotangents are f32.

use crate::{Builder, DType, Expr, Gradient, Graph, Node, TensorType, Value};

/// Type of the cotangents of values of type `ty`.
pub(crate) fn cotangent_type(ty: &TensorType) -> TensorType {
    if ty.dtype.is_arithmetic_float() { ty.clone() } else { ty.with_dtype(DType::F32) }
}

/// Appends to `b` the computation of cotangents of `wrt` from those of `outputs`.
///
/// `graph` is already in `b`, `map[value]` being the expression of each of its values (as
/// `Builder::append` returns it). `None` where no float path leads from a value to an output. New
/// nodes stand in the scope of the node that they differentiate, followed by `/grad`. Errors stay
/// in `b`.
pub fn gradients<'b>(
    b: &'b Builder,
    graph: &Graph,
    map: &[Expr<'b>],
    outputs: &[(Value, Expr<'b>)],
    wrt: &[Value],
) -> Vec<Option<Expr<'b>>> {
    assert_eq!(map.len(), graph.value_count(), "`map` has an expression for every value");
    let varied = varied(graph, wrt);
    let mut cotangents: Vec<Option<Expr<'b>>> = vec![None; graph.value_count()];
    for &(value, cotangent) in outputs {
        accumulate(&mut cotangents[value.0 as usize], cotangent);
    }
    for node in graph.nodes().iter().rev() {
        if b.failed() {
            return vec![None; wrt.len()];
        }
        let arriving: Vec<Option<Expr<'b>>> =
            node.results.iter().map(|v| cotangents[v.0 as usize]).collect();
        let reaches =
            node.results.iter().zip(&arriving).any(|(v, c)| c.is_some() && varied[v.0 as usize]);
        if !reaches {
            continue;
        }
        let of = |values: &[Value]| -> Vec<Expr<'b>> {
            values.iter().map(|v| map[v.0 as usize]).collect()
        };
        let rule = Gradient {
            builder: b,
            inputs: &of(&node.operands),
            outputs: &of(&node.results),
            cotangents: &arriving,
            regions: &node.regions,
        };
        for (operand, cotangent) in node.operands.iter().zip(differentiate(node, &rule)) {
            let Some(cotangent) =
                cotangent.filter(|c| !c.is_poison() && varied[operand.0 as usize])
            else {
                continue;
            };
            assert_eq!(
                cotangent.ty(),
                cotangent_type(graph.ty(*operand)),
                "the gradient of `{}` has the type of its operand",
                node.op.name()
            );
            accumulate(&mut cotangents[operand.0 as usize], cotangent);
        }
    }
    wrt.iter().map(|v| cotangents[v.0 as usize]).collect()
}

/// The op's own rule, or that of its expansion. The expansion repeats forward work; what the graph
/// already has, common-subexpression elimination shares.
fn differentiate<'b>(node: &Node, g: &Gradient<'b, '_>) -> Vec<Option<Expr<'b>>> {
    let scope =
        if node.scope.is_empty() { "grad".to_owned() } else { format!("{}/grad", node.scope) };
    let _scope = g.builder.scope(&scope);
    if let Some(cotangents) = node.op.grad(g) {
        return cotangents;
    }
    let types: Vec<TensorType> = g.inputs.iter().map(|x| x.ty()).collect();
    let expansion = node.op.expansion(&types, g.regions);
    let map = g.builder.inline_values(&expansion, g.inputs);
    let results = expansion.outputs().iter().zip(g.cotangents);
    let seeds: Vec<(Value, Expr<'b>)> =
        results.filter_map(|(port, c)| Some((port.value, (*c)?))).collect();
    let wrt: Vec<Value> = expansion.inputs().iter().map(|port| port.value).collect();
    gradients(g.builder, &expansion, &map, &seeds, &wrt)
}

/// Float values that depend on `wrt` through floats alone: cotangents are of use nowhere else.
fn varied(graph: &Graph, wrt: &[Value]) -> Vec<bool> {
    let mut varied = vec![false; graph.value_count()];
    wrt.iter().for_each(|v| varied[v.0 as usize] = graph.ty(*v).dtype.is_float());
    for node in graph.nodes() {
        if node.operands.iter().any(|v| varied[v.0 as usize]) {
            node.results.iter().for_each(|v| varied[v.0 as usize] |= graph.ty(*v).dtype.is_float());
        }
    }
    varied
}

fn accumulate<'b>(sum: &mut Option<Expr<'b>>, cotangent: Expr<'b>) {
    *sum = Some(sum.map_or(cotangent, |old| old + cotangent));
}
