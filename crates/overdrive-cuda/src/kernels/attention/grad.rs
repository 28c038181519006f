//! Gradients of attention on Hopper's tensor cores: the forms that have a kernel, its tile, and the
//! launches.
//!
//! Invariants: memory beside operands and results grows with T, never with T²; every launch gives
//! the same bits.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::ops::AttentionGrad;
use overdrive_ir::ops::attention::{Mask, find_score};
use overdrive_ir::plan::{KernelCall, SlotId, View};
use overdrive_ir::{DType, Decline, Graph, OpRef, Operation, TensorType};

use super::call::{HEADS, Shape, bunch, specialised};
use super::hopper::{LINE, OWN, boxes, is_copied};
use crate::Error;
use crate::compiler::{Architecture, Source};
use crate::entry::Entry;
use crate::kernels::named::{Compile, Launched, NamedKernel, PrintedCall, Sources};
use crate::kernels::nest::Place;
use crate::kernels::transfer::Transfer;
use crate::launch::{Addresses, Launch, Refusal, Site};
use crate::memory::DeviceBytes;
use crate::tensor_map::Maps;
use crate::wgmma;

/// Warpgroups that multiply.
const CONSUMERS: usize = 2;
/// Keys of a tile.
const TILE: usize = OWN * CONSUMERS;
/// Blocks of queries in flight.
const QUERY_STAGES: usize = 3;
/// Blocks of dout, and of dscores, in flight.
const STAGES: usize = 2;
/// Heads whose tiles are worked on at once. With fewer, more tiles wait for the one before; with
/// more, fewer tiles read the same queries from the L2.
const HEADS_AT_ONCE: usize = 16;
/// Fewest steps of the longest task for which splitting tiles pays.
const FEWEST_STEPS: usize = 8;
/// Fewest queries and keys: below, the expansion's matrices are small.
const FEWEST: usize = 64;
/// What the scratch of a step is aligned to.
const ALIGNMENT: usize = 256;

/// Why the op over operands of these types has no kernel; `None` where it has, and of other ops.
fn declines(_: &Operation, types: &[TensorType]) -> Option<Decline> {
    let (q, v) = (types.first()?, types.get(2)?);
    let (sizes, keys) = (q.sizes(), v.sizes()[2]);
    let is_typed = matches!(q.dtype, DType::F16 | DType::BF16);
    let fits = [sizes[3], v.sizes()[3]].iter().all(|&n| n % 16 == 0 && (16..=128).contains(&n));
    if !is_typed || !fits {
        let found = format!("heads of {} and {} channels in {}", sizes[3], v.sizes()[3], q.dtype);
        return Some(Decline::Because(format!(
            "its kernel takes bf16 and f16 with heads of 16 to 128 channels in multiples of 16, \
             not {found}: scores are stored"
        )));
    }
    let [least, most] = [sizes[2].min(keys), sizes[2].max(keys)];
    // The kernel counts halves of blocks of 64 queries.
    let tasks = (sizes[0] * sizes[1]).saturating_mul(most.div_ceil(OWN / CONSUMERS));
    if least < FEWEST || most > 1 << 30 || tasks == 0 || tasks > i32::MAX as usize {
        return Some(Decline::Because(format!(
            "its kernel takes from {FEWEST} queries and keys on, and what one launch has blocks \
             for, not {q} with {keys} keys: scores are stored"
        )));
    }
    None
}

fn declines_regions(regions: &[Graph]) -> Option<Decline> {
    let reason = "its kernel takes mask functions, not score functions: scores are stored";
    find_score(regions).map(|_| Decline::Because(reason.to_owned()))
}

/// Queries of a step, by registers: both sums of keys, scores, dweights and what is rounded of them
/// fit just so.
fn block(widths: [usize; 2]) -> usize {
    if widths[0].max(widths[1]) <= 64 { 96 } else { 64 }
}

fn widths(call: &KernelCall) -> [usize; 2] {
    [0, 2].map(|i| call.operands[i].ty.sizes()[3])
}

/// Queries of a warpgroup's sum of dq, which has 64 channels.
fn sum_queries([d, values]: [usize; 2]) -> usize {
    let queries = block([d, values]);
    if d > 64 { queries } else { queries / CONSUMERS }
}

/// Bytes of a warpgroup's sum of dq.
fn sum_bytes(widths: [usize; 2]) -> usize {
    64 * sum_queries(widths) * 4
}

fn shared_bytes(widths: [usize; 2]) -> usize {
    let rows = block(widths);
    let [line, line_v] = widths.map(|n| (n * 2).div_ceil(LINE) * LINE);
    let own = TILE * (line + line_v);
    let flight = rows * (QUERY_STAGES * line + STAGES * line_v);
    own + flight + STAGES * CONSUMERS * rows * LINE + CONSUMERS * sum_bytes(widths)
}

/// The kernel and what rounds its sums, specialised.
fn source(call: &KernelCall, (op, regions): (&AttentionGrad, &[Graph])) -> Result<Source, Refusal> {
    let (widths, dtype) = (widths(call), call.operands[0].ty.dtype);
    let queries = block(widths);
    let mut text = format!(
        "constexpr int QUERY_STAGES = {QUERY_STAGES}, BLOCK_QUERIES = {queries};\n{}{}",
        wgmma::print("wgmma", queries, [dtype; 2], [true; 2]),
        wgmma::print("wgmma_of_columns", sum_queries(widths), [dtype; 2], [false, true]),
    );
    let [d, values] = widths;
    text += &wgmma::print_of_registers(d, dtype);
    if values != d {
        text += &wgmma::print_of_registers(values, dtype);
    }
    text += HEADS;
    text += include_str!("grad.cu");
    specialised("attention_grad", call, (&op.attention, regions, &call.operands[6..]), &text)
}

/// `attention_grad` on Hopper's tensor cores.
pub(in crate::kernels) const KERNEL: NamedKernel = NamedKernel {
    only: Some(Architecture::Sm90a),
    declines_regions,
    declines,
    ..NamedKernel::new("attention_grad", Compile::Composite(compile), Sources::Of(sources_of))
};

/// The op of a call, which the table found by name.
fn gradient_of(op: &OpRef) -> &AttentionGrad {
    op.downcast().expect("the table is by name")
}

fn sources_of(call: &KernelCall, op: &OpRef, regions: &[Graph]) -> PrintedCall {
    Ok(vec![(source(call, (gradient_of(op), regions))?, &[Architecture::Sm90a])])
}

/// Where the kernels read an operand or write a result.
enum Home {
    /// Where the plan has it.
    There(Place),
    /// A dense copy so many bytes into the scratch.
    Scratch(usize),
}

impl Home {
    fn of(&self, addresses: &Addresses) -> CUdeviceptr {
        match self {
            Self::There(place) => place.of(addresses),
            Self::Scratch(offset) => addresses.workspace() + *offset as u64,
        }
    }
}

/// A copy between a view of the plan and its dense form in the scratch.
struct Copy {
    transfer: Transfer,
    view: Place,
    offset: usize,
}

/// Scratch and copies of views that TMA cannot copy, and results that nobody asked for.
#[derive(Default)]
struct Staging {
    bytes: usize,
    before: Vec<Copy>,
    after: Vec<Copy>,
}

impl Staging {
    fn room(&mut self, bytes: usize) -> usize {
        let offset = self.bytes;
        self.bytes += bytes.next_multiple_of(ALIGNMENT);
        offset
    }

    /// Where an operand is read, and the view that it has there.
    fn operand(&mut self, site: &Site<'_>, view: &View) -> Result<(Home, View), Refusal> {
        if is_copied(view) {
            return Ok((Home::There(Place::new(view)), view.clone()));
        }
        let (offset, dense) =
            (self.room(view.ty.bytes()), View::row_major(view.slot, view.ty.clone()));
        let transfer = Transfer::new(site, view, &dense)?;
        self.before.push(Copy { transfer, view: Place::new(view), offset });
        Ok((Home::Scratch(offset), dense))
    }

    /// Where a result of the type of `like` is written.
    fn result(
        &mut self,
        site: &Site<'_>,
        view: Option<&View>,
        like: &View,
    ) -> Result<(Home, View), Refusal> {
        if let Some(view) = view.filter(|view| is_copied(view)) {
            return Ok((Home::There(Place::new(view)), view.clone()));
        }
        let (offset, dense) =
            (self.room(like.ty.bytes()), View::row_major(like.slot, like.ty.clone()));
        if let Some(view) = view {
            let transfer = Transfer::new(site, &dense, view)?;
            self.after.push(Copy { transfer, view: Place::new(view), offset });
        }
        Ok((Home::Scratch(offset), dense))
    }
}

/// `Grad` of `grad.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Grad {
    delta: [i64; 3],
    dk: [i64; 3],
    dv: [i64; 3],
    splits: i32,
    tasks: i32,
}

struct Compiled {
    kernel: Entry,
    round: Entry,
    /// Of all homes but the last.
    maps: Maps,
    /// q, dout, k, v, dk, dv, dq.
    homes: [Home; 7],
    /// The log-sum-exp and delta.
    rows: [Place; 2],
    /// Offsets into the scratch: sums of dq, parts of dk and dv.
    sums: [usize; 2],
    /// What tasks are taken by, and how many tiles each block of sums has; a launch leaves them 0.
    counters: DeviceBytes,
    shape: Shape,
    grad: Grad,
    captures: Vec<SlotId>,
    staging: Staging,
}

/// Tasks of a tile of keys, so that few tiles still fill the multiprocessors. No task is empty.
fn splits(op: &AttentionGrad, shape: &Shape, block: usize, multiprocessors: usize) -> usize {
    let (queries, keys, group) =
        (shape.queries as usize, shape.keys as usize, shape.group as usize);
    let (tiles, blocks) = (keys.div_ceil(TILE), queries.div_ceil(block));
    let begin = match op.attention.mask {
        Mask::Causal => ((tiles - 1) * TILE + queries).saturating_sub(keys) / block,
        Mask::Full => 0,
    };
    let (most, least) = (group * blocks, group * (blocks - begin));
    let wanted = multiprocessors / (shape.matrices as usize * tiles);
    wanted.min(most / FEWEST_STEPS).clamp(1, least.max(1))
}

fn compile(site: &Site<'_>, call: &KernelCall, op: &OpRef, regions: &[Graph]) -> Launched {
    let op = (gradient_of(op), regions);
    if site.device.architecture() != Architecture::Sm90a {
        return Err(Refusal::Unsupported("only Hopper has these tensor cores".to_owned()));
    }
    let [q, k, v, lse, dout, delta] = std::array::from_fn(|i| &call.operands[i]);
    let mut staging = Staging::default();
    let mut views = Vec::new();
    for operand in [q, dout, k, v] {
        views.push(staging.operand(site, operand)?);
    }
    for (result, like) in [(1, k), (2, v), (0, q)] {
        views.push(staging.result(site, call.results[result].as_ref(), like)?);
    }
    let (homes, views): (Vec<Home>, Vec<View>) = views.into_iter().unzip();
    let (sizes, shared) = (q.ty.sizes(), k.ty.sizes());
    let ([batch, heads, queries], [key_heads, keys]) =
        ([sizes[0], sizes[1], sizes[2]], [shared[1], shared[2]]);
    let strides = |view: &View| -> [i64; 3] { std::array::from_fn(|d| view.strides[d]) };
    let shape = Shape {
        heads: key_heads as i32,
        group: (heads / key_heads) as i32,
        matrices: (batch * key_heads) as i32,
        together: bunch(batch * key_heads, HEADS_AT_ONCE),
        queries: queries as i32,
        keys: keys as i32,
        q: std::array::from_fn(|d| views[6].strides[d]),
        lse: strides(lse),
        factor: op.0.attention.factor(sizes[3]),
        ..Shape::default()
    };
    let (widths, multiprocessors) =
        (widths(call), site.device.properties().multiprocessors as usize);
    let rows = block(widths);
    let splits = splits(op.0, &shape, rows, multiprocessors);
    let tiles = batch * key_heads * keys.div_ceil(TILE);
    let (tasks, blocks) = (tiles * splits, batch * heads * queries.div_ceil(rows));
    let parts = if splits > 1 { tasks * TILE * (widths[0] + widths[1]) } else { 0 };
    let sums = [blocks * CONSUMERS * sum_bytes(widths), parts * 4].map(|bytes| staging.room(bytes));
    let counters = DeviceBytes::new(site.device, 4 * (1 + blocks * CONSUMERS))?;
    counters.fill(0)?;
    let source = source(call, op)?;
    let entry = |name: &str, blocks: usize, threads: usize, shared_mem_bytes: usize| {
        let config = LaunchConfig {
            grid_dim: (blocks as u32, 1, 1),
            block_dim: (threads as u32, 1, 1),
            shared_mem_bytes: shared_mem_bytes as u32,
        };
        Entry::new(site.device, (&source, name), config)
    };
    let eights = (widths[0] + widths[1]) / 8;
    let round_blocks = blocks + if splits > 1 { tiles * eights } else { 0 };
    let boxed = [rows, rows, TILE, TILE, OWN, OWN];
    Ok(Box::new(Compiled {
        kernel: entry(
            "attention_grad",
            tasks.min(multiprocessors),
            (CONSUMERS + 1) * 128,
            shared_bytes(widths),
        )?,
        round: entry("attention_grad_round", round_blocks, CONSUMERS * 128, 0)?,
        maps: Maps::new(boxed.iter().zip(&views).map(|(&rows, view)| boxes(view, rows)).collect()),
        grad: Grad {
            delta: strides(delta),
            dk: strides(&views[4]),
            dv: strides(&views[5]),
            splits: splits as i32,
            tasks: tasks as i32,
        },
        homes: homes.try_into().unwrap_or_else(|_| unreachable!("seven views were made")),
        rows: [lse, delta].map(Place::new),
        sums,
        counters,
        shape,
        captures: call.operands[6..].iter().map(|view| view.slot).collect(),
        staging,
    }))
}

/// Pointers to parameters, in order.
fn pointers<T>(parameters: &mut [T]) -> impl Iterator<Item = *mut c_void> {
    parameters.iter_mut().map(|parameter| (&raw mut *parameter).cast())
}

impl Launch for Compiled {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let scratch = |offset: usize| addresses.workspace() + offset as u64;
        for copy in &self.staging.before {
            let ends = [copy.view.of(addresses), scratch(copy.offset)];
            // SAFETY: the addresses are those of the view and of scratch for all of it.
            unsafe { copy.transfer.run(stream, ends)? };
        }
        let homes: Vec<CUdeviceptr> = self.homes.iter().map(|home| home.of(addresses)).collect();
        let [boxed @ .., dq] = &homes[..] else { unreachable!("there are seven homes") };
        let mut maps = self.maps.at(boxed)?;
        let (mut rows, mut outputs) =
            (self.rows.map(|place| place.of(addresses)), [*dq, boxed[4], boxed[5]]);
        let mut buffers = [scratch(self.sums[0]), scratch(self.sums[1]), self.counters.address()];
        let (mut shape, mut grad) = ([self.shape], [self.grad]);
        let mut captures: Vec<u64> = self.captures.iter().map(|&slot| addresses.of(slot)).collect();
        let mut parameters: Vec<*mut c_void> =
            pointers(&mut maps).chain(pointers(&mut rows)).chain(pointers(&mut buffers)).collect();
        parameters.extend(pointers(&mut shape).chain(pointers(&mut grad)));
        parameters.extend(pointers(&mut captures));
        // SAFETY: the parameters are those of the kernel, whose copies keep to the maps, whose
        // reads keep to the rows of the shape, and whose sums keep to the scratch.
        unsafe { self.kernel.launch(stream, &mut parameters)? };
        let mut parameters: Vec<*mut c_void> =
            pointers(&mut buffers).chain(pointers(&mut outputs)).collect();
        parameters.extend(pointers(&mut shape).chain(pointers(&mut grad)));
        // SAFETY: as above; its stores keep to the rows of the shape.
        unsafe { self.round.launch(stream, &mut parameters)? };
        for copy in &self.staging.after {
            let ends = [scratch(copy.offset), copy.view.of(addresses)];
            // SAFETY: as above.
            unsafe { copy.transfer.run(stream, ends)? };
        }
        Ok(())
    }

    fn workspace_bytes(&self) -> usize {
        self.staging.bytes
    }
}
