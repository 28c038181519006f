//! Pre-norm blocks of encoders and encoder-decoders: `x <- x + attention(norm(x))`, `x <- x +
//! ffn(norm(x))`, under the names that checkpoints give the parts.
//!
//! Sources: Vaswani et al., arXiv:1706.03762; norms before the halves: Dosovitskiy et al.,
//! arXiv:2010.11929.

use crate::parameters::{Activation, Bias, feed_forward, layer_norm, projection};
use overdrive_ir::ops::Attention;
use overdrive_ir::{Expr, Shape};

/// Sizes of a stack of blocks that see whole sequences.
#[derive(Clone, PartialEq, Debug)]
pub struct Stack {
    /// D.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// H, which divides `width`.
    pub heads: usize,
    /// Width of the feed-forward layer.
    pub hidden: usize,
    /// The form of the activation.
    pub activation: Activation,
    /// ε of the layer norms.
    pub eps: f64,
    /// Biases of queries, keys and values.
    pub qkv_bias: [Bias; 3],
}

/// Names of a block's parts in checkpoints, with slashes between modules.
pub(crate) struct Names {
    /// The norms before attention and before the feed-forward layer.
    pub(crate) norms: [&'static str; 2],
    /// Queries, keys, values, and what joins the heads.
    pub(crate) attention: [&'static str; 4],
    /// Widening and narrowing.
    pub(crate) ffn: [&'static str; 2],
}

impl Stack {
    /// Blocks under `path`, a scope for each by its number.
    pub(crate) fn blocks<'b>(
        &self,
        mut x: Expr<'b>,
        path: &str,
        (names, mask): (&Names, Attention),
    ) -> Expr<'b> {
        for layer in 0..self.layers {
            let _scope = x.builder().scope_path(&format!("{path}/{layer}"));
            let seen = self.norm(x, names.norms[0]);
            x = x + self.attention([seen, seen], &names.attention, mask);
            x = x + self.ffn(self.norm(x, names.norms[1]), &names.ffn);
        }
        x
    }

    /// Attention of the first input (queries) over the second (keys and values), each `[B, T, D]`.
    pub(crate) fn attention<'b>(
        &self,
        [x, other]: [Expr<'b>; 2],
        names: &[&str; 4],
        mask: Attention,
    ) -> Expr<'b> {
        if x.is_poison() || other.is_poison() {
            return x;
        }
        let Self { width, heads, .. } = *self;
        let split = |of: Expr<'b>, part: usize| {
            let mut shape = of.shape().0;
            shape.truncate(2);
            shape.extend([heads.into(), (width / heads).into()]);
            let projected = projection(of, names[part], [width, width], self.qkv_bias[part]);
            projected.reshape(Shape(shape)).transpose(&[0, 2, 1, 3])
        };
        let [mixed, _] = split(x, 0).attention(split(other, 1), split(other, 2), mask);
        let joined = mixed.transpose(&[0, 2, 1, 3]).reshape(x.shape());
        projection(joined, names[3], [width, width], Bias::Learnt)
    }

    pub(crate) fn ffn<'b>(&self, x: Expr<'b>, names: &[&str; 2]) -> Expr<'b> {
        feed_forward(x, *names, [self.width, self.hidden], self.activation)
    }

    pub(crate) fn norm<'b>(&self, x: Expr<'b>, name: &str) -> Expr<'b> {
        layer_norm(x, name, self.width, self.eps)
    }
}
