//! `convolution` as a matrix product that is never written down: `[O, C taps]` by `[C taps, pixels]`.
//!
//! The left matrix is the weights, packed once a call. Columns of the right one are gathered from the input straight
//! into the panels of the micro-kernel (`columns`), a chunk of output pixels at a time, so that the workspace is a
//! few hundred kilobytes whatever the convolution. 1x1 kernels, strides, dilations and groups are no cases of their own;
//! only the inner copy knows runs that lie side by side. `call` is the compiled step.
//! Source: Chetlur et al., "cuDNN: efficient primitives for deep learning", arXiv:1410.0759 (implicit GEMM).

mod call;
mod columns;

pub(crate) use call::compile;
