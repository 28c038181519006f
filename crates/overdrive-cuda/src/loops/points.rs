//! `Points`: how threads that stand somewhere in a nest spell addresses, elements and registers.
//!
//! The loops' counters are `i0, i1, ...`. The counter of the lanes' loop is the first of `V`
//! neighbours, which `v` counts. `count` says how many of them exist where that may be fewer than
//! `V`.

use super::coordinates::Counter;
use super::cpp::Text;
use super::kernel::{Parameters, Use};
use super::level::Level;
use super::nest::{Lanes, LoopNest, Of, Walk};
use super::print::{Spelling, statement};
use super::stages::Stages;
use overdrive_ir::SlotId;
use overdrive_ir::plan::{Access, Instr, Program, Register};

/// A program over a nest, as seen by a thread.
#[derive(Clone)]
pub(super) struct Points<'a> {
    pub(super) program: &'a Program,
    pub(super) nest: &'a LoopNest,
    pub(super) stages: &'a Stages,
    pub(super) parameters: Parameters,
    /// Loads of several groups at once, and the index of the group that follows their names.
    pub(super) grouped: Vec<Register>,
    pub(super) group: &'static str,
}

impl<'a> Points<'a> {
    pub(super) fn new(
        program: &'a Program,
        (nest, stages): (&'a LoopNest, &'a Stages),
        aliases: &[(SlotId, SlotId)],
    ) -> Self {
        let mut parameters = Parameters::default();
        for (r, instr) in program.instrs.iter().enumerate() {
            if let Instr::Load(access) = instr
                && stages.used[r]
            {
                parameters.add(access.slot, program.dtypes[r], Use::Read);
            }
        }
        for store in &program.stores {
            parameters.add(store.access.slot, program.dtype(store.value), Use::Written);
        }
        for (old, new) in aliases {
            for (slot, dtype) in parameters.shared(*old, *new) {
                parameters.add(slot, dtype, Use::Both);
            }
        }
        Self { program, nest, stages, parameters, grouped: vec![], group: "" }
    }

    /// The type of counters and addresses.
    pub(super) fn int(&self) -> &'static str {
        if self.nest.is_small() { "i32" } else { "i64" }
    }

    fn walk(&self, of: Of) -> &Walk {
        &self.nest.walks[&of]
    }

    /// Stride of a walk along the lanes.
    fn step(&self, of: Of) -> i64 {
        self.walk(of).strides[self.nest.lane()]
    }

    /// Whether a walk moves with the lanes.
    pub(super) fn moves(&self, of: Of) -> bool {
        self.step(of) != 0
    }

    /// `i0 * 64 + i1`: where a walk is.
    pub(super) fn place(&self, of: Of) -> String {
        let walk = self.walk(of);
        let term = |(d, stride): (usize, &i64)| match *stride {
            0 => None,
            1 => Some(format!("i{d}")),
            stride => Some(format!("i{d} * {stride}")),
        };
        let mut terms: Vec<String> = walk.strides.iter().enumerate().filter_map(term).collect();
        if walk.offset != 0 || terms.is_empty() {
            terms.push(walk.offset.to_string());
        }
        terms.join(" + ")
    }

    fn access(&self, of: Of) -> &Access {
        match of {
            Of::Load(register) => match self.program.instr(register) {
                Instr::Load(access) => access,
                _ => unreachable!("a load's walk belongs to a load"),
            },
            Of::Store(number) => &self.program.stores[number].access,
            Of::Index(_) | Of::Point => unreachable!("indices are not in memory"),
        }
    }

    /// `, count` where neighbours may be missing.
    fn count(&self) -> &'static str {
        if self.nest.has_tail() { ", count" } else { "" }
    }

    /// Says how many lanes exist at the counters, where that differs.
    pub(super) fn count_lanes(&self, text: &mut Text) {
        if self.nest.has_tail() {
            let (lane, vector) = (self.nest.lane(), self.nest.vector);
            let extent = self.nest.extents[lane];
            text.line(format!("const int count = min({vector}, (int)({extent} - i{lane}));"));
        }
    }

    /// Prints the values that are the same at every point.
    pub(super) fn constants(&self, text: &mut Text) {
        for register in self.stages.registers(self.program, Level::Kernel, 0) {
            if matches!(self.program.instr(register), Instr::Load(_)) {
                self.load_one(register, text);
            }
            text.line(statement(self.program, register, self));
        }
    }

    /// Declares and reads the value of a load that does not move with the lanes.
    pub(super) fn load_one(&self, register: Register, text: &mut Text) {
        self.declare(register, "", text);
        self.load(register, text);
    }

    /// Declares the counters of a row's loops from its number, `row`.
    pub(super) fn counters_of_row(&self, text: &mut Text) {
        let counter = Counter { name: "row", int: self.int(), first: 0 };
        counter.split(self.nest.kept(), |_| 1, text);
    }

    /// The address that a load reads from at the counters.
    pub(super) fn address(&self, load: Register) -> String {
        let of = Of::Load(load);
        format!("{} + ({})", self.parameters.name(self.access(of).slot), self.place(of))
    }

    /// Declares and reads the one element at the counters, lane `v` of one.
    pub(super) fn load_single(&self, register: Register, text: &mut Text) {
        let of = Of::Load(register);
        let (dtype, slot) =
            (self.program.dtype(register), self.parameters.name(self.access(of).slot));
        let lanes = if self.moves(of) { "[1]" } else { "" };
        let place = self.place(of);
        let element = if dtype.bits() < 8 {
            format!("packed<{dtype}>({slot}, {place})")
        } else {
            format!("{slot}[{place}]")
        };
        text.line(format!("const {dtype} x{}{lanes} = {{{element}}};", register.0));
    }

    /// Declares the value of a load, `groups` times.
    pub(super) fn declare(&self, register: Register, groups: &str, text: &mut Text) {
        let dtype = self.program.dtype(register);
        let lanes = if self.moves(Of::Load(register)) {
            format!("[{}]", self.nest.vector)
        } else {
            String::new()
        };
        text.line(format!("{dtype} x{}{groups}{lanes};", register.0));
    }

    /// Reads the value of a load at the place of the counters.
    pub(super) fn load(&self, register: Register, text: &mut Text) {
        let of = Of::Load(register);
        let (dtype, slot) =
            (self.program.dtype(register), self.parameters.name(self.access(of).slot));
        let to = self.loaded(register);
        let (place, count) = (self.place(of), self.count());
        let (step, alignment) =
            (self.step(of), self.nest.alignment(self.walk(of)).min(self.nest.vector));
        if dtype.bits() < 8 {
            if step == 0 {
                return text.line(format!("{to} = packed<{dtype}>({slot}, {place});"));
            }
            let guard = if self.nest.has_tail() { "if (v < count) " } else { "" };
            let each = format!("for (int v = 0; v < {}; ++v)", self.nest.vector);
            return text.unrolled(each, |text| {
                text.line(format!(
                    "{guard}{to}[v] = packed<{dtype}>({slot}, {place} + v * {step});"
                ));
            });
        }
        text.line(match step {
            0 => format!("{to} = {slot}[{place}];"),
            1 => format!("load<{alignment}>({to}, {slot} + ({place}){count});"),
            step => format!("gather({to}, {slot} + ({place}), {step}{count});"),
        });
    }

    /// Writes `y{number}`, an array where the store moves with the lanes.
    pub(super) fn store(&self, number: usize, text: &mut Text) {
        let of = Of::Store(number);
        let store = &self.program.stores[number];
        let (dtype, slot) =
            (self.program.dtype(store.value), self.parameters.name(store.access.slot));
        let (place, count) = (self.place(of), self.count());
        let alignment = self.nest.alignment(self.walk(of)).min(self.nest.vector);
        text.line(match self.step(of) {
            _ if dtype.bits() < 8 => format!("store_packed({slot}, {place}, y{number}{count});"),
            1 => format!("store<{alignment}>({slot} + ({place}), y{number}{count});"),
            step => format!("scatter({slot} + ({place}), y{number}, {step}{count});"),
        });
    }

    /// The value that a load brought, all lanes of it.
    pub(super) fn loaded(&self, load: Register) -> String {
        format!("x{}{}", load.0, if self.grouped.contains(&load) { self.group } else { "" })
    }

    /// The element that a store writes which does not move with the lanes.
    pub(super) fn element(&self, number: usize) -> String {
        let slot = self.parameters.name(self.program.stores[number].access.slot);
        format!("{slot}[{}]", self.place(Of::Store(number)))
    }

    /// Whether a register is an array over lanes outside of element code: rows lie across the
    /// lanes.
    pub(super) fn is_array(&self, register: Register) -> bool {
        self.nest.lanes == Lanes::Across && self.stages.level(register) == Level::Row
    }
}

impl Spelling for Points<'_> {
    fn load(&self, register: Register, _: &Access) -> String {
        let lanes = if self.moves(Of::Load(register)) { "[v]" } else { "" };
        format!("{}{lanes}", self.loaded(register))
    }

    fn index(&self, dimension: usize) -> String {
        self.counted(Of::Index(dimension))
    }

    fn point(&self) -> String {
        format!("(u64)({})", self.counted(Of::Point))
    }

    fn is_loose(&self, register: Register) -> bool {
        self.stages.loose[register.0 as usize]
    }

    fn name(&self, register: Register) -> String {
        let lanes = if self.is_array(register) { "[v]" } else { "" };
        format!("t{}{lanes}", register.0)
    }
}

impl Points<'_> {
    fn counted(&self, of: Of) -> String {
        match self.step(of) {
            0 => self.place(of),
            1 => format!("{} + v", self.place(of)),
            step => format!("{} + v * {step}", self.place(of)),
        }
    }
}
