//! `Parties`: our devices, and the engines and frameworks that are measured in the same session.

use crate::Peer;
use overdrive_bench::energy::Meter;
use overdrive_bench::failure::Failure;
use overdrive_ir::{Backend, Communicator};
use std::sync::Arc;

/// A back end with the number of host threads that it was given.
pub struct Device<'a> {
    /// The back end.
    pub backend: &'a dyn Backend,
    /// Its worker threads.
    pub threads: u32,
}

impl Device<'_> {
    /// Whether its memory moves a terabyte a second and more. Sizes that keep a processor busy are
    /// lost in launches there, so studies take larger ones.
    pub fn is_accelerator(&self) -> bool {
        self.backend
            .description()
            .peaks
            .levels
            .iter()
            .any(|&(_, bytes_per_second)| bytes_per_second >= 1e12)
    }
}

/// `c = a b` in f32, row-major, of shape `[m, n, k]`.
pub type Matmul = dyn Fn(&[f32], &[f32], &mut [f32], [usize; 3]);

/// A matrix product of somebody else's, as a baseline.
pub struct MatmulPeer<'a> {
    /// The library's name.
    pub name: &'a str,
    /// Worker threads that it uses.
    pub threads: u32,
    /// The product.
    pub run: &'a Matmul,
}

/// Opens the device of the rank that a communicator is of.
pub type OpenRank<'a> =
    dyn Fn(Arc<dyn Communicator>) -> Result<Box<dyn Backend>, Failure> + Sync + 'a;

/// The counter of energy that sees the devices of so many ranks together, if there is one.
pub type RanksMeter<'a> = dyn Fn(usize) -> Option<Box<dyn Meter>> + Sync + 'a;

/// Devices of one kind for ranks that run together, one for each.
#[derive(Clone, Copy)]
pub struct RankDevices<'a> {
    /// Numbers of ranks to measure, each above 1.
    pub counts: &'a [usize],
    /// Opens them.
    pub open: &'a OpenRank<'a>,
    /// Their energy.
    pub meter: &'a RanksMeter<'a>,
}

/// How a peer may run a workload.
pub const PEER_MODES: [&str; 4] = ["eager", "jit", "compile", "graph"];

/// Who takes part.
#[derive(Clone, Copy)]
pub struct Parties<'a> {
    /// Devices: the one to report on first, then the same with one thread where that differs.
    pub devices: &'a [Device<'a>],
    /// Engines of other people for the first device, given as many threads as it has.
    pub engines: &'a [Device<'a>],
    /// Baselines for matrix products.
    pub matmul_peers: &'a [MatmulPeer<'a>],
    /// Other frameworks, which take part in every session whose workload they know.
    pub peers: &'a [Peer],
    /// Modes that they take part in, of [`PEER_MODES`].
    pub peer_modes: &'a [&'a str],
    /// Devices for several ranks, where this machine has them.
    pub ranks: Option<RankDevices<'a>>,
}

impl<'a> Parties<'a> {
    /// These devices alone.
    pub fn alone(devices: &'a [Device<'a>]) -> Self {
        Self {
            devices,
            engines: &[],
            matmul_peers: &[],
            peers: &[],
            peer_modes: &PEER_MODES,
            ranks: None,
        }
    }

    /// The device that figures are about.
    pub fn device(&self) -> &'a Device<'a> {
        self.devices.first().expect("somebody takes part")
    }

    /// The device with one thread.
    pub fn single(&self) -> &'a Device<'a> {
        self.devices.iter().find(|d| d.threads == 1).unwrap_or_else(|| self.device())
    }
}
