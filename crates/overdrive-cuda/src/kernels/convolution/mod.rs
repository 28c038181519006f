//! `convolution`: an implicit matrix product with its epilogue, for any strides, groups and
//! dilations.
//!
//! `geometry` prints where elements are, `finish` the epilogue of each sum, `call` is the compiled
//! step.

mod call;
mod finish;
mod geometry;

pub use call::compile;
pub(super) use call::scratch_bytes;
pub(crate) use call::source_of;
