//! What a device can do and what was chosen for it, as data: all that passes and `plan` may know of
//! a device.

use crate::plan::{ConvolutionCall, GemmCall};
use crate::{Convolution, DType, Mode, OpRef, TensorType};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Capabilities of a device.
#[derive(Clone, Debug, Default)]
pub struct Caps {
    /// Name of the device, as in reports.
    pub device: String,
    /// Memory that one plan may use, in bytes.
    pub memory_bytes: u64,
    /// Names of the ops, composites and primitives, that the back end runs by a kernel of its own.
    /// Loops, contractions and data movement need no claim.
    pub claims: BTreeSet<String>,
    /// Why the kernel of a claimed composite does not take operands of these types, where it does
    /// not: the composite is then expanded, and the plan gives the reason. Absent where every claim
    /// holds for all types.
    pub declines: Option<Declines>,
    /// Input types that contractions take natively; others are converted and the plan says so.
    pub contraction_dtypes: BTreeSet<DType>,
    /// The 16-bit ones of those that are multiplied as they lie: a product that reads weights in
    /// them reads half of the bytes. Others are widened first, which saves nothing.
    pub native_halves: BTreeSet<DType>,
    /// Types that fused loops can load and store.
    pub loop_dtypes: BTreeSet<DType>,
    /// Whether a plan can be captured once and replayed as a whole ([`Mode::Graph`]).
    pub replays: bool,
    /// FLOPs per byte of memory traffic at which compute and memory balance, measured or nominal.
    pub flops_per_byte: f64,
    /// Bytes that memory moves within the latency of a step: to save fewer gains no time.
    pub bytes_of_latency: u64,
    /// How right operands of products that are states are packed ahead of time; `None` where none
    /// is.
    pub packings: Option<Packing>,
    /// How kernels of convolutions that are states are packed ahead of time; `None` where none is.
    pub filters: Option<FilterPacking>,
    /// Which convolutions hand each other activations with channels innermost; `None` where none
    /// does.
    pub channels_last: Option<ChannelsLast>,
    /// Into how many parts a convolution cuts the space of an image that its epilogue folds over;
    /// `None` where no epilogue folds.
    pub folds: Option<FoldedParts>,
    /// Which convolutions, each of which reads what the one before stores, are run as one step;
    /// `None` where none are.
    pub chains: Option<Chains>,
    /// What no implementation can exceed; empty where the device does not tell.
    pub peaks: Peaks,
}

impl Caps {
    /// The mode for work that is repeated. A step is hundreds of short kernels: launched one by
    /// one, a GPU waits for the host.
    pub fn fastest_mode(&self) -> Mode {
        if self.replays { Mode::Graph } else { Mode::Compile }
    }
}

/// The reason why a claimed composite is not run by its kernel on operands of these types; `None`
/// where it is.
pub type Declines = fn(&OpRef, &[TensorType]) -> Option<String>;

/// Rates from a data sheet at the highest clock: a time that beats them is a defect of the
/// measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peaks {
    /// FLOP/s of contractions on operands of a type.
    pub flops_per_second: BTreeMap<DType, f64>,
    /// Memory levels from the nearest on: bytes that fit, and bytes per second.
    pub levels: Vec<(u64, f64)>,
}

/// The name, for `Layout::Packed`, and the size in bytes of the packed right operand of a product,
/// of one matrix for its whole batch; `None` for one that is not packed.
pub type Packing = fn(&GemmCall) -> Option<(&'static str, usize)>;

/// The name, for `Layout::Packed`, and the size in bytes of the packed kernel of a convolution;
/// `None` for one whose kernel is not packed.
pub type FilterPacking = fn(&ConvolutionCall) -> Option<(&'static str, usize)>;

/// Whether a convolution of input, kernel and output of these types reads its input, lying with
/// these strides, and stores its output well with channels innermost.
pub type ChannelsLast = fn(&Convolution, [&TensorType; 3], &[i64]) -> bool;

/// The most parts of an image's space that a convolution folds apart from each other, at least 1.
pub type FoldedParts = fn(&ConvolutionCall) -> usize;

/// Whether convolutions are run band by band, so that what one hands the next stays near; errs with
/// the reason why not.
pub type Chains = fn(&[ConvolutionCall]) -> Result<(), String>;

/// Choices that change how, never what, is computed. Stored with results so that they can be
/// repeated.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Tuning {
    /// Worker threads; `None` means one per available core.
    pub threads: Option<usize>,
    /// Winners of timed candidates by site key.
    pub choices: BTreeMap<String, Choice>,
    /// Upper limit of transient memory in bytes, for plans that can trade time for it.
    pub memory_limit: Option<u64>,
}

/// A remembered winner with the timings that made it so.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Choice {
    /// The chosen candidate.
    pub candidate: String,
    /// Median time of each candidate in ns.
    pub timings_ns: BTreeMap<String, f64>,
}

impl Choice {
    /// The fastest of the timed candidates; on a tie the first by name, so that the choice is
    /// reproducible.
    pub fn fastest(timings_ns: BTreeMap<String, f64>) -> Option<Self> {
        let winner =
            timings_ns.iter().min_by(|a, b| a.1.total_cmp(b.1)).map(|(name, _)| name.clone());
        winner.map(|candidate| Self { candidate, timings_ns })
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |name: &String| self.timings_ns.get(name).map_or(f64::NAN, |ns| ns / 1e3);
        write!(f, "{} at {:.1} us", self.candidate, time(&self.candidate))?;
        let others: Vec<_> =
            self.timings_ns.keys().filter(|name| **name != self.candidate).collect();
        for (i, name) in others.into_iter().enumerate() {
            write!(f, "{}{name} {:.1}", if i == 0 { ", against " } else { ", " }, time(name))?;
        }
        Ok(())
    }
}
