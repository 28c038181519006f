//! A score or mask function on its way from a pair of an attention to the lanes of a block.

use overdrive_ir::plan::{Access, Instr, Program, Register, Store, View};
use overdrive_ir::{Binary, DType, Overflow, Plan, SlotId};
use overdrive_passes::{At, Region};

use crate::exec::Unsupported;
use crate::loops::{CompiledTile, Reads};

/// Slots of a task, numbered behind those of the plan: scores or visibility, a `Position`, the
/// row and column of each lane, and slopes. Behind these are two for each [`ElementSlope`].
pub(super) const OWN: usize = 8;
/// That of slopes.
pub(super) const SLOPES: u32 = 7;

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

/// Further outputs of a score function: its derivative by an element of a capture that it reads.
/// The index of that element is another, `None` in a capture of one element.
#[derive(Clone, Copy, Debug)]
pub(super) struct ElementSlope {
    pub(super) capture: usize,
    pub(super) slope: usize,
    pub(super) index: Option<usize>,
}

/// One function.
pub(super) struct Translator<'a> {
    plan: &'a Plan,
    program: Program,
    reads: Reads,
    /// b, h, q, k.
    index: [Register; 4],
    extents: [usize; 4],
    /// Whether different batch elements, or heads, have derivatives by different elements so far.
    pub(super) apart: [bool; 2],
}

impl<'a> Translator<'a> {
    pub(super) fn new(plan: &'a Plan, block: ScoreBlockShape) -> Self {
        let program = Program { extents: vec![block.rows * block.stride], ..Program::default() };
        let mut this = Self {
            plan,
            program,
            reads: Reads::new(),
            index: [Register(0); 4],
            extents: block.extents,
            apart: [true; 2],
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

    pub(super) fn translate(
        &mut self,
        (region, captures): (Region, &[View]),
        scale: f64,
        slopes: &[ElementSlope],
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
        for (number, of) in slopes.iter().enumerate() {
            let slope = known[region.outputs[of.slope][0].0 as usize];
            let slope = self.as_type(slope, result(0));
            let index: Vec<Register> = match of.index {
                Some(output) => {
                    region.outputs[output].iter().map(|r| known[r.0 as usize]).collect()
                }
                None => Vec::new(),
            };
            let place = self.place(&captures[of.capture].ty.sizes(), &index);
            for (value, number) in [(slope, 2 * number), (place, 2 * number + 1)] {
                let slot = self.own_slot((OWN + number) as u32);
                let access = Access { slot, offset: 0, strides: vec![1] };
                self.program.stores.push(Store { access, value });
            }
        }
        let own = |number: u32| match number {
            0 => result(0),
            SLOPES => result(1),
            _ if number as usize >= OWN && (number as usize - OWN).is_multiple_of(2) => result(0),
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

    /// The number of the element of a dense tensor at an index, which is clamped.
    fn place(&mut self, sizes: &[usize], index: &[Register]) -> Register {
        let is = |this: &Self, d: usize| {
            let own = |(&register, &extent): (&Register, &usize)| {
                register == this.index[d] && extent >= this.extents[d]
            };
            index.iter().zip(sizes).any(own)
        };
        self.apart = [0, 1].map(|d| self.apart[d] && is(self, d));
        let mut place = self.constant(0);
        for (&register, &extent) in index.iter().zip(sizes) {
            let term = self.clamped(register, extent);
            let term = self.as_type(term, DType::I32);
            let extent = self.constant(extent);
            let before = self.int(Binary::Mul, place, extent);
            place = self.int(Binary::Add, before, term);
        }
        place
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
