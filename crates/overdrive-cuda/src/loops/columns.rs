//! Loops that fold down columns: neighbouring threads take neighbouring results, so that each line of memory is read
//! whole, and the threads of a column meet in shared memory.

use super::coordinates::Counter;
use super::kernel::{Kernel, Machine};
use super::nest::Of;
use super::points::Points;
use super::print::{reducer, statement};
use super::source::Sketch;
use super::stages::{Level, Pass};
use super::text::Text;
use overdrive_ir::plan::{Instr, Register};

/// Threads of a block.
const BLOCK: usize = 256;
/// Most groups of columns that a block takes.
const COLUMNS: usize = 32;
/// Blocks of a grid for each multiprocessor.
const BLOCKS_PER_MULTIPROCESSOR: usize = 16;

/// Prints the kernel.
pub(super) fn columns(points: Points<'_>, machine: Machine) -> Kernel {
    let nest = points.nest;
    let mut extents = nest.kept().to_vec();
    extents[nest.lane()] = extents[nest.lane()].div_ceil(nest.vector);
    let groups: usize = extents.iter().product();
    let height: usize = nest.folded().iter().product();
    let across = groups.next_power_of_two().min(COLUMNS);
    let down = (BLOCK / across).min(height.max(1).next_power_of_two());
    let column = Column { points: &points, extents, groups, height, across, down };
    let mut text = Text::default();
    points.constants(&mut text);
    column.print(&mut text);
    let blocks = groups.div_ceil(across);
    let grid = blocks.min(machine.multiprocessors as usize * BLOCKS_PER_MULTIPROCESSOR) as u32;
    Sketch { points: &points, text, grid, block: (across * down) as u32, cluster: 1 }.finish()
}

struct Column<'a> {
    points: &'a Points<'a>,
    /// Kept loops, the lanes' in groups.
    extents: Vec<usize>,
    /// Groups of columns.
    groups: usize,
    /// Elements of a column.
    height: usize,
    /// Groups of columns of a block.
    across: usize,
    /// Threads of a column.
    down: usize,
}

impl Column<'_> {
    fn print(&self, text: &mut Text) {
        let Self { points, groups, across, .. } = *self;
        let int = points.int();
        text.line(format!("const int t = threadIdx.x / {across};"));
        let step = format!("(i64)gridDim.x * {across}");
        let head = format!("for (i64 base = (i64)blockIdx.x * {across}; base < {groups}; base += {step})");
        text.block(head, |text| {
            // Threads without a column take the last one along, so that all take part in folds.
            text.line(format!("const bool active = base + threadIdx.x % {across} < {groups};"));
            text.line(format!("const {int} column = min(base + threadIdx.x % {across}, {}ll);", groups - 1));
            let counter = Counter { name: "column", int, first: 0 };
            let (lane, vector) = (points.nest.lane(), points.nest.vector);
            counter.split(&self.extents, |d| if d == lane { vector } else { 1 }, text);
            points.count_lanes(text);
            self.registers_of_column(0, text);
            for (number, pass) in points.stages.passes.iter().enumerate() {
                self.pass(pass, text);
                self.registers_of_column(number + 1, text);
            }
            self.store_column(text);
        });
    }

    fn each_lane(&self) -> String {
        format!("for (int v = 0; v < {}; ++v)", self.points.nest.vector)
    }

    /// What a column has one of, after `stage` passes.
    fn registers_of_column(&self, stage: usize, text: &mut Text) {
        let points = self.points;
        let registers = points.stages.registers(points.program, Level::Row, stage);
        if registers.is_empty() {
            return;
        }
        for register in &registers {
            if matches!(points.program.instr(*register), Instr::Load(_)) {
                points.load_one(*register, text);
            }
            let dtype = points.program.dtype(*register);
            text.line(format!("{dtype} t{}[{}];", register.0, points.nest.vector));
        }
        text.unrolled(self.each_lane(), |text| {
            for register in &registers {
                let value = super::print::value(points.program, *register, points);
                text.line(format!("t{}[v] = {value};", register.0));
            }
        });
    }

    fn pass(&self, pass: &Pass, text: &mut Text) {
        let Self { points, height, across, down, .. } = *self;
        let (program, vector, int) = (points.program, points.nest.vector, points.int());
        let folds: Vec<(Register, &str, Register)> = pass
            .folds
            .iter()
            .map(|r| match program.instr(*r) {
                Instr::Reduce(fold) => (*r, reducer(fold.reducer), fold.value),
                _ => unreachable!("folds are reductions"),
            })
            .collect();
        for (register, kind, _) in &folds {
            let dtype = program.dtype(*register);
            text.line(format!("{dtype} t{}[{vector}];", register.0));
            text.unrolled(self.each_lane(), |text| {
                text.line(format!("t{}[v] = {kind}::identity<{dtype}>();", register.0));
            });
        }
        text.line("#pragma unroll 4");
        text.block(format!("for ({int} row = t; row < {height}; row += {down})"), |text| {
            let counter = Counter { name: "row", int, first: points.nest.kept().len() };
            counter.split(points.nest.folded(), |_| 1, text);
            for register in &pass.elements {
                if matches!(program.instr(*register), Instr::Load(_)) {
                    points.declare(*register, "", text);
                    points.load(*register, text);
                }
            }
            for number in &pass.stores {
                let dtype = program.dtype(program.stores[*number].value);
                text.line(format!("{dtype} y{number}[{vector}];"));
            }
            text.unrolled(self.each_lane(), |text| {
                pass.elements.iter().for_each(|r| text.line(statement(program, *r, points)));
                for (register, kind, value) in &folds {
                    let value = super::print::Spelling::name(points, *value);
                    text.line(format!("t{0}[v] = {kind}::of(t{0}[v], {value});", register.0));
                }
                for number in &pass.stores {
                    let value = super::print::Spelling::name(points, program.stores[*number].value);
                    text.line(format!("y{number}[v] = {value};"));
                }
            });
            if !pass.stores.is_empty() {
                text.block("if (active)", |text| pass.stores.iter().for_each(|s| points.store(*s, text)));
            }
        });
        for (register, kind, _) in &folds {
            text.line(format!("fold_columns<{kind}, {across}, {down}>(t{});", register.0));
        }
    }

    fn store_column(&self, text: &mut Text) {
        let points = self.points;
        let stores = &points.stages.row_stores;
        if stores.is_empty() {
            return;
        }
        text.block("if (t == 0 && active)", |text| {
            for number in stores {
                let value = points.program.stores[*number].value;
                let dtype = points.program.dtype(value);
                if points.moves(Of::Store(*number)) || dtype.bits() < 8 {
                    text.line(format!("{dtype} y{number}[{}];", points.nest.vector));
                    let value = super::print::Spelling::name(points, value);
                    text.unrolled(self.each_lane(), |text| text.line(format!("y{number}[v] = {value};")));
                    points.store(*number, text);
                } else {
                    let value = super::print::Spelling::name(points, value).replace("[v]", "[0]");
                    text.line(format!("{} = {value};", points.element(*number)));
                }
            }
        });
    }
}
