//! `Parameters`: the number format in which a step keeps the parameters that it trains.
//!
//! The update is in f32 whatever the format, and gradients are the sums that they were.
//!
//! - `masters`: beside each f32 parameter, which is its master, a state has it in the format of
//!   contractions. The update writes both at once. Contractions read the copy and cast nothing, so
//!   that weights are cast once an update, however many batches it has. Numbers are bit for bit
//!   those of `f32`. The source is Micikevicius et al., "Mixed precision training",
//!   arXiv:1710.03740.
//! - `stochastic`: parameters are bf16 alone. The loop of the update widens one as it reads it. Its
//!   new value goes to the bf16 above or below, up with the probability of the part of the distance
//!   that lies behind it. So the mean is exact, and changes below half a unit of the last place
//!   add up, which rounding to nearest loses. Sources: Gupta et al., "Deep learning with limited
//!   numerical precision", arXiv:1502.02551; Zamirai et al., "Revisiting BFloat16 training",
//!   arXiv:2010.06192.
//!
//! Random bits are Philox of the recipe's seed, the update, the name of the parameter and the
//! element's place in the whole. So a run that goes on from a checkpoint, and any mesh of ranks,
//! draw the same.

use crate::moments::in_shape;
use overdrive_ir::eval::philox::site_of;
use overdrive_ir::{Binary, Builder, Compare, DType, Expr, Init, Prim, Tensor, Unary};
use serde::{Deserialize, Serialize};
use std::fmt;

/// How a step keeps the parameters that it trains.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Parameters {
    /// In f32. If an update has several batches, contractions in fewer bits read copies, as those
    /// of `Masters` do.
    #[default]
    F32,
    /// In f32, and those of contractions in their format too.
    Masters,
    /// Matrices in bf16 alone, rounded stochastically. Vectors, and tensors of fewer than 4096
    /// elements, stay in f32.
    Stochastic,
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Masters => "masters",
            Self::Stochastic => "stochastic",
        })
    }
}

impl Parameters {
    /// Whether there is nothing to say of them.
    pub(crate) fn is_f32(&self) -> bool {
        *self == Self::F32
    }
}

/// The format of parameters without masters.
pub(crate) const NARROW: DType = DType::BF16;

/// Begins the names of copies in the format of contractions.
pub(crate) const COPY: &str = "optimizer.copy.";

/// The parameter whose copy a state is.
pub(crate) fn copied(state: &str) -> Option<&str> {
    state.strip_prefix(COPY)
}

/// The name that the initial value of a state of a step is drawn by: a copy begins as its
/// parameter.
pub fn drawn_as(state: &str) -> &str {
    copied(state).unwrap_or(state)
}

/// A tensor of a model as a state of this type keeps it.
pub(crate) fn as_kept(tensor: Tensor, dtype: DType) -> Tensor {
    let narrows = tensor.ty().dtype == DType::F32 && dtype.is_float();
    if narrows && tensor.ty().dtype != dtype { tensor.convert(dtype) } else { tensor }
}

/// The initial value of a model's state as a state of this type begins.
pub(crate) fn begins_as(init: Init, dtype: DType) -> Init {
    match init {
        Init::Value(tensor) => Init::Value(as_kept(tensor, dtype)),
        // Random numbers and constants in fewer bits are those of f32, rounded.
        other => other,
    }
}

/// A parameter as a step keeps it, in the model's format.
pub(crate) fn as_given(tensor: Tensor) -> Tensor {
    if tensor.ty().dtype == NARROW { tensor.convert(DType::F32) } else { tensor }
}

/// The seed of the random bits of an update, a u64 scalar, from its number and the recipe's seed.
pub(crate) fn seed_of_step<'b>(count: Expr<'b>, seed: u64) -> Expr<'b> {
    /// Odd, so that seeds of different runs differ; large, so that their updates do.
    const APART: u64 = 0x9E37_79B9_7F4A_7C15;
    let own = seed.wrapping_mul(APART);
    let own = Tensor::from_ints(DType::U64, [0usize; 0], &[i128::from(own)]);
    count.convert(DType::U64) + count.builder().constant(own)
}

/// A parameter in f32, for its update.
pub(crate) fn read<'b>(b: &'b Builder, name: &str) -> Expr<'b> {
    b.find_state(name).expect("the step has its parameters").convert(DType::F32)
}

/// Replaces a parameter by its new value, f32, in each format in which the step keeps it.
pub(crate) fn replace<'b>(name: &str, new: Expr<'b>, seed: Expr<'b>) {
    let b = new.builder();
    let declared = b.find_state(name).expect("the step has its parameters");
    let sizes = declared.sizes();
    let kept = match declared.dtype() {
        NARROW => {
            let draw = Prim::RandomBits { shape: new.shape(), site: site_of(name) };
            to_neighbour(new, b.op1(draw, &[seed]))
        }
        _ => new,
    };
    b.update(name, in_shape(kept, &sizes));
    let copy = format!("{COPY}{name}");
    if let Some(declared) = b.find_state(&copy) {
        b.update(&copy, in_shape(new.convert(declared.dtype()), &sizes));
    }
}

/// The bf16 above or below each number, f32, by 32 bits of each. A number that is a bf16 stays, and
/// so does one that is not finite.
///
/// A bf16 has the first half of the bits of an f32. The second half is the part of the distance to
/// the next bf16. With a random number of as many bits added, it carries in that share of cases.
pub(crate) fn to_neighbour<'b>(x: Expr<'b>, bits: Expr<'b>) -> Expr<'b> {
    const HALF: u32 = 16;
    let cast = |x: Expr<'b>, to| x.builder().op1(Prim::Bitcast { to }, &[x]);
    let share = bits.binary(Binary::Shr, bits.constant(f64::from(HALF)));
    let is_finite = x.unary(Unary::Abs).compare(Compare::Lt, x.constant(f64::INFINITY));
    let raised = cast(x, DType::U32) + is_finite.select(share, share.constant(0.0));
    let kept = raised.binary(Binary::And, raised.constant(f64::from(u32::MAX << HALF)));
    is_finite.select(cast(kept, DType::F32), x).convert(NARROW)
}

#[cfg(test)]
mod tests;
