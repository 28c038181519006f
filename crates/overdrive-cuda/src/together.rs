//! `Together`: steps that a plan has in a row, as one launch.
//!
//! Each of them alone pays for a launch, a first read of far memory and a last wave: products of
//! one left operand (query, key and value), also with the norm before them, the optimizer's updates
//! of a hundred parameters, or a product and the norm of its rows. Which steps one launch can do,
//! `gemm` and `loops` say.
//! Invariant: the steps gathered read nothing that another of them writes, and share no byte that
//! one of them writes, so that they may run in any order and at once; but for a step that follows
//! another, whose launch sees to that order for what the one hands to the other. Copies that start
//! between steps are no obstacle where they have nothing to do with them.

use overdrive_ir::plan::{Note, Place, Step, StepKind};
use overdrive_ir::{Mode, Plan, SlotId};
use std::collections::BTreeMap;
use std::ops::Range;

/// The steps that a step stands for, by its position.
pub type Together = BTreeMap<usize, Vec<Step>>;

/// Most steps between a product and another that runs as early as it does.
const FAR: usize = 16;

/// Gathers steps into the first of them, in modes that fuse: those that follow one another but for
/// prepare steps, where `bunches` says that one launch can do all of them; else where `adds` says
/// that a step adds to what those there are give, or `joins` takes one more to them, and `wanted`
/// agrees to all. The step's name then says how many it is. Products may come from further on. Else
/// the step after it, where that reads what it writes and `follows` says that one launch does both;
/// the plan notes why not where it has a reason.
pub fn gather(
    plan: &mut Plan,
    bunches: impl Fn(&[&Step]) -> bool,
    (adds, joins): (impl Fn(&[&Step], &Step) -> bool, impl Fn(&[&Step], &Step) -> bool),
    follows: impl Fn(&Step, &Step) -> Option<Result<(), String>>,
    wanted: impl Fn(&[Step]) -> bool,
) -> Together {
    let mut together = Together::new();
    if !matches!(plan.mode, Mode::Compile | Mode::Graph) {
        return together;
    }
    let (mut first, mut chained) = (0, false);
    while first < plan.steps.len() {
        let bunch = bunched(plan, first, &bunches);
        let is_bunch = bunch.len() > 1;
        let mut members = if is_bunch { bunch } else { summands(plan, first, &adds) };
        let is_sum = members.len() > 1 && !is_bunch;
        if members.len() == 1 {
            members = beside_it(plan, first, &joins);
        }
        let beside = members.len() > 1 && !is_bunch && !is_sum;
        if members.len() == 1 {
            members.extend(follower(plan, first, &follows));
        }
        let steps: Vec<Step> = members.iter().map(|&step| plan.steps[step].clone()).collect();
        if steps.len() > 1 && (is_bunch || wanted(&steps)) {
            chained |= comes_from_afar(plan, &members);
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
            if !beside {
                chained = true;
                // What the one hands to the other is not read from memory.
                head.reads.retain(|slot| {
                    !steps.iter().any(|step| step.writes.contains(slot))
                        || steps[0].reads.contains(slot)
                });
            }
            if is_sum {
                head.writes = steps[steps.len() - 1].writes.clone();
            }
            head.name = name(&steps, (beside, is_sum));
            together.insert(first, steps);
        }
        first += 1;
    }
    // Events are those of the steps that there are now.
    if chained || plan.steps.iter().any(|step| step.stream != 0) {
        overdrive_passes::place(plan);
    }
    debug_assert_eq!(plan.verify(), Ok(()), "{plan}");
    together
}

/// What several steps are called as one.
fn name(steps: &[Step], (beside, is_sum): (bool, bool)) -> String {
    let several = |steps: &[Step]| match steps {
        [one] => one.name.clone(),
        _ => format!("{} x {}", steps.len(), steps[0].name),
    };
    if is_sum {
        return format!("sum of {}", several(steps));
    }
    match (&steps[0].kind, beside) {
        (StepKind::Gemm(_), false) if matches!(steps[1].kind, StepKind::Gemm(_)) => several(steps),
        (_, true) => several(steps),
        _ => format!("{} then {}", steps[0].name, several(&steps[1..])),
    }
}

/// The steps that one launch does with `first`, itself included. The arena is laid out again for
/// them as one step; buffers of others stay where they are.
fn bunched(plan: &Plan, first: usize, bunches: impl Fn(&[&Step]) -> bool) -> Vec<usize> {
    let mut members = vec![first];
    if plan.steps[first].prepare || plan.steps[first].stream != 0 {
        return members;
    }
    let fixed = |x: &SlotId, y: &SlotId| x != y && stays(plan, *x, *y);
    for (at, step) in plan.steps.iter().enumerate().skip(first + 1) {
        if step.prepare || step.stream != 0 {
            continue;
        }
        if waits_for_copy(plan, first..at, step) {
            break;
        }
        let mut all: Vec<&Step> = members.iter().map(|&member| &plan.steps[member]).collect();
        let meets = all.iter().any(|member| meet(member, step, fixed));
        all.push(step);
        if meets || !bunches(&all) {
            break;
        }
        members.push(at);
    }
    let all = || members.iter().map(|&member| &plan.steps[member]);
    // Loops that are alike have a launch without that limit of units.
    if all().all(|step| matches!(step.kind, StepKind::Loop(_))) {
        return vec![first];
    }
    // What one step hands to another exists in no other launch.
    let takes = |step: &Step, slot: &SlotId| match &step.kind {
        StepKind::Gemm(call) => call.lhs.slot == *slot,
        StepKind::Kernel(call) => call.operands.get(1).is_some_and(|view| view.slot == *slot),
        _ => false,
    };
    let mut handed = all().flat_map(|step| &step.writes);
    let private = handed.all(|slot| {
        let mut steps = plan.steps.iter().enumerate();
        let known = |(at, s): (usize, &Step)| members.contains(&at) || !s.reads.contains(slot);
        !all().any(|step| takes(step, slot)) || in_arena(plan, *slot) && steps.all(known)
    });
    if private { members } else { vec![first] }
}

/// The steps that can run with `first`, itself included.
fn beside_it(plan: &Plan, first: usize, joins: impl Fn(&[&Step], &Step) -> bool) -> Vec<usize> {
    let far = if matches!(plan.steps[first].kind, StepKind::Gemm(_)) { FAR } else { 0 };
    from_afar(plan, (first, far), |known, passed, step| {
        // Where nothing moves, the arena stays as it is.
        let meets = |other: &&Step| match passed {
            [] => conflict(plan, other, step),
            _ => depends(plan, other, step),
        };
        joins(known, step) && !known.iter().any(meets)
    })
}

/// The steps that add to what `first` gives, itself included. What one step hands to another exists
/// in no other launch.
fn summands(plan: &Plan, first: usize, adds: impl Fn(&[&Step], &Step) -> bool) -> Vec<usize> {
    from_afar(plan, (first, FAR), |known, _, step| {
        let handed = &known[known.len() - 1].writes;
        let readers = |slot: &SlotId| plan.steps.iter().filter(|s| s.reads.contains(slot)).count();
        let becomes_state = |slot: &SlotId| plan.updates.iter().any(|(_, _, new)| new == slot);
        let only_step = |s: &SlotId| in_arena(plan, *s) && readers(s) == 1 && !becomes_state(s);
        adds(known, step)
            && handed.iter().all(only_step)
            && !known.iter().any(|other| meet(other, step, |x, y| x != y && stays(plan, *x, *y)))
    })
}

/// `first` and the steps after it that `takes` agrees to, given those there are and those passed
/// over; at most `far` are, and none that has to do with a step that comes before it then.
fn from_afar(
    plan: &Plan,
    (first, far): (usize, usize),
    takes: impl Fn(&[&Step], &[&Step], &Step) -> bool,
) -> Vec<usize> {
    let (mut members, mut passed) = (vec![first], Vec::new());
    if plan.steps[first].prepare || plan.steps[first].stream != 0 {
        return members;
    }
    for (at, step) in plan.steps.iter().enumerate().skip(first + 1) {
        if step.prepare || step.stream != 0 {
            continue;
        }
        let known: Vec<&Step> = members.iter().map(|&member| &plan.steps[member]).collect();
        let waits = || passed.iter().any(|other: &&Step| depends(plan, other, step));
        let copied = || waits_for_copy(plan, first..at, step);
        if takes(&known, &passed, step) && !waits() && !copied() {
            members.push(at);
            continue;
        }
        passed.push(step);
        if passed.len() > far {
            break;
        }
    }
    members
}

/// Whether one of these steps runs before another that it came after.
fn comes_from_afar(plan: &Plan, members: &[usize]) -> bool {
    let last = members[members.len() - 1];
    let between = (members[0]..last).filter(|at| !members.contains(at));
    between.into_iter().any(|at| !plan.steps[at].prepare)
}

/// The step that one launch can do after `first`, which reads its results and shares no byte with
/// what else it touches.
fn follower(
    plan: &mut Plan,
    first: usize,
    follows: impl Fn(&Step, &Step) -> Option<Result<(), String>>,
) -> Option<usize> {
    let step = &plan.steps[first];
    let is_work = |step: &Step| !step.prepare && step.stream == 0;
    let at = first + 1 + plan.steps[first + 1..].iter().position(is_work)?;
    let next = &plan.steps[at];
    if step.prepare || step.stream != 0 || waits_for_copy(plan, first..at, next) {
        return None;
    }
    // The arena is laid out again for both as one step; buffers of others stay where they are.
    let meets = |slot: &SlotId| next.writes.iter().any(|&w| w == *slot || stays(plan, w, *slot));
    let reason = match follows(step, next)? {
        Ok(()) if !step.reads.iter().chain(&step.writes).any(meets) => return Some(at),
        Ok(()) => "its result lies where the other's operands do".to_owned(),
        Err(reason) => reason,
    };
    let what = format!("{} into the launch of {}", next.name, step.name);
    let scope = next.scope.clone();
    plan.notes.push(Note::Declined { what, scope, reason });
    None
}

/// Whether a step has to do with a copy that starts among these steps: it cannot come before then.
/// Other copies run on beside whatever one launch does.
fn waits_for_copy(plan: &Plan, among: Range<usize>, step: &Step) -> bool {
    let mut copies = plan.steps[among].iter().filter(|other| other.stream != 0);
    copies.any(|copy| depends(plan, copy, step))
}

/// Whether one of two steps writes bytes that the other touches.
fn conflict(plan: &Plan, a: &Step, b: &Step) -> bool {
    meet(a, b, |x, y| x == y || overlap(plan, *x, *y))
}

/// Whether one of two steps writes what the other touches, wherever the arena is laid out.
fn depends(plan: &Plan, a: &Step, b: &Step) -> bool {
    meet(a, b, |x, y| x == y || stays(plan, *x, *y))
}

/// Whether two slots share bytes that no other layout of the arena parts.
fn stays(plan: &Plan, a: SlotId, b: SlotId) -> bool {
    !(in_arena(plan, a) && in_arena(plan, b)) && overlap(plan, a, b)
}

fn in_arena(plan: &Plan, slot: SlotId) -> bool {
    matches!(plan.slot(slot).place, Place::Arena { .. })
}

/// Whether one of two steps writes a slot that is, by `same`, one that the other touches.
fn meet(a: &Step, b: &Step, same: impl Fn(&SlotId, &SlotId) -> bool) -> bool {
    let touches = |writer: &[SlotId], other: &[SlotId]| {
        writer.iter().any(|w| other.iter().any(|o| same(w, o)))
    };
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
