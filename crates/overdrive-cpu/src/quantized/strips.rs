//! A few rows of x with AVX-512: codes stream past once, in strips of a few rows of weights.
//!
//! A block is 64 bytes of codes, sixteen 32-bit lanes of 4 or 8 codes each. Its codes come out lane
//! by lane: the first of each lane, the second of each, and so on. So x is arranged in that order
//! beforehand, `[block][place in the lane][lane]`, with zeros after its end. Scales and zeros are
//! per lane, so that groups may be as small as a lane.
#![allow(unsafe_code)] // Raw pointers into codes, arranged x and y.

use super::decode::{LANES, is_supported};
use super::finish::Finish;
use super::matrix::QuantizedMatrix;
use super::x86::{self, Strip};
use crate::gemm::{ProductOutput, SumsTarget};
use crate::threads::{Apart, Pool};

/// Rows of weights of a task, at most: long enough to amortise starting it.
const TASK_ROWS: usize = 64;
/// Rows of weights of a strip.
const ROWS: usize = 4;
/// Blocks that are arranged by one task.
const ARRANGED: usize = 16;

/// Weights that can go this way.
pub(super) struct Strips<'a> {
    weights: &'a QuantizedMatrix<'a>,
    /// Codes of a lane.
    per_lane: usize,
    blocks: usize,
}

impl<'a> Strips<'a> {
    /// Whether there are kernels for the codes, lanes have one scale each, and rows begin a byte.
    pub(super) fn of(weights: &'a QuantizedMatrix<'a>) -> Option<Self> {
        let per_lane = weights.codes_per_lane()?;
        let (k, group, block) = (weights.k, weights.group, LANES * per_lane);
        let aligned = group == k
            || group.is_multiple_of(block)
            || (group.is_multiple_of(per_lane) && block.is_multiple_of(group));
        let bytes = (k * weights.codes.dtype().bits()).is_multiple_of(8);
        let can = is_supported() && aligned && bytes && k > 0;
        can.then(|| Self { weights, per_lane, blocks: k.div_ceil(block) })
    }

    /// Numbers that a row of x is arranged in, and after them the sums of each lane.
    pub(super) fn row_floats(&self) -> usize {
        self.blocks * LANES * (self.per_lane + 1)
    }

    pub(super) fn run(
        &self,
        pool: &Pool,
        x: &[f32],
        output: ProductOutput<'_, f32>,
        room: &mut [f32],
    ) {
        let [_, _, m, n] = output.shape();
        let target = SumsTarget::new(output);
        let room = &mut room[..m * self.row_floats()];
        self.arrange(pool, m, x, room);
        let rows = n.div_ceil(4 * pool.threads()).next_multiple_of(ROWS).min(TASK_ROWS);
        pool.run(n.div_ceil(rows), |task, worker| {
            let (mut row, end) = (task * rows, ((task + 1) * rows).min(n));
            let scales = 2 * ROWS * self.weights.groups();
            let mut sums = Finish::new(worker, &target, (m, row..end), scales);
            while row < end {
                let count = if row + ROWS <= end { ROWS } else { 1 };
                self.strip([row, count], room, &mut sums);
                row += count;
            }
            // SAFETY: the strips above wrote every sum of the task.
            unsafe { sums.done() }
        });
    }

    /// x in the order that codes come out in.
    fn arrange(&self, pool: &Pool, m: usize, x: &[f32], room: &mut [f32]) {
        let (k, per_lane, blocks) = (self.weights.k, self.per_lane, self.blocks);
        let (row_floats, parts) = (self.row_floats(), blocks.div_ceil(ARRANGED));
        let place = x86::places(per_lane);
        let room = Apart::new(room.as_mut_ptr());
        pool.run(m * parts, |task, _| {
            let (row, first) = (task / parts, task % parts * ARRANGED);
            let x = &x[row * k..(row + 1) * k];
            for block in first..(first + ARRANGED).min(blocks) {
                let start = row * row_floats + block * LANES * per_lane;
                for lane in 0..LANES {
                    let mut sum = 0.0;
                    for (i, place) in place.iter().enumerate().take(per_lane) {
                        let value =
                            x.get((block * LANES + lane) * per_lane + i).copied().unwrap_or(0.0);
                        sum += value;
                        // SAFETY: the room has `row_floats` for each row, and each block of it is
                        // one task's.
                        unsafe { *room.at(start + place * LANES + lane) = value }
                    }
                    let sums = row * row_floats + blocks * LANES * per_lane;
                    // SAFETY: behind its blocks each row has room for a sum of every lane.
                    unsafe { *room.at(sums + block * LANES + lane) = sum }
                }
            }
        });
    }

    /// `count` rows of weights from `row` on, times all rows of x.
    fn strip(&self, [row, count]: [usize; 2], room: &[f32], sums: &mut Finish<'_>) {
        let weights = self.weights;
        let groups = weights.groups();
        let m = room.len() / self.row_floats();
        let (scales, zeros) = sums.own[..2 * count * groups].split_at_mut(count * groups);
        let codes = weights.codes.from(row * weights.k);
        let mut done = 0;
        x86::scales(weights, row, [scales, zeros]);
        let (scales, zeros) = (scales.as_ptr(), zeros.as_ptr());
        while done < m {
            let rows = x86::most_rows(m - done);
            let strip = Strip {
                codes: codes.as_ptr(),
                code_stride: weights.k * weights.codes.dtype().bits() / 8,
                scales,
                zeros: weights.zeros.map(|_| zeros),
                groups,
                x: room[done * self.row_floats()..].as_ptr(),
                x_stride: self.row_floats(),
                sums: self.blocks * LANES * self.per_lane,
                y: sums.at(done, row),
                y_stride: sums.stride(),
                k: weights.k,
                group: weights.group,
            };
            // SAFETY: `of` saw that the CPU has the instructions; the pointers are to rows of the
            // lengths given.
            unsafe { x86::run(&strip, weights.codes.dtype(), [rows, count]) };
            done += rows;
        }
    }
}
