//! Whisper: an encoder of sound, and a decoder of text that attends to the encoder's output.
//!
//! `input_features` is log-mel spectra `[batch, bins, frames]`, `decoder_input_ids` i32 token ids
//! `[batch, tokens]`; `logits` is `[batch, tokens, V]`. The number of frames is fixed: twice the
//! encoder's positions, since its second convolution takes every second one. Names and orientation
//! of the weights are those of Hugging Face's checkpoints. Source: Radford et al.,
//! arXiv:2212.04356.

use crate::blocks::{Names, Stack};
use crate::parameters::{Activation, NORMAL, bias, f32s};
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::ops::{Attention, Conv2d};
use overdrive_ir::{Builder, DType, Dim, Expr, Graph, GraphError, TensorType};

/// Sizes of a Whisper.
#[derive(Clone, PartialEq, Debug)]
pub struct Whisper {
    /// V.
    pub vocabulary: usize,
    /// Bins of a spectrum.
    pub bins: usize,
    /// Positions of the encoder: half the frames.
    pub positions: usize,
    /// Tokens of the longest text.
    pub context: usize,
    /// Blocks of the encoder.
    pub encoder: Stack,
    /// Blocks of the decoder, as wide as those of the encoder.
    pub decoder: Stack,
    /// Whether the output layer shares the embedding's weights.
    pub tied: bool,
}

const NAMES: Names = Names {
    norms: ["self_attn_layer_norm", "final_layer_norm"],
    attention: ["self_attn/q_proj", "self_attn/k_proj", "self_attn/v_proj", "self_attn/out_proj"],
    ffn: ["fc1", "fc2"],
};

/// Layers of the decoder's attention to the encoder's output.
const CROSS: [&str; 4] =
    ["encoder_attn/q_proj", "encoder_attn/k_proj", "encoder_attn/v_proj", "encoder_attn/out_proj"];

impl Whisper {
    /// The graph; dimensions `batch` and `tokens` are names.
    ///
    /// # Errors
    /// When sizes do not fit together.
    pub fn build(&self) -> Result<Graph, GraphError> {
        let b = Builder::new("whisper");
        let frames = [Dim::from("batch"), self.bins.into(), self.frames().into()];
        let features = b.input("input_features", TensorType::new(DType::F32, frames));
        let ids = [Dim::from("batch"), Dim::from("tokens")];
        let ids = b.input("decoder_input_ids", TensorType::new(DType::I32, ids));
        let table = f32s([self.vocabulary, self.decoder.width]);
        let tokens = b.state_named("model.decoder.embed_tokens.weight", table.clone(), NORMAL);
        let heard = self.encode(features);
        let h = self.decode(tokens.embedding(ids), heard);
        let head = if self.tied { tokens } else { b.state_named("proj_out.weight", table, NORMAL) };
        b.output("logits", h.linear(head.t(), None));
        b.finish()
    }

    /// Frames of a sound.
    pub fn frames(&self) -> usize {
        2 * self.positions
    }

    fn encode<'b>(&self, features: Expr<'b>) -> Expr<'b> {
        let (b, width) = (features.builder(), self.encoder.width);
        let _scope = b.scope_path("model/encoder");
        let h = features.reshape([
            Dim::from("batch"),
            self.bins.into(),
            1.into(),
            self.frames().into(),
        ]);
        let h = convolved(h, "conv1", [self.bins, width], 1);
        let h = convolved(h, "conv2", [width, width], 2);
        let h = h
            .reshape([Dim::from("batch"), width.into(), self.positions.into()])
            .transpose(&[0, 2, 1]);
        let h = h + positions(b, [self.positions, width]);
        let h = self.encoder.blocks(h, "layers", (&NAMES, Attention::FULL));
        self.encoder.norm(h, "layer_norm")
    }

    fn decode<'b>(&self, tokens: Expr<'b>, heard: Expr<'b>) -> Expr<'b> {
        let (b, stack) = (tokens.builder(), &self.decoder);
        let _scope = b.scope_path("model/decoder");
        let places = b.iota(DType::I32, [Dim::from("tokens")], 0);
        let mut h = tokens + positions(b, [self.context, stack.width]).embedding(places);
        for layer in 0..stack.layers {
            let _scope = b.scope_path(&format!("layers/{layer}"));
            let seen = stack.norm(h, NAMES.norms[0]);
            h = h + stack.attention([seen, seen], &NAMES.attention, Attention::CAUSAL);
            let asking = stack.norm(h, "encoder_attn_layer_norm");
            h = h + stack.attention([asking, heard], &CROSS, Attention::FULL);
            h = h + stack.ffn(stack.norm(h, NAMES.norms[1]), &NAMES.ffn);
        }
        stack.norm(h, "layer_norm")
    }
}

/// The table of positions of the present scope.
fn positions(b: &Builder, shape: [usize; 2]) -> Expr<'_> {
    let _scope = b.scope("embed_positions");
    b.state("weight", f32s(shape), NORMAL)
}

/// A convolution over three frames, every `step` of them, of x `[batch, C, 1, T]`, and GELU.
fn convolved<'b>(x: Expr<'b>, name: &str, [inputs, outputs]: [usize; 2], step: usize) -> Expr<'b> {
    let b = x.builder();
    let _scope = b.scope(name);
    let kernel = b.state("weight", f32s([outputs, inputs, 3]), NORMAL);
    let geometry = Conv2d { stride: [1, step], pad: [[0, 0], [1, 1]], ..Conv2d::new(1, 0) };
    let y = x.conv2d(kernel.reshape([outputs, inputs, 1, 3]), Some(bias(b, outputs)), geometry);
    Activation::Gelu(Approximation::Erf).of(y)
}
