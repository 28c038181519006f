//! The studies: one file each.
//!
//! A study is given the devices it may use and leaves records; it prints nothing and knows no back
//! end by name. Invariant: every variant of a comparison runs in one session, in alternation, and
//! is checked against the f64 reference before its time counts.

mod allowance;
mod attention;
mod ceilings;
mod compilation;
mod context;
mod cumulative;
pub mod decoding;
mod distributed;
mod drawn;
mod f64_sessions;
mod kernels;
mod long_calls;
mod peers;
pub mod pretrained;
mod published;
pub mod quantization;
mod referee;
mod reference;
mod session;
mod study;
mod template;
mod tolerance;
mod training;
mod workload;

pub use allowance::Allowance;
pub use ceilings::{CeilingWork, ceilings};
pub use compilation::compilation;
pub use context::{
    Context, Device, EnergyProbes, Journal, Matmul, MatmulPeer, OpenRank, PEER_MODES, Parties,
    Probes, Progress, RankDevices, RanksMeter, Sampling,
};
pub use distributed::fabric;
pub use peers::Peer;
pub(crate) use session::relate;
pub use session::{Entry, measure};
pub use study::Study;
pub use template::Template;
pub use workload::Workload;

/// Every study, in the order in which `overdrive run` takes them.
pub static STUDIES: &[&dyn Study] = &[
    &kernels::Kernels,
    &compilation::Compilation,
    &quantization::Quantization,
    &cumulative::Cumulative,
    &attention::AttentionStudy,
    &training::Training,
    &training::Memory,
    &distributed::Distributed,
];
