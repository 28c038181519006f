//! Named kernels: primitives that are neither loop nor contraction, and the composites that this
//! back end claims.
//!
//! Every kernel takes operands and results with any strides. Some element types have no kernel
//! here: those of less than a byte where they are moved, and the narrow floats where they are
//! combined. Their lines decline them, so that the plan leaves them to the reference evaluation.

mod attention;
mod axis;
mod collective;
pub(crate) mod convolution;
mod dense_rows;
mod dynamic_slice;
mod indexed;
mod line;
mod named;
mod place;
mod planes;
mod quantize_rows;
mod quantized_linear;
mod reduce_window;
mod scalar;
mod sort;
mod taps;
mod transfer;
mod unpack;
mod weighed_sum;

pub(crate) use collective::Collective;
pub(crate) use named::{KERNELS, answer, compile};
