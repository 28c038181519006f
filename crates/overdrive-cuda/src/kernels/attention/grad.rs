//! Gradients of attention: the forms that have a kernel, and Hopper's, its tile and its launches.
//!
//! Invariants: memory in addition to operands and results grows with T, never with T². Every launch
//! gives the same bits.
//!
//! Long because the launches of one gradient are kept together.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::ops::AttentionGrad;
use overdrive_ir::ops::attention::{Mask, find_mask, find_score};
use overdrive_ir::ops::attention_grad::Slopes;
use overdrive_ir::plan::{KernelCall, SlotId, View};
use overdrive_ir::{DType, Decline, Graph, OpRef, Operation, TensorType};

use super::block_mask::{BlockMask, CompiledBlockMask, Lists, MaskGrid};
use super::call::{HEADS, of_numbers, specialised};
use super::captures::{self, CapturePlaces, Captures};
use super::grad_portable::{self, PortableLayout};
use super::homes::{Home, Staging};
use super::hopper::{LINE, boxes};
use super::persistent::OWN;
use super::shape::{AttentionShape, bunch};
use super::{dropout, region, slopes};
use crate::Error;
use crate::compiler::{Architecture, KernelSource};
use crate::entry::{Entry, pointers};
use crate::kernels::line::{Compile, Launched, NamedKernel, PrintedCall, Sources};
use crate::kernels::nest::ViewStart;
use crate::kernels::transfer::{Transfer, TransferShape};
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
/// more, fewer tiles read the same queries from the L2. Tiles of long sequences rarely wait, but
/// fall further behind one another. At a million tokens, four heads at once ran at 380 TFLOP/s on
/// an H200, and two at 545.
fn heads_at_once(queries: usize) -> usize {
    match queries {
        0..0x8000 => 16,
        0x8000..0x8_0000 => 4,
        0x8_0000.. => 2,
    }
}

/// Fewest steps of the longest task for which splitting tiles pays.
const FEWEST_STEPS: usize = 8;
/// Fewest queries and keys: below, the expansion's matrices are small.
const FEWEST: usize = 64;

/// Why the op over operands of these types has no kernel; `None` where it has, and of other ops.
fn declines(_: &Operation, types: &[TensorType]) -> Option<Decline> {
    let (q, v) = (types.first()?, types.get(2)?);
    let (sizes, keys) = (q.sizes(), v.sizes()[2]);
    let is_typed = matches!(q.dtype, DType::F16 | DType::BF16);
    let fits = [sizes[3], v.sizes()[3]].iter().all(|&n| n % 16 == 0 && (16..=256).contains(&n));
    if !is_typed || !fits {
        let found = format!("heads of {} and {} channels in {}", sizes[3], v.sizes()[3], q.dtype);
        return Some(Decline::Because(format!(
            "its kernels take bf16 and f16 with heads of 16 to 256 channels in multiples of 16, \
             not {found}: scores are stored"
        )));
    }
    let [least, most] = [sizes[2].min(keys), sizes[2].max(keys)];
    // The kernel counts halves of blocks of 32 queries or more.
    let tasks = (sizes[0] * sizes[1]).saturating_mul(most.div_ceil(16));
    if least < FEWEST || most > 1 << 30 || tasks == 0 || tasks > i32::MAX as usize {
        return Some(Decline::Because(format!(
            "its kernel takes from {FEWEST} queries and keys on, and what one launch has blocks \
             for, not {q} with {keys} keys: scores are stored"
        )));
    }
    None
}

/// Why it does not take these regions.
fn declines_regions(regions: &[Graph]) -> Option<Decline> {
    let mismatch = Slopes::of(find_score(regions)?).err()?;
    let (expected, found) = (mismatch.expected, mismatch.found);
    Some(Decline::Because(format!(
        "its kernel takes {expected} in a score function, not {found}: scores are stored"
    )))
}

/// The tile that a task works on at a time.
#[derive(Clone, Copy, Debug)]
struct GradTile {
    /// Channels of q and k, and of v.
    widths: [usize; 2],
    /// Queries of a step.
    queries: usize,
}

impl GradTile {
    /// Chosen by registers. Both sums of keys, scores, dweights and their rounded copies just fit,
    /// together with one function. Two functions, or dropout, take more. Dropout that draws each
    /// weight alone takes most (`draw`).
    fn of(call: &KernelCall, (op, regions): (&AttentionGrad, &[Graph])) -> Self {
        let widths = [0, 2].map(|i| call.operands[i].ty.sizes()[3]);
        let drops = op.attention.dropout.is_some();
        let takes_more = regions.len() > 1 || drops;
        let is_alone = drops && !call.operands[1].ty.sizes()[2].is_multiple_of(4);
        let queries = match (widths[0].max(widths[1]) <= 64, takes_more) {
            (true, false) => 96,
            (true, true) => 64,
            (false, false) => 64,
            (false, true) if widths[0] > 64 && !is_alone => 48,
            (false, true) => 32,
        };
        Self { widths, queries }
    }

    /// Queries of a warpgroup's sum of dq, which has 64 channels.
    fn sum_queries(self) -> usize {
        if self.widths[0] > 64 { self.queries } else { self.queries / CONSUMERS }
    }

    /// Bytes of a warpgroup's sum of dq.
    fn sum_bytes(self) -> usize {
        64 * self.sum_queries() * 4
    }

    fn shared_bytes(self) -> usize {
        let [line, line_v] = self.widths.map(|n| (n * 2).div_ceil(LINE) * LINE);
        let own = TILE * (line + line_v);
        let flight = self.queries * (QUERY_STAGES * line + STAGES * line_v);
        let dscores = STAGES * CONSUMERS * self.queries * LINE;
        own + flight + dscores + CONSUMERS * self.sum_bytes()
    }
}

/// The block masks of a call whose tiles of keys are split among so many tasks.
fn block_mask(
    call: &KernelCall,
    (op, regions): (&AttentionGrad, &[Graph]),
    splits: usize,
) -> Result<Option<BlockMask>, Refusal> {
    let Some(mask) = find_mask(regions) else { return Ok(None) };
    let (_, captures) = op.attention.seed_and_captures(&call.operands[6..]);
    let [heads, shared] = [0, 1].map(|i| call.operands[i].ty.sizes()[1]);
    let least = splits.div_ceil(heads / shared);
    let tile = [GradTile::of(call, (op, regions)).queries, TILE];
    BlockMask::of(call, (mask, captures), (tile, Lists::OfKeys { least })).map(Some)
}

/// The kernel and what rounds its sums, specialised.
fn source(
    call: &KernelCall,
    (op, regions): (&AttentionGrad, &[Graph]),
) -> Result<KernelSource, Refusal> {
    let (tile, dtype) = (GradTile::of(call, (op, regions)), call.operands[0].ty.dtype);
    let (widths, queries) = (tile.widths, tile.queries);
    let (keys, rest) = (call.operands[1].ty.sizes()[2], &call.operands[6..]);
    let (_, captures) = op.attention.seed_and_captures(rest);
    let mask = find_mask(regions).cloned();
    let mut functions = region::print(mask.as_slice(), (&op.attention, rest), dtype)?;
    functions += &dropout::print(&op.attention, rest, keys);
    if let Some(slopes) = slopes::of(regions) {
        functions += &slopes::print_scored(&slopes, captures, dtype)?;
    }
    let mut text = format!(
        "constexpr int QUERY_STAGES = {QUERY_STAGES}, BLOCK_QUERIES = {queries};\n{}{}",
        wgmma::print("wgmma", queries, [dtype; 2], [true; 2]),
        wgmma::print("wgmma_of_columns", tile.sum_queries(), [dtype; 2], [false, true]),
    );
    let [d, values] = widths;
    text += &wgmma::print_of_registers(d, dtype);
    if values != d {
        text += &wgmma::print_of_registers(values, dtype);
    }
    text += HEADS;
    // The number of tasks is no part of the text.
    text += &block_mask(call, (op, regions), 1)?.map_or_else(String::new, BlockMask::text);
    text += concat!(include_str!("grad_tasks.cuh"), include_str!("grad.cu"));
    Ok(specialised("attention_grad", of_numbers(call), (&op.attention, functions), &text))
}

/// Whether `grad.cu` takes a call: on Hopper, unless sums of wide heads do not fit in registers.
fn is_for_hopper(call: &KernelCall, architecture: Architecture) -> bool {
    let (_, widths) = of_numbers(call);
    architecture == Architecture::Sm90a && widths.iter().all(|&n| n <= 128)
}

/// `attention_grad` on tensor cores.
pub(in crate::kernels) const KERNEL: NamedKernel = NamedKernel {
    declines_regions,
    declines,
    needs: |call, op, regions, machine| {
        sources_of(call, op, regions)?;
        let op = (gradient_of(op), regions);
        Ok(match is_for_hopper(call, machine.architecture) {
            true => GradLayout::new(call, op, machine.multiprocessors as usize)?.staging.bytes,
            false => PortableLayout::new(call, op)?.staging.bytes,
        })
    },
    ..NamedKernel::new("attention_grad", Compile::Composite(compile), Sources::Of(sources_of))
};

/// The op of a call, which the table found by name.
fn gradient_of(op: &OpRef) -> &AttentionGrad {
    op.downcast().expect("the table is by name")
}

fn sources_of(call: &KernelCall, op: &OpRef, regions: &[Graph]) -> PrintedCall {
    let op = (gradient_of(op), regions);
    let of_captures = match slopes::of(regions) {
        Some(slopes) => captures::source(call, op, &slopes)?,
        None => None,
    };
    let portable = grad_portable::source(call, op)?;
    let mut all = match is_for_hopper(call, Architecture::Sm90a) {
        true => vec![
            (source(call, op)?, &[Architecture::Sm90a][..]),
            (portable, &[Architecture::Sm80, Architecture::Sm89, Architecture::Sm100a]),
        ],
        false => vec![(portable, &Architecture::DECLARED[..])],
    };
    all.extend(of_captures.map(|source| (source, &Architecture::DECLARED[..])));
    Ok(all)
}

/// Places of all tensors and sums, before any device has seen the call.
struct GradLayout {
    staging: Staging<TransferShape>,
    /// q, dout, k, v, dk, dv, dq: where the kernels find each, and the view that it has there.
    homes: Vec<(Home, View)>,
    /// Tasks of a tile of keys.
    splits: usize,
    /// Offsets into the scratch: sums of dq, parts of dk and dv.
    sums: [usize; 2],
    /// The block masks, and their offset.
    mask: (Option<BlockMask>, usize),
    of_captures: Option<CapturePlaces>,
}

impl GradLayout {
    fn new(
        call: &KernelCall,
        op: (&AttentionGrad, &[Graph]),
        multiprocessors: usize,
    ) -> Result<Self, Refusal> {
        let [q, k, v, _, dout] = std::array::from_fn(|i| &call.operands[i]);
        let mut staging = Staging::new();
        let mut homes = Vec::new();
        for operand in [q, dout, k, v] {
            homes.push(staging.operand(operand)?);
        }
        for (result, like) in [(1, k), (2, v), (0, q)] {
            homes.push(staging.result(call.results[result].as_ref(), like)?);
        }
        let of_captures = captures::places(call, op, &mut staging)?;
        let tile = GradTile::of(call, op);
        let splits = splits(op.0, call, tile.queries, multiprocessors);
        let parts = match splits {
            1 => 0,
            _ => tiles(call) * splits * TILE * (tile.widths[0] + tile.widths[1]),
        };
        let sums = [blocks(call, tile) * CONSUMERS * tile.sum_bytes(), parts * 4];
        let sums = sums.map(|bytes| staging.room(bytes));
        let mask = block_mask(call, op, splits)?;
        let mask = (mask, staging.room(mask.map_or(0, BlockMask::scratch_bytes)));
        Ok(Self { staging, homes, splits, sums, mask, of_captures })
    }
}

/// Tiles of keys of all heads.
fn tiles(call: &KernelCall) -> usize {
    let sizes = call.operands[1].ty.sizes();
    sizes[0] * sizes[1] * sizes[2].div_ceil(TILE)
}

/// Blocks of queries of all heads.
fn blocks(call: &KernelCall, tile: GradTile) -> usize {
    let sizes = call.operands[0].ty.sizes();
    sizes[0] * sizes[1] * sizes[2].div_ceil(tile.queries)
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

struct CompiledAttentionGrad {
    kernel: Entry,
    round: Entry,
    /// Tensor maps of all homes but the last.
    maps: Maps,
    /// q, dout, k, v, dk, dv, dq.
    homes: [Home; 7],
    /// The log-sum-exp and delta.
    rows: [ViewStart; 2],
    /// Offsets into the scratch: sums of dq, parts of dk and dv.
    sums: [usize; 2],
    /// Counters of taken tasks, and of the tiles in each block of sums. Each launch zeroes them.
    counters: DeviceBytes,
    shape: AttentionShape,
    grad: Grad,
    /// The block masks, and their offset into the scratch.
    mask: Option<(CompiledBlockMask, usize)>,
    captures: Vec<SlotId>,
    of_captures: Option<Captures>,
    staging: Staging<Transfer>,
}

/// Tasks of a tile of keys, so that few tiles still fill the multiprocessors. No task is empty.
fn splits(op: &AttentionGrad, call: &KernelCall, block: usize, multiprocessors: usize) -> usize {
    let [of_queries, of_keys] = [0, 1].map(|i| call.operands[i].ty.sizes());
    let (queries, keys, group) = (of_queries[2], of_keys[2], of_queries[1] / of_keys[1]);
    let (tiles, blocks) = (keys.div_ceil(TILE), queries.div_ceil(block));
    let begin = match op.attention.mask {
        Mask::Causal => ((tiles - 1) * TILE + queries).saturating_sub(keys) / block,
        Mask::Full => 0,
    };
    let (most, least) = (group * blocks, group * (blocks - begin));
    let wanted = multiprocessors / (of_keys[0] * of_keys[1] * tiles);
    wanted.min(most / FEWEST_STEPS).clamp(1, least.max(1))
}

fn compile(site: &Site<'_>, call: &KernelCall, op: &OpRef, regions: &[Graph]) -> Launched {
    let op = (gradient_of(op), regions);
    if !is_for_hopper(call, site.device.architecture()) {
        return grad_portable::compile(site, call, op);
    }
    let multiprocessors = site.device.properties().multiprocessors as usize;
    let GradLayout { staging, homes, splits, sums, mask, of_captures } =
        GradLayout::new(call, op, multiprocessors)?;
    let [q, k, _, lse, _, delta] = std::array::from_fn(|i| &call.operands[i]);
    let (homes, views): (Vec<Home>, Vec<View>) = homes.into_iter().unzip();
    let read = [&views[0], &views[2], &views[3], &views[1]];
    let of_captures = Captures::of_call(site, (call, of_captures), op, read)?;
    let (sizes, shared) = (q.ty.sizes(), k.ty.sizes());
    let ([batch, heads, queries], [key_heads, keys]) =
        ([sizes[0], sizes[1], sizes[2]], [shared[1], shared[2]]);
    let strides = |view: &View| -> [i64; 3] { std::array::from_fn(|d| view.strides[d]) };
    let shape = AttentionShape {
        heads: key_heads as i32,
        group: (heads / key_heads) as i32,
        matrices: (batch * key_heads) as i32,
        together: bunch(batch * key_heads, heads_at_once(queries)),
        queries: queries as i32,
        keys: keys as i32,
        q: std::array::from_fn(|d| views[6].strides[d]),
        lse: strides(lse),
        factor: op.0.attention.factor(sizes[3]),
        ..AttentionShape::default()
    };
    let tile = GradTile::of(call, op);
    let (widths, rows) = (tile.widths, tile.queries);
    let (tiles, blocks) = (tiles(call), blocks(call, tile));
    let tasks = tiles * splits;
    let counters = DeviceBytes::new(site.device, 4 * (1 + blocks * CONSUMERS))?;
    counters.fill(0)?;
    let source = source(call, op)?;
    let captures = call.operands.len() - 6;
    let compiled = |mask| CompiledBlockMask::new(site, (mask, shape), &source, captures);
    let mask = match mask {
        (Some(form), offset) => Some((compiled(form)?, offset)),
        (None, _) => None,
    };
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
    Ok(Box::new(CompiledAttentionGrad {
        kernel: entry(
            "attention_grad",
            tasks.min(multiprocessors),
            (CONSUMERS + 1) * 128,
            tile.shared_bytes(),
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
        rows: [lse, delta].map(ViewStart::new),
        sums,
        counters,
        shape,
        mask,
        captures: call.operands[6..].iter().map(|view| view.slot).collect(),
        of_captures,
        staging: staging.load(site.device)?,
    }))
}

impl Launch for CompiledAttentionGrad {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let scratch = |offset: usize| addresses.workspace() + offset as u64;
        // SAFETY: the plan gives the views and the scratch of this call.
        unsafe { self.staging.fill(stream, addresses)? };
        let homes: Vec<CUdeviceptr> = self.homes.iter().map(|home| home.of(addresses)).collect();
        let [boxed @ .., dq] = &homes[..] else { unreachable!("there are seven homes") };
        let mut maps = self.maps.at(boxed)?;
        let (mut rows, mut outputs) =
            (self.rows.map(|place| place.of(addresses)), [*dq, boxed[4], boxed[5]]);
        let mut buffers = [scratch(self.sums[0]), scratch(self.sums[1]), self.counters.address()];
        let (mut shape, mut grad) = ([self.shape], [self.grad]);
        let mut captures: Vec<u64> = self.captures.iter().map(|&slot| addresses.of(slot)).collect();
        let made = self.mask.as_ref();
        let made = made.map(|(mask, offset)| mask.make(stream, scratch(*offset), &captures));
        let mut mask: Vec<MaskGrid> = made.transpose()?.into_iter().collect();
        let mut parameters: Vec<*mut c_void> =
            pointers(&mut maps).chain(pointers(&mut rows)).chain(pointers(&mut buffers)).collect();
        let forms = pointers(&mut shape).chain(pointers(&mut grad)).chain(pointers(&mut mask));
        let forms: Vec<*mut c_void> = forms.collect();
        parameters.extend(&forms);
        parameters.extend(pointers(&mut captures));
        // SAFETY: the parameters are those of the kernel. Its copies keep to the maps, its reads to
        // the rows of the shape, its sums to the scratch.
        unsafe { self.kernel.launch(stream, &mut parameters)? };
        let mut parameters: Vec<*mut c_void> =
            pointers(&mut buffers).chain(pointers(&mut outputs)).collect();
        parameters.extend(&forms);
        // SAFETY: the parameters are those of the kernel. It reads the sums and partials of the
        // scratch, and its stores keep to the rows of the shape.
        unsafe { self.round.launch(stream, &mut parameters)? };
        if let Some(of_captures) = &self.of_captures {
            let operands = [homes[0], homes[2], homes[3], homes[1], rows[0], rows[1]];
            // SAFETY: the addresses are those of the operands, captures and results of this call.
            unsafe { of_captures.launch(stream, addresses, (operands, &captures))? };
        }
        // SAFETY: as above.
        unsafe { self.staging.empty(stream, addresses) }
    }

    fn workspace_bytes(&self) -> usize {
        self.staging.bytes
    }
}
