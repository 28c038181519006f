//! Pre-norm decoder blocks: `x <- x + attention(norm(x))`, `x <- x + ffn(norm(x))`.
//!
//! x and y are `[batch, T, D]`; attention is causal over `heads` heads; the FFN is `[D, 4D]`, tanh
//! GELU, `[4D, D]`. Sources: Vaswani et al., arXiv:1706.03762; pre-norm, sizes and initial values:
//! GPT-2 (Radford et al., 2019).

use overdrive_ir::ops::{Attention, gelu::Approximation};
use overdrive_ir::{Builder, DType, Dim, Expr, Graph, GraphError, Init, TensorType};

/// Sizes of a stack of blocks.
#[derive(Copy, Clone, Debug)]
pub(crate) struct TransformerSize {
    pub(crate) layers: usize,
    /// T.
    pub(crate) context: usize,
    /// D.
    pub(crate) width: usize,
    pub(crate) heads: usize,
}

pub(crate) fn transformer() -> Result<Graph, GraphError> {
    blocks_alone("transformer", TransformerSize { layers: 6, context: 128, width: 512, heads: 8 })
}

pub(crate) fn quick_inference() -> Result<Graph, GraphError> {
    blocks_alone(
        "quick-inference",
        TransformerSize { layers: 1, context: 128, width: 256, heads: 8 },
    )
}

pub(crate) fn quick_memory() -> Result<Graph, GraphError> {
    blocks_alone("quick-memory", TransformerSize { layers: 1, context: 256, width: 512, heads: 8 })
}

/// No embedding and no final norm: x is what the blocks transform.
fn blocks_alone(name: &str, size: TransformerSize) -> Result<Graph, GraphError> {
    let b = Builder::new(name);
    let x = b.input(
        "x",
        TensorType::new(DType::F32, [Dim::from("batch"), size.context.into(), size.width.into()]),
    );
    b.output("y", blocks(x, size));
    b.finish()
}

pub(crate) fn blocks(mut x: Expr<'_>, size: TransformerSize) -> Expr<'_> {
    for layer in 0..size.layers {
        let _scope = x.builder().scope(&format!("block{layer}"));
        x = x + attention(layer_norm(x, "norm1", size.width), size);
        x = x + ffn(layer_norm(x, "norm2", size.width), size);
    }
    x
}

fn attention(x: Expr<'_>, size: TransformerSize) -> Expr<'_> {
    let TransformerSize { context, width, heads, .. } = size;
    let _scope = x.builder().scope("attention");
    // [batch, T, D] -> [batch, H, T, D/H]
    let split = |name| {
        let shape = [Dim::from("batch"), context.into(), heads.into(), (width / heads).into()];
        linear(x, name, [width, width], STD).reshape(shape).transpose(&[0, 2, 1, 3])
    };
    let [mixed, _] = split("query").attention(split("key"), split("value"), Attention::CAUSAL);
    let joined =
        mixed.transpose(&[0, 2, 1, 3]).reshape([Dim::from("batch"), context.into(), width.into()]);
    linear(joined, "projection", [width, width], residual_std(size.layers))
}

fn ffn(x: Expr<'_>, size: TransformerSize) -> Expr<'_> {
    let _scope = x.builder().scope("ffn");
    let hidden = linear(x, "expand", [size.width, 4 * size.width], STD).gelu(Approximation::Tanh);
    linear(hidden, "contract", [4 * size.width, size.width], residual_std(size.layers))
}

/// Standard deviation of initial weights.
pub const STD: f64 = 0.02;

/// Each block adds twice to the residual stream, so its last layers start smaller by the root of
/// that count.
pub(crate) fn residual_std(layers: usize) -> f64 {
    STD / (2.0 * layers as f64).sqrt()
}

fn linear<'b>(x: Expr<'b>, name: &str, shape: [usize; 2], std: f64) -> Expr<'b> {
    let b = x.builder();
    let _scope = b.scope(name);
    let w = b.state("weight", TensorType::new(DType::F32, shape), Init::Normal { std, seed: 0 });
    let bias = b.state("bias", TensorType::new(DType::F32, [shape[1]]), Init::ZEROS);
    x.linear(w, Some(bias))
}

/// Over the last axis, with ε of 1e-5.
pub(crate) fn layer_norm<'b>(x: Expr<'b>, name: &str, width: usize) -> Expr<'b> {
    let b = x.builder();
    let _scope = b.scope(name);
    let ty = || TensorType::new(DType::F32, [width]);
    x.layer_norm(
        b.state("scale", ty(), Init::Constant(1.0)),
        b.state("bias", ty(), Init::ZEROS),
        1e-5,
    )
}
