//! One task: a tile of queries of one head against all of its keys.
//!
//! Long because the two halves of a panel's work share the parts of the scratch.
#![allow(unsafe_code)] // Raw pointers into slots and a worker's scratch.

use super::dropout::{Dropping, Kept};
use super::function::{Functions, Position};
use super::head_rows::HeadRows;
use super::reach::{Reach, ScoreExtent, skipped_queries};
use super::softmax::{Passes, Running, Score};
use super::visible::Visible;
use crate::gemm::{BlockProduct, Element, MicroKernel, Narrow, OperandLines, transpose};
use crate::loops::isa::{Ahead, Operands};
use crate::slots::SlotTable;
use crate::threads::{PlacedParts, Scratch, ScratchParts};

/// Sizes of the attention and of its tiles, and the kernels.
#[derive(Debug)]
pub(super) struct AttentionShape<T: Element> {
    pub(super) kernel: &'static MicroKernel<T>,
    pub(super) passes: Passes,
    /// Whether probabilities are rounded to the pairs of bf16 that the kernel takes.
    pub(super) pairs: bool,
    /// Channels of q and k.
    pub(super) depth: usize,
    /// Channels of v.
    pub(super) values: usize,
    pub(super) reach: Reach,
    /// Score and mask functions.
    pub(super) functions: Functions,
    pub(super) dropping: Option<Dropping>,
    /// Distance to the largest score, at most 0, below which nobody asks for a tile: with a
    /// threshold.
    pub(super) limit: Option<f64>,
    /// Factor that turns scores (products, or a score function's results) into exponents of 2. Not
    /// 0, since 0 times the -infinity of a hidden score is NaN.
    pub(super) factor: f64,
    /// Queries of a task, a multiple of the panel's width.
    pub(super) tile: usize,
    /// Keys of a block.
    pub(super) block: usize,
}

/// The parts of a worker's scratch.
#[derive(Debug)]
pub(super) struct AttentionScratch<'a, A> {
    pub(super) q: *mut u8,
    pub(super) k: *mut u8,
    pub(super) v: *mut u8,
    /// For a panel, keys by queries. With a threshold, for all panels of a tile.
    pub(super) scores: *mut A,
    /// Probabilities in the format of operands, and packed.
    rounded: *mut u8,
    packed: *mut u8,
    /// Maxima, sums and what earlier powers shrink by, a row of the tile's queries each.
    running: *mut A,
    /// Per panel, channel by query.
    pub(super) out: *mut A,
    /// A panel's, query by channel.
    rows: *mut A,
    /// For the scores of a panel: whether each is visible, and scratch of the functions.
    visible: *mut u8,
    functions: *mut u8,
    /// Factors on the weights of a panel, if some are dropped.
    kept: *mut A,
    _placed: PlacedParts<'a, 12>,
}

/// Queries that are computed together.
#[derive(Clone, Copy, Default)]
pub(super) struct Panel {
    /// The first, counted from that of the task.
    pub(super) query: usize,
    /// At most the width of the kernel.
    pub(super) count: usize,
    /// Queries before it in scratch.
    pub(super) place: usize,
}

/// Results of a task in scratch: per panel the output, query by channel, and the running state.
pub(super) struct Finished<A> {
    pub(super) out: *mut A,
    pub(super) max: *const A,
    pub(super) sum: *const A,
}

impl<T: Narrow> AttentionShape<T>
where
    T::Acc: Score,
{
    pub(super) fn width(&self) -> usize {
        self.kernel.tile()[1]
    }

    /// Queries whose panels lie together in scratch, and their places there.
    fn group(&self) -> [usize; 2] {
        self.limit.map_or([self.tile; 2], |_| skipped_queries(self.width()))
    }

    /// The panels of so many queries.
    pub(super) fn panels(&self, queries: usize) -> impl Iterator<Item = Panel> {
        let (width, [group, places]) = (self.width(), self.group());
        (0..queries).step_by(group).enumerate().flat_map(move |(index, start)| {
            let end = queries.min(start + group);
            let panel = move |query| Panel {
                query,
                count: width.min(end - query),
                place: index * places + query - start,
            };
            (start..end).step_by(width).map(panel)
        })
    }

    /// Places for the queries of a task.
    pub(super) fn places(&self) -> usize {
        let [group, places] = self.group();
        self.tile.div_ceil(group) * places
    }

    /// Scores of a panel.
    pub(super) fn panel_scores(&self) -> usize {
        self.padded(self.block) * self.width()
    }

    /// Keys whose rows of scores become right operands: those seen, and zeros to the end of the
    /// kernel's last group.
    fn padded(&self, keys: usize) -> usize {
        if self.pairs { self.kernel.filled(keys) } else { keys }
    }

    /// Cuts scratch into the parts that a task needs.
    pub(super) fn buffers<'a>(&self, scratch: &'a mut Scratch) -> AttentionScratch<'a, T::Acc> {
        let (width, acc) = (self.width(), size_of::<T::Acc>());
        let direct = self.kernel.takes_sums();
        let only_if = |wanted: bool, bytes: usize| if wanted { bytes } else { 0 };
        let rounded = self.block * width * size_of::<T>();
        let (tile, panels) = (self.places(), self.limit.map_or(1, |_| self.group()[1] / width));
        let placed = scratch.place(ScratchParts::new([
            ("queries", self.kernel.b_bytes(tile, self.depth)),
            ("keys", self.kernel.a_bytes(self.block, self.depth)),
            ("values", self.kernel.a_bytes(self.values, self.block)),
            ("scores", panels * self.panel_scores() * acc),
            ("rounded probabilities", only_if(!direct && !self.pairs, rounded)),
            ("packed probabilities", only_if(!direct, self.kernel.b_bytes(width, self.block))),
            ("running maxima and sums", 3 * tile * acc),
            ("outputs", self.values * tile * acc),
            ("rows of outputs", self.values * width * acc),
            ("visibility", only_if(self.functions.has_mask(), self.block * width)),
            ("score and mask functions", self.functions.scratch_bytes()),
            ("weights that stay", only_if(self.dropping.is_some(), self.block * width * acc)),
        ]));
        let [q, k, v, scores, rounded, packed, running, out, rows, visible, functions, kept] =
            placed.starts;
        let [scores, running, out, rows, kept] =
            [scores, running, out, rows, kept].map(<*mut u8>::cast);
        AttentionScratch {
            q,
            k,
            v,
            scores,
            rounded,
            packed,
            running,
            out,
            rows,
            visible,
            functions,
            kept,
            _placed: placed,
        }
    }

    /// Computes the queries `first..first + tile` of a matrix, batch and head, into scratch.
    ///
    /// # Safety
    /// Every row of q, k and v can be read; the buffers are this shape's; the slots hold what the
    /// functions read.
    pub(super) unsafe fn run(
        &self,
        [q, k, v]: [HeadRows<T>; 3],
        (matrix, first): ([usize; 2], usize),
        (buffers, slots): (&AttentionScratch<'_, T::Acc>, &SlotTable),
    ) {
        if let Some(limit) = self.limit {
            let operands = (T::Acc::from_f64(limit), [q, k, v]);
            // SAFETY: the caller's promise.
            return unsafe { self.run_above(operands, (matrix, first), (buffers, slots)) };
        }
        let width = self.width();
        let queries = (self.reach.queries - first).min(self.tile);
        // Else the first block that a panel sees fills its output.
        let clear = |panel: usize| {
            let count = self.values * width;
            // SAFETY: `buffers` gave the outputs of each panel their room.
            let out = unsafe {
                std::slice::from_raw_parts_mut(buffers.out.add(self.values * panel), count)
            };
            out.fill(T::Acc::ZERO);
        };
        // SAFETY: queries and keys are below those of q, k and v; `buffers` gave each part its
        // room.
        unsafe {
            self.begin(buffers);
            self.kernel.pack_b_block(q.lines(first, queries, self.depth), buffers.q);
            let end = self.reach.visible(first + queries);
            for key in (0..end).step_by(self.block) {
                let keys = (end - key).min(self.block);
                let mut is_packed = false;
                // Panels of one cell of the mask function see the same of a block.
                let mut before = None;
                for panel in (0..queries).step_by(width) {
                    let last = first + (panel + width).min(queries);
                    let seen = self.reach.visible(last).saturating_sub(key).min(keys);
                    let at = [matrix[0], matrix[1], first + panel, key].map(|i| i as i32);
                    if seen == 0 {
                        continue;
                    }
                    let visibility = self.visibility((buffers, slots), at, seen, &mut before);
                    if visibility == Visible::None {
                        if key == 0 {
                            clear(panel);
                        }
                        continue;
                    }
                    // Keys that no panel sees are not read.
                    if !is_packed {
                        self.kernel.pack_a(k.lines(key, keys, self.depth), buffers.k);
                        self.kernel.pack_a(v.columns(key, keys, self.values), buffers.v);
                        is_packed = true;
                    }
                    let place = (buffers.scores, panel);
                    self.scores((buffers, slots), (at, place), visibility, seen);
                    self.weigh((buffers, slots), (at, place), [keys, seen], key == 0);
                }
            }
            for panel in (0..queries).step_by(width) {
                if self.reach.visible(first + (panel + width).min(queries)) == 0 {
                    clear(panel);
                }
            }
        }
    }

    /// Fills the running state of queries that have seen no key.
    ///
    /// # Safety
    /// The buffers are this shape's.
    pub(super) unsafe fn begin(&self, buffers: &AttentionScratch<'_, T::Acc>) {
        let (max, sum, _) = self.running(buffers);
        // SAFETY: `buffers` gave maxima and sums their room.
        unsafe {
            std::slice::from_raw_parts_mut(max, self.places()).fill(T::Acc::LOWEST);
            std::slice::from_raw_parts_mut(sum, self.places()).fill(T::Acc::ZERO);
        }
    }

    /// The visible ones of `seen` keys for a panel. `before` is the cell that was asked for last,
    /// with its answer.
    ///
    /// # Safety
    /// The buffers are this shape's, and the slots hold what the functions read.
    pub(super) unsafe fn visibility(
        &self,
        (buffers, slots): (&AttentionScratch<'_, T::Acc>, &SlotTable),
        at: Position,
        seen: usize,
        before: &mut Option<([usize; 2], Visible)>,
    ) -> Visible {
        let cell = self.functions.cell_of(at, [self.width(), seen]);
        let visibility = match *before {
            Some((known, visibility)) if cell == Some(known) => visibility,
            _ => {
                let lanes = if self.functions.has_mask() { seen * self.width() } else { 0 };
                // SAFETY: `buffers` gave the lanes of a panel and the functions their room.
                unsafe {
                    let lanes = std::slice::from_raw_parts_mut(buffers.visible, lanes);
                    self.functions.visible(lanes, at, slots, buffers.functions)
                }
            }
        };
        *before = cell.map(|cell| (cell, visibility));
        visibility
    }

    /// The scores of a panel of queries, which begins at query `panel` in scratch, for `seen` keys.
    /// The mask function shows some or all of them.
    ///
    /// # Safety
    /// Queries and keys were packed for this kernel, and there is room for the scores.
    pub(super) unsafe fn scores(
        &self,
        (buffers, slots): (&AttentionScratch<'_, T::Acc>, &SlotTable),
        (at, (scores, panel)): (Position, (*mut T::Acc, usize)),
        visibility: Visible,
        seen: usize,
    ) {
        let width = self.width();
        let [query, key] = [at[2] as usize, at[3] as usize];
        // SAFETY: the panel and `seen` keys are within the parts of `buffers`, and blocks were
        // packed for this kernel.
        unsafe {
            let functions = buffers.functions;
            let b = buffers.q.add(self.kernel.b_bytes(panel, self.depth)).cast_const();
            self.kernel.multiply_block(BlockProduct {
                a: buffers.k.cast_const(),
                b,
                c: scores,
                c_stride: width,
                rows: seen,
                cols: width,
                k: self.depth,
                accumulate: false,
            });
            let values = std::slice::from_raw_parts_mut(scores, seen * width);
            self.functions.score((values, std::ptr::null_mut()), at, slots, functions);
            if visibility == Visible::Some {
                let (src, hidden) = (buffers.visible.cast_const(), self.hidden());
                let operands = Operands {
                    dst: scores.cast(),
                    src: [src, std::ptr::from_ref(&hidden).cast(), src],
                    immediate: 0,
                    ahead: Ahead::NONE,
                };
                (self.passes.hide)(seen * width, &operands);
            }
            let extent = ScoreExtent { seen, width, stride: width };
            self.reach.hide((scores, extent), [query, key], self.hidden());
        }
    }

    /// Adds the values of `seen` keys of a block of `keys` to the output of a panel, by its scores,
    /// which become weights. `is_first` says that the panel has no output yet.
    ///
    /// # Safety
    /// `scores` left the scores, and the values were packed for this kernel.
    pub(super) unsafe fn weigh(
        &self,
        (buffers, slots): (&AttentionScratch<'_, T::Acc>, &SlotTable),
        (at, (scores, panel)): (Position, (*mut T::Acc, usize)),
        [keys, seen]: [usize; 2],
        is_first: bool,
    ) {
        let width = self.width();
        let out = buffers.out.wrapping_add(self.values * panel);
        let running = self.running_at(buffers, panel);
        // SAFETY: the panel and `seen` keys are within the parts of `buffers`, and blocks were
        // packed for this kernel.
        unsafe {
            let source = std::ptr::from_ref(&running).cast::<u8>();
            let update = match self.functions.has_score() {
                true => self.passes.update_unscaled,
                false => self.passes.update,
            };
            update(
                seen,
                &Operands {
                    dst: scores.cast(),
                    src: [source; 3],
                    immediate: 0,
                    ahead: Ahead::NONE,
                },
            );
            let shrink = std::slice::from_raw_parts(running.shrink, width);
            if !is_first && shrink.iter().any(|&by| by != T::Acc::ONE) {
                self.scale(out, running.shrink);
            }
            if let Some(dropping) = &self.dropping {
                // The sums have all of them.
                let kept = Kept { factors: buffers.kept, rows: seen, stride: width };
                dropping.draw(kept, at, slots);
                dropping.apply(scores, kept);
            }
            let b = self.probabilities((buffers, scores), seen);
            // Panel by panel of Vᵀ, because panels are as long as the block, but only a prefix of
            // it is seen.
            let rows = self.kernel.tile()[0];
            for channel in (0..self.values).step_by(rows) {
                self.kernel.multiply_block(BlockProduct {
                    a: buffers.v.add(self.kernel.a_bytes(channel, keys)).cast_const(),
                    b,
                    c: out.add(channel * width),
                    c_stride: width,
                    rows: (self.values - channel).min(rows),
                    cols: width,
                    k: seen,
                    accumulate: !is_first,
                });
            }
        }
    }

    /// Multiplies the output of a panel by a number for each query.
    unsafe fn scale(&self, out: *mut T::Acc, by: *const T::Acc) {
        let operands =
            Operands { dst: out.cast(), src: [by.cast(); 3], immediate: 0, ahead: Ahead::NONE };
        // SAFETY: the output of a panel is `values x W` numbers, and there are `W` factors.
        unsafe { (self.passes.scale)(self.values, &operands) }
    }

    /// The score of a hidden key.
    fn hidden(&self) -> T::Acc {
        if self.factor < 0.0 { T::Acc::HIGHEST } else { T::Acc::LOWEST }
    }

    /// The probabilities as the right operand of the second product.
    unsafe fn probabilities(
        &self,
        (buffers, scores): (&AttentionScratch<'_, T::Acc>, *mut T::Acc),
        seen: usize,
    ) -> *const u8 {
        let AttentionScratch { rounded, packed, .. } = *buffers;
        let count = seen * self.width();
        if self.kernel.takes_sums() {
            return scores.cast_const().cast();
        }
        if self.pairs {
            let rows = self.padded(seen);
            let operands =
                Operands { dst: packed, src: [scores.cast(); 3], immediate: 0, ahead: Ahead::NONE };
            // SAFETY: the scores have room for whole groups of keys, and so have their pairs.
            unsafe {
                let missing = (rows - seen) * self.width();
                std::slice::from_raw_parts_mut(scores.add(count), missing).fill(T::Acc::ZERO);
                (self.passes.pair)(rows / 2, &operands);
            }
            return packed.cast_const();
        }
        // SAFETY: scores and rounded probabilities have room for a block of keys by a panel, and
        // `seen` is at most the block's keys.
        unsafe {
            let from = std::slice::from_raw_parts(scores, count);
            let to = std::slice::from_raw_parts_mut(rounded.cast::<T>(), count);
            T::narrow(from, to);
            let lines = OperandLines {
                from: to.as_ptr(),
                lines: self.width(),
                line_stride: 1,
                k: seen,
                k_stride: self.width(),
            };
            self.kernel.pack_b_block(lines, packed);
        }
        packed.cast_const()
    }

    fn running(
        &self,
        buffers: &AttentionScratch<'_, T::Acc>,
    ) -> (*mut T::Acc, *mut T::Acc, *mut T::Acc) {
        let (max, places) = (buffers.running, self.places());
        (max, max.wrapping_add(places), max.wrapping_add(2 * places))
    }

    /// The running state of the panel that begins at query `panel` in scratch.
    pub(super) fn running_at(
        &self,
        buffers: &AttentionScratch<'_, T::Acc>,
        panel: usize,
    ) -> Running<T::Acc> {
        let (max, sum, shrink) = self.running(buffers);
        Running {
            max: max.wrapping_add(panel),
            sum: sum.wrapping_add(panel),
            shrink: shrink.wrapping_add(panel),
            factor: T::Acc::from_f64(self.factor),
        }
    }

    /// Results of [`run`](Self::run) for the panel that begins at query `panel` of the tile. They
    /// are valid until the next call.
    ///
    /// # Safety
    /// The buffers are as `run` left them.
    pub(super) unsafe fn finished(
        &self,
        panel: usize,
        buffers: &AttentionScratch<'_, T::Acc>,
    ) -> Finished<T::Acc> {
        let width = self.width();
        let Running { max, sum, shrink: inverse, .. } = self.running_at(buffers, panel);
        let (from, out) = (buffers.out.wrapping_add(self.values * panel), buffers.rows);
        let lines = OperandLines {
            from: from.cast_const(),
            lines: self.values,
            line_stride: width,
            k: width,
            k_stride: 1,
        };
        // SAFETY: `run` wrote the sums and outputs of the panel; `buffers` gave the inverses and
        // rows their room.
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
