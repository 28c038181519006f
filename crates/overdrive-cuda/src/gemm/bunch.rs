//! Products of few rows with one left operand as one launch, with the loop that makes the left
//! operand. One example is the norm, query, key and value of a decoder's step. Another is the norm,
//! a gate and the product that it gates.
//!
//! Unlike products that run `together`, these need not be alike: each has its own outputs and
//! epilogue. A product may read the results of the one before it, where both are at the same
//! element. Each block computes the loop for itself (`loops::Lead`), which takes less than a
//! launch. This file says which steps these are; a kernel says which products it takes.

use super::problem::strides;
use crate::loops::Lead;
use overdrive_ir::SlotId;
use overdrive_ir::plan::{Access, GemmCall, Instr, Step, StepKind};

/// Most rows: every block computes all of them.
const ROWS: usize = 8;
/// Most products of one launch: their tensor maps are its parameters.
const MOST: usize = 8;

/// A product as a kernel for several takes it.
pub(super) trait Member: Clone {
    /// The product of a step, if it is of this kind.
    fn of(step: &Step) -> Option<Self>;

    /// Its extents, left operand and epilogue.
    fn call(&self) -> &GemmCall;

    /// The slots that it multiplies.
    fn operands(&self) -> Vec<SlotId>;

    /// Whether it can be in one launch with another of the same left operand and depth.
    fn is_like(&self, like: &Self) -> bool;

    /// Threads of a block of the kernel.
    fn threads(&self) -> usize;
}

/// The work of one launch.
pub(super) struct Bunch<P> {
    pub(super) lead: Option<Lead>,
    /// Products; those of a list share their tiles.
    pub(super) tiles: Vec<Vec<P>>,
}

/// The work of one launch of dense products.
#[derive(Copy, Clone)]
pub(super) struct FewRows<'a> {
    /// Products of one left operand; those of a list share their tiles, in this order.
    pub(super) tiles: &'a [Vec<GemmCall>],
    /// The loop that makes their left operand.
    pub(super) lead: Option<&'a Lead>,
}

impl FewRows<'_> {
    pub(super) fn calls(&self) -> impl Iterator<Item = &GemmCall> {
        self.tiles.iter().flatten()
    }
}

impl<P: Member> Bunch<P> {
    /// `None` where one launch cannot do all steps, in this order.
    pub(super) fn of(steps: &[&Step]) -> Option<Self> {
        let (before, products) = match steps.first()?.kind {
            StepKind::Loop(_) => (Some(steps[0]), &steps[1..]),
            _ => (None, steps),
        };
        let mut tiles: Vec<Vec<P>> = Vec::new();
        for (at, step) in products.iter().enumerate() {
            let product = P::of(step)?;
            let like = tiles.first().map_or(&product, |known| &known[0]);
            if at == MOST || !step.aliases.is_empty() || !fits(&product, like) {
                return None;
            }
            let opens = |known: &&mut Vec<P>| known.iter().any(|other| reads(&product, other));
            let mut opening = tiles.iter_mut().filter(opens);
            match (opening.next(), opening.next()) {
                (None, _) => tiles.push(vec![product.clone()]),
                (Some(known), None) if known.len() == 1 && is_opened(&product, &known[0]) => {
                    known.push(product.clone());
                }
                _ => return None,
            }
        }
        let first = &tiles.first()?[0];
        let Some(before) = before else { return Some(Self { lead: None, tiles }) };
        let (call, lhs) = (first.call(), &first.call().lhs);
        let [row, column] = strides(lhs);
        let whole = lhs.offset == 0 && column == 1 && (call.m == 1 || row == call.k as i64);
        // Weights are read before the loop runs. If an epilogue reads results of the loop, its own
        // block has written them by then; other blocks only write the same bits again.
        let apart =
            |product: &P| product.operands()[1..].iter().all(|slot| !before.writes.contains(slot));
        if !whole || !tiles.iter().flatten().all(apart) {
            return None;
        }
        let lead = Lead::new(before, (lhs.slot, [call.m, call.k]), first.threads())?;
        Some(Self { lead: Some(lead), tiles })
    }
}

/// Whether a product can be in one launch with another.
fn fits<P: Member>(product: &P, like: &P) -> bool {
    let (call, other) = (product.call(), like.call());
    let whole = call.batch.iter().product::<usize>() == 1;
    call.m <= ROWS
        && whole
        && call.lhs == other.lhs
        && (call.m, call.k) == (other.m, other.k)
        && product.is_like(like)
}

fn loads(call: &GemmCall) -> impl Iterator<Item = &Access> {
    call.epilogue.0.instrs.iter().filter_map(|instr| match instr {
        Instr::Load(access) => Some(access),
        _ => None,
    })
}

/// Whether a product multiplies a result of another.
fn multiplies<P: Member>(product: &P, other: &P) -> bool {
    let stores = &other.call().epilogue.0.stores;
    product.operands().iter().any(|slot| stores.iter().any(|store| store.access.slot == *slot))
}

/// Whether a product reads a result of another.
fn reads<P: Member>(product: &P, other: &P) -> bool {
    let stores = &other.call().epilogue.0.stores;
    let is_stored = |of: &Access| stores.iter().any(|store| store.access.slot == of.slot);
    multiplies(product, other) || loads(product.call()).any(is_stored)
}

/// Whether a product reads of another only the element at its own place.
fn is_opened<P: Member>(product: &P, gate: &P) -> bool {
    let (call, gated_by) = (product.call(), gate.call());
    let own = |of: &Access| {
        let stores = &gated_by.epilogue.0.stores;
        let mut stored = stores.iter().filter(|store| store.access.slot == of.slot);
        stored.all(|store| store.access == *of)
    };
    call.n == gated_by.n && !multiplies(product, gate) && loads(call).all(own)
}
