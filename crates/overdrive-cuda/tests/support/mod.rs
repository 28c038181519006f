//! The parts that the tests of this crate share.

mod gpu;
mod joined;
pub(crate) mod llama;

#[allow(unused_imports)] // Each test binary uses its part.
pub(crate) use gpu::{gpu, modes, ranks};
#[allow(unused_imports)]
pub(crate) use joined::joined;
#[allow(unused_imports)]
pub(crate) use overdrive_cuda::data_sheets::h200;
