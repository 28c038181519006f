//! Rotary positions: pairs of channels of queries and keys are turned by angles that grow with
//! the position.
//!
//! Sources: Su et al., arXiv:2104.09864, with the two halves of the turned channels as the pairs;
//! a part of the channels only: Black et al., "GPT-NeoX-20B", arXiv:2204.06745.

use crate::span::Sequence;
use overdrive_ir::{DType, Dim, Expr, Shape, Tensor, Unary};

/// The rotation of queries and keys by their positions.
#[derive(Clone, PartialEq, Debug)]
pub struct Rotary {
    /// Angle per position of each pair of channels. The first `2 * frequencies.len()` channels of
    /// a head are turned, the rest stay as they are.
    pub frequencies: Vec<f64>,
    /// Factor on cosines and sines: 1, except for stretched positions.
    pub gain: f64,
}

/// A rotation at the positions of a sequence.
#[derive(Copy, Clone)]
pub(crate) enum Rotation<'b> {
    /// A rotation of all channels: the matrices `[[cos, -sin], [sin, cos]]`, times the gain, that
    /// turn pairs of channels: `[T, 2, 2, D/2]`.
    All(Expr<'b>),
    /// A rotation of some channels: cosines and sines `[T, D]`, and the signed exchange `[D, D]` of
    /// the channels of a pair. For a channel that is not turned, they are 1, 0 and 0.
    Some([Expr<'b>; 3]),
}

impl Rotary {
    /// The angles per position without any stretching: `base^(-2i / turned)`.
    pub fn plain_frequencies(base: f64, turned: usize) -> Vec<f64> {
        (0..turned / 2).map(|i| base.powf(-2.0 * i as f64 / turned as f64)).collect()
    }

    /// The rotation of heads `depth` wide at the positions of a sequence.
    pub(crate) fn at<'b>(&self, sequence: &Sequence<'b>, depth: usize) -> Rotation<'b> {
        let b = sequence.ids.builder();
        let _scope = b.scope("rotary");
        let constant = |shape: Vec<usize>, values: &[f64]| {
            b.constant(Tensor::from_f64(DType::F32, shape, values))
        };
        let tokens = sequence.positions.shape()[0].clone();
        let positions = sequence.positions.convert(DType::F32).reshape([tokens.clone(), 1.into()]);
        let (gain, half) = (self.gain, self.frequencies.len());
        if 2 * half == depth {
            let angles = positions * constant(vec![half], &self.frequencies);
            let angles = angles.reshape([tokens, 1.into(), 1.into(), half.into()]);
            let straight = constant(vec![2, 2, 1], &[gain, 0.0, 0.0, gain]);
            let crossed = constant(vec![2, 2, 1], &[0.0, -gain, gain, 0.0]);
            let turned = angles.unary(Unary::Cos) * straight + angles.unary(Unary::Sin) * crossed;
            return Rotation::All(turned);
        }
        let pairs = self.frequencies.iter().chain(&self.frequencies).copied();
        let mut frequencies: Vec<f64> = pairs.collect();
        frequencies.resize(depth, 0.0);
        let gains: Vec<f64> =
            (0..depth).map(|channel| if channel < 2 * half { gain } else { 1.0 }).collect();
        let mut exchange = vec![0.0; depth * depth];
        for i in 0..half {
            exchange[(i + half) * depth + i] = -1.0;
            exchange[i * depth + i + half] = 1.0;
        }
        let angles = positions * constant(vec![depth], &frequencies);
        let gains = constant(vec![depth], &gains);
        let [cos, sin] = [Unary::Cos, Unary::Sin].map(|function| angles.unary(function) * gains);
        Rotation::Some([cos, sin, constant(vec![depth, depth], &exchange)])
    }
}

/// Turns x `[batch, H, T, D]`. A rotation of all channels is a product with 2x2 matrices. Each
/// channel is one sum of two terms, which fuses with the ops around it.
pub(crate) fn rotated<'b>(x: Expr<'b>, rotation: Rotation<'b>) -> Expr<'b> {
    match rotation {
        Rotation::All(matrices) if x.is_poison() || matrices.is_poison() => x,
        Rotation::All(matrices) => {
            let shape = x.shape();
            let [batch, heads, tokens, depth] = &shape.0[..] else {
                unreachable!("attention has four dimensions")
            };
            let half = depth.size().expect("a head has a fixed depth") / 2;
            let halves: Vec<Dim> =
                vec![batch.clone(), heads.clone(), tokens.clone(), 1.into(), 2.into(), half.into()];
            (x.reshape(Shape(halves)) * matrices).sum(&[4]).reshape(shape)
        }
        Rotation::Some([cos, sin, exchange]) => x * cos + x.matmul(exchange) * sin,
    }
}
