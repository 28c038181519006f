//! Small models of the three kinds, as graphs.

use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::ops::{Attention, Conv2d};
use overdrive_ir::{Builder, DType, Expr, Graph, Init, Shape, TensorType};

fn weight<'b>(b: &'b Builder, name: &str, shape: impl Into<Shape>) -> Expr<'b> {
    b.state(name, TensorType::new(DType::F32, shape), Init::Normal { std: 0.1, seed: 1 })
}

fn linear<'b>(b: &'b Builder, x: Expr<'b>, name: &str, outputs: usize) -> Expr<'b> {
    let _scope = b.scope(name);
    let inputs = x.size(x.rank() - 1);
    x.linear(weight(b, "w", [inputs, outputs]), Some(weight(b, "bias", [outputs])))
}

/// `[6, 33]` through two hidden layers.
pub(crate) fn mlp() -> (Graph, Vec<usize>) {
    let (b, shape) = (Builder::new("mlp"), vec![6, 33]);
    let x = b.input("x", TensorType::new(DType::F32, shape.clone()));
    let x = linear(&b, x, "in", 70).gelu(Approximation::Erf);
    let x = linear(&b, x, "hidden", 40).gelu(Approximation::Erf);
    b.output("y", linear(&b, x, "out", 10));
    (b.finish().unwrap(), shape)
}

/// `[2, 3, 17, 17]` through two convolutions, the second of stride 2.
pub(crate) fn conv() -> (Graph, Vec<usize>) {
    let (b, shape) = (Builder::new("conv"), vec![2, 3, 17, 17]);
    let mut x = b.input("x", TensorType::new(DType::F32, shape.clone()));
    for (name, outputs, stride) in [("first", 20, 1), ("second", 33, 2)] {
        let _scope = b.scope(name);
        x = x.conv2d(weight(&b, "w", [outputs, x.size(1), 3, 3]), None, Conv2d::new(stride, 1));
        let one = b.state("variance", TensorType::new(DType::F32, [outputs]), Init::Constant(1.5));
        let [scale, bias, mean] = ["scale", "bias", "mean"].map(|name| weight(&b, name, [outputs]));
        x = x.batch_norm([scale, bias, mean, one], 1e-5).relu();
    }
    b.output("y", linear(&b, x.global_avg_pool(), "out", 10));
    (b.finish().unwrap(), shape)
}

/// `[2, 40, 48]` through a pre-norm block of four heads.
pub(crate) fn transformer() -> (Graph, Vec<usize>) {
    let (b, shape) = (Builder::new("transformer"), vec![2, 40, 48]);
    let (heads, width) = (4, 48);
    let x = b.input("x", TensorType::new(DType::F32, shape.clone()));
    let normed = |x, name: &str| {
        let _scope = b.scope(name);
        layer_norm(&b, x, width)
    };
    let y = normed(x, "norm1");
    let split = |name: &str| {
        linear(&b, y, name, width).reshape([2, 40, heads, width / heads]).transpose(&[0, 2, 1, 3])
    };
    let [q, k, v] = ["q", "k", "v"].map(split);
    let [out, _] = q.attention(k, v, Attention::CAUSAL);
    let merged = out.transpose(&[0, 2, 1, 3]).reshape(shape.clone());
    let x = x + linear(&b, merged, "out", width);
    let y = linear(&b, normed(x, "norm2"), "up", 4 * width).gelu(Approximation::Tanh);
    b.output("y", x + linear(&b, y, "down", width));
    (b.finish().unwrap(), shape)
}

fn layer_norm<'b>(b: &'b Builder, x: Expr<'b>, width: usize) -> Expr<'b> {
    let scale = b.state("scale", TensorType::new(DType::F32, [width]), Init::Constant(1.0));
    x.layer_norm(scale, weight(b, "bias", [width]), 1e-5)
}
