//! The graphs of the kernel cases, each reading like its formula.

use overdrive_ir::ops::Attention;
use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::{
    Builder, DType, DotGeneral, Expr, Graph, GraphError, Init, Precision, Prim, Shape, TensorType,
    Unary,
};

fn f32s(shape: impl Into<Shape>) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// A graph of one input `x` and one output `y`.
fn function(
    name: &str,
    (dtype, shape): (DType, &[usize]),
    body: impl for<'b> FnOnce(&'b Builder, Expr<'b>) -> Expr<'b>,
) -> Result<Graph, GraphError> {
    let b = Builder::new(name);
    let x = b.input("x", TensorType::new(dtype, shape));
    b.output("y", body(&b, x));
    b.finish()
}

/// Both operands are inputs, so that no back end packs ahead of time what libraries pack in each
/// call.
pub(crate) fn matmul(dtype: DType, [m, n, k]: [usize; 3]) -> Result<Graph, GraphError> {
    let b = Builder::new("matmul");
    let x = b.input("a", TensorType::new(dtype, [m, k]));
    let y = b.input("b", TensorType::new(dtype, [k, n]));
    let dot = DotGeneral {
        batch: vec![],
        contract: vec![(1, 0)],
        accumulate: DType::F32,
        out: DType::F32,
        precision: Precision::Exact,
    };
    b.output("c", b.op1(Prim::DotGeneral(dot), &[x, y]));
    b.finish()
}

/// In the type of `x`, which it multiplies.
fn weight<'b>(x: Expr<'b>, name: &str, shape: [usize; 2]) -> Expr<'b> {
    let init = Init::Normal { std: (1.0 / shape[0] as f64).sqrt(), seed: 1 };
    x.builder().state(name, TensorType::new(x.dtype(), shape), init)
}

pub(super) fn linear(dtype: DType, [m, k, n]: [usize; 3]) -> Result<Graph, GraphError> {
    function("linear", (dtype, &[m, k]), |_, x| x.linear(weight(x, "w", [k, n]), None))
}

pub(super) fn linear_gelu(dtype: DType, [m, k, n]: [usize; 3]) -> Result<Graph, GraphError> {
    function("linear+gelu", (dtype, &[m, k]), |b, x| {
        let bias = b.state("bias", TensorType::new(dtype, [n]), Init::Normal { std: 0.1, seed: 2 });
        x.linear(weight(x, "w", [k, n]), Some(bias)).gelu(Approximation::Tanh)
    })
}

pub(crate) fn copy(dtype: DType, shape: &[usize]) -> Result<Graph, GraphError> {
    function("copy", (dtype, shape), |_, x| x)
}

/// Eight elementwise ops, none of which folds into another.
pub(super) fn chain(shape: &[usize]) -> Result<Graph, GraphError> {
    function("chain", (DType::F32, shape), |_, x| {
        let h = (x * 1.5 + 0.25).unary(Unary::Abs);
        let h = (h - x).max(x.constant(-0.5)) * x;
        h.min(x.constant(2.0)) + x
    })
}

pub(super) fn softmax(dtype: DType, shape: [usize; 2]) -> Result<Graph, GraphError> {
    function("softmax", (dtype, &shape), |_, x| x.softmax(1))
}

pub(super) fn layer_norm(dtype: DType, shape: [usize; 2]) -> Result<Graph, GraphError> {
    function("layer_norm", (dtype, &shape), |b, x| {
        let scale = b.state("scale", TensorType::new(dtype, [shape[1]]), Init::Constant(1.0));
        let bias = b.state("bias", TensorType::new(dtype, [shape[1]]), Init::ZEROS);
        x.layer_norm(scale, bias, 1e-5)
    })
}

pub(super) fn rms_norm(dtype: DType, shape: [usize; 2]) -> Result<Graph, GraphError> {
    function("rms_norm", (dtype, &shape), |b, x| {
        let scale = b.state("scale", TensorType::new(dtype, [shape[1]]), Init::Constant(1.0));
        x.rms_norm(scale, 1e-5)
    })
}

/// The loss of each row of logits; the targets are a second input.
pub(super) fn cross_entropy(dtype: DType, shape: [usize; 2]) -> Result<Graph, GraphError> {
    function("cross_entropy", (dtype, &shape), |b, x| {
        let targets = b.input("targets", TensorType::new(DType::I32, [shape[0]]));
        x.cross_entropy(targets, None)[0]
    })
}

pub(super) fn attention(dtype: DType, shape: [usize; 4]) -> Result<Graph, GraphError> {
    let b = Builder::new("attention");
    let [q, k, v] = ["q", "k", "v"].map(|name| b.input(name, TensorType::new(dtype, shape)));
    let [y, _] = q.attention(k, v, Attention::CAUSAL);
    b.output("y", y);
    b.finish()
}

/// Only the products of the built-in transformer, on the same shapes. Each of six blocks has:
/// - the projections to query, key and value;
/// - the scores, an output of their own;
/// - the weighted values, under weights that are given;
/// - the projection after them;
/// - both layers of the feed-forward.
pub(super) fn transformer_matmuls() -> Result<Graph, GraphError> {
    let (batch, t, d, heads, ffn) = (8, 128, 512, 8, 2048);
    let b = Builder::new("products");
    let mut x = b.input("x", f32s([batch, t, d]));
    for block in 0..6 {
        let _scope = b.scope(&format!("block{block}"));
        let head = |name: &str| {
            let part = x.linear(weight(x, name, [d, d]), None);
            part.reshape([batch, t, heads, d / heads]).transpose(&[0, 2, 1, 3])
        };
        let scores = head("query").matmul(head("key").t());
        b.output(&format!("scores{block}"), scores);
        let std = (1.0 / t as f64).sqrt();
        let probabilities =
            b.state("probabilities", f32s([batch, heads, t, t]), Init::Normal { std, seed: 3 });
        let mixed =
            probabilities.matmul(head("value")).transpose(&[0, 2, 1, 3]).reshape([batch, t, d]);
        let wide = mixed
            .linear(weight(x, "projection", [d, d]), None)
            .linear(weight(x, "expand", [d, ffn]), None);
        x = wide.linear(weight(x, "contract", [ffn, d]), None);
    }
    b.output("y", x);
    b.finish()
}
