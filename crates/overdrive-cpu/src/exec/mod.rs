//! From a `Plan` to something that runs: steps compiled once, memory placed once, addresses looked
//! up per call.
//!
//! `executable` is the whole. `overdrive_ir::plan` checks the caller's arguments (`Signature`). It
//! also knows the values that are derived from states and kept between calls (`Prepared`).
//! `storage` holds the memory that lives within a call (`size_classes` under it in eager mode).
//! `compiled_step` compiles a step into a `Runnable`: `gemm` contracts (`batch`, `space` and `sums`
//! under it), `copy` moves, `fused_loop` is a fused loop, `host` evaluates in f64. Invariant: after
//! the first call, a call allocates nothing on the heap (but in `host` steps, which the plan
//! names).

mod batch;
mod compiled_step;
mod copy;
mod executable;
mod format;
mod fused_loop;
mod gemm;
mod host;
mod needed;
mod runnable;
mod size_classes;
pub(crate) mod space;
mod storage;
mod sums;

pub(crate) use batch::BatchParts;
pub use executable::CpuExecutable;
pub(crate) use executable::uploaded;
pub(crate) use format::{Format, Named};
pub(crate) use runnable::{Runnable, Unsupported};
pub(crate) use sums::Sums;
