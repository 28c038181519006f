//! Matrix products with epilogues: cuBLASLt where it is there and fits, our own kernels everywhere else.
//!
//! `compile` takes a `GemmCall` of any strides and types. A product has several candidates (`candidates`): algorithms
//! of cuBLASLt, our Hopper kernel with the epilogue in registers, our plain kernel; all of them are right, `tune`
//! times them and `Tuning` remembers which is fast. Where a candidate cannot apply the epilogue itself the sums go
//! through workspace and the epilogue is a loop of its own: the candidate's name says so.

mod candidate;
mod compile;
mod epilogue;
mod gelu;
mod hopper;
mod kernel;
mod peak;
mod plain;
mod problem;
mod sources;
mod staged;
mod tune;
mod vendor;

pub use candidate::{Candidate, DTYPES, UnknownCandidate};
pub use compile::{compile, key};
pub use peak::peak;
pub use sources::sources;
pub use tune::tune;
