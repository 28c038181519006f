//! Fuse: gathers nodes into `fused` ops, each of which becomes one loop nest or one contraction.
//!
//! There are two policies:
//! - `node_by_node` (modes eager and jit) keeps every op of the model a step of its own. A
//!   composite becomes one `fused` op if its expansion is one loop nest, or one contraction with
//!   its epilogue. A good kernel library would have a kernel for it. Otherwise it becomes its
//!   primitives.
//! - `groups` (mode compile) expands everything and merges along producer-consumer edges as long as
//!   the group still lowers. Nothing but the code that can be generated decides what fuses. Every
//!   refusal is a note.
//!
//! Invariant: the result evaluates as before.

mod grouping;
mod region;

pub(crate) use grouping::MAX_MEMBERS;
pub use grouping::groups;
pub(crate) use grouping::groups_among;
use region::is_loop;
pub(crate) use region::{cut_one, is_cloned, split_at};

use crate::legalize::{Uses, primitives, takes_epilogue, types};
use crate::lower::{contraction, folds_space, is_contraction, lower};
use overdrive_ir::ops::Fused;
use overdrive_ir::plan::{Instr, Note, Program, Register, SlotId, Store, View};
use overdrive_ir::{Expr, Graph, GraphError, Node, Prim, Target, Value};
use std::collections::BTreeSet;

/// True for a bare primitive that is a loop or a contraction by itself, and for a composite that is
/// one to the device.
pub(crate) fn is_step_of_its_own(graph: &Graph, node: &Node, target: &dyn Target) -> bool {
    match node.op.prim() {
        Some(prim) => is_loop(prim) && loops_take(graph, node, target) || is_contraction(node),
        None => takes_epilogue(graph, node, target),
    }
}

/// Whether the device's loops can load and store what a node reads and writes.
fn loops_take(graph: &Graph, node: &Node, target: &dyn Target) -> bool {
    node.operands
        .iter()
        .chain(&node.results)
        .all(|v| target.description().loop_dtypes.contains(&graph.ty(*v).dtype))
}

/// Errs with the type that the device's loops cannot load and store.
fn loops_take_all(region: &Graph, target: &dyn Target) -> Result<(), String> {
    let refused = region
        .values()
        .map(|v| region.ty(v).dtype)
        .find(|dtype| !target.description().loop_dtypes.contains(dtype));
    refused.map_or(Ok(()), |dtype| {
        Err(format!("loops of {} take no {dtype}", target.description().device))
    })
}

/// Errs with the reason why a region is not one step.
fn one_step(region: &Graph, target: &dyn Target) -> Result<(), String> {
    let alone = |n: &&Node| n.op.prim().is_none() && !takes_epilogue(region, n, target);
    if let Some(node) = region.nodes().iter().find(alone) {
        return Err(format!("`{}` is not a loop", node.op.name()));
    }
    let contractions = region.nodes().iter().filter(|n| is_contraction(n)).count();
    let reductions =
        region.nodes().iter().any(|n| matches!(n.op.prim(), Some(Prim::Reduce { .. })));
    let folds = target.description().folds_space && folds_space(region);
    if contractions > 1 || (contractions == 1 && reductions && !folds) {
        return Err(
            "a contraction's epilogue holds neither a second contraction nor a reduction".into()
        );
    }
    if let Some(node) = contraction(region)
        && !node.operands.iter().all(|&v| is_view_of_input(region, v))
    {
        return Err("a contraction reads buffers, not values computed beside it".into());
    }
    let view = |value| View::row_major(SlotId(0), region.ty(value).clone());
    let operands: Vec<View> = region.inputs().iter().map(|p| view(p.value)).collect();
    let results: Vec<View> = region.outputs().iter().map(|p| view(p.value)).collect();
    let program = lower(region, &operands, &results)?;
    if contractions == 1 && reductions { folds_once(&program) } else { folds_one_way(&program) }
}

/// Errs if one reduction reads along memory and another across it. Those of the rows and of the
/// columns of a square matrix do, and no order of one loop suits both.
fn folds_one_way(program: &Program) -> Result<(), String> {
    let folds = program.instrs.iter().filter_map(|instr| match instr {
        Instr::Reduce(fold) => Some(ways(program, fold.value)),
        _ => None,
    });
    let (mut only_along, mut only_across) = (false, false);
    for Ways { along, across } in folds {
        only_along |= along && !across;
        only_across |= across && !along;
    }
    match only_along && only_across {
        true => Err("a reduction along memory beside one across it".into()),
        false => Ok(()),
    }
}

/// How a value that is folded is read.
#[derive(Default)]
struct Ways {
    /// Along the folded dimension, elements follow each other in memory.
    along: bool,
    /// Along another dimension they do.
    across: bool,
}

/// The ways of all matrices that a folded value is computed from. A vector lies in none.
fn ways(program: &Program, folded: Register) -> Ways {
    let kept = program.extents.len() - program.reduced;
    let (mut found, mut pending) = (Ways::default(), vec![folded]);
    let mut seen = BTreeSet::new();
    while let Some(register) = pending.pop() {
        if !seen.insert(register) {
            continue;
        }
        match program.instr(register) {
            Instr::Reduce(_) => {}
            Instr::Load(access) => {
                let (kept, folded) = access.strides.split_at(kept);
                let is_matrix = [kept, folded].iter().all(|dims| dims.iter().any(|&s| s != 0));
                found.along |= is_matrix && folded.contains(&1);
                found.across |= is_matrix && kept.contains(&1);
            }
            instr => pending.extend(instr.operands()),
        }
    }
    found
}

/// Errs with the reason why sums that come part by part are not all that a program folds.
fn folds_once(program: &Program) -> Result<(), String> {
    let (varies, after) = (program.element_level(), program.after_reductions());
    let folds = program.instrs.iter().filter(|instr| matches!(instr, Instr::Reduce(_))).count();
    // A reduction itself does not vary.
    if varies.iter().zip(&after).any(|(varies, after)| *varies && *after) {
        return Err("what varies in space waits for the fold over it".into());
    }
    let spread = |store: &Store| after[store.value.0 as usize] && program.is_spread(&store.access);
    if program.stores.iter().any(spread) {
        return Err("a fold over space is spread over it again".into());
    }
    if program.instrs.iter().any(|instr| matches!(instr, Instr::RandomBits { .. })) {
        return Err("random bits are numbered by the pixels of a whole image".into());
    }
    if folds == 1 { Ok(()) } else { Err("an epilogue folds once".into()) }
}

/// True for a region input seen through views, or a scalar or iota that will be a buffer.
fn is_view_of_input(region: &Graph, value: Value) -> bool {
    region.producer(value).is_none_or(|node| {
        is_cloned(region, node) && node.operands.iter().all(|&v| is_view_of_input(region, v))
    })
}

/// Keeps each op one step where its expansion allows it, else expands it.
pub fn node_by_node(
    graph: &Graph,
    target: &dyn Target,
    notes: &mut Vec<Note>,
) -> Result<Graph, GraphError> {
    let uses = Uses::of(graph);
    graph.rewrite(&mut |b, node, operands| {
        let types = types(operands);
        if !uses.must_expand(node, &types, target) {
            return None;
        }
        let expansion = node.op.expansion(&types, &node.regions);
        let flat = primitives(&expansion, target);
        let operands: &[Expr<'_>] = operands;
        match loops_take_all(&flat, target).and_then(|()| one_step(&flat, target)) {
            Ok(()) => Some(b.node(Fused { label: node.op.name() }, operands, vec![flat])),
            Err(reason) => {
                notes.push(Note::Expanded {
                    op: node.op.name(),
                    scope: node.scope.to_string(),
                    reason,
                });
                let inner = node_by_node(&expansion, target, notes)
                    .unwrap_or_else(|e| panic!("expansions are well typed: {e}"));
                Some(b.inline(&inner, operands))
            }
        }
    })
}
