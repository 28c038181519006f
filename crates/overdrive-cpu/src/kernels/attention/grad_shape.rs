//! Sizes of the gradients' blocks, and the scratch that a task of them works in.
#![allow(unsafe_code)] // Raw pointers into a worker's scratch.

use super::captures::CaptureFunctions;
use super::dropout::Dropping;
use super::function::Functions;
use super::reach::Reach;
use super::softmax::Score;
use super::weigh::Weigh;
use crate::gemm::{Element, MicroKernel, Narrow};
use crate::loops::isa::LaneEntry;
use crate::threads::{PlacedParts, Scratch, ScratchParts};

/// Sizes of the attention and of its blocks, and the kernels.
#[derive(Debug)]
pub(super) struct AttentionGradShape<T: Element> {
    pub(super) kernel: &'static MicroKernel<T>,
    pub(super) weigh: Weigh,
    pub(super) hide: LaneEntry,
    pub(super) steepen: LaneEntry,
    pub(super) functions: Functions,
    /// The score function with its derivatives, if gradients of captures are wanted.
    pub(super) captures: Option<CaptureFunctions>,
    pub(super) dropping: Option<Dropping>,
    pub(super) reach: Reach,
    /// Channels of q and k.
    pub(super) depth: usize,
    /// Channels of v.
    pub(super) values: usize,
    /// Factor of scores that turns them into exponents of two.
    pub(super) factor: f64,
    /// Queries of a group, a multiple of the kernel's columns.
    pub(super) group: usize,
    /// Keys of a block.
    pub(super) block: usize,
    /// Blocks of a tile.
    pub(super) blocks: usize,
}

/// The parts of a worker's scratch.
#[derive(Debug)]
pub(super) struct AttentionGradScratch<'a, A> {
    /// For a group: q and dout as the right operands of scores and of slopes, and as those of the
    /// gradients of k and v.
    pub(super) group: [*mut u8; 4],
    /// For each block of a tile: k and v as left operands, and k as that of the gradient of q.
    pub(super) tile: [*mut u8; 3],
    /// Scores and slopes, keys by queries; and the slopes of a score function.
    pub(super) scores: *mut A,
    pub(super) slopes: *mut A,
    pub(super) steep: *mut A,
    pub(super) rounded: *mut u8,
    pub(super) packed: *mut u8,
    pub(super) packed_slopes: *mut u8,
    /// The log-sum-exp and delta of the queries of a group.
    pub(super) rows: [*mut A; 2],
    /// Sums of dq: for each group of queries, channel by query.
    pub(super) dq: *mut A,
    /// Sums of dk and dv, key by channel.
    pub(super) dk: *mut A,
    pub(super) dv: *mut A,
    /// Sums of dq of a group, transposed: query by channel.
    pub(super) turned: *mut A,
    pub(super) visible: *mut u8,
    pub(super) functions: *mut u8,
    /// Factors of weights, if some are dropped.
    pub(super) kept: *mut A,
    /// Derivatives of scores by captures, and the elements that they belong to.
    pub(super) terms: *mut u8,
    /// Sums of the gradients of captures, where a task computes these and nothing else; or null.
    pub(super) table: *mut f64,
    _placed: PlacedParts<'a, 23>,
}

impl<T: Narrow> AttentionGradShape<T>
where
    T::Acc: Score,
{
    /// Cuts scratch into the parts of a task of so many queries and keys.
    pub(super) fn buffers<'a>(
        &self,
        [queries, keys]: [usize; 2],
        scratch: &'a mut Scratch,
    ) -> AttentionGradScratch<'a, T::Acc> {
        let (kernel, acc) = (self.kernel, size_of::<T::Acc>());
        let (group, block, depth, values) = (self.group, self.block, self.depth, self.values);
        let direct = kernel.takes_sums();
        let only_if = |wanted: bool, bytes: usize| if wanted { bytes } else { 0 };
        let matrix = block * group;
        let captures = self.captures.as_ref();
        let of_functions = captures.map_or(0, |captures| captures.functions.scratch_bytes());
        let of_functions = of_functions.max(self.functions.scratch_bytes());
        let placed = scratch.place(ScratchParts::new([
            ("queries", kernel.b_bytes(group, depth)),
            ("slopes of outputs", kernel.b_bytes(group, values)),
            ("rows of queries", kernel.b_bytes(depth, group)),
            ("rows of slopes of outputs", kernel.b_bytes(values, group)),
            ("keys", self.blocks * kernel.a_bytes(block, depth)),
            ("values", self.blocks * kernel.a_bytes(block, values)),
            ("columns of keys", self.blocks * kernel.a_bytes(depth, block)),
            ("scores", matrix * acc),
            ("slopes", matrix * acc),
            ("rounded", only_if(!direct, matrix * size_of::<T>())),
            ("packed weights", only_if(!direct, kernel.a_bytes(block, group))),
            ("packed slopes", only_if(!direct, kernel.b_bytes(group, block))),
            ("log-sum-exps", group * acc),
            ("deltas", group * acc),
            ("gradients of queries", queries.next_multiple_of(group) * depth * acc),
            ("gradients of keys", keys * depth * acc),
            ("gradients of values", keys * values * acc),
            ("rows of gradients of queries", group * depth * acc),
            ("slopes of scores", only_if(self.functions.has_score(), matrix * acc)),
            ("visibility", only_if(self.functions.has_mask(), matrix)),
            ("score and mask functions", of_functions),
            ("weights that stay", only_if(self.dropping.is_some(), matrix * acc)),
            ("slopes by captures", captures.map_or(0, |captures| captures.bytes(matrix))),
        ]));
        let at = placed.starts;
        // Lanes beyond the queries are computed too, and numbers that nobody wrote may be slow.
        // SAFETY: scores and slopes were placed with `matrix` elements each.
        unsafe {
            at[7].cast::<T::Acc>().write_bytes(0, matrix);
            at[8].cast::<T::Acc>().write_bytes(0, matrix);
        }
        AttentionGradScratch {
            group: [at[0], at[1], at[2], at[3]],
            tile: [at[4], at[5], at[6]],
            scores: at[7].cast(),
            slopes: at[8].cast(),
            rounded: at[9],
            packed: at[10],
            packed_slopes: at[11],
            rows: [at[12].cast(), at[13].cast()],
            dq: at[14].cast(),
            dk: at[15].cast(),
            dv: at[16].cast(),
            turned: at[17].cast(),
            steep: at[18].cast(),
            visible: at[19],
            functions: at[20],
            kept: at[21].cast(),
            terms: at[22],
            table: std::ptr::null_mut(),
            _placed: placed,
        }
    }
}
