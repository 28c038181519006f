//! `bind` gives named dimensions their sizes; it runs first.
//!
//! A model is written once, over names such as `batch`; every later pass and every back end sees
//! extents only. Invariant: afterwards `graph.is_bound()`, and every type is what `infer` says of
//! the bound operands.

use crate::rebuild::{rebuild, regions};
use overdrive_ir::{Dim, Graph, GraphError, Operation, Prim, Shape, TensorType};
use std::collections::{BTreeMap, BTreeSet};

/// Replaces every named dimension by its size: in inputs, states, attributes and regions. Errs on a
/// name that the graph has and `sizes` lacks, and on one that the graph does not have.
pub fn bind(graph: &Graph, sizes: &BTreeMap<String, usize>) -> Result<Graph, GraphError> {
    let mut names = BTreeSet::new();
    collect(graph, &mut names);
    if let Some(missing) = names.iter().find(|name| !sizes.contains_key(**name)) {
        let given: Vec<&str> = sizes.keys().map(String::as_str).collect();
        let expected = format!("a size for dimension `{missing}`");
        return Err(error(
            graph,
            expected,
            format!("sizes for {}", listed(&given)),
            nearest(missing, &given),
        ));
    }
    if let Some(unknown) = sizes.keys().find(|name| !names.contains(name.as_str())) {
        let known: Vec<&str> = names.into_iter().collect();
        let expected = format!("one of this model's dimensions: {}", listed(&known));
        return Err(error(graph, expected, format!("`{unknown}`"), nearest(unknown, &known)));
    }
    bound(graph, sizes)
}

fn error(graph: &Graph, expected: String, found: String, remedy: String) -> GraphError {
    GraphError { op: "bind".into(), scope: graph.name().into(), expected, found, remedy }
}

fn listed(names: &[&str]) -> String {
    if names.is_empty() { "none".into() } else { format!("`{}`", names.join("`, `")) }
}

/// "did you mean", for names that are alike; otherwise what to do.
fn nearest(name: &str, names: &[&str]) -> String {
    let alike = names.iter().map(|other| (strsim::jaro_winkler(name, other), other));
    match alike.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((likeness, other)) if likeness > 0.7 => format!("did you mean `{other}`?"),
        _ => "give every named dimension exactly one size".into(),
    }
}

/// The names of a graph's dimensions.
pub(crate) fn dimension_names(graph: &Graph) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    collect(graph, &mut names);
    names.into_iter().map(str::to_owned).collect()
}

fn collect<'g>(graph: &'g Graph, names: &mut BTreeSet<&'g str>) {
    let dims = graph.values().flat_map(|v| &graph.ty(v).shape.0);
    let attributes = graph.nodes().iter().filter_map(|n| shape(n.op.prim()?)).flat_map(|s| &s.0);
    names.extend(dims.chain(attributes).filter_map(|dim| match dim {
        Dim::Named(name) => Some(&**name),
        Dim::Size(_) => None,
    }));
    graph.nodes().iter().flat_map(|n| &n.regions).for_each(|region| collect(region, names));
}

/// The shape that an op carries as an attribute. Composites carry none: they take shapes from their
/// operands.
fn shape(prim: &Prim) -> Option<&Shape> {
    match prim {
        Prim::Broadcast { shape, .. }
        | Prim::Reshape { shape }
        | Prim::Iota { shape, .. }
        | Prim::RandomBits { shape, .. } => Some(shape),
        _ => None,
    }
}

fn bound(graph: &Graph, sizes: &BTreeMap<String, usize>) -> Result<Graph, GraphError> {
    let fix = |shape: &Shape| -> Shape {
        let size = |dim: &Dim| match dim {
            Dim::Size(n) => *n,
            Dim::Named(name) => sizes[&**name],
        };
        shape.0.iter().map(size).collect::<Vec<usize>>().into()
    };
    let retype = |ty: &TensorType| ty.with_shape(fix(&ty.shape));
    rebuild(graph, &retype, &mut |place| {
        let mut op = place.node.op.clone();
        if let Operation::Prim(
            Prim::Broadcast { shape, .. }
            | Prim::Reshape { shape }
            | Prim::Iota { shape, .. }
            | Prim::RandomBits { shape, .. },
        ) = &mut op
        {
            *shape = fix(shape);
        }
        let regions = regions(place.node, |region| bound(region, sizes))?;
        Ok(place.builder.node(op, &place.operands, regions))
    })
}
