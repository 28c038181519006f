//! From a `Plan` to something that runs: steps compiled once, memory placed once, addresses looked
//! up per call.
//!
//! `executable` is the whole; `compiled_step` compiles a step into a `CompiledStep`. `enqueuer`
//! enqueues calls step by step. `storage` holds what lives within a call: one arena in each memory
//! space, or (eager) blocks taken as the call goes. `queues` are the streams beside that of work,
//! and the events between them. `replay` captures calls as graphs, and `caller` makes a call by
//! either way. `sampling` takes timed samples by the device's own clock (`gate`, `clocks` and
//! `copies` under it). Invariant: a call only enqueues, unless a step runs on the host, which the
//! plan names.

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
