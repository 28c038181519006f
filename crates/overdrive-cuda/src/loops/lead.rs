//! `Lead`: a loop over few rows that every block of a product computes for itself, because that
//! takes less than a launch. An example is the norm before a layer of a decoder.
//!
//! The text is a function of all threads of a block. It writes the rows that the product contracts
//! to shared memory. It writes everything else to where the plan has it, where each block writes
//! the same. Invariant: the rows are those that the loop alone would write, but for the order of
//! its sums.

use super::cpp::Text;
use super::kernel::Argument;
use super::nest::{Lanes, LoopNest, Of};
use super::points::Points;
use super::row_printer::RowPrinter;
use super::row_shape::{RowShape, loads};
use super::split::{Partials, Share};
use super::stages::Stages;
use overdrive_ir::SlotId;
use overdrive_ir::plan::{Program, Step, StepKind};

/// Elements of a row that a thread takes at most, which it keeps in registers.
const ELEMENTS_OF_THREAD: usize = 16;
/// Neighbours that are worth their load however few threads it takes: 16 bytes of f32.
const LEAST_VECTOR: usize = 4;

/// A loop as a function.
pub(crate) struct Lead {
    /// The function, named `lead`, and its call, where `rows` is the place in shared memory and
    /// `given` the addresses of `arguments`.
    pub(crate) text: String,
    pub(crate) call: String,
    arguments: Vec<Argument>,
}

impl Lead {
    /// The loop of a step that writes `m` rows of `k` elements to `target`, for blocks of so many
    /// threads. `None` where the step does something else.
    pub(crate) fn new(
        step: &Step,
        (target, [m, k]): (SlotId, [usize; 2]),
        threads: usize,
    ) -> Option<Self> {
        let StepKind::Loop(program) = &step.kind else { return None };
        if program.reduced == 0 || program.points() != m * k || !step.aliases.is_empty() {
            return None;
        }
        let mut nest = LoopNest::new(program);
        let elements: usize = nest.folded().iter().product();
        // Wider vectors, which narrow codes ask for, would leave threads idle.
        while nest.vector > LEAST_VECTOR && elements.div_ceil(nest.vector) < threads {
            nest.vector /= 2;
        }
        let stages = Stages::new(program, &nest);
        let is_rows = nest.lanes == Lanes::Along && elements == k && !nest.has_tail();
        if !is_rows || !writes_rows(program, &nest, (target, [m, k])) || stages.passes.is_empty() {
            return None;
        }
        let whole = program.stores.iter().all(|store| program.dtype(store.value).bits() >= 8);
        let lane = nest.folded().last()?.div_ceil(nest.vector);
        let groups = nest.folded().iter().rev().skip(1).product::<usize>() * lane;
        let each = groups.div_ceil(threads);
        if !whole || each * nest.vector > ELEMENTS_OF_THREAD || !stages.picks.is_empty() {
            return None;
        }
        let points = Points::new(program, (&nest, &stages), &[]);
        let kept_loads =
            loads(&points).into_iter().filter(|r| points.moves(Of::Load(*r))).collect();
        let shape = RowShape {
            threads,
            cluster: 1,
            rows: 1,
            groups,
            kept: Some(each),
            kept_loads,
            parts: 1,
            resident: 0,
            ahead: false,
        };
        let (share, partials) = (Share::whole(&stages), Partials::default());
        let row = RowPrinter {
            points: &points,
            shape: &shape,
            share: share.first()?,
            partials: &partials,
            rows: m,
            grid: ["0", "1"],
        };
        let mut body = Text::default();
        points.constants(&mut body);
        row.print(&mut body);
        let parameters = points.parameters.declarations();
        let arguments = points.parameters.arguments();
        let mut text = Text::default();
        let head = format!("__device__ __forceinline__ void lead({})", parameters.join(", "));
        text.block(head, |text| body.finish().lines().for_each(|line| text.line(line)));
        let pass = |(at, parameter): (usize, &String)| {
            let ty = parameter.split('*').next().unwrap_or_default();
            match arguments[at] == Argument::Slot(target) {
                true => format!("({ty}*)(rows)"),
                false => format!("({ty}*)given[{at}]"),
            }
        };
        let passed: Vec<String> = parameters.iter().enumerate().map(pass).collect();
        let call = format!("lead({})", passed.join(", "));
        Some(Self { text: text.finish(), call, arguments })
    }

    /// The buffers whose addresses are in `given`.
    pub(crate) fn slots(&self) -> Vec<SlotId> {
        let slot = |argument: &Argument| match argument {
            Argument::Slot(slot) => Some(*slot),
            Argument::Workspace => None,
        };
        self.arguments.iter().filter_map(slot).collect()
    }
}

/// Whether the program writes whole rows of `k` to a slot, one behind the other, and reads none of
/// it.
fn writes_rows(program: &Program, nest: &LoopNest, (target, [m, k]): (SlotId, [usize; 2])) -> bool {
    let to_target = |number: &usize| program.stores[*number].access.slot == target;
    let mut stores = (0..program.stores.len()).filter(to_target);
    let (Some(store), None) = (stores.next(), stores.next()) else { return false };
    let walk = &nest.walks[&Of::Store(store)];
    let mut next = 1;
    let is_dense = (0..nest.extents.len()).rev().all(|d| {
        let fits = nest.extents[d] == 1 || walk.strides[d] == next;
        next *= nest.extents[d] as i64;
        fits
    });
    walk.offset == 0 && is_dense && next == (m * k) as i64
}
