//! Parameters as published checkpoints hold them: initial values, and the affine layer with weights
//! `[out, in]`.
//!
//! Initial values stand in until weights are loaded; their size is that of GPT-2's and BERT's own.

use overdrive_ir::ops::gelu::Approximation;
use overdrive_ir::{Builder, DType, Expr, Init, TensorType, Unary};

/// Initial values of matrices.
pub(crate) const NORMAL: Init = Init::Normal { std: crate::transformer::STD, seed: 0 };

/// Whether a layer adds a bias.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Bias {
    /// It does not.
    None,
    /// It adds a learnt one.
    Learnt,
}

/// The function between two layers.
#[derive(Copy, Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Activation {
    Silu,
    Gelu(Approximation),
    /// `x σ(1.702 x)`, an approximation of GELU that CLIP was trained with.
    QuickGelu,
    Relu,
}

impl Activation {
    /// It of x.
    pub(crate) fn of(self, x: Expr<'_>) -> Expr<'_> {
        match self {
            Self::Silu => x.silu(),
            Self::Gelu(approximation) => x.gelu(approximation),
            Self::QuickGelu => x * (x * 1.702).unary(Unary::Logistic),
            Self::Relu => x.relu(),
        }
    }
}

pub(crate) fn f32s<const N: usize>(shape: [usize; N]) -> TensorType {
    TensorType::new(DType::F32, shape)
}

/// The state `bias` of the present scope.
pub(crate) fn bias(b: &Builder, outputs: usize) -> Expr<'_> {
    b.state("bias", f32s([outputs]), Init::ZEROS)
}

/// `x wᵀ + bias` with the states `name.weight` `[out, in]` and, if there is one, `name.bias`
/// `[out]`.
pub(crate) fn projection<'b>(
    x: Expr<'b>,
    name: &str,
    [inputs, outputs]: [usize; 2],
    has: Bias,
) -> Expr<'b> {
    let b = x.builder();
    let _scope = b.scope(name);
    let w = b.state("weight", f32s([outputs, inputs]), NORMAL);
    x.linear(w.t(), (has == Bias::Learnt).then(|| bias(b, outputs)))
}

/// The activation of one projection of x under another: from `width` to `hidden` and back.
pub(crate) fn feed_forward<'b>(
    x: Expr<'b>,
    [wide, narrow]: [&str; 2],
    [width, hidden]: [usize; 2],
    activation: Activation,
) -> Expr<'b> {
    let widened = activation.of(projection(x, wide, [width, hidden], Bias::Learnt));
    projection(widened, narrow, [hidden, width], Bias::Learnt)
}

/// Layer norm over the last axis with the states `name.weight` and `name.bias`.
pub(crate) fn layer_norm<'b>(x: Expr<'b>, name: &str, width: usize, eps: f64) -> Expr<'b> {
    let b = x.builder();
    let _scope = b.scope(name);
    let scale = b.state("weight", f32s([width]), Init::Constant(1.0));
    x.layer_norm(scale, bias(b, width), eps)
}
