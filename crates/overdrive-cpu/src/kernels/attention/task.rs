//! One task: a tile of queries of one head against all of its keys.
#![allow(unsafe_code)] // Raw pointers into slots and a worker's scratch.

use super::softmax::{Passes, Running, Score};
use crate::gemm::{BlockProduct, Element, Kernel, Lines, Narrow, transpose};
use crate::loops::isa::{Ahead, Operands};

/// Rows of positions by channels: q, k or v of one head. Strides in elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rows<T> {
    pub(super) from: *const T,
    /// From one position to the next.
    pub(super) row: usize,
    /// From one channel to the next.
    pub(super) channel: usize,
}

impl<T> Rows<T> {
    fn at(&self, row: usize) -> *const T {
        self.from.wrapping_add(row * self.row)
    }
}

/// What no kernel of pairs fills its panels up beyond a multiple of.
const KEYS: usize = 32;

/// Sizes of the attention and of its tiles, and the kernels.
#[derive(Debug)]
pub(super) struct Shape<T: Element> {
    pub(super) kernel: &'static Kernel<T>,
    pub(super) passes: Passes,
    /// Whether probabilities are rounded to the pairs of bf16 that the kernel takes.
    pub(super) pairs: bool,
    /// Channels of q and k.
    pub(super) depth: usize,
    /// Channels of v.
    pub(super) values: usize,
    pub(super) queries: usize,
    pub(super) keys: usize,
    pub(super) causal: bool,
    /// What scores are multiplied by to become powers of two; not 0, which would make NaN of hidden ones.
    pub(super) factor: f64,
    /// Queries of a task, a multiple of the panel's width.
    pub(super) tile: usize,
    /// Keys of a block.
    pub(super) block: usize,
}

/// Offsets of the parts of a worker's scratch, each on a 64-byte boundary.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    q: usize,
    k: usize,
    v: usize,
    scores: usize,
    rounded: usize,
    packed: usize,
    running: usize,
    out: usize,
    rows: usize,
    pub(super) bytes: usize,
}

/// What a task leaves in scratch: per panel the output, query by channel, and the running state.
pub(super) struct Finished<A> {
    pub(super) out: *mut A,
    pub(super) max: *const A,
    pub(super) sum: *const A,
}

impl<T: Narrow> Shape<T>
where
    T::Acc: Score,
{
    fn width(&self) -> usize {
        self.kernel.tile()[1]
    }

    /// The parts of scratch.
    pub(super) fn parts(&self) -> Parts {
        let (width, acc) = (self.width(), size_of::<T::Acc>());
        let mut end = 0;
        let mut part = |bytes: usize| {
            let start = end;
            end += bytes.next_multiple_of(64);
            start
        };
        let direct = self.kernel.takes_sums();
        let only_if = |wanted: bool, bytes: usize| if wanted { bytes } else { 0 };
        Parts {
            q: part(self.kernel.b_bytes(self.tile, self.depth)),
            k: part(self.kernel.a_bytes(self.block, self.depth)),
            v: part(self.kernel.a_bytes(self.values, self.block)),
            scores: part(self.block.next_multiple_of(KEYS) * width * acc),
            rounded: part(only_if(!direct && !self.pairs, self.block * width * size_of::<T>())),
            packed: part(only_if(!direct, self.kernel.b_bytes(width, self.block))),
            running: part(3 * self.tile * acc),
            out: part(self.values * self.tile * acc),
            rows: part(self.values * width * acc),
            bytes: end,
        }
    }

    /// Keys that queries before `end` may see: the last query is aligned with the last key.
    fn visible(&self, end: usize) -> usize {
        if self.causal { (end + self.keys).saturating_sub(self.queries).min(self.keys) } else { self.keys }
    }

    /// Computes the queries `first..first + tile` into scratch.
    ///
    /// # Safety
    /// Every row of q, k and v can be read; `scratch` has `parts().bytes`, aligned to 64.
    pub(super) unsafe fn run(&self, [q, k, v]: [Rows<T>; 3], first: usize, scratch: *mut u8) {
        let (parts, width) = (self.parts(), self.width());
        let queries = (self.queries - first).min(self.tile);
        let at = |offset: usize| scratch.wrapping_add(offset);
        // SAFETY: as the caller promised; `parts` gives each buffer its room.
        unsafe {
            let (max, sum, _) = self.running(&parts, scratch);
            std::slice::from_raw_parts_mut(max, self.tile).fill(T::Acc::LOWEST);
            std::slice::from_raw_parts_mut(sum, self.tile).fill(T::Acc::ZERO);
            let lines = |rows: Rows<T>, first: usize, lines: usize| Lines {
                from: rows.at(first),
                lines,
                line_stride: rows.row,
                k: self.depth,
                k_stride: rows.channel,
            };
            self.kernel.pack_b_block(lines(q, first, queries), at(parts.q));
            let end = self.visible(first + queries);
            for key in (0..end).step_by(self.block) {
                let keys = (end - key).min(self.block);
                self.kernel.pack_a(lines(k, key, keys), at(parts.k));
                let transposed = Lines {
                    from: v.at(key),
                    lines: self.values,
                    line_stride: v.channel,
                    k: keys,
                    k_stride: v.row,
                };
                self.kernel.pack_a(transposed, at(parts.v));
                for panel in (0..queries).step_by(width) {
                    let seen = self.visible(first + (panel + width).min(queries)).saturating_sub(key);
                    if seen > 0 {
                        self.panel(&parts, scratch, [first, panel, key], [keys, seen.min(keys)]);
                    }
                }
            }
            // The first block that a panel sees fills its output; where there is none, nothing did.
            for panel in (0..queries).step_by(width) {
                if self.visible(first + (panel + width).min(queries)) == 0 {
                    let out = at(parts.out).cast::<T::Acc>().add(self.values * panel);
                    std::slice::from_raw_parts_mut(out, self.values * width).fill(T::Acc::ZERO);
                }
            }
        }
    }

    /// One panel of queries against `seen` keys of the block of `keys` that begins at `key`.
    unsafe fn panel(
        &self,
        parts: &Parts,
        scratch: *mut u8,
        [first, panel, key]: [usize; 3],
        [keys, seen]: [usize; 2],
    ) {
        let width = self.width();
        let at = |offset: usize| scratch.wrapping_add(offset);
        let scores = at(parts.scores).cast::<T::Acc>();
        // SAFETY: as the caller promised; each buffer has its room, and blocks were packed for this kernel.
        unsafe {
            let b = at(parts.q).add(self.kernel.b_bytes(panel, self.depth)).cast_const();
            self.kernel.multiply_block(BlockProduct {
                a: at(parts.k).cast_const(),
                b,
                c: scores,
                c_stride: width,
                rows: seen,
                cols: width,
                k: self.depth,
                accumulate: false,
            });
            if self.causal {
                self.hide(scores, first + panel, key, seen);
            }
            let (max, sum, shrink) = self.running(parts, scratch);
            let running = Running {
                max: max.add(panel),
                sum: sum.add(panel),
                shrink: shrink.add(panel),
                factor: T::Acc::from_f64(self.factor),
            };
            let source = std::ptr::from_ref(&running).cast::<u8>();
            (self.passes.update)(
                seen,
                &Operands { dst: scores.cast(), src: [source; 3], immediate: 0, ahead: Ahead::NONE },
            );
            let out = at(parts.out).cast::<T::Acc>().add(self.values * panel);
            let shrink = std::slice::from_raw_parts(running.shrink, width);
            if key > 0 && shrink.iter().any(|&by| by != T::Acc::ONE) {
                self.scale(out, running.shrink);
            }
            let b = self.probabilities(parts, scratch, seen);
            // Panel by panel of Vᵀ, because panels are as long as the block, of which a prefix is seen.
            let rows = self.kernel.tile()[0];
            for channel in (0..self.values).step_by(rows) {
                self.kernel.multiply_block(BlockProduct {
                    a: at(parts.v).add(self.kernel.a_bytes(channel, keys)).cast_const(),
                    b,
                    c: out.add(channel * width),
                    c_stride: width,
                    rows: (self.values - channel).min(rows),
                    cols: width,
                    k: seen,
                    accumulate: key > 0,
                });
            }
        }
    }

    /// Multiplies the output of a panel by a number for each query.
    unsafe fn scale(&self, out: *mut T::Acc, by: *const T::Acc) {
        let operands = Operands { dst: out.cast(), src: [by.cast(); 3], immediate: 0, ahead: Ahead::NONE };
        // SAFETY: the caller's output is `values x W`, its factors are `W`.
        unsafe { (self.passes.scale)(self.values, &operands) }
    }

    /// Hides each key from the queries of a panel that come before it: the first few of its row.
    unsafe fn hide(&self, scores: *mut T::Acc, query: usize, key: usize, seen: usize) {
        let width = self.width();
        let lowest = if self.factor < 0.0 { T::Acc::HIGHEST } else { T::Acc::LOWEST };
        for row in self.visible(query + 1).saturating_sub(key)..seen {
            let hidden = (key + row + self.queries).saturating_sub(query + self.keys).min(width);
            // SAFETY: the scores are `seen x width`.
            unsafe { std::slice::from_raw_parts_mut(scores.add(row * width), hidden) }.fill(lowest);
        }
    }

    /// The probabilities as the right operand of the second product.
    unsafe fn probabilities(&self, parts: &Parts, scratch: *mut u8, seen: usize) -> *const u8 {
        let at = |offset: usize| scratch.wrapping_add(offset);
        if self.kernel.takes_sums() {
            return at(parts.scores).cast_const();
        }
        if self.pairs {
            let rows = seen.next_multiple_of(KEYS);
            let (from, missing) = (at(parts.scores), (rows - seen) * self.width());
            let operands =
                Operands { dst: at(parts.packed), src: [from; 3], immediate: 0, ahead: Ahead::NONE };
            // SAFETY: the scores have room for whole groups of keys, and so have their pairs.
            unsafe {
                let rest = from.cast::<T::Acc>().add(seen * self.width());
                std::slice::from_raw_parts_mut(rest, missing).fill(T::Acc::ZERO);
                (self.passes.pair)(rows / 2, &operands);
            }
            return at(parts.packed).cast_const();
        }
        let count = seen * self.width();
        // SAFETY: each buffer has its room.
        unsafe {
            let from = std::slice::from_raw_parts(at(parts.scores).cast::<T::Acc>(), count);
            let to = std::slice::from_raw_parts_mut(at(parts.rounded).cast::<T>(), count);
            T::narrow(from, to);
            let lines = Lines {
                from: to.as_ptr(),
                lines: self.width(),
                line_stride: 1,
                k: seen,
                k_stride: self.width(),
            };
            self.kernel.pack_b_block(lines, at(parts.packed));
        }
        at(parts.packed).cast_const()
    }

    fn running(&self, parts: &Parts, scratch: *mut u8) -> (*mut T::Acc, *mut T::Acc, *mut T::Acc) {
        let max = scratch.wrapping_add(parts.running).cast::<T::Acc>();
        (max, max.wrapping_add(self.tile), max.wrapping_add(2 * self.tile))
    }

    /// What [`run`](Self::run) left of the panel that begins at query `panel` of the tile, until the next is asked for.
    ///
    /// # Safety
    /// `scratch` is as `run` left it.
    pub(super) unsafe fn finished(&self, panel: usize, scratch: *mut u8) -> Finished<T::Acc> {
        let (parts, width) = (self.parts(), self.width());
        let (max, sum, inverse) = self.running(&parts, scratch);
        let (max, sum, inverse) =
            (max.wrapping_add(panel), sum.wrapping_add(panel), inverse.wrapping_add(panel));
        let from = scratch.wrapping_add(parts.out).cast::<T::Acc>().wrapping_add(self.values * panel);
        let out = scratch.wrapping_add(parts.rows).cast::<T::Acc>();
        let lines =
            Lines { from: from.cast_const(), lines: self.values, line_stride: width, k: width, k_stride: 1 };
        // SAFETY: as the caller promised; `parts` gives both buffers their room.
        unsafe {
            for query in 0..width {
                let sum = *sum.add(query);
                *inverse.add(query) = if sum == T::Acc::ZERO { T::Acc::ZERO } else { sum.recip() };
            }
            self.scale(from, inverse);
            transpose(lines, out);
        }
        Finished { out, max, sum }
    }
}
