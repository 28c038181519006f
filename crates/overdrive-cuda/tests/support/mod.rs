//! The parts that the tests of this crate share.

mod gpu;
mod h200;
mod joined;

#[allow(unused_imports)] // Each test binary uses its part.
pub(crate) use gpu::{gpu, modes};
#[allow(unused_imports)]
pub(crate) use h200::h200;
#[allow(unused_imports)]
pub(crate) use joined::joined;
