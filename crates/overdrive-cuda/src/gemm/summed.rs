//! Products whose sum alone is needed, as one launch. An example is the gradient of query, key and
//! value with respect to the norm before them.
//!
//! Apart, each product reads the sum so far and stores it again. Together they are one product,
//! whose contracted index runs through the operands of one after those of the other. The sum then
//! stays in registers, and is rounded once.

use super::compile::key;
use super::following::ReadyCandidates;
use super::hopper::{self, HopperTile, HopperWork};
use crate::launch::{Launch, Refusal, Site};
use overdrive_ir::plan::{Access, GemmCall, Instr, Program, Register, Step, StepKind};
use overdrive_ir::{Binary, DType};

/// Most products of one launch: their tensor maps are its parameters.
const MOST: usize = 8;

/// Whether a step only adds its product to the result of the last of some steps, which are such
/// products themselves.
pub(crate) fn adds(steps: &[&Step], step: &Step) -> bool {
    let (Some(before), Some(call)) = (alone(steps[steps.len() - 1]), alone(step)) else {
        return false;
    };
    let of = |call: &GemmCall| {
        let stored = &call.epilogue.0.stores[0];
        (stored.access.clone(), call.epilogue.0.dtype(stored.value))
    };
    let (to, dtype) = of(before);
    let begins = steps.len() > 1 || added(&before.epilogue.0) == Some(None);
    begins
        && added(&call.epilogue.0) == Some(Some((&to, dtype)))
        && of(call).1 == dtype
        && of(call).0.strides == to.strides
        && alike(call, before)
        && ![call.lhs.slot, call.rhs.slot].contains(&to.slot)
        && steps.len() < MOST
        && hopper::takes(call)
}

/// The product of a step that takes no operand's place and stores one result.
fn alone(step: &Step) -> Option<&GemmCall> {
    match &step.kind {
        StepKind::Gemm(call) if step.aliases.is_empty() && call.epilogue.0.stores.len() == 1 => {
            Some(call)
        }
        _ => None,
    }
}

/// Whether two products are the same but for the places of their operands and for their epilogues.
fn alike(call: &GemmCall, other: &GemmCall) -> bool {
    let views = |call: &GemmCall| {
        [&call.lhs, &call.rhs].map(|view| (view.dtype, view.row_stride, view.col_stride))
    };
    let shape = |call: &GemmCall| (call.m, call.n, call.k, call.accumulate, call.precision);
    views(call) == views(other)
        && shape(call) == shape(other)
        && call.batch.is_empty()
        && other.batch.is_empty()
}

/// The access that an epilogue adds to its sum before it rounds it, `Some(None)` for nothing;
/// `None` where it does anything else.
fn added(program: &Program) -> Option<Option<(&Access, DType)>> {
    let unrounded = |at: Register| match *program.instr(at) {
        Instr::Convert(from, _) => from,
        _ => at,
    };
    let at = unrounded(program.stores[0].value);
    let is_sum = |at: Register| matches!(program.instr(at), Instr::Accumulator);
    match *program.instr(at) {
        Instr::Accumulator => Some(None),
        Instr::Binary(Binary::Add, a, b) => {
            let other = if is_sum(a) { b } else { is_sum(b).then_some(a)? };
            match program.instr(unrounded(other)) {
                Instr::Load(access) => Some(Some((access, program.dtype(unrounded(other))))),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The first product, where the last one stores.
fn whole(calls: &[GemmCall]) -> GemmCall {
    let mut whole = calls[0].clone();
    whole.epilogue.0.stores[0].access = calls[calls.len() - 1].epilogue.0.stores[0].access.clone();
    whole
}

/// The key by which a `Tuning` remembers a sum of products.
pub(crate) fn key_summed(calls: &[GemmCall]) -> String {
    format!("sum of {} x {}", calls.len(), key(&calls[0]))
}

/// The tiles that a sum can be computed in, by the time that it is expected to take.
fn tiles(calls: &[GemmCall], multiprocessors: u32) -> Vec<HopperTile> {
    hopper::tiles_of(&calls[0], [1, calls.len()], multiprocessors)
}

/// Every way to compute a sum, best guess first.
pub(super) fn candidates(
    site: &Site<'_>,
    calls: &[GemmCall],
    most: usize,
) -> Result<ReadyCandidates, Refusal> {
    let whole = [whole(calls)];
    let work = HopperWork { terms: calls, ..HopperWork::of(&whole) };
    let mut ready = ReadyCandidates::new();
    for tile in tiles(calls, site.device.properties().multiprocessors) {
        if ready.len() < most
            && let Some(launch) = hopper::compile(site, work, tile)?
        {
            ready.push((tile.to_string(), launch));
        }
    }
    Ok(ready)
}

/// Compiles a sum of products: in the remembered tile, else in the best guess.
///
/// # Errors
/// As `compile` of one.
pub(crate) fn compile_summed(
    site: &Site<'_>,
    calls: &[GemmCall],
) -> Result<Box<dyn Launch>, Refusal> {
    let chosen = site.tuning.choices.get(&key_summed(calls));
    if let Some(tile) = chosen.and_then(|choice| choice.candidate.parse().ok()) {
        let whole = [whole(calls)];
        let work = HopperWork { terms: calls, ..HopperWork::of(&whole) };
        if let Some(launch) = hopper::compile(site, work, tile)? {
            return Ok(launch);
        }
    }
    let first = candidates(site, calls, 1)?.pop();
    first
        .map(|(_, launch)| launch)
        .ok_or_else(|| Refusal::Unsupported(format!("no tile takes {}", key_summed(calls))))
}
