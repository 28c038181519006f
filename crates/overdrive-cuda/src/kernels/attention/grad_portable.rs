//! Gradients of attention on every GPU's tensor cores, and for wide heads: the launches of
//! `grad_portable.cu`.
//!
//! Invariants: no scratch but copies of operands that lie otherwise; every launch gives the same
//! bits.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::Graph;
use overdrive_ir::ops::AttentionGrad;
use overdrive_ir::ops::attention::find_mask;
use overdrive_ir::plan::{KernelCall, SlotId, View};

use super::call::{FRAGMENTS, of_numbers, specialised};
use super::captures::{self, CapturePlaces, Captures};
use super::homes::{Home, Staging};
use super::shape::{AttentionShape, together};
use super::{dropout, region, slopes};
use crate::Error;
use crate::compiler::KernelSource;
use crate::entry::{Entry, pointers};
use crate::kernels::line::Launched;
use crate::kernels::nest::ViewStart;
use crate::kernels::transfer::{Transfer, TransferShape};
use crate::launch::{Addresses, Launch, Refusal, Site};

/// Rows of a task: `OWN` of `grad_portable.cu`.
const OWN: usize = 64;
/// Rows of a block.
const OTHER: usize = 32;
/// Threads of a block of the launch.
const THREADS: u32 = 128;
/// Channels of q and v together, beyond which the sums of dk and dv do not fit into registers.
const BOTH: usize = 256;

/// Elements behind each row of channels: `SKEW` of fragments.cuh.
const SKEW: usize = 8;

/// Bytes of shared memory of so many blocks beside the own rows.
fn shared_bytes([d, values]: [usize; 2], buffers: usize) -> usize {
    (OWN + buffers * OTHER) * (d + values + 2 * SKEW) * 2
}

/// Blocks in shared memory together, of the 99 KiB that a launch has on every architecture.
fn buffers(widths: [usize; 2]) -> usize {
    if shared_bytes(widths, 2) <= 99 << 10 { 2 } else { 1 }
}

/// A walk over all pairs, and the sums that it makes.
#[derive(Clone, Copy, Debug)]
struct Walk {
    name: &'static str,
    of_keys: bool,
    /// Sums of dq or dk, and of dv.
    sums: [bool; 2],
}

impl Walk {
    /// Those that give the wanted ones of dq, dk and dv.
    fn all([dq, dk, dv]: [bool; 3], widths: [usize; 2]) -> Vec<Self> {
        let of_keys = |name, sums| Self { name, of_keys: true, sums };
        let mut walks = Vec::new();
        if dq {
            let name = "attention_grad_queries";
            walks.push(Self { name, of_keys: false, sums: [true, false] });
        }
        if dk && dv && widths[0] + widths[1] <= BOTH {
            walks.push(of_keys("attention_grad_keys_and_values", [true, true]));
            return walks;
        }
        if dk {
            walks.push(of_keys("attention_grad_keys", [true, false]));
        }
        if dv {
            walks.push(of_keys("attention_grad_values", [false, true]));
        }
        walks
    }

    /// The kernel.
    fn text(self) -> String {
        let Self { name, of_keys, sums: [wide, values] } = self;
        format!(
            "extern \"C\" __global__ void __launch_bounds__({THREADS})
    {name}(const Element* q, const Element* k, const Element* v, const Element* dout,
        const f32* lse, const f32* delta, Element* wide, Element* values,
        const __grid_constant__ AttentionShape s, const __grid_constant__ GradRows g CAPTURES) {{
    after_previous();
    gradients<{of_keys}, {wide}, {values}>(q, k, v, dout, lse, delta, wide, values, s, g CAPTURED);
}}
"
        )
    }
}

/// Which of dq, dk and dv somebody reads.
fn wanted(call: &KernelCall) -> [bool; 3] {
    [0, 1, 2].map(|i| call.results[i].is_some())
}

/// The kernels of a call, specialised.
pub(super) fn source(
    call: &KernelCall,
    (op, regions): (&AttentionGrad, &[Graph]),
) -> Result<KernelSource, Refusal> {
    let (dtype, widths) = of_numbers(call);
    let (keys, rest) = (call.operands[1].ty.sizes()[2], &call.operands[6..]);
    let (_, captures) = op.attention.seed_and_captures(rest);
    let mask = find_mask(regions).cloned();
    let mut functions = region::print(mask.as_slice(), (&op.attention, rest), dtype)?;
    functions += &dropout::print(&op.attention, rest, keys);
    if let Some(slopes) = slopes::of(regions) {
        functions += &slopes::print_scored(&slopes, captures, dtype)?;
    }
    let buffers = buffers(widths);
    let mut text = format!("constexpr int OTHER = {OTHER}, BUFFERS = {buffers};\n{FRAGMENTS}");
    text += include_str!("grad_portable.cu");
    for walk in Walk::all(wanted(call), widths) {
        text += &walk.text();
    }
    Ok(specialised("attention_grad_portable", (dtype, widths), (&op.attention, functions), &text))
}

/// Places of all tensors, before any device has seen the call.
pub(super) struct PortableLayout {
    pub(super) staging: Staging<TransferShape>,
    /// q, k, v, dout, and dq, dk, dv, with the views that they have there.
    homes: Vec<(Home, View)>,
    of_captures: Option<CapturePlaces>,
}

impl PortableLayout {
    pub(super) fn new(call: &KernelCall, op: (&AttentionGrad, &[Graph])) -> Result<Self, Refusal> {
        let mut staging = Staging::new();
        let [q, k, v, _, dout] = std::array::from_fn(|i| &call.operands[i]);
        let mut homes = Vec::new();
        for operand in [q, k, v, dout] {
            homes.push(staging.operand(operand)?);
        }
        for (result, like) in call.results.iter().zip([q, k, v]) {
            // No kernel writes what nobody reads.
            homes.push(match result {
                Some(view) => staging.result(Some(view), like)?,
                None => (Home::Scratch(0), like.clone()),
            });
        }
        let of_captures = captures::places(call, op, &mut staging)?;
        Ok(Self { staging, homes, of_captures })
    }
}

/// `GradRows` of `grad_portable.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct GradRows {
    delta: [i64; 3],
    dq: [i64; 3],
    dk: [i64; 3],
    dv: [i64; 3],
}

struct CompiledGrad {
    walks: Vec<(Entry, Walk, AttentionShape)>,
    rows: GradRows,
    /// q, k, v, dout, dq, dk, dv.
    homes: Vec<Home>,
    /// The log-sum-exp and delta.
    sums: [ViewStart; 2],
    captures: Vec<SlotId>,
    of_captures: Option<Captures>,
    staging: Staging<Transfer>,
}

pub(super) fn compile(
    site: &Site<'_>,
    call: &KernelCall,
    op: (&AttentionGrad, &[Graph]),
) -> Launched {
    let PortableLayout { staging, homes, of_captures } = PortableLayout::new(call, op)?;
    let (homes, views): (Vec<Home>, Vec<View>) = homes.into_iter().unzip();
    let read = [&views[0], &views[1], &views[2], &views[3]];
    let of_captures = Captures::of_call(site, (call, of_captures), op, read)?;
    let three = |view: &View| -> [i64; 3] { std::array::from_fn(|d| view.strides[d]) };
    let four = |view: &View| -> [i64; 4] { std::array::from_fn(|d| view.strides[d]) };
    let (sizes, shared) = (views[0].ty.sizes(), views[1].ty.sizes());
    let ([batch, heads, queries], [key_heads, keys]) =
        ([sizes[0], sizes[1], sizes[2]], [shared[1], shared[2]]);
    let (_, widths) = of_numbers(call);
    let row_bytes = 2 * (widths[0] + widths[1]);
    let shape_of = |walk: Walk| {
        let group = heads / key_heads;
        let (matrices, read) = match walk.of_keys {
            true => (batch * key_heads, group * queries),
            false => (batch * heads, keys),
        };
        AttentionShape {
            heads: heads as i32,
            group: group as i32,
            matrices: matrices as i32,
            together: together(matrices, read * row_bytes),
            queries: queries as i32,
            keys: keys as i32,
            q: four(&views[0]),
            k: four(&views[1]),
            v: four(&views[2]),
            out: four(&views[3]),
            lse: three(&call.operands[3]),
            factor: op.0.attention.factor(sizes[3]),
        }
    };
    let source = source(call, op)?;
    let load = |walk: Walk| {
        let shape = shape_of(walk);
        let rows = if walk.of_keys { keys } else { queries };
        let config = LaunchConfig {
            grid_dim: ((shape.matrices as usize * rows.div_ceil(OWN)) as u32, 1, 1),
            block_dim: (THREADS, 1, 1),
            shared_mem_bytes: shared_bytes(widths, buffers(widths)) as u32,
        };
        Ok((Entry::new(site.device, (&source, walk.name), config)?, walk, shape))
    };
    let walks = Walk::all(wanted(call), widths).into_iter().map(load);
    Ok(Box::new(CompiledGrad {
        walks: walks.collect::<Result<_, Error>>()?,
        rows: GradRows {
            delta: three(&call.operands[5]),
            dq: three(&views[4]),
            dk: three(&views[5]),
            dv: three(&views[6]),
        },
        homes,
        sums: [3, 5].map(|i| ViewStart::new(&call.operands[i])),
        captures: call.operands[6..].iter().map(|view| view.slot).collect(),
        of_captures,
        staging: staging.load(site.device)?,
    }))
}

impl Launch for CompiledGrad {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        // SAFETY: the plan gives the views and the scratch of this call.
        unsafe { self.staging.fill(stream, addresses)? };
        let homes: Vec<u64> = self.homes.iter().map(|home| home.of(addresses)).collect();
        let sums = self.sums.map(|place| place.of(addresses));
        let mut captures: Vec<u64> = self.captures.iter().map(|&slot| addresses.of(slot)).collect();
        for (entry, walk, shape) in &self.walks {
            let wide = homes[if walk.of_keys { 5 } else { 4 }];
            let mut places =
                [homes[0], homes[1], homes[2], homes[3], sums[0], sums[1], wide, homes[6]];
            let (mut shape, mut rows) = ([*shape], [self.rows]);
            let forms = pointers(&mut shape).chain(pointers(&mut rows));
            let mut parameters: Vec<*mut c_void> =
                pointers(&mut places).chain(forms).chain(pointers(&mut captures)).collect();
            // SAFETY: the parameters are those of the kernel. Its reads and stores keep to the rows
            // of the shape, and it stores no result that nobody reads.
            unsafe { entry.launch(stream, &mut parameters)? };
        }
        if let Some(of_captures) = &self.of_captures {
            let operands = [homes[0], homes[1], homes[2], homes[3], sums[0], sums[1]];
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
