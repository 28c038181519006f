//! Loops that fold rows whose elements lie side by side: the threads of a row share it.
//!
//! A short row belongs to a few lanes of a warp, a long one to a block. Where the row is walked more than once and
//! registers hold it, each byte is read once.

use super::coordinates::Counter;
use super::kernel::{Kernel, Machine};
use super::points::Points;
use super::print::{reducer, statement};
use super::source::Sketch;
use super::stages::{Level, Pass};
use super::text::Text;
use overdrive_ir::plan::{Instr, Register};

/// Threads of a block that has several rows.
const BLOCK: usize = 256;
/// Groups that a thread of a row takes, as far as there are threads.
const GROUPS: usize = 4;
/// Most threads that a row gets.
const MOST_THREADS: usize = 512;
/// Bytes of a row that a thread keeps in registers at most: half of those it may have.
const KEPT_BYTES: usize = 256;
/// Blocks of a grid for each multiprocessor.
const BLOCKS_PER_MULTIPROCESSOR: usize = 16;

/// How a row is shared.
struct Shape {
    /// Threads of a row.
    threads: usize,
    /// Rows of a block.
    rows: usize,
    /// Groups of neighbours in a row.
    groups: usize,
    /// Groups that each thread keeps; none where they are read again in each pass.
    kept: Option<usize>,
}

impl Shape {
    fn new(points: &Points<'_>, loads: &[Register]) -> Shape {
        let vector = points.nest.vector;
        let folded = points.nest.folded();
        let lane = folded.last().map_or(1, |&extent| extent.div_ceil(vector));
        let groups = folded.iter().rev().skip(1).product::<usize>() * lane;
        let threads = groups.div_ceil(GROUPS).next_power_of_two().clamp(1, MOST_THREADS);
        // Below a warp, a thread for each group; a warp needs no shared memory.
        let threads = if threads < 32 { groups.next_power_of_two().clamp(1, 32) } else { threads };
        let each = groups.div_ceil(threads);
        let bytes: usize = loads.iter().map(|r| vector * points.program.dtype(*r).bits().div_ceil(8)).sum();
        let again = points.stages.passes.len() > 1 && groups > 0;
        let kept = (again && each * bytes <= KEPT_BYTES).then_some(each);
        Shape { threads, rows: (BLOCK / threads).max(1), groups, kept }
    }
}

/// Prints the kernel.
pub(super) fn rows(mut points: Points<'_>, machine: Machine) -> Kernel {
    let program = points.program;
    let mut loads: Vec<Register> = Vec::new();
    for register in points.stages.passes.iter().flat_map(|pass| &pass.elements) {
        if matches!(program.instr(*register), Instr::Load(_)) && !loads.contains(register) {
            loads.push(*register);
        }
    }
    let shape = Shape::new(&points, &loads);
    if shape.kept.is_some() {
        points.group = "[k]";
    }
    let rows: usize = points.nest.kept().iter().product();
    let row = Row { points: &points, shape: &shape, loads: &loads, rows };
    let mut text = Text::default();
    points.constants(&mut text);
    row.print(&mut text);
    let blocks = rows.div_ceil(shape.rows);
    let grid = blocks.min(machine.multiprocessors as usize * BLOCKS_PER_MULTIPROCESSOR) as u32;
    let block = (shape.threads * shape.rows) as u32;
    Sketch { points: &points, text, grid, block, cluster: 1 }.finish()
}

struct Row<'a> {
    points: &'a Points<'a>,
    shape: &'a Shape,
    loads: &'a [Register],
    rows: usize,
}

impl Row<'_> {
    fn print(&self, text: &mut Text) {
        let Shape { threads, rows, .. } = *self.shape;
        let (points, int) = (self.points, self.points.int());
        text.line(format!("const int t = threadIdx.x % {threads};"));
        let step = format!("(i64)gridDim.x * {rows}");
        let all = self.rows;
        let head = format!("for (i64 base = (i64)blockIdx.x * {rows}; base < {all}; base += {step})");
        text.block(head, |text| {
            if rows > 1 {
                // Threads without a row take the last one along, so that all take part in folds.
                let mine = format!("base + threadIdx.x / {threads}");
                text.line(format!("const bool active = {mine} < {all};"));
                text.line(format!("const {int} row = min({mine}, {}ll);", all - 1));
            } else {
                text.line(format!("const {int} row = base;"));
            }
            let counter = Counter { name: "row", int, first: 0 };
            counter.split(points.nest.kept(), |_| 1, text);
            self.registers_of_row(0, text);
            if let Some(kept) = self.shape.kept {
                self.loads.iter().for_each(|r| points.declare(*r, &format!("[{kept}]"), text));
                self.each_group(text, |text| self.loads.iter().for_each(|r| points.load(*r, text)));
            }
            for (number, pass) in points.stages.passes.iter().enumerate() {
                self.pass(pass, text);
                self.registers_of_row(number + 1, text);
            }
            self.store_row(text);
        });
    }

    /// What a row has one of, after `stage` passes.
    fn registers_of_row(&self, stage: usize, text: &mut Text) {
        let points = self.points;
        for register in points.stages.registers(points.program, Level::Row, stage) {
            if matches!(points.program.instr(register), Instr::Load(_)) {
                points.load_one(register, text);
            }
            text.line(statement(points.program, register, points));
        }
    }

    /// A loop over this thread's groups of the row, at whose counters `content` stands.
    fn each_group(&self, text: &mut Text, content: impl Fn(&mut Text)) {
        let (nest, int) = (self.points.nest, self.points.int());
        let Shape { threads, groups, .. } = *self.shape;
        let first = nest.kept().len();
        let mut extents = nest.folded().to_vec();
        if let Some(lane) = extents.last_mut() {
            *lane = lane.div_ceil(nest.vector);
        }
        let inside = |text: &mut Text| {
            let counter = Counter { name: "group", int, first };
            counter.split(&extents, |d| if d == nest.lane() { nest.vector } else { 1 }, text);
            self.points.count_lanes(text);
            content(text);
        };
        match self.shape.kept {
            Some(kept) => text.unrolled(format!("for (int k = 0; k < {kept}; ++k)"), |text| {
                text.line(format!("const {int} group = k * {threads} + t;"));
                if kept * threads == groups {
                    inside(text);
                } else {
                    text.block(format!("if (group < {groups})"), inside);
                }
            }),
            None => {
                text.line("#pragma unroll 4");
                text.block(format!("for ({int} group = t; group < {groups}; group += {threads})"), inside);
            }
        }
    }

    fn pass(&self, pass: &Pass, text: &mut Text) {
        let points = self.points;
        let (program, vector) = (points.program, points.nest.vector);
        let folds: Vec<(Register, &str, Register)> = pass
            .folds
            .iter()
            .map(|r| match program.instr(*r) {
                Instr::Reduce(fold) => (*r, reducer(fold.reducer), fold.value),
                _ => unreachable!("folds are reductions"),
            })
            .collect();
        let each_lane = format!("for (int v = 0; v < {vector}; ++v)");
        for (register, kind, _) in &folds {
            let dtype = program.dtype(*register);
            text.line(format!("{dtype} a{}[{vector}];", register.0));
            text.unrolled(&each_lane, |text| {
                text.line(format!("a{}[v] = {kind}::identity<{dtype}>();", register.0));
            });
        }
        let loads = self.loads.iter().filter(|r| self.shape.kept.is_none() && pass.elements.contains(r));
        let loads: Vec<Register> = loads.copied().collect();
        self.each_group(text, |text| {
            for register in &loads {
                points.declare(*register, "", text);
                points.load(*register, text);
            }
            for number in &pass.stores {
                let dtype = program.dtype(program.stores[*number].value);
                text.line(format!("{dtype} y{number}[{vector}];"));
            }
            text.unrolled(&each_lane, |text| {
                pass.elements.iter().for_each(|r| text.line(statement(program, *r, points)));
                for (register, kind, value) in &folds {
                    let guard = if points.nest.has_tail() { "if (v < count) " } else { "" };
                    let (r, value) = (register.0, value.0);
                    text.line(format!("{guard}a{r}[v] = {kind}::of(a{r}[v], t{value});"));
                }
                for number in &pass.stores {
                    text.line(format!("y{number}[v] = t{};", program.stores[*number].value.0));
                }
            });
            let stores = |text: &mut Text| pass.stores.iter().for_each(|s| points.store(*s, text));
            if self.shape.rows > 1 && !pass.stores.is_empty() {
                text.block("if (active)", stores);
            } else {
                stores(text);
            }
        });
        for (register, kind, _) in &folds {
            let (dtype, r, threads) = (program.dtype(*register), register.0, self.shape.threads);
            text.line(format!("const {dtype} t{r} = fold_row<{kind}, {threads}>(fold_lanes<{kind}>(a{r}));"));
        }
    }

    fn store_row(&self, text: &mut Text) {
        let points = self.points;
        if points.stages.row_stores.is_empty() {
            return;
        }
        let condition = if self.shape.rows > 1 { "if (t == 0 && active)" } else { "if (t == 0)" };
        text.block(condition, |text| {
            for &number in &points.stages.row_stores {
                let value = points.program.stores[number].value;
                text.line(format!("{} = t{};", points.element(number), value.0));
            }
        });
    }
}
