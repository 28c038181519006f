//! The launches of several products of few rows: by dense weights (`streamed`, `skinny`) and by
//! codes (`quantized_linear`).
//!
//! Products of `skinny` that stream their weights stay apart. Tiles of x in shared memory would
//! take the room of tiles of weights that are under way.

use super::bunch::{Bunch, FewRows, Member};
use super::led::RowsSource;
use super::quantized_linear::{self, CodedProduct};
use super::skinny::{self, Cut, WeightWrites};
use super::streamed;
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
        let one_kernel = match [self, like].map(streamed::applies) {
            [true, true] => true,
            [false, false] => by_k(self).is_some() && by_k(self) == by_k(like),
            _ => false,
        };
        types(self) == types(like) && one_kernel
    }

    fn threads(&self) -> usize {
        if streamed::applies(self) { streamed::THREADS } else { skinny::THREADS }
    }
}

/// The kernel that does a bunch.
enum DenseKernel {
    Streamed,
    Skinny(Cut),
}

/// The cut of a bunch by `skinny` for a device with this many multiprocessors.
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

fn dense(steps: &[&Step], multiprocessors: u32) -> Option<(Bunch<GemmCall>, DenseKernel)> {
    let bunch = Bunch::of(steps)?;
    let kernel = match streamed::applies(&bunch.tiles[0][0]) {
        true => DenseKernel::Streamed,
        false => DenseKernel::Skinny(cut(&bunch, multiprocessors)?),
    };
    Some((bunch, kernel))
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
    let (bunch, kernel) = dense.expect("these steps were gathered because one launch can");
    let work = FewRows { tiles: &bunch.tiles, lead: bunch.lead.as_ref() };
    let compiled = match kernel {
        DenseKernel::Streamed => streamed::compile_parts(site, work)?,
        DenseKernel::Skinny(cut) => skinny::compile_parts(site, work, &cut)?,
    };
    compiled.ok_or_else(|| Refusal::Unsupported("only Hopper has this kernel".to_owned()))
}

/// The source that such steps are compiled from, of weights that nobody writes.
pub fn source_bunch(steps: &[Step]) -> Option<KernelSource> {
    let steps: Vec<&Step> = steps.iter().collect();
    if let Some(bunch) = Bunch::<CodedProduct>::of(&steps) {
        return quantized_linear::source_bunch(&bunch, MULTIPROCESSORS);
    }
    let (bunch, kernel) = dense(&steps, MULTIPROCESSORS)?;
    let work = FewRows { tiles: &bunch.tiles, lead: bunch.lead.as_ref() };
    match kernel {
        DenseKernel::Streamed => streamed::source(work, WeightWrites::Settled, &[]),
        DenseKernel::Skinny(cut) => skinny::source(work, &cut, WeightWrites::Settled, &[]),
    }
}
