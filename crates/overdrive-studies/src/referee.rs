//! Who computes references that are too large for the evaluator: the CPU back end in f64, or the
//! device that is measured.
//!
//! A GPU has units for f64 that are tens of times as fast as a processor's, and the parameters are
//! there already. Its f64 runs other kernels than those that are judged, node by node. It is held
//! against the host first: on the same model at small sizes, each distinct block of it. Invariant:
//! a reference comes from the host, or from a device that agreed with the host in this run.

use crate::f64_sessions::{F64Sessions, SHARE, in_f64};
use overdrive_bench::failure::Failure;
use overdrive_bench::oracle::normal_inputs;
use overdrive_ir::{Backend, DType, Graph, Mode, Tuning};
use overdrive_passes::{blocks, compute_in_f64, perturb};
use std::cell::OnceCell;
use std::fmt;
use std::rc::Rc;

/// A host whose peak nobody knows is taken to do this many FLOP/s in f64.
const UNKNOWN_FLOPS_PER_SECOND: f64 = 1e12;
/// Below this many FLOPs the host is done before a device has the kernels.
const DEVICE_FLOPS: u64 = 100_000_000_000;
/// A reference may take one part in this many of a device's memory, besides the measured work.
const DEVICE_SHARE: u64 = 3;
/// Bytes of a reference that stay on the host between seeds; what takes more is compiled and
/// uploaded for each.
const KEPT_BYTES: u64 = 2 << 30;
/// The share of a device's memory that the references of a session may keep between seeds.
const KEPT_SHARE: u64 = 4;
/// How far two evaluations in f64 may lie apart, of the largest value: sums of thousands of terms
/// in two orders.
const AGREEMENT: f64 = 1e-9;

/// Back ends that may compute a reference.
pub(crate) struct Referee<'a> {
    /// The CPU.
    pub(crate) host: &'a dyn Backend,
    /// The measured device, if it may compute references.
    pub(crate) device: Option<&'a dyn Backend>,
    /// Workloads of the session, each with a reference of its own.
    pub(crate) workloads: usize,
}

impl<'a> Referee<'a> {
    /// The host's alone.
    pub(crate) fn host(host: &'a dyn Backend) -> Self {
        Self { host, device: None, workloads: 1 }
    }

    /// Decides for a graph; `probe` is the same model at small sizes.
    pub(crate) fn choosing(self, graph: &Graph, probe: Option<&'a Graph>) -> Rc<Chosen<'a>> {
        let Self { host, device, workloads } = self;
        let device = device.filter(|device| {
            let is_worth_it = graph.cost().flops > DEVICE_FLOPS && rate(*device) > 2.0 * rate(host);
            is_worth_it && probe.is_some() && fits(*device, graph)
        });
        Rc::new(Chosen { host, device: device.zip(probe), workloads, held: OnceCell::new() })
    }
}

/// Peak FLOP/s in f64.
fn rate(backend: &dyn Backend) -> f64 {
    let known = backend.description().peaks.flops_per_second.get(&DType::F64).copied();
    known.unwrap_or(UNKNOWN_FLOPS_PER_SECOND)
}

/// Whether the device can run the graph in f64 in its share of memory.
fn fits(device: &dyn Backend, graph: &Graph) -> bool {
    // Perturbed, as it runs too, it takes more.
    let perturbed = compute_in_f64(graph).and_then(|wide| perturb(&wide, SHARE));
    let Ok(perturbed) = perturbed else { return false };
    let executable = device.compile(&perturbed, Mode::Jit, &Tuning::default());
    let Ok(session) = executable.and_then(|executable| executable.session()) else {
        return false;
    };
    let memory = session.memory();
    let needed = memory.transient_bytes + memory.persistent_bytes + memory.state_bytes;
    needed <= device.description().memory_bytes / DEVICE_SHARE
}

/// The one that computes the reference.
pub(crate) struct Chosen<'a> {
    host: &'a dyn Backend,
    /// A device, with the graph that it is held against the host on.
    device: Option<(&'a dyn Backend, &'a Graph)>,
    workloads: usize,
    /// Whether it agreed.
    held: OnceCell<Result<(), Failure>>,
}

impl fmt::Display for Chosen<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = self.host.name();
        match &self.device {
            Some((device, _)) => {
                write!(
                    f,
                    "the graph in f64 on {}, which agreed with {host} at small sizes",
                    device.name()
                )
            }
            None => write!(f, "the graph in f64 on {host}"),
        }
    }
}

impl Chosen<'_> {
    /// The most bytes of a reference that stay where it is computed until the next.
    pub(crate) fn most_kept_bytes(&self) -> u64 {
        let share = KEPT_SHARE * self.workloads.max(1) as u64;
        self.device.map_or(KEPT_BYTES, |(device, _)| device.description().memory_bytes / share)
    }

    /// Who computes it.
    ///
    /// # Errors
    /// A device that disagrees with the host; those of either on the model at small sizes.
    pub(crate) fn backend(&self) -> Result<&dyn Backend, Failure> {
        let Some((device, probe)) = self.device else { return Ok(self.host) };
        self.held.get_or_init(|| agree(self.host, device, probe)).clone()?;
        Ok(device)
    }
}

/// Errs unless both give the same outputs of each distinct block of a graph. Blocks that repeat are
/// run once, because the host packs every weight in f64 before it multiplies a few rows by it. For
/// a model of a thousand million weights, that took longer than all else.
fn agree(host: &dyn Backend, device: &dyn Backend, probe: &Graph) -> Result<(), Failure> {
    let blocks = blocks(&[probe]).map_err(|e| Failure::failed(e.to_string()))?;
    blocks.iter().try_for_each(|block| agree_on(host, device, &block.parts[0]))
}

/// Errs unless both give the same outputs of a graph on random inputs.
fn agree_on(host: &dyn Backend, device: &dyn Backend, graph: &Graph) -> Result<(), Failure> {
    // Integers index, and are drawn 0 or 1: in range of every table worth a reference.
    let inputs = normal_inputs(graph, 1);
    let wide = in_f64(graph).map_err(|e| Failure::failed(e.to_string()))?;
    let outputs = |backend| F64Sessions::default().run((backend, 0), (&wide, 0), &inputs);
    let [known, found] = [host, device].map(outputs);
    for (port, (known, found)) in graph.outputs().iter().zip(known?.iter().zip(&found?)) {
        let (known, found) = (known.to_f64(), found.to_f64());
        let largest = known.iter().fold(0.0, |largest: f64, x| largest.max(x.abs()));
        let apart = known.iter().zip(&found).map(|(a, b)| (a - b).abs());
        // A NaN on one side is a disagreement. On both sides it is the model's result on these
        // inputs.
        let worst = apart.filter(|d| !d.is_nan()).fold(0.0, f64::max);
        let same_nan = known.iter().zip(&found).all(|(a, b)| a.is_nan() == b.is_nan());
        if worst > AGREEMENT * largest || !same_nan {
            return Err(Failure::failed(format!(
                "the reference: {} and {} differ by {worst:e} in `{}` of the model at small \
                 sizes, expected at most {:e}: no output of {} can be judged",
                device.name(),
                host.name(),
                port.name,
                AGREEMENT * largest,
                device.name()
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
