//! Overdrive makes deep-learning models faster, smaller and cheaper to train, and proves it.
//!
//! This is the facade. [`calls`] has one call for each command. The other modules are the crates of
//! the workspace under shorter names; see `examples/`.

pub mod calls;

pub use overdrive_bench as bench;
pub use overdrive_cpu as cpu;
pub use overdrive_cuda as cuda;
pub use overdrive_decoding as decoding;
pub use overdrive_files as files;
pub use overdrive_formats as formats;
pub use overdrive_gate as gate;
pub use overdrive_ir as ir;
pub use overdrive_models as models;
pub use overdrive_optimize as optimize;
pub use overdrive_passes as passes;
pub use overdrive_ranks as ranks;
pub use overdrive_report as report;
pub use overdrive_studies as studies;
pub use overdrive_train as train;
