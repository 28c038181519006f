//! XLA through PJRT: our graph as StableHLO text, compiled and run by a plugin, with buffers kept
//! on the device.
//!
//! A plugin is a shared library with one exported function. JAX ships the one for NVIDIA's GPUs;
//! those for AMD's, Intel's and Google's have the same interface. Nothing of XLA is linked.
//! Parameters stay arguments, so that they may change. Values that depend on them alone are
//! computed ahead of time. Invariant: only these files call into the plugin, and its errors keep
//! its own words.

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
