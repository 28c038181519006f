//! A line of the table of kernels.

use overdrive_ir::plan::{KernelCall, View};
use overdrive_ir::{Decline, Graph, OpRef, Operation, Prim, TensorType};

use crate::compiler::{Architecture, KernelSource};
use crate::launch::{Launch, Refusal, Site};
use crate::loops::PrinterMachine;

/// A line of the table: a kernel for an op.
pub(crate) struct NamedKernel {
    /// The op's name.
    pub(crate) op: &'static str,
    /// The only architecture that it is for; `None` means all.
    pub(crate) only: Option<Architecture>,
    /// Why it does not compute these regions of the op. There is at least one region.
    pub(crate) declines_regions: fn(&[Graph]) -> Option<Decline>,
    /// Whether it hands its result to an epilogue.
    pub(crate) takes_epilogue: bool,
    /// Why it does not take this form of the op, or operands of these types.
    pub(crate) declines: fn(&Operation, &[TensorType]) -> Option<Decline>,
    /// The scratch of a composite's call in bytes, or why it does not take operands that lie so.
    pub(crate) needs: Needs,
    /// Compiles a call.
    pub(crate) compile: Compile,
    /// Sources, and their purpose.
    pub(crate) sources: Sources,
}

impl NamedKernel {
    /// A kernel of every architecture, for all forms of an op without regions.
    pub(crate) const fn new(op: &'static str, compile: Compile, sources: Sources) -> Self {
        Self {
            op,
            only: None,
            declines_regions: |_| Some(Decline::NoKernel),
            takes_epilogue: false,
            declines: |_, _| None,
            needs: |_, _, _, _| Ok(0),
            compile,
            sources,
        }
    }

    pub(super) fn is_for(&self, architecture: Architecture) -> bool {
        self.only.is_none_or(|only| only == architecture)
    }

    /// The architectures that it is compiled for where there is no GPU.
    pub(super) fn declared(&'static self) -> &'static [Architecture] {
        self.only.as_ref().map_or(&Architecture::DECLARED[..], std::slice::from_ref)
    }
}

/// A compiled call, or why there is none.
pub(crate) type Launched = Result<Box<dyn Launch>, Refusal>;

/// How a line answers what a call of a composite needs.
pub(crate) type Needs = fn(&KernelCall, &OpRef, &[Graph], PrinterMachine) -> Result<usize, Refusal>;

/// A call of a primitive that its kernel takes, before any device has seen it. So the plan and the
/// compilation know the same.
pub(crate) trait CallShape {
    /// Scratch that it needs while it runs, in bytes.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// Makes it ready for the device of `site`.
    ///
    /// # Errors
    /// Those of the compiler and of the driver.
    fn load(self: Box<Self>, site: &Site<'_>) -> Launched;
}

/// The shape of a call, or why its kernel does not take it.
pub(crate) type Shaped = Result<Box<dyn CallShape>, Refusal>;

/// Results of a primitive; nobody reads those that are absent.
type Results<'v> = [Option<&'v View>];

/// How a line compiles a call.
#[derive(Copy, Clone)]
pub(crate) enum Compile {
    /// A composite with its regions.
    Composite(fn(&Site<'_>, &KernelCall, &OpRef, &[Graph]) -> Launched),
    /// A primitive of these operands and results; `None` for another number of them.
    Prim(fn(&Prim, &[&View], &Results<'_>) -> Option<Shaped>),
}

/// A source with the architectures that it is for.
pub(crate) type SourceByArchitecture = (KernelSource, &'static [Architecture]);

/// The printed sources of a call.
pub(crate) type PrintedCall = Result<Vec<SourceByArchitecture>, Refusal>;

/// The sources of a kernel, for compilation where there is no GPU.
#[derive(Copy, Clone)]
pub(crate) enum Sources {
    /// Representative specialisations, one of each way through the kernel.
    All(fn() -> Vec<KernelSource>),
    /// Those of a call, whose text depends on its shapes and regions.
    Of(fn(&KernelCall, &OpRef, &[Graph]) -> PrintedCall),
}
