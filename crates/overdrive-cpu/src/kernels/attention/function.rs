//! Score and mask functions over the lanes of a block of scores. Each is one run of a fused loop,
//! whatever the shape of the block.
#![allow(unsafe_code)] // Runs programs over the addresses of slots and scratch.

use std::ops::Range;

use overdrive_ir::ops::attention::{find_mask, find_score};
use overdrive_ir::plan::{Access, Instr, Program, Register, Store, View};
use overdrive_ir::{Binary, DType, Graph, Overflow, Plan, SlotId};
use overdrive_passes::{At, Region};

use super::visible::{CELL_LANES, Spans, Visible};
use crate::exec::Unsupported;
use crate::loops::{CompiledTile, Reads};
use crate::slots::SlotTable;

/// Slots of a task, numbered behind those of the plan: scores or visibility, a [`Position`], the
/// row and column of each lane, and slopes.
const OWN: usize = 8;
/// That of slopes.
const SLOPES: u32 = 7;

/// Position of a block of scores: batch, head, first query, first key.
pub(super) type Position = [i32; 4];

/// The form of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScoreBlockShape {
    /// Keys.
    pub(super) rows: usize,
    /// Lanes from a key to the next; a lane is a query.
    pub(super) stride: usize,
    /// Queries and keys of a cell, for whose pairs the mask is the same; 0: all of them.
    pub(super) cell: [usize; 2],
    /// B, H, Tq and Tk of the attention. Lanes beyond Tq repeat the last query.
    pub(super) extents: [usize; 4],
}

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
}

impl Functions {
    /// The functions of `regions`, which read `captures`; scores are products times `scale`.
    pub(super) fn new(
        plan: &Plan,
        (regions, captures): (&[Graph], &[View]),
        block: ScoreBlockShape,
        scale: f64,
    ) -> Result<Self, Unsupported> {
        let compile = |region: &Graph| {
            let translated = Region::new(region, captures).map_err(Unsupported::new)?;
            let captures = (translated, captures);
            Translator::new(plan, block).translate(captures, scale)
        };
        let [score, mask] = [find_score(regions), find_mask(regions)];
        let lanes = if regions.is_empty() { 0 } else { block.rows * block.stride };
        let lane = |of: fn(usize, usize) -> usize| {
            (0..lanes).map(|lane| of(lane, block.stride) as i32).collect()
        };
        Ok(Self {
            score: score.map(compile).transpose()?,
            mask: mask.map(compile).transpose()?,
            cell: block.cell,
            first: plan.slots.len() as u32,
            stride: block.stride,
            lanes: [lane(|lane, stride| lane / stride), lane(|lane, stride| lane % stride)],
        })
    }

    pub(super) fn has_score(&self) -> bool {
        self.score.is_some()
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
        if let Some(program) = &self.score {
            let places = [values.as_mut_ptr().cast(), slopes.cast()];
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
                let places = [lanes.as_mut_ptr(), null];
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
            let places = [cells.as_mut_ptr(), null];
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
        ([values, slopes], lanes): ([*mut u8; 2], [&[i32]; 2]),
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
        let address = |slot: SlotId| match slot.0.checked_sub(self.first) {
            Some(number) => own[number as usize],
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

/// A function on its way from a point of an attention to the lanes of a block.
struct Translator<'a> {
    plan: &'a Plan,
    program: Program,
    reads: Reads,
    /// b, h, q, k.
    index: [Register; 4],
    extents: [usize; 4],
}

impl<'a> Translator<'a> {
    fn new(plan: &'a Plan, block: ScoreBlockShape) -> Self {
        let program = Program { extents: vec![block.rows * block.stride], ..Program::default() };
        let mut this = Self {
            plan,
            program,
            reads: Reads::new(),
            index: [Register(0); 4],
            extents: block.extents,
        };
        let [batch, head] = [1, 2].map(|own| this.own(own, 0, DType::I32));
        let mut moved = |first: u32, lanes: u32| {
            let (first, lane) = (this.own(first, 0, DType::I32), this.own(lanes, 1, DType::I32));
            this.int(Binary::Add, first, lane)
        };
        let (query, key) = (moved(3, 6), moved(4, 5));
        let last = this.constant(block.extents[2].saturating_sub(1));
        let query = this.int(Binary::Min, query, last);
        this.index = [batch, head, query, key];
        this
    }

    fn own_slot(&self, number: u32) -> SlotId {
        SlotId(self.plan.slots.len() as u32 + number)
    }

    /// A load from a slot of the task.
    fn own(&mut self, number: u32, stride: i64, dtype: DType) -> Register {
        let access = Access { slot: self.own_slot(number), offset: 0, strides: vec![stride] };
        self.program.push(Instr::Load(access), dtype)
    }

    fn constant(&mut self, number: usize) -> Register {
        self.program.push(Instr::Constant(number as f64), DType::I32)
    }

    fn int(&mut self, kind: Binary, a: Register, b: Register) -> Register {
        self.program.push(Instr::Binary(kind, a, b), DType::I32)
    }

    fn translate(
        mut self,
        (region, captures): (Region, &[View]),
        scale: f64,
    ) -> Result<CompiledTile, Unsupported> {
        let result = |output: usize| region.program.dtype(region.outputs[output][0]);
        let mut known: Vec<Register> = Vec::with_capacity(region.program.instrs.len());
        for (at, instr) in region.program.instrs.iter().enumerate() {
            let dtype = region.program.dtypes[at];
            let of = |register: &Register| known[register.0 as usize];
            let instr = match instr {
                Instr::Index(dimension) => {
                    known.push(self.index[*dimension]);
                    continue;
                }
                Instr::Accumulator => {
                    let product = self.own(0, 1, dtype);
                    let factor = self.program.push(Instr::Constant(scale), dtype);
                    Instr::Binary(Binary::Mul, product, factor)
                }
                Instr::Load(_) => {
                    let read = &region.reads[&Register(at as u32)];
                    let register = self.read(&captures[read.capture], &read.index, &known)?;
                    known.push(register);
                    continue;
                }
                Instr::Unary(kind, a) => Instr::Unary(*kind, of(a)),
                Instr::Binary(kind, a, b) => Instr::Binary(*kind, of(a), of(b)),
                Instr::Compare(kind, a, b) => Instr::Compare(*kind, of(a), of(b)),
                Instr::Select(c, a, b) => Instr::Select(of(c), of(a), of(b)),
                Instr::Convert(a, overflow) => Instr::Convert(of(a), *overflow),
                Instr::Bitcast(a) => Instr::Bitcast(of(a)),
                Instr::Constant(number) => Instr::Constant(*number),
                Instr::RandomBits { .. } | Instr::Reduce(_) => {
                    unreachable!("a score or mask function is scalar and draws no random bits")
                }
            };
            known.push(self.program.push(instr, dtype));
        }
        for (output, number) in (0..region.outputs.len()).zip([0, SLOPES]) {
            let access = Access { slot: self.own_slot(number), offset: 0, strides: vec![1] };
            let value = known[region.outputs[output][0].0 as usize];
            self.program.stores.push(Store { access, value });
        }
        let own = |number: u32| match number {
            0 => result(0),
            SLOPES => result(1),
            _ => DType::I32,
        };
        let plan = self.plan;
        let dtype = |slot: SlotId| match slot.0.checked_sub(plan.slots.len() as u32) {
            Some(number) => own(number),
            None => plan.slots[slot.0 as usize].ty.dtype,
        };
        CompiledTile::new(&self.program, &dtype, &self.reads)
            .map_err(|unsupported| Unsupported::new(unsupported.reason))
    }

    /// The element of a capture at an index. Each part of the index is clamped to its dimension.
    fn read(
        &mut self,
        capture: &View,
        index: &[At],
        known: &[Register],
    ) -> Result<Register, Unsupported> {
        let dtype = capture.ty.dtype;
        if capture.ty.elements() == 0 {
            return Ok(self.program.push(Instr::Constant(0.0), dtype));
        }
        let (mut offset, mut terms, mut reach) = (capture.offset, Vec::new(), 0);
        for ((at, &stride), extent) in index.iter().zip(&capture.strides).zip(capture.ty.sizes()) {
            match at {
                At::Fixed(i) => offset += *i as i64 * stride,
                At::Computed(_) if stride == 0 || extent == 1 => {}
                At::Computed(register) => {
                    reach += (extent as i64 - 1) * stride.abs();
                    terms.push((known[register.0 as usize], extent, stride));
                }
            }
        }
        let wide = if reach > i64::from(i32::MAX) { DType::I64 } else { DType::I32 };
        let mut sum = None;
        for (register, extent, stride) in terms {
            let term = self.clamped(register, extent);
            let term = self.as_type(term, wide);
            let step = self.program.push(Instr::Constant(stride as f64), wide);
            let term = self.program.push(Instr::Binary(Binary::Mul, term, step), wide);
            sum = Some(match sum {
                Some(sum) => self.program.push(Instr::Binary(Binary::Add, sum, term), wide),
                None => term,
            });
        }
        let access = Access { slot: capture.slot, offset, strides: vec![0] };
        let register = self.program.push(Instr::Load(access), dtype);
        if let Some(sum) = sum {
            self.reads.insert(register, sum);
        }
        Ok(register)
    }

    fn as_type(&mut self, register: Register, dtype: DType) -> Register {
        if self.program.dtype(register) == dtype {
            return register;
        }
        self.program.push(Instr::Convert(register, Overflow::Ieee), dtype)
    }

    /// An index within its dimension, in its own type.
    fn clamped(&mut self, index: Register, extent: usize) -> Register {
        let within = |(register, most): (&Register, &usize)| *register == index && *most <= extent;
        if self.index.iter().zip(&self.extents).any(within) {
            return index;
        }
        let dtype = self.program.dtype(index);
        let last =
            dtype.int_range().map_or(extent as i128 - 1, |(_, high)| high.min(extent as i128 - 1));
        let bound = |this: &mut Self, kind, register, number: i128| {
            let number = this.program.push(Instr::Constant(number as f64), dtype);
            this.program.push(Instr::Binary(kind, register, number), dtype)
        };
        let least = bound(self, Binary::Max, index, 0);
        bound(self, Binary::Min, least, last)
    }
}
