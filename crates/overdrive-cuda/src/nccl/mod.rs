//! Collectives of several ranks by NCCL, NVIDIA's library for them.
//!
//! Ranks meet through their communicator (docs/decisions/0014). Through it they learn the unique id
//! of each group. They also hear of a rank that fails while they wait for NCCL, which says nothing
//! of that. Invariants: a machine without NCCL gets an error that says what to install, and nothing
//! here waits for another rank without looking whether it lives.

mod collective;
mod group;
mod library;
mod ranks;

pub(crate) use collective::compile;
pub(crate) use library::{FILE, version};
pub(crate) use ranks::Ranks;
