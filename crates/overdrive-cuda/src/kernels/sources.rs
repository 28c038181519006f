//! Sources without a device, for compilation where there is no GPU: specialisations that stand for
//! all others of a kernel, and those that a plan asks for.

use overdrive_ir::Plan;
use overdrive_ir::ops::{Attention, AttentionGrad};
use overdrive_ir::plan::{KernelOp, StepKind};

use super::source::source;
use super::{
    attention, cast_transpose, convolution, dynamic_slice, gather, quantized_linear, reduce_window,
    scatter, sort, transfer,
};
use crate::compiler::{Architecture, Source};
use crate::launch::Refusal;

/// At least one source of every kernel here, and of each way through it.
pub fn sources() -> Vec<Source> {
    let define = |pairs: &[(&'static str, &str)]| {
        pairs.iter().map(|&(key, value)| (key, value.to_owned())).collect()
    };
    let mut all = Vec::new();
    for (bytes, position) in [("16", "u32"), ("1", "u64")] {
        let moved = [("BYTES", bytes), ("POSITION", position)];
        all.push(source("transfer", transfer::TEXT, define(&moved)));
        let outward = if bytes == "1" { "1" } else { "0" };
        all.push(source(
            "dynamic_slice",
            dynamic_slice::TEXT,
            define(&[moved[0], moved[1], ("OUTWARD", outward)]),
        ));
        for index in ["i32", "u64"] {
            all.push(source(
                "gather",
                gather::TEXT,
                define(&[moved[0], moved[1], ("INDEX", index)]),
            ));
        }
    }
    all.push(source(
        "scatter",
        scatter::TEXT,
        define(&[("INDEX", "i64"), ("ELEMENT", "BitsOf<8>::type")]),
    ));
    for element in ["f64", "f32", "f16", "bf16", "i64", "u8", "bool"] {
        let logical = element == "bool";
        let fold = if logical { "Or" } else { "Sum" };
        let index = ("INDEX", "i32");
        all.push(source(
            "scatter",
            scatter::TEXT,
            define(&[index, ("ELEMENT", element), ("FOLD", fold)]),
        ));
        let folded = [("ELEMENT", element), ("FOLD", fold)];
        all.push(source("reduce_window", reduce_window::TEXT, define(&folded)));
        let mut sorted = vec![("ELEMENT", element), ("CHUNK", "2048")];
        if element != "f64" {
            sorted.push(("DESCENDING", "1"));
        }
        all.push(source("sort", sort::TEXT, define(&sorted)));
    }
    all.extend(quantized_linear::sources());
    all.extend(cast_transpose::sources());
    all
}

/// The sources of a plan's attentions and convolutions, whose text depends on their shapes, with
/// the architectures that they are for.
///
/// # Errors
/// What the compilation of the step would say.
pub fn sources_of(plan: &Plan) -> Result<Vec<(Source, &'static [Architecture])>, Refusal> {
    let mut all: Vec<(Source, &'static [Architecture])> = Vec::new();
    for step in &plan.steps {
        match &step.kind {
            StepKind::Convolution(call) => {
                all.push((convolution::source_of(plan, call)?, &Architecture::DECLARED));
            }
            StepKind::Kernel(call) => {
                if let KernelOp::Composite(op, regions) = &call.op {
                    if let Some(op) = op.downcast::<Attention>() {
                        all.extend(attention::sources_of(call, (op, regions))?);
                    }
                    if let Some(op) = op.downcast::<AttentionGrad>() {
                        all.push(attention::grad::source_of(call, (op, regions))?);
                    }
                }
            }
            _ => {}
        }
    }
    Ok(all)
}
