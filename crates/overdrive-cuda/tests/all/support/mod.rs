//! The parts that the tests of this crate share.

pub(crate) mod gpu;
mod joined;
pub(crate) mod llama;
mod outputs;

pub(crate) use gpu::{gpu, modes};
pub(crate) use joined::joined;
pub(crate) use outputs::{outputs_of, poisoned};
pub(crate) use overdrive_cuda::data_sheets::h200;
