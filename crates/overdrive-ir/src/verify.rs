//! The verifier: checks every invariant of a graph, for parsers and for tests of passes.

use crate::{Graph, GraphError, Node, Origin, Types, Value};

/// Errs with the first node, name or type that does not hold together. Recurses into regions.
pub fn verify(graph: &Graph) -> Result<(), GraphError> {
    let fail = |node: Option<&Node>, expected: String, found: String| GraphError {
        op: node.map_or("graph".into(), |n| n.op.name()),
        scope: node.map_or(graph.name().to_owned(), |n| n.scope.to_string()),
        expected,
        found,
        remedy: "this graph was damaged after it was built; rebuild it".into(),
    };
    let mut defined = vec![false; graph.value_count()];
    let ports =
        graph.inputs().iter().map(|p| p.value).chain(graph.states().iter().map(|s| s.value));
    ports.for_each(|v| defined[v.0 as usize] = true);
    let unknown = |v: Value| v.0 as usize >= graph.value_count();
    for (index, node) in graph.nodes().iter().enumerate() {
        if let Some(&v) = node.operands.iter().find(|&&v| unknown(v) || !defined[v.0 as usize]) {
            return Err(fail(
                Some(node),
                "operands that are computed before".into(),
                format!("%{}", v.0),
            ));
        }
        node.regions.iter().try_for_each(verify)?;
        let operands = graph.types(&node.operands);
        let types = Types { operands: &operands, regions: &node.regions };
        let inferred = node
            .op
            .infer(&types)
            .map_err(|m| fail(Some(node), m.expected, format!("{} ({})", m.found, m.remedy)))?;
        let declared = graph.types(&node.results);
        if inferred != declared {
            return Err(fail(Some(node), format!("results {inferred:?}"), format!("{declared:?}")));
        }
        for (i, result) in node.results.iter().enumerate() {
            if graph.origin(*result) != Origin::Node(crate::NodeId(index as u32), i) {
                return Err(fail(
                    Some(node),
                    "results that know their node".into(),
                    format!("%{}", result.0),
                ));
            }
            defined[result.0 as usize] = true;
        }
    }
    let results = graph.outputs().iter().map(|o| (o.name.as_str(), o.value));
    let updates = graph.states().iter().filter_map(|s| s.update.map(|v| (s.name.as_str(), v)));
    for (name, value) in results.chain(updates) {
        if unknown(value) || !defined[value.0 as usize] {
            return Err(fail(None, format!("`{name}` to be computed"), format!("%{}", value.0)));
        }
    }
    for state in graph.states() {
        if let Some(update) = state.update.filter(|&u| graph.ty(u) != graph.ty(state.value)) {
            let expected = format!("{} for state `{}`", graph.ty(state.value), state.name);
            return Err(fail(None, expected, graph.ty(update).to_string()));
        }
    }
    let names = [
        graph.inputs().iter().map(|p| &p.name).collect::<Vec<_>>(),
        graph.outputs().iter().map(|p| &p.name).collect(),
        graph.states().iter().map(|s| &s.name).collect(),
    ];
    for mut names in names {
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|w| w[0] == w[1]) {
            return Err(fail(None, "unique names".into(), format!("`{}` twice", twice[0])));
        }
    }
    Ok(())
}
