//! The online softmax of a panel: scores `[keys, W]` become probabilities, maximum and sum move on.
//! All of it is in powers of two.
// Raw pointers into a worker's scratch, inside of `#[target_feature]` functions.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use crate::loops::half::to_bf16;
#[cfg(target_arch = "x86_64")]
use crate::loops::isa::{Avx2, Avx512};
use crate::loops::isa::{Isa, LaneEntry, LaneKernel, Level, Operands, Portable};
use crate::loops::math;

/// The format of scores.
pub(super) trait Score: Copy + PartialOrd + 'static {
    const LOWEST: Self;
    const HIGHEST: Self;
    const ZERO: Self;
    const ONE: Self;
    /// 2^x for scores less the largest: `x` is at most about 0.
    fn exp2<I: Isa>(self) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// `self * a - b`.
    fn mul_sub<I: Isa>(self, a: Self, b: Self) -> Self;
    fn log2(self) -> Self;
    fn recip(self) -> Self;
    fn from_f64(x: f64) -> Self;
    /// The bits of the nearest bf16.
    fn bf16_bits(self) -> u32;
}

macro_rules! score {
    ($t:ty, $exp2:expr, $fma:ident) => {
        impl Score for $t {
            const LOWEST: Self = <$t>::NEG_INFINITY;
            const HIGHEST: Self = <$t>::INFINITY;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            #[inline(always)]
            fn exp2<I: Isa>(self) -> Self {
                $exp2(self)
            }
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn mul_sub<I: Isa>(self, a: Self, b: Self) -> Self {
                I::$fma(self, a, -b)
            }
            fn log2(self) -> Self {
                <$t>::log2(self)
            }
            fn recip(self) -> Self {
                <$t>::recip(self)
            }
            fn from_f64(x: f64) -> Self {
                x as $t
            }
            #[inline(always)]
            fn bf16_bits(self) -> u32 {
                to_bf16(self as f32).into()
            }
        }
    };
}

score!(f32, math::exp2_normal::<I>, fma);
score!(f64, f64::exp2, fma64);

/// The running state of each query of a panel; arrays of `W`.
pub(super) struct Running<A> {
    /// The largest score, times `factor`.
    pub(super) max: *mut A,
    /// Sum of two to the power of the scores, times `factor`, less the largest.
    pub(super) sum: *mut A,
    /// Factor that the last update applied to earlier sums.
    pub(super) shrink: *mut A,
    /// Factor that turns scores into exponents of 2. e^x costs a multiplication more than 2^x, and
    /// the scale is multiplied anyway.
    pub(super) factor: A,
}

/// The passes over panels, on the best instruction set of this CPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Passes {
    /// Makes scores, `rows` keys by `W` queries, probabilities: `dst` is the scores, `src[0]` a
    /// [`Running`].
    pub(super) update: LaneEntry,
    /// Multiplies each of `rows` rows of `W` at `dst` by the row at `src[0]`.
    pub(super) scale: LaneEntry,
    /// The same as `update`, with the maximum of the unscaled scores. Differences are multiplied,
    /// so that the lowest numbers do not overflow.
    pub(super) update_unscaled: LaneEntry,
    /// Writes the largest score of each query to a row at `dst`, times the factor of the
    /// [`Running`] at `src[0]`. Scores are `rows` keys by `W` queries at `src[1]`.
    pub(super) largest: LaneEntry,
    /// The same without the factor.
    pub(super) largest_unscaled: LaneEntry,
    /// Makes each of `n` scores at `dst` the one at `src[1]` where the byte at `src[0]` is 0.
    pub(super) hide: LaneEntry,
    /// Rounds `pairs` pairs of rows of `W` at `src[0]` to rows of `W` pairs of bf16 at `dst`.
    pub(super) pair: LaneEntry,
}

/// `$entries::<$score, W>()` for panels of so many columns as the micro-kernels have.
macro_rules! for_width {
    ($width:expr, $entries:ident::<$score:ty>()) => {
        match $width {
            32 => $entries::<$score, 32>(),
            16 => $entries::<$score, 16>(),
            12 => $entries::<$score, 12>(),
            8 => $entries::<$score, 8>(),
            6 => $entries::<$score, 6>(),
            other => unreachable!("no kernel has tiles of {other} columns"),
        }
    };
}
pub(super) use for_width;

/// The passes over panels of `width`.
pub(super) fn passes<A: Score>(width: usize) -> Passes {
    for_width!(width, entries::<A>())
}

fn entries<A: Score, const W: usize>() -> Passes {
    fn on<A: Score, const W: usize, I: Isa>() -> Passes {
        Passes {
            update: I::entry::<Update<A, W, true>>(),
            update_unscaled: I::entry::<Update<A, W, false>>(),
            largest: I::entry::<Largest<A, W, true>>(),
            largest_unscaled: I::entry::<Largest<A, W, false>>(),
            hide: I::entry::<Hide<A>>(),
            scale: I::entry::<ScaleRows<A, W>>(),
            pair: I::entry::<Pair<A, W>>(),
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

/// Rows that are folded at once. Sums and maxima live in memory, not in registers, and each fold
/// waits for the one before: four rows make a fourth of the waiting.
const FOLD: usize = 4;

/// The largest of `max` and of the scores of each query, times the factor where `SCALED`.
#[inline(always)]
fn largest<A: Score, const W: usize, const SCALED: bool>(
    scores: &[[A; W]],
    factor: A,
    mut max: [A; W],
) -> [A; W] {
    let larger = |a: A, b: A| if a > b { a } else { b };
    let scaled = |score: A| if SCALED { score.mul(factor) } else { score };
    let (folds, rest) = scores.as_chunks::<FOLD>();
    for [a, b, c, d] in folds {
        for j in 0..W {
            let ab = larger(scaled(a[j]), scaled(b[j]));
            let cd = larger(scaled(c[j]), scaled(d[j]));
            max[j] = larger(larger(ab, cd), max[j]);
        }
    }
    for row in rest {
        for j in 0..W {
            max[j] = larger(scaled(row[j]), max[j]);
        }
    }
    max
}

struct Largest<A, const W: usize, const SCALED: bool>(PhantomData<A>);

impl<A: Score, const W: usize, const SCALED: bool> LaneKernel for Largest<A, W, SCALED> {
    #[inline(always)]
    unsafe fn run<I: Isa>(rows: usize, operands: &Operands) {
        // SAFETY: source 0 is a `Running`; source 1 is `rows x W` scores, and the destination `W`.
        unsafe {
            let factor = (*operands.src[0].cast::<Running<A>>()).factor;
            let scores = operands.src::<[A; W]>(1, rows);
            let max = largest::<A, W, SCALED>(scores, factor, [A::LOWEST; W]);
            operands.dst.cast::<[A; W]>().write(max);
        }
    }
}

/// `SCALED` says whether maxima are of scores times the factor.
struct Update<A, const W: usize, const SCALED: bool>(PhantomData<A>);

impl<A: Score, const W: usize, const SCALED: bool> LaneKernel for Update<A, W, SCALED> {
    #[inline(always)]
    unsafe fn run<I: Isa>(rows: usize, operands: &Operands) {
        // SAFETY: source 0 is a `Running`, whose arrays have `W` numbers; the scores are `rows x
        // W`.
        let (running, scores, before, mut sum) = unsafe {
            let running = &*operands.src[0].cast::<Running<A>>();
            let scores = std::slice::from_raw_parts_mut(operands.dst.cast::<[A; W]>(), rows);
            let (max, sum) = (running.max.cast::<[A; W]>(), running.sum.cast::<[A; W]>());
            (running, scores, max.read(), sum.read())
        };
        let factor = running.factor;
        // A score less a shift, as a power of two.
        let power = |score: A, shift: A| {
            if SCALED { score.mul_sub::<I>(factor, shift) } else { score.sub(shift).mul(factor) }
        };
        let max = largest::<A, W, SCALED>(scores, factor, before);
        // A query that has seen no key has maximum -inf, and -inf - -inf is NaN: any finite shift
        // will do there.
        let mut shift = max;
        let mut shrink = [A::ZERO; W];
        for j in 0..W {
            shift[j] = if max[j] == A::LOWEST { A::ZERO } else { max[j] };
            let moved = before[j].sub(shift[j]);
            shrink[j] = if SCALED { moved } else { moved.mul(factor) }.exp2::<I>();
            sum[j] = sum[j].mul(shrink[j]);
        }
        let (folds, rest) = scores.as_chunks_mut::<FOLD>();
        for [a, b, c, d] in folds {
            for j in 0..W {
                let power = |score: A| power(score, shift[j]).exp2::<I>();
                (a[j], b[j], c[j], d[j]) = (power(a[j]), power(b[j]), power(c[j]), power(d[j]));
                sum[j] = sum[j].add(a[j].add(b[j]).add(c[j].add(d[j])));
            }
        }
        for row in rest {
            for j in 0..W {
                row[j] = power(row[j], shift[j]).exp2::<I>();
                sum[j] = sum[j].add(row[j]);
            }
        }
        // SAFETY: the running arrays have `W` elements each, and are this task's.
        unsafe {
            running.max.cast::<[A; W]>().write(max);
            running.sum.cast::<[A; W]>().write(sum);
            running.shrink.cast::<[A; W]>().write(shrink);
        }
    }
}

struct Hide<A>(PhantomData<A>);

impl<A: Score> LaneKernel for Hide<A> {
    #[inline(always)]
    unsafe fn run<I: Isa>(n: usize, operands: &Operands) {
        // SAFETY: there are `n` scores and as many bytes of visibility; source 1 is one number.
        let (scores, visible, hidden) = unsafe {
            let hidden = *operands.src[1].cast::<A>();
            (operands.dst::<A>(n), operands.src::<u8>(0, n), hidden)
        };
        for (score, &visible) in scores.iter_mut().zip(visible) {
            *score = if visible == 0 { hidden } else { *score };
        }
    }
}

struct ScaleRows<A, const W: usize>(PhantomData<A>);

impl<A: Score, const W: usize> LaneKernel for ScaleRows<A, W> {
    #[inline(always)]
    unsafe fn run<I: Isa>(rows: usize, operands: &Operands) {
        // SAFETY: the destination is `rows x W` numbers, and source 0 has `W` factors.
        let (by, rows) = unsafe {
            let rows = std::slice::from_raw_parts_mut(operands.dst.cast::<[A; W]>(), rows);
            (operands.src[0].cast::<[A; W]>().read(), rows)
        };
        // Four rows here too: a loop over single rows is one that LLVM vectorises across rows, by
        // shuffles.
        let (folds, rest) = rows.as_chunks_mut::<FOLD>();
        for fold in folds {
            for j in 0..W {
                fold.iter_mut().for_each(|row| row[j] = row[j].mul(by[j]));
            }
        }
        for row in rest {
            for j in 0..W {
                row[j] = row[j].mul(by[j]);
            }
        }
    }
}

struct Pair<A, const W: usize>(PhantomData<A>);

impl<A: Score, const W: usize> LaneKernel for Pair<A, W> {
    #[inline(always)]
    unsafe fn run<I: Isa>(pairs: usize, operands: &Operands) {
        // SAFETY: source 0 is `2 * pairs x W` numbers, and the destination `pairs x W` words,
        // apart.
        let (from, to) =
            unsafe { (operands.src::<[[A; W]; 2]>(0, pairs), operands.dst::<[u32; W]>(pairs)) };
        for ([even, odd], to) in from.iter().zip(to) {
            for j in 0..W {
                to[j] = even[j].bf16_bits() | odd[j].bf16_bits() << 16;
            }
        }
    }
}
