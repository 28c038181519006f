//! `GemmCandidate`: one way to compute a product, by a name that a `Tuning` remembers.

use super::epilogue::is_printable;
use super::hopper::{self, HopperTile, HopperWork};
use super::problem::{split, sums};
use super::staged::Halves;
use super::{narrow, plain, skinny, streamed, vendor};
use crate::compiler::Architecture;
use crate::launch::{Launch, Refusal, Site};
use overdrive_ir::plan::{Access, GemmCall, Instr, Register};
use overdrive_ir::{DType, Plan};
use std::fmt;
use std::str::FromStr;

/// Algorithms of cuBLASLt that are worth timing, in its own order.
const ALGORITHMS: usize = 8;

/// Tiles of our own kernel that are worth timing.
pub(super) const TILES: usize = 6;

/// Most rows for which a product of few columns is taken by its own kernel unless it is timed.
const ROWS_OF_NARROW: usize = 4096;

/// A way to compute a product.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum GemmCandidate {
    /// cuBLASLt's algorithm of this rank, with the epilogue if it has it.
    Vendor(usize),
    /// cuBLASLt's algorithm of this rank for the sums, then the epilogue as a loop.
    VendorStaged(usize),
    /// Our Hopper kernel with this tile.
    Hopper(HopperTile),
    /// Our skinny GEMM kernel, with split-K over this many blocks.
    Skinny(usize),
    /// Our kernel for few rows by weights that it streams.
    Streamed,
    /// Our kernel for products of few columns.
    Narrow,
    /// Our kernel for every product.
    Plain,
    /// Our kernel for the sums, then the epilogue as a loop.
    PlainStaged,
}

impl GemmCandidate {
    /// The candidates that may compute a call, best guess first. Not all of them need apply.
    pub fn all(site: &Site<'_>, call: &GemmCall) -> Result<Vec<GemmCandidate>, Refusal> {
        let vendor = |site: &Site<'_>, call: &GemmCall| vendor::count(site, call, ALGORITHMS);
        let mut all: Vec<_> = (0..vendor(site, call)?).map(GemmCandidate::Vendor).collect();
        let whole = !all.is_empty();
        if site.device.architecture() == Architecture::Sm90a {
            let multiprocessors = site.device.properties().multiprocessors;
            let tiles = hopper::tiles(call, 1, multiprocessors);
            let place = if stores_much(call) || adds_wide(call) { 0 } else { all.len() };
            all.splice(place..place, tiles.into_iter().take(TILES).map(GemmCandidate::Hopper));
            all.splice(
                ..0,
                skinny::splits(call, multiprocessors).into_iter().map(GemmCandidate::Skinny),
            );
        }
        if streamed::applies(call) {
            all.insert(0, GemmCandidate::Streamed);
        }
        // A second step costs more than any algorithm gains, and the plan has scratch for its sums
        // only where it must be.
        if !whole && !vendor::takes(call) {
            let halves = halves(site, call);
            let count = vendor(&Site { plan: &halves.plan, ..*site }, &halves.product)?;
            all.extend((0..count).map(GemmCandidate::VendorStaged));
        }
        if narrow::applies(call) {
            let rows = call.m * call.batch.iter().product::<usize>();
            let place = if rows <= ROWS_OF_NARROW { 0 } else { all.len() };
            all.insert(place, GemmCandidate::Narrow);
        }
        if all.is_empty() {
            all.push(if is_printable(&call.epilogue.0) {
                GemmCandidate::Plain
            } else {
                GemmCandidate::PlainStaged
            });
        }
        Ok(all)
    }

    /// Makes the call ready; `None` where this way does not apply.
    pub fn compile(
        self,
        site: &Site<'_>,
        call: &GemmCall,
    ) -> Result<Option<Box<dyn Launch>>, Refusal> {
        match self {
            GemmCandidate::Vendor(rank) => Ok(vendor::compile(site, call, rank)?),
            GemmCandidate::VendorStaged(rank) => halves(site, call)
                .compile(site, |site, call| Ok(vendor::compile(site, call, rank)?)),
            GemmCandidate::Hopper(tile) => {
                hopper::compile(site, HopperWork::of(std::slice::from_ref(call)), tile)
            }
            GemmCandidate::Skinny(split) => skinny::compile(site, call, split),
            GemmCandidate::Streamed => streamed::compile(site, call),
            GemmCandidate::Narrow => narrow::compile(site, call),
            GemmCandidate::Plain if !is_printable(&call.epilogue.0) => Ok(None),
            GemmCandidate::Plain => plain::compile(site, call).map(Some),
            GemmCandidate::PlainStaged => {
                halves(site, call).compile(site, |site, call| plain::compile(site, call).map(Some))
            }
        }
    }
}

/// Whether a large product of 16-bit operands has so few steps that storing its result counts. Our
/// kernel stores it under the next products. [16384, 768] x [768, 50304] takes 1.79 ms on an H200.
/// The first choice of cuBLASLt takes 2.14 ms, its best 1.76 ms.
fn stores_much(call: &GemmCall) -> bool {
    /// Most elements of the contracted index.
    const DEPTH: usize = 1024;
    /// Least elements of the result: two waves of tiles of two warpgroups.
    const ELEMENTS: usize = 2 * 132 * 2 * 128 * 128;
    let elements = call.m * call.n * call.batch.iter().product::<usize>();
    call.lhs.dtype.bits() == 16 && call.k <= DEPTH && elements >= ELEMENTS
}

/// Whether a product of codes reads a matrix of f32 and stores one, after few steps. Our kernel
/// brings it ahead. With a residual [8192, 2048] x [2048, 2048] takes 97.2 us on an H200, and 110.2
/// us in cuBLASLt. With [8192, 8192] x [8192, 2048] cuBLASLt takes 238 us, and ours more than 268.
fn adds_wide(call: &GemmCall) -> bool {
    /// Most elements of the contracted index.
    const DEPTH: usize = 2048;
    let program = &call.epilogue.0;
    let is_wide = |register: Register| program.dtype(register) == DType::F32;
    let is_matrix = |access: &Access| split(access).1.iter().all(|&stride| stride != 0);
    let reads = |(register, instr): (u32, &Instr)| match instr {
        Instr::Load(access) => is_wide(Register(register)) && is_matrix(access),
        _ => false,
    };
    let stores_wide = program.stores.iter().any(|store| is_wide(store.value));
    call.lhs.dtype.is_fp8()
        && call.k <= DEPTH
        && stores_wide
        && (0..).zip(&program.instrs).any(reads)
}

fn halves(site: &Site<'_>, call: &GemmCall) -> Halves {
    halves_of(site.plan, call)
}

/// Sums wait in their own type for the epilogue.
pub(super) fn halves_of(plan: &Plan, call: &GemmCall) -> Halves {
    let dtype = if call.accumulate.bits() < 32 { call.accumulate } else { sums(call) };
    Halves::of(plan, call, dtype)
}

/// Types of operands that products take; e8m0 and types narrower than a byte are converted first.
pub const DTYPES: [DType; 14] = [
    DType::F64,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F8E4M3,
    DType::F8E5M2,
    DType::I64,
    DType::I32,
    DType::I16,
    DType::I8,
    DType::U64,
    DType::U32,
    DType::U16,
    DType::U8,
];

impl fmt::Display for GemmCandidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GemmCandidate::Vendor(rank) => write!(f, "cublaslt {rank}"),
            GemmCandidate::VendorStaged(rank) => write!(f, "cublaslt {rank} then loop"),
            GemmCandidate::Hopper(tile) => tile.fmt(f),
            GemmCandidate::Skinny(split) => write!(f, "skinny by {split}"),
            GemmCandidate::Streamed => f.write_str("streamed"),
            GemmCandidate::Narrow => f.write_str("narrow"),
            GemmCandidate::Plain => f.write_str("plain"),
            GemmCandidate::PlainStaged => f.write_str("plain then loop"),
        }
    }
}

/// The text is the name of no candidate.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct UnknownCandidate;

impl FromStr for GemmCandidate {
    type Err = UnknownCandidate;

    fn from_str(text: &str) -> Result<Self, UnknownCandidate> {
        let words: Vec<&str> = text.split(' ').collect();
        let rank = |text: &str| text.parse().map_err(|_| UnknownCandidate);
        let split = |text: &str| {
            rank(text).ok().filter(|s| skinny::SPLITS.contains(s)).ok_or(UnknownCandidate)
        };
        Ok(match words[..] {
            ["cublaslt", number] => GemmCandidate::Vendor(rank(number)?),
            ["cublaslt", number, "then", "loop"] => GemmCandidate::VendorStaged(rank(number)?),
            ["hopper", ..] => GemmCandidate::Hopper(text.parse().map_err(|_| UnknownCandidate)?),
            ["skinny", "by", number] => GemmCandidate::Skinny(split(number)?),
            ["streamed"] => GemmCandidate::Streamed,
            ["narrow"] => GemmCandidate::Narrow,
            ["plain"] => GemmCandidate::Plain,
            ["plain", "then", "loop"] => GemmCandidate::PlainStaged,
            _ => return Err(UnknownCandidate),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        let ours = hopper::TILES.into_iter().map(GemmCandidate::Hopper);
        let ours = ours.chain(skinny::SPLITS.map(GemmCandidate::Skinny));
        let vendors = [GemmCandidate::Vendor(3), GemmCandidate::VendorStaged(0)];
        let others = vendors.into_iter().chain([
            GemmCandidate::Streamed,
            GemmCandidate::Narrow,
            GemmCandidate::Plain,
            GemmCandidate::PlainStaged,
        ]);
        for candidate in ours.chain(others) {
            assert_eq!(candidate.to_string().parse(), Ok(candidate));
        }
        assert_eq!("cublaslt x".parse::<GemmCandidate>(), Err(UnknownCandidate));
        assert_eq!("skinny by 3".parse::<GemmCandidate>(), Err(UnknownCandidate));
    }
}
