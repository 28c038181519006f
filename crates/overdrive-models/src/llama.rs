//! Llama and its kin (Mistral, Mixtral, Qwen2, Qwen3, Phi-3, Gemma, SmolLM3, OLMo 2): rotary
//! positions, RMS norm, grouped queries, gated feed-forward layers.
//!
//! x is i32 token ids `[batch, T]`, y the logits `[batch, T, V]`; see [`Span`] for decoding.
//! Related architectures differ in fields. Qwen2 has biases on queries, keys and values, Qwen3
//! norms on queries and keys. Some blocks of Mistral, Qwen and Gemma see only a window. Phi-3 keeps
//! projections of one input in one matrix. Gemma scales embeddings and adds 1 to the weights of
//! norms. From its second version on it caps scores and normalises the output of each half block;
//! OLMo 2 normalises that alone. Some blocks of SmolLM3 have no rotary embedding. Names and
//! orientation of the weights are those of Hugging Face's checkpoints (`[out, in]`), so loading
//! needs no mapping. Sources: Touvron et al., arXiv:2302.13971; grouped queries: Ainslie et al.,
//! arXiv:2305.13245; SwiGLU: Shazeer, arXiv:2002.05202. Sliding windows: Jiang et al., "Mistral
//! 7B", arXiv:2310.06825; Abdin et al., "Phi-3", arXiv:2404.14219; "Gemma 2", arXiv:2408.00118;
//! "Gemma 3", arXiv:2503.19786.

use crate::experts::Experts;
use crate::parameters::{Activation, Bias, NORMAL, f32s, projection};
use crate::rotary::{Rotary, Rotation, rotated};
use crate::span::{ScoreOptions, Sequence, Span, capped};
use overdrive_ir::{Builder, Expr, Graph, GraphError, Init};

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
    /// The rotation of queries and keys.
    pub rotary: Rotary,
    /// Rotation in blocks with a window, if it differs.
    pub window_rotary: Option<Rotary>,
    /// Blocks that turn no queries and keys.
    pub unturned: Vec<usize>,
    /// How many tokens a query of each block sees, its own included; all of them behind the end of
    /// the list.
    pub windows: Vec<Option<usize>>,
    /// Factor of the scores; `1 / √D` where none is given.
    pub scale: Option<f64>,
    /// Bound of the scores, which approach it as tanh does.
    pub score_cap: Option<f64>,
    /// Bound of the logits, likewise.
    pub logit_cap: Option<f64>,
    /// Factor of the embeddings.
    pub embedding_scale: Option<f64>,
    /// Biases of queries, keys and values.
    pub qkv_bias: Bias,
    /// Bias of attention's output projection.
    pub output_bias: Bias,
    /// RMS norms over queries and keys.
    pub qk_norm: QkNorm,
    /// Number added to the weights of norms.
    pub norm_offset: f64,
    /// The position of a half block's norms.
    pub norms: Norms,
    /// Activation of the gate.
    pub activation: Activation,
    /// Biases of the feed-forward layers.
    pub ffn_bias: Bias,
    /// Mixture of experts: several feed-forward layers, a few of them chosen per token, without
    /// biases and with SiLU.
    pub experts: Option<Experts>,
    /// Whether queries, keys and values share one matrix, and both widenings another.
    pub joint: bool,
    /// Whether the output layer shares the embedding's weights.
    pub tied: bool,
}

/// The axes of the RMS norm of queries and keys.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum QkNorm {
    /// There is none.
    None,
    /// Each head by itself.
    Heads,
    /// All heads together.
    Whole,
}

/// The position of the norms of attention and of the feed-forward layer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Norms {
    /// Before them.
    Before,
    /// Before them, and over what they add.
    Around,
    /// Over what they add.
    Behind,
}

impl Norms {
    /// Names of the norms before and behind attention, before and behind the feed-forward layer.
    fn names(self) -> [Option<&'static str>; 4] {
        let input = Some("input_layernorm");
        let attention = Some("post_attention_layernorm");
        let [before, behind] =
            [Some("pre_feedforward_layernorm"), Some("post_feedforward_layernorm")];
        match self {
            Self::Before => [input, None, attention, None],
            Self::Around => [input, attention, before, behind],
            Self::Behind => [None, attention, None, behind],
        }
    }
}

impl Llama {
    /// The graph of a span.
    ///
    /// # Errors
    /// When sizes do not fit together.
    pub fn build(&self, span: Span) -> Result<Graph, GraphError> {
        self.build_named("llama", span)
    }

    /// The same under a name of its own.
    pub(crate) fn build_named(&self, name: &str, span: Span) -> Result<Graph, GraphError> {
        let b = Builder::new(name);
        let sequence = Sequence::begin(&b, span);
        let table = f32s([self.vocabulary, self.width]);
        let tokens = b.state_named("model.embed_tokens.weight", table.clone(), NORMAL);
        let rotation = self.rotary.at(&sequence, self.depth);
        let window_rotation = self.window_rotary.as_ref();
        let window_rotation =
            window_rotation.map_or(rotation, |rotary| rotary.at(&sequence, self.depth));
        let mut h = tokens.embedding(sequence.ids);
        if let Some(scale) = self.embedding_scale {
            h = h * scale;
        }
        for layer in 0..self.layers {
            let _scope = b.scope_path(&format!("model/layers/{layer}"));
            let rotation = if self.window(layer).is_some() { window_rotation } else { rotation };
            let [before_attention, behind_attention, before_ffn, behind_ffn] = self.norms.names();
            let added =
                self.attention((&sequence, layer, rotation), self.normed(h, before_attention));
            h = h + self.normed(added, behind_attention);
            let added = self.ffn(layer, self.normed(h, before_ffn));
            h = h + self.normed(added, behind_ffn);
        }
        let scope = b.scope("model");
        let h = self.norm(sequence.wanted(h, self.width), "norm", self.width);
        drop(scope);
        let head = if self.tied { tokens } else { b.state_named("lm_head.weight", table, NORMAL) };
        let logits = h.linear(head.t(), None);
        b.output("y", self.logit_cap.map_or(logits, |cap| capped(logits, cap)));
        b.finish()
    }

    fn window(&self, layer: usize) -> Option<usize> {
        self.windows.get(layer).copied().flatten()
    }

    fn attention<'b>(
        &self,
        (sequence, layer, rotation): (&Sequence<'b>, usize, Rotation<'b>),
        x: Expr<'b>,
    ) -> Expr<'b> {
        let Self { width, heads, key_heads, depth, .. } = *self;
        let _scope = x.builder().scope("self_attn");
        let [q, k, v] = if self.joint {
            let ends = [heads, heads + key_heads, heads + 2 * key_heads].map(|end| end * depth);
            joint(x, ("qkv_proj", width), ends)
        } else {
            [("q_proj", heads), ("k_proj", key_heads), ("v_proj", key_heads)]
                .map(|(name, heads)| projection(x, name, [width, heads * depth], self.qkv_bias))
        };
        let turned = |x: Expr<'b>, heads: usize, norm: &str| {
            let whole = self.qk_norm == QkNorm::Whole;
            let x = if whole { self.norm(x, norm, heads * depth) } else { x };
            let x = sequence.split(x, heads, depth);
            let x = if self.qk_norm == QkNorm::Heads { self.norm(x, norm, depth) } else { x };
            if self.unturned.contains(&layer) { x } else { rotated(x, rotation) }
        };
        let parts = [
            turned(q, heads, "q_norm"),
            turned(k, key_heads, "k_norm"),
            sequence.split(v, key_heads, depth),
        ];
        let scores =
            ScoreOptions { window: self.window(layer), scale: self.scale, cap: self.score_cap };
        let joined = sequence.join(sequence.attend(layer, parts, scores), heads, depth);
        projection(joined, "o_proj", [heads * depth, width], self.output_bias)
    }

    fn ffn<'b>(&self, layer: usize, x: Expr<'b>) -> Expr<'b> {
        let experts = self.experts.as_ref();
        if let Some(experts) = experts.filter(|experts| !experts.plain_blocks.contains(&layer)) {
            return experts.mixed(x, self.width);
        }
        let _scope = x.builder().scope("mlp");
        let [gate, up] = if self.joint {
            joint(x, ("gate_up_proj", self.width), [self.hidden, 2 * self.hidden])
        } else {
            ["gate_proj", "up_proj"]
                .map(|name| projection(x, name, [self.width, self.hidden], self.ffn_bias))
        };
        let mixed = self.activation.of(gate) * up;
        projection(mixed, "down_proj", [self.hidden, self.width], self.ffn_bias)
    }

    /// x under a norm of this name, if there is one.
    fn normed<'b>(&self, x: Expr<'b>, name: Option<&str>) -> Expr<'b> {
        name.map_or(x, |name| self.norm(x, name, self.width))
    }

    fn norm<'b>(&self, x: Expr<'b>, name: &str, width: usize) -> Expr<'b> {
        let b = x.builder();
        let _scope = b.scope(name);
        let begin = Init::Constant(1.0 - self.norm_offset);
        let weight = b.state("weight", f32s([width]), begin);
        let weight = if self.norm_offset == 0.0 { weight } else { weight + self.norm_offset };
        x.rms_norm(weight, self.eps)
    }
}

/// Projections of x whose weights lie one behind the other in the state `name.weight`; each ends at
/// one of these rows.
fn joint<'b, const N: usize>(
    x: Expr<'b>,
    (name, inputs): (&str, usize),
    ends: [usize; N],
) -> [Expr<'b>; N] {
    let b = x.builder();
    let _scope = b.scope(name);
    let w = b.state("weight", f32s([ends[N - 1], inputs]), NORMAL);
    std::array::from_fn(|i| {
        let start = if i == 0 { 0 } else { ends[i - 1] };
        x.linear(w.slice_axis(0, start, ends[i]).t(), None)
    })
}
