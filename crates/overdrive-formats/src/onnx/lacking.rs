//! Every op of a model that has no importer, found before anything is imported.

use super::importer::importer;
use super::proto::{FunctionProto, ModelProto, NodeProto};
use super::walk::{domain, label};
use std::collections::{BTreeMap, HashMap, HashSet};

type Functions<'m> = HashMap<(&'m str, &'m str), &'m FunctionProto>;

/// Names of ops, with the nodes that use them.
pub(super) fn lacking(model: &ModelProto) -> Vec<(String, Vec<String>)> {
    let functions = model.functions.iter().map(|f| ((domain(f.domain()), f.name()), f)).collect();
    let mut search = Search { functions, visited: HashSet::new(), found: BTreeMap::new() };
    search.nodes(model.graph.iter().flat_map(|g| &g.node).collect());
    search.found.into_iter().collect()
}

struct Search<'m> {
    functions: Functions<'m>,
    visited: HashSet<(&'m str, &'m str)>,
    found: BTreeMap<String, Vec<String>>,
}

impl<'m> Search<'m> {
    /// A stack instead of recursion: a file decides how deep its sub-graphs are.
    fn nodes(&mut self, mut stack: Vec<&'m NodeProto>) {
        while let Some(node) = stack.pop() {
            let graphs = node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs));
            stack.extend(graphs.flat_map(|g| &g.node));
            let key = (domain(node.domain()), node.op_type());
            if let Some(function) = self.functions.get(&key) {
                if self.visited.insert(key) {
                    stack.extend(&function.node);
                }
            } else if importer(key.0, key.1).is_none() {
                let name = if key.0.is_empty() { key.1.to_owned() } else { format!("{}.{}", key.0, key.1) };
                self.found.entry(name).or_default().push(label(node).to_owned());
            }
        }
    }
}
