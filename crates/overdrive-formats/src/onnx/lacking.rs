//! Every op that has no importer, found before anything is imported.
//!
//! Branches of an `If` are searched when they are taken: one that is not taken may have any op.

use super::importer::importer;
use super::proto::{FunctionProto, GraphProto, NodeProto};
use super::walk::{domain, label};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Functions of a model by domain and name.
pub(super) type Functions<'m> = HashMap<(&'m str, &'m str), &'m FunctionProto>;

/// Names of ops of a graph, with the nodes that use them.
pub(super) fn lacking<'m>(
    graph: &'m GraphProto,
    functions: &Functions<'m>,
) -> Vec<(String, Vec<String>)> {
    let mut search = Search { functions, visited: HashSet::new(), found: BTreeMap::new() };
    search.nodes(graph.node.iter().collect());
    search.found.into_iter().collect()
}

struct Search<'s, 'm> {
    functions: &'s Functions<'m>,
    visited: HashSet<(&'m str, &'m str)>,
    found: BTreeMap<String, Vec<String>>,
}

impl<'m> Search<'_, 'm> {
    /// A stack instead of recursion: a file decides how deep its sub-graphs are.
    fn nodes(&mut self, mut stack: Vec<&'m NodeProto>) {
        while let Some(node) = stack.pop() {
            let key = (domain(node.domain()), node.op_type());
            if key != ("", "If") {
                let graphs = node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs));
                stack.extend(graphs.flat_map(|g| &g.node));
            }
            if let Some(function) = self.functions.get(&key) {
                if self.visited.insert(key) {
                    stack.extend(&function.node);
                }
            } else if importer(key.0, key.1).is_none() {
                let name = if key.0.is_empty() {
                    key.1.to_owned()
                } else {
                    format!("{}.{}", key.0, key.1)
                };
                self.found.entry(name).or_default().push(label(node).to_owned());
            }
        }
    }
}
