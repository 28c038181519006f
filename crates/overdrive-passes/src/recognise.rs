//! `recognise` raises written-out primitives to composites, because imported models arrive
//! decomposed.
//!
//! Its patterns are what the ops themselves expand to, built at the operand types that are found
//! before a node. A match is thus exact by construction, and a new op is recognised without a word
//! here. Graph and patterns are brought to one way of writing first (`recognise/canonical.rs`).
//! Spellings that differ by more stand in `recognise/spellings.rs`, each checked against the op's
//! definition. Attention around a softmax has a file of its own. A pattern is built only where a
//! sketch of it, shapes left aside, is found. Largest patterns go first. Invariant: a match
//! replaces only nodes that nothing else uses.

mod attention;
mod attention_weights;
mod canonical;
mod matching;
mod movement;
mod number;
mod pattern;
mod scene;
mod sketch;
mod spellings;
mod terms;
mod visible;

use crate::rebuild::{rebuild, regions};
use crate::{cse, dce, fold};
use attention::attend;
use canonical::canonical;
use matching::{Match, find};
use number::number;
use overdrive_ir::{Graph, GraphError, Value};
use pattern::Patterns;
use scene::Scene;
use sketch::kind;
pub use spellings::{SPELLINGS, Spelling};
use std::collections::{HashMap, HashSet};

/// The graph with composites in place of what they expand to. Folds and merges on the way, as the
/// patterns are folded and merged. A graph with named dimensions is left unchanged.
pub fn recognise(graph: &Graph) -> Result<Graph, GraphError> {
    if !graph.is_bound() {
        return Ok(graph.clone());
    }
    let graph = cse(&fold(&canonical(&fold(graph)?)?)?)?;
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
    dce(&fold(&attend(&raised)?)?)
}

/// Matches by the value that they compute; no two share a node.
fn matches(graph: &Graph) -> HashMap<Value, Match> {
    let mut roots: HashMap<_, Vec<Value>> = HashMap::new();
    // Last first, and by the kind of operation that computes them.
    for node in graph.nodes().iter().rev() {
        if let [result] = node.results[..] {
            roots.entry(kind(&node.op)).or_default().push(result);
        }
    }
    let scene = Scene::of(graph);
    let mut patterns = Patterns::within(&roots.keys().copied().collect());
    let mut taken: HashSet<Value> = HashSet::new();
    let mut found = HashMap::new();
    for template in 0..patterns.len() {
        let sketch = patterns.sketch(template);
        let sketch = Scene::of(&sketch);
        for &result in roots.get(&patterns.root(template)).into_iter().flatten() {
            if taken.contains(&result) {
                continue;
            }
            let Some(hit) = find(&scene, &sketch, &mut patterns, template, result) else {
                continue;
            };
            if hit.interior.iter().all(|v| !taken.contains(v)) {
                taken.extend(&hit.interior);
                found.insert(result, hit);
            }
        }
    }
    found
}
