//! Merges small independent loops, and writes at positions that are data, into one launch. Such
//! loops come between the products of a decoder's step and its attention.
//!
//! Rotated queries, rotated keys and values are a few thousand numbers each, and their copy into
//! the caches is as many more. A launch for each costs far more than the numbers. An in-place write
//! into a state (`dynamic_update_slice`) is a loop whose result begins at an offset that comes from
//! other data. If it follows the loop that makes the written values, the two become that one loop
//! with another result. A loop may fold short rows. So codes of keys and their scales are results
//! of one loop, each with a place of its own. Each unit has blocks of its own. Invariant: no unit
//! reads what another writes.

use super::compile::refuse_shared_bytes;
use super::cpp::Text;
use super::kernel::{Argument, PrinterMachine, Use};
use super::map::{block, body};
use super::nest::Lanes;
use super::nest::LoopNest;
use super::points::Points;
use super::row_printer::RowPrinter;
use super::row_shape::RowShape;
use super::source::{ENTRY, head};
use super::split::{Partials, Share};
use super::stages::Stages;
use super::tiles::PointOrder;
use super::unroll::unrolled;
use crate::Error;
use crate::compiler::{Architecture, KernelSource};
use crate::entry::{Entry, WAIT_ALONE};
use crate::launch::{Addresses, Launch, Refusal, Site};
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::plan::{
    Access, Instr, KernelCall, KernelOp, Program, Step, StepKind, Store, View,
};
use overdrive_ir::{DType, Prim, SlotId};
use std::ffi::c_void;
use std::sync::Arc;

/// Most numbers of a unit: more are worth a launch.
const POINTS: usize = 1 << 14;
/// Most units of a launch.
const UNITS: usize = 8;
/// Bytes that a thread may move at once.
const WIDEST: i64 = 16;

/// A loop, and where its results begin if data says.
struct SmallUnit {
    program: Program,
    moved: Vec<Moved>,
}

/// A result that begins at a place that is read.
#[derive(Clone)]
struct Moved {
    /// The whole that it is a part of.
    slot: SlotId,
    starts: Access,
    /// For each dimension of the whole that has room: its number, the last start, its stride.
    terms: Vec<(usize, i64, i64)>,
    /// Whether neighbours may still be written at once.
    is_aligned: bool,
}

impl SmallUnit {
    fn of_loop(step: &Step) -> Option<Self> {
        let StepKind::Loop(program) = &step.kind else { return None };
        let program = match unrolled(program) {
            Some(unrolled) => unrolled,
            None if has_short_rows(program) => program.clone(),
            None => return None,
        };
        let is_small = (1..=POINTS).contains(&program.points());
        (is_small && step.aliases.is_empty()).then_some(Self { program, moved: vec![] })
    }

    /// The loop that copies the written values.
    fn of_update(call: &KernelCall, step: &Step) -> Option<Self> {
        let (update, result, moved) = in_place(call, step)?;
        if !moved.is_aligned {
            return None;
        }
        let mut program = Program { extents: update.ty.sizes(), ..Program::default() };
        let access = |view: &View| Access {
            slot: view.slot,
            offset: view.offset,
            strides: view.strides.clone(),
        };
        let value = program.push(Instr::Load(access(update)), update.ty.dtype);
        program.stores.push(Store { access: access(result), value });
        let is_small = (1..=POINTS).contains(&program.points());
        is_small.then_some(Self { program, moved: vec![moved] })
    }

    /// The same loop with a result in the place that a step after it copies it to.
    fn with_update(&self, call: &KernelCall, step: &Step) -> Option<Self> {
        let (update, result, moved) = in_place(call, step)?;
        let sizes = update.ty.sizes();
        let rows: Vec<i64> =
            overdrive_ir::row_major(&sizes).into_iter().map(|stride| stride as i64).collect();
        let stores = &self.program.stores;
        let number = stores.iter().position(|store| store.access.slot == update.slot)?;
        let store = &stores[number];
        // A row has one element of it, or neighbours.
        let is_alone = self.program.reduced > 0 && !self.program.is_spread(&store.access);
        let dense = update.offset == 0 && update.strides == rows;
        if !dense || store.access.offset != 0 || !(moved.is_aligned || is_alone) {
            return None;
        }
        // The distance that a step of each loop moves along each dimension, and how far all of them
        // reach.
        let mut reach = vec![0; sizes.len()];
        let mut strides = Vec::new();
        for (&stride, &extent) in store.access.strides.iter().zip(&self.program.extents) {
            let (mut rest, mut moves) = (stride, 0);
            for d in (0..sizes.len()).filter(|&d| sizes[d] > 1) {
                let steps = rest / rows[d];
                rest -= steps * rows[d];
                moves += steps * result.strides[d];
                reach[d] += steps * (extent as i64 - 1);
            }
            if rest != 0 || stride < 0 {
                return None;
            }
            strides.push(moves);
        }
        if reach.iter().zip(&sizes).any(|(&reach, &size)| reach >= size as i64) {
            return None;
        }
        let mut program = self.program.clone();
        let access = Access { slot: result.slot, offset: result.offset, strides };
        program.stores[number].access = access;
        let before = self.moved.iter().cloned();
        Some(Self { program, moved: before.chain([moved]).collect() })
    }

    fn reads(&self, slot: SlotId) -> bool {
        let loads = self.program.instrs.iter().any(|instr| match instr {
            Instr::Load(access) => access.slot == slot,
            _ => false,
        });
        loads || self.moved.iter().any(|moved| moved.starts.slot == slot)
    }
}

/// The view that a step writes, the whole, and the position, if it writes a part of a whole in
/// place.
fn in_place<'a>(call: &'a KernelCall, step: &Step) -> Option<(&'a View, &'a View, Moved)> {
    let KernelOp::Prim(Prim::DynamicUpdateSlice, _) = &call.op else { return None };
    let ([operand, update, starts], [Some(result)]) = (&call.operands[..], &call.results[..])
    else {
        return None;
    };
    let in_place = step.aliases == [(operand.slot, result.slot)]
        && (operand.offset, &operand.strides) == (result.offset, &result.strides)
        && update.slot != result.slot
        && starts.ty.dtype == DType::I64;
    let (whole, part) = (result.ty.sizes(), update.ty.sizes());
    let room = |d: &usize| whole[*d] > part[*d];
    let terms: Vec<(usize, i64, i64)> = (0..whole.len())
        .filter(room)
        .map(|d| (d, (whole[d] - part[d]) as i64, result.strides[d]))
        .collect();
    let bytes = result.ty.dtype.bits() as i64 / 8;
    let is_aligned = bytes > 0 && terms.iter().all(|(_, _, stride)| stride * bytes % WIDEST == 0);
    let starts =
        Access { slot: starts.slot, offset: starts.offset, strides: starts.strides.clone() };
    let moved = Moved { slot: result.slot, starts, terms, is_aligned };
    in_place.then_some((update, result, moved))
}

/// The units of steps; `None` where one launch cannot do all.
fn units(steps: &[&Step]) -> Option<Vec<SmallUnit>> {
    let mut units: Vec<SmallUnit> = Vec::new();
    // Results that went to their places in states alone: nobody writes these slots.
    let mut gone: Vec<SlotId> = Vec::new();
    for step in steps {
        let unit = match &step.kind {
            StepKind::Kernel(call) => {
                let made = units.iter().position(|unit| writes(unit, call.operands.get(1)));
                match made {
                    Some(at) => {
                        let unit = units[at].with_update(call, step)?;
                        units.remove(at);
                        gone.push(call.operands[1].slot);
                        unit
                    }
                    None => SmallUnit::of_update(call, step)?,
                }
            }
            _ => SmallUnit::of_loop(step)?,
        };
        let apart = |other: &SmallUnit| {
            let stores = |unit: &SmallUnit| -> Vec<SlotId> {
                unit.program.stores.iter().map(|store| store.access.slot).collect()
            };
            let clear = |a: &SmallUnit, b: &SmallUnit| {
                stores(a).iter().all(|slot| !b.reads(*slot) && !stores(b).contains(slot))
            };
            clear(other, &unit) && clear(&unit, other)
        };
        let is_whole = !gone.iter().any(|slot| unit.reads(*slot));
        if !units.iter().all(apart) || !is_whole || units.len() == UNITS {
            return None;
        }
        units.push(unit);
    }
    Some(units)
}

fn writes(unit: &SmallUnit, view: Option<&View>) -> bool {
    let stores = &unit.program.stores;
    view.is_some_and(|view| stores.iter().any(|store| store.access.slot == view.slot))
}

/// Whether one launch can do all of these steps, in this order.
pub fn bunches(steps: &[&Step]) -> bool {
    let fit = |units: Vec<SmallUnit>| !units.iter().any(packed) && rows_are_written(&units);
    steps.len() > 1 && units(steps).is_some_and(fit)
}

/// Whether loops that fold rows are written into states. One more may be last, whose writes follow.
/// Any other gains nothing here over a launch with a shape of its own.
fn rows_are_written(units: &[SmallUnit]) -> bool {
    let is_loose = |unit: &SmallUnit| unit.program.reduced > 0 && unit.moved.is_empty();
    let Some((last, before)) = units.split_last() else { return true };
    let is_begun = before.iter().any(|unit| unit.program.reduced > 0);
    !before.iter().any(is_loose) && (is_begun || !is_loose(last))
}

/// Whether a unit reads or writes parts of a byte.
fn packed(unit: &SmallUnit) -> bool {
    unit.program.dtypes.iter().any(|dtype| dtype.bits() < 8)
}

/// Whether the threads of a warp or fewer fold a row, so that a block of a map has whole rows.
fn has_short_rows(program: &Program) -> bool {
    let nest = LoopNest::new(program);
    if program.points() == 0 || !matches!(nest.lanes, Lanes::Along) {
        return false;
    }
    let stages = Stages::new(program, &nest);
    let shape = RowShape::new(&Points::new(program, (&nest, &stages), &[]), ANY);
    shape.threads <= 32 && shape.rows * shape.threads == block().threads
}

/// Rows of this length have the same shape on every machine.
const ANY: PrinterMachine = PrinterMachine { multiprocessors: 1, architecture: Architecture::Sm80 };

/// The work of the threads of the block numbered `number` of a unit that folds short rows, and its
/// blocks.
fn rows(points: &Points<'_>) -> (Text, usize) {
    let shape = RowShape::new(points, ANY);
    let rows: usize = points.nest.kept().iter().product();
    let blocks = rows.div_ceil(shape.rows);
    let [share] = &Share::whole(points.stages)[..] else { unreachable!("a short row is whole") };
    let (partials, count) = (Partials::default(), blocks.to_string());
    let grid = ["number", &count];
    let mut text = Text::default();
    points.constants(&mut text);
    RowPrinter { points, shape: &shape, share, partials: &partials, rows, grid }.print(&mut text);
    (text, blocks)
}

/// A unit as text.
struct PrintedUnit {
    text: Vec<String>,
    arguments: Vec<Argument>,
    blocks: usize,
}

impl PrintedUnit {
    fn of(unit: &SmallUnit, first: usize) -> Self {
        let nest = LoopNest::new(&unit.program);
        let stages = Stages::new(&unit.program, &nest);
        let mut points = Points::new(&unit.program, (&nest, &stages), &[]);
        for moved in &unit.moved {
            points.parameters.add(moved.starts.slot, DType::I64, Use::Read);
        }
        let (body, blocks) = match unit.program.reduced {
            0 => {
                let count = PointOrder::new(&nest).count().to_string();
                let (body, groups) = body(&mut points, ("number", &count));
                (body, groups.blocks())
            }
            _ => rows(&points),
        };
        let mut text = Vec::new();
        let place = |slot| points.parameters.name(slot);
        for (at, declaration) in points.parameters.declarations().into_iter().enumerate() {
            let ty = declaration.split('*').next().unwrap_or_default().to_owned();
            text.push(format!("{declaration} = ({ty}*)given.at[{}];", first + at));
        }
        for Moved { slot, starts, terms, .. } in &unit.moved {
            let (to, from) = (place(*slot), place(starts.slot));
            for (d, last, stride) in terms {
                let at = starts.offset + *d as i64 * starts.strides[0];
                text.push(format!("{to} += min(max({from}[{at}], 0ll), {last}ll) * {stride}ll;"));
            }
        }
        text.extend(body.finish().lines().map(str::to_owned));
        Self { text, arguments: points.parameters.arguments(), blocks }
    }
}

/// The source of units, their arguments, and the blocks of the grid.
fn print(units: &[SmallUnit]) -> (KernelSource, Vec<Argument>, usize) {
    let (mut arguments, mut first) = (Vec::new(), 0);
    let mut bodies = Text::default();
    for unit in units {
        let printed = PrintedUnit::of(unit, arguments.len());
        let last = first + printed.blocks;
        bodies.block(format!("if (blockIdx.x < {last})"), |text| {
            text.line(format!("const u32 number = blockIdx.x - {first};"));
            printed.text.iter().for_each(|line| text.line(line.as_str()));
            text.line("return;");
        });
        arguments.extend(printed.arguments);
        first = last;
    }
    let mut text = Text::default();
    text.line("#include \"loop.cuh\"");
    text.line(format!("struct Given {{ void* at[{}]; }};", arguments.len()));
    text.block(head(block(), "const __grid_constant__ Given given"), |text| {
        // Attention comes next, whose few blocks need no more than a place.
        text.line("let_next_begin();");
        text.line(WAIT_ALONE);
        bodies.finish().lines().for_each(|line| text.line(line));
    });
    let source = KernelSource { name: ENTRY.into(), text: text.finish().into(), defines: vec![] };
    (source, arguments, first)
}

/// The source that steps which one launch can do are compiled from.
pub fn source_bunch(steps: &[Step]) -> Option<KernelSource> {
    Some(print(&units(&steps.iter().collect::<Vec<_>>())?).0)
}

/// Compiles steps that one launch can do.
///
/// # Errors
/// As `compile` of one.
pub fn compile_bunch(site: &Site<'_>, steps: &[Step]) -> Result<Box<dyn Launch>, Refusal> {
    let units = units(&steps.iter().collect::<Vec<_>>())
        .expect("these steps were gathered because one launch can");
    for unit in &units {
        refuse_shared_bytes(&unit.program, &LoopNest::new(&unit.program))?;
    }
    let (source, arguments, blocks) = print(&units);
    let config = LaunchConfig {
        grid_dim: (blocks as u32, 1, 1),
        block_dim: (block().threads as u32, 1, 1),
        shared_mem_bytes: 0,
    };
    Ok(Box::new(Small { entry: Entry::new(site.device, (&source, ENTRY), config)?, arguments }))
}

struct Small {
    entry: Entry,
    arguments: Vec<Argument>,
}

impl Launch for Small {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let mut given: Vec<u64> =
            self.arguments.iter().map(|argument| argument.address(addresses)).collect();
        let mut parameters: [*mut c_void; 1] = [given.as_mut_ptr().cast()];
        // SAFETY: the addresses are a `Given` of the source; the plan gives every slot its bytes.
        unsafe { self.entry.launch(stream, &mut parameters) }
    }
}
