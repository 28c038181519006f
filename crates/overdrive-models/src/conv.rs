//! Convolutional classifiers: convolutions with ReLU, then a linear layer on the mean over space,
//! or on every place.
//!
//! x is `[batch, C, H, W]`, y `[batch, 10]`; kernels are `[out, in, 3, 3]`, padded by 1.

use crate::mlp::linear;
use overdrive_ir::ops::Conv2d;
use overdrive_ir::{Builder, DType, Dim, Expr, Graph, GraphError, Init, TensorType};

pub(crate) fn conv() -> Result<Graph, GraphError> {
    let b = Builder::new("conv");
    let x = b.input("x", f32s([Dim::from("batch"), 3.into(), 64.into(), 64.into()]));
    let h = {
        let _scope = b.scope("conv1");
        batch_norm(x.conv2d(kernel(&b, 3, 64), None, Conv2d::new(1, 1)), 64).relu()
    };
    let h = {
        let _scope = b.scope("conv2");
        batch_norm(h.conv2d(kernel(&b, 64, 128), None, Conv2d::new(2, 1)), 128).relu()
    };
    b.output("y", classify(h, 128));
    b.finish()
}

/// Biases and no batch norm, so that training needs no running averages. The head sees each of the
/// 4x4 places: a mean over them forgets where a stroke was, and costs three points of accuracy.
pub(crate) fn digits_conv() -> Result<Graph, GraphError> {
    let b = Builder::new("digits-conv");
    let x = b.input("x", f32s([Dim::from("batch"), 1.into(), 8.into(), 8.into()]));
    let h = {
        let _scope = b.scope("conv1");
        x.conv2d(kernel(&b, 1, 16), Some(bias(&b, 1, 16)), Conv2d::new(1, 1)).relu()
    };
    let h = {
        let _scope = b.scope("conv2");
        h.conv2d(kernel(&b, 16, 32), Some(bias(&b, 16, 32)), Conv2d::new(2, 1)).relu()
    };
    let h = {
        let _scope = b.scope("conv3");
        h.conv2d(kernel(&b, 32, 32), Some(bias(&b, 32, 32)), Conv2d::new(1, 1)).relu()
    };
    let y = {
        let _scope = b.scope("head");
        let places = 32 * 4 * 4;
        linear(h.reshape([Dim::from("batch"), places.into()]), places, 10)
    };
    b.output("y", y);
    b.finish()
}

fn classify(h: Expr<'_>, channels: usize) -> Expr<'_> {
    let _scope = h.builder().scope("head");
    linear(h.global_avg_pool(), channels, 10)
}

fn f32s(shape: impl Into<overdrive_ir::Shape>) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// Uniform in ±1/√(9 inputs), 9 being the taps of a 3x3 kernel.
fn uniform(inputs: usize) -> Init {
    Init::Uniform { bound: 1.0 / (9.0 * inputs as f64).sqrt(), seed: 0 }
}

fn kernel(b: &Builder, inputs: usize, outputs: usize) -> Expr<'_> {
    b.state("weight", f32s([outputs, inputs, 3, 3]), uniform(inputs))
}

fn bias(b: &Builder, inputs: usize, outputs: usize) -> Expr<'_> {
    b.state("bias", f32s([outputs]), uniform(inputs))
}

/// Running statistics are a little off 0 and 1, so that an implementation that ignores one gives
/// wrong outputs.
fn batch_norm(x: Expr<'_>, channels: usize) -> Expr<'_> {
    let b = x.builder();
    let _scope = b.scope("norm");
    let spread = Init::Normal { std: 0.1, seed: 0 };
    let scale = b.state("scale", f32s([channels]), Init::Constant(1.0));
    let bias = b.state("bias", f32s([channels]), spread.clone());
    let mean = b.state("mean", f32s([channels]), spread);
    let variance = b.state("variance", f32s([channels]), Init::Constant(0.5));
    x.batch_norm([scale, bias, mean, variance], 1e-5)
}
