//! `recognise` raises written-out primitives to composites, for imported models arrive decomposed.
//!
//! Its patterns are what the ops themselves expand to, built at the operand types that are found before a node, so
//! that a match is exact by construction and a new op is recognised without a word here. How others write the
//! same op stands in `recognise/spellings.rs`, each spelling checked against the op's definition. Largest patterns
//! go first. Invariant: a match replaces only nodes that nothing else uses.

mod matching;
mod pattern;
mod spellings;

use crate::rebuild::{rebuild, regions};
use crate::{cse, dce, fold};
use matching::{Match, find};
use overdrive_ir::{Graph, GraphError, Value};
use pattern::Patterns;
pub use spellings::{SPELLINGS, Spelling};
use std::collections::{HashMap, HashSet};

/// The graph with composites in place of what they expand to. Folds and merges on the way, as the patterns are
/// folded and merged. A graph with named dimensions is left as it is.
pub fn recognise(graph: &Graph) -> Result<Graph, GraphError> {
    if !graph.is_bound() {
        return Ok(graph.clone());
    }
    let graph = cse(&fold(graph)?)?;
    let matches = matches(&graph);
    let raised = rebuild(&graph, &Clone::clone, &mut |place| {
        let found = place.node.results.first().and_then(|v| matches.get(v));
        let Some(Match { op, operands, .. }) = found else {
            return Ok(place.keep(regions(place.node, recognise)?));
        };
        let operands: Vec<_> = operands.iter().map(|v| place.get(*v)).collect();
        let results = place.builder.op(op.clone(), &operands);
        Ok(vec![results[0]])
    })?;
    dce(&raised)
}

/// Matches by the value that they compute; no two share a node.
fn matches(graph: &Graph) -> HashMap<Value, Match> {
    let mut patterns = Patterns::new();
    let mut taken: HashSet<Value> = HashSet::new();
    let mut found = HashMap::new();
    // By the operation that computes them, last first.
    let mut roots: HashMap<String, Vec<Value>> = HashMap::new();
    for node in graph.nodes().iter().rev() {
        if let [result] = node.results[..] {
            roots.entry(node.op.name()).or_default().push(result);
        }
    }
    for template in 0..patterns.len() {
        for &result in roots.get(patterns.root(template)).into_iter().flatten() {
            if taken.contains(&result) {
                continue;
            }
            let Some(hit) = find(graph, &mut patterns, template, result) else { continue };
            if hit.interior.iter().all(|v| !taken.contains(v)) {
                taken.extend(&hit.interior);
                found.insert(result, hit);
            }
        }
    }
    found
}
