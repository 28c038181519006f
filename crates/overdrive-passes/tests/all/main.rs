//! Passes, plans and quantization, on graphs alone.
//!
//! One program for all files, since each program links the whole workspace.

#![allow(clippy::unwrap_used)] // A test may unwrap, its helpers too.

mod attention_gate;
mod auto_round;
mod bind;
mod compress_gradients;
mod compressed_order;
mod context;
mod differentiate;
mod encoders;
mod estimate_losses;
mod fold;
mod gptaq;
mod halves;
mod learned;
mod lora;
mod observe;
mod overwrite;
mod plan;
mod precision;
mod quantize;
mod quantize_convolutions;
mod quantize_layers;
mod quantize_rotated;
mod quantize_tables;
mod random_graphs;
mod reassociate;
mod recognise;
mod recognise_attention;
mod segments;
mod settle;
mod shard;
mod snapshots;
mod store;
mod tensor_parallel;
