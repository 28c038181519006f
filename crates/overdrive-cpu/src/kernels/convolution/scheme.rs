//! Two outputs of a filter of three taps with fewer multiplications than taps, as tables.
//!
//! A *point* is a combination of the input times a combination of the taps. A *sum* adds up the
//! products of its points, of all channels. Outputs are sums of sums. In two dimensions each axis
//! is combined as the table says, so that points and sums are pairs. Points that belong to one
//! output only lie in one sum, and so in one product. A step of 2 then needs no more sums than its
//! middle point makes (25 points in 9 sums instead of 36 products of 4). A step of 1 is F(2x2, 3x3)
//! with 16 instead of 36.
//!
//! Coefficients of the input and of sums are 0, 1 and -1. So rounding errors are a small multiple
//! of those of the plain sum. Non-finite elements reach the outputs whose windows hold them and no
//! others. Sources: Winograd, "Arithmetic complexity of computations" (1980); Lavin and Gray, "Fast
//! algorithms for convolutional neural networks", arXiv:1509.09308; for steps, the polyphase form
//! of fast FIR filters (Parker and Parhi, 1997).

use std::marker::PhantomData;
use std::ops::Range;

use super::packed_weights::WeightOrder;

/// Taps of a filter.
pub(super) const TAPS: usize = 3;

/// Outputs of a tile.
pub(super) const OUTPUTS: usize = 2;

/// A combination of the elements that a tile's window holds, and that of the taps which it is
/// multiplied by.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    /// An element of the window.
    pub(super) first: usize,
    /// The element that is added or subtracted.
    pub(super) second: Option<(Sign, usize)>,
    pub(super) taps: [f64; TAPS],
}

/// A coefficient.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sign {
    Plus,
    Minus,
}

const fn point(first: usize, taps: [f64; TAPS]) -> Point {
    Point { first, second: None, taps }
}

const fn pair(first: usize, sign: Sign, second: usize, taps: [f64; TAPS]) -> Point {
    Point { first, second: Some((sign, second)), taps }
}

/// Numbers that outputs are made of.
pub(super) trait Sum: Copy {
    /// `self + other`.
    fn plus(self, other: Self) -> Self;
    /// `self - other`.
    fn minus(self, other: Self) -> Self;
}

/// A table.
pub(super) trait Scheme: Send + Sync + 'static {
    /// The name of weights that are combined for it.
    const NAME: &'static str;
    /// Elements between the windows of neighbouring outputs.
    const STRIDE: usize;
    /// Elements of a tile's window.
    const WINDOW: usize = (OUTPUTS - 1) * Self::STRIDE + TAPS;
    /// Elements between the windows of neighbouring tiles.
    const STEP: usize = OUTPUTS * Self::STRIDE;
    const POINTS: &'static [Point];
    /// The points of each sum.
    const SUMS: &'static [Range<usize>];

    /// The outputs; there are as many sums as in [`SUMS`](Self::SUMS).
    fn outputs<S: Sum>(sums: &[S]) -> [S; OUTPUTS];
}

/// Steps of 1: F(2, 3).
pub(super) struct Step1;

impl Scheme for Step1 {
    const NAME: &'static str = "winograd 2x2, 3x3";
    const STRIDE: usize = 1;
    const POINTS: &'static [Point] = &[
        pair(0, Sign::Minus, 2, [1.0, 0.0, 0.0]),
        pair(1, Sign::Plus, 2, [0.5, 0.5, 0.5]),
        pair(2, Sign::Minus, 1, [0.5, -0.5, 0.5]),
        pair(1, Sign::Minus, 3, [0.0, 0.0, 1.0]),
    ];
    const SUMS: &'static [Range<usize>] = &[0..1, 1..2, 2..3, 3..4];

    #[inline(always)]
    fn outputs<S: Sum>(sums: &[S]) -> [S; OUTPUTS] {
        [sums[0].plus(sums[1]).plus(sums[2]), sums[1].minus(sums[2]).minus(sums[3])]
    }
}

/// Steps of 2: the outer taps share an element between neighbouring outputs, the middle one does
/// not.
pub(super) struct Step2;

impl Scheme for Step2 {
    const NAME: &'static str = "winograd 2x2, 3x3 by 2";
    const STRIDE: usize = 2;
    const POINTS: &'static [Point] = &[
        pair(0, Sign::Minus, 2, [1.0, 0.0, 0.0]),
        point(1, [0.0, 1.0, 0.0]),
        point(2, [1.0, 0.0, 1.0]),
        pair(4, Sign::Minus, 2, [0.0, 0.0, 1.0]),
        point(3, [0.0, 1.0, 0.0]),
    ];
    const SUMS: &'static [Range<usize>] = &[0..2, 2..3, 3..5];

    #[inline(always)]
    fn outputs<S: Sum>(sums: &[S]) -> [S; OUTPUTS] {
        [sums[0].plus(sums[1]), sums[2].plus(sums[1])]
    }
}

/// k as the points of a sum for each channel, sum after sum.
pub(super) struct Combined<S> {
    channels: usize,
    scheme: PhantomData<fn() -> S>,
}

impl<S: Scheme> Combined<S> {
    pub(super) fn new(channels: usize) -> Self {
        Self { channels, scheme: PhantomData }
    }
}

impl<S: Scheme> WeightOrder<f32> for Combined<S> {
    fn row(&self, weight: &dyn Fn(usize, usize) -> f32, to: &mut [f32]) {
        let mut to = to.iter_mut();
        for (y, x) in sums::<S>() {
            for channel in 0..self.channels {
                for (y, x) in
                    S::SUMS[y].clone().flat_map(|y| S::SUMS[x].clone().map(move |x| (y, x)))
                {
                    let taps = (0..TAPS * TAPS).map(|tap| {
                        let factor = S::POINTS[y].taps[tap / TAPS] * S::POINTS[x].taps[tap % TAPS];
                        // A weight that is not finite reaches no point that it is no part of.
                        if factor == 0.0 { 0.0 } else { factor * f64::from(weight(channel, tap)) }
                    });
                    *to.next().expect("k is as long") = taps.sum::<f64>() as f32;
                }
            }
        }
    }
}

/// Pairs of sums, down and along.
pub(super) fn sums<S: Scheme>() -> impl Iterator<Item = (usize, usize)> {
    (0..S::SUMS.len()).flat_map(|y| (0..S::SUMS.len()).map(move |x| (y, x)))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Sum for f64 {
        fn plus(self, other: Self) -> Self {
            self + other
        }
        fn minus(self, other: Self) -> Self {
            self - other
        }
    }

    fn filters<S: Scheme>() {
        let x = [3.0, -1.0, 4.0, 1.0, -5.0];
        let taps = [2.0, -7.0, 18.0];
        let products: Vec<f64> = S::POINTS
            .iter()
            .map(|point| {
                let second = point.second.map_or(0.0, |(sign, at)| match sign {
                    Sign::Plus => x[at],
                    Sign::Minus => -x[at],
                });
                let weight: f64 = point.taps.iter().zip(taps).map(|(c, tap)| c * tap).sum();
                (x[point.first] + second) * weight
            })
            .collect();
        let sums: Vec<f64> = S::SUMS.iter().map(|of| products[of.clone()].iter().sum()).collect();
        let plain =
            |at: usize| (0..TAPS).map(|tap| x[at * S::STRIDE + tap] * taps[tap]).sum::<f64>();
        assert_eq!(S::outputs(&sums), [plain(0), plain(1)]);
        let reach = S::POINTS.iter().flat_map(|p| [p.first, p.second.map_or(0, |s| s.1)]).max();
        assert_eq!(reach, Some(S::WINDOW - 1));
    }

    #[test]
    fn tables_filter() {
        filters::<Step1>();
        filters::<Step2>();
    }
}
