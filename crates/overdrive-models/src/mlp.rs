//! Multi-layer perceptron: `h <- gelu(h w + b)` for every layer but the last, which has no
//! activation.
//!
//! x is `[batch, sizes[0]]`, y `[batch, sizes.last()]`; layer `fcN` has `fcN.weight` `[in, out]`
//! and `fcN.bias` `[out]`.

use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::{Builder, DType, Dim, Expr, Graph, GraphError, Init, TensorType};

pub(crate) fn mlp() -> Result<Graph, GraphError> {
    layers("mlp", &[512, 2048, 2048, 10])
}

pub(crate) fn digits_mlp() -> Result<Graph, GraphError> {
    layers("digits-mlp", &[64, 128, 128, 10])
}

/// The name of [`table_mlp`].
pub const TABLE_MLP: &str = "table-mlp";

/// The multi-layer perceptron of a table with so many features and classes: two hidden layers
/// of 128.
///
/// # Errors
/// When there are no features or classes.
pub fn table_mlp(features: usize, classes: usize) -> Result<Graph, GraphError> {
    layers(TABLE_MLP, &[features, 128, 128, classes])
}

fn layers(name: &str, sizes: &[usize]) -> Result<Graph, GraphError> {
    let b = Builder::new(name);
    let last = sizes.len() - 1;
    let mut h = b.input("x", TensorType::new(DType::F32, [Dim::from("batch"), sizes[0].into()]));
    for layer in 1..=last {
        let _scope = b.scope(&format!("fc{layer}"));
        h = linear(h, sizes[layer - 1], sizes[layer]);
        if layer < last {
            h = h.gelu(Approximation::Erf);
        }
    }
    b.output("y", h);
    b.finish()
}

/// `x w + bias` with both uniform in ±1/√inputs: unit variance in gives a variance of 1/3 out, as
/// PyTorch's default.
pub(crate) fn linear<'b>(x: Expr<'b>, inputs: usize, outputs: usize) -> Expr<'b> {
    let b = x.builder();
    let init = Init::Uniform { bound: 1.0 / (inputs as f64).sqrt(), seed: 0 };
    let w = b.state("weight", TensorType::new(DType::F32, [inputs, outputs]), init.clone());
    let bias = b.state("bias", TensorType::new(DType::F32, [outputs]), init);
    x.linear(w, Some(bias))
}
