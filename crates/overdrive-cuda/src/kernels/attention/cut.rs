//! How `decode.cu` cuts a call: rows for each block, and keys among the blocks of a cluster. It has
//! calls of up to `SHORT` keys. Beyond, it has codes beside f32, codes of heads that
//! `decode_long.cu` has no form for, and codes whose rows that kernel cannot copy.

use overdrive_ir::DType;
use overdrive_ir::plan::{KernelCall, View};

use crate::compiler::Architecture;
use crate::kernels::nest::ViewStart;

/// The text before `decode.cu` and `decode_long.cu`, behind the definitions of rows.
pub(super) const PAGES: &str = include_str!("pages.cuh");

/// How `decode.cu` cuts a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Queries of all heads of a key head that a block takes, a power of two.
    rows: usize,
    /// Blocks that share the rows of a key head.
    parts: usize,
    /// Blocks of a cluster, which share the keys of a head.
    split: usize,
    /// Warps of a block.
    warps: usize,
    /// Whether keys that no row sees are left out.
    skips: bool,
    /// Whether eight channels of a row are one aligned vector.
    whole: bool,
}

impl Cut {
    /// Most rows: what a thread keeps of each fills its registers.
    const ROWS: usize = 8;
    /// Most keys of this kernel if `decode_long.cu` has a form too. Blocks then share the rows of a
    /// key head rather than its keys. All of them read the keys, from the L2. A cluster takes two
    /// barriers, and eight rows many instructions: 7.2 us for 128 keys on an H200.
    pub(super) const SHORT: usize = 1024;
    /// Fewest keys of a block, as long as a cluster can have more blocks.
    const KEYS: usize = 32;
    /// The same of few keys.
    const KEYS_OF_SHORT: usize = 256;
    /// Blocks that fill a large GPU.
    const BLOCKS: usize = 132;
    /// Keys of a warp, beyond which a block has more warps than four.
    const KEYS_OF_WARP: usize = 64;
    /// The same of few keys: one step of eight.
    const KEYS_OF_SHORT_WARP: usize = 8;
    /// Most channels of a head: eight for each lane of a warp.
    pub(super) const CHANNELS: usize = 256;

    /// That of k and v as numbers; `None` where another kernel is better.
    pub(super) fn of_numbers(call: &KernelCall, architecture: Architecture) -> Option<Self> {
        let [q, v] = [0, 2].map(|i| &call.operands[i]);
        let d = four(q)?[3];
        let keys = four(&call.operands[1])?[2];
        let cut = Self::of(call, architecture, Self::ROWS)?;
        let fits = keys <= Self::SHORT
            && matches!(q.ty.dtype, DType::F16 | DType::BF16)
            && matches!(d, 32 | 64 | 128 | 256)
            && four(v)?[3] == d
            && cut.rows * cut.parts <= Self::ROWS
            && cut.whole;
        fits.then_some(cut)
    }

    /// That of k and v as codes, or in pages; `None` where channels lie apart.
    pub(super) fn of_rows(call: &KernelCall, architecture: Architecture) -> Option<Self> {
        let beside = |view: &View| view.strides[3] == 1;
        if !call.operands[..3].iter().all(beside) {
            return None;
        }
        // Codes and scales take registers too: half the rows, and a quarter of wider floats or of
        // channels that make no vector.
        let vectors = call.operands[0].ty.dtype.bits() <= 16 && Self::is_whole(call)?;
        Self::of(call, architecture, if vectors { Self::ROWS / 2 } else { Self::ROWS / 4 })
    }

    /// Whether eight channels of each row are one aligned vector.
    fn is_whole(call: &KernelCall) -> Option<bool> {
        let [q, k, v] = [0, 1, 2].map(|i| &call.operands[i]);
        let d = four(q)?[3];
        let whole = |view: &View| {
            let vector = view.ty.dtype.bits().min(16);
            let outer = view.strides[..3].iter().all(|s| s % 8 == 0);
            outer && view.strides[3] == 1 && ViewStart::new(view).is_aligned(vector)
        };
        Some(d % 8 == 0 && d > 0 && [q, k, v].into_iter().all(whole))
    }

    /// That of blocks of at most so many rows.
    fn of(call: &KernelCall, architecture: Architecture, most: usize) -> Option<Self> {
        let [q, k] = [0, 1].map(|i| &call.operands[i]);
        let ([batch, heads, queries, _], [_, shared, keys, _]) = (four(q)?, four(k)?);
        let rows = (heads / shared.max(1)) * queries;
        if rows == 0 || keys == 0 {
            return None;
        }
        let is_short = keys <= Self::SHORT;
        let mut each = rows.min(most).next_power_of_two();
        let blocks = |each: usize| (batch * shared * rows.div_ceil(each)).max(1);
        while is_short && each > 1 && blocks(each / 2) <= Self::BLOCKS {
            each /= 2;
        }
        let parts = rows.div_ceil(each);
        let clusters = matches!(architecture, Architecture::Sm90a | Architecture::Sm100a);
        let of_block = if is_short { Self::KEYS_OF_SHORT } else { Self::KEYS };
        let wanted = (Self::BLOCKS / blocks(each)).min(keys.div_ceil(of_block));
        let split = if clusters { 1 << wanted.clamp(1, 8).ilog2() } else { 1 };
        // Few keys are all read: to learn first which of them are seen takes longer.
        let skips = keys > Self::SHORT / 2;
        let whole = Self::is_whole(call)?;
        // As far as registers last.
        let is_light = whole && each <= 2 && k.ty.dtype.bits() > 8;
        let most_warps = if is_light { 16 } else { 8.min(32 / each) };
        let of_warp = if is_short { Self::KEYS_OF_SHORT_WARP } else { Self::KEYS_OF_WARP };
        let warps = (keys / (split * of_warp)).clamp(4, most_warps);
        let warps = 1 << warps.ilog2();
        Some(Self { rows: each, parts, split, warps, skips, whole })
    }

    /// Blocks for each key head.
    pub(super) fn blocks(self) -> usize {
        self.parts * self.split
    }

    /// Threads of a block.
    pub(super) fn threads(self) -> u32 {
        32 * self.warps as u32
    }

    /// The text before `decode.cu`.
    pub(super) fn text(self) -> String {
        let Self { rows, parts, split, warps, skips, whole } = self;
        format!(
            "#define SPLIT {split}\n\
             constexpr int ROWS = {rows}, PARTS = {parts}, WARPS = {warps};\n\
             constexpr bool SKIPS = {skips}, WHOLE = {whole};\n"
        )
    }
}

pub(super) fn four(view: &View) -> Option<[usize; 4]> {
    view.ty.sizes().try_into().ok()
}
