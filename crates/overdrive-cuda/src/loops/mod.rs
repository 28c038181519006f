//! Fused loops: a `Program` printed to CUDA C++, compiled at run time.
//!
//! `print` has the scalar expressions, which epilogues and score functions share. `nest` turns the
//! iteration space into loops and chooses the one that neighbouring threads share. `stages` says
//! which values are computed once a kernel, once a row and for every element. `map`, `row_printer`
//! and `columns` print the three shapes of kernel. `together` prints several maps as one, `small`
//! those that need not be alike. `following` is the epilogue of a product over its own rows, `lead`
//! the prologue. `gelu` has shorter forms of GELUs. Invariants: the printed text is a function of
//! program and machine alone. Sums are combined in a fixed order, so that equal inputs give equal
//! bits.

mod accuracy;
mod ahead;
mod bulk_copy;
mod columns;
mod compile;
mod coordinates;
mod cpp;
mod folds;
mod following;
pub(crate) mod gelu;
mod kernel;
mod lead;
mod level;
mod map;
mod nest;
mod online;
mod pairs;
mod pick;
mod picked;
mod points;
pub mod print;
mod row_printer;
mod row_shape;
mod small;
mod source;
mod split;
mod stages;
mod tiles;
mod together;
mod unroll;
mod walk;

pub use accuracy::loose;
pub(crate) use compile::scratch_bytes;
pub use compile::{compile, sources};
pub(crate) use following::Following;
pub use kernel::PrinterMachine;
pub(crate) use lead::Lead;
pub use small::{bunches, compile_bunch, source_bunch};
pub use together::{compile_together, joins, source_together};
