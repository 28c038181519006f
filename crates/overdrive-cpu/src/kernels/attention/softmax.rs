//! The online softmax of a panel: scores `[keys, W]` become probabilities, maximum and sum move on.
#![allow(unsafe_code)] // Raw pointers into a worker's scratch, inside of `#[target_feature]` functions.

use std::marker::PhantomData;

#[cfg(target_arch = "x86_64")]
use crate::loops::isa::{Avx2, Avx512};
use crate::loops::isa::{Isa, Kernel, Level, Operands, Portable};
use crate::loops::math;

/// The format of scores.
pub(super) trait Score: Copy + PartialOrd + 'static {
    const LOWEST: Self;
    const ZERO: Self;
    fn exp<I: Isa>(self) -> Self;
    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn ln(self) -> Self;
    fn recip(self) -> Self;
    fn from_f64(x: f64) -> Self;
}

macro_rules! score {
    ($t:ty, $exp:expr) => {
        impl Score for $t {
            const LOWEST: Self = <$t>::NEG_INFINITY;
            const ZERO: Self = 0.0;
            #[inline(always)]
            fn exp<I: Isa>(self) -> Self {
                $exp(self)
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
            fn ln(self) -> Self {
                <$t>::ln(self)
            }
            fn recip(self) -> Self {
                <$t>::recip(self)
            }
            fn from_f64(x: f64) -> Self {
                x as $t
            }
        }
    };
}

score!(f32, math::exp::<I>);
score!(f64, f64::exp);

/// What is known of each query of a panel so far; arrays of `W`.
pub(super) struct Running<A> {
    /// The largest score.
    pub(super) max: *mut A,
    /// Sum of the exponentials of the scores less the largest.
    pub(super) sum: *mut A,
    /// What the last update multiplied earlier exponentials by.
    pub(super) shrink: *mut A,
    pub(super) scale: A,
}

/// Updates a panel: `rows` keys by `width` queries of scores, dense.
pub(super) type Update = unsafe fn(rows: usize, operands: &Operands);

/// The update for panels of `width`, on the best instruction set of this CPU.
pub(super) fn update<A: Score>(width: usize) -> Update {
    match width {
        32 => entry::<A, 32>(),
        16 => entry::<A, 16>(),
        8 => entry::<A, 8>(),
        other => unreachable!("no kernel has tiles of {other} columns"),
    }
}

fn entry<A: Score, const W: usize>() -> Update {
    match Level::best() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => Avx512::entry::<Fold<A, W>>(),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Avx2::entry::<Fold<A, W>>(),
        _ => Portable::entry::<Fold<A, W>>(),
    }
}

struct Fold<A, const W: usize>(PhantomData<A>);

impl<A: Score, const W: usize> Kernel for Fold<A, W> {
    /// `dst` is the scores, `src[0]` a `Running<A>`.
    #[inline(always)]
    unsafe fn run<I: Isa>(rows: usize, operands: &Operands) {
        // SAFETY: the caller's scores are `rows x W`, and its arrays `W`.
        let (running, scores) = unsafe {
            let running = &*operands.src[0].cast::<Running<A>>();
            (running, std::slice::from_raw_parts_mut(operands.dst.cast::<[A; W]>(), rows))
        };
        // SAFETY: likewise.
        let (before, mut sum) =
            unsafe { (running.max.cast::<[A; W]>().read(), running.sum.cast::<[A; W]>().read()) };
        let scale = running.scale;
        let mut max = before;
        for row in scores.iter() {
            for j in 0..W {
                let score = row[j].mul(scale);
                max[j] = if score > max[j] { score } else { max[j] };
            }
        }
        // A query that has seen no key has maximum -inf, and -inf - -inf is NaN: any finite shift will do there.
        let mut shift = max;
        let mut shrink = [A::ZERO; W];
        for j in 0..W {
            shift[j] = if max[j] == A::LOWEST { A::ZERO } else { max[j] };
            shrink[j] = before[j].sub(shift[j]).exp::<I>();
            sum[j] = sum[j].mul(shrink[j]);
        }
        for row in scores.iter_mut() {
            for j in 0..W {
                row[j] = row[j].mul(scale).sub(shift[j]).exp::<I>();
                sum[j] = sum[j].add(row[j]);
            }
        }
        // SAFETY: likewise.
        unsafe {
            running.max.cast::<[A; W]>().write(max);
            running.sum.cast::<[A; W]>().write(sum);
            running.shrink.cast::<[A; W]>().write(shrink);
        }
    }
}
