//! Loops without reductions: every thread takes a group of neighbours, or several where one is less
//! than 16 bytes.
//!
//! The grid has a thread for every group, and blocks take neighbouring groups, so that memory is
//! walked in order. A copy then moves 4.24 TB/s on an H200. A persistent grid moves 3.95, and
//! threads that load four groups before they store the first move 4.04. The loads of a thread come
//! first. So enough bytes are in flight to hide the memory's latency (Little's law: some 25 KB a
//! multiprocessor there).

use super::cpp::Text;
use super::kernel::KernelLaunch;
use super::level::Level;
use super::points::Points;
use super::print::statement;
use super::source::{Sketch, ThreadBlock, Workspace};
use super::tiles::PointOrder;
use overdrive_ir::plan::{Instr, Register};

/// Threads of a block.
const BLOCK: usize = 256;
/// Bytes that a thread has under way before it computes, as far as registers allow.
const BYTES_UNDER_WAY: usize = 16;

/// How many groups of neighbours a map has, and how many of them a block takes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Groups {
    pub(super) count: usize,
    pub(super) of_block: usize,
}

impl Groups {
    /// Blocks that take them all.
    pub(super) fn blocks(self) -> usize {
        self.count.div_ceil(self.of_block).max(1)
    }
}

/// The threads of a map.
pub(super) fn block() -> ThreadBlock {
    ThreadBlock { threads: BLOCK, resident: 0, cluster: 1, shared_bytes: 0 }
}

/// Prints the kernel.
pub(super) fn map(mut points: Points<'_>) -> KernelLaunch {
    let count = PointOrder::new(points.nest).count();
    let (text, groups) = body(&mut points, ("blockIdx.x", &count.to_string()));
    Sketch {
        points: &points,
        text,
        grid: groups.blocks(),
        block: block(),
        workspace: Workspace::Unused,
    }
    .finish()
}

/// The work of the threads of the block numbered `number`, of `count` groups; both in C++.
pub(super) fn body(points: &mut Points<'_>, (number, count): (&str, &str)) -> (Text, Groups) {
    let (nest, stages) = (points.nest, points.stages);
    let vector = nest.vector;
    let order = PointOrder::new(nest);
    // Elements of this program are rows to `Stages`: there is no reduced loop.
    let elements = stages.registers(points.program, Level::Row, 0);
    let loads: Vec<Register> = elements
        .iter()
        .copied()
        .filter(|r| matches!(points.program.instr(*r), Instr::Load(_)))
        .collect();
    let bytes: usize = loads.iter().map(|r| vector * points.program.dtype(*r).bits() / 8).sum();
    let unroll = (BYTES_UNDER_WAY / bytes.max(1)).clamp(1, 4);
    points.grouped = loads.clone();
    points.group = "[u]";
    let (points, int) = (&*points, points.int());
    let mut text = Text::default();
    let each_lane = format!("for (int v = 0; v < {vector}; ++v)");
    let each_group = format!("for (int u = 0; u < {unroll}; ++u)");
    let at = |text: &mut Text, content: &dyn Fn(&mut Text)| {
        text.unrolled(&each_group, |text| {
            text.line(format!("const {int} group = first + u * {BLOCK};"));
            text.block(format!("if (group < {count})"), |text| {
                order.at(int, text, &|text| {
                    points.count_lanes(text);
                    content(text);
                });
            });
        });
    };
    points.constants(&mut text);
    text.line(format!("const {int} first = ({int}){number} * {} + threadIdx.x;", BLOCK * unroll));
    loads.iter().for_each(|r| points.declare(*r, &format!("[{unroll}]"), &mut text));
    if !loads.is_empty() {
        at(&mut text, &|text| loads.iter().for_each(|r| points.load(*r, text)));
    }
    at(&mut text, &|text| {
        let numbers = 0..points.program.stores.len();
        for number in numbers.clone() {
            let dtype = points.program.dtype(points.program.stores[number].value);
            text.line(format!("{dtype} y{number}[{vector}];"));
        }
        text.unrolled(&each_lane, |text| {
            elements.iter().for_each(|r| text.line(statement(points.program, *r, points)));
            for number in numbers.clone() {
                let value = points.program.stores[number].value;
                text.line(format!("y{number}[v] = t{};", value.0));
            }
        });
        numbers.for_each(|number| points.store(number, text));
    });
    (text, Groups { count: order.count(), of_block: BLOCK * unroll })
}
