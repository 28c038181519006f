//! Published models, and what studies make of them.
//!
//! One program for all files, since each program links the whole workspace.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

mod classifiers;
mod coded_decoding;
mod fine_tune;
mod from_scratch;
mod gguf_written;
mod halves;
mod pretrained;
mod pretrained_fuzz;
mod quantization;
mod rank_parts;
mod tiny;
