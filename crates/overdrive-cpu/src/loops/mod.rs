//! Fused loops: executes the scalar programs of a plan at the speed of memory.
//!
//! A program is laid over loops (`nest`) and cut into passes between its reductions (`stages`). It
//! is turned into lists of kernel calls (`code`, `emit`, `operations`) that a block interpreter
//! executes (`frame`). A block of lanes stays in the first-level cache from the first instruction
//! to the last, so that memory is read and written once. Kernels (`map`, `reduce`, `load_store`,
//! `convert`, `random`, with the functions of `math`) are compiled for each instruction set
//! (`isa`). The kernels of a program are chosen when the program is compiled.
//!
//! A product's epilogue that is one multiply-add needs none of that (`affine`, `scaled`), and
//! neither does that of a layer of a residual network (`columns`).
//!
//! Invariants: a run allocates nothing; results do not depend on the number of threads.

mod affine;
mod code;
mod coefficients;
#[cfg(target_arch = "x86_64")]
mod columns;
mod compiled;
mod convert;
mod emit;
mod epilogue;
mod expression;
mod frame;
mod gelu;
pub(crate) mod half;
pub(crate) mod isa;
mod lane;
mod load_store;
mod map;
pub(crate) mod math;
mod nest;
mod operations;
pub(crate) mod random;
mod reduce;
mod scaled;
pub(crate) mod small_floats;
mod stages;
mod tile;
mod unsupported;
mod whole_bytes;

pub(crate) use affine::Affine;
#[cfg(target_arch = "x86_64")]
pub(crate) use columns::Columns;
pub use compiled::CompiledLoop;
pub use epilogue::{AccumulatorTile, CompiledEpilogue};
pub(crate) use expression::Reads;
pub use isa::Level;
pub(crate) use reduce::identity;
pub(crate) use tile::CompiledTile;
pub use unsupported::Unsupported;
