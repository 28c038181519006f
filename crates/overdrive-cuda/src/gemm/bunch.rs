//! Skinny GEMMs with one left operand as one launch, with the loop that makes the left operand. One
//! example is the norm, query, key and value of a decoder's step. Another is the norm, a gate and
//! the product that it gates.
//!
//! Unlike products that run `together`, these need not be alike: each has its own outputs and
//! epilogue. A product may read the results of the one before it, where both are at the same
//! element. Each block computes the loop for itself (`loops::Lead`), which takes less than a
//! launch. Products that stream their weights stay apart: tiles of x in shared memory would take
//! the room of tiles of weights that are under way.

use super::problem::strides;
use super::skinny::{self, Cut, RowsSource, SkinnyWork};
use crate::compiler::KernelSource;
use crate::launch::{Launch, Refusal, Site};
use crate::loops::Lead;
use overdrive_ir::plan::{Access, GemmCall, Instr, Step, StepKind};

/// Most rows: every block computes all of them.
const ROWS: usize = 8;
/// Most products of one launch: their tensor maps are its parameters.
const MOST: usize = 8;

/// The work of one launch.
struct Bunch {
    lead: Option<Lead>,
    /// Products; those of a list share their tiles.
    tiles: Vec<Vec<GemmCall>>,
}

impl Bunch {
    /// `None` where one launch cannot do all steps, in this order.
    fn of(steps: &[&Step]) -> Option<Self> {
        let (before, products) = match steps.first()?.kind {
            StepKind::Loop(_) => (Some(steps[0]), &steps[1..]),
            _ => (None, steps),
        };
        let mut tiles: Vec<Vec<GemmCall>> = Vec::new();
        for (at, step) in products.iter().enumerate() {
            let StepKind::Gemm(call) = &step.kind else { return None };
            let like = tiles.first().map_or(call, |known| &known[0]);
            if at == MOST || !step.aliases.is_empty() || !fits(call, like) {
                return None;
            }
            let opens = |known: &&mut Vec<GemmCall>| known.iter().any(|other| reads(call, other));
            let mut opening = tiles.iter_mut().filter(opens);
            match (opening.next(), opening.next()) {
                (None, _) => tiles.push(vec![call.clone()]),
                (Some(known), None) if known.len() == 1 && is_opened(call, &known[0]) => {
                    known.push(call.clone());
                }
                _ => return None,
            }
        }
        let call = &tiles.first()?[0];
        let Some(before) = before else { return Some(Self { lead: None, tiles }) };
        let lhs = &call.lhs;
        let [row, column] = strides(lhs);
        let whole = lhs.offset == 0 && column == 1 && (call.m == 1 || row == call.k as i64);
        // Every block writes these slots, so none may read them where others write them.
        let apart = |call: &GemmCall| loads(call).all(|of| !before.writes.contains(&of.slot));
        if !whole || !tiles.iter().flatten().all(apart) {
            return None;
        }
        let lead = Lead::new(before, (lhs.slot, [call.m, call.k]), skinny::THREADS)?;
        Some(Self { lead: Some(lead), tiles })
    }

    /// How the bunch is cut for a device with this many multiprocessors.
    fn cut(&self, multiprocessors: u32) -> Option<Cut> {
        let call = &self.tiles[0][0];
        let tiles = self.tiles.iter().map(|calls| skinny::tiles(&calls[0])).sum();
        let parts = self.tiles.iter().map(Vec::len).max().unwrap_or(1);
        let rows = if self.lead.is_some() { RowsSource::Led } else { RowsSource::Given };
        let splits = skinny::SPLITS.into_iter().rev();
        let mut splits = splits.filter(|&split| skinny::has_room(tiles, split, multiprocessors));
        let cut = splits.find_map(|split| Cut::of(call, (parts, tiles), split, rows));
        cut.filter(|cut| cut.is_ahead(call))
    }
}

/// Whether a product can be in one launch with another.
fn fits(call: &GemmCall, like: &GemmCall) -> bool {
    let by_k = |call: &GemmCall| skinny::fit(call).map(|fit| fit.rhs.by_k);
    let types = |call: &GemmCall| (call.rhs.dtype, call.accumulate, call.precision);
    call.m <= ROWS
        && call.lhs == like.lhs
        && (call.m, call.k) == (like.m, like.k)
        && types(call) == types(like)
        && by_k(call).is_some()
        && by_k(call) == by_k(like)
}

fn loads(call: &GemmCall) -> impl Iterator<Item = &Access> {
    call.epilogue.0.instrs.iter().filter_map(|instr| match instr {
        Instr::Load(access) => Some(access),
        _ => None,
    })
}

/// Whether a product reads a result of another.
fn reads(call: &GemmCall, other: &GemmCall) -> bool {
    let stores = &other.epilogue.0.stores;
    let is_stored = |slot| stores.iter().any(|store| store.access.slot == slot);
    is_stored(call.lhs.slot) || is_stored(call.rhs.slot) || loads(call).any(|of| is_stored(of.slot))
}

/// Whether a product reads of another only the element at its own place.
fn is_opened(call: &GemmCall, gate: &GemmCall) -> bool {
    let stores = &gate.epilogue.0.stores;
    let own = |of: &Access| {
        let mut stored = stores.iter().filter(|store| store.access.slot == of.slot);
        stored.all(|store| store.access == *of)
    };
    let operand = |slot| stores.iter().any(|store| store.access.slot == slot);
    call.n == gate.n && !operand(call.lhs.slot) && !operand(call.rhs.slot) && loads(call).all(own)
}

/// Whether one launch on Hopper can do all of these steps, in this order.
pub fn bunches(steps: &[&Step]) -> bool {
    /// Multiprocessors of any Hopper GPU.
    const MULTIPROCESSORS: u32 = 132;
    steps.len() > 1 && Bunch::of(steps).is_some_and(|bunch| bunch.cut(MULTIPROCESSORS).is_some())
}

/// Compiles steps that one launch can do.
///
/// # Errors
/// As `compile` of one.
pub(crate) fn compile_bunch(site: &Site<'_>, steps: &[Step]) -> Result<Box<dyn Launch>, Refusal> {
    let bunch = Bunch::of(&steps.iter().collect::<Vec<_>>());
    let multiprocessors = site.device.properties().multiprocessors;
    let cut = bunch.as_ref().and_then(|bunch| bunch.cut(multiprocessors));
    let (bunch, cut) = bunch.zip(cut).expect("these steps were gathered because one launch can");
    let parts = SkinnyWork { tiles: &bunch.tiles, lead: bunch.lead.as_ref() };
    let compiled = skinny::compile_parts(site, parts, &cut)?;
    compiled.ok_or_else(|| Refusal::Unsupported("only Hopper has this kernel".to_owned()))
}

/// The source that such steps are compiled from, of weights that nobody writes.
pub fn source_bunch(steps: &[Step]) -> Option<KernelSource> {
    let bunch = Bunch::of(&steps.iter().collect::<Vec<_>>())?;
    let parts = SkinnyWork { tiles: &bunch.tiles, lead: bunch.lead.as_ref() };
    skinny::source(parts, &bunch.cut(132)?, skinny::WeightWrites::Settled, &[])
}
