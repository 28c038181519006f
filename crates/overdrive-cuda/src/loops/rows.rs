//! Loops that fold rows whose elements lie side by side: the threads of a row share it.
//!
//! A short row belongs to a few lanes of a warp, a long one to a block or to a cluster of blocks. Where the row is
//! walked more than once and registers hold it, each byte is read once.

use super::ahead::Ahead;
use super::coordinates::Counter;
use super::kernel::{Kernel, Machine};
use super::pairs::{only_pairs, paired};
use super::points::Points;
use super::print::{reducer, statement};
use super::shape::Shape;
use super::source::{Block, Sketch, Workspace};
use super::split::{Partials, Share, StoresOfRows};
use super::stages::{Level, Pass};
use super::text::Text;
use overdrive_ir::plan::{Instr, Register};

/// Most blocks of a grid, whose blocks begin in the order of their rows and so walk memory in its order: 3 to 7 % faster
/// on an H200 than blocks that stay and step through all rows.
const MOST_BLOCKS: usize = 1 << 30;
/// Blocks for each multiprocessor where they come in clusters, which are dear to begin.
const BLOCKS_IN_CLUSTERS: usize = 16;

/// Prints the kernels, with the bytes of workspace that they share.
pub(super) fn rows(points: Points<'_>, machine: Machine) -> (Vec<Kernel>, usize) {
    let shape = Shape::new(&points, machine);
    let rows: usize = points.nest.kept().iter().product();
    let (shares, partials) = if shape.parts > 1 {
        let partials = Partials::new(points.program, points.stages, rows * shape.parts);
        (Share::split(points.stages, shape.parts), partials)
    } else {
        (Share::whole(points.stages), Partials::default())
    };
    let kernel = |share: &Share| {
        let row = Row { points: &points, shape: &shape, share, partials: &partials, rows };
        let mut text = Text::default();
        points.constants(&mut text);
        row.print(&mut text);
        let parts = if share.passes.is_empty() { 1 } else { share.parts };
        let multiprocessors = machine.multiprocessors as usize;
        let most = match shape.cluster {
            cluster if shape.ahead => (multiprocessors / cluster).max(1) * cluster,
            1 => MOST_BLOCKS,
            cluster => (multiprocessors * BLOCKS_IN_CLUSTERS / cluster).max(1) * cluster,
        };
        let blocks = rows.div_ceil(shape.rows) * shape.cluster;
        let grid = if share.is_split() { rows * parts } else { blocks.min(most) };
        let threads = shape.threads * shape.rows;
        let shared_bytes = if shape.ahead { row.ahead().bytes() } else { 0 };
        let block = Block { threads, resident: shape.resident, cluster: shape.cluster, shared_bytes };
        let workspace = if share.is_split() { Workspace::Used } else { Workspace::Unused };
        Sketch { points: &points, text, grid, block, workspace }.finish()
    };
    (shares.iter().map(kernel).collect(), partials.bytes)
}

struct Row<'a> {
    points: &'a Points<'a>,
    shape: &'a Shape,
    share: &'a Share,
    partials: &'a Partials,
    rows: usize,
}

/// A reduction with the name of its fold and the value that it folds.
type Fold = (Register, &'static str, Register);

impl Row<'_> {
    fn print(&self, text: &mut Text) {
        let Shape { threads, rows, cluster, .. } = *self.shape;
        let (points, int, all) = (self.points, self.points.int(), self.rows);
        if cluster > 1 {
            text.line(format!("const int t = blockIdx.x % {cluster} * {threads} + threadIdx.x;"));
            text.line("u32 turn = 0;");
        } else {
            text.line(format!("const int t = threadIdx.x % {threads};"));
        }
        if self.shape.ahead {
            let each = self.shape.kept.unwrap_or(0) * threads;
            text.line(format!("const int first = blockIdx.x % {cluster} * {each} + threadIdx.x;"));
            self.ahead().begin(text);
        }
        let body = |text: &mut Text| {
            points.counters_of_row(text);
            // First, so that nothing which waits for another load is in their way.
            self.keep(text);
            self.registers_of_row(0, text);
            self.passes(text);
        };
        if self.share.is_split() && !self.share.passes.is_empty() {
            let parts = self.share.parts;
            text.line(format!("const {int} row = blockIdx.x / {parts}, part = blockIdx.x % {parts};"));
            return body(text);
        }
        let step = format!("(i64)gridDim.x / {cluster} * {rows}");
        let first = format!("(i64)blockIdx.x / {cluster} * {rows}");
        text.block(format!("for (i64 base = {first}; base < {all}; base += {step})"), |text| {
            if rows > 1 {
                // Threads without a row take the last one along, so that all take part in folds.
                let mine = format!("base + threadIdx.x / {threads}");
                text.line(format!("const bool active = {mine} < {all};"));
                text.line(format!("const {int} row = min({mine}, {}ll);", all - 1));
            } else {
                text.line(format!("const {int} row = base;"));
            }
            body(text);
        });
        if cluster > 1 {
            text.line("meet_cluster();");
        }
    }

    fn ahead(&self) -> Ahead<'_> {
        Ahead { points: self.points, shape: self.shape, rows: self.rows }
    }

    /// Reads what the passes share.
    fn keep(&self, text: &mut Text) {
        let points = self.points;
        if let Some(kept) = self.shape.kept {
            text.line("const u32 zero = hidden_zero();");
            for register in &self.shape.kept_loads {
                let (dtype, vector) = (points.program.dtype(*register), points.nest.vector);
                text.line(format!("Kept<{dtype}, {vector}> k{}[{kept}];", register.0));
            }
            if self.shape.ahead {
                return self.ahead().take(text);
            }
            self.each_group(text, |text| {
                for register in &self.shape.kept_loads {
                    points.declare(*register, "", text);
                    points.load(*register, text);
                    text.line(format!("k{0}[k].keep(x{0});", register.0));
                }
            });
        }
    }

    fn passes(&self, text: &mut Text) {
        let passes = &self.points.stages.passes;
        for (number, pass) in passes.iter().enumerate() {
            if number < self.share.passes.start {
                self.gather_parts(pass, text);
            } else if self.share.passes.contains(&number) {
                self.pass(number, text);
            }
            if number < self.share.passes.start || !self.share.is_split() || pass.folds.is_empty() {
                self.registers_of_row(number + 1, text);
            }
        }
        if self.share.rows == StoresOfRows::Here {
            self.store_row(text);
        }
    }

    /// What a row has one of, after `stage` passes.
    fn registers_of_row(&self, stage: usize, text: &mut Text) {
        let points = self.points;
        for register in points.stages.registers(points.program, Level::Row, stage) {
            if let Some(pick) = points.stages.picks.get(&register) {
                points.picked(register, *pick, text);
                continue;
            }
            if matches!(points.program.instr(register), Instr::Load(_)) {
                points.load_one(register, text);
            }
            text.line(statement(points.program, register, points));
        }
    }

    /// A loop over this thread's groups of the row, at whose counters `content` stands.
    fn each_group(&self, text: &mut Text, content: impl Fn(&mut Text)) {
        let (nest, int) = (self.points.nest, self.points.int());
        let (threads, groups) = (self.shape.threads_of_row(), self.shape.groups);
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
                let first = if self.shape.ahead { "first" } else { "t" };
                let step = if self.shape.ahead { self.shape.threads } else { threads };
                text.line(format!("const {int} group = k * {step} + {first};"));
                if kept * threads == groups {
                    inside(text);
                } else {
                    text.block(format!("if (group < {groups})"), inside);
                }
            }),
            None => {
                let (mut first, mut end) = ("t".to_owned(), groups.to_string());
                if self.share.is_split() {
                    let length = groups.div_ceil(self.share.parts);
                    text.line(format!("const {int} end = min((part + 1) * {length}, ({int}){groups});"));
                    (first, end) = (format!("part * {length} + t"), "end".to_owned());
                }
                text.line("#pragma unroll 4");
                text.block(format!("for ({int} group = {first}; group < {end}; group += {threads})"), inside);
            }
        }
    }

    fn folds(&self, pass: &Pass) -> Vec<Fold> {
        let fold = |r: &Register| match self.points.program.instr(*r) {
            Instr::Reduce(fold) => (*r, reducer(fold.reducer), fold.value),
            _ => unreachable!("folds are reductions"),
        };
        pass.folds.iter().map(fold).collect()
    }

    /// What the kernels before left of a pass.
    fn gather_parts(&self, pass: &Pass, text: &mut Text) {
        let (program, parts, threads) = (self.points.program, self.share.parts, self.shape.threads);
        for (register, kind, _) in self.folds(pass) {
            let (dtype, r) = (program.dtype(register), register.0);
            let from = self.partials.address(program, register);
            let value = format!("t < {parts} ? {from}[row * {parts} + t] : {kind}::identity<{dtype}>()");
            text.line(format!("const {dtype} t{r} = fold_row<{kind}, {threads}>({value});"));
        }
    }

    fn pass(&self, number: usize, text: &mut Text) {
        let points = self.points;
        let (program, vector) = (points.program, points.nest.vector);
        let passes = &points.stages.passes;
        let pass = &passes[number];
        let folds = self.folds(pass);
        let (pairs, folds): (Vec<Fold>, Vec<Fold>) =
            folds.into_iter().partition(|(fold, ..)| paired(points, *fold).is_some());
        let pairs: Vec<(Fold, Register)> =
            pairs.into_iter().filter_map(|fold| Some((fold, paired(points, fold.0)?))).collect();
        // What an earlier pass computed from the same bits would be kept as well.
        let again = passes[..number].iter().any(|earlier| !only_pairs(points, earlier));
        let zero = if again { ", zero" } else { "" };
        for ((register, kind, _), load) in &pairs {
            let dtype = program.dtype(*load);
            text.line(format!("FoldOfPairs<{kind}, {dtype}, {vector}> a{};", register.0));
        }
        let each_lane = format!("for (int v = 0; v < {vector}; ++v)");
        for (register, kind, _) in &folds {
            let dtype = program.dtype(*register);
            text.line(format!("{dtype} a{}[{vector}];", register.0));
            text.unrolled(&each_lane, |text| {
                text.line(format!("a{}[v] = {kind}::identity<{dtype}>();", register.0));
            });
        }
        self.each_group(text, |text| {
            let is_load = |r: &&Register| matches!(program.instr(**r), Instr::Load(_));
            for register in pass.elements.iter().filter(is_load) {
                points.declare(*register, "", text);
                if self.shape.kept_loads.contains(register) {
                    text.line(format!("k{0}[k].recall(x{0}{zero});", register.0));
                } else {
                    points.load(*register, text);
                }
            }
            pairs.iter().for_each(|((r, ..), load)| text.line(format!("a{}.take(x{});", r.0, load.0)));
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
            if self.shape.rows > 1 && !pass.stores.is_empty() && !self.share.is_split() {
                text.block("if (active)", stores);
            } else {
                stores(text);
            }
        });
        let Shape { threads, cluster, .. } = *self.shape;
        let of_lanes = folds.iter().map(|(r, kind, _)| (r, kind, format!("fold_lanes<{kind}>(a{})", r.0)));
        let of_pairs = pairs.iter().map(|((r, kind, _), _)| (r, kind, format!("a{}.result()", r.0)));
        for (register, kind, lanes) in of_pairs.chain(of_lanes) {
            let (dtype, r) = (program.dtype(*register), register.0);
            let row = format!("fold_row<{kind}, {threads}>({lanes})");
            let fold =
                if cluster > 1 { format!("fold_cluster<{kind}, {cluster}>({row}, turn)") } else { row };
            if self.share.is_split() {
                let (to, parts) = (self.partials.address(program, *register), self.share.parts);
                text.line(format!("const {dtype} b{r} = {fold};"));
                text.line(format!("if (t == 0) {to}[row * {parts} + part] = b{r};"));
            } else {
                text.line(format!("const {dtype} t{r} = {fold};"));
            }
        }
    }

    fn store_row(&self, text: &mut Text) {
        let points = self.points;
        if points.stages.row_stores.is_empty() {
            return;
        }
        let condition = if self.share.is_split() && !self.share.passes.is_empty() {
            "if (t == 0 && part == 0)"
        } else if self.shape.rows > 1 {
            "if (t == 0 && active)"
        } else {
            "if (t == 0)"
        };
        text.block(condition, |text| {
            for &number in &points.stages.row_stores {
                let value = points.program.stores[number].value;
                text.line(format!("{} = t{};", points.element(number), value.0));
            }
        });
    }
}
