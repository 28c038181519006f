//! XLA through PJRT: our graph as StableHLO text, compiled and run by a plugin, with buffers kept
//! on the device.
//!
//! A plugin is a shared library of one exported function; JAX brings that for NVIDIA's GPUs, and
//! those for AMD's, Intel's and Google's have the same door. Nothing of XLA is linked. Parameters
//! stay arguments, so that they may change; what they alone decide is computed ahead. Invariant:
//! only these files call into the plugin, and its errors keep its own words.

mod ahead;
mod api;
mod backend;
mod client;
mod device_buffer;
mod engine;
mod executable;
mod nibbles;
mod plugin;

pub use backend::XlaBackend;
pub(crate) use engine::Xla;
