//! Overdrive makes deep-learning models faster, smaller and cheaper to train, and proves it.
//!
//! This is the facade: everything that the command line does can be done from Rust through these crates; see
//! `examples/`. The modules are the crates of the workspace under shorter names.

pub use overdrive_bench as bench;
pub use overdrive_cpu as cpu;
pub use overdrive_cuda as cuda;
pub use overdrive_files as files;
pub use overdrive_formats as formats;
pub use overdrive_ir as ir;
pub use overdrive_models as models;
pub use overdrive_passes as passes;
pub use overdrive_studies as studies;
pub use overdrive_train as train;
