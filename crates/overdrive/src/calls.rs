//! One call for each command: a model by its name, folder or file, and what is done with it.
//!
//! Everything has a default. Who needs another device, study or rule takes the crates that the
//! other modules are, as `examples/` do. Nothing here prints.

mod bench;
mod model;

pub use bench::Bench;
pub use model::Model;
