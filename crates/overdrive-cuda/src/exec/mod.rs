//! From a `Plan` to something that runs: steps compiled once, memory placed once, addresses looked
//! up per call.
//!
//! `executable` is the whole; `compiled_step` compiles a step into a `CompiledStep`. `storage`
//! holds the memory of a call: one arena in each memory space, or (eager) blocks allocated during
//! the call. `queues` are the further streams besides the work stream, and the events between them.
//! `replay` captures calls as graphs. `sampling` takes timed samples by the device's own clock
//! (`gate`, `clocks` and `copies` under it). Invariant: a call only enqueues, unless a step runs on
//! the host, which the plan names.

mod caller;
mod clocks;
mod compiled_step;
mod copies;
mod enqueuer;
mod executable;
mod gate;
mod queues;
mod replay;
mod sampling;
mod storage;

pub(crate) use executable::CudaExecutable;
