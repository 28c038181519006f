//! GPT-2 as it is published: learned positions, pre-norm blocks, fused query-key-value projection,
//! tied head.
//!
//! x is i32 token ids `[batch, T]`, y the logits `[batch, T, V]`; see [`Span`] for decoding. Names
//! and orientation of the weights are those of Hugging Face's checkpoints (`Conv1D`: input-major),
//! so that loading is a check and no mapping. Source: Radford et al., "Language models are
//! unsupervised multitask learners", 2019.

use crate::parameters::{Activation, NORMAL, bias, f32s, layer_norm};
use crate::span::{ScoreOptions, Sequence, Span};
use crate::transformer::residual_std;
use overdrive_ir::{Builder, Expr, Graph, GraphError, Init};

/// Sizes of a GPT-2.
#[derive(Clone, PartialEq, Debug)]
pub struct Gpt2 {
    /// V.
    pub vocabulary: usize,
    /// The longest sequence: rows of the table of positions.
    pub context: usize,
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
    /// Whether the output layer shares the embedding's weights.
    pub tied: bool,
}

impl Gpt2 {
    /// The graph of a span.
    ///
    /// # Errors
    /// When sizes do not fit together.
    pub fn build(&self, span: Span) -> Result<Graph, GraphError> {
        let b = Builder::new("gpt2");
        let sequence = Sequence::begin(&b, span);
        let width = self.width;
        let table = |name: &str, rows: usize| b.state_named(name, f32s([rows, width]), NORMAL);
        let tokens = table("transformer.wte.weight", self.vocabulary);
        let positions = table("transformer.wpe.weight", self.context);
        let mut h = tokens.embedding(sequence.ids) + positions.embedding(sequence.positions);
        for layer in 0..self.layers {
            let _scope = b.scope_path(&format!("transformer/h/{layer}"));
            h = h + self.attention(&sequence, layer, self.norm(h, "ln_1"));
            h = h + self.ffn(self.norm(h, "ln_2"));
        }
        let scope = b.scope("transformer");
        let h = self.norm(sequence.wanted(h, width), "ln_f");
        drop(scope);
        let head = if self.tied { tokens } else { table("lm_head.weight", self.vocabulary) };
        b.output("y", h.linear(head.t(), None));
        b.finish()
    }

    fn attention<'b>(&self, sequence: &Sequence<'b>, layer: usize, x: Expr<'b>) -> Expr<'b> {
        let (b, width) = (x.builder(), self.width);
        let _scope = b.scope("attn");
        let depth = width / self.heads;
        let parts = {
            let _scope = b.scope("c_attn");
            let (w, bias) = (weight(b, [width, 3 * width], NORMAL), bias(b, 3 * width));
            [0, 1, 2].map(|i| {
                let columns = [i * width, (i + 1) * width];
                let part = |x: Expr<'b>, axis| x.slice_axis(axis, columns[0], columns[1]);
                sequence.split(x.linear(part(w, 1), Some(part(bias, 0))), self.heads, depth)
            })
        };
        let joined = sequence.join(
            sequence.attend(layer, parts, ScoreOptions::default()),
            self.heads,
            depth,
        );
        affine(joined, "c_proj", [width, width], self.residual())
    }

    fn ffn<'b>(&self, x: Expr<'b>) -> Expr<'b> {
        let _scope = x.builder().scope("mlp");
        let hidden = self.activation.of(affine(x, "c_fc", [self.width, self.hidden], NORMAL));
        affine(hidden, "c_proj", [self.hidden, self.width], self.residual())
    }

    /// Initial values of the projections into the residual stream.
    fn residual(&self) -> Init {
        Init::Normal { std: residual_std(self.layers), seed: 0 }
    }

    fn norm<'b>(&self, x: Expr<'b>, name: &str) -> Expr<'b> {
        layer_norm(x, name, self.width, self.eps)
    }
}

fn weight(b: &Builder, [inputs, outputs]: [usize; 2], init: Init) -> Expr<'_> {
    b.state("weight", f32s([inputs, outputs]), init)
}

fn affine<'b>(x: Expr<'b>, name: &str, shape: [usize; 2], init: Init) -> Expr<'b> {
    let b = x.builder();
    let _scope = b.scope(name);
    x.linear(weight(b, shape, init), Some(bias(b, shape[1])))
}
