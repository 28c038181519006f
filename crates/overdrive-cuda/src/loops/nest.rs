//! The iteration space as loops: which dimensions are walked as one, and which one neighbouring
//! threads share.
//!
//! Dimensions that every address walks as one are merged. The lanes' dimension is the one along
//! which most bytes lie side by side.
//!
//! - *Along*: lanes are elements of one row, and folded where the program reduces.
//! - *Across*: lanes are neighbouring results, and threads fold down the columns.
//!
//! Invariant: every address is affine in the loops.

use overdrive_ir::plan::{Access, Instr, Program, Register};
use overdrive_ir::{DType, row_major};
use std::collections::BTreeMap;

/// Most bits that a point may move for a thread to take sixteen neighbours. With more they do not
/// fit the registers: an update of codes of moments moves 128.
const MOST_BITS_OF_SIXTEEN: usize = 120;

/// How the lanes lie to the dimension that is folded.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Lanes {
    /// Inside the row.
    Along,
    /// Lanes are different rows.
    Across,
}

/// An address (or an index, as an address with steps of one) over the loops, in elements.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Walk {
    /// At the origin.
    pub(super) offset: i64,
    /// Per step of each loop, as `LoopNest::extents`.
    pub(super) strides: Vec<i64>,
    /// Type of the elements; none for an index.
    pub(super) dtype: Option<DType>,
}

/// The owner of a walk.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Of {
    /// A load, by its register.
    Load(Register),
    /// A store, by its number.
    Store(usize),
    /// The index along a dimension of the program.
    Index(usize),
    /// The row-major index of the point in the space.
    Point,
}

/// The loops.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct LoopNest {
    pub(super) lanes: Lanes,
    /// Kept loops, then reduced ones, outermost first within each; the lanes' loop is the last of
    /// its group.
    pub(super) extents: Vec<usize>,
    /// How many of the last loops are reduced.
    pub(super) reduced: usize,
    pub(super) walks: BTreeMap<Of, Walk>,
    /// Neighbours that a thread takes at a time.
    pub(super) vector: usize,
}

/// A dimension on its way into a nest.
#[derive(Clone, Debug)]
struct LoopDim {
    extent: usize,
    reduced: bool,
    /// For each walk, its stride.
    strides: Vec<i64>,
}

impl LoopNest {
    /// The loops of a program none of whose extents is 0.
    pub(super) fn new(program: &Program) -> LoopNest {
        let walks = walks(program);
        let first_reduced = program.extents.len() - program.reduced;
        let mut dimensions: Vec<LoopDim> = (0..program.extents.len())
            .filter(|&d| program.extents[d] != 1)
            .map(|d| LoopDim {
                extent: program.extents[d],
                reduced: d >= first_reduced,
                strides: walks.iter().map(|(_, walk)| walk.strides[d]).collect(),
            })
            .collect();
        // Stores in steps of one element are walked innermost. If nothing is written, the loads in
        // such steps are.
        let guides = |wanted: fn(&Of) -> bool| {
            walks.iter().enumerate().filter(move |(_, (of, _))| wanted(of))
        };
        let order: Vec<usize> = guides(|of| matches!(of, Of::Store(_)))
            .chain(guides(|of| matches!(of, Of::Load(_))))
            .map(|(at, _)| at)
            .collect();
        dimensions.sort_by_key(|dimension| {
            let stride =
                order.iter().map(|&w| dimension.strides[w].unsigned_abs()).find(|&s| s != 0);
            (dimension.reduced, std::cmp::Reverse(stride.unwrap_or(0)))
        });
        let mut merged = merge(dimensions);
        if merged.is_empty() {
            merged.push(LoopDim { extent: 1, reduced: false, strides: vec![0; walks.len()] });
        }
        let dtypes: Vec<Option<DType>> = walks.iter().map(|(_, walk)| walk.dtype).collect();
        let lane = (0..merged.len())
            .min_by(|&a, &b| {
                let cost = |d: usize| lane_cost(&merged, &dtypes, d);
                cost(a).total_cmp(&cost(b)).then(b.cmp(&a))
            })
            .expect("there is a dimension");
        let lanes =
            if program.reduced > 0 && !merged[lane].reduced { Lanes::Across } else { Lanes::Along };
        let dimension = merged.remove(lane);
        let kept = merged.iter().take_while(|d| !d.reduced).count();
        merged.insert(if dimension.reduced { merged.len() } else { kept }, dimension);
        let walks: BTreeMap<Of, Walk> = walks
            .into_iter()
            .enumerate()
            .map(|(w, (of, walk))| {
                (of, Walk { strides: merged.iter().map(|d| d.strides[w]).collect(), ..walk })
            })
            .collect();
        let mut nest = LoopNest {
            lanes,
            extents: merged.iter().map(|d| d.extent).collect(),
            reduced: merged.iter().filter(|d| d.reduced).count(),
            walks,
            vector: 1,
        };
        nest.vector = nest.widest();
        nest
    }

    /// Position of the lanes' loop.
    pub(super) fn lane(&self) -> usize {
        match self.lanes {
            Lanes::Along => self.extents.len() - 1,
            Lanes::Across => self.extents.len() - self.reduced - 1,
        }
    }

    /// Extents of the kept loops.
    pub(super) fn kept(&self) -> &[usize] {
        &self.extents[..self.extents.len() - self.reduced]
    }

    /// Extents of the reduced loops.
    pub(super) fn folded(&self) -> &[usize] {
        &self.extents[self.extents.len() - self.reduced..]
    }

    /// Elements that a walk can read or write at once: a power of two, aligned wherever a thread
    /// starts.
    pub(super) fn alignment(&self, walk: &Walk) -> usize {
        let Some(dtype) = walk.dtype else { return 1 };
        let others = (0..self.extents.len()).filter(|&d| d != self.lane()).map(|d| walk.strides[d]);
        let steps = others.chain([walk.offset]).fold(0, |all, step| all | step.unsigned_abs());
        let fits = (128 / dtype.bits() as u64 + 1).next_power_of_two() / 2;
        let elements = (1u64 << steps.trailing_zeros().min(30)).min(fits);
        if walk.strides[self.lane()] == 1 { elements as usize } else { 1 }
    }

    /// The number of neighbours that the narrowest contiguous type fills 16 bytes with, where
    /// addresses are aligned.
    fn widest(&self) -> usize {
        let whole = self.walks.values().filter(|walk| walk.dtype.is_some());
        let widest = whole.map(|walk| self.alignment(walk)).max().unwrap_or(1).min(16);
        // A thread with a quarter of its lanes idle is worse than two accesses.
        let dtypes = || self.walks.values().filter_map(|walk| Some((walk, walk.dtype?)));
        let sixths = dtypes().any(|(_, dtype)| dtype.bits() == 6);
        // Registers hold the numbers of a group, most of them as f32.
        let moving = dtypes().filter(|(walk, _)| walk.strides[self.lane()] == 1);
        let bits: usize = moving.map(|(_, dtype)| dtype.bits()).sum();
        let most = if sixths || bits > MOST_BITS_OF_SIXTEEN { 8 } else { 16 };
        widest.min(self.extents[self.lane()].next_power_of_two()).min(most)
    }

    /// Whether the last thread of a line has fewer neighbours than the others.
    pub(super) fn has_tail(&self) -> bool {
        !self.extents[self.lane()].is_multiple_of(self.vector)
    }

    /// Whether every address fits 31 bits.
    pub(super) fn is_small(&self) -> bool {
        let points: usize = self.extents.iter().product();
        let span = |walk: &Walk| -> u64 {
            let steps = walk.strides.iter().zip(&self.extents);
            let reach: u64 =
                steps.map(|(stride, &extent)| stride.unsigned_abs() * extent as u64).sum();
            reach + walk.offset.unsigned_abs()
        };
        points < 1 << 30 && self.walks.values().all(|walk| span(walk) < 1 << 30)
    }
}

fn merge(dimensions: Vec<LoopDim>) -> Vec<LoopDim> {
    let mut merged: Vec<LoopDim> = Vec::new();
    for dimension in dimensions {
        match merged.last_mut() {
            Some(outer)
                if outer.reduced == dimension.reduced
                    && outer
                        .strides
                        .iter()
                        .zip(&dimension.strides)
                        .all(|(outer, &inner)| *outer == inner * dimension.extent as i64) =>
            {
                outer.extent *= dimension.extent;
                outer.strides = dimension.strides;
            }
            _ => merged.push(dimension),
        }
    }
    merged
}

/// Traffic with the lanes along dimension `d`, in bytes per point: an access that strides moves a
/// whole sector.
fn lane_cost(dimensions: &[LoopDim], dtypes: &[Option<DType>], d: usize) -> f64 {
    const SECTOR_BYTES: f64 = 32.0;
    let spread = |w: usize| -> f64 {
        let broadcast = dimensions.iter().filter(|dimension| dimension.strides[w] == 0);
        broadcast.map(|dimension| dimension.extent as f64).product()
    };
    let accesses: f64 = dtypes
        .iter()
        .enumerate()
        .filter_map(|(w, dtype)| {
            let bytes = dtype.as_ref()?.bits() as f64 / 8.0;
            let per_access = match dimensions[d].strides[w].unsigned_abs() {
                0 => bytes,
                stride => (bytes * stride as f64).min(SECTOR_BYTES),
            };
            Some(per_access / spread(w))
        })
        .sum();
    // Short lines leave lanes idle.
    accesses + 4.0 / dimensions[d].extent.max(1) as f64
}

fn walks(program: &Program) -> Vec<(Of, Walk)> {
    let rank = program.extents.len();
    let of = |access: &Access, dtype| Walk {
        offset: access.offset,
        strides: access.strides.clone(),
        dtype: Some(dtype),
    };
    let mut walks = BTreeMap::new();
    for (r, instr) in program.instrs.iter().enumerate() {
        let register = Register(r as u32);
        match instr {
            Instr::Load(access) => {
                walks.insert(Of::Load(register), of(access, program.dtype(register)));
            }
            Instr::Index(d) => {
                let strides = (0..rank).map(|other| i64::from(other == *d)).collect();
                walks.insert(Of::Index(*d), Walk { offset: 0, strides, dtype: None });
            }
            Instr::RandomBits { .. } => {
                let strides = row_major(&program.extents).into_iter().map(|s| s as i64).collect();
                walks.insert(Of::Point, Walk { offset: 0, strides, dtype: None });
            }
            _ => {}
        }
    }
    for (number, store) in program.stores.iter().enumerate() {
        walks.insert(Of::Store(number), of(&store.access, program.dtype(store.value)));
    }
    walks.into_iter().collect()
}
