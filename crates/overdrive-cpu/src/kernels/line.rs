//! A line of the table of kernels.

use overdrive_ir::plan::{KernelCall, View};
use overdrive_ir::{DType, Decline, Graph, OpRef, Operation, Plan, Prim, TensorType};

use crate::exec::{Runnable, Unsupported};

/// A line of the table: a kernel for an op.
pub(crate) struct NamedKernel {
    /// The op's name.
    pub(crate) op: &'static str,
    /// Whether it hands its result to an epilogue.
    pub(super) takes_epilogue: bool,
    /// Why it does not compute these regions, if these results are wanted.
    pub(super) regions: fn(&[Graph], &[bool]) -> Option<Decline>,
    /// Why it does not take this form of the op, or operands of these types.
    pub(super) declines: fn(&Operation, &[TensorType]) -> Option<Decline>,
    /// Why it does not take operands and results that lie so.
    pub(super) lies_wrong: fn(&KernelCall) -> Option<Decline>,
    /// Compiles a call.
    pub(super) compile: Compile,
}

impl NamedKernel {
    /// Takes every form of an op without regions, and hands its result to no epilogue.
    pub(super) const fn new(op: &'static str, compile: Compile) -> Self {
        let regions =
            |regions: &[Graph], _: &[bool]| (!regions.is_empty()).then_some(Decline::NoKernel);
        let (declines, lies_wrong) = (|_: &_, _: &[_]| None, |_: &_| None);
        Self { op, takes_epilogue: false, regions, declines, lies_wrong, compile }
    }

    /// A kernel of a primitive that moves elements.
    pub(super) const fn moving(op: &'static str, compile: Compile) -> Self {
        Self { declines: |_, operands| parts_of_bytes(operands), ..Self::new(op, compile) }
    }

    /// A kernel of a primitive that folds or compares elements.
    pub(super) const fn combining(op: &'static str, compile: Compile) -> Self {
        Self { declines: |_, operands| without_arithmetic(operands), ..Self::new(op, compile) }
    }
}

/// Declines elements that share bytes: addresses are of bytes. Results have the types of operands.
pub(super) fn parts_of_bytes(operands: &[TensorType]) -> Option<Decline> {
    let dtype = operands.iter().map(|ty| ty.dtype).find(|d| !d.bits().is_multiple_of(8))?;
    Some(Decline::Because(format!("its kernel takes no elements of less than a byte, as {dtype}")))
}

/// The same, and floats that have no instructions of their own.
pub(super) fn without_arithmetic(operands: &[TensorType]) -> Option<Decline> {
    let is_narrow = |d: &DType| d.is_float() && !d.is_arithmetic_float();
    let narrow = operands.first().map(|ty| ty.dtype).filter(is_narrow);
    let reason = |dtype| format!("its kernel does no arithmetic on {dtype}; convert it first");
    parts_of_bytes(operands).or_else(|| narrow.map(reason).map(Decline::Because))
}

/// A compiled call, or why there is none.
pub(super) type CompiledCall = Result<Box<dyn Runnable>, Unsupported>;

/// A compiled call of a primitive.
type Taken = Option<Box<dyn Runnable>>;

/// How a line compiles a call.
#[derive(Copy, Clone)]
pub(super) enum Compile {
    /// A composite.
    Composite(fn(&Plan, &KernelCall, &OpRef) -> CompiledCall),
    /// A primitive of these operands and results; `None` for another number of them.
    Prim(fn(&Prim, &[&View], &[Option<&View>]) -> Taken),
}
