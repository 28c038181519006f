//! Patterns: what an op, or another spelling of it, computes in primitives at given operand types.

use super::canonical::canonical;
use super::sketch::{OpKind, kind};
use super::spellings::{SPELLINGS, Spelling};
use crate::rebuild::live;
use crate::{cse, fold};
use overdrive_ir::{
    Binary, Builder, Dim, Expr, Graph, Operation, Origin, Prim, Sample, Shape, TensorType, Types,
    Unary, ops::OPS,
};
use serde_json::Value as Json;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

/// Tuples of operand types that are tried at one node.
const MOST_TUPLES: usize = 4096;

/// An op with attributes as its samples have them, and one way of writing it.
struct Template {
    /// The same but for whole numbers.
    ops: Vec<Operation>,
    operands: usize,
    spelling: Option<Spelling>,
    /// The pattern at the types of a sample.
    sketch: Rc<Graph>,
    /// The op that computes its result.
    root: OpKind,
}

/// An op at operand types, and the graph that it is in primitives: inputs in order, one output.
pub(super) struct OpPattern {
    pub(super) op: Operation,
    pub(super) types: Vec<TensorType>,
    pub(super) pattern: Graph,
}

/// A template at the type of a result and the types that each operand may have.
type Key = (usize, TensorType, Vec<Vec<TensorType>>);

/// Templates, largest first, and the candidates built so far.
pub(super) struct Patterns {
    templates: Vec<Template>,
    built: HashMap<Key, Rc<Vec<OpPattern>>>,
}

impl Patterns {
    /// Those whose operations are all among `kinds`.
    pub(super) fn within(kinds: &HashSet<OpKind>) -> Self {
        let mut templates: Vec<Template> = Vec::new();
        for entry in OPS {
            let mut seen: Vec<(Json, usize)> = Vec::new();
            for sample in (entry.samples)().iter().filter(|s| s.regions.is_empty()) {
                let (shared, operands) = (without_integers(&sample.op), sample.operands.len());
                if seen.contains(&(shared.clone(), operands)) {
                    let same = |t: &&mut Template| {
                        t.operands == operands && without_integers(&t.ops[0]) == shared
                    };
                    let same =
                        templates.iter_mut().filter(|t| t.ops[0].name() == entry.name).filter(same);
                    same.filter(|t| !t.ops.contains(&sample.op))
                        .for_each(|t| t.ops.push(sample.op.clone()));
                    continue;
                }
                seen.push((shared, operands));
                let types = bound(sample);
                let others =
                    SPELLINGS.iter().filter(|(name, _)| *name == entry.name).map(|s| Some(s.1));
                for spelling in std::iter::once(None).chain(others) {
                    let Some(written) = written(&sample.op, spelling, &types) else { continue };
                    if !telling(&written).all(|kind| kinds.contains(&kind)) {
                        continue;
                    }
                    let Some(sketch) = simplified(&written) else { continue };
                    let root = kind(&sketch.nodes().last().expect("a pattern has nodes").op);
                    templates.push(Template {
                        ops: vec![sample.op.clone()],
                        operands,
                        spelling,
                        sketch: Rc::new(sketch),
                        root,
                    });
                }
            }
        }
        templates.sort_by_key(|template| std::cmp::Reverse(template.sketch.nodes().len()));
        Self { templates, built: HashMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.templates.len()
    }

    /// The kind of operation that computes the result.
    pub(super) fn root(&self, template: usize) -> OpKind {
        self.templates[template].root
    }

    /// The pattern at some types.
    pub(super) fn sketch(&self, template: usize) -> Rc<Graph> {
        self.templates[template].sketch.clone()
    }

    /// The template at every choice of operand types that gives `result`.
    pub(super) fn candidates(
        &mut self,
        template: usize,
        result: &TensorType,
        types: Vec<Vec<TensorType>>,
    ) -> Rc<Vec<OpPattern>> {
        let Template { ops, spelling, .. } = &self.templates[template];
        let key = (template, result.clone(), types);
        if let Some(built) = self.built.get(&key) {
            return built.clone();
        }
        let mut candidates = Vec::new();
        let count = |all: usize, choices: &Vec<TensorType>| all.checked_mul(choices.len());
        let tuples = key.2.iter().try_fold(1, count).filter(|&n| n <= MOST_TUPLES);
        for op in ops.iter().flat_map(|op| variants(op, result.rank())) {
            for mut tuple in 0..tuples.unwrap_or(0) {
                let choose = |choices: &Vec<TensorType>| {
                    let choice = choices[tuple % choices.len()].clone();
                    tuple /= choices.len();
                    choice
                };
                let types: Vec<TensorType> = key.2.iter().map(choose).collect();
                let inferred = op.infer(&Types { operands: &types, regions: &[] });
                if inferred.is_ok_and(|types| types[0] == *result)
                    && let Some(pattern) = build(&op, *spelling, &types)
                {
                    candidates.push(OpPattern { op: op.clone(), types, pattern });
                }
            }
        }
        let candidates = Rc::new(candidates);
        self.built.insert(key, candidates.clone());
        candidates
    }

    /// The template with other attributes, at the same types.
    pub(super) fn again(
        &self,
        template: usize,
        op: Operation,
        types: &[TensorType],
    ) -> Option<OpPattern> {
        op.infer(&Types { operands: types, regions: &[] }).ok()?;
        let pattern = build(&op, self.templates[template].spelling, types)?;
        Some(OpPattern { op, types: types.to_vec(), pattern })
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

/// Attributes of an op, without the whole numbers.
fn without_integers(op: &Operation) -> Json {
    op.attributes().into_iter().filter(|(_, value)| !value.is_u64()).collect()
}

/// The pattern of `op`, or `None` where it has none at these types.
fn build(op: &Operation, spelling: Option<Spelling>, types: &[TensorType]) -> Option<Graph> {
    simplified(&written(op, spelling, types)?)
}

/// `op` in primitives, as it is written.
fn written(op: &Operation, spelling: Option<Spelling>, types: &[TensorType]) -> Option<Graph> {
    let b = Builder::new(&op.name());
    let args: Vec<Expr<'_>> =
        types.iter().enumerate().map(|(i, ty)| b.input(&i.to_string(), ty.clone())).collect();
    let result = match spelling {
        None => op.expand(&b, &args, &[])[0],
        Some(spelling) => spelling(op, &args)?,
    };
    b.output("0", result);
    Some(primitives(&b.finish().ok()?))
}

/// A pattern in the form that graphs are searched in, unless it says nothing.
fn simplified(written: &Graph) -> Option<Graph> {
    let pattern =
        fold(&canonical(&fold(written).ok()?).ok()?).and_then(|graph| cse(&graph)).ok()?;
    let computed = matches!(pattern.origin(pattern.outputs()[0].value), Origin::Node(..));
    let uses = pattern.use_counts();
    let whole = pattern.inputs().iter().all(|port| uses[port.value.0 as usize] > 0);
    (computed && whole && !is_arithmetic(&pattern)).then_some(pattern)
}

/// Operations of a pattern that neither fold nor have another form: without them, the op is not in
/// a graph.
fn telling(pattern: &Graph) -> impl Iterator<Item = OpKind> {
    let live = live(pattern);
    let telling = |op: &Operation| match op.prim() {
        Some(Prim::Unary { kind }) => {
            use Unary::{Abs, Cos, Erf, Exp, Floor, Log, Round, Sin, Tanh};
            matches!(kind, Abs | Cos | Erf | Exp | Floor | Log | Round | Sin | Tanh)
        }
        Some(prim) => matches!(
            prim,
            Prim::DotGeneral(_)
                | Prim::Convolution(_)
                | Prim::Reduce { .. }
                | Prim::ReduceWindow { .. }
                | Prim::Gather { .. }
                | Prim::Scatter { .. }
                | Prim::Sort { .. }
                | Prim::RandomBits { .. }
        ),
        None => false,
    };
    let needed =
        pattern.nodes().iter().filter(move |node| node.results.iter().any(|v| live[v.0 as usize]));
    needed.filter(move |node| telling(&node.op)).map(|node| kind(&node.op))
}

/// Whether a pattern is a sum or product of its inputs and nothing else. Every formula has some of
/// these, and their meaning (a scale, a bias) is not in them.
fn is_arithmetic(pattern: &Graph) -> bool {
    let plain = |op: &Operation| match op.prim() {
        Some(Prim::Binary { kind }) => {
            matches!(kind, Binary::Add | Binary::Sub | Binary::Mul | Binary::Div)
        }
        Some(prim) => matches!(
            prim,
            Prim::Constant { .. }
                | Prim::Convert { .. }
                | Prim::Broadcast { .. }
                | Prim::Reshape { .. }
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
