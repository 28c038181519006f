//! `quantize` puts the weights of linear and convolution layers into codes, and their activations
//! where a scheme says so.
//!
//! It is a pass like any other. It takes:
//! - a graph whose states begin as the weights;
//! - a [`Quantization`]: what each layer becomes and how it is rounded;
//! - the [`Evidence`](crate::Evidence) of a calibration run.
//!
//! It gives a graph whose states begin as codes and scales. Linear layers become `quantized_linear`
//! with the bias outside, and with rotated inputs where the scheme says so. A convolution is
//! computed on the values that its codes stand for. A scheme of 16 bits has no codes: its layers go
//! to `store` and `precision`. Tables of embeddings have codes too, by row, in the format that the
//! quantization has for them.
//!
//! SmoothQuant, AWQ and cross-layer equalization are passes of their own, before this one. They
//! move factors between activations and weights, or between layers, and round nothing. AWQ also
//! cuts off single weights. `auto_round` gives the steps of a descent that goes on from the codes
//! of GPTQ. `correct_biases` comes after this pass. `learn` gives a graph to train in place of
//! rounding once. `estimate_losses` tells from gradients what a layer loses by its codes.
//! Invariant: a layer that cannot take its scheme is left as it was and listed with the reason.

mod auto_round;
mod awq;
mod beside;
mod calibration;
mod coded;
mod correct;
mod declare;
mod equalize;
mod estimate_losses;
mod gptq;
mod halves;
mod held;
mod homogeneous;
mod hqq;
mod layers;
mod learned;
mod least_error;
mod linear_algebra;
mod modes;
mod output_errors;
mod pass;
mod quantized;
mod rescale;
mod rewrite;
mod rotation;
mod scheme;
mod smooth;
mod streams;
mod tables;

pub use auto_round::{AutoRound, auto_round};
pub use awq::{awq, awq_folded};
pub use beside::observe_beside;
pub use calibration::{RangeRule, activation_range};
pub use correct::correct_biases;
pub use declare::declare;
pub use equalize::equalize;
pub use estimate_losses::{EstimatedPart, LayerGroup, LossEstimates, OutputLoss, estimate_losses};
pub use held::{Held, KAxis, LayerKind};
pub(crate) use layers::block;
pub use layers::{Layer, LayerPart, Skipped, layers};
pub use learned::{Learning, learn};
pub(crate) use linear_algebra::{damped, factor_of_inverse};
pub use modes::{MODES, Preparation, QuantizationMode};
pub use output_errors::{MeanErrors, OutputErrors};
pub use pass::{complete, quantize};
pub use quantized::{Quantized, QuantizedLayer};
pub use rescale::rescale;
pub use scheme::{Additions, Biases, Quantization, Rounding, Scheme, Tables};
pub use smooth::{smooth, smooth_folded};
