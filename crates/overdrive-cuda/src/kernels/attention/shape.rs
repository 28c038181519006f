//! The sizes and strides that each kernel of attention is given, and how many heads are worked on
//! together.

use overdrive_ir::plan::{KernelCall, View};

/// Keys and values of heads that are worked on together: half of a large GPU's L2.
const BUNCH_BYTES: usize = 24 << 20;

/// `AttentionShape` of `shape.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AttentionShape {
    pub(super) heads: i32,
    pub(super) group: i32,
    pub(super) matrices: i32,
    pub(super) together: i32,
    pub(super) queries: i32,
    pub(super) keys: i32,
    pub(super) q: [i64; 4],
    pub(super) k: [i64; 4],
    pub(super) v: [i64; 4],
    pub(super) out: [i64; 4],
    pub(super) lse: [i64; 3],
    pub(super) factor: f64,
}

/// Heads whose tiles are issued together, of so many that each read so many bytes for all tiles.
pub(super) fn together(matrices: usize, head_bytes: usize) -> i32 {
    bunch(matrices, BUNCH_BYTES / head_bytes.max(1))
}

/// Heads of a bunch, at most so many of all.
pub(super) fn bunch(matrices: usize, most: usize) -> i32 {
    let most = most.clamp(1, matrices.max(1));
    // Bunches of one size: a small last one would leave multiprocessors idle.
    matrices.div_ceil(matrices.div_ceil(most).max(1)).max(1) as i32
}

impl AttentionShape {
    pub(super) fn of(call: &KernelCall, factor: f64) -> Self {
        let [q, k, v] = [0, 1, 2].map(|i| &call.operands[i]);
        let (sizes, keys) = (q.ty.sizes(), k.ty.sizes()[2]);
        let matrices = sizes[0] * sizes[1];
        let strides = |view: &View| -> [i64; 4] { std::array::from_fn(|d| view.strides[d]) };
        let [out, lse] = [0, 1].map(|i| call.results[i].as_ref());
        let head_bytes = keys * (sizes[3] + v.ty.sizes()[3]) * q.ty.dtype.bits() / 8;
        Self {
            heads: sizes[1] as i32,
            group: (sizes[1] / k.ty.sizes()[1].max(1)) as i32,
            matrices: matrices as i32,
            together: together(matrices, head_bytes),
            queries: sizes[2] as i32,
            keys: keys as i32,
            q: strides(q),
            k: strides(k),
            v: strides(v),
            out: out.map_or([0; 4], strides),
            lse: lse.map_or([0; 3], |view| std::array::from_fn(|d| view.strides[d])),
            factor,
        }
    }

    /// Tiles of so many queries, of all heads.
    pub(super) fn tasks(&self, queries: usize) -> usize {
        self.matrices as usize * (self.queries as usize).div_ceil(queries)
    }
}
