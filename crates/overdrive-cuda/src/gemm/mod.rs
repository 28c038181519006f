//! Matrix products with epilogues: cuBLASLt where it is there and fits, our own kernels everywhere
//! else.
//!
//! `compile` takes a `GemmCall` of any strides and types. A product has several candidates
//! (`candidates`): algorithms of cuBLASLt and our kernels. Ours are for Hopper, for few rows, for
//! few columns and for everything, with the epilogue in registers. All give right results; `tune`
//! times them and `Tuning` remembers the fastest.
//!
//! If a candidate cannot apply the epilogue itself, the sums go through workspace, and the epilogue
//! is a separate loop. The candidate's name says so.
//!
//! Some work shares a launch:
//!
//! - products of one operand (`together`; skinny GEMMs and products by codes in `bunch`, with the
//!   loop before them);
//! - products that are added up (`summed`);
//! - a product and a loop over the rows of its result (`following`).
//!
//! Products by 2:4 weights (`sparse_linear`) and by codes (`quantized_linear`) come as kernels by
//! name and share the epilogue.

mod base;
mod beside;
mod bunch;
mod bunched;
mod candidate;
mod compile;
mod epilogue;
mod following;
mod hopper;
mod led;
mod narrow;
mod peak;
mod plain;
mod pointers;
mod problem;
pub(crate) mod quantized_linear;
mod scratch;
mod skinny;
mod sources;
pub(crate) mod sparse_linear;
mod staged;
mod streamed;
mod summed;
mod together;
mod tune;
mod vendor;

pub(crate) use beside::scratch_of_all;
pub(crate) use bunched::compile_bunch;
pub use bunched::{bunches, source_bunch};
pub use candidate::{DTYPES, GemmCandidate, UnknownCandidate};
pub use compile::{compile, key};
pub(crate) use following::{compile_following, followed, follows, key_following};
pub use peak::peak;
pub(crate) use scratch::scratch_bytes;
pub(crate) use sources::{TEXT, sources};
pub(crate) use summed::{adds, compile_summed, key_summed};
pub(crate) use together::{APART, calls, compile_together, joins, key_together};
pub use tune::tune;
pub(crate) use tune::{tune_following, tune_summed, tune_together};
