//! The compiled step: which of the five kernels, with which tile, and its launch.

use cudarc::driver::LaunchConfig;
use overdrive_ir::ops::Attention;
use overdrive_ir::ops::attention::{Mask, find_mask, find_score, threshold};
use overdrive_ir::plan::{KernelCall, View};
use overdrive_ir::{DType, Decline, Graph, OpRef, Operation, TensorType};

use super::block_mask::{BlockMask, Lists};
use super::compiled::CompiledAttention;
use super::cut::{Cut, PAGES};
use super::decode_long::LongCut;
use super::shape::AttentionShape;
use super::{dropout, hopper, region};
use crate::compiler::{Architecture, KernelSource};
use crate::entry::Entry;
use crate::kernels::line::{Compile, Launched, NamedKernel, PrintedCall, Sources};
use crate::kernels::nest::ViewStart;
use crate::launch::{Refusal, Site};

/// Shared memory that a block may have on every architecture that we compile for.
const SHARED_BYTES: usize = 99 << 10;

/// A kernel with its tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Design {
    /// `hopper.cu`.
    Hopper(hopper::AttentionTile),
    /// `tensor.cu`: fragments of 16 queries for each warp, keys of a block, and blocks that are in
    /// shared memory together.
    Tensor { fragments: usize, keys: usize, buffers: usize },
    /// `decode.cu`.
    Decode(Cut),
    /// `decode_long.cu`.
    Long(LongCut),
    /// `tiled.cu`.
    Tiled { tile: usize },
}

impl Design {
    /// The best for a call on an architecture.
    fn of(
        call: &KernelCall,
        (attention, regions): (&Attention, &[Graph]),
        architecture: Architecture,
    ) -> Result<Self, Refusal> {
        let skips = attention.threshold.is_some();
        if let Some(cut) = LongCut::of_numbers(call, architecture).filter(|_| !skips) {
            return Ok(Self::Long(cut));
        }
        if let Some(cut) = Cut::of_numbers(call, architecture).filter(|_| !skips) {
            return Ok(Self::Decode(cut));
        }
        let has_regions = !regions.is_empty();
        let does = match (attention.dropout, find_score(regions)) {
            (Some(_), _) => hopper::Does::Dropout,
            (None, Some(_)) => hopper::Does::Score,
            (None, None) if has_regions && skips => hopper::Does::ThresholdAndMask,
            (None, None) if has_regions => hopper::Does::Mask,
            (None, None) if skips => hopper::Does::Threshold,
            (None, None) => hopper::Does::Plain,
        };
        // The maximum is taken before the factor, which must not turn the order around. Scores of a
        // function have no factor left, nor have those of `tensor.cu` beside a mask function.
        let is_positive = attention.factor(call.operands[0].ty.sizes()[3]) > 0.0;
        let has_own_blocks = skips && does == hopper::Does::Score;
        if let Some(tile) = hopper::AttentionTile::of(call, does).filter(|_| !has_own_blocks)
            && architecture == Architecture::Sm90a
            && (is_positive || find_score(regions).is_some())
        {
            return Ok(Self::Hopper(tile));
        }
        let [q, k, v] = [0, 1, 2].map(|i| &call.operands[i]);
        let (d, values) = (q.ty.sizes()[3], v.ty.sizes()[3]);
        let dense = |view: &View| {
            let outer = view.strides[..3].iter().all(|s| s % 8 == 0);
            outer && view.strides[3] == 1 && ViewStart::new(view).is_aligned(16)
        };
        let tensor = is_for_tensor_cores(q.ty.dtype, [d, values])
            && [q, k, v].into_iter().all(dense)
            && (is_positive || has_regions || skips);
        if tensor && skips {
            let fits = |buffers: &usize| {
                let design =
                    Self::Tensor { fragments: 1, keys: threshold::TILE[1], buffers: *buffers };
                block(design, [d, values], 4).1 <= SHARED_BYTES
            };
            let buffers = [2, 1].into_iter().find(fits).expect("heads of 128 channels fit");
            return Ok(Self::Tensor { fragments: 1, keys: threshold::TILE[1], buffers });
        }
        if skips {
            return Err(Refusal::Unsupported(
                "attention with a threshold takes queries, keys and values whose rows are dense \
                 and aligned to 16 bytes; copy them, or leave out the \
                 threshold"
                    .to_owned(),
            ));
        }
        if tensor {
            let sizes = q.ty.sizes();
            // Two fragments halve the reads of keys and values, once there are tiles enough for all
            // multiprocessors. Beside the addresses of what a score or mask function reads they do
            // not fit in registers.
            let many = sizes[0] * sizes[1] * sizes[2].div_ceil(128) >= 264;
            let fragments =
                if many && d.max(values) <= 64 && does == hopper::Does::Plain { 2 } else { 1 };
            return Ok(Self::Tensor { fragments, keys: KEYS, buffers: 2 });
        }
        let sum = q.ty.dtype.accumulation().bits() / 8;
        let tile = [64, 32, 16]
            .into_iter()
            .find(|&tile| tiled_bytes([d, values], tile, sum) <= SHARED_BYTES);
        let tile = tile.ok_or_else(|| {
            let found = format!("heads of {d} and {values} channels in {}", q.ty.dtype);
            Refusal::Unsupported(format!(
                "{found} do not fit in shared memory; use more heads of fewer channels"
            ))
        })?;
        Ok(Self::Tiled { tile })
    }

    fn queries(self) -> usize {
        match self {
            Self::Hopper(tile) => tile.queries(),
            Self::Tensor { fragments, .. } => 64 * fragments,
            Self::Decode(_) | Self::Long(_) => usize::MAX,
            Self::Tiled { tile } => tile,
        }
    }
}

/// Threads and bytes of shared memory of a block of a portable kernel.
fn block(design: Design, [d, values]: [usize; 2], sum: usize) -> (u32, usize) {
    match design {
        Design::Hopper(_) | Design::Long(_) => unreachable!("it launches itself"),
        Design::Decode(cut) => (cut.threads(), 0),
        Design::Tensor { keys, buffers, .. } => {
            let blocks = 2 * buffers * keys * (d + values + 16);
            (128, 2 * design.queries() * (d.max(values) + 8) + blocks)
        }
        Design::Tiled { tile } => (256, tiled_bytes([d, values], tile, sum)),
    }
}

/// Keys of a block of `tensor.cu` without a threshold.
const KEYS: usize = 64;

/// Whether `tensor.cu` has a form for heads of so many channels of q and of v.
fn is_for_tensor_cores(dtype: DType, widths: [usize; 2]) -> bool {
    let fits = widths.iter().all(|&n| n % 16 == 0 && (16..=128).contains(&n));
    matches!(dtype, DType::F16 | DType::BF16) && fits
}

/// Size of `Tiles` of `tiled.cu`.
fn tiled_bytes([d, values]: [usize; 2], tile: usize, sum: usize) -> usize {
    sum * (2 * d.max(1) * (tile + 1) + tile * values.max(1) + tile * (tile + 1))
}

/// The block masks of a call, for a design that skips blocks.
fn block_mask(
    call: &KernelCall,
    (attention, regions): (&Attention, &[Graph]),
    design: Design,
) -> Result<Option<BlockMask>, Refusal> {
    let (Design::Hopper(tile), Some(mask)) = (design, find_mask(regions)) else { return Ok(None) };
    let (_, captures) = attention.seed_and_captures(&call.operands[3..]);
    let tile = [tile.queries(), tile.keys()];
    BlockMask::of(call, (mask, captures), (tile, Lists::OfQueries)).map(Some)
}

/// The kernel of a design, specialised.
fn source(
    call: &KernelCall,
    (attention, regions): (&Attention, &[Graph]),
    design: Design,
) -> Result<KernelSource, Refusal> {
    let dtype = call.operands[0].ty.dtype;
    let values = call.operands[2].ty.sizes()[3];
    let text = match design {
        Design::Hopper(tile) => {
            let mask = block_mask(call, (attention, regions), design)?;
            let mask = mask.map_or_else(String::new, BlockMask::text);
            tile.text(dtype, values) + HEADS + &mask + WALK + include_str!("hopper.cu")
        }
        Design::Tensor { fragments, keys, buffers } => {
            let tile =
                format!("constexpr int MF = {fragments}, KEYS = {keys}, BUFFERS = {buffers};\n");
            tile + FRAGMENTS + include_str!("tensor.cu")
        }
        Design::Decode(cut) => cut.text() + PAGES + DECODE,
        Design::Long(cut) => cut.text(""),
        Design::Tiled { tile } => {
            format!("constexpr int TILE = {tile};\n{}", include_str!("tiled.cu"))
        }
    };
    let (keys, rest) = (call.operands[1].ty.sizes()[2], &call.operands[3..]);
    let functions =
        region::print(regions, (attention, rest), dtype)? + &dropout::print(attention, rest, keys);
    let skips = attention.threshold.map_or_else(String::new, |threshold| {
        format!("#define SKIPS\nconstexpr f32 LIMIT = {:?}f;\n", threshold.log2())
    });
    Ok(specialised("attention", of_numbers(call), (attention, functions), &(skips + &text)))
}

/// The text before a kernel that uses `mma.sync`.
pub(super) const FRAGMENTS: &str = include_str!("fragments.cuh");

/// The text after that of a cut.
pub(super) const DECODE: &str = include_str!("decode.cu");

/// The text after that of a tile on Hopper.
pub(super) const HEADS: &str = include_str!("heads.cuh");

/// The text after that of a block mask, on Hopper.
pub(super) const WALK: &str = include_str!("walk.cuh");

/// The type of q, and the channels of q and of v, of a call whose values are `[B, H, T, Dv]`.
pub(super) fn of_numbers(call: &KernelCall) -> (DType, [usize; 2]) {
    let widths = [0, 2].map(|i| call.operands[i].ty.sizes()[3]);
    (call.operands[0].ty.dtype, widths)
}

/// The source of a kernel: the printed functions of its regions, and its own text. It is for an
/// output of this type, and so many channels of q and of v.
pub(super) fn specialised(
    name: &str,
    (dtype, [d, values]): (DType, [usize; 2]),
    (attention, functions): (&Attention, String),
    own: &str,
) -> KernelSource {
    let mut text = String::from("#include \"scalar.cuh\"\n");
    text += &format!("typedef {dtype} Element;\ntypedef {} Sum;\n", dtype.accumulation());
    text += &format!("constexpr int D = {d}, DV = {values};\n");
    text += CLAMPED;
    text += &functions;
    text += include_str!("shape.cuh");
    text += own;
    let defines =
        if attention.mask == Mask::Causal { vec![("CAUSAL", String::new())] } else { vec![] };
    KernelSource { name: name.to_owned().into(), text: text.into(), defines }
}

/// The function that printed reads call.
const CLAMPED: &str =
    "template <typename I> __device__ __forceinline__ i64 clamped(I x, i64 high) {
    if constexpr (sizeof(I) == 4 && I(-1) < I(0))
        return high < 0x7fffffff ? max(0, min(x, (i32)high)) : max(0, x);
    else return max(0ll, min((i64)x, high));
}
";

/// `attention` with its score and mask functions, and dropout.
pub(crate) const KERNEL: NamedKernel = NamedKernel {
    declines_regions: |_| None,
    declines,
    needs: |call, op, regions, machine| {
        let op = (attention_of(op), regions);
        let design = Design::of(call, op, machine.architecture)?;
        fits(call, design)?;
        region::print(regions, (op.0, &call.operands[3..]), call.operands[0].ty.dtype)?;
        match design {
            Design::Long(cut) => Ok(cut.scratch_bytes()),
            _ => Ok(block_mask(call, op, design)?.map_or(0, BlockMask::scratch_bytes)),
        }
    },
    ..NamedKernel::new("attention", Compile::Composite(compile), Sources::Of(sources_of))
};

/// With a threshold only the kernels for tensor cores skip tiles.
fn declines(op: &Operation, operands: &[TensorType]) -> Option<Decline> {
    op.composite::<Attention>()?.threshold?;
    let [q, _, v, ..] = operands else { return None };
    let (dtype, widths) = (q.dtype, [q.sizes()[3], v.sizes()[3]]);
    let reason = format!(
        "with a threshold its kernels take heads of 16 to 128 channels in multiples of 16, in \
         bf16 or f16, and not heads of {} and {} channels in {dtype}",
        widths[0], widths[1]
    );
    (!is_for_tensor_cores(dtype, widths)).then_some(Decline::Because(reason))
}

/// The op of a call, which the table found by name.
fn attention_of(op: &OpRef) -> &Attention {
    op.downcast().expect("the table is by name")
}

/// The sources of the kernels that a call is compiled to, with their architectures.
fn sources_of(call: &KernelCall, op: &OpRef, regions: &[Graph]) -> PrintedCall {
    let op = (attention_of(op), regions);
    let of = |architecture| source(call, op, Design::of(call, op, architecture)?);
    let (portable, own) = (of(Architecture::Sm80)?, of(Architecture::Sm90a)?);
    Ok(match portable == own {
        true => vec![(portable, &Architecture::DECLARED)],
        false => vec![(portable, &Architecture::DECLARED), (own, &[Architecture::Sm90a])],
    })
}

/// How many heads a call has, and tiles of queries each: as many as one launch takes.
fn fits(call: &KernelCall, design: Design) -> Result<[usize; 2], Refusal> {
    let (sizes, keys) = (call.operands[0].ty.sizes(), call.operands[1].ty.sizes()[2]);
    let matrices = sizes[0] * sizes[1];
    let tiles = sizes[2].div_ceil(design.queries());
    if matrices * tiles > i32::MAX as usize || sizes[2].max(keys) > 1 << 30 {
        let found = format!("{matrices} heads of {} queries and {keys} keys", sizes[2]);
        return Err(Refusal::Unsupported(format!(
            "{found} are more than one launch takes; split the batch"
        )));
    }
    Ok([matrices, tiles])
}

fn compile(site: &Site<'_>, call: &KernelCall, op: &OpRef, regions: &[Graph]) -> Launched {
    let attention = attention_of(op);
    let [q, k, v] = [0, 1, 2].map(|i| &call.operands[i]);
    let sizes = q.ty.sizes();
    let factor = attention.factor(sizes[3]);
    let design = Design::of(call, (attention, regions), site.device.architecture())?;
    let [matrices, tiles] = fits(call, design)?;
    let (shape, source) =
        (AttentionShape::of(call, factor), source(call, (attention, regions), design)?);
    if let Design::Hopper(tile) = design {
        let mask = block_mask(call, (attention, regions), design)?;
        return hopper::compile(site, call, (tile, shape, mask), &source);
    }
    if let Design::Long(cut) = design {
        let compiled = CompiledAttention::long(site, (call, 3), (&source, cut), shape)?;
        return Ok(Box::new(compiled));
    }
    let widths = [q, v].map(|view| view.ty.sizes()[3]);
    let (threads, bytes) = block(design, widths, q.ty.dtype.accumulation().bits() / 8);
    let blocks = match design {
        Design::Decode(cut) => sizes[0] * k.ty.sizes()[1] * cut.blocks(),
        _ => matrices * tiles,
    };
    let config = LaunchConfig {
        grid_dim: (blocks as u32, 1, 1),
        block_dim: (threads, 1, 1),
        shared_mem_bytes: bytes as u32,
    };
    let entry = Entry::new(site.device, (&source, "attention"), config)?;
    let is_empty = matrices * tiles == 0;
    Ok(Box::new(CompiledAttention::new(call, 3, (entry, is_empty, shape))))
}
