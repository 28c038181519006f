//! The weights of a block of scores and the slopes of the scores, for the gradients.
// Raw pointers into a worker's scratch, inside of `#[target_feature]` functions.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::softmax::{Score, for_width};
#[cfg(target_arch = "x86_64")]
use crate::loops::isa::{Avx2, Avx512};
use crate::loops::isa::{Isa, LaneEntry, LaneKernel, Level, Operands, Portable};

/// A block: rows of keys, `stride` elements apart, by panels of `W` queries.
pub(super) struct Weighed<A> {
    /// Products of queries and keys, or scores; then weights.
    pub(super) scores: *mut A,
    /// Slopes of the weights; then of the scores.
    pub(super) slopes: *mut A,
    /// For each query the log-sum-exp, as a power of two where scores are scaled to one.
    pub(super) shift: *const A,
    /// For each query what its slopes are lowered by.
    pub(super) delta: *const A,
    /// Factor that turns scores, or their differences to the shift, into exponents of 2.
    pub(super) factor: A,
    pub(super) stride: usize,
    /// A multiple of `W`.
    pub(super) queries: usize,
}

/// The pass over `rows` keys of the [`Weighed`] at `src[0]`, on the best instruction set of this
/// CPU; `unscaled` is for differences.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weigh {
    pub(super) scaled: LaneEntry,
    pub(super) unscaled: LaneEntry,
}

/// The pass over panels of `width`.
pub(super) fn weigh<A: Score>(width: usize) -> Weigh {
    for_width!(width, entries::<A>())
}

fn entries<A: Score, const W: usize>() -> Weigh {
    fn on<A: Score, const W: usize, I: Isa>() -> Weigh {
        Weigh {
            scaled: I::entry::<WeighPass<A, W, true>>(),
            unscaled: I::entry::<WeighPass<A, W, false>>(),
        }
    }
    match Level::best() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => on::<A, W, Avx512>(),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => on::<A, W, Avx2>(),
        _ => on::<A, W, Portable>(),
    }
}

/// The pass that multiplies each of `n` slopes at `dst` by the one at `src[0]`. Slopes of 0 at
/// `dst` stay 0, since the other factor of a hidden score may be anything.
pub(super) fn steepen<A: Score>() -> LaneEntry {
    match Level::best() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => Avx512::entry::<Steepen<A>>(),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Avx2::entry::<Steepen<A>>(),
        _ => Portable::entry::<Steepen<A>>(),
    }
}

struct Steepen<A>(PhantomData<A>);

impl<A: Score> LaneKernel for Steepen<A> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, operands: &Operands) {
        // SAFETY: destination and source 0 have `n` slopes each, apart.
        let (slopes, by) = unsafe { (operands.dst::<A>(n), operands.src::<A>(0, n)) };
        for (slope, &by) in slopes.iter_mut().zip(by) {
            *slope = if *slope == A::ZERO { A::ZERO } else { slope.mul(by) };
        }
    }
}

struct WeighPass<A, const W: usize, const SCALED: bool>(PhantomData<A>);

impl<A: Score, const W: usize, const SCALED: bool> LaneKernel for WeighPass<A, W, SCALED> {
    #[inline(always)]
    unsafe fn run<I: Isa>(rows: usize, operands: &Operands) {
        // SAFETY: source 0 is the `Weighed` of this pass.
        let block = unsafe { &*operands.src[0].cast::<Weighed<A>>() };
        let factor = block.factor;
        for panel in (0..block.queries).step_by(W) {
            // SAFETY: both matrices have the rows, and the panels are whole.
            unsafe {
                let shift = block.shift.add(panel).cast::<[A; W]>().read();
                let delta = block.delta.add(panel).cast::<[A; W]>().read();
                let weight = |score: A, shift: A| {
                    let power = match SCALED {
                        true => score.mul_sub::<I>(factor, shift),
                        false => score.sub(shift).mul(factor),
                    };
                    power.exp2::<I>()
                };
                let row = |of: *mut A, row: usize| {
                    &mut *of.add(row * block.stride + panel).cast::<[A; W]>()
                };
                // Two rows at once: single ones LLVM vectorises across rows, by shuffles.
                for pair in (0..rows - rows % 2).step_by(2) {
                    let (a, b) = (row(block.scores, pair), row(block.scores, pair + 1));
                    let (da, db) = (row(block.slopes, pair), row(block.slopes, pair + 1));
                    for j in 0..W {
                        a[j] = weight(a[j], shift[j]);
                        b[j] = weight(b[j], shift[j]);
                        da[j] = a[j].mul(da[j].sub(delta[j]));
                        db[j] = b[j].mul(db[j].sub(delta[j]));
                    }
                }
                if rows % 2 == 1 {
                    let (a, da) = (row(block.scores, rows - 1), row(block.slopes, rows - 1));
                    for j in 0..W {
                        a[j] = weight(a[j], shift[j]);
                        da[j] = a[j].mul(da[j].sub(delta[j]));
                    }
                }
            }
        }
    }
}
