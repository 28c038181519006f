//! The abilities of a device: plain data about it, and one question, how it runs a call.
//!
//! All that passes and `plan` may know of a device. Asking touches no device, so that a plan is the
//! same wherever it is made.

use crate::plan::{Bond, ConvolutionCall, GemmCall, Step};
use crate::{Convolution, DType, Graph, Mode, Node, Operation, TensorType, Tuning};
use std::collections::{BTreeMap, BTreeSet};

/// A device as passes see it.
pub trait Target: Send + Sync {
    /// Plain data about it.
    fn description(&self) -> &Description;

    /// How the device runs a call with a kernel of its own.
    ///
    /// # Errors
    /// Why it does not. A composite is then expanded, and a chain stays apart; products and
    /// convolutions run all the same, since every device has them.
    fn kernel(&self, call: &Call<'_>) -> Result<Kernel, Decline>;
}

/// Work that a device may have a kernel for.
#[derive(Copy, Clone, Debug)]
pub enum Call<'a> {
    /// An op on operands of these types. Every device has loops, contractions and data movement, so
    /// they are never queried.
    Op {
        /// The op.
        op: &'a Operation,
        /// Types of its operands; empty asks of any.
        operands: &'a [TensorType],
        /// Its regions, which the kernel then computes.
        regions: &'a [Graph],
        /// Whether each of its results is of use to anybody; empty asks of any.
        wanted: &'a [bool],
    },
    /// A product.
    Product(&'a GemmCall),
    /// A convolution.
    Convolution(&'a ConvolutionCall),
    /// A convolution whose buffers have no place yet, with the layout that its input would have.
    Lying {
        /// Its geometry.
        convolution: &'a Convolution,
        /// Types of input, kernel and output.
        types: [&'a TensorType; 3],
        /// Strides of the input.
        strides: &'a [i64],
    },
    /// Convolutions, each the only reader of the one before, as one step.
    Chain(&'a [ConvolutionCall]),
    /// Steps as one launch. They are queried one by one: the steps without the last were accepted.
    Joined(Bond, &'a [&'a Step]),
    /// Whether one launch should do such steps: declined where timing has shown that they are
    /// faster apart.
    Faster(Bond, &'a [&'a Step], &'a Tuning),
    /// A step with its operands and results as they lie, the last question about it. A kernel by
    /// name that is declined here with a reason runs on the host.
    Step(&'a Step),
}

impl<'a> Call<'a> {
    /// The op of a node on operands of these types, with the results that are wanted.
    pub fn of(node: &'a Node, operands: &'a [TensorType], wanted: &'a [bool]) -> Self {
        Call::Op { op: &node.op, operands, regions: &node.regions, wanted }
    }
}

/// How a device runs a call.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Kernel {
    /// Whether it hands its result to an epilogue, as a contraction does.
    pub takes_epilogue: bool,
    /// How weights that never change are packed ahead of time: the name for
    /// [`Layout::Packed`](crate::plan::Layout::Packed), and the bytes. A matrix that a whole batch
    /// shares is packed once.
    pub packed: Option<(&'static str, usize)>,
    /// Whether a convolution reads such an input, and stores its output, well with channels
    /// innermost.
    pub channels_last: bool,
    /// The most parts of an image's space that a convolution folds apart from each other, where
    /// [`Description::folds_space`].
    pub parts: usize,
    /// The most scratch in bytes that the step takes while it runs ([`Call::Step`]).
    pub scratch_bytes: usize,
}

/// Why a device has no kernel for a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Decline {
    /// It has none of this kind.
    NoKernel,
    /// It has one, which does not take this call.
    Because(String),
}

impl Decline {
    /// The reason, for the plan to show.
    pub fn reason(self, device: &str) -> String {
        match self {
            Decline::NoKernel => format!("{device} has no kernel for it"),
            Decline::Because(reason) => reason,
        }
    }
}

/// Plain data about a device.
#[derive(Clone, Debug, Default)]
pub struct Description {
    /// Name of the device, as in reports.
    pub device: String,
    /// Memory that one plan may use, in bytes: [`Space(0)`](crate::plan::Space).
    pub memory_bytes: u64,
    /// Further memory spaces, from `Space(1)` on; empty if the device computes on all memory.
    pub spaces: Vec<MemorySpace>,
    /// Names of ops with a kernel of their own, for people to read; passes ask [`Target::kernel`].
    pub kernels: Vec<&'static str>,
    /// Input types that contractions take natively; others are converted and the plan says so.
    pub contraction_dtypes: BTreeSet<DType>,
    /// The 16-bit ones of those that are multiplied as they lie: a product that reads weights in
    /// them reads half of the bytes. Others are widened first, which saves nothing.
    pub native_halves: BTreeSet<DType>,
    /// Types that fused loops can load and store.
    pub loop_dtypes: BTreeSet<DType>,
    /// Whether a plan can be captured once and replayed as a whole ([`Mode::Graph`]).
    pub replays: bool,
    /// Whether collectives run on a stream of their own, beside work.
    pub overlaps_collectives: bool,
    /// Whether the epilogue of a convolution may fold over space.
    pub folds_space: bool,
    /// FLOPs per byte of memory traffic at which compute and memory balance, measured or nominal.
    pub flops_per_byte: f64,
    /// Bytes that memory moves within the latency of a step: to save fewer gains no time.
    pub bytes_of_latency: u64,
    /// Peaks that no implementation can exceed; empty if the device does not report them.
    pub peaks: Peaks,
}

impl Description {
    /// The mode for work that is repeated. A step is hundreds of short kernels: launched one by
    /// one, a GPU waits for the host.
    pub fn fastest_mode(&self) -> Mode {
        if self.replays { Mode::Graph } else { Mode::Compile }
    }
}

/// Memory in addition to main memory. Copies go there and back. Steps compute on it if a processor
/// of its own can.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemorySpace {
    /// Its name for people: `pinned host`.
    pub name: &'static str,
    /// Bytes that one plan may use.
    pub bytes: u64,
    /// Bytes per second of a copy to or from main memory; both ways at once are as fast as one.
    pub bytes_per_second: f64,
    /// Bytes per second that fused loops of its own processor read and write there, beside copies;
    /// `None` if no step runs there.
    pub loop_bytes_per_second: Option<f64>,
}

/// Rates from a data sheet at the highest clock: a time that beats them is a defect of the
/// measurement.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Peaks {
    /// FLOP/s of contractions on operands of a type.
    pub flops_per_second: BTreeMap<DType, f64>,
    /// Memory levels from the nearest on: bytes that fit, and bytes per second.
    pub levels: Vec<(u64, f64)>,
}

/// A device without kernels of its own: everything is loops, contractions and data movement.
#[derive(Clone, Debug, Default)]
pub struct WithoutKernels(pub Description);

impl Target for WithoutKernels {
    fn description(&self) -> &Description {
        &self.0
    }

    fn kernel(&self, _: &Call<'_>) -> Result<Kernel, Decline> {
        Err(Decline::NoKernel)
    }
}

/// A device for which a function says how it runs a call: another one with changes, or none at all.
pub struct Described<F> {
    /// The description of the device.
    pub description: Description,
    /// How it runs a call.
    pub answer: F,
}

impl<F> Target for Described<F>
where
    F: Fn(&Call<'_>) -> Result<Kernel, Decline> + Send + Sync,
{
    fn description(&self) -> &Description {
        &self.description
    }

    fn kernel(&self, call: &Call<'_>) -> Result<Kernel, Decline> {
        (self.answer)(call)
    }
}
