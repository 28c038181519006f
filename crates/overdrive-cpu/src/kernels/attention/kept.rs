//! `quantized_attention` and `paged_attention`: few queries (`few`) against keys and values as a
//! decoder keeps them. They are codes, or lie in pages of a pool, or both.

use half::{bf16, f16};
use overdrive_ir::ops::{Attention, PagedAttention, QuantizedAttention};
use overdrive_ir::plan::KernelCall;
use overdrive_ir::{DType, Decline, OpRef, Operation, Plan, TensorType};

use super::few::{FEW, FewQueries, Kept, Pages};
use crate::exec::{Runnable, Unsupported};
use crate::kernels::named::{Compile, NamedKernel};
use crate::kernels::place::Strided;

/// `quantized_attention` with its score and mask functions.
pub(crate) const CODED: NamedKernel = kernel("quantized_attention");

/// `paged_attention` with its score and mask functions.
pub(crate) const PAGED: NamedKernel = kernel("paged_attention");

const fn kernel(op: &'static str) -> NamedKernel {
    NamedKernel {
        regions: |_, _| None,
        declines,
        lies_wrong,
        ..NamedKernel::new(op, Compile::Composite(compile))
    }
}

/// Declines queries of f64, and many queries over numbers: tiles take those in order.
fn declines(_: &Operation, operands: &[TensorType]) -> Option<Decline> {
    let [q, keys, ..] = operands else { return None };
    let is_coded = QuantizedAttention::takes(keys.dtype);
    let reason = if q.dtype == DType::F64 {
        "its kernel sums in f32, and queries are of f64".to_owned()
    } else if !is_coded && q.sizes()[2] > FEW {
        format!("its kernel is for up to {FEW} queries")
    } else if keys.elements() == 0 {
        "its kernel is for one key at least".to_owned()
    } else {
        return None;
    };
    Some(Decline::Because(reason))
}

/// Declines rows whose channels lie apart, and views that run backwards.
fn lies_wrong(call: &KernelCall) -> Option<Decline> {
    let is_backward = call.operands.iter().flat_map(|view| &view.strides).any(|&step| step < 0);
    let is_apart = call.operands[..3].iter().any(|view| view.strides[3] != 1);
    (is_backward || is_apart)
        .then(|| Decline::Because("its kernel reads rows of q, k and v as they are".to_owned()))
}

/// A call of either op as if keys and values lay in order, with its attention.
fn kept<'a>(call: &KernelCall, op: &'a OpRef) -> (Kept, &'a Attention) {
    let keys = &call.operands[1].ty;
    let has_scales = QuantizedAttention::takes(keys.dtype);
    let Some(paged) = op.downcast::<PagedAttention>() else {
        let op = op.downcast::<QuantizedAttention>().expect("the table is by name");
        return (Kept { call: call.clone(), has_scales, pages: None }, &op.attention);
    };
    let [pool, size] = [0, 2].map(|axis| keys.sizes()[axis]);
    let (call, numbers) = call.in_order();
    let pages = Pages { numbers: Strided::new(&numbers), pool, size };
    (Kept { call, has_scales, pages: Some(pages) }, &paged.attention)
}

fn compile(plan: &Plan, call: &KernelCall, op: &OpRef) -> Result<Box<dyn Runnable>, Unsupported> {
    let (kept, attention) = kept(call, op);
    Ok(match call.operands[0].ty.dtype {
        DType::F32 => Box::new(FewQueries::<f32>::new(plan, kept, attention)?),
        DType::F16 => Box::new(FewQueries::<f16>::new(plan, kept, attention)?),
        DType::BF16 => Box::new(FewQueries::<bf16>::new(plan, kept, attention)?),
        other => {
            return Err(Unsupported::new(format!("no kernel reads kept keys for q of {other}")));
        }
    })
}
