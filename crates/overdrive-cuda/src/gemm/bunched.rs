//! The launches of several products of few rows: by dense weights (`skinny`) and by codes
//! (`quantized_linear`).
//!
//! Products by dense weights that stream them stay apart: tiles of x in shared memory would take
//! the room of tiles of weights that are under way.

use super::bunch::{Bunch, Member};
use super::led::RowsSource;
use super::quantized_linear::{self, CodedProduct};
use super::skinny::{self, Cut, SkinnyWork};
use crate::compiler::KernelSource;
use crate::launch::{Launch, Refusal, Site};
use overdrive_ir::SlotId;
use overdrive_ir::plan::{GemmCall, Step, StepKind};

/// Multiprocessors of any Hopper GPU.
const MULTIPROCESSORS: u32 = 132;

impl Member for GemmCall {
    fn of(step: &Step) -> Option<Self> {
        match &step.kind {
            StepKind::Gemm(call) => Some(call.clone()),
            _ => None,
        }
    }

    fn call(&self) -> &GemmCall {
        self
    }

    fn operands(&self) -> Vec<SlotId> {
        vec![self.lhs.slot, self.rhs.slot]
    }

    fn is_like(&self, like: &Self) -> bool {
        let by_k = |call: &GemmCall| skinny::fit(call).map(|fit| fit.rhs.by_k);
        let types = |call: &GemmCall| (call.rhs.dtype, call.accumulate, call.precision);
        types(self) == types(like) && by_k(self).is_some() && by_k(self) == by_k(like)
    }

    fn threads(&self) -> usize {
        skinny::THREADS
    }
}

/// The cut of a bunch for a device with this many multiprocessors.
fn cut(bunch: &Bunch<GemmCall>, multiprocessors: u32) -> Option<Cut> {
    let call = &bunch.tiles[0][0];
    let tiles = bunch.tiles.iter().map(|calls| skinny::tiles(&calls[0])).sum();
    let parts = bunch.tiles.iter().map(Vec::len).max().unwrap_or(1);
    let rows = RowsSource::of(bunch.lead.as_ref());
    let splits = skinny::SPLITS.into_iter().rev();
    let mut splits = splits.filter(|&split| skinny::has_room(tiles, split, multiprocessors));
    let cut = splits.find_map(|split| Cut::of(call, (parts, tiles), split, rows));
    cut.filter(|cut| cut.is_ahead(call))
}

fn dense(steps: &[&Step], multiprocessors: u32) -> Option<(Bunch<GemmCall>, Cut)> {
    let bunch = Bunch::of(steps)?;
    let cut = cut(&bunch, multiprocessors)?;
    Some((bunch, cut))
}

/// Whether one launch on Hopper can do all of these steps, in this order.
pub fn bunches(steps: &[&Step]) -> bool {
    steps.len() > 1
        && (dense(steps, MULTIPROCESSORS).is_some()
            || Bunch::<CodedProduct>::of(steps)
                .is_some_and(|bunch| quantized_linear::has_room(&bunch, MULTIPROCESSORS)))
}

/// Compiles steps that one launch can do.
///
/// # Errors
/// As `compile` of one.
pub(crate) fn compile_bunch(site: &Site<'_>, steps: &[Step]) -> Result<Box<dyn Launch>, Refusal> {
    let steps: Vec<&Step> = steps.iter().collect();
    if let Some(bunch) = Bunch::<CodedProduct>::of(&steps) {
        return quantized_linear::compile_bunch(site, &bunch);
    }
    let dense = dense(&steps, site.device.properties().multiprocessors);
    let (bunch, cut) = dense.expect("these steps were gathered because one launch can");
    let parts = SkinnyWork { tiles: &bunch.tiles, lead: bunch.lead.as_ref() };
    let compiled = skinny::compile_parts(site, parts, &cut)?;
    compiled.ok_or_else(|| Refusal::Unsupported("only Hopper has this kernel".to_owned()))
}

/// The source that such steps are compiled from, of weights that nobody writes.
pub fn source_bunch(steps: &[Step]) -> Option<KernelSource> {
    let steps: Vec<&Step> = steps.iter().collect();
    if let Some(bunch) = Bunch::<CodedProduct>::of(&steps) {
        return quantized_linear::source_bunch(&bunch, MULTIPROCESSORS);
    }
    let (bunch, cut) = dense(&steps, MULTIPROCESSORS)?;
    let parts = SkinnyWork { tiles: &bunch.tiles, lead: bunch.lead.as_ref() };
    skinny::source(parts, &cut, skinny::WeightWrites::Settled, &[])
}
