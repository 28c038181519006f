//! What the tests of this crate share.

mod gpu;

#[allow(unused_imports)] // Each test binary uses its part.
pub(crate) use gpu::{gpu, modes};
