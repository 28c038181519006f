//! Attention that skips tiles of scores far below the largest of their queries.
//!
//! `overdrive_ir::ops::attention::threshold` defines the tiles and which are kept. Scores of all
//! panels of a tile are computed before it is known whether one of their queries asks for the tile.
//! Values of a block that no tile keeps are not read.
#![allow(unsafe_code)] // Raw pointers into slots and a worker's scratch.

use super::function::Position;
use super::head_rows::HeadRows;
use super::reach::{SKIPPED_KEYS, SKIPPED_QUERIES, skipped_queries};
use super::softmax::Score;
use super::task::{AttentionScratch, AttentionShape, Panel};
use super::visible::Visible;
use crate::gemm::Narrow;
use crate::loops::isa::{Ahead, Operands};
use crate::slots::SlotTable;

/// Panels of a tile, at most: kernels have 6 columns or more.
const PANELS: usize = SKIPPED_QUERIES.div_ceil(6);

impl<T: Narrow> AttentionShape<T>
where
    T::Acc: Score,
{
    /// Does what `run` does. A score that lies below the largest by more than `-limit` is not asked
    /// for.
    ///
    /// # Safety
    /// As for `run`.
    pub(super) unsafe fn run_above(
        &self,
        (limit, [q, k, v]): (T::Acc, [HeadRows<T>; 3]),
        (matrix, first): ([usize; 2], usize),
        (buffers, slots): (&AttentionScratch<'_, T::Acc>, &SlotTable),
    ) {
        let queries = (self.reach.queries - first).min(self.tile);
        let [size, places] = skipped_queries(self.width());
        // SAFETY: queries and keys are below those of q, k and v; `buffers` gave each part its
        // room.
        unsafe {
            self.begin(buffers);
            let outputs = self.values * self.places();
            std::slice::from_raw_parts_mut(buffers.out, outputs).fill(T::Acc::ZERO);
            for (index, start) in (0..queries).step_by(size).enumerate() {
                let lines = q.lines(first + start, (queries - start).min(size), self.depth);
                let to = buffers.q.add(self.kernel.b_bytes(index * places, self.depth));
                self.kernel.pack_b_block(lines, to);
            }
            let end = self.reach.visible(first + queries);
            for key in (0..end).step_by(SKIPPED_KEYS).rev() {
                let keys = (end - key).min(SKIPPED_KEYS);
                let [mut has_keys, mut has_values] = [false; 2];
                let mut panels = self.panels(queries).peekable();
                while let Some(&Panel { query: start, .. }) = panels.peek() {
                    // Seen keys of the panels of a tile; 0 where a function hides all of them.
                    let mut seen = [0; PANELS];
                    let mut tile = [Panel::default(); PANELS];
                    let (mut count, mut is_asked) = (0, false);
                    while let Some(panel) = panels.next_if(|panel| panel.query < start + size) {
                        let reach = self.reach.visible(first + panel.query + panel.count);
                        let at = [matrix[0], matrix[1], first + panel.query, key].map(|i| i as i32);
                        let mut visible = reach.saturating_sub(key).min(keys);
                        if visible > 0 {
                            let shown = self.visibility((buffers, slots), at, visible, &mut None);
                            if shown == Visible::None {
                                visible = 0;
                            } else {
                                if !has_keys {
                                    let lines = k.lines(key, keys, self.depth);
                                    self.kernel.pack_a(lines, buffers.k);
                                    has_keys = true;
                                }
                                let scores = self.scores_of(buffers, count);
                                let place = (scores, panel.place);
                                self.scores((buffers, slots), (at, place), shown, visible);
                                is_asked |=
                                    self.is_asked((buffers, limit), place, (panel, visible));
                            }
                        }
                        (tile[count], seen[count]) = (panel, visible);
                        count += 1;
                    }
                    if !is_asked {
                        continue;
                    }
                    if !has_values {
                        let columns = v.columns(key, keys, self.values);
                        self.kernel.pack_a(columns, buffers.v);
                        has_values = true;
                    }
                    for (index, panel) in tile[..count].iter().enumerate() {
                        if seen[index] > 0 {
                            let at: Position =
                                [matrix[0], matrix[1], first + panel.query, key].map(|i| i as i32);
                            let place = (self.scores_of(buffers, index), panel.place);
                            self.weigh((buffers, slots), (at, place), [keys, seen[index]], false);
                        }
                    }
                }
            }
        }
    }

    /// The scores of a panel of a tile.
    fn scores_of(&self, buffers: &AttentionScratch<'_, T::Acc>, panel: usize) -> *mut T::Acc {
        buffers.scores.wrapping_add(panel * self.panel_scores())
    }

    /// Whether a query of a panel asks for the block of its scores.
    unsafe fn is_asked(
        &self,
        (buffers, limit): (&AttentionScratch<'_, T::Acc>, T::Acc),
        (scores, place): (*mut T::Acc, usize),
        (panel, seen): (Panel, usize),
    ) -> bool {
        let running = self.running_at(buffers, place);
        let pass = match self.functions.has_score() {
            true => self.passes.largest_unscaled,
            false => self.passes.largest,
        };
        let (state, scores) = (std::ptr::from_ref(&running).cast(), scores.cast_const().cast());
        let operands = Operands {
            // The next update overwrites it.
            dst: running.shrink.cast(),
            src: [state, scores, scores],
            immediate: 0,
            ahead: Ahead::NONE,
        };
        // SAFETY: the scores are `seen` rows of a panel, whose queries have their running state.
        let (most, max) = unsafe {
            pass(seen, &operands);
            let row = |of: *mut T::Acc| std::slice::from_raw_parts(of.cast_const(), panel.count);
            (row(running.shrink), row(running.max))
        };
        most.iter().zip(max).any(|(&most, &max)| most > T::Acc::LOWEST && most >= max.add(limit))
    }
}
