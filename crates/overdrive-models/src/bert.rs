//! BERT and the sentence encoders made of it: post-norm blocks that see both ways, and a pooled vector where wanted.
//!
//! x is i32 token ids `[batch, T]`, `mask` i32 `[batch, T]`: 1 for tokens, 0 for what only fills a row up. y is the last
//! hidden state `[batch, T, D]`, or a vector for each row `[batch, D]`. All tokens are of segment 0. Names and orientation
//! of the weights are those of Hugging Face's checkpoints, so that loading is a check and no mapping.
//! Sources: Devlin et al., arXiv:1810.04805; pooling: Reimers and Gurevych, "Sentence-BERT", arXiv:1908.10084.

use crate::parameters::{Activation, Bias, NORMAL, bias, f32s, projection};
use overdrive_ir::ops::Attention;
use overdrive_ir::{Builder, Compare, DType, Dim, Expr, Graph, GraphError, Init, TensorType};

/// Sizes of a BERT, and what becomes of its last hidden state.
#[derive(Clone, PartialEq, Debug)]
pub struct Bert {
    /// V.
    pub vocabulary: usize,
    /// The longest row: rows of the table of positions.
    pub context: usize,
    /// Kinds of segment.
    pub segments: usize,
    /// D.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// H, which divides `width`.
    pub heads: usize,
    /// Width of the feed-forward layer.
    pub hidden: usize,
    /// How the activation is computed.
    pub activation: Activation,
    /// ε of the layer norms.
    pub eps: f64,
    /// What is done with the last hidden state.
    pub pooling: Pooling,
    /// Whether a pooled vector is scaled to length 1.
    pub normalised: bool,
}

/// How a row of hidden states becomes one vector.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Pooling {
    /// Not at all.
    None,
    /// The state of the first token.
    First,
    /// The mean of the states of tokens that the mask lets through.
    Mean,
}

impl Bert {
    /// The graph; dimensions `batch` and `tokens` are names.
    ///
    /// # Errors
    /// When sizes do not fit together.
    pub fn build(&self) -> Result<Graph, GraphError> {
        let b = Builder::new("bert");
        let (batch, tokens) = (Dim::from("batch"), Dim::from("tokens"));
        let row = || TensorType::new(DType::I32, [batch.clone(), tokens.clone()]);
        let (ids, mask) = (b.input("x", row()), b.input("mask", row()));
        let visible = mask.compare(Compare::Ne, mask.constant(0.0));
        let mut h = {
            let _scope = b.scope("embeddings");
            let table = |name: &str, rows: usize| {
                let _scope = b.scope(name);
                b.state("weight", f32s([rows, self.width]), NORMAL)
            };
            let positions =
                table("position_embeddings", self.context).embedding(b.iota(DType::I32, [tokens.clone()], 0));
            let segment =
                table("token_type_embeddings", self.segments).slice_axis(0, 0, 1).reshape([self.width]);
            let words = table("word_embeddings", self.vocabulary).embedding(ids);
            self.norm(words + positions + segment)
        };
        for layer in 0..self.layers {
            let _scope = b.scope_path(&format!("encoder/layer/{layer}"));
            h = self.attention(h, visible);
            h = self.ffn(h);
        }
        b.output("y", self.pooled(h, visible));
        b.finish()
    }

    fn attention<'b>(&self, x: Expr<'b>, visible: Expr<'b>) -> Expr<'b> {
        let b = x.builder();
        let (width, heads, depth) = (self.width, self.heads, self.width / self.heads.max(1));
        let _scope = b.scope("attention");
        let [batch, tokens] = [Dim::from("batch"), Dim::from("tokens")];
        let mixed = {
            let _scope = b.scope("self");
            let split = |name| {
                let shape = [batch.clone(), tokens.clone(), heads.into(), depth.into()];
                projection(x, name, [width, width], Bias::Learnt).reshape(shape).transpose(&[0, 2, 1, 3])
            };
            let (q, k, v) = (split("query"), split("key"), split("value"));
            let scores = q.dot_to(k, &[(0, 0), (1, 1)], &[(3, 3)], x.dtype().accumulation());
            let scores = scores * Attention::FULL.factor(depth);
            // A row that is filled up entirely has no visible key: the lowest number instead of -∞ keeps it finite.
            let hidden = scores.constant(f64::from(f32::MIN));
            let visible = visible.reshape([batch.clone(), 1.into(), 1.into(), tokens.clone()]);
            let weights = visible.select(scores, hidden).softmax(3).convert(x.dtype());
            weights.dot(v, &[(0, 0), (1, 1)], &[(3, 2)])
        };
        let joined = mixed.transpose(&[0, 2, 1, 3]).reshape([batch, tokens, width.into()]);
        self.closed(joined, x, width)
    }

    fn ffn<'b>(&self, x: Expr<'b>) -> Expr<'b> {
        let hidden = {
            let _scope = x.builder().scope("intermediate");
            let wide = projection(x, "dense", [self.width, self.hidden], Bias::Learnt);
            self.activation.of(wide)
        };
        self.closed(hidden, x, self.hidden)
    }

    /// The output layer of a half block: `norm(residual + dense(x))`.
    fn closed<'b>(&self, x: Expr<'b>, residual: Expr<'b>, inputs: usize) -> Expr<'b> {
        let _scope = x.builder().scope("output");
        self.norm(projection(x, "dense", [inputs, self.width], Bias::Learnt) + residual)
    }

    fn norm<'b>(&self, x: Expr<'b>) -> Expr<'b> {
        let b = x.builder();
        let _scope = b.scope("LayerNorm");
        let scale = b.state("weight", f32s([self.width]), Init::Constant(1.0));
        x.layer_norm(scale, bias(b, self.width), self.eps)
    }

    fn pooled<'b>(&self, h: Expr<'b>, visible: Expr<'b>) -> Expr<'b> {
        let b = h.builder();
        let _scope = b.scope("pooling");
        let vector = match self.pooling {
            Pooling::None => return h,
            // Not a slice: the number of tokens is a name.
            Pooling::First => h.gather(b.full(DType::I32, [1usize], 0.0), &[1]),
            Pooling::Mean => {
                let weights = visible.select(h.constant(1.0), h.constant(0.0));
                let weights = weights.reshape([Dim::from("batch"), "tokens".into(), 1.into()]);
                let count = weights.sum(&[1]);
                (h * weights).sum(&[1]) / count.max(count.constant(1e-9))
            }
        };
        if !self.normalised {
            return vector;
        }
        let length = (vector * vector).sum(&[1]).sqrt().reshape([Dim::from("batch"), 1.into()]);
        vector / length.max(length.constant(1e-12))
    }
}
