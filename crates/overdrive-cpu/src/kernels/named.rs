//! The table of kernels, a line each, and how the CPU answers what it is asked to run.

use overdrive_ir::plan::{GemmCall, Instr, KernelCall, KernelOp, View};
use overdrive_ir::{Call, DType, Decline, Graph, Kernel, OpRef, Operation, Plan, Prim, TensorType};

use super::{
    attention, convolution, dynamic_slice, indexed, quantize_rows, quantized_linear, reduce_window,
    sort, unpack,
};
use crate::exec::{Host, Runnable, Unsupported};
use crate::gemm::{self, Element};

/// Every op that has a kernel of its own here.
pub(crate) const KERNELS: &[NamedKernel] = &[
    attention::KERNEL,
    attention::GRAD,
    unpack::KERNEL,
    dynamic_slice::SLICE,
    dynamic_slice::UPDATE,
    indexed::GATHER,
    quantize_rows::KERNEL,
    quantized_linear::KERNEL,
    reduce_window::KERNEL,
    indexed::SCATTER,
    sort::KERNEL,
];

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
type Compiled = Result<Box<dyn Runnable>, Unsupported>;
/// A compiled call, where the kernel takes its form.
type Taken = Option<Box<dyn Runnable>>;

/// How a line compiles a call.
#[derive(Copy, Clone)]
pub(super) enum Compile {
    /// A composite.
    Composite(fn(&Plan, &KernelCall, &OpRef) -> Compiled),
    /// A primitive of these operands and results; `None` for a form that the reference computes.
    Prim(fn(&Prim, &[&View], &[Option<&View>]) -> Taken),
}

/// How the CPU runs a call.
pub(crate) fn answer(call: &Call<'_>) -> Result<Kernel, Decline> {
    match *call {
        Call::Op { op, operands, regions } => {
            let kernel = find(&op.name()).ok_or(Decline::NoKernel)?;
            let declined = (kernel.regions)(regions).or_else(|| (kernel.declines)(op, operands));
            let takes_epilogue = kernel.takes_epilogue;
            declined.map_or(Ok(Kernel { takes_epilogue, ..Kernel::default() }), Err)
        }
        Call::Product(call) => Ok(Kernel { packed: packing(call), ..Kernel::default() }),
        Call::Convolution(call) => {
            let mut instrs = call.epilogue.0.instrs.iter();
            let folds = instrs.any(|instr| matches!(instr, Instr::Reduce(_)));
            let parts = if folds { convolution::folded_parts(call) } else { 1 };
            Ok(Kernel { packed: convolution::packing(call), parts, ..Kernel::default() })
        }
        Call::Lying { convolution, types, strides } => {
            let channels_last = convolution::takes_channels_last(convolution, types, strides);
            Ok(Kernel { channels_last, ..Kernel::default() })
        }
        Call::Chain(calls) => {
            convolution::takes_chain(calls).map_err(Decline::Because)?;
            Ok(Kernel::default())
        }
        Call::Joined(..) | Call::Faster(..) => Err(Decline::NoKernel),
    }
}

/// How the right operand of a product is packed, where it never changes.
fn packing(call: &GemmCall) -> Option<(&'static str, usize)> {
    fn of<T: Element>(call: &GemmCall) -> (&'static str, usize) {
        let kernel = gemm::Kernel::<T>::best_packed(call.m);
        (kernel.name(), kernel.packed_b_bytes([1, 1, call.k, call.n]))
    }
    Some(match call.rhs.dtype {
        DType::F64 => of::<f64>(call),
        DType::F32 => of::<f32>(call),
        DType::F16 => of::<half::f16>(call),
        DType::BF16 => of::<half::bf16>(call),
        DType::I8 => of::<i8>(call),
        _ => return None,
    })
}

fn find(op: &str) -> Option<&'static NamedKernel> {
    KERNELS.iter().find(|kernel| kernel.op == op)
}

/// Compiles a named kernel.
pub(crate) fn compile(plan: &Plan, call: &KernelCall) -> Compiled {
    let name = match &call.op {
        KernelOp::Prim(prim, _) => prim.name().to_owned(),
        KernelOp::Composite(op, _) => op.name().to_owned(),
    };
    let none = || Unsupported::new(format!("`{name}` has no kernel on the CPU"));
    let kernel = find(&name).ok_or_else(none)?;
    match (&call.op, kernel.compile) {
        (KernelOp::Composite(op, _), Compile::Composite(compile)) => compile(plan, call, op),
        (KernelOp::Prim(prim, _), Compile::Prim(compile)) => {
            let operands: Vec<&View> = call.operands.iter().collect();
            let results: Vec<Option<&View>> = call.results.iter().map(Option::as_ref).collect();
            let of_bytes = || {
                let mut views = operands.iter().chain(results.iter().flatten());
                views.all(|view| view.ty.dtype.bits().is_multiple_of(8))
            };
            let is_known = matches!(prim, Prim::Convert { .. })
                || of_bytes() && combines(prim, call.operands[0].ty.dtype);
            match is_known.then(|| compile(prim, &operands, &results)).flatten() {
                Some(step) => Ok(step),
                None => Ok(Box::new(Host::new(plan, call)?)),
            }
        }
        _ => Err(none()),
    }
}

/// Whether the kernel of `prim` can do what it does on elements of `dtype`: moving takes any,
/// folding and comparing only those of `scalar`.
fn combines(prim: &Prim, dtype: DType) -> bool {
    let moves =
        matches!(prim, Prim::Gather { .. } | Prim::DynamicSlice { .. } | Prim::DynamicUpdateSlice);
    let narrow = dtype.is_float() && !dtype.is_arithmetic_float();
    moves || !narrow
}
