//! `float8_attention` on Hopper's tensor cores: the calls that `float8.cu` takes.

use overdrive_ir::ops::Float8Attention;
use overdrive_ir::ops::attention::find_mask;
use overdrive_ir::plan::{KernelCall, View};
use overdrive_ir::{DType, Decline, Graph, OpRef, Operation, TensorType};

use super::block_mask::{BlockMask, Lists};
use super::call::{HEADS, WALK, specialised};
use super::hopper::{LINE, SLACK, boxes};
use super::persistent::{OWN, PersistentAttention, Tasks};
use super::region;
use super::shape::{AttentionShape, together};
use crate::compiler::{Architecture, KernelSource};
use crate::kernels::line::{Compile, Launched, NamedKernel, PrintedCall, Sources};
use crate::kernels::nest::ViewStart;
use crate::launch::{Refusal, Site};
use crate::tensor_map::{Boxes, Extent};
use crate::wgmma;

/// Keys of a block: a line of values.
const KEYS: usize = LINE;
/// Warpgroups that multiply, of 64 queries each.
const CONSUMERS: usize = 2;
/// Blocks of keys, and of values, in flight.
const STAGES: usize = 4;
/// Tiles of queries in shared memory: the next arrives early.
const PLACES: usize = 2;
/// Lines of ones behind a block of values.
const ONES: usize = 8;

/// `float8_attention` with its score and mask functions.
pub(crate) const KERNEL: NamedKernel = NamedKernel {
    only: Some(Architecture::Sm90a),
    declines_regions: |_| None,
    declines,
    needs: |call, op, regions, _| {
        let op = (op_of(op), regions);
        source(call, op)?;
        Ok(block_mask(call, op)?.map_or(0, BlockMask::scratch_bytes))
    },
    ..NamedKernel::new("float8_attention", Compile::Composite(compile), Sources::Of(sources_of))
};

/// The op of a call, which the table found by name.
fn op_of(op: &OpRef) -> &Float8Attention {
    op.downcast().expect("the table is by name")
}

fn declines(op: &Operation, operands: &[TensorType]) -> Option<Decline> {
    let (op, [q, k, v, _, k_scale, ..]) = (op.composite::<Float8Attention>()?, operands) else {
        return None;
    };
    let ([q, k, v], blocks) = ([q, k, v].map(TensorType::sizes), k_scale.sizes()[2]);
    let (d, values, keys) = (q[3], v[2], k[2]);
    let reason = if !matches!(op.to, DType::F16 | DType::BF16) {
        format!("an output of {}", op.to)
    } else if d % 32 != 0 || d > LINE || values % 16 != 0 || values > LINE {
        format!("heads of {d} and {values} channels")
    } else if q.iter().chain(&k).chain(&v).any(|&size| size == 0) || keys % 16 != 0 {
        format!("{} queries and {keys} keys", q[2])
    } else if blocks > 1 && keys / blocks % KEYS != 0 {
        format!("scales of {} keys", keys / blocks)
    } else if op.attention.factor(d) <= 0.0 {
        format!("scores with the factor {}", op.attention.factor(d))
    } else {
        return None;
    };
    Some(Decline::Because(format!(
        "its kernel does not take {reason}; it takes an output of bf16 or f16, heads of at most \
         128 channels, in multiples of 32 (of values 16), keys in multiples of 16, scales of \
         multiples of 128 keys or of all, and a positive factor"
    )))
}

/// Whether TMA can copy boxes of a view: rows are dense, and all is aligned to 16 bytes.
fn is_copied(view: &View) -> bool {
    let lies = |(size, &stride): (usize, &i64)| {
        size == 1 || (stride > 0 && (stride as usize * view.ty.dtype.bits()).is_multiple_of(128))
    };
    view.strides[3] == 1
        && view.ty.sizes().into_iter().zip(&view.strides).take(3).all(lies)
        && ViewStart::new(view).is_aligned(16)
}

/// The block masks of a call.
fn block_mask(
    call: &KernelCall,
    (_, regions): (&Float8Attention, &[Graph]),
) -> Result<Option<BlockMask>, Refusal> {
    let Some(mask) = find_mask(regions) else { return Ok(None) };
    let captures = &call.operands[Float8Attention::OPERANDS..];
    let tile = [OWN * CONSUMERS, KEYS];
    BlockMask::of(call, (mask, captures), (tile, Lists::OfQueries)).map(Some)
}

/// The kernel of a call, specialised.
fn source(
    call: &KernelCall,
    (op, regions): (&Float8Attention, &[Graph]),
) -> Result<KernelSource, Refusal> {
    let out = call.results[0].as_ref();
    if !call.operands[..3].iter().chain(out).all(is_copied) || out.is_none() {
        return Err(Refusal::Unsupported(
            "attention of codes takes queries, keys, values and an output whose rows are dense \
             and aligned to 16 bytes; copy them"
                .to_owned(),
        ));
    }
    let [q, k, v] = [0, 1, 2].map(|i| call.operands[i].ty.sizes());
    let (d, values) = (q[3], v[2]);
    let mask = block_mask(call, (op, regions))?.map_or_else(String::new, BlockMask::text);
    let rest = &call.operands[Float8Attention::OPERANDS..];
    let functions = region::print(regions, (&op.attention, rest), op.to)?;
    let strides = |name: &str, scale: &View| {
        let [b, h, t] = [0, 1, 2].map(|d| scale.strides[d]);
        format!("constexpr i64 {name}_B = {b}, {name}_H = {h}, {name}_T = {t};\n")
    };
    let shared = k[2] / call.operands[4].ty.sizes()[2];
    let text = format!(
        "constexpr int KEYS = {KEYS}, CONSUMERS = {CONSUMERS}, STAGES = {STAGES}, PLACES = \
         {PLACES}, SCALE_KEYS = {shared};\n"
    ) + &["Q_SCALE", "K_SCALE", "V_SCALE"]
        .into_iter()
        .zip(&call.operands[3..])
        .map(|(name, scale)| strides(name, scale))
        .collect::<String>()
        + &wgmma::print("wgmma", KEYS, [DType::F8E4M3; 2], [true; 2])
        + &wgmma::print_of_registers(values + ONES, DType::F8E4M3)
        + HEADS
        + &mask
        + WALK
        + include_str!("float8.cu");
    let of = (op.to, [d, values]);
    Ok(specialised("float8_attention", of, (&op.attention, functions), &text))
}

/// The sources of the kernels that a call is compiled to, with their architectures.
fn sources_of(call: &KernelCall, op: &OpRef, regions: &[Graph]) -> PrintedCall {
    Ok(vec![(source(call, (op_of(op), regions))?, &[Architecture::Sm90a])])
}

/// Boxes of the keys of a block whose place among four is the same but for its last bit.
fn boxes_of_keys(view: &View) -> Boxes {
    let (sizes, strides) = (view.ty.sizes(), &view.strides);
    let extent = |d: usize| Extent::new(sizes[d], if sizes[d] == 1 { 16 } else { strides[d] });
    let extents = [
        Extent::new(sizes[3], 1),
        Extent::new(4, strides[2]),
        Extent::new(sizes[2] / 4, 4 * strides[2]),
        extent(1),
        extent(0),
    ];
    Boxes::new(view.ty.dtype, extents, [LINE, 2, KEYS / 4])
}

fn compile(site: &Site<'_>, call: &KernelCall, op: &OpRef, regions: &[Graph]) -> Launched {
    let op = (op_of(op), regions);
    let source = source(call, op)?;
    let [q, k, v] = [0, 1, 2].map(|i| &call.operands[i]);
    let out = call.results[0].as_ref().expect("its source has been printed");
    let (d, values, keys) = (q.ty.sizes()[3], v.ty.sizes()[2], k.ty.sizes()[2]);
    let shape = AttentionShape::of(call, op.0.attention.factor(d));
    let together = together(shape.matrices as usize, keys * (d + values));
    let shape = AttentionShape { together, ..shape };
    let tasks = shape.tasks(OWN * CONSUMERS);
    if tasks > i32::MAX as usize || keys.max(q.ty.sizes()[2]) > 1 << 30 {
        let found = format!("{} heads of {keys} keys", shape.matrices);
        return Err(Refusal::Unsupported(format!(
            "{found} are more than one launch takes; split the batch"
        )));
    }
    let query_bytes = PLACES * OWN * CONSUMERS * LINE * (values * 2).div_ceil(LINE);
    let key_bytes = STAGES * LINE * (KEYS + values + ONES);
    let tasks = Tasks {
        boxes: [boxes(q, OWN * CONSUMERS), boxes_of_keys(k), boxes(v, values), boxes(out, OWN)],
        own: Float8Attention::OPERANDS,
        consumers: CONSUMERS,
        shared_bytes: SLACK + query_bytes + key_bytes,
    };
    PersistentAttention::compile(site, call, tasks, (&source, shape, block_mask(call, op)?))
}
