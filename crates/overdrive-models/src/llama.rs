//! Llama and its kin (Mistral, Qwen2, Qwen3): rotary positions, RMS norm, grouped queries, SwiGLU, no biases.
//!
//! x is i32 token ids `[batch, T]`, y the logits `[batch, T, V]`; see [`Span`] for decoding. The kin differ in a few fields:
//! Qwen2 has biases on queries, keys and values, Qwen3 norms on queries and keys instead, some blocks of Mistral and Qwen see a window only. Names and orientation of the
//! weights are those of Hugging Face's checkpoints (`[out, in]`), so that loading is a check and no mapping.
//! Sources: Touvron et al., arXiv:2302.13971; rotary positions: Su et al., arXiv:2104.09864, with the two halves of a head
//! as the pairs; grouped queries: Ainslie et al., arXiv:2305.13245; SwiGLU: Shazeer, arXiv:2002.05202; sliding windows: Jiang et al.,
//! "Mistral 7B", arXiv:2310.06825.

use crate::parameters::{Bias, NORMAL, f32s, projection};
use crate::span::{Sequence, Span};
use overdrive_ir::{Builder, DType, Dim, Expr, Graph, GraphError, Init, Shape, Tensor, Unary};

/// The rotation of queries and keys by their positions.
#[derive(Clone, PartialEq, Debug)]
pub struct Rotary {
    /// Angle per position of each pair of channels, `depth / 2` of them.
    pub frequencies: Vec<f64>,
    /// What cosines and sines are multiplied by: 1 but for YaRN.
    pub gain: f64,
}

/// Sizes and variants of a Llama.
#[derive(Clone, PartialEq, Debug)]
pub struct Llama {
    /// V.
    pub vocabulary: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Blocks.
    pub layers: usize,
    /// H.
    pub heads: usize,
    /// Hkv, which divides `heads`.
    pub key_heads: usize,
    /// D of a head, which is even.
    pub depth: usize,
    /// Width of the feed-forward layer.
    pub hidden: usize,
    /// ε of the norms.
    pub eps: f64,
    /// How queries and keys are turned.
    pub rotary: Rotary,
    /// How many tokens a query of each block sees, its own included; all of them behind the end of the list.
    pub windows: Vec<Option<usize>>,
    /// Biases of queries, keys and values.
    pub qkv_bias: Bias,
    /// Bias of attention's output projection.
    pub output_bias: Bias,
    /// RMS norms over each head of queries and keys.
    pub qk_norm: bool,
    /// Biases of the feed-forward layers.
    pub ffn_bias: Bias,
    /// Whether the head is the table of tokens.
    pub tied: bool,
}

impl Llama {
    /// The angles per position of rotary embedding without any stretching: `base^(-2i / depth)`.
    pub fn plain_frequencies(base: f64, depth: usize) -> Vec<f64> {
        (0..depth / 2).map(|i| base.powf(-2.0 * i as f64 / depth as f64)).collect()
    }

    /// The graph of a span.
    ///
    /// # Errors
    /// When sizes do not fit together.
    pub fn build(&self, span: Span) -> Result<Graph, GraphError> {
        let b = Builder::new("llama");
        let sequence = Sequence::begin(&b, span);
        let tokens = b.state_named("model.embed_tokens.weight", f32s([self.vocabulary, self.width]), NORMAL);
        let rotation = self.rotation(&sequence);
        let mut h = tokens.embedding(sequence.ids);
        for layer in 0..self.layers {
            let _scope = b.scope_path(&format!("model/layers/{layer}"));
            h = h + self.attention((&sequence, layer, rotation), self.norm(h, "input_layernorm", self.width));
            h = h + self.ffn(self.norm(h, "post_attention_layernorm", self.width));
        }
        let scope = b.scope("model");
        let h = self.norm(sequence.wanted(h, self.width), "norm", self.width);
        drop(scope);
        let own = || b.state_named("lm_head.weight", f32s([self.vocabulary, self.width]), NORMAL);
        let head = if self.tied { tokens } else { own() };
        b.output("y", h.linear(head.t(), None));
        b.finish()
    }

    /// For each token the matrices `[[cos, -sin], [sin, cos]]`, times the gain, that turn pairs of channels: `[T, 2, 2, D/2]`.
    fn rotation<'b>(&self, sequence: &Sequence<'b>) -> Expr<'b> {
        let b = sequence.ids.builder();
        let _scope = b.scope("rotary");
        let half = self.depth / 2;
        let constant =
            |shape: Vec<usize>, values: &[f64]| b.constant(Tensor::from_f64(DType::F32, shape, values));
        let frequencies = constant(vec![half], &self.rotary.frequencies);
        let tokens = sequence.positions.shape()[0].clone();
        let angles = sequence.positions.convert(DType::F32).reshape([tokens.clone(), 1.into()]) * frequencies;
        let angles = angles.reshape([tokens, 1.into(), 1.into(), half.into()]);
        let gain = self.rotary.gain;
        let straight = constant(vec![2, 2, 1], &[gain, 0.0, 0.0, gain]);
        let crossed = constant(vec![2, 2, 1], &[0.0, -gain, gain, 0.0]);
        angles.unary(Unary::Cos) * straight + angles.unary(Unary::Sin) * crossed
    }

    fn attention<'b>(
        &self,
        (sequence, layer, rotation): (&Sequence<'b>, usize, Expr<'b>),
        x: Expr<'b>,
    ) -> Expr<'b> {
        let Self { width, heads, key_heads, depth, .. } = *self;
        let _scope = x.builder().scope("self_attn");
        let project = |name: &str, heads: usize| {
            let y = projection(x, name, [width, heads * depth], self.qkv_bias);
            sequence.split(y, heads, depth)
        };
        let turned = |x: Expr<'b>, norm: &str| {
            let x = if self.qk_norm { self.norm(x, norm, depth) } else { x };
            rotated(x, rotation)
        };
        let q = turned(project("q_proj", heads), "q_norm");
        let k = turned(project("k_proj", key_heads), "k_norm");
        let window = self.windows.get(layer).copied().flatten();
        let mixed = sequence.attend(layer, [q, k, project("v_proj", key_heads)], window);
        let joined = sequence.join(mixed, heads, depth);
        projection(joined, "o_proj", [heads * depth, width], self.output_bias)
    }

    fn ffn<'b>(&self, x: Expr<'b>) -> Expr<'b> {
        let _scope = x.builder().scope("mlp");
        let wide = |name| projection(x, name, [self.width, self.hidden], self.ffn_bias);
        projection(
            wide("gate_proj").silu() * wide("up_proj"),
            "down_proj",
            [self.hidden, self.width],
            self.ffn_bias,
        )
    }

    fn norm<'b>(&self, x: Expr<'b>, name: &str, width: usize) -> Expr<'b> {
        let _scope = x.builder().scope(name);
        x.rms_norm(x.builder().state("weight", f32s([width]), Init::Constant(1.0)), self.eps)
    }
}

/// Turns channel `i` of x `[batch, H, T, D]` with channel `i + D/2`: a product with 2x2 matrices, one sum of two terms for
/// each channel, which fuses with what stands around it.
fn rotated<'b>(x: Expr<'b>, rotation: Expr<'b>) -> Expr<'b> {
    if x.is_poison() || rotation.is_poison() {
        return x;
    }
    let shape = x.shape();
    let [batch, heads, tokens, depth] = &shape.0[..] else { unreachable!("attention has four dimensions") };
    let half = depth.size().expect("a head has a fixed depth") / 2;
    let halves: Vec<Dim> =
        vec![batch.clone(), heads.clone(), tokens.clone(), 1.into(), 2.into(), half.into()];
    (x.reshape(Shape(halves)) * rotation).sum(&[4]).reshape(shape)
}
