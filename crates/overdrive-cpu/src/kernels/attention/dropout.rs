//! Draws which weights of a block are kept, when they are needed: Philox of the seed, the site and
//! the weight's place among `[B, H, Tq, Tk]`, as `dropout` draws it.
//!
//! Invariant: what is drawn depends on nothing else, so that the forward and every task of the
//! gradients agree.
// Raw pointers into slots and a worker's scratch, inside of `#[target_feature]` functions.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use overdrive_ir::ops::Dropout;
use overdrive_ir::plan::View;

use super::function::Position;
use super::softmax::Score;
use crate::kernels::place::Strided;
use crate::loops::isa::{Ahead, Isa, LaneEntry, LaneKernel, Level, Operands, Portable};
#[cfg(target_arch = "x86_64")]
use crate::loops::isa::{Avx2, Avx512};
use crate::loops::random::{SIDE, words};
use crate::slots::SlotTable;

/// The dropout of a call.
#[derive(Debug)]
pub(super) struct Dropping {
    dropout: Dropout,
    seed: Strided,
    /// H, Tq and Tk of the attention.
    extents: [u64; 3],
    draw: LaneEntry,
    apply: LaneEntry,
}

/// A block of what weights are multiplied by: `rows` of keys by `stride` queries.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kept<A> {
    pub(super) factors: *mut A,
    pub(super) rows: usize,
    pub(super) stride: usize,
}

impl Dropping {
    /// That of scores in `A`, of an attention of `[B, H, Tq, Tk]`.
    pub(super) fn new<A: Score>(
        dropout: Option<Dropout>,
        seed: Option<&View>,
        [_, heads, queries, keys]: [usize; 4],
    ) -> Option<Self> {
        let [draw, apply] = match Level::best() {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => entries::<A, Avx512>(),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => entries::<A, Avx2>(),
            _ => entries::<A, Portable>(),
        };
        let extents = [heads, queries, keys].map(|n| n as u64);
        let (dropout, seed) = (dropout?, Strided::new(seed?));
        Some(Self { dropout, seed, extents, draw, apply })
    }

    /// Draws what the weights of a block are multiplied by.
    ///
    /// # Safety
    /// `kept` has its factors; the slots hold the seed.
    pub(super) unsafe fn draw<A: Score>(&self, kept: Kept<A>, at: Position, slots: &SlotTable) {
        let ([b, h, q, k], [heads, queries, keys]) = (at.map(|i| i as u64), self.extents);
        // SAFETY: the slot of the seed holds a u64.
        let seed = unsafe { *self.seed.get(slots).cast::<u64>() };
        let drawn = Drawn {
            kept,
            seed,
            site: self.dropout.site,
            first: ((b * heads + h) * queries + q) * keys + k,
            step: keys,
            threshold: self.dropout.threshold(),
            factor: A::from_f64(1.0 / (1.0 - self.dropout.rate)),
        };
        let (dst, src) = (std::ptr::null_mut(), [std::ptr::from_ref(&drawn).cast::<u8>(); 3]);
        // SAFETY: source 0 is `drawn`, which outlives the call, and `kept` has its factors.
        unsafe { (self.draw)(kept.rows, &Operands { dst, src, immediate: 0, ahead: Ahead::NONE }) }
    }

    /// Multiplies weights, or their slopes, by what was drawn for them.
    ///
    /// # Safety
    /// `kept` was drawn, and there is a weight for each.
    pub(super) unsafe fn apply<A>(&self, weights: *mut A, kept: Kept<A>) {
        let (dst, src) = (weights.cast(), [kept.factors.cast_const().cast(); 3]);
        let operands = Operands { dst, src, immediate: 0, ahead: Ahead::NONE };
        // SAFETY: there are `rows * stride` factors, and a weight for each, apart from them.
        unsafe { (self.apply)(kept.rows * kept.stride, &operands) }
    }
}

fn entries<A: Score, I: Isa>() -> [LaneEntry; 2] {
    [I::entry::<Draw<A>>(), I::entry::<Apply<A>>()]
}

/// Parameters of [`Draw`].
struct Drawn<A> {
    kept: Kept<A>,
    seed: u64,
    site: u64,
    /// Place of the first weight.
    first: u64,
    /// From one query to the next; a key is the next place.
    step: u64,
    /// A weight stays where its bits reach it.
    threshold: u32,
    /// Factor on a weight that is kept.
    factor: A,
}

/// Draws the [`Drawn`] at `src[0]`.
struct Draw<A>(PhantomData<A>);

impl<A: Score> LaneKernel for Draw<A> {
    // Lanes of several arrays at once; this form is the one that vectorises.
    #[allow(clippy::needless_range_loop)]
    #[inline(always)]
    unsafe fn run<I: Isa>(rows: usize, operands: &Operands) {
        // SAFETY: source 0 is the `Drawn` of `Dropping::draw`.
        let drawn = unsafe { &*operands.src[0].cast::<Drawn<A>>() };
        let Kept { factors, stride, .. } = drawn.kept;
        for lane in (0..stride).step_by(SIDE) {
            // A block of the generator holds four keys, and the first may be any of them.
            let (mut blocks, mut offset) = ([0u64; SIDE], [0u32; SIDE]);
            for j in 0..SIDE {
                let place = drawn.step.wrapping_mul((lane + j) as u64).wrapping_add(drawn.first);
                (blocks[j], offset[j]) = (place / 4, (place % 4) as u32);
            }
            let mut given = words(&blocks, drawn.seed, drawn.site);
            for row in (0..rows).step_by(4) {
                blocks.iter_mut().for_each(|block| *block += 1);
                let next = words(&blocks, drawn.seed, drawn.site);
                let [[a, b, c, d], [e, f, g, _]] = [given, next];
                let windows = [[a, b, c, d], [b, c, d, e], [c, d, e, f], [d, e, f, g]];
                for (row, window) in (row..rows).zip(&windows) {
                    let mut line = [A::ZERO; SIDE];
                    for j in 0..SIDE {
                        let low = if offset[j] == 0 { window[0][j] } else { window[1][j] };
                        let high = if offset[j] == 2 { window[2][j] } else { window[3][j] };
                        let bits = if offset[j] < 2 { low } else { high };
                        line[j] = if bits >= drawn.threshold { drawn.factor } else { A::ZERO };
                    }
                    let lanes = (stride - lane).min(SIDE);
                    // SAFETY: `kept` has this row and these lanes of it.
                    unsafe {
                        let to = factors.add(row * stride + lane);
                        if lanes == SIDE {
                            to.cast::<[A; SIDE]>().write(line);
                        } else {
                            to.copy_from_nonoverlapping(line.as_ptr(), lanes);
                        }
                    }
                }
                given = next;
            }
        }
    }
}

/// Multiplies each of `n` numbers at `dst` by the factor at `src[0]`; 0 where that is 0, whatever
/// the number is.
struct Apply<A>(PhantomData<A>);

impl<A: Score> LaneKernel for Apply<A> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, operands: &Operands) {
        // SAFETY: destination and source 0 have `n` numbers each, apart.
        let (numbers, by) = unsafe { (operands.dst::<A>(n), operands.src::<A>(0, n)) };
        for (number, &by) in numbers.iter_mut().zip(by) {
            *number = if by == A::ZERO { A::ZERO } else { number.mul(by) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use overdrive_ir::eval::philox;

    /// Every offset of the first key in its block, lanes that no vector divides, and a site and
    /// places past 32 bits.
    #[test]
    fn what_is_drawn_is_what_dropout_draws() {
        let (seed, site) = (0x1234_5678_9abc_def0, 0xfedc_ba98_7654_3210);
        let levels = [Level::best(), Level::Portable];
        for (level, keys) in levels.into_iter().flat_map(|l| (60..64u64).map(move |k| (l, k))) {
            for (rows, stride, first) in [(1, 6, 0), (9, 12, 5), (60, 16, 1 << 35), (7, 40, 2)] {
                let mut factors = vec![7.0f32; rows * stride];
                let threshold = 1 << 30;
                let kept = Kept { factors: factors.as_mut_ptr(), rows, stride };
                let drawn = Drawn { kept, seed, site, first, step: keys, threshold, factor: 1.5 };
                let operands = Operands {
                    dst: std::ptr::null_mut(),
                    src: [std::ptr::from_ref(&drawn).cast(); 3],
                    immediate: 0,
                    ahead: Ahead::NONE,
                };
                let [draw, _] = match level {
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx512 => entries::<f32, Avx512>(),
                    #[cfg(target_arch = "x86_64")]
                    Level::Avx2 => entries::<f32, Avx2>(),
                    _ => entries::<f32, Portable>(),
                };
                // SAFETY: the factors are there, and the CPU has the level.
                unsafe { draw(rows, &operands) };
                for (i, &found) in factors.iter().enumerate() {
                    let place = first + (i % stride) as u64 * keys + (i / stride) as u64;
                    let stays = philox::bits(seed, site, place) >= threshold;
                    assert_eq!(found, if stays { 1.5 } else { 0.0 }, "{rows} {stride} {first} {i}");
                }
            }
        }
    }
}
