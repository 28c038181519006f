//! Score and mask functions over the lanes of a block of scores. Each is one run of a fused loop,
//! whatever the shape of the block.
#![allow(unsafe_code)] // Runs programs over the addresses of slots and scratch.

use std::ops::Range;

use overdrive_ir::ops::attention::{find_mask, find_score};
use overdrive_ir::plan::View;
use overdrive_ir::{Graph, Plan, SlotId};
use overdrive_passes::Region;

use super::translator::{ElementSlope, OWN, ScoreBlockShape, Translator};
use super::visible::{CELL_LANES, Spans, Visible};
use crate::exec::Unsupported;
use crate::loops::CompiledTile;
use crate::slots::SlotTable;

/// Position of a block of scores: batch, head, first query, first key.
pub(super) type Position = [i32; 4];

/// Room for a derivative or an index of each lane, in bytes.
pub(super) const LANE: usize = 8;

/// The functions of a call.
#[derive(Debug, Default)]
pub(super) struct Functions {
    score: Option<CompiledTile>,
    mask: Option<CompiledTile>,
    cell: [usize; 2],
    first: u32,
    /// Lanes from a key to the next.
    stride: usize,
    /// Key and query of each lane of a block, from its first.
    lanes: [Vec<i32>; 2],
    /// Whether pairs of different batch elements, or heads, read different elements throughout.
    apart: [bool; 2],
}

impl Functions {
    /// The functions of `regions`, which read `captures`; scores are products times `scale`.
    pub(super) fn new(
        plan: &Plan,
        regions: (&[Graph], &[View]),
        block: ScoreBlockShape,
        scale: f64,
    ) -> Result<Self, Unsupported> {
        Self::with_slopes(plan, regions, block, (scale, &[]))
    }

    /// The same with derivatives by elements of captures.
    pub(super) fn with_slopes(
        plan: &Plan,
        (regions, captures): (&[Graph], &[View]),
        block: ScoreBlockShape,
        (scale, slopes): (f64, &[ElementSlope]),
    ) -> Result<Self, Unsupported> {
        let mut apart = [true; 2];
        let mut compile = |region: &Graph, slopes: &[ElementSlope]| {
            let translated = Region::new(region, captures).map_err(Unsupported::new)?;
            let captures = (translated, captures);
            let mut translator = Translator::new(plan, block);
            let compiled = translator.translate(captures, scale, slopes)?;
            apart = [0, 1].map(|d| apart[d] && translator.apart[d]);
            Ok::<_, Unsupported>(compiled)
        };
        let [score, mask] = [find_score(regions), find_mask(regions)];
        let lanes = if regions.is_empty() { 0 } else { block.rows * block.stride };
        let lane = |of: fn(usize, usize) -> usize| {
            (0..lanes).map(|lane| of(lane, block.stride) as i32).collect()
        };
        Ok(Self {
            score: score.map(|region| compile(region, slopes)).transpose()?,
            mask: mask.map(|region| compile(region, &[])).transpose()?,
            apart,
            cell: block.cell,
            first: plan.slots.len() as u32,
            stride: block.stride,
            lanes: [lane(|lane, stride| lane / stride), lane(|lane, stride| lane % stride)],
        })
    }

    pub(super) fn has_score(&self) -> bool {
        self.score.is_some()
    }

    /// Whether pairs of different batch elements, or heads, have derivatives by different elements.
    pub(super) fn apart(&self) -> [bool; 2] {
        self.apart
    }

    pub(super) fn has_mask(&self) -> bool {
        self.mask.is_some()
    }

    /// Bytes of scratch that the functions need: that of the programs, then cells.
    pub(super) fn scratch_bytes(&self) -> usize {
        let cells = if self.has_mask() { self.lanes[0].len() / CELL_LANES } else { 0 };
        self.program_bytes() + cells * (2 * size_of::<i32>() + 1)
    }

    fn program_bytes(&self) -> usize {
        let programs = [&self.score, &self.mask].into_iter().flatten();
        let bytes = programs.map(CompiledTile::scratch_bytes).max().unwrap_or(0);
        bytes.next_multiple_of(align_of::<i32>())
    }

    /// Makes products scores, where there is a score function, and writes its slopes, where it
    /// gives them.
    ///
    /// # Safety
    /// There are as many slopes as products; `scratch` has the bytes, on a 64-byte boundary; the
    /// slots hold the captures.
    pub(super) unsafe fn score<A>(
        &self,
        (values, slopes): (&mut [A], *mut A),
        at: Position,
        slots: &SlotTable,
        scratch: *mut u8,
    ) {
        // SAFETY: as the caller's; nothing is written to a null pointer, since a function whose
        // captures need no gradient has no further outputs.
        unsafe { self.score_with_terms((values, slopes, std::ptr::null_mut()), at, slots, scratch) }
    }

    /// The same with derivatives by elements of captures, and their indices. For each
    /// [`ElementSlope`] `terms` has [`LANE`] bytes for each lane of a block, twice.
    ///
    /// # Safety
    /// As for [`score`](Self::score).
    pub(super) unsafe fn score_with_terms<A>(
        &self,
        (values, slopes, terms): (&mut [A], *mut A, *mut u8),
        at: Position,
        slots: &SlotTable,
        scratch: *mut u8,
    ) {
        if let Some(program) = &self.score {
            let places = [values.as_mut_ptr().cast(), slopes.cast(), terms];
            let lanes = [&self.lanes[0][..], &self.lanes[1]].map(|all| &all[..values.len()]);
            // SAFETY: there are as many slopes as values, the scratch is aligned, and the slots
            // hold the captures.
            unsafe { self.run(program, (places, lanes), (at, slots), scratch) }
        }
    }

    /// The cell of the mask function that holds all of a block of queries and keys, if one does.
    pub(super) fn cell_of(&self, at: Position, [queries, keys]: [usize; 2]) -> Option<[usize; 2]> {
        let of = |first: i32, count: usize, cell: usize| {
            let [first, last] = [first as usize, first as usize + count - 1]
                .map(|position| position.checked_div(cell).unwrap_or(0));
            (first == last).then_some(first)
        };
        Some([of(at[2], queries, self.cell[0])?, of(at[3], keys, self.cell[1])?])
    }

    /// Writes for each lane whether its key is visible, by the mask function alone.
    ///
    /// # Safety
    /// As for [`score`](Self::score).
    pub(super) unsafe fn visible(
        &self,
        lanes: &mut [u8],
        at: Position,
        slots: &SlotTable,
        scratch: *mut u8,
    ) -> Visible {
        let Some(program) = &self.mask else { return Visible::All };
        let queries = Spans::new(at[2] as usize, self.stride, self.cell[0]);
        let keys = Spans::new(at[3] as usize, lanes.len() / self.stride, self.cell[1]);
        let count = queries.clone().count() * keys.clone().count();
        let null = std::ptr::null_mut();
        if count * CELL_LANES > lanes.len() {
            let own = [&self.lanes[0][..], &self.lanes[1]].map(|all| &all[..lanes.len()]);
            // SAFETY: a mask writes its lanes and no slopes; the scratch is aligned, and the slots
            // hold the captures.
            unsafe {
                let places = [lanes.as_mut_ptr(), null, null];
                self.run(program, (places, own), (at, slots), scratch);
            }
            return Visible::of(lanes);
        }
        // SAFETY: `scratch_bytes` has room for so many cells behind that of the programs.
        let (of_keys, of_queries, cells) = unsafe {
            let own = scratch.add(self.program_bytes());
            let numbers = std::slice::from_raw_parts_mut(own.cast::<i32>(), 2 * count);
            let (of_keys, of_queries) = numbers.split_at_mut(count);
            let cells = own.add(2 * count * size_of::<i32>());
            (of_keys, of_queries, std::slice::from_raw_parts_mut(cells, count))
        };
        let along = |k: Range<usize>| queries.clone().map(move |q| (k.clone(), q));
        let pairs = || keys.clone().flat_map(along);
        for (i, (key, query)) in pairs().enumerate() {
            (of_keys[i], of_queries[i]) = (key.start as i32, query.start as i32);
        }
        // SAFETY: as above, with a lane for each cell.
        unsafe {
            let places = [cells.as_mut_ptr(), null, null];
            self.run(program, (places, [of_keys, of_queries]), (at, slots), scratch);
        }
        let visibility = Visible::of(cells);
        if visibility == Visible::Some {
            for ((keys, queries), &cell) in pairs().zip(&*cells) {
                keys.for_each(|key| lanes[key * self.stride..][queries.clone()].fill(cell));
            }
        }
        visibility
    }

    unsafe fn run(
        &self,
        program: &CompiledTile,
        ([values, slopes, terms], lanes): ([*mut u8; 3], [&[i32]; 2]),
        (at, slots): (Position, &SlotTable),
        scratch: *mut u8,
    ) {
        let start = |lanes: &[i32]| lanes.as_ptr().cast_mut().cast::<u8>();
        let own: [*mut u8; OWN] = [
            values,
            start(&at),
            start(&at[1..]),
            start(&at[2..]),
            start(&at[3..]),
            start(lanes[0]),
            start(lanes[1]),
            slopes,
        ];
        let pitch = self.lanes[0].len() * LANE;
        let address = |slot: SlotId| match slot.0.checked_sub(self.first) {
            Some(number) => match (number as usize).checked_sub(OWN) {
                Some(term) => terms.wrapping_add(term * pitch),
                None => own[number as usize],
            },
            None => slots.get(slot),
        };
        // SAFETY: `address` has every slot of the program, which writes values and slopes alone;
        // the scratch has its bytes.
        unsafe {
            let scratch = std::slice::from_raw_parts_mut(scratch, program.scratch_bytes());
            program.run(&address, lanes[0].len(), scratch);
        }
    }
}
