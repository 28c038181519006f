//! The table of kernels, a line each, and the CPU's answers to requests to run one.

use overdrive_ir::plan::{GemmCall, Instr, KernelCall, KernelOp, StepKind, View};
use overdrive_ir::{Call, DType, Decline, Kernel, Plan};

use super::line::CompiledCall;
pub(super) use super::line::{Compile, NamedKernel};
use super::{
    attention, convolution, dynamic_slice, indexed, quantize_rows, quantized_linear, reduce_window,
    sort, unpack, weighed_sum,
};
use crate::exec::Unsupported;
use crate::gemm::{self, Element};

/// Every op that has a kernel of its own here.
pub(crate) const KERNELS: &[NamedKernel] = &[
    attention::KERNEL,
    attention::GRAD,
    attention::CODED,
    attention::PAGED,
    unpack::KERNEL,
    dynamic_slice::SLICE,
    dynamic_slice::UPDATE,
    indexed::GATHER,
    quantize_rows::KERNEL,
    quantized_linear::KERNEL,
    reduce_window::KERNEL,
    indexed::SCATTER,
    sort::KERNEL,
    weighed_sum::KERNEL,
];

/// How the CPU runs a call.
pub(crate) fn answer(call: &Call<'_>) -> Result<Kernel, Decline> {
    match *call {
        Call::Op { op, operands, regions, wanted } => {
            let kernel = find(&op.name()).ok_or(Decline::NoKernel)?;
            let declined =
                (kernel.regions)(regions, wanted).or_else(|| (kernel.declines)(op, operands));
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
        // The scratch of threads belongs to no plan.
        Call::Step(step) => {
            let StepKind::Kernel(call) = &step.kind else { return Ok(Kernel::default()) };
            let wrong = find(&name_of(call)).and_then(|kernel| (kernel.lies_wrong)(call));
            wrong.map_or(Ok(Kernel::default()), Err)
        }
        Call::Joined(..) | Call::Faster(..) => Err(Decline::NoKernel),
    }
}

/// How the right operand of a product is packed, if it never changes.
fn packing(call: &GemmCall) -> Option<(&'static str, usize)> {
    fn of<T: Element>(call: &GemmCall) -> (&'static str, usize) {
        let kernel = gemm::MicroKernel::<T>::best_packed(call.m);
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

fn name_of(call: &KernelCall) -> String {
    match &call.op {
        KernelOp::Prim(prim, _) => prim.name(),
        KernelOp::Composite(op, _) => op.name().to_owned(),
    }
}

/// Compiles a named kernel.
pub(crate) fn compile(plan: &Plan, call: &KernelCall) -> CompiledCall {
    let name = name_of(call);
    let none = || Unsupported::new(format!("`{name}` has no kernel on the CPU"));
    let kernel = find(&name).ok_or_else(none)?;
    match (&call.op, kernel.compile) {
        (KernelOp::Composite(op, _), Compile::Composite(compile)) => compile(plan, call, op),
        (KernelOp::Prim(prim, _), Compile::Prim(compile)) => {
            let operands: Vec<&View> = call.operands.iter().collect();
            let results: Vec<Option<&View>> = call.results.iter().map(Option::as_ref).collect();
            compile(prim, &operands, &results).ok_or_else(none)
        }
        _ => Err(none()),
    }
}
