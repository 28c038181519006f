//! Files of models and tensors, ours and those of other programs.
//!
//! One program for all files, since each program links the whole workspace.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

mod fields;
mod folder;
mod formats;
mod free;
mod gguf;
mod gguf_written;
mod huggingface;
mod int4;
mod onnx;
mod onnx_cast;
mod onnx_cast_exhaustive;
mod onnx_codes;
mod onnx_file;
mod onnx_n_bits;
mod onnx_quantized;
mod onnx_unknown;
mod pytorch;
mod stablehlo;
