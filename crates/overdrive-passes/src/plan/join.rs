//! Merges consecutive steps of a plan into one launch.
//!
//! Each step alone pays for a launch, a first read of far memory and a last wave. One launch can
//! do, for example:
//! - products of one left operand (query, key and value), also with the norm before them;
//! - the optimizer's updates of a hundred parameters;
//! - a product and the norm of its rows.
//!
//! The device says which steps one launch can do, and which it should.
//!
//! Invariant: no step of a launch reads what another of them writes, or shares a byte that another
//! writes. The steps may thus run in any order and at once. The exception is a step that follows
//! another. Its launch keeps the order for values that one passes to the other. Copies that start
//! between steps are no obstacle if they share no slots with them.

use super::overwrite::placed;
use super::settle;
use overdrive_ir::plan::{Bond, Note, Plan, SlotId, SlotPlace, Space, Step, StepKind};
use overdrive_ir::{Call, Decline, Target, Tuning};
use std::ops::Range;

/// Most steps between a product and another that runs as early as it does.
const FAR: usize = 16;

/// Brings steps into one launch where the device can and should. The slots of one launch live at
/// once, and it may take the scratch of each. If a memory limit has no room for that, only steps
/// that hand nothing on and take no more scratch are brought together.
pub(crate) fn join(plan: &mut Plan, target: &dyn Target, tuning: &Tuning) {
    let Some(limit) = tuning.memory_limit else {
        return gather(plan, (target, tuning), (&Bond::ALL, usize::MAX));
    };
    let mut all = plan.clone();
    gather(&mut all, (target, tuning), (&Bond::ALL, usize::MAX));
    if placed(&all).peak_bytes(Space::MAIN) <= limit {
        *plan = all;
    } else {
        let what = "small steps, and steps over the rows of a product, into one launch".to_owned();
        let reason = format!("what one launch does lives at once, in more than {limit} bytes");
        plan.notes.push(Note::Declined { what, scope: String::new(), reason });
        let scratch = plan.scratch_bytes();
        gather(plan, (target, tuning), (&[Bond::Sum, Bond::Alike], scratch));
    }
}

/// Brings steps together by these bonds, where they take at most so much scratch.
fn gather(
    plan: &mut Plan,
    (target, tuning): (&dyn Target, &Tuning),
    (bonds, most): (&[Bond], usize),
) {
    let can = |bond: Bond, steps: &[&Step]| target.kernel(&Call::Joined(bond, steps)).is_ok();
    let mut first = 0;
    while first < plan.steps.len() {
        let found = bonds.iter().find_map(|&bond| {
            let members = match bond {
                Bond::Small => small(plan, first, |steps| can(bond, steps)),
                Bond::Sum => summands(plan, first, |steps| can(bond, steps)),
                Bond::Alike => alike(plan, first, |steps| can(bond, steps)),
                Bond::Rows => follower(plan, first, target),
            };
            (members.len() > 1).then_some((bond, members))
        });
        if let Some((bond, members)) = found {
            let steps: Vec<&Step> = members.iter().map(|&step| &plan.steps[step]).collect();
            let parts = steps.iter().map(|&step| step.clone()).collect();
            let launch = Step { kind: StepKind::Joined(bond, parts), ..steps[0].clone() };
            let scratch = settle::scratch(&launch, target);
            if scratch <= most && target.kernel(&Call::Faster(bond, &steps, tuning)).is_ok() {
                unite(plan, bond, &members);
                plan.steps[first].scratch_bytes = scratch;
            }
        }
        first += 1;
    }
}

/// Makes one step of several, in the place of the first.
fn unite(plan: &mut Plan, bond: Bond, members: &[usize]) {
    let gone = members[1..].iter().rev().map(|&step| plan.steps.remove(step));
    let mut steps: Vec<Step> = gone.collect();
    let first = members[0];
    steps.push(plan.steps[first].clone());
    steps.reverse();
    let head = &mut plan.steps[first];
    for step in &steps[1..] {
        head.reads.extend(&step.reads);
        head.writes.extend(&step.writes);
        head.aliases.extend(&step.aliases);
        head.cost.flops += step.cost.flops;
        head.cost.bytes += step.cost.bytes;
    }
    head.reads.sort_unstable();
    head.reads.dedup();
    if bond != Bond::Alike {
        // Values passed within the launch are not read from memory.
        head.reads.retain(|slot| {
            !steps.iter().any(|step| step.writes.contains(slot)) || steps[0].reads.contains(slot)
        });
    }
    if bond == Bond::Sum {
        head.writes = steps[steps.len() - 1].writes.clone();
    }
    head.name = name(bond, &steps);
    head.kind = StepKind::Joined(bond, steps);
}

/// The name of several steps as one.
fn name(bond: Bond, steps: &[Step]) -> String {
    let several = |steps: &[Step]| match steps {
        [one] => one.name.clone(),
        _ => format!("{} x {}", steps.len(), steps[0].name),
    };
    let are_products = steps.iter().all(|step| matches!(step.kind, StepKind::Gemm(_)));
    match bond {
        Bond::Sum => format!("sum of {}", several(steps)),
        Bond::Alike => several(steps),
        Bond::Small if are_products => several(steps),
        Bond::Small | Bond::Rows => format!("{} then {}", steps[0].name, several(&steps[1..])),
    }
}

/// Small steps that one launch does with `first`, itself included.
fn small(plan: &Plan, first: usize, can: impl Fn(&[&Step]) -> bool) -> Vec<usize> {
    let mut members = vec![first];
    if !is_work(&plan.steps[first]) {
        return members;
    }
    let fixed = |x: &SlotId, y: &SlotId| x != y && is_one_state(plan, *x, *y);
    for (at, step) in plan.steps.iter().enumerate().skip(first + 1) {
        if !is_work(step) {
            continue;
        }
        if waits_for_copy(plan, first..at, step) {
            break;
        }
        let mut all: Vec<&Step> = members.iter().map(|&member| &plan.steps[member]).collect();
        let meets = all.iter().any(|member| member.meets(step, fixed));
        all.push(step);
        if meets || !can(&all) {
            break;
        }
        members.push(at);
    }
    let all = || members.iter().map(|&member| &plan.steps[member]);
    // Loops that are alike have a launch without that limit of units.
    if all().all(|step| matches!(step.kind, StepKind::Loop(_))) {
        return vec![first];
    }
    // Values passed from one step to another exist in no other launch.
    let takes = |step: &Step, slot: &SlotId| match &step.kind {
        StepKind::Gemm(call) => call.lhs.slot == *slot,
        // A product's left operand, or the part that is written into a whole.
        StepKind::Kernel(call) => {
            let taken = call.operands.get(usize::from(call.epilogue.is_none()));
            taken.is_some_and(|view| view.slot == *slot)
        }
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

/// The steps that are as `first` is and have nothing to do with it, itself included.
fn alike(plan: &Plan, first: usize, can: impl Fn(&[&Step]) -> bool) -> Vec<usize> {
    let far = if matches!(plan.steps[first].kind, StepKind::Gemm(_)) { FAR } else { 0 };
    from_afar(plan, (first, far), |known, step| {
        !known.iter().any(|other| depends(plan, other, step)) && can(&[known, &[step]].concat())
    })
}

/// `first` and the steps that add to its result. Values passed from one step to another exist in no
/// other launch.
fn summands(plan: &Plan, first: usize, can: impl Fn(&[&Step]) -> bool) -> Vec<usize> {
    from_afar(plan, (first, FAR), |known, step| {
        let handed = &known[known.len() - 1].writes;
        let readers = |slot: &SlotId| plan.steps.iter().filter(|s| s.reads.contains(slot)).count();
        let becomes_state = |slot: &SlotId| plan.updates.iter().any(|(_, _, new)| new == slot);
        let only_step = |s: &SlotId| in_arena(plan, *s) && readers(s) == 1 && !becomes_state(s);
        let fixed = |x: &SlotId, y: &SlotId| x != y && is_one_state(plan, *x, *y);
        can(&[known, &[step]].concat())
            && handed.iter().all(only_step)
            && !known.iter().any(|other| other.meets(step, fixed))
    })
}

/// `first` and the steps after it that `takes` agrees to, given the steps taken so far. At most
/// `far` steps are passed over. No taken step depends on a step that was passed over before it.
fn from_afar(
    plan: &Plan,
    (first, far): (usize, usize),
    takes: impl Fn(&[&Step], &Step) -> bool,
) -> Vec<usize> {
    let (mut members, mut passed) = (vec![first], Vec::new());
    if !is_work(&plan.steps[first]) {
        return members;
    }
    for (at, step) in plan.steps.iter().enumerate().skip(first + 1) {
        if !is_work(step) {
            continue;
        }
        let known: Vec<&Step> = members.iter().map(|&member| &plan.steps[member]).collect();
        let waits = || passed.iter().any(|other: &&Step| depends(plan, other, step));
        let copied = || waits_for_copy(plan, first..at, step);
        if takes(&known, step) && !waits() && !copied() {
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

/// `first` and the step that one launch can do after it, which reads its results and shares no byte
/// with what else it touches. The plan notes why not where the device has a reason.
fn follower(plan: &mut Plan, first: usize, target: &dyn Target) -> Vec<usize> {
    let step = &plan.steps[first];
    let next = plan.steps[first + 1..].iter().position(is_work).map(|after| first + 1 + after);
    let Some(at) = next.filter(|_| is_work(step)) else { return vec![first] };
    let next = &plan.steps[at];
    if waits_for_copy(plan, first..at, next) {
        return vec![first];
    }
    let reason = match target.kernel(&Call::Joined(Bond::Rows, &[step, next])) {
        Err(Decline::NoKernel) => return vec![first],
        Err(Decline::Because(reason)) => reason,
        Ok(_) => {
            let meets = |slot: &SlotId| {
                next.writes.iter().any(|&w| w == *slot || is_one_state(plan, w, *slot))
            };
            if !step.reads.iter().chain(&step.writes).any(meets) {
                return vec![first, at];
            }
            "its result lies where the other's operands do".to_owned()
        }
    };
    let what = format!("{} into the launch of {}", next.name, step.name);
    let scope = next.scope.clone();
    plan.notes.push(Note::Declined { what, scope, reason });
    vec![first]
}

/// Whether a step runs in every call, on the stream of work.
fn is_work(step: &Step) -> bool {
    !step.prepare && step.stream == 0
}

/// Whether a step has to do with a copy that starts among these steps: it cannot come before then.
/// Other copies run on beside whatever one launch does.
fn waits_for_copy(plan: &Plan, among: Range<usize>, step: &Step) -> bool {
    let mut copies = plan.steps[among].iter().filter(|other| other.stream != 0);
    copies.any(|copy| depends(plan, copy, step))
}

/// Whether one of two steps writes what the other touches.
fn depends(plan: &Plan, a: &Step, b: &Step) -> bool {
    a.meets(b, |x, y| x == y || is_one_state(plan, *x, *y))
}

fn in_arena(plan: &Plan, slot: SlotId) -> bool {
    matches!(plan.slot(slot).place, SlotPlace::Arena { .. })
}

/// Whether two slots are one state: what it was, and what it becomes. Places in an arena come later
/// and keep apart what must be.
fn is_one_state(plan: &Plan, a: SlotId, b: SlotId) -> bool {
    match (&plan.slot(a).place, &plan.slot(b).place) {
        (SlotPlace::State(one), SlotPlace::State(other)) => one == other,
        _ => false,
    }
}
