//! The built binary as its users meet it: what it prints, what it writes, and what it exits with.
//!
//! Invariant of every call: one of the documented exit codes, and never a panic.

#![allow(clippy::unwrap_used)]

mod action;
mod book;
mod classifiers;
mod damaged;
mod engines;
mod eval;
#[cfg(unix)]
mod examples;
mod explain;
mod fine_tune;
mod from_scratch;
mod fuzz;
mod generate;
#[cfg(target_os = "linux")]
mod generate_ranks;
#[cfg(target_os = "linux")]
mod hosts;
mod invocation;
mod killed;
#[cfg(target_os = "linux")]
mod memory;
#[cfg(feature = "mpi")]
mod mpi;
mod names;
mod onnx_files;
mod optimization;
mod optimize;
mod optimize_refused;
mod outputs;
mod over_time;
mod pipes;
mod places;
mod quantize;
mod quantize_data;
mod quantize_experts;
mod quantize_exported;
mod quantize_gguf;
mod quantize_halves;
mod quantize_peers;
mod quantize_published;
mod quantize_rotated;
#[cfg(target_os = "linux")]
mod ranks;
mod recipes;
mod regress;
mod results;
mod run_model;
mod signals;
mod sparse_attention;
mod speculate;
mod tables;
mod tokens;
mod usage;
mod working_folder;
