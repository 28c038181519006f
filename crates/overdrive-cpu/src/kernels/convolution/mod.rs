//! `convolution` as a matrix product that is never written down: `[O, C taps]` by `[C taps,
//! pixels]`.
//!
//! The left matrix is the weights, packed once where they never change (`packed_weights`). The
//! right one never exists as a whole, only the panels of a chunk of output pixels. The part of the
//! image that the chunk sees is staged once (`stage`, with the inner copies in `interleave` and
//! `panel`). So each tap is a plain copy into the panels of the micro-kernel. Small images of a
//! batch stand side by side in the panels, tap by tap from a table (`pixel_table`, `shares`,
//! `images`). The workspace is a few hundred kilobytes whatever the convolution. 1x1 kernels,
//! strides, dilations and groups are no cases of their own.
//!
//! `call` is the compiled step, and `algorithms` is the table of the other algorithms:
//!
//! - `winograd`: 3x3 taps in f32, with fewer multiplications.
//! - `pixels`: bf16 on AMX, for images whose channels lie side by side.
//! - `direct`: f32 and i8 on AVX-512, for the same images.
//! - `depthwise`: groups of few outputs. It is no product at all.
//!
//! `chain` runs several convolutions one after the other, band by band (`bands`). Source: Chetlur
//! et al., "cuDNN: efficient primitives for deep learning", arXiv:1410.0759 (implicit GEMM).

mod algorithms;
mod bands;
mod call;
mod chain;
mod depthwise;
#[cfg(target_arch = "x86_64")]
mod direct;
mod finish;
mod images;
mod interleave;
mod lines;
mod packed_weights;
mod panel;
mod partial_sums;
#[cfg(target_arch = "x86_64")]
mod pixel_bands;
mod pixel_table;
#[cfg(target_arch = "x86_64")]
mod pixels;
#[cfg(target_arch = "x86_64")]
mod scheme;
mod shares;
mod stage;
mod tile_epilogue;
#[cfg(target_arch = "x86_64")]
mod transform;
#[cfg(target_arch = "x86_64")]
mod winograd;

pub(crate) use algorithms::{compile, compile_pack, folded_parts, packing, takes_channels_last};
pub(crate) use chain::{compile_chain, takes_chain};
