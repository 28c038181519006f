//! `attention`, a tile at a time, with any score and mask function and with dropout. Apart from
//! operands and results no memory grows with T.
//!
//! For 16-bit floats `hopper.cu` uses the tensor cores of Hopper, `tensor.cu` those of every GPU,
//! and `decode.cu` is for few queries. `tiled.cu` is for every other case. `cut` cuts calls for
//! `decode.cu`, which also takes keys and values that are codes (`coded`). `region` prints score
//! and mask functions into all of them, `dropout` the constants of dropped weights. `call` chooses
//! and launches; every kernel is given a `shape`. `block_mask` finds the blocks of keys that a mask
//! function hides. `grad.cu` has the gradients on Hopper, `captures.cu` the gradients of captured
//! tensors.
//!
//! Sources: Dao, "FlashAttention-2", arXiv:2307.08691; Dong et al.,
//! "Flex attention", arXiv:2412.05496.

mod block_mask;
mod call;
mod captures;
mod coded;
mod cut;
mod dropout;
pub(super) mod grad;
mod homes;
mod hopper;
mod region;
mod shape;
mod slopes;

pub(crate) use call::KERNEL;
pub(crate) use coded::KERNEL as CODED;
