//! Matches a pattern against the nodes before a value. Operations and connections must agree. Sums
//! and products may have any order and association. Inputs of the pattern match any value of their
//! type.

use super::pattern::{OpPattern, Patterns};
use super::scene::Scene;
use super::sketch::{self, unmoved};
use super::terms::{commutes, leaves, match_terms, splits};
use overdrive_ir::{DType, Graph, Node, Operation, Origin, Prim, Tensor, TensorType, Value};
use serde_json::Value as Json;
use std::collections::{HashMap, HashSet};

/// An op found in a graph.
pub(super) struct Match {
    pub(super) op: Operation,
    pub(super) operands: Vec<Value>,
    /// Every value that it replaces.
    pub(super) interior: HashSet<Value>,
}

/// How far apart two numbers are, over the number, that stand for one of f32: a few of its last
/// bits.
const ROUNDING: f64 = 2.5e-7;

/// The template's op at `result`, if that is what computes it; `sketch` is the template's.
pub(super) fn find(
    scene: &Scene<'_>,
    sketch: &Scene<'_>,
    patterns: &mut Patterns,
    template: usize,
    result: Value,
) -> Option<Match> {
    let graph = scene.graph;
    let around = sketch::operands(sketch, scene, result)?;
    let types = around.iter().map(|values| types_of(graph, values)).collect();
    let candidates = patterns.candidates(template, graph.ty(result), types);
    candidates.iter().find_map(|candidate| {
        let attempt = Matching::of(candidate, graph, result)?;
        if attempt.differing.is_empty() {
            return attempt.finish(&candidate.op, scene, result);
        }
        let op = with_numbers(&candidate.op, &attempt.differing)?;
        let candidate = patterns.again(template, op, &candidate.types)?;
        let attempt = Matching::of(&candidate, graph, result)?;
        attempt.differing.is_empty().then(|| attempt.finish(&candidate.op, scene, result))?
    })
}

/// Types of values, each once.
fn types_of(graph: &Graph, values: &[Value]) -> Vec<TensorType> {
    let mut types: Vec<TensorType> = Vec::new();
    for &value in values {
        if !types.contains(graph.ty(value)) {
            types.push(graph.ty(value).clone());
        }
    }
    types
}

/// `op` with its real attributes replaced where a constant that equals one differs in the graph. A
/// guess: the caller matches the new op from the start.
fn with_numbers(op: &Operation, differing: &[(f64, f64)]) -> Option<Operation> {
    fn replace(value: &mut Json, differing: &[(f64, f64)]) {
        match value {
            Json::Number(number) if number.is_f64() => {
                let old = number.as_f64().unwrap_or(f64::NAN);
                let same = |(pattern, _): &&(f64, f64)| (*pattern as f32) == (old as f32);
                if let Some((_, new)) = differing.iter().find(same) {
                    *value = Json::from(*new);
                }
            }
            // A number that the op derives where none is given, such as the scale of attention.
            Json::Null if differing.len() == 1 => *value = Json::from(differing[0].1),
            Json::Array(values) => values.iter_mut().for_each(|value| replace(value, differing)),
            Json::Object(map) => map.values_mut().for_each(|value| replace(value, differing)),
            _ => {}
        }
    }
    let mut attributes = op.attributes();
    attributes.values_mut().for_each(|value| replace(value, differing));
    Operation::parse(&op.name(), attributes).ok().filter(|changed| changed != op)
}

#[derive(Clone)]
struct Matching<'g> {
    pattern: &'g Graph,
    graph: &'g Graph,
    /// Value of the graph for each value of the pattern.
    map: HashMap<Value, Value>,
    /// Scalar constants of the pattern, and the numbers found in their place.
    differing: Vec<(f64, f64)>,
}

impl<'g> Matching<'g> {
    fn of(candidate: &'g OpPattern, graph: &'g Graph, result: Value) -> Option<Self> {
        let pattern = &candidate.pattern;
        let mut matching = Self { pattern, graph, map: HashMap::new(), differing: Vec::new() };
        matching.value(pattern.outputs()[0].value, result).then_some(matching)
    }

    fn value(&mut self, p: Value, t: Value) -> bool {
        if let Some(&known) = self.map.get(&p) {
            return known == t;
        }
        if self.pattern.ty(p) != self.graph.ty(t) {
            return false;
        }
        let same = match (self.pattern.origin(p), self.graph.origin(t)) {
            (Origin::Input(_), _) => true,
            (Origin::Node(a, i), Origin::Node(b, j)) => {
                i == j && self.node(self.pattern.node(a), self.graph.node(b))
            }
            _ => false,
        };
        if same {
            self.map.insert(p, t);
        }
        same
    }

    fn node(&mut self, p: &'g Node, t: &'g Node) -> bool {
        match (p.op.prim(), t.op.prim()) {
            (Some(Prim::Constant { value: a }), Some(Prim::Constant { value: b })) => {
                self.constant(a, b)
            }
            (Some(Prim::Binary { kind: a }), Some(Prim::Binary { kind: b }))
                if a == b && commutes(*a) =>
            {
                let terms = leaves(self.pattern, p, *a);
                let ways = splits(self.graph, t.results[0], *a, terms.len());
                ways.into_iter().any(|mut way| match_terms(self, &terms, &mut way, Self::value))
            }
            _ => {
                let pairs = p.operands.iter().zip(&t.operands);
                p.op == t.op
                    && p.regions == t.regions
                    && p.operands.len() == t.operands.len()
                    && pairs.into_iter().all(|(&p, &t)| self.value(p, t))
            }
        }
    }

    fn constant(&mut self, p: &Tensor, t: &Tensor) -> bool {
        if p == t {
            return true;
        }
        let scalar = p.ty().rank() == 0 && p.ty().dtype.is_float();
        if scalar {
            let decimal = |t: &Tensor| match t.ty().dtype {
                // The shortest decimal, as a person would have written the attribute.
                DType::F32 => {
                    (t.to_f64()[0] as f32).to_string().parse().expect("a printed number is one")
                }
                _ => t.to_f64()[0],
            };
            let (p, t): (f64, f64) = (decimal(p), decimal(t));
            // A quotient that was rounded twice is the same number.
            if (p - t).abs() > ROUNDING * p.abs() {
                self.differing.push((p, t));
            }
        }
        scalar
    }

    /// The match, unless something else uses what it would replace.
    fn finish(&self, op: &Operation, scene: &Scene<'_>, result: Value) -> Option<Match> {
        let operands = self.pattern.inputs().iter().map(|port| self.map.get(&port.value).copied());
        let operands = operands.collect::<Option<Vec<Value>>>()?;
        let (mut interior, mut seen, mut pending) = (HashSet::new(), HashSet::new(), vec![result]);
        let mut uses: HashMap<Value, usize> = HashMap::new();
        while let Some(value) = pending.pop() {
            if operands.contains(&value) || scene.is_free(value) || !seen.insert(value) {
                continue;
            }
            let node = self.graph.producer(value)?;
            // An operand that is only moved may be so for others too: a parameter of several layers
            // is repeated once for all.
            if value == result || !unmoved(self.graph, value).iter().any(|v| operands.contains(v)) {
                interior.insert(value);
            }
            node.operands.iter().for_each(|v| *uses.entry(*v).or_default() += 1);
            pending.extend(&node.operands);
        }
        let private = |v: &Value| *v == result || scene.uses[v.0 as usize] == uses[v];
        interior.iter().all(private).then(|| Match { op: op.clone(), operands, interior })
    }
}
