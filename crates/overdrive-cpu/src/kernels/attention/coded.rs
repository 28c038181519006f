//! `quantized_attention`: queries against keys and values that are codes, as a cache of 8 bits has
//! them. Such a call is the next token of a decoder, so all its queries are few (`few`).

use half::{bf16, f16};
use overdrive_ir::ops::QuantizedAttention;
use overdrive_ir::plan::KernelCall;
use overdrive_ir::{DType, Decline, OpRef, Operation, Plan, TensorType};

use super::few::FewQueries;
use crate::exec::{Runnable, Unsupported};
use crate::kernels::named::{Compile, NamedKernel};

/// `quantized_attention` with its score and mask functions.
pub(crate) const KERNEL: NamedKernel = NamedKernel {
    regions: |_, _| None,
    declines,
    lies_wrong,
    ..NamedKernel::new("quantized_attention", Compile::Composite(compile))
};

fn declines(_: &Operation, operands: &[TensorType]) -> Option<Decline> {
    let is_wide = operands.first().is_some_and(|q| q.dtype == DType::F64);
    is_wide.then(|| Decline::Because("its kernel sums in f32, and queries are of f64".to_owned()))
}

/// Declines codes whose channels lie apart, and views that run backwards.
fn lies_wrong(call: &KernelCall) -> Option<Decline> {
    let is_backward = call.operands.iter().flat_map(|view| &view.strides).any(|&step| step < 0);
    let is_apart = call.operands[..3].iter().any(|view| view.strides[3] != 1);
    (is_backward || is_apart)
        .then(|| Decline::Because("its kernel reads rows of q, k and v as they are".to_owned()))
}

fn compile(plan: &Plan, call: &KernelCall, op: &OpRef) -> Result<Box<dyn Runnable>, Unsupported> {
    let op = op.downcast::<QuantizedAttention>().expect("the table is by name");
    let how = (&op.attention, true);
    Ok(match call.operands[0].ty.dtype {
        DType::F32 => Box::new(FewQueries::<f32>::new(plan, call, how)?),
        DType::F16 => Box::new(FewQueries::<f16>::new(plan, call, how)?),
        DType::BF16 => Box::new(FewQueries::<bf16>::new(plan, call, how)?),
        other => return Err(Unsupported::new(format!("there is no coded attention of {other}"))),
    })
}
