//! Bytes to tensors and models and back: safetensors, npz, model folders, ONNX; and StableHLO text.
//!
//! A file is untrusted. Every length in it is checked against the bytes that are really there
//! before anything is allocated for it. Every fault is an error that names the file and the place,
//! and says what was expected and what was found. Invariant: a file appears whole, by rename, or
//! not at all.

pub mod compressed_tensors;
mod cut;
mod error;
mod file;
mod folder;
pub mod gguf;
pub mod huggingface;
pub mod int4;
mod little_endian;
pub mod modelopt;
pub mod npy;
pub mod npz;
pub mod onnx;
mod parameters;
pub mod pytorch;
pub mod safetensors;
pub mod stablehlo;
mod tensor_file;
mod tensors;
pub mod triton;

pub use cut::{Cut, Cuts, parts};
pub use error::FormatError;
pub use folder::{ModelConfig, ModelFolder, TableColumns, states_file_bytes};
pub use parameters::{Differences, ParametersError, load_parameters, save_parameters};
pub use tensor_file::{check_name, read, write};
pub use tensors::Tensors;
