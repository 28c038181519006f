//! Gradients of attention on Hopper's tensor cores: the forms that have a kernel, tiles, and the
//! two launches.
//!
//! Invariant: memory beside operands and results grows with T, never with T².

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaStream, LaunchConfig};
use overdrive_ir::ops::AttentionGrad;
use overdrive_ir::plan::{KernelCall, SlotId, View};
use overdrive_ir::{DType, Graph, OpRef, TensorType};

use super::call::{HEADS, Shape, specialised, together};
use super::hopper::{LINE, OWN, SLACK, boxes, is_copied};
use crate::Error;
use crate::compiler::{Architecture, Source};
use crate::entry::Entry;
use crate::kernels::nest::Place;
use crate::kernels::transfer::Transfer;
use crate::launch::{Addresses, Launch, Refusal, Site};
use crate::tensor_map::Maps;
use crate::wgmma;

/// Warpgroups that multiply.
const CONSUMERS: usize = 2;
/// Rows of queries, or of keys, that a block of the grid owns.
const TILE: usize = OWN * CONSUMERS;
/// Blocks of rows in flight.
const STAGES: usize = 3;
/// Fewest queries and keys: below, the expansion's matrices are small.
const FEWEST: usize = 64;
/// What the scratch of a step is aligned to.
const ALIGNMENT: usize = 256;

/// Why the op over operands of these types has no kernel; `None` where it has, and of other ops.
pub(in crate::kernels) fn declines(op: &OpRef, types: &[TensorType]) -> Option<String> {
    op.downcast::<AttentionGrad>()?;
    let (q, v) = (types.first()?, types.get(2)?);
    let (sizes, keys) = (q.sizes(), v.sizes()[2]);
    let is_typed = matches!(q.dtype, DType::F16 | DType::BF16);
    let fits = [sizes[3], v.sizes()[3]].iter().all(|&n| n % 16 == 0 && (16..=128).contains(&n));
    if !is_typed || !fits {
        let found = format!("heads of {} and {} channels in {}", sizes[3], v.sizes()[3], q.dtype);
        return Some(format!(
            "its kernel takes bf16 and f16 with heads of 16 to 128 channels in multiples of 16, \
             not {found}: scores are stored"
        ));
    }
    let [least, most] = [sizes[2].min(keys), sizes[2].max(keys)];
    let tasks = (sizes[0] * sizes[1]).saturating_mul(most.div_ceil(TILE));
    if least < FEWEST || most > 1 << 30 || tasks == 0 || tasks > i32::MAX as usize {
        return Some(format!(
            "its kernel takes from {FEWEST} queries and keys on, and what one launch has blocks \
             for, not {q} with {keys} keys: scores are stored"
        ));
    }
    None
}

/// Queries of a step of the first kernel, and keys of one of the second, by registers: both sums of
/// keys, scores, dweights and what is rounded of them fit just so.
fn block(widths: [usize; 2]) -> [usize; 2] {
    if widths[0].max(widths[1]) <= 64 { [96, 128] } else { [64, 96] }
}

fn widths(call: &KernelCall) -> [usize; 2] {
    [0, 2].map(|i| call.operands[i].ty.sizes()[3])
}

/// Shared memory of a kernel whose steps have so many rows.
fn shared_bytes(widths: [usize; 2], rows: usize) -> usize {
    let line: usize = widths.map(|n| (n * 2).div_ceil(LINE) * LINE).iter().sum();
    SLACK + (TILE + STAGES * rows) * line
}

/// Both kernels, specialised.
fn source(call: &KernelCall, (op, regions): (&AttentionGrad, &[Graph])) -> Result<Source, Refusal> {
    let (widths, dtype) = (widths(call), call.operands[0].ty.dtype);
    let [queries, keys] = block(widths);
    let mut text = format!(
        "constexpr int CONSUMERS = {CONSUMERS}, STAGES = {STAGES}, BLOCK_QUERIES = {queries}, \
         BLOCK_KEYS = {keys};\n"
    );
    for columns in [queries, keys] {
        text += &wgmma::print(columns, [dtype; 2], [true; 2]);
    }
    let [d, values] = widths;
    text += &wgmma::print_of_registers(d, dtype);
    if values != d {
        text += &wgmma::print_of_registers(values, dtype);
    }
    text += HEADS;
    text += include_str!("grad.cu");
    specialised("attention_grad", call, (&op.attention, regions, &call.operands[6..]), &text)
}

/// The source of a call, which is for Hopper alone.
pub(in crate::kernels) fn source_of(
    call: &KernelCall,
    op: (&AttentionGrad, &[Graph]),
) -> Result<(Source, &'static [Architecture]), Refusal> {
    Ok((source(call, op)?, &[Architecture::Sm90a]))
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
    fn take(&mut self, ty: &TensorType) -> usize {
        let offset = self.bytes;
        self.bytes += ty.bytes().next_multiple_of(ALIGNMENT);
        offset
    }

    /// Where an operand is read, and the view that it has there.
    fn operand(&mut self, site: &Site<'_>, view: &View) -> Result<(Home, View), Refusal> {
        if is_copied(view) {
            return Ok((Home::There(Place::new(view)), view.clone()));
        }
        let (offset, dense) = (self.take(&view.ty), View::row_major(view.slot, view.ty.clone()));
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
        let (offset, dense) = (self.take(&like.ty), View::row_major(like.slot, like.ty.clone()));
        if let Some(view) = view {
            let transfer = Transfer::new(site, &dense, view)?;
            self.after.push(Copy { transfer, view: Place::new(view), offset });
        }
        Ok((Home::Scratch(offset), dense))
    }
}

/// One of the two kernels.
struct Kernel {
    entry: Entry,
    maps: Maps,
    /// Which operands and results the maps are of.
    homes: Vec<usize>,
    shape: Shape,
}

struct Compiled {
    /// Over keys, then over queries.
    kernels: [Kernel; 2],
    /// q, dout, k, v, dk, dv, dq.
    homes: [Home; 7],
    /// The log-sum-exp and delta.
    rows: [Place; 2],
    delta: [i64; 3],
    captures: Vec<SlotId>,
    staging: Staging,
}

/// Compiles the step.
pub(in crate::kernels) fn compile(
    site: &Site<'_>,
    call: &KernelCall,
    op: (&AttentionGrad, &[Graph]),
) -> Result<Box<dyn Launch>, Refusal> {
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
    let group = heads / key_heads;
    let strides = |view: &View| -> [i64; 3] { std::array::from_fn(|d| view.strides[d]) };
    let shape = |heads: usize, head_rows: usize| Shape {
        heads: heads as i32,
        group: group as i32,
        matrices: (batch * heads) as i32,
        together: together(
            batch * heads,
            head_rows * (sizes[3] + v.ty.sizes()[3]) * q.ty.dtype.bits() / 8,
        ),
        queries: queries as i32,
        keys: keys as i32,
        lse: strides(lse),
        factor: op.0.attention.factor(sizes[3]),
        ..Shape::default()
    };
    let (source, [block_queries, block_keys]) = (source(call, op)?, block(widths(call)));
    let kernel = |name: &str, tasks: usize, rows: usize, shape: Shape, boxed: &[(usize, usize)]| {
        let config = LaunchConfig {
            grid_dim: (tasks as u32, 1, 1),
            block_dim: ((CONSUMERS as u32 + 1) * 128, 1, 1),
            shared_mem_bytes: shared_bytes(widths(call), rows) as u32,
        };
        Ok::<_, Refusal>(Kernel {
            entry: Entry::new(site.device, (&source, name), config)?,
            maps: Maps::new(boxed.iter().map(|&(i, rows)| boxes(&views[i], rows)).collect()),
            homes: boxed.iter().map(|&(i, _)| i).collect(),
            shape,
        })
    };
    let over_keys = kernel(
        "attention_grad_keys",
        batch * key_heads * keys.div_ceil(TILE),
        block_queries,
        shape(key_heads, group * queries),
        &[(0, block_queries), (1, block_queries), (2, TILE), (3, TILE), (4, OWN), (5, OWN)],
    )?;
    let over_queries = kernel(
        "attention_grad_queries",
        batch * heads * queries.div_ceil(TILE),
        block_keys,
        shape(heads, keys),
        &[(0, TILE), (1, TILE), (2, block_keys), (3, block_keys), (6, OWN)],
    )?;
    Ok(Box::new(Compiled {
        kernels: [over_keys, over_queries],
        homes: homes.try_into().unwrap_or_else(|_| unreachable!("seven views were made")),
        rows: [lse, delta].map(Place::new),
        delta: strides(delta),
        captures: call.operands[6..].iter().map(|view| view.slot).collect(),
        staging,
    }))
}

impl Launch for Compiled {
    fn launch(&self, stream: &Arc<CudaStream>, addresses: &Addresses) -> Result<(), Error> {
        let scratch = |offset: usize| addresses.workspace() + offset as u64;
        for copy in &self.staging.before {
            let ends = [copy.view.of(addresses), scratch(copy.offset)];
            // SAFETY: the addresses are those of the view and of scratch for all of it.
            unsafe { copy.transfer.run(stream, ends)? };
        }
        for kernel in &self.kernels {
            let places: Vec<CUdeviceptr> =
                kernel.homes.iter().map(|&home| self.homes[home].of(addresses)).collect();
            let mut maps = kernel.maps.at(&places)?;
            let mut rows = self.rows.map(|place| place.of(addresses));
            let (mut shape, mut delta) = (kernel.shape, self.delta);
            let mut captures: Vec<u64> =
                self.captures.iter().map(|&slot| addresses.of(slot)).collect();
            let mut parameters: Vec<*mut c_void> =
                maps.iter_mut().map(|map| (&raw mut *map).cast()).collect();
            parameters.extend(rows.iter_mut().map(|row| (row as *mut u64).cast::<c_void>()));
            parameters.push((&raw mut shape).cast());
            parameters.push((&raw mut delta).cast());
            parameters
                .extend(captures.iter_mut().map(|capture| (capture as *mut u64).cast::<c_void>()));
            // SAFETY: the parameters are those of the kernel, whose copies keep to the maps and
            // whose reads keep to the rows of the shape.
            unsafe { kernel.entry.launch(stream, &mut parameters)? };
        }
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
