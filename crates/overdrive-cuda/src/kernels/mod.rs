//! Named kernels: primitives that are neither loop nor contraction, and the composites that this
//! back end claims.
//!
//! A kernel is two files of the op's name. `<op>.cu` is the source that NVRTC compiles with `-D`
//! values. `<op>.rs` makes a [`Launch`](crate::launch::Launch) of it. Every kernel takes operands
//! and results with any strides, which are parameters of it, so that one machine code serves all
//! shapes.

mod attention;
mod cast_transpose;
pub mod convolution;
mod dynamic_slice;
mod element;
mod gather;
pub(crate) mod line;
pub(crate) mod named;
mod nest;
mod reduce_window;
mod rows;
mod scatter;
mod sort;
mod source;
mod transfer;

pub(crate) use cast_transpose::{compile_together, joins};
pub(crate) use named::names;
pub use named::{answer, compile, sources, sources_of};
