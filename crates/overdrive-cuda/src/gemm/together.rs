//! `Together`: products of one left operand that a plan has in a row (query, key and value), as one launch.
//!
//! Each of them alone has too few tiles for the device, and pays for a launch, a first read of far memory and a last
//! wave. Together they are one grid over the tiles of all, where a tile looks up its right operand, result and buffers.
//! Invariant: the products gathered read nothing that another of them writes, and share no byte of the arena that one
//! of them writes, so that they may run in any order and at once.

use super::compile::key;
use super::hopper::{self, Tile};
use crate::Device;
use crate::compiler::Architecture;
use crate::launch::{Launch, Refusal, Site};
use overdrive_ir::plan::{GemmCall, Place, StepKind};
use overdrive_ir::{Mode, Plan, SlotId, Tuning};
use std::collections::BTreeMap;

/// Most products of one launch: their tensor maps are its parameters.
const MOST: usize = 8;

/// The choice to launch products one by one.
pub(super) const APART: &str = "apart";

/// The calls of steps that stand for several products, by the position of the step.
pub type Together = BTreeMap<usize, Vec<GemmCall>>;

/// Gathers products that can run together into the step of the first of them, in modes that fuse, where `wanted` says
/// so; a step's name then says how many it is.
pub fn gather(plan: &mut Plan, wanted: impl Fn(&[GemmCall]) -> bool) -> Together {
    let mut together = Together::new();
    if !matches!(plan.mode, Mode::Compile | Mode::Graph) {
        return together;
    }
    let mut first = 0;
    while first < plan.steps.len() {
        let members = members(plan, first);
        let calls = || members.iter().map(|&step| call(plan, step).clone()).collect::<Vec<GemmCall>>();
        let calls = if members.len() > 1 { calls() } else { vec![] };
        if !calls.is_empty() && wanted(&calls) {
            for &step in members[1..].iter().rev() {
                let gone = plan.steps.remove(step);
                let head = &mut plan.steps[first];
                head.reads.extend(gone.reads);
                head.writes.extend(gone.writes);
                head.cost.flops += gone.cost.flops;
                head.cost.bytes += gone.cost.bytes;
            }
            let head = &mut plan.steps[first];
            head.reads.sort_unstable();
            head.reads.dedup();
            head.name = format!("{} x {}", calls.len(), head.name);
            together.insert(first, calls);
        }
        first += 1;
    }
    together
}

fn call(plan: &Plan, step: usize) -> &GemmCall {
    match &plan.steps[step].kind {
        StepKind::Gemm(call) => call,
        other => unreachable!("gathered {other:?}"),
    }
}

/// The steps that can run with `first`, itself included: products that follow one another but for prepare steps, equal
/// to the last detail, of the same left operand.
fn members(plan: &Plan, first: usize) -> Vec<usize> {
    let head = &plan.steps[first];
    let StepKind::Gemm(of) = &head.kind else { return vec![first] };
    if head.prepare || !of.batch.is_empty() || !head.aliases.is_empty() {
        return vec![first];
    }
    let mut members = vec![first];
    for (at, step) in plan.steps.iter().enumerate().skip(first + 1) {
        if step.prepare {
            continue;
        }
        let StepKind::Gemm(other) = &step.kind else { break };
        let equal = other.lhs.slot == of.lhs.slot && key(other) == key(of) && step.aliases.is_empty();
        if !equal || members.len() == MOST || members.iter().any(|&member| conflict(plan, member, at)) {
            break;
        }
        members.push(at);
    }
    members
}

/// Whether one of two steps writes bytes that the other touches.
fn conflict(plan: &Plan, a: usize, b: usize) -> bool {
    let [a, b] = [a, b].map(|step| &plan.steps[step]);
    let meet = |x: &SlotId, y: &SlotId| x == y || overlap(plan, *x, *y);
    let touches =
        |writer: &[SlotId], other: &[SlotId]| writer.iter().any(|w| other.iter().any(|o| meet(w, o)));
    touches(&a.writes, &b.reads) || touches(&a.writes, &b.writes) || touches(&b.writes, &a.reads)
}

/// Whether two slots share bytes of the arena.
fn overlap(plan: &Plan, a: SlotId, b: SlotId) -> bool {
    let range = |slot: SlotId| match plan.slot(slot).place {
        Place::Arena { space, offset } => Some((space, offset, offset + plan.slot(slot).bytes())),
        _ => None,
    };
    match (range(a), range(b)) {
        (Some((s, a0, a1)), Some((t, b0, b1))) => s == t && a0 < b1 && b0 < a1,
        _ => false,
    }
}

/// What a `Tuning` remembers products by that run together.
pub(crate) fn key_together(calls: &[GemmCall]) -> String {
    format!("{} x {}", calls.len(), key(&calls[0]))
}

/// The tiles that products can be computed in together, by the time that they are expected to take.
pub(super) fn tiles(calls: &[GemmCall], multiprocessors: u32) -> Vec<Tile> {
    hopper::tiles(&calls[0], calls.len(), multiprocessors)
}

/// Whether products that can be gathered should be: some tile takes them, and one by one is not known to be faster.
pub fn run_together(device: &Device, tuning: &Tuning, calls: &[GemmCall]) -> bool {
    let chosen = tuning.choices.get(&key_together(calls));
    device.architecture() == Architecture::Sm90a
        && chosen.is_none_or(|choice| choice.candidate != APART)
        && !tiles(calls, device.properties().multiprocessors).is_empty()
}

/// Compiles products that were gathered: in the remembered tile, else in the best guess.
///
/// # Errors
/// As `compile` of one.
pub fn compile_together(site: &Site<'_>, calls: &[GemmCall]) -> Result<Box<dyn Launch>, Refusal> {
    let chosen = site.tuning.choices.get(&key_together(calls));
    let chosen = chosen.and_then(|choice| choice.candidate.parse().ok());
    for tile in chosen.into_iter().chain(tiles(calls, site.device.properties().multiprocessors)) {
        if let Some(launch) = hopper::compile(site, calls, tile)? {
            return Ok(launch);
        }
    }
    Err(Refusal::Unsupported(format!("no tile takes {}", key_together(calls))))
}
