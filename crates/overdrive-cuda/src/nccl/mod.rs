//! Collectives of several ranks: by NCCL, NVIDIA's library for them, or by copies (`peers`).
//!
//! Ranks meet through their communicator (docs/decisions/0014). Through it they learn the unique id
//! of each group. They also hear of a rank that fails while they wait for NCCL, which says nothing
//! of that. `plan_ranks` chooses for each collective of a plan between NCCL and copies, as
//! `measure` has timed them. Invariants: a machine without NCCL gets an error that says what to
//! install, and nothing here waits for another rank without looking whether it lives.

mod collective;
mod compile;
mod group;
mod library;
mod measure;
mod plan_ranks;
mod ranks;
mod watch;

pub(crate) use compile::compile;
pub(crate) use library::{FILE, version};
pub(crate) use plan_ranks::PlanRanks;
pub(crate) use ranks::Ranks;
