//! Rotations: codes of a linear layer stand for its weights times a block-diagonal Hadamard matrix,
//! and its inputs are multiplied by the same: `x Wᵀ = (x R) (W R)ᵀ`, as `R Rᵀ = I`.
//!
//! An outlier of a block is thereby spread over the block, where formats of few bits have a scale
//! for each 16 or 32 elements. Blocks keep an outlier out of the scales of all others, which a
//! rotation of whole rows does not. Invariant: a layer with a rotation computes the same, except
//! for rounding.
//!
//! Sources: Ashkboos et al., "QuaRot", arXiv:2404.00456; blocks for FP4: Egiazarian et al.,
//! "Bridging the gap between promise and performance for microscaling FP4 quantization",
//! arXiv:2509.23202.

use super::Scheme;
use super::held::LayerKind;
use super::layers::Layer;
use overdrive_ir::Expr;
use overdrive_ir::ops::Hadamard;
use std::borrow::Cow;

/// The rotation that a layer can have in place of one of blocks of `asked`, and why, if that is
/// another. A block is the largest power of two that divides the inputs.
pub(super) fn smaller(layer: &Layer, asked: usize) -> Option<(Option<usize>, String)> {
    let k = layer.shape[1];
    let block = asked.min(k & k.wrapping_neg());
    if layer.kind != LayerKind::Linear {
        let reason = "a rotation turns the inputs of linear layers only: rounded as it was";
        return Some((None, reason.to_owned()));
    }
    match block {
        _ if block == asked => None,
        0 | 1 => Some((None, format!("not rotated: its {k} inputs have no blocks"))),
        _ => {
            let reason = format!("rotated in blocks of {block}: {asked} do not divide its {k}");
            Some((Some(block), format!("{reason} inputs")))
        }
    }
}

impl Scheme {
    /// Rows of K as they have codes; codes become rows again by the same.
    pub(super) fn rotate(&self, mut rows: Vec<f64>) -> Vec<f64> {
        if let Some(block) = self.rotation {
            Hadamard { block }.transform(&mut rows);
        }
        rows
    }

    /// The inputs of a product, or a matrix of rows of K, as they meet the codes.
    pub(super) fn rotated<'b>(&self, x: Expr<'b>) -> Expr<'b> {
        self.rotation.map_or(x, |block| x.hadamard(block))
    }

    /// Sums of products of inputs `[K, K]`, for inputs as they meet the codes: `R S R`.
    pub(super) fn rotated_sums<'s>(&self, sums: &'s [f64], k: usize) -> Cow<'s, [f64]> {
        if self.rotation.is_none() {
            return Cow::Borrowed(sums);
        }
        let turned = |matrix: Vec<f64>| -> Vec<f64> {
            (0..k * k).map(|i| matrix[i % k * k + i / k]).collect()
        };
        let of_rows = self.rotate(sums.to_vec());
        Cow::Owned(turned(self.rotate(turned(of_rows))))
    }
}
