//! Gradients of the captured tensors that a score function reads: the launches of `captures.cu`.
//!
//! Invariants: scratch is 8 bytes for each element of a capture; every launch gives the same bits.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::Graph;
use overdrive_ir::ops::AttentionGrad;
use overdrive_ir::ops::attention::{find_mask, find_score};
use overdrive_ir::ops::attention_grad::Slopes;
use overdrive_ir::plan::{KernelCall, View};

use super::call::{FRAGMENTS, of_numbers, specialised};
use super::homes::{Home, Staging};
use super::shape::{AttentionShape, bunch};
use super::{dropout, region, slopes};
use crate::Error;
use crate::compiler::KernelSource;
use crate::entry::{Entry, pointer};
use crate::kernels::transfer::TransferShape;
use crate::launch::{Addresses, Refusal, Site};

/// Queries of a block: `QUERIES` of `captures.cu`.
const QUERIES: usize = 64;
/// Threads of a block that walks over pairs, and of one that walks over sums.
const THREADS: [u32; 2] = [128, 256];
/// Bits of what terms may add up to.
const BITS: u32 = 62;
/// Most bits of a term: more than f32 has, so that small terms keep theirs.
const TERM_BITS: u32 = 40;

/// A captured tensor whose gradient is wanted: which operand, its result and where its sums begin.
pub(super) struct Wanted {
    capture: usize,
    pub(super) result: usize,
    base: usize,
    elements: usize,
}

/// Those of a call.
fn wanted(call: &KernelCall, op: &AttentionGrad) -> Vec<Wanted> {
    let (_, captures) = op.attention.seed_and_captures(&call.operands[6..]);
    let captures = captures.iter().enumerate();
    let floats = captures.filter(|(_, view)| view.ty.dtype.is_float());
    let (mut wanted, mut base) = (Vec::new(), 0);
    for ((capture, view), result) in floats.zip(3..) {
        if call.results.get(result).is_some_and(Option::is_some) {
            let elements = view.ty.elements();
            wanted.push(Wanted { capture, result, base, elements });
            base += elements;
        }
    }
    wanted
}

/// Places of dense gradients, and the offset of their sums in the scratch.
pub(super) type CapturePlaces = (Vec<Home>, usize);

/// Those of the gradients of captures that are wanted; none if there are none.
pub(super) fn places(
    call: &KernelCall,
    (op, regions): (&AttentionGrad, &[Graph]),
    staging: &mut Staging<TransferShape>,
) -> Result<Option<CapturePlaces>, Refusal> {
    let wanted = if find_score(regions).is_some() { wanted(call, op) } else { Vec::new() };
    if wanted.is_empty() {
        return Ok(None);
    }
    let views = wanted.iter().filter_map(|one| call.results[one.result].as_ref());
    let results = views.map(|view| staging.dense_result(view)).collect::<Result<_, _>>()?;
    Ok(Some((results, staging.room(8 * words(&wanted)))))
}

/// Numbers of 8 bytes of their scratch: the sums, then the largest term of each.
fn words(wanted: &[Wanted]) -> usize {
    wanted.iter().map(|one| one.elements).sum::<usize>() + wanted.len().div_ceil(2)
}

/// Keys of a step, by registers: queries and dout stay in them, beside scores and dweights. With
/// wide heads, by shared memory.
fn keys([d, values]: [usize; 2]) -> usize {
    if d + values <= 256 { 32 } else { 16 }
}

/// The kernels, specialised; `None` where no gradient of a capture is wanted.
pub(super) fn source(
    call: &KernelCall,
    (op, regions): (&AttentionGrad, &[Graph]),
    slopes: &Slopes,
) -> Result<Option<KernelSource>, Refusal> {
    let (wanted, rest) = (wanted(call, op), &call.operands[6..]);
    let (_, captures) = op.attention.seed_and_captures(rest);
    if wanted.is_empty() {
        return Ok(None);
    }
    let mut bases = vec![None; captures.len()];
    wanted.iter().for_each(|one| bases[one.capture] = Some(one.base));
    let (dtype, mask) = (call.operands[0].ty.dtype, find_mask(regions).cloned());
    let mut functions = region::print(mask.as_slice(), (&op.attention, rest), dtype)?;
    functions += &dropout::print(&op.attention, rest, call.operands[1].ty.sizes()[2]);
    functions += &slopes::print_reads(slopes, (captures, &bases), dtype)?;
    let keys = keys(of_numbers(call).1);
    let mut text = format!("constexpr int KEYS = {keys};\n{FRAGMENTS}");
    text += include_str!("captures.cu");
    for (i, one) in wanted.iter().enumerate() {
        let dtype = call.results[one.result].as_ref().map_or(dtype, |view| view.ty.dtype);
        text += &format!(
            "extern \"C\" __global__ void __launch_bounds__({}) attention_captures_round{i}(const \
             i64* sums, const u32* largest, {dtype}* to, i64 count, i32 bits) {{
    round_captured(sums, largest, to, count, bits);
}}
",
            THREADS[1]
        );
    }
    Ok(Some(specialised("attention_captures", of_numbers(call), (&op.attention, functions), &text)))
}

/// `CaptureRows` of `captures.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct CaptureRows {
    delta: [i64; 3],
    bits: i32,
}

/// The compiled launches.
pub(super) struct Captures {
    begin: Entry,
    largest: Entry,
    add: Entry,
    rounds: Vec<(Entry, Wanted)>,
    shape: AttentionShape,
    rows: CaptureRows,
    /// Sums of all captures, 8 bytes each, then the largest term of each.
    elements: usize,
    /// The offset of these in the scratch.
    sums: usize,
    /// The dense gradients of those that are wanted.
    results: Vec<Home>,
}

impl Captures {
    /// Compiles those of a call at their [`places`], if some are wanted.
    pub(super) fn of_call(
        site: &Site<'_>,
        (call, places): (&KernelCall, Option<CapturePlaces>),
        op: (&AttentionGrad, &[Graph]),
        views: [&View; 4],
    ) -> Result<Option<Self>, Refusal> {
        let Some(places) = places else { return Ok(None) };
        let slopes = slopes::of(op.1).expect("only a score function reads captures");
        let source = source(call, op, &slopes)?.expect("gradients of captures are wanted");
        Self::new(site, (call, op.0, places), views, &source).map(Some)
    }

    /// Compiles the source of a call whose q, k, v and dout are read through these views.
    fn new(
        site: &Site<'_>,
        (call, op, (results, sums)): (&KernelCall, &AttentionGrad, CapturePlaces),
        views: [&View; 4],
        source: &KernelSource,
    ) -> Result<Self, Refusal> {
        let [q, k, v, dout] = views;
        let (sizes, keys) = (q.ty.sizes(), k.ty.sizes()[2]);
        let matrices = sizes[0] * sizes[1];
        let four = |view: &View| -> [i64; 4] { std::array::from_fn(|d| view.strides[d]) };
        let three = |view: &View| -> [i64; 3] { std::array::from_fn(|d| view.strides[d]) };
        let shape = AttentionShape {
            heads: sizes[1] as i32,
            group: (sizes[1] / k.ty.sizes()[1]) as i32,
            matrices: matrices as i32,
            together: bunch(matrices, matrices),
            queries: sizes[2] as i32,
            keys: keys as i32,
            q: four(q),
            k: four(k),
            v: four(v),
            out: four(dout),
            lse: three(&call.operands[3]),
            factor: op.attention.factor(sizes[3]),
        };
        let pairs = matrices.saturating_mul(sizes[2]).saturating_mul(keys);
        let bits = BITS.saturating_sub(pairs.next_power_of_two().ilog2()).clamp(1, TERM_BITS);
        let entry = |name: &str, blocks: usize, [threads, bytes]: [usize; 2]| {
            let config = LaunchConfig {
                grid_dim: (blocks.max(1) as u32, 1, 1),
                block_dim: (threads as u32, 1, 1),
                shared_mem_bytes: bytes as u32,
            };
            Entry::new(site.device, (source, name), config)
        };
        let wanted = wanted(call, op);
        let elements = wanted.iter().map(|one| one.elements).sum();
        let most = 8 * site.device.properties().multiprocessors as usize;
        let [walkers, adders] = THREADS.map(|threads| threads as usize);
        let over = |count: usize| count.div_ceil(adders).min(most);
        let widths = [sizes[3], v.ty.sizes()[3]];
        // `Queries` and two of `Block`.
        let rows = QUERIES + 2 * self::keys(widths);
        let walk = [walkers, rows * (widths[0] + widths[1] + 16) * 2];
        let tiles = shape.tasks(QUERIES);
        let begin = over(words(&wanted));
        let round = |(i, one): (usize, Wanted)| {
            let name = format!("attention_captures_round{i}");
            Ok((entry(&name, over(one.elements), [adders, 0])?, one))
        };
        Ok(Self {
            begin: entry("attention_captures_begin", begin, [adders, 0])?,
            largest: entry("attention_captures_largest", tiles, walk)?,
            add: entry("attention_captures_add", tiles, walk)?,
            rounds: wanted.into_iter().enumerate().map(round).collect::<Result<_, Error>>()?,
            shape,
            rows: CaptureRows { delta: three(&call.operands[5]), bits: bits as i32 },
            elements,
            sums,
            results,
        })
    }

    /// Enqueues all. The operands are q, k, v, dout, the log-sum-exp and delta.
    ///
    /// # Safety
    /// Each address is that of the whole operand or captured tensor. `addresses` are those of the
    /// call.
    pub(super) unsafe fn launch(
        &self,
        stream: &Arc<CudaStream>,
        addresses: &Addresses,
        (mut operands, captures): ([CUdeviceptr; 6], &[u64]),
    ) -> Result<(), Error> {
        let mut captures = captures.to_vec();
        let (mut shape, mut rows) = (self.shape, self.rows);
        let mut sums = addresses.workspace() + self.sums as u64;
        let mut largest = sums + 8 * self.elements as u64;
        let mut words = (self.elements + self.rounds.len().div_ceil(2)) as i64;
        let begin = &mut [pointer(&mut sums), pointer(&mut words)];
        // SAFETY: the parameters are those of the kernel, and the scratch has `words` words.
        unsafe { self.begin.launch(stream, begin)? };
        let operands: Vec<*mut c_void> = operands.iter_mut().map(pointer).collect();
        let walked = [pointer(&mut shape), pointer(&mut rows)];
        let captures: Vec<*mut c_void> = captures.iter_mut().map(pointer).collect();
        let (add, most) = (pointer(&mut sums), pointer(&mut largest));
        let mut parameters = [&operands[..], &[most], &walked, &captures].concat();
        // SAFETY: the parameters are those of the kernel. Its reads keep to the rows of the shape
        // and to the captures.
        unsafe { self.largest.launch(stream, &mut parameters)? };
        let mut parameters = [&operands[..], &[add, most], &walked, &captures].concat();
        // SAFETY: the parameters are those of the kernel, and its sums are those of elements of
        // captures.
        unsafe { self.add.launch(stream, &mut parameters)? };
        for (i, ((round, one), to)) in self.rounds.iter().zip(&self.results).enumerate() {
            let to = to.of(addresses);
            let mut places = [sums + 8 * one.base as u64, largest + 4 * i as u64, to];
            let (mut count, mut bits) = (one.elements as i64, self.rows.bits);
            let mut parameters: Vec<*mut c_void> = places.iter_mut().map(pointer).collect();
            parameters.extend([pointer(&mut count), pointer(&mut bits)]);
            // SAFETY: the parameters are those of the kernel, and the result has `count` elements.
            unsafe { round.launch(stream, &mut parameters)? };
        }
        Ok(())
    }
}
