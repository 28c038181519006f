//! Patterns: what an op, or another spelling of it, computes in primitives at given operand types.

use super::spellings::{SPELLINGS, Spelling};
use crate::{cse, fold};
use overdrive_ir::{
    Binary, Builder, Dim, Expr, Graph, Operation, Origin, Prim, Sample, Shape, TensorType, Types, ops::OPS,
};
use serde_json::Value as Json;
use std::collections::HashMap;
use std::rc::Rc;

/// Tuples of operand types that are tried at one node.
const MOST_TUPLES: usize = 4096;

/// An op with attributes as its samples have them, and one way of writing it.
struct Template {
    op: Operation,
    operands: usize,
    spelling: Option<Spelling>,
    /// Nodes of the pattern, and the name of the last one's operation.
    size: usize,
    root: String,
}

/// An op at operand types, and the graph that it is in primitives: inputs in order, one output.
pub(super) struct Candidate {
    pub(super) op: Operation,
    pub(super) types: Vec<TensorType>,
    pub(super) pattern: Graph,
}

/// A template at the type of a result and the types before it.
type Key = (usize, TensorType, Vec<TensorType>);

/// Every template, largest first, and the candidates built so far.
pub(super) struct Patterns {
    templates: Vec<Template>,
    built: HashMap<Key, Rc<Vec<Candidate>>>,
}

impl Patterns {
    pub(super) fn new() -> Self {
        let mut templates: Vec<Template> = Vec::new();
        for sample in OPS.iter().flat_map(|entry| (entry.samples)()).filter(|s| s.regions.is_empty()) {
            let (op, operands) = (sample.op.clone(), sample.operands.len());
            if templates.iter().any(|t| t.op == op && t.operands == operands) {
                continue;
            }
            let types = bound(&sample);
            let others = SPELLINGS.iter().filter(|(name, _)| *name == op.name()).map(|s| Some(s.1));
            for spelling in std::iter::once(None).chain(others) {
                let Some(graph) = build(&op, spelling, &types) else { continue };
                let root = graph.nodes().last().expect("a pattern has nodes").op.name();
                let size = graph.nodes().len();
                templates.push(Template { op: op.clone(), operands, spelling, size, root });
            }
        }
        templates.sort_by_key(|template| std::cmp::Reverse(template.size));
        Self { templates, built: HashMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.templates.len()
    }

    /// Name of the operation that computes the result.
    pub(super) fn root(&self, template: usize) -> &str {
        &self.templates[template].root
    }

    /// How many nodes before a result may belong to the pattern.
    pub(super) fn size(&self, template: usize) -> usize {
        self.templates[template].size
    }

    /// The template at every choice of operand types from `around` that gives `result`.
    pub(super) fn candidates(
        &mut self,
        template: usize,
        result: &TensorType,
        around: Vec<TensorType>,
    ) -> Rc<Vec<Candidate>> {
        let Template { op, operands, spelling, .. } = &self.templates[template];
        let key = (template, result.clone(), around);
        if let Some(built) = self.built.get(&key) {
            return built.clone();
        }
        let mut candidates = Vec::new();
        let tuples = key.2.len().checked_pow(*operands as u32).filter(|&n| n <= MOST_TUPLES);
        for op in variants(op, result.rank()) {
            for tuple in 0..tuples.unwrap_or(0) {
                let choose = |i: usize| key.2[tuple / key.2.len().pow(i as u32) % key.2.len()].clone();
                let types: Vec<TensorType> = (0..*operands).map(choose).collect();
                let inferred = op.infer(&Types { operands: &types, regions: &[] });
                if inferred.is_ok_and(|types| types[0] == *result)
                    && let Some(pattern) = build(&op, *spelling, &types)
                {
                    candidates.push(Candidate { op: op.clone(), types, pattern });
                }
            }
        }
        let candidates = Rc::new(candidates);
        self.built.insert(key, candidates.clone());
        candidates
    }

    /// The template with other attributes, at the same types.
    pub(super) fn again(&self, template: usize, op: Operation, types: &[TensorType]) -> Option<Candidate> {
        op.infer(&Types { operands: types, regions: &[] }).ok()?;
        let pattern = build(&op, self.templates[template].spelling, types)?;
        Some(Candidate { op, types: types.to_vec(), pattern })
    }
}

/// The types of a sample, its names bound to small sizes.
fn bound(sample: &Sample) -> Vec<TensorType> {
    let size = |dim: &Dim| dim.size().unwrap_or(4);
    let bind = |shape: &Shape| shape.0.iter().map(size).collect::<Vec<usize>>();
    sample.operands.iter().map(|operand| operand.ty.with_shape(bind(&operand.ty.shape))).collect()
}

/// Axes are attributes that depend on the rank: every whole number may be any axis.
fn variants(op: &Operation, rank: usize) -> Vec<Operation> {
    let attributes = op.attributes();
    let mut variants = vec![op.clone()];
    for (name, _) in attributes.iter().filter(|(_, value)| value.is_u64()) {
        for axis in 0..rank {
            let mut changed = attributes.clone();
            changed.insert(name.clone(), Json::from(axis));
            variants.extend(Operation::parse(&op.name(), changed).ok().filter(|other| other != op));
        }
    }
    variants
}

/// The pattern of `op`, or `None` where it has none at these types.
fn build(op: &Operation, spelling: Option<Spelling>, types: &[TensorType]) -> Option<Graph> {
    let b = Builder::new(&op.name());
    let args: Vec<Expr<'_>> =
        types.iter().enumerate().map(|(i, ty)| b.input(&i.to_string(), ty.clone())).collect();
    let result = match spelling {
        None => op.expand(&b, &args, &[])[0],
        Some(spelling) => spelling(op, &args)?,
    };
    b.output("0", result);
    let simple = |graph: Graph| cse(&fold(&primitives(&graph))?);
    let pattern = simple(b.finish().ok()?).expect("patterns are well typed");
    let computed = matches!(pattern.origin(pattern.outputs()[0].value), Origin::Node(..));
    let uses = pattern.use_counts();
    let whole = pattern.inputs().iter().all(|port| uses[port.value.0 as usize] > 0);
    (computed && whole && !is_arithmetic(&pattern)).then_some(pattern)
}

/// Whether a pattern is a sum or product of its inputs and nothing else: every formula has some, and what they mean
/// (a scale, a bias) is not in them.
fn is_arithmetic(pattern: &Graph) -> bool {
    let plain = |op: &Operation| match op.prim() {
        Some(Prim::Binary { kind }) => {
            matches!(kind, Binary::Add | Binary::Sub | Binary::Mul | Binary::Div)
        }
        Some(prim) => matches!(
            prim,
            Prim::Constant { .. } | Prim::Convert { .. } | Prim::Broadcast { .. } | Prim::Reshape { .. }
        ),
        None => false,
    };
    pattern.nodes().iter().all(|node| plain(&node.op))
}

/// The graph without composites.
fn primitives(graph: &Graph) -> Graph {
    let expanded = graph.rewrite(&mut |b, node, operands| {
        node.op.prim().is_none().then(|| {
            let types: Vec<TensorType> = operands.iter().map(|x| x.ty()).collect();
            b.inline(&primitives(&node.op.expansion(&types, &node.regions)), operands)
        })
    });
    expanded.expect("expansions are well typed")
}
