//! How many threads share a row, which values of it they keep, and into how many parts it is cut.

use super::bulk_copy::{has_room, is_copied_whole};
use super::kernel::PrinterMachine;
use super::nest::Of;
use super::points::Points;
use crate::compiler::Architecture;
use overdrive_ir::plan::{Instr, Register};

/// Threads of a block that has several rows.
const BLOCK: usize = 256;
/// Bytes of a row that a thread takes before it gets help: eight loads of 16 bytes are under way at
/// once.
pub(super) const BYTES_OF_THREAD: usize = 128;
/// Most threads of a block that a row gets.
const MOST_THREADS: usize = 512;
/// Threads of a block that has a multiprocessor for itself, where rows set out ahead.
const ALL_THREADS: usize = 1024;
/// Bytes of a row that a thread keeps in registers at most: half of those that it may have.
const MOST_KEPT_BYTES: usize = 256;
/// Most blocks of a cluster that every device with clusters has.
const MOST_BLOCKS: usize = 8;
/// Threads that a multiprocessor has room for where each keeps `BYTES_OF_THREAD`: 64 registers a
/// thread.
const RESIDENT_THREADS: usize = 1024;

/// How a row is shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RowShape {
    /// Threads of a row in one block.
    pub(super) threads: usize,
    /// Blocks that share a row through a cluster.
    pub(super) cluster: usize,
    /// Rows of a block.
    pub(super) rows: usize,
    /// Groups of neighbours in a row.
    pub(super) groups: usize,
    /// Groups that each thread keeps; none where they are read again in each pass.
    pub(super) kept: Option<usize>,
    /// Loads that are kept: those that more than one pass needs.
    pub(super) kept_loads: Vec<Register>,
    /// Parts that a row is cut into, each with kernels of its own.
    pub(super) parts: usize,
    /// See `ThreadBlock::resident`.
    pub(super) resident: usize,
    /// Whether a row sets out before the one before it is done (see `ahead`).
    pub(super) ahead: bool,
}

impl RowShape {
    pub(super) fn new(points: &Points<'_>, machine: PrinterMachine) -> RowShape {
        let (nest, passes) = (points.nest, &points.stages.passes);
        let folded = nest.folded();
        let lane = folded.last().map_or(1, |&extent| extent.div_ceil(nest.vector));
        let groups = folded.iter().rev().skip(1).product::<usize>() * lane;
        let rows: usize = nest.kept().iter().product();
        let uses = |r: &Register| passes.iter().filter(|pass| pass.elements.contains(r)).count();
        let bytes = |loads: &[Register]| -> usize {
            loads.iter().map(|r| nest.vector * points.program.dtype(*r).bits().div_ceil(8)).sum()
        };
        let loads = loads(points);
        let kept_loads: Vec<Register> =
            loads.iter().copied().filter(|r| uses(r) > 1 && points.moves(Of::Load(*r))).collect();
        let kept_bytes = bytes(&kept_loads);
        let weight = if kept_bytes > 0 { kept_bytes } else { bytes(&loads).max(1) };
        let enough = (groups * weight).div_ceil(BYTES_OF_THREAD).next_power_of_two();
        let clusters = !matches!(machine.architecture, Architecture::Sm80 | Architecture::Sm89);
        let clusters =
            clusters && !matches!(machine.architecture, Architecture::Other(older) if older < 90);
        let mut folds = passes.iter().flat_map(|pass| &pass.folds);
        let words = folds.all(|r| points.program.dtype(*r).bits() >= 32);
        let whole = enough / ALL_THREADS;
        // A block with one row has no next row to bring meanwhile.
        let several = rows * whole > machine.multiprocessors as usize;
        let ahead = several
            && (1..=MOST_BLOCKS).contains(&whole)
            && groups.is_multiple_of(ALL_THREADS * whole)
            && (words && has_room(machine) && is_copied_whole(points, &kept_loads));
        // Below a warp, a thread for each group; a warp needs no shared memory.
        let most = if ahead { ALL_THREADS } else { MOST_THREADS };
        let threads = enough.min(most).max(groups.next_power_of_two().min(32));
        let cluster = if clusters && words && kept_bytes > 0 {
            (enough / threads).clamp(1, MOST_BLOCKS)
        } else {
            1
        };
        // If some of the threads would have nothing in their last round, half of the threads do the
        // work. Rows of 768 in 16 bits are three rounds of a warp.
        let half = threads / 2;
        let idle = !groups.is_multiple_of(threads) && groups.is_multiple_of(half.max(1));
        let has_room = half >= 32 && groups / half.max(1) * kept_bytes <= MOST_KEPT_BYTES;
        let threads = if cluster == 1 && !ahead && idle && has_room { half } else { threads };
        let each = groups.div_ceil(threads * cluster);
        let fits = !kept_loads.is_empty() && groups > 0 && each * kept_bytes <= MOST_KEPT_BYTES;
        let cluster = if fits { cluster } else { 1 };
        let mut shape = RowShape {
            threads,
            cluster,
            rows: if threads > 32 { 1 } else { BLOCK / threads },
            groups,
            kept: fits.then_some(each),
            kept_loads,
            parts: 1,
            resident: 0,
            ahead,
        };
        // Without passes only single elements of a row are read.
        if !passes.is_empty() && !points.stages.whole_rows {
            shape.cut(rows, machine);
        }
        let kept_bytes = shape.kept.map_or(0, |each| each * kept_bytes);
        let room =
            if kept_bytes > BYTES_OF_THREAD { RESIDENT_THREADS / 2 } else { RESIDENT_THREADS };
        shape.resident = room / (shape.threads * shape.rows);
        if shape.kept.is_none() {
            shape.kept_loads.clear();
        }
        shape
    }

    /// Cuts rows that are too few to keep the machine busy.
    fn cut(&mut self, rows: usize, machine: PrinterMachine) {
        const BLOCKS_PER_MULTIPROCESSOR: usize = 4;
        const LEAST_GROUPS: usize = 4;
        let wanted = machine.multiprocessors as usize * BLOCKS_PER_MULTIPROCESSOR;
        let blocks = rows.div_ceil(self.rows) * self.cluster;
        let longest = self.groups / (self.threads * LEAST_GROUPS);
        // Rows in registers are read once, which pays for half of the machine.
        let few = if self.kept.is_some() { wanted / 8 } else { wanted / 2 };
        if blocks < few && longest > 1 && self.rows == 1 {
            self.parts = (wanted / rows.max(1)).min(longest).clamp(1, self.threads);
            (self.kept, self.cluster) = (None, 1);
        }
    }

    /// Threads of a row.
    pub(super) fn threads_of_row(&self) -> usize {
        self.threads * self.cluster
    }
}

/// The loads of elements, in order.
pub(super) fn loads(points: &Points<'_>) -> Vec<Register> {
    let mut loads: Vec<Register> = Vec::new();
    for register in points.stages.passes.iter().flat_map(|pass| &pass.elements) {
        if matches!(points.program.instr(*register), Instr::Load(_)) && !loads.contains(register) {
            loads.push(*register);
        }
    }
    loads
}
