//! A line of the table of kernels.

use overdrive_ir::plan::{KernelCall, View};
use overdrive_ir::{Decline, Graph, OpRef, Operation, Plan, Prim, TensorType};

use crate::exec::{Runnable, Unsupported};

/// A line of the table: a kernel for an op.
pub(crate) struct NamedKernel {
    /// The op's name.
    pub(crate) op: &'static str,
    /// Whether it hands its result to an epilogue.
    pub(super) takes_epilogue: bool,
    /// Why it does not compute these regions.
    pub(super) regions: fn(&[Graph]) -> Option<Decline>,
    /// Why it does not take this form of the op, or operands of these types.
    pub(super) declines: fn(&Operation, &[TensorType]) -> Option<Decline>,
    /// Compiles a call.
    pub(super) compile: Compile,
}

impl NamedKernel {
    /// Takes every form of an op without regions, and hands its result to no epilogue.
    pub(super) const fn new(op: &'static str, compile: Compile) -> Self {
        let regions = |regions: &[Graph]| (!regions.is_empty()).then_some(Decline::NoKernel);
        Self { op, takes_epilogue: false, regions, declines: |_, _| None, compile }
    }
}

/// A compiled call, or why there is none.
pub(super) type CompiledCall = Result<Box<dyn Runnable>, Unsupported>;

/// A compiled call, where the kernel takes its form.
type Taken = Option<Box<dyn Runnable>>;

/// How a line compiles a call.
#[derive(Copy, Clone)]
pub(super) enum Compile {
    /// A composite.
    Composite(fn(&Plan, &KernelCall, &OpRef) -> CompiledCall),
    /// A primitive of these operands and results; `None` for a form that the reference computes.
    Prim(fn(&Prim, &[&View], &[Option<&View>]) -> Taken),
}
