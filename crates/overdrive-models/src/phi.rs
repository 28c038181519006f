//! Phi, versions 1, 1.5 and 2. Attention and feed-forward layer of a block read the same norm, and
//! their outputs are added. Rotary embedding covers a part of the channels. All layers have biases.
//!
//! x is i32 token ids `[batch, T]`, y the logits `[batch, T, V]`; see [`Span`] for decoding. Names
//! and orientation of the weights are those of Hugging Face's checkpoints (`[out, in]`), so that
//! loading is a check and no mapping. Sources: Gunasekar et al., "Textbooks are all you need",
//! arXiv:2306.11644; parallel blocks: Wang and Komatsuzaki, "GPT-J-6B", 2021.

use crate::parameters::{
    Activation, Bias, NORMAL, bias, f32s, feed_forward, layer_norm, projection,
};
use crate::rotary::{Rotary, Rotation, rotated};
use crate::span::{ScoreOptions, Sequence, Span};
use overdrive_ir::{Builder, Expr, Graph, GraphError};

/// Sizes and variants of a Phi.
#[derive(Clone, PartialEq, Debug)]
pub struct Phi {
    /// V.
    pub vocabulary: usize,
    /// The longest sequence.
    pub context: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// H, which divides `width`.
    pub heads: usize,
    /// Hkv, which divides `heads`.
    pub key_heads: usize,
    /// Width of the feed-forward layer.
    pub hidden: usize,
    /// The form of the activation.
    pub activation: Activation,
    /// ε of the layer norms.
    pub eps: f64,
    /// The rotation of queries and keys.
    pub rotary: Rotary,
    /// Layer norms over each head of queries and keys.
    pub qk_norm: bool,
    /// Whether the output layer shares the embedding's weights.
    pub tied: bool,
}

impl Phi {
    /// The graph of a span.
    ///
    /// # Errors
    /// When sizes do not fit together.
    pub fn build(&self, span: Span) -> Result<Graph, GraphError> {
        let b = Builder::new("phi");
        let sequence = Sequence::begin(&b, span);
        let table = f32s([self.vocabulary, self.width]);
        let tokens = b.state_named("model.embed_tokens.weight", table.clone(), NORMAL);
        let rotation = self.rotary.at(&sequence, self.width / self.heads);
        let mut h = tokens.embedding(sequence.ids);
        for layer in 0..self.layers {
            let _scope = b.scope_path(&format!("model/layers/{layer}"));
            let x = layer_norm(h, "input_layernorm", self.width, self.eps);
            h = self.attention((&sequence, layer, rotation), x) + self.ffn(x) + h;
        }
        let scope = b.scope("model");
        let h = layer_norm(sequence.wanted(h, self.width), "final_layernorm", self.width, self.eps);
        drop(scope);
        let scope = b.scope("lm_head");
        let head = if self.tied { tokens } else { b.state("weight", table, NORMAL) };
        let shift = bias(&b, self.vocabulary);
        drop(scope);
        b.output("y", h.linear(head.t(), Some(shift)));
        b.finish()
    }

    fn attention<'b>(
        &self,
        (sequence, layer, rotation): (&Sequence<'b>, usize, Rotation<'b>),
        x: Expr<'b>,
    ) -> Expr<'b> {
        let Self { width, heads, key_heads, .. } = *self;
        let depth = width / heads;
        let _scope = x.builder().scope("self_attn");
        let split = |name: &str, heads: usize| {
            let part = projection(x, name, [width, heads * depth], Bias::Learnt);
            sequence.split(part, heads, depth)
        };
        let turned = |x: Expr<'b>, norm: &str| {
            let x = if self.qk_norm { layer_norm(x, norm, depth, self.eps) } else { x };
            rotated(x, rotation)
        };
        let parts = [
            turned(split("q_proj", heads), "q_layernorm"),
            turned(split("k_proj", key_heads), "k_layernorm"),
            split("v_proj", key_heads),
        ];
        let joined =
            sequence.join(sequence.attend(layer, parts, ScoreOptions::default()), heads, depth);
        projection(joined, "dense", [width, width], Bias::Learnt)
    }

    fn ffn<'b>(&self, x: Expr<'b>) -> Expr<'b> {
        let _scope = x.builder().scope("mlp");
        feed_forward(x, ["fc1", "fc2"], [self.width, self.hidden], self.activation)
    }
}
