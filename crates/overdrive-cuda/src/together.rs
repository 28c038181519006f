//! `Together`: steps that a plan has in a row, as one launch.
//!
//! Each of them alone pays for a launch, a first read of far memory and a last wave: products of one left operand (query,
//! key and value), or the optimizer's updates of a hundred parameters. Which steps one launch can do, `gemm` and `loops`
//! say. Invariant: the steps gathered read nothing that another of them writes, and share no byte that one of them writes,
//! so that they may run in any order and at once.

use overdrive_ir::plan::{Place, Step};
use overdrive_ir::{Mode, Plan, SlotId};
use std::collections::BTreeMap;

/// The steps that a step stands for, by its position.
pub type Together = BTreeMap<usize, Vec<Step>>;

/// Gathers steps into the first of them, in modes that fuse: those that follow one another but for prepare steps, where
/// `joins` takes one more to those there are, and `wanted` agrees to all. The step's name then says how many it is.
pub fn gather(
    plan: &mut Plan,
    joins: impl Fn(&[&Step], &Step) -> bool,
    wanted: impl Fn(&[Step]) -> bool,
) -> Together {
    let mut together = Together::new();
    if !matches!(plan.mode, Mode::Compile | Mode::Graph) {
        return together;
    }
    let mut first = 0;
    while first < plan.steps.len() {
        let members = members(plan, first, &joins);
        let steps: Vec<Step> = members.iter().map(|&step| plan.steps[step].clone()).collect();
        if steps.len() > 1 && wanted(&steps) {
            for &step in members[1..].iter().rev() {
                let gone = plan.steps.remove(step);
                let head = &mut plan.steps[first];
                head.reads.extend(gone.reads);
                head.writes.extend(gone.writes);
                head.aliases.extend(gone.aliases);
                head.cost.flops += gone.cost.flops;
                head.cost.bytes += gone.cost.bytes;
            }
            let head = &mut plan.steps[first];
            head.reads.sort_unstable();
            head.reads.dedup();
            head.name = format!("{} x {}", steps.len(), head.name);
            together.insert(first, steps);
        }
        first += 1;
    }
    together
}

/// The steps that can run with `first`, itself included.
fn members(plan: &Plan, first: usize, joins: impl Fn(&[&Step], &Step) -> bool) -> Vec<usize> {
    let mut members = vec![first];
    if plan.steps[first].prepare {
        return members;
    }
    for (at, step) in plan.steps.iter().enumerate().skip(first + 1) {
        if step.prepare {
            continue;
        }
        let known: Vec<&Step> = members.iter().map(|&member| &plan.steps[member]).collect();
        if !joins(&known, step) || known.iter().any(|member| conflict(plan, member, step)) {
            break;
        }
        members.push(at);
    }
    members
}

/// Whether one of two steps writes bytes that the other touches.
fn conflict(plan: &Plan, a: &Step, b: &Step) -> bool {
    let meet = |x: &SlotId, y: &SlotId| x == y || overlap(plan, *x, *y);
    let touches =
        |writer: &[SlotId], other: &[SlotId]| writer.iter().any(|w| other.iter().any(|o| meet(w, o)));
    touches(&a.writes, &b.reads) || touches(&a.writes, &b.writes) || touches(&b.writes, &a.reads)
}

/// Whether two slots share bytes: of the arena, or as what a state was and what it becomes.
fn overlap(plan: &Plan, a: SlotId, b: SlotId) -> bool {
    let bytes = |slot: SlotId| plan.slot(slot).bytes();
    match (&plan.slot(a).place, &plan.slot(b).place) {
        (Place::Arena { space: s, offset: i }, Place::Arena { space: t, offset: j }) => {
            s == t && *i < j + bytes(b) && *j < i + bytes(a)
        }
        (Place::State(one), Place::State(other)) => one == other,
        _ => false,
    }
}
