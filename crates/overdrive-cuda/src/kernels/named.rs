//! The choice of a kernel by the name of its op.

use overdrive_ir::ops::{Attention, AttentionGrad, CastTranspose, QuantizedLinear, SparseLinear};
use overdrive_ir::plan::{KernelCall, KernelOp, View};
use overdrive_ir::{OpRef, Prim, TensorType};

use super::{
    attention, cast_transpose, dynamic_slice, gather, quantized_linear, reduce_window, scatter,
    sort,
};
use crate::gemm::sparse_linear;
use crate::launch::{Launch, Refusal, Site};

/// Names of the ops that have a kernel here.
pub const CLAIMS: [&str; 10] = [
    "attention",
    "attention with regions",
    "cast_transpose",
    "dynamic_slice",
    "dynamic_update_slice",
    "gather",
    // With codes on both sides it is a product of codes, with an epilogue.
    "quantized_linear activations=float",
    "reduce_window",
    "scatter",
    "sort",
];

/// Names of those that only Hopper's tensor cores have one for.
pub const CLAIMS_OF_HOPPER: [&str; 4] = [
    "attention_grad",
    "attention_grad with regions",
    "sparse_linear",
    "sparse_linear with epilogue",
];

/// Why a claimed composite has no kernel for operands of these types; `None` where it has.
pub fn declines(op: &OpRef, types: &[TensorType]) -> Option<String> {
    let declines = [
        quantized_linear::declines,
        cast_transpose::declines,
        sparse_linear::declines,
        attention::grad::declines,
    ];
    declines.into_iter().find_map(|declines| declines(op, types))
}

/// Compiles a named kernel.
///
/// # Errors
/// `Unsupported` for element types that the kernel does not know (those of less than a byte, and
/// the narrow floats where they are combined), and for extents past a launch's.
pub fn compile(site: &Site<'_>, call: &KernelCall) -> Result<Box<dyn Launch>, Refusal> {
    let prim = match &call.op {
        KernelOp::Prim(prim, _) => prim,
        KernelOp::Composite(op, regions) => {
            if let Some(op) = op.downcast::<QuantizedLinear>() {
                return quantized_linear::compile(site, call, op);
            }
            if let Some(op) = op.downcast::<CastTranspose>() {
                return cast_transpose::compile(site, call, op);
            }
            if op.downcast::<SparseLinear>().is_some() {
                return sparse_linear::compile(site, call);
            }
            if let Some(op) = op.downcast::<AttentionGrad>() {
                return attention::grad::compile(site, call, (op, regions));
            }
            let attention = op.downcast::<Attention>();
            let unknown =
                || Refusal::Unsupported(format!("`{}` has no kernel on this device", op.name()));
            return attention::compile(site, call, (attention.ok_or_else(unknown)?, regions));
        }
    };
    let operands: Vec<&View> = call.operands.iter().collect();
    let results: Vec<Option<&View>> = call.results.iter().map(Option::as_ref).collect();
    match (prim, operands.as_slice(), results.as_slice()) {
        (Prim::Gather { axes }, &[operand, indices], &[Some(result)]) => {
            gather::compile(site, [operand, indices], result, axes)
        }
        (Prim::Scatter { axes, reducer }, &[operand, indices, updates], &[Some(result)]) => {
            scatter::compile(site, [operand, indices, updates], result, (axes, *reducer))
        }
        (Prim::DynamicSlice { .. }, &[operand, starts], &[Some(result)]) => {
            dynamic_slice::slice(site, [operand, starts], result)
        }
        (Prim::DynamicUpdateSlice, &[operand, update, starts], &[Some(result)]) => {
            dynamic_slice::update(site, [operand, update, starts], result)
        }
        (Prim::ReduceWindow { reducer, windows }, &[operand], &[Some(result)]) => {
            reduce_window::compile(site, [operand, result], *reducer, windows)
        }
        (Prim::Sort { axis, order }, &[operand], &[values, indices]) => {
            sort::compile(site, operand, [values, indices], (*axis, *order))
        }
        (prim, ..) => {
            Err(Refusal::Unsupported(format!("`{}` has no kernel on this device", prim.name())))
        }
    }
}
