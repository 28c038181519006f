//! Loops that fold rows whose elements lie side by side: the threads of a row share it.
//!
//! A short row belongs to a few lanes of a warp, a long one to a block or to a cluster of blocks.
//! If the row is walked more than once and registers hold it, each byte is read once.
//!
//! Long because every way of folding a row is printed by one machine.

use super::ahead::Ahead;
use super::cpp::Text;
use super::folds::{Fold, FoldsOfPass, each_lane};
use super::kernel::{KernelLaunch, PrinterMachine};
use super::level::Level;
use super::nest::Of;
use super::pairs::only_pairs;
use super::points::Points;
use super::print::{reducer, statement};
use super::row_shape::RowShape;
use super::source::{Sketch, ThreadBlock, Workspace};
use super::split::{Partials, Share, StoresOfRows};
use super::stages::RowPass;
use overdrive_ir::plan::{Instr, Register};

/// Most blocks of a grid. Blocks begin in the order of their rows and so walk memory in its order.
/// On an H200 that is 3 to 7 % faster than blocks that stay and step through all rows.
const MOST_BLOCKS: usize = 1 << 30;
/// Blocks for each multiprocessor where they come in clusters, which are dear to begin.
const BLOCKS_IN_CLUSTERS: usize = 16;

/// Prints the kernels, with the bytes of workspace that they share.
pub(super) fn rows(points: Points<'_>, machine: PrinterMachine) -> (Vec<KernelLaunch>, usize) {
    let shape = RowShape::new(&points, machine);
    let rows: usize = points.nest.kept().iter().product();
    let partials = partials(&points, &shape);
    let shares = match shape.parts {
        1 => Share::whole(points.stages),
        parts => Share::split(points.stages, parts),
    };
    let kernel = |share: &Share| {
        let row = RowPrinter {
            points: &points,
            shape: &shape,
            share,
            partials: &partials,
            rows,
            grid: GRID,
        };
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
        let block =
            ThreadBlock { threads, resident: shape.resident, cluster: shape.cluster, shared_bytes };
        let workspace = if share.is_split() { Workspace::Used } else { Workspace::Unused };
        Sketch { points: &points, text, grid, block, workspace }.finish()
    };
    (shares.iter().map(kernel).collect(), partials.bytes)
}

/// The partial results of rows that are cut into parts.
pub(super) fn partials(points: &Points<'_>, shape: &RowShape) -> Partials {
    let rows: usize = points.nest.kept().iter().product();
    match shape.parts {
        1 => Partials::default(),
        parts => Partials::new(points.program, points.stages, rows * parts),
    }
}

/// Prints a kernel.
pub(super) struct RowPrinter<'a> {
    pub(super) points: &'a Points<'a>,
    pub(super) shape: &'a RowShape,
    pub(super) share: &'a Share,
    pub(super) partials: &'a Partials,
    pub(super) rows: usize,
    /// A block's number and the number of blocks, in C++.
    pub(super) grid: [&'a str; 2],
}

/// Rows are shared among all blocks.
const GRID: [&str; 2] = ["blockIdx.x", "gridDim.x"];

impl RowPrinter<'_> {
    pub(super) fn print(&self, text: &mut Text) {
        let [block, blocks] = self.grid;
        let RowShape { threads, rows, cluster, .. } = *self.shape;
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
            text.line(format!(
                "const {int} row = blockIdx.x / {parts}, part = blockIdx.x % {parts};"
            ));
            return body(text);
        }
        let step = format!("(i64){blocks} / {cluster} * {rows}");
        let first = format!("(i64){block} / {cluster} * {rows}");
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

    /// Reads the values that the passes share.
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
            self.each_kept(kept, text, |text| {
                for register in &self.shape.kept_loads {
                    points.declare(*register, "", text);
                    points.load(*register, text);
                    text.line(format!("k{0}[k].keep(x{0});", register.0));
                }
            });
            self.ask(kept, text);
        }
    }

    /// Prefetches the values that only the last pass reads, while the passes before it wait for
    /// each other.
    fn ask(&self, kept: usize, text: &mut Text) {
        let (points, passes) = (self.points, &self.points.stages.passes);
        let [_, .., last] = &passes[..] else { return };
        let of_row = |r: &Register| {
            let strides = &points.nest.walks[&Of::Load(*r)].strides;
            strides[..points.nest.kept().len()].iter().any(|&stride| stride != 0)
        };
        let later = |r: &Register| {
            let is_load = matches!(points.program.instr(*r), Instr::Load(_));
            let whole = is_load && points.program.dtype(*r).bits() >= 8;
            whole && !self.shape.kept_loads.contains(r) && of_row(r)
        };
        let later: Vec<Register> = last.elements.iter().copied().filter(later).collect();
        if later.is_empty() {
            return;
        }
        self.each_kept(kept, text, |text| {
            for load in &later {
                text.line(format!("ask_for({});", points.address(*load)));
            }
        });
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

    /// Prints the values that a row has one of, after `stage` passes.
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

    fn folds(&self, pass: &RowPass) -> Vec<Fold> {
        let (program, stages) = (self.points.program, self.points.stages);
        let fold = |&register: &Register| {
            let value = stages.folded(program, register);
            match program.instr(register) {
                _ if stages.online.contains_key(&register) => {
                    Fold { register, kind: "Grow", ty: "Online".to_owned(), value }
                }
                Instr::Reduce(fold) => Fold {
                    register,
                    kind: reducer(fold.reducer),
                    ty: program.dtype(register).to_string(),
                    value,
                },
                _ => unreachable!("folds are reductions"),
            }
        };
        pass.folds.iter().map(fold).collect()
    }

    /// Declares the value of a reduction, from its fold in C++.
    fn result(&self, fold: &Fold, folded: &str, text: &mut Text) {
        let (ty, r) = (&fold.ty, fold.register.0);
        match self.points.stages.online.get(&fold.register) {
            None => text.line(format!("const {ty} t{r} = {folded};")),
            Some(online) => {
                text.line(format!("const {ty} o{r} = {folded};"));
                text.line(format!("const f32 t{} = o{r}.max, t{r} = o{r}.total();", online.max.0));
            }
        }
    }

    /// Gathers the partial results that the kernels before left of a pass.
    fn gather_parts(&self, pass: &RowPass, text: &mut Text) {
        let (parts, threads) = (self.share.parts, self.shape.threads);
        for fold in self.folds(pass) {
            let (ty, kind) = (&fold.ty, fold.kind);
            let from = self.partials.address(ty, fold.register);
            let value =
                format!("t < {parts} ? {from}[row * {parts} + t] : {kind}::identity<{ty}>()");
            self.result(&fold, &format!("fold_row<{kind}, {threads}>({value})"), text);
        }
    }

    fn pass(&self, number: usize, text: &mut Text) {
        let (program, stages) = (self.points.program, self.points.stages);
        let pass = &stages.passes[number];
        let is_load = |r: &Register| matches!(program.instr(*r), Instr::Load(_));
        let loads: Vec<Register> = pass.elements.iter().copied().filter(is_load).collect();
        let points = &self.batched(if self.shape.kept.is_none() { &loads } else { &[] });
        let folds = FoldsOfPass::new(self.folds(pass), points);
        // Values that an earlier pass computed from the same bits would be kept as well.
        let again = stages.passes[..number].iter().any(|earlier| !only_pairs(points, earlier));
        let zero = if again { ", zero" } else { "" };
        folds.declare(points, text);
        match self.shape.kept {
            Some(kept) => self.each_kept(kept, text, |text| {
                self.recall((points, &loads), zero, text);
                self.elements((points, pass), &folds, text);
            }),
            None => self.each_batch(&loads, text, |text| {
                self.elements((points, pass), &folds, text);
            }),
        }
        for (fold, of_thread) in folds.of_thread() {
            self.fold_threads(fold, &of_thread, text);
        }
    }

    /// Declares the loads of a pass: kept values, or read again. `zero` hides from the compiler
    /// that a kept value has the bits of an earlier pass.
    fn recall(&self, (points, loads): (&Points<'_>, &[Register]), zero: &str, text: &mut Text) {
        for register in loads {
            points.declare(*register, "", text);
            if self.shape.kept_loads.contains(register) {
                text.line(format!("k{0}[k].recall(x{0}{zero});", register.0));
            } else {
                points.load(*register, text);
            }
        }
    }

    /// Computes a group of neighbours, folds them and stores them.
    fn elements(
        &self,
        (points, pass): (&Points<'_>, &RowPass),
        folds: &FoldsOfPass,
        text: &mut Text,
    ) {
        let (program, vector) = (points.program, points.nest.vector);
        folds.take_pairs(points, text);
        for number in &pass.stores {
            let dtype = program.dtype(program.stores[*number].value);
            text.line(format!("{dtype} y{number}[{vector}];"));
        }
        folds.declare_online(vector, text);
        text.unrolled(each_lane(vector), |text| {
            pass.elements.iter().for_each(|r| text.line(statement(program, *r, points)));
            folds.take_lane(points.nest.has_tail(), text);
            for number in &pass.stores {
                text.line(format!("y{number}[v] = t{};", program.stores[*number].value.0));
            }
        });
        folds.take_online(points, text);
        let stores = |text: &mut Text| pass.stores.iter().for_each(|s| points.store(*s, text));
        if self.shape.rows > 1 && !pass.stores.is_empty() && !self.share.is_split() {
            text.block("if (active)", stores);
        } else {
            stores(text);
        }
    }

    /// Folds what the threads of a row have, and declares the result or keeps it for later kernels.
    fn fold_threads(&self, fold: &Fold, of_thread: &str, text: &mut Text) {
        let RowShape { threads, cluster, .. } = *self.shape;
        let (kind, r) = (fold.kind, fold.register.0);
        let row = format!("fold_row<{kind}, {threads}>({of_thread})");
        let folded =
            if cluster > 1 { format!("fold_cluster<{kind}, {cluster}>({row}, turn)") } else { row };
        if self.share.is_split() {
            let (to, parts) = (self.partials.address(&fold.ty, fold.register), self.share.parts);
            text.line(format!("const {} b{r} = {folded};", fold.ty));
            text.line(format!("if (t == 0) {to}[row * {parts} + part] = b{r};"));
        } else {
            self.result(fold, &folded, text);
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
