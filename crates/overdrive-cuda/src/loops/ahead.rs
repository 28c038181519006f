//! Prefetches the next row to shared memory while the current one is folded.
//!
//! A row that fills the registers of a multiprocessor leaves no room for a second block. A second
//! block would read while the first one computes, meets its cluster and writes. Without it memory
//! would be idle during that time. So the bulk copy engine copies the next row to shared memory,
//! which needs no registers. A block loads that row into its registers when its turn comes, and
//! starts the copy of the one after it. Invariant: only operands that the kernel does not write are
//! read ahead.

use super::cpp::Text;
use super::points::Points;
use super::row_shape::RowShape;
use overdrive_ir::plan::Register;

/// Prints the copies of a kernel's rows.
pub(super) struct Ahead<'a> {
    pub(super) points: &'a Points<'a>,
    pub(super) shape: &'a RowShape,
    /// Number of rows.
    pub(super) rows: usize,
}

impl Ahead<'_> {
    fn load(&self) -> Register {
        self.shape.kept_loads[0]
    }

    /// Elements of a block's part of a row.
    fn elements(&self) -> usize {
        self.shape.groups / self.shape.cluster * self.points.nest.vector
    }

    /// Bytes of them.
    pub(super) fn bytes(&self) -> usize {
        self.elements() * self.points.program.dtype(self.load()).bits() / 8
    }

    /// Lets the first row of a block set out.
    pub(super) fn begin(&self, text: &mut Text) {
        text.line(format!("Ahead<{}> ahead;", self.bytes()));
        text.block("", |text| self.ask(&format!("blockIdx.x / {}", self.shape.cluster), text));
    }

    /// Lets a row set out, the one numbered `row` in C++.
    fn ask(&self, row: &str, text: &mut Text) {
        let (points, lane) = (self.points, self.points.nest.lane());
        let int = points.int();
        text.line(format!("const {int} row = {row};"));
        points.counters_of_row(text);
        let (rank, elements) = (format!("blockIdx.x % {}", self.shape.cluster), self.elements());
        text.line(format!("const {int} i{lane} = {rank} * {elements};"));
        text.line(format!("ahead.ask({});", points.address(self.load())));
    }

    /// Moves the row that arrived to registers, and lets the block's next one set out.
    pub(super) fn take(&self, text: &mut Text) {
        let (load, vector) = (self.load(), self.points.nest.vector);
        let RowShape { threads, cluster, kept, .. } = *self.shape;
        let dtype = self.points.program.dtype(load);
        text.line("ahead.wait();");
        text.unrolled(format!("for (int k = 0; k < {}; ++k)", kept.unwrap_or(0)), |text| {
            text.line(format!("{dtype} x{}[{vector}];", load.0));
            let from = format!("ahead.part<{dtype}>() + (k * {threads} + threadIdx.x) * {vector}");
            text.line(format!("load<{}>(x{1}, {from});", vector.min(128 / dtype.bits()), load.0));
            text.line(format!("k{0}[k].keep(x{0});", load.0));
        });
        text.line("__syncthreads();");
        let next = format!("base + gridDim.x / {cluster}");
        text.block(format!("if ({next} < {})", self.rows), |text| self.ask(&next, text));
    }
}
