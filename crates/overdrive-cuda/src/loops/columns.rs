//! Loops that fold down columns. Neighbouring threads take neighbouring results, so that each line
//! of memory is read whole. The threads of a column meet in shared memory.

use super::coordinates::Counter;
use super::cpp::Text;
use super::kernel::{KernelLaunch, PrinterMachine};
use super::level::Level;
use super::nest::Of;
use super::points::Points;
use super::print::{reducer, statement};
use super::source::{Sketch, ThreadBlock, Workspace};
use super::split::{Partials, Share, StoresOfRows};
use super::stages::RowPass;
use overdrive_ir::DType;
use overdrive_ir::plan::{Instr, Register};

/// Threads of a block.
const BLOCK: usize = 256;
/// Most groups of columns that a block takes.
const COLUMNS: usize = 32;
/// Groups of columns of a block that folds parts. Few parts belong to each column. Together the
/// groups are a line of memory, so that a thread reads as few parts as possible, one after another.
const COLUMNS_OF_PARTS: usize = 4;
/// Blocks of a grid for each multiprocessor.
const BLOCKS_PER_MULTIPROCESSOR: usize = 16;
/// Most blocks that are wanted on a multiprocessor at once.
const MOST_RESIDENT: usize = 4;
/// Registers of a multiprocessor, and those of a thread besides its accumulators and loads.
const REGISTERS: usize = 1 << 16;
const OTHER_REGISTERS: usize = 24;
/// Rows that a thread of a part has at least.
const LEAST_ROWS: usize = 8;

/// Prints the kernels, with the bytes of workspace that they share.
pub(super) fn columns(points: Points<'_>, machine: PrinterMachine) -> (Vec<KernelLaunch>, usize) {
    let shape = ColumnShape::new(&points, machine);
    let partials = shape.partials(&points);
    let ColumnShape { extents, groups, height, across, resident, parts } = shape;
    let shares = match parts {
        1 => Share::whole(points.stages),
        parts => Share::split(points.stages, parts),
    };
    let kernel = |share: &Share| {
        let (extents, partials) = (&extents, &partials);
        let folds_parts = share.is_split() && share.passes.is_empty();
        let across = if folds_parts { across.min(COLUMNS_OF_PARTS) } else { across };
        let height_of = if folds_parts { parts } else { height };
        let down = (BLOCK / across).min(height_of.max(1).next_power_of_two());
        let blocks = groups.div_ceil(across);
        let column =
            Column { points: &points, extents, groups, height, across, down, share, partials };
        let mut text = Text::default();
        points.constants(&mut text);
        column.print(&mut text);
        let most = machine.multiprocessors as usize * BLOCKS_PER_MULTIPROCESSOR;
        let grid = if column.is_part() { blocks * parts } else { blocks.min(most) };
        let resident = if folds_parts { 0 } else { resident };
        let block = ThreadBlock { threads: across * down, resident, cluster: 1, shared_bytes: 0 };
        let workspace = if share.is_split() { Workspace::Used } else { Workspace::Unused };
        Sketch { points: &points, text, grid, block, workspace }.finish()
    };
    (shares.iter().map(kernel).collect(), partials.bytes)
}

/// How columns are shared.
pub(super) struct ColumnShape {
    /// Kept loops, the lanes' in groups.
    extents: Vec<usize>,
    /// Groups of columns.
    groups: usize,
    /// Elements of a column.
    height: usize,
    /// Groups of columns of a block.
    across: usize,
    /// See `ThreadBlock::resident`.
    resident: usize,
    /// Parts that columns are cut into.
    parts: usize,
}

impl ColumnShape {
    pub(super) fn new(points: &Points<'_>, machine: PrinterMachine) -> Self {
        let nest = points.nest;
        let mut extents = nest.kept().to_vec();
        extents[nest.lane()] = extents[nest.lane()].div_ceil(nest.vector);
        let groups: usize = extents.iter().product();
        let height: usize = nest.folded().iter().product();
        let across = groups.next_power_of_two().min(COLUMNS);
        let down = (BLOCK / across).min(height.max(1).next_power_of_two());
        let blocks = groups.div_ceil(across);
        let resident = resident(points, across * down);
        let wanted = machine.multiprocessors as usize * resident;
        let parts = parts(blocks, height / (down * LEAST_ROWS), wanted);
        Self { extents, groups, height, across, resident, parts }
    }

    /// The partial results of columns that are cut into parts.
    pub(super) fn partials(&self, points: &Points<'_>) -> Partials {
        let each = self.groups * points.nest.vector * self.parts;
        match self.parts {
            1 => Partials::default(),
            _ => Partials::new(points.program, points.stages, each),
        }
    }
}

/// Blocks that registers have room for on a multiprocessor. A thread has accumulators for every
/// fold of a pass, and a line of everything that it loads under way.
fn resident(points: &Points<'_>, threads: usize) -> usize {
    let words = |register: &Register| {
        (points.nest.vector * points.program.dtype(*register).bits()).div_ceil(32)
    };
    let is_load = |r: &&Register| matches!(points.program.instr(**r), Instr::Load(_));
    let of_pass = |pass: &RowPass| -> usize {
        let loads = pass.elements.iter().filter(is_load);
        loads.chain(&pass.folds).map(words).sum()
    };
    let most = points.stages.passes.iter().map(of_pass).max().unwrap_or(0);
    let all = threads * (most + OTHER_REGISTERS);
    // A few registers too many are recomputed; half of the threads would cost more.
    ((REGISTERS + all / 2) / all).clamp(1, MOST_RESIDENT)
}

/// Parts that columns are cut into. Columns are cut where they have too few blocks to keep the
/// machine busy. There are as many parts as the machine has room for at once, since each block ends
/// with folds among its threads.
fn parts(blocks: usize, longest: usize, wanted: usize) -> usize {
    if blocks * 2 > wanted { 1 } else { (wanted / blocks).min(longest).max(1) }
}

/// Partial results of a group of columns that are moved at once: they lie one after another.
fn at_once(dtype: DType, vector: usize) -> usize {
    (1usize..=16)
        .rev()
        .find(|n| vector.is_multiple_of(*n) && n.is_power_of_two() && n * dtype.bits() <= 128)
        .unwrap_or(1)
}

struct Column<'a> {
    points: &'a Points<'a>,
    /// Kept loops, the lanes' in groups.
    extents: &'a [usize],
    /// Groups of columns.
    groups: usize,
    /// Elements of a column.
    height: usize,
    /// Groups of columns of a block.
    across: usize,
    /// Threads of a column.
    down: usize,
    share: &'a Share,
    partials: &'a Partials,
}

impl Column<'_> {
    /// Whether a block has a part of its columns only.
    fn is_part(&self) -> bool {
        self.share.is_split() && !self.share.passes.is_empty()
    }

    fn print(&self, text: &mut Text) {
        let Self { points, groups, across, .. } = *self;
        let int = points.int();
        text.line(format!("const int t = threadIdx.x / {across};"));
        let body = |text: &mut Text| {
            // Threads without a column take the last one along, so that all take part in folds.
            text.line(format!("const bool active = base + threadIdx.x % {across} < {groups};"));
            text.line(format!(
                "const {int} column = min(base + threadIdx.x % {across}, {}ll);",
                groups - 1
            ));
            let counter = Counter { name: "column", int, first: 0 };
            let (lane, vector) = (points.nest.lane(), points.nest.vector);
            counter.split(self.extents, |d| if d == lane { vector } else { 1 }, text);
            points.count_lanes(text);
            self.registers_of_column(0, text);
            self.passes(text);
        };
        if self.is_part() {
            let parts = self.share.parts;
            text.line(format!("const {int} part = blockIdx.x % {parts};"));
            text.line(format!("const i64 base = (i64)blockIdx.x / {parts} * {across};"));
            return body(text);
        }
        let step = format!("(i64)gridDim.x * {across}");
        let head =
            format!("for (i64 base = (i64)blockIdx.x * {across}; base < {groups}; base += {step})");
        text.block(head, body);
    }

    fn passes(&self, text: &mut Text) {
        for (number, pass) in self.points.stages.passes.iter().enumerate() {
            if number < self.share.passes.start {
                self.gather_parts(pass, text);
            } else if self.share.passes.contains(&number) {
                self.pass(pass, text);
            }
            if number < self.share.passes.start || !self.share.is_split() || pass.folds.is_empty() {
                self.registers_of_column(number + 1, text);
            }
        }
        if self.share.rows == StoresOfRows::Here {
            self.store_column(text);
        }
    }

    fn folds(&self, pass: &RowPass) -> Vec<(Register, &'static str, Register)> {
        let fold = |r: &Register| match self.points.program.instr(*r) {
            Instr::Reduce(fold) => (*r, reducer(fold.reducer), fold.value),
            _ => unreachable!("folds are reductions"),
        };
        pass.folds.iter().map(fold).collect()
    }

    /// Accumulators that change nothing.
    fn begin(&self, folds: &[(Register, &'static str, Register)], text: &mut Text) {
        for (register, kind, _) in folds {
            let dtype = self.points.program.dtype(*register);
            text.line(format!("{dtype} t{}[{}];", register.0, self.points.nest.vector));
            text.unrolled(self.each_lane(), |text| {
                text.line(format!("t{}[v] = {kind}::identity<{dtype}>();", register.0));
            });
        }
    }

    /// Gathers the partial results that the kernels before left of a pass.
    fn gather_parts(&self, pass: &RowPass, text: &mut Text) {
        let Self { points, groups, across, down, .. } = *self;
        let (folds, vector, parts) = (self.folds(pass), points.nest.vector, self.share.parts);
        self.begin(&folds, text);
        for (register, kind, _) in &folds {
            let (dtype, r) = (points.program.dtype(*register), register.0);
            let from =
                self.partials.address(&points.program.dtype(*register).to_string(), *register);
            text.block(format!("for (int part = t; part < {parts}; part += {down})"), |text| {
                text.line(format!("{dtype} b{r}[{vector}];"));
                let once = at_once(points.program.dtype(*register), vector);
                text.line(format!(
                    "load<{once}>(b{r}, {from} + (part * (i64){groups} + column) * {vector});"
                ));
                text.unrolled(self.each_lane(), |text| {
                    text.line(format!("t{r}[v] = {kind}::of(t{r}[v], b{r}[v]);"));
                });
            });
            text.line(format!("fold_columns<{kind}, {across}, {down}>(t{r});"));
        }
    }

    fn each_lane(&self) -> String {
        format!("for (int v = 0; v < {}; ++v)", self.points.nest.vector)
    }

    /// Prints the values that a column has one of, after `stage` passes.
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

    fn pass(&self, pass: &RowPass, text: &mut Text) {
        let Self { points, height, across, down, .. } = *self;
        let (program, vector, int) = (points.program, points.nest.vector, points.int());
        let folds = self.folds(pass);
        self.begin(&folds, text);
        let (mut first, mut end) = ("t".to_owned(), height.to_string());
        if self.is_part() {
            let length = height.div_ceil(self.share.parts);
            text.line(format!("const {int} end = min((part + 1) * {length}, ({int}){height});"));
            (first, end) = (format!("part * {length} + t"), "end".to_owned());
        }
        text.line("#pragma unroll 4");
        text.block(format!("for ({int} row = {first}; row < {end}; row += {down})"), |text| {
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
                text.block("if (active)", |text| {
                    pass.stores.iter().for_each(|s| points.store(*s, text))
                });
            }
        });
        for (register, kind, _) in &folds {
            text.line(format!("fold_columns<{kind}, {across}, {down}>(t{});", register.0));
            if self.is_part() {
                let (to, r, groups) = (
                    self.partials.address(&program.dtype(*register).to_string(), *register),
                    register.0,
                    self.groups,
                );
                let place = format!("(part * (i64){groups} + column) * {vector}");
                let once = at_once(program.dtype(*register), vector);
                text.line(format!("if (t == 0 && active) store<{once}>({to} + {place}, t{r});"));
            }
        }
    }

    fn store_column(&self, text: &mut Text) {
        let points = self.points;
        let stores = &points.stages.row_stores;
        if stores.is_empty() {
            return;
        }
        let first = if self.is_part() { " && part == 0" } else { "" };
        text.block(format!("if (t == 0 && active{first})"), |text| {
            for number in stores {
                let value = points.program.stores[*number].value;
                let dtype = points.program.dtype(value);
                if points.moves(Of::Store(*number)) || dtype.bits() < 8 {
                    text.line(format!("{dtype} y{number}[{}];", points.nest.vector));
                    let value = super::print::Spelling::name(points, value);
                    text.unrolled(self.each_lane(), |text| {
                        text.line(format!("y{number}[v] = {value};"))
                    });
                    points.store(*number, text);
                } else {
                    let value = super::print::Spelling::name(points, value).replace("[v]", "[0]");
                    text.line(format!("{} = {value};", points.element(*number)));
                }
            }
        });
    }
}
