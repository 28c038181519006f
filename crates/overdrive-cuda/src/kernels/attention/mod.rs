//! `attention`, a tile at a time, with any score and mask function and with dropout. Apart from
//! operands and results no memory grows with T.
//!
//! For 16-bit floats `hopper.cu` uses the tensor cores of Hopper, `tensor.cu` those of every GPU.
//! Few queries have `decode.cu` over few keys, cut by `cut`, and `decode_long.cu` over many, cut by
//! `decode_long`. Both also take keys and values that are codes or lie in pages (`kept`).
//! `tiled.cu` is for every other case. Attention whose products are of codes has `float8.cu`, by
//! `float8`. `region` prints
//! score and mask functions into all of them, `dropout` the constants of dropped weights. `call`
//! chooses; every kernel is given a `shape`. `persistent` launches those whose blocks take tasks,
//! `compiled` most others. `block_mask`
//! finds the blocks of keys that a mask function hides. `grad.cu` has the gradients on Hopper,
//! `grad_portable.cu` those of every GPU and of wide heads, `captures.cu` the gradients of captured
//! tensors.
//!
//! Sources: Dao, "FlashAttention-2", arXiv:2307.08691; Dong et al.,
//! "Flex attention", arXiv:2412.05496.

mod block_mask;
mod call;
mod captures;
mod compiled;
mod cut;
mod decode_long;
mod dropout;
mod float8;
pub(super) mod grad;
mod grad_portable;
mod homes;
mod hopper;
mod kept;
mod persistent;
mod region;
mod shape;
mod slopes;

pub(crate) use call::KERNEL;
pub(crate) use float8::KERNEL as FLOAT8;
pub(crate) use kept::{CODED, PAGED};
