//! Products of one left operand (query, key and value) as one step.
//!
//! Each of them alone has too few tiles for the device. Together they are one grid over the tiles
//! of all. A tile looks up its right operand, result and buffers. Types that this kernel does not
//! take become launches beside each other.

use super::beside::{self, BESIDE};
use super::compile::key;
use super::hopper::{self, HopperTile, HopperWork};
use crate::compiler::Architecture;
use crate::launch::{Launch, Refusal, Site};
use overdrive_ir::plan::{GemmCall, Step, StepKind};

/// Most products of one launch: their tensor maps are its parameters.
const MOST: usize = 8;

/// Sums of two rounds of an H200 in tiles of 128 x 128. Products of codes that have as many fill a
/// device alone. cuBLASLt does these faster than our kernel does all of them: 60.0 us for [8192,
/// 2048] x [2048, 2048] with a bias, and ours 67.8.
const FILLING: usize = 2 * 132 * 128 * 128;

/// The choice to launch products one by one.
pub(crate) const APART: &str = "apart";

/// Whether one launch can do `step` together with `steps`. The products must be equal to the last
/// detail and have the same left operand. Some tile must take them, or they must be better beside
/// each other.
pub(crate) fn joins(steps: &[&Step], step: &Step, architecture: Architecture) -> bool {
    let (StepKind::Gemm(of), StepKind::Gemm(other)) = (&steps[0].kind, &step.kind) else {
        return false;
    };
    let equal = other.lhs.slot == of.lhs.slot && key(other) == key(of);
    let plain = of.batch.is_empty() && steps[0].aliases.is_empty() && step.aliases.is_empty();
    let has_tile = architecture == Architecture::Sm90a && hopper::takes(of);
    let is_library_s = of.lhs.dtype.is_fp8() && of.m * of.n >= FILLING;
    let some_take = has_tile || beside::takes(of);
    equal && plain && !is_library_s && steps.len() < MOST && some_take
}

/// The products among steps.
pub(crate) fn calls(steps: &[&Step]) -> Vec<GemmCall> {
    let call = |step: &&Step| match &step.kind {
        StepKind::Gemm(call) => Some(call.clone()),
        _ => None,
    };
    steps.iter().filter_map(call).collect()
}

/// The key by which a `Tuning` remembers products that run together.
pub(crate) fn key_together(calls: &[GemmCall]) -> String {
    format!("{} x {}", calls.len(), key(&calls[0]))
}

/// The tiles that products can be computed in together, by the time that they are expected to take.
pub(super) fn tiles(calls: &[GemmCall], multiprocessors: u32) -> Vec<HopperTile> {
    hopper::tiles(&calls[0], calls.len(), multiprocessors)
}

/// Compiles products that were gathered: as remembered, else in the best guess.
///
/// # Errors
/// As `compile` of one.
pub(crate) fn compile_together(
    site: &Site<'_>,
    calls: &[GemmCall],
) -> Result<Box<dyn Launch>, Refusal> {
    let chosen = site.tuning.choices.get(&key_together(calls));
    if beside::takes(&calls[0]) || chosen.is_some_and(|choice| choice.candidate == BESIDE) {
        return beside::compile(site, calls);
    }
    let chosen = chosen.and_then(|choice| choice.candidate.parse().ok());
    for tile in chosen.into_iter().chain(tiles(calls, site.device.properties().multiprocessors)) {
        if let Some(launch) = hopper::compile(site, HopperWork::of(calls), tile)? {
            return Ok(launch);
        }
    }
    Err(Refusal::Unsupported(format!("no tile takes {}", key_together(calls))))
}
