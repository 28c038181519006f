//! `Following`: a loop over the rows of a product's result, as text for threads that have elements
//! of it in registers.
//!
//! A thread has two rows, eight apart, and every fourth pair of neighbours in them, as the tensor
//! cores leave it. It folds them, meets the others that have parts of these rows, and computes the
//! values that its rows have one of. Then it goes over its elements again. The text is a function
//! `follow`, which is told by its caller how threads meet. Invariant: elements of the result are
//! read from registers alone. Nobody writes the other values that the loop loads meanwhile.

use super::cpp::Text;
use super::level::Level;
use super::nest::{Lanes, LoopNest, Of};
use super::print::{Spelling, reducer, statement, value};
use super::stages::{RowPass, Stages};
use overdrive_ir::DType;
use overdrive_ir::plan::{Access, Instr, Program, Register, SlotId};
use std::collections::BTreeSet;

/// A loop that a product can do itself.
pub(crate) struct Following<'a> {
    program: &'a Program,
    nest: LoopNest,
    stages: Stages,
    /// The access by which the result would be read.
    result: &'a Access,
}

impl<'a> Following<'a> {
    /// The loop `program` over the `m` rows of `n` elements that a product stores through `result`.
    ///
    /// # Errors
    /// Why there is no text for it.
    pub(crate) fn new(
        program: &'a Program,
        result: &'a Access,
        [m, n]: [usize; 2],
    ) -> Result<Self, &'static str> {
        let nest = LoopNest::new(program);
        if nest.lanes != Lanes::Along || nest.kept() != [m] || nest.folded() != [n] {
            return Err("it does not fold the rows of the product");
        }
        let stages = Stages::new(program, &nest);
        let of_result = |r: &u32| match program.instr(Register(*r)) {
            Instr::Load(access) => access.slot == result.slot,
            _ => false,
        };
        let mut reads = (0..program.instrs.len() as u32).filter(of_result);
        let same = |r: u32| {
            let walk = &nest.walks[&Of::Load(Register(r))];
            walk.offset == result.offset && walk.strides == result.strides
        };
        if !reads.all(same) {
            return Err("it reads the product in another order");
        }
        let points =
            program.instrs.iter().any(|i| matches!(i, Instr::Index(_) | Instr::RandomBits { .. }));
        let loads =
            program.instrs.iter().zip(&program.dtypes).filter(|(i, _)| matches!(i, Instr::Load(_)));
        let stores = program.stores.iter().map(|store| program.dtype(store.value));
        if points || loads.map(|(_, &dtype)| dtype).chain(stores).any(|dtype| dtype.bits() < 8) {
            return Err("it needs to know where its elements are, or parts of a byte");
        }
        let sums =
            |pass: &RowPass| pass.folds.iter().all(|&fold| program.dtype(fold) == DType::F32);
        let single = stages.passes.iter().all(|pass| pass.folds.len() <= 1 && sums(pass));
        let none = stages.passes.iter().all(|pass| pass.folds.is_empty());
        if none || !single || !stages.online.is_empty() || !stages.picks.is_empty() {
            return Err("a walk over its rows folds something else than one f32");
        }
        if !stages.row_stores.is_empty() {
            return Err("it stores what its rows have one of");
        }
        Ok(Self { program, nest, stages, result })
    }

    /// Walks that end in a meeting.
    pub(crate) fn folds(&self) -> usize {
        self.stages.passes.iter().filter(|pass| !pass.folds.is_empty()).count()
    }

    /// The text, whose buffers are found by `slots.at[number(slot)]`.
    pub(crate) fn print(&self, number: &mut dyn FnMut(SlotId) -> usize) -> String {
        let mut text = Text::default();
        let of_row = |r: &Register| {
            self.stages.used[r.0 as usize] && self.stages.level(*r) != Level::Element
        };
        let registers: Vec<Register> =
            (0..self.program.instrs.len() as u32).map(Register).collect();
        text.line("// What a row has one of.");
        text.line("struct Row {");
        for r in registers.iter().copied().filter(of_row) {
            text.line(format!("    {} t{};", self.program.dtype(r), r.0));
        }
        text.line("};");
        self.columns(number, &mut text);
        let arguments = "const Slots& slots, Row& of, i32 row";
        text.block(format!("__device__ __forceinline__ void begin_row({arguments})"), |text| {
            self.registers_of_row(0, number, text);
        });
        for (p, pass) in self.stages.passes.iter().enumerate() {
            self.pass(p, pass, number, &mut text);
            if let [fold] = pass.folds[..] {
                let head =
                    format!("__device__ __forceinline__ void known_{p}({arguments}, f32 folded)");
                text.block(head, |text| {
                    text.line(format!("of.t{} = folded;", fold.0));
                    self.registers_of_row(p + 1, number, text);
                });
            }
        }
        self.prefetch(number, &mut text);
        self.follow(&mut text);
        text.finish()
    }

    /// The values that all rows read alike, at a thread's columns. They are on their way while
    /// threads meet, and the same for both rows.
    fn columns(&self, number: &mut dyn FnMut(SlotId) -> usize, text: &mut Text) {
        let loads: Vec<Register> = self.of_columns().collect();
        text.line("template <int PAIRS>");
        text.line("struct Columns {");
        for r in &loads {
            text.line(format!("    {} l{}[PAIRS][2];", self.program.dtype(*r), r.0));
        }
        text.block("    __device__ __forceinline__ Columns(const Slots& slots, i32 col)", |text| {
            text.line("constexpr i32 row = 0;");
            text.unrolled("for (int j = 0; j < PAIRS; ++j)", |text| {
                for r in &loads {
                    let Instr::Load(access) = self.program.instr(*r) else { continue };
                    self.load(*r, ("[j]", number(access.slot)), text);
                }
            });
        });
        text.line("};");
    }

    /// Loads of elements that do not differ from row to row.
    fn of_columns(&self) -> impl Iterator<Item = Register> {
        self.stages
            .passes
            .iter()
            .flat_map(|pass| &pass.elements)
            .copied()
            .filter(|r| self.is_of_columns(*r))
            .collect::<BTreeSet<_>>()
            .into_iter()
    }

    fn is_of_columns(&self, r: Register) -> bool {
        let Instr::Load(access) = self.program.instr(r) else { return false };
        access.slot != self.result.slot && self.nest.walks[&Of::Load(r)].strides[0] == 0
    }

    /// All of it, for the two rows of a thread.
    fn follow(&self, text: &mut Text) {
        text.line("template <int PAIRS, class Meet, class Meanwhile>");
        let arguments = "const Slots& slots, i32 row, i32 col, const OUT (&x)[2][PAIRS][2], const \
                         Meet& meet, const Meanwhile& meanwhile";
        text.block(format!("__device__ __forceinline__ void follow({arguments})"), |text| {
            const HALVES: &str = "for (int half = 0; half < 2; ++half)";
            text.line("Row of[2];");
            text.line("const Columns<PAIRS> at(slots, col);");
            text.unrolled(HALVES, |text| {
                text.line("begin_row(slots, of[half], min(row + 8 * half, M - 1));");
            });
            let mut meeting = 0;
            for (p, pass) in self.stages.passes.iter().enumerate() {
                let walk = format!("pass_{p}(slots, of[half], row + 8 * half, col, x[half], at)");
                if let [fold] = pass.folds[..] {
                    let Instr::Reduce(reduction) = self.program.instr(fold) else {
                        unreachable!("folds are reductions")
                    };
                    text.line(format!("f32 parts_{p}[2];"));
                    text.unrolled(HALVES, |text| text.line(format!("parts_{p}[half] = {walk};")));
                    let kind = reducer(reduction.reducer);
                    let meanwhile = if meeting == 0 { "meanwhile" } else { "[] {}" };
                    text.line(format!(
                        "meet.template fold<{kind}, {meeting}>(parts_{p}, {meanwhile});"
                    ));
                    text.unrolled(HALVES, |text| {
                        let row = "min(row + 8 * half, M - 1)";
                        text.line(format!("known_{p}(slots, of[half], {row}, parts_{p}[half]);"));
                    });
                    meeting += 1;
                } else {
                    text.unrolled(HALVES, |text| {
                        text.line(format!("if (row + 8 * half < M) {walk};"))
                    });
                }
            }
        });
    }

    /// A walk over a thread's elements of a row. Its value is what it folds, or nothing.
    fn pass(
        &self,
        p: usize,
        pass: &RowPass,
        number: &mut dyn FnMut(SlotId) -> usize,
        text: &mut Text,
    ) {
        let program = self.program;
        let fold = pass.folds.first().map(|&fold| {
            let Instr::Reduce(reduction) = program.instr(fold) else {
                unreachable!("folds are reductions")
            };
            (reducer(reduction.reducer), self.stages.folded(program, fold))
        });
        let result = if fold.is_some() { "f32" } else { "void" };
        let arguments = "const Slots& slots, const Row& of, i32 row, i32 col, const OUT \
                         (&x)[PAIRS][2], const Columns<PAIRS>& at";
        text.line("template <int PAIRS>");
        text.block(format!("__device__ __forceinline__ {result} pass_{p}({arguments})"), |text| {
            if let Some((kind, _)) = fold {
                text.line(format!(
                    "f32 all[2] = {{{kind}::identity<f32>(), {kind}::identity<f32>()}};"
                ));
            }
            text.unrolled("for (int j = 0; j < PAIRS; ++j)", |text| {
                for &r in &pass.elements {
                    if let Instr::Load(access) = program.instr(r)
                        && access.slot != self.result.slot
                        && !self.is_of_columns(r)
                    {
                        text.line(format!("{} l{}[2];", program.dtype(r), r.0));
                        self.load(r, ("", number(access.slot)), text);
                    }
                }
                for &s in &pass.stores {
                    text.line(format!("{} y{s}[2];", program.dtype(program.stores[s].value)));
                }
                text.unrolled("for (int v = 0; v < 2; ++v)", |text| {
                    let spelling = InRow { following: self, slot: None };
                    for &r in &pass.elements {
                        text.line(statement(program, r, &spelling));
                    }
                    if let Some((kind, value)) = fold {
                        text.line(format!(
                            "all[v] = {kind}::of(all[v], {});",
                            spelling.name(value)
                        ));
                    }
                    for &s in &pass.stores {
                        text.line(format!("y{s}[v] = {};", spelling.name(program.stores[s].value)));
                    }
                });
                for &s in &pass.stores {
                    let (to, step, once) =
                        self.address(Of::Store(s), number(program.stores[s].access.slot));
                    text.line(match step {
                        1 => format!("store<{once}>({to}, y{s}, 2);"),
                        _ => format!("scatter({to}, y{s}, {step}ll, 2);"),
                    });
                }
            });
            if let Some((kind, _)) = fold {
                text.line(format!("return {kind}::of(all[0], all[1]);"));
            }
        });
    }

    /// Registers of rows that are known after so many meetings.
    fn registers_of_row(
        &self,
        stage: usize,
        number: &mut dyn FnMut(SlotId) -> usize,
        text: &mut Text,
    ) {
        let kernel = self.stages.registers(self.program, Level::Kernel, stage);
        let rows = self.stages.registers(self.program, Level::Row, stage);
        let mut all: Vec<Register> = kernel.into_iter().chain(rows).collect();
        all.sort_unstable_by_key(|r| r.0);
        for r in all {
            let slot = match self.program.instr(r) {
                Instr::Load(access) => Some(number(access.slot)),
                _ => None,
            };
            let value = value(self.program, r, &InRow { following: self, slot });
            text.line(format!("of.t{} = {value};", r.0));
        }
    }

    /// Loads two neighbours of a value that varies along a row, to `l..` with the suffix that
    /// follows that name.
    fn load(&self, r: Register, (to, slot): (&str, usize), text: &mut Text) {
        let (from, step, once) = self.address(Of::Load(r), slot);
        text.line(match step {
            1 => format!("load<{once}>(l{}{to}, {from}, 2);", r.0),
            _ => format!("gather(l{}{to}, {from}, {step}ll, 2);", r.0),
        });
    }

    /// Prefetches the operands of a row's elements beside the result.
    fn prefetch(&self, number: &mut dyn FnMut(SlotId) -> usize, text: &mut Text) {
        let head = "__device__ __forceinline__ void prefetch_following(const Slots& slots, i32 \
                    row, i32 col)";
        text.block(head, |text| {
            text.line("constexpr int j = 0;");
            for (of, walk) in &self.nest.walks {
                let Of::Load(r) = of else { continue };
                let Instr::Load(access) = self.program.instr(*r) else { continue };
                if access.slot != self.result.slot
                    && walk.strides[1] != 0
                    && self.stages.used[r.0 as usize]
                {
                    let (at, _, _) = self.address(*of, number(access.slot));
                    text.line(format!("asm volatile(\"prefetch.global.L2 [%0];\" ::\"l\"({at}));"));
                }
            }
        });
    }

    /// Place of a thread's pair `j` of a row, the distance to its neighbours, and how many move at
    /// once.
    fn address(&self, of: Of, slot: usize) -> (String, i64, i64) {
        let walk = &self.nest.walks[&of];
        let [row, col] = walk.strides[..] else { unreachable!("rows and columns") };
        let dtype = walk.dtype.expect("loads and stores are of elements");
        let even = walk.offset % 2 == 0 && row % 2 == 0;
        let at = format!("{}ll + (i64)row * {row}ll + (i64)(col + 8 * j) * {col}ll", walk.offset);
        (format!("({dtype}*)slots.at[{slot}] + ({at})"), col, if even { 2 } else { 1 })
    }
}

/// How a loop is spelled by a thread of a product.
struct InRow<'a> {
    following: &'a Following<'a>,
    /// The buffer of the load that is spelled, where rows have one of it.
    slot: Option<usize>,
}

impl Spelling for InRow<'_> {
    fn load(&self, register: Register, access: &Access) -> String {
        if access.slot == self.following.result.slot {
            return "x[j][v]".to_owned();
        }
        if self.following.stages.level(register) == Level::Element {
            let columns = self.following.is_of_columns(register);
            return if columns {
                format!("at.l{}[j][v]", register.0)
            } else {
                format!("l{}[v]", register.0)
            };
        }
        let slot = self.slot.expect("the caller spells a load that rows have one of");
        let walk = &self.following.nest.walks[&Of::Load(register)];
        let dtype = self.following.program.dtype(register);
        format!(
            "*((const {dtype}*)slots.at[{slot}] + ({}ll + (i64)row * {}ll))",
            walk.offset, walk.strides[0]
        )
    }

    fn index(&self, _: usize) -> String {
        unreachable!("`new` refused loops that ask for it")
    }

    fn point(&self) -> String {
        unreachable!("`new` refused loops that ask for it")
    }

    fn is_loose(&self, register: Register) -> bool {
        self.following.stages.loose[register.0 as usize]
    }

    fn name(&self, register: Register) -> String {
        match self.following.stages.level(register) {
            Level::Element => format!("t{}", register.0),
            Level::Kernel | Level::Row => format!("of.t{}", register.0),
        }
    }
}
