//! Attention on Hopper's tensor cores: the calls that it takes, and their tile.
//!
//! Measured on an H200 in bf16, causal, counting half of the products:
//! - 16 heads of 128 channels, B 4, T 4,096: 571 TFLOP/s; the portable kernel 220.
//! - 64 channels, B 2, T 8,192: 486 TFLOP/s; the portable kernel 275.
//!
//! Up to 128 queries or keys the portable kernel is as fast or faster.

use overdrive_ir::DType;
use overdrive_ir::ops::attention::threshold;
use overdrive_ir::plan::{KernelCall, View};

use super::block_mask::BlockMask;
use super::persistent::{OWN, PersistentAttention, Tasks};
use super::shape::AttentionShape;
use crate::compiler::KernelSource;
use crate::kernels::nest::ViewStart;
use crate::launch::{Launch, Refusal, Site};
use crate::tensor_map::{Boxes, Extent};
use crate::wgmma;

/// Bytes of a line of shared memory, which a box has for each row.
pub(super) const LINE: usize = 128;
/// Blocks of keys, and of values, in flight.
const STAGES: usize = 2;
/// For bringing the first tile to its alignment.
pub(super) const SLACK: usize = 1024;
/// Fewest queries and keys.
const FEWEST: [usize; 2] = [128, 256];
/// From so many keys on, larger blocks of keys pay for a single place of queries.
const LONG: usize = 12 << 10;
/// Queries of 64 channels from which on tiles of three warpgroups pay.
const MANY: usize = 2048;
/// Keys of a tile that a threshold skips. Its queries are those of a warpgroup.
const SKIPPED_KEYS: usize = threshold::TILE[1];
const _: () = assert!(threshold::TILE[0] == OWN);

/// Operations on scores and weights, by the registers that they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Does {
    Plain,
    /// A mask function, which few blocks evaluate.
    Mask,
    /// A score function, with a mask function or without.
    Score,
    /// Weights are dropped, with functions or without.
    Dropout,
    /// Tiles are skipped by a threshold.
    Threshold,
    /// The same beside a mask function.
    ThresholdAndMask,
}

/// The tile that a block of the grid works on at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AttentionTile {
    /// Keys of a block.
    keys: usize,
    /// Warpgroups that multiply.
    consumers: usize,
    /// Tiles of queries in shared memory: with two, the next arrives early.
    places: usize,
}

/// Whether TMA can copy boxes of a view: rows are dense and apart by multiples of 16 bytes.
pub(super) fn is_copied(view: &View) -> bool {
    let outer = view.ty.sizes().into_iter().zip(&view.strides).take(3);
    let strides =
        outer.filter(|&(size, _)| size > 1).all(|(_, stride)| *stride > 0 && stride % 8 == 0);
    strides && view.strides[3] == 1 && ViewStart::new(view).is_aligned(16)
}

impl AttentionTile {
    /// The best for a call; none where another kernel takes it.
    pub(super) fn of(call: &KernelCall, does: Does) -> Option<Self> {
        let [q, k, v] = [0, 1, 2].map(|i| &call.operands[i]);
        let out = call.results[0].as_ref()?;
        let (sizes, keys) = (q.ty.sizes(), k.ty.sizes()[2]);
        let (d, values) = (sizes[3], v.ty.sizes()[3]);
        let fits = [d, values].iter().all(|&n| n % 16 == 0 && (16..=256).contains(&n));
        let is_large = sizes[2] >= FEWEST[0] && keys >= FEWEST[1];
        let is_typed = matches!(q.ty.dtype, DType::F16 | DType::BF16);
        if !(is_typed && fits && is_large && [q, k, v, out].into_iter().all(is_copied)) {
            return None;
        }
        // Sums take half as many registers of a thread as there are channels, scores and
        // probabilities three quarters as many as there are keys. A function of them takes more,
        // and dropout most. Small tiles have fewer hidden pairs, so that masks have no larger ones.
        // Their keys come in multiples of 32.
        let tile = |keys, consumers, places| Self { keys, consumers, places };
        Some(match (d.max(values), does) {
            (..=64, Does::Plain) if sizes[2] >= MANY => tile(128, 3, 2),
            (..=64, Does::Plain) => tile(128, 2, 2),
            (..=128, Does::Plain) if keys >= LONG => tile(176, 2, 1),
            (..=128, Does::Plain) => tile(128, 2, 2),
            (..=192, Does::Plain) => tile(112, 2, 1),
            (_, Does::Plain) => tile(80, 2, 1),
            (..=128, Does::Mask) => tile(128, 2, 2),
            (..=192, Does::Mask) => tile(96, 2, 1),
            (_, Does::Mask) => tile(64, 2, 1),
            (..=128, Does::Score) => tile(96, 2, 2),
            (_, Does::Score) => tile(64, 2, 1),
            (..=128, Does::Dropout) => tile(64, 2, 2),
            (..=192, Does::Dropout) => tile(64, 2, 1),
            (_, Does::Dropout) => tile(32, 2, 1),
            // Blocks are the tiles of the definition.
            (..=64, Does::Threshold) if sizes[2] >= MANY => tile(SKIPPED_KEYS, 3, 2),
            (..=128, Does::Threshold | Does::ThresholdAndMask) => tile(SKIPPED_KEYS, 2, 2),
            (_, Does::Threshold | Does::ThresholdAndMask) => return None,
        })
    }

    /// Queries of a block.
    pub(super) fn queries(self) -> usize {
        OWN * self.consumers
    }

    /// Keys of a block.
    pub(super) fn keys(self) -> usize {
        self.keys
    }

    fn shared_bytes(self, widths: [usize; 2]) -> usize {
        let [d, values] = widths.map(|n| (n * 2).div_ceil(LINE) * LINE);
        SLACK + self.places * self.queries() * d.max(values) + STAGES * self.keys * (d + values)
    }

    /// The beginning of the kernel's text.
    pub(super) fn text(self, dtype: DType, values: usize) -> String {
        let Self { keys, consumers, places } = self;
        format!(
            "constexpr int KEYS = {keys}, CONSUMERS = {consumers}, STAGES = {STAGES}, PLACES = \
             {places};\n{}{}",
            wgmma::print("wgmma", keys, [dtype; 2], [true; 2]),
            wgmma::print_of_registers(values, dtype)
        )
    }
}

/// Boxes of so many rows of a [`B H T D`] view.
pub(super) fn boxes(view: &View, rows: usize) -> Boxes {
    let sizes = view.ty.sizes();
    // A dimension of one index has any stride, and the driver asks for multiples of 16 bytes.
    let extent = |d: usize| Extent::new(sizes[d], if sizes[d] == 1 { 16 } else { view.strides[d] });
    Boxes::new(view.ty.dtype, [3, 2, 1, 0].map(extent), [LINE * 8 / view.ty.dtype.bits(), rows])
}

/// Compiles a call for its tile.
pub(super) fn compile(
    site: &Site<'_>,
    call: &KernelCall,
    (tile, shape, mask): (AttentionTile, AttentionShape, Option<BlockMask>),
    source: &KernelSource,
) -> Result<Box<dyn Launch>, Refusal> {
    let [q, k, v] = [0, 1, 2].map(|i| &call.operands[i]);
    let out = call.results[0].as_ref().expect("a tile is of calls that have an output");
    let rows = [(q, tile.queries()), (k, tile.keys), (v, tile.keys), (out, OWN)];
    let tasks = Tasks {
        boxes: rows.map(|(view, rows)| boxes(view, rows)),
        own: 3,
        consumers: tile.consumers,
        shared_bytes: tile.shared_bytes([q, v].map(|view| view.ty.sizes()[3])),
    };
    PersistentAttention::compile(site, call, tasks, (source, shape, mask))
}
