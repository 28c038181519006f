//! What the tests of this crate share.

mod gpu;

pub(crate) use gpu::{gpu, modes};
