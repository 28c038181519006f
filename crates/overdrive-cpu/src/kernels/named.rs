//! The choice of a kernel by the name of its op.

use overdrive_ir::ops::{Attention, QuantizeRows, QuantizedLinear};
use overdrive_ir::plan::{KernelCall, KernelOp, View};
use overdrive_ir::{DType, Plan, Prim};

use super::attention;
use super::dynamic_slice::{DynamicSlice, DynamicUpdateSlice};
use super::indexed::{Gather, Scatter};
use super::sort::Sort;
use super::unpack::Unpack;
use super::{quantize_rows, quantized_linear, reduce_window};
use crate::exec::{Host, Runnable, Unsupported};

/// Names of the ops that have a kernel here.
pub(crate) const CLAIMS: [&str; 14] = [
    "attention",
    // Those of whole bytes are loops.
    "convert of f4e2m1",
    "convert of f6e2m3",
    "convert of f6e3m2",
    "convert of i4",
    "dynamic_slice",
    "dynamic_update_slice",
    "gather",
    "quantize_rows",
    // With codes on both sides it is a product of those, with an epilogue.
    "quantized_linear activations=float",
    "quantized_linear with epilogue",
    "reduce_window",
    "scatter",
    "sort",
];

/// Compiles a named kernel.
pub(crate) fn compile(plan: &Plan, call: &KernelCall) -> Result<Box<dyn Runnable>, Unsupported> {
    let views = || call.operands.iter().chain(call.results.iter().flatten());
    let prim = match &call.op {
        KernelOp::Prim(prim, _) => prim,
        KernelOp::Composite(op, regions) => {
            if let Some(op) = op.downcast::<QuantizedLinear>() {
                return quantized_linear::compile(plan, call, op);
            }
            if let Some(op) = op.downcast::<QuantizeRows>() {
                return quantize_rows::compile(plan, call, op);
            }
            let attention = op.downcast::<Attention>();
            let attention = attention
                .ok_or_else(|| Unsupported::new(format!("no kernel for `{}`", op.name())))?;
            return attention::compile(call, (attention, regions.len()));
        }
    };
    if let (prim @ Prim::Convert { .. }, [operand], [Some(result)]) =
        (prim, call.operands.as_slice(), call.results.as_slice())
        && let Some(unpack) = Unpack::new(prim, operand, result)
    {
        return Ok(Box::new(unpack));
    }
    if views().any(|view| !view.ty.dtype.bits().is_multiple_of(8))
        || !combines(prim, call.operands[0].ty.dtype)
    {
        return Ok(Box::new(Host::new(plan, call)?));
    }
    let operands: Vec<&View> = call.operands.iter().collect();
    let results: Vec<Option<&View>> = call.results.iter().map(Option::as_ref).collect();
    Ok(match (prim, operands.as_slice(), results.as_slice()) {
        (Prim::Gather { axes }, &[operand, indices], &[Some(result)]) => {
            Box::new(Gather::new([operand, indices], result, axes))
        }
        (Prim::Scatter { axes, reducer }, &[operand, indices, updates], &[Some(result)]) => {
            Box::new(Scatter::new([operand, indices, updates], result, (axes, *reducer)))
        }
        (Prim::DynamicSlice { .. }, &[operand, starts], &[Some(result)]) => {
            Box::new(DynamicSlice::new([operand, starts], result))
        }
        (Prim::DynamicUpdateSlice, &[operand, update, starts], &[Some(result)]) => {
            Box::new(DynamicUpdateSlice::new([operand, update, starts], result))
        }
        (Prim::ReduceWindow { reducer, windows }, &[operand], &[Some(result)])
            if !windows.is_empty() =>
        {
            reduce_window::compile(operand, result, *reducer, windows)
        }
        (Prim::Sort { axis, order }, &[operand], &[values, indices]) => {
            Box::new(Sort::new(operand, [values, indices], *axis, *order))
        }
        (prim, ..) => {
            return Err(Unsupported::new(format!("`{}` has no kernel on the CPU", prim.name())));
        }
    })
}

/// Whether the kernel of `prim` can do what it does on elements of `dtype`: moving takes any,
/// folding and comparing only those of `scalar`.
fn combines(prim: &Prim, dtype: DType) -> bool {
    let moves =
        matches!(prim, Prim::Gather { .. } | Prim::DynamicSlice { .. } | Prim::DynamicUpdateSlice);
    let narrow = dtype.is_float() && !dtype.is_arithmetic_float();
    moves || !narrow
}
