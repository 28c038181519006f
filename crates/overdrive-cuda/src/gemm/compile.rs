//! From a call to its launch: the remembered winner, or the first candidate that applies.

use super::candidate::GemmCandidate;
use super::scratch::scratch_bytes;
use crate::Error;
use crate::launch::{Addresses, Launch, Refusal, Site};
use cudarc::driver::CudaStream;
use overdrive_ir::plan::{GemmCall, Instr, Program, SlotId};
use std::sync::Arc;

/// Compiles a product: the candidate that `site.tuning` names under `key`, else the first that
/// applies.
///
/// # Errors
/// `Unsupported` for operands of types narrower than a byte and for results beyond the size of a
/// grid; `Failed` as `Device::function` and as cuBLASLt.
pub fn compile(site: &Site<'_>, call: &GemmCall) -> Result<Box<dyn Launch>, Refusal> {
    if call.epilogue.0.points() == 0 {
        return Ok(Box::new(Nothing));
    }
    if call.lhs.dtype.bits() < 8 || call.rhs.dtype.bits() < 8 {
        let remedy = "convert both sides to a type of at least 8 bits";
        let reason = format!(
            "products of {} and {} have no kernel; {remedy}",
            call.lhs.dtype, call.rhs.dtype
        );
        return Err(Refusal::Unsupported(reason));
    }
    let chosen =
        site.tuning.choices.get(&key(call)).and_then(|choice| choice.candidate.parse().ok());
    let others = GemmCandidate::all(site, call)?;
    let most = scratch_bytes(call);
    for candidate in chosen.into_iter().chain(others) {
        let launch = candidate.compile(site, call)?;
        // A choice that was remembered may be of a time when there was more.
        if let Some(launch) = launch.filter(|launch| launch.workspace_bytes() <= most) {
            return Ok(launch);
        }
    }
    Err(Refusal::Unsupported(format!("no kernel takes the product {}", key(call))))
}

/// The key by which a `Tuning` remembers a product: the call in words, without the numbers of
/// slots.
pub fn key(call: &GemmCall) -> String {
    let mut call = call.clone();
    let mut numbers = SlotNumbers::default();
    numbers.renumber(&mut call.lhs.slot);
    numbers.renumber(&mut call.rhs.slot);
    numbers.renumber_all(&mut call.epilogue.0);
    format!("gemm {}", call.to_string().split_whitespace().collect::<Vec<_>>().join(" "))
}

/// A program without the numbers of its slots.
pub(super) fn renumbered(program: &Program) -> Program {
    let mut program = program.clone();
    SlotNumbers::default().renumber_all(&mut program);
    program
}

/// Slots, numbered in the order of first use.
#[derive(Default)]
struct SlotNumbers {
    seen: Vec<SlotId>,
}

impl SlotNumbers {
    fn renumber(&mut self, slot: &mut SlotId) {
        let number = self.seen.iter().position(|s| s == slot).unwrap_or_else(|| {
            self.seen.push(*slot);
            self.seen.len() - 1
        });
        *slot = SlotId(number as u32);
    }

    fn renumber_all(&mut self, program: &mut Program) {
        for instr in &mut program.instrs {
            if let Instr::Load(access) = instr {
                self.renumber(&mut access.slot);
            }
        }
        program.stores.iter_mut().for_each(|store| self.renumber(&mut store.access.slot));
    }
}

/// A product without elements.
struct Nothing;

impl Launch for Nothing {
    fn launch(&self, _: &Arc<CudaStream>, _: &Addresses) -> Result<(), Error> {
        Ok(())
    }
}
