//! The table of kernels, a line each, and a GPU's answers to requests to run one.

use overdrive_ir::plan::{KernelCall, KernelOp, Step, StepKind, View};
use overdrive_ir::{Call, Decline, Kernel, Plan};

use super::line::{
    Compile, Launched, NamedKernel, PrintedCall, Shaped, SourceByArchitecture, Sources,
};
use super::{
    attention, cast_transpose, dynamic_slice, gather, reduce_window, scatter, sort, transfer,
};
use crate::compiler::Architecture;
use crate::draw;
use crate::gemm::{self, quantized_linear, sparse_linear};
use crate::joined;
use crate::launch::{Refusal, Site};
use crate::loops::{self, PrinterMachine};

/// Every op that has a kernel of its own here.
const KERNELS: &[NamedKernel] = &[
    attention::KERNEL,
    attention::grad::KERNEL,
    attention::CODED,
    attention::FLOAT8,
    attention::PAGED,
    cast_transpose::KERNEL,
    dynamic_slice::SLICE,
    dynamic_slice::UPDATE,
    gather::KERNEL,
    quantized_linear::KERNEL,
    reduce_window::KERNEL,
    scatter::KERNEL,
    sort::KERNEL,
    sparse_linear::KERNEL,
];

/// Sources that belong to no op of the table: those of copies, with which several ops begin, of
/// products, and of initial values.
const BESIDE: &[fn() -> Vec<SourceByArchitecture>] =
    &[transfer::sources, gemm::sources, draw::sources];

/// Names of the ops that a device of this architecture has a kernel for.
pub(crate) fn names(architecture: Architecture) -> Vec<&'static str> {
    KERNELS.iter().filter(|kernel| kernel.is_for(architecture)).map(|kernel| kernel.op).collect()
}

/// How a device with these multiprocessors runs a call.
///
/// # Errors
/// Why it does not.
pub fn answer(call: &Call<'_>, machine: PrinterMachine) -> Result<Kernel, Decline> {
    let architecture = machine.architecture;
    match *call {
        Call::Op { op, operands, regions, .. } => {
            let kernel = find(&op.name()).filter(|kernel| kernel.is_for(architecture));
            let kernel = kernel.ok_or(Decline::NoKernel)?;
            let takes_epilogue = kernel.takes_epilogue;
            let declined = match regions {
                [] => None,
                regions => (kernel.declines_regions)(regions),
            };
            let declined = declined.or_else(|| (kernel.declines)(op, operands));
            declined.map_or(Ok(Kernel { takes_epilogue, ..Kernel::default() }), Err)
        }
        Call::Product(_) | Call::Convolution(_) => Ok(Kernel::default()),
        Call::Lying { .. } | Call::Chain(_) => Err(Decline::NoKernel),
        Call::Joined(bond, steps) => joined::answer(bond, steps, architecture),
        Call::Faster(bond, steps, tuning) => joined::is_faster(bond, steps, tuning),
        Call::Step(step) => {
            Ok(Kernel { scratch_bytes: scratch(step, machine)?, ..Kernel::default() })
        }
    }
}

/// The most scratch that a step takes, in bytes.
///
/// # Errors
/// Why its kernel does not take operands and results that lie as they do.
fn scratch(step: &Step, machine: PrinterMachine) -> Result<usize, Refusal> {
    Ok(match &step.kind {
        StepKind::Loop(program) => loops::scratch_bytes(program, &step.aliases, machine),
        StepKind::Gemm(call) => gemm::scratch_bytes(call),
        StepKind::Convolution(call) => super::convolution::scratch_bytes(call),
        StepKind::Joined(bond, steps) => joined::scratch_bytes(*bond, steps),
        StepKind::Kernel(call) => match &call.op {
            KernelOp::Prim(..) => shape(call)?.scratch_bytes(),
            KernelOp::Composite(op, regions) => match find(op.name()) {
                Some(kernel) => (kernel.needs)(call, op, regions, machine)?,
                None => 0,
            },
        },
        _ => 0,
    })
}

/// The shape of a call of a primitive.
///
/// # Errors
/// Why its kernel does not take it.
fn shape(call: &KernelCall) -> Shaped {
    let KernelOp::Prim(prim, _) = &call.op else { return Err(none(call)) };
    let operands: Vec<&View> = call.operands.iter().collect();
    let results: Vec<Option<&View>> = call.results.iter().map(Option::as_ref).collect();
    match find(&prim.name()).map(|kernel| kernel.compile) {
        Some(Compile::Prim(of)) => of(prim, &operands, &results).unwrap_or_else(|| Err(none(call))),
        _ => Err(none(call)),
    }
}

/// There is no kernel of this name for such a call.
fn none(call: &KernelCall) -> Refusal {
    let name = match &call.op {
        KernelOp::Prim(prim, _) => prim.name(),
        KernelOp::Composite(op, _) => op.name().to_owned(),
    };
    Refusal::Unsupported(format!("`{name}` has no kernel on this device"))
}

fn find(op: &str) -> Option<&'static NamedKernel> {
    KERNELS.iter().find(|kernel| kernel.op == op)
}

/// Compiles a named kernel.
///
/// # Errors
/// `Unsupported` for calls that [`answer`] declines; `Failed` where the device fails.
pub fn compile(site: &Site<'_>, call: &KernelCall) -> Launched {
    let KernelOp::Composite(op, regions) = &call.op else { return shape(call)?.load(site) };
    match find(op.name()).map(|kernel| kernel.compile) {
        Some(Compile::Composite(compile)) => compile(site, call, op, regions),
        _ => Err(none(call)),
    }
}

/// Sources without a device, for compilation where there is no GPU, with the architectures that
/// they are for. They are representative specialisations of each kernel, at least one of each way
/// through it. Those whose text depends on a call come from [`sources_of`].
pub fn sources() -> Vec<SourceByArchitecture> {
    let of_kernel = |kernel: &'static NamedKernel| match kernel.sources {
        Sources::All(sources) => {
            sources().into_iter().map(|source| (source, kernel.declared())).collect()
        }
        Sources::Of(_) => Vec::new(),
    };
    let beside = BESIDE.iter().flat_map(|sources| sources());
    beside.chain(KERNELS.iter().flat_map(of_kernel)).collect()
}

/// The sources of a plan whose text depends on a call, with the architectures that they are for.
/// Convolutions have such texts, and kernels that print their regions.
///
/// # Errors
/// The error that the compilation of the step would give.
pub fn sources_of(plan: &Plan) -> PrintedCall {
    let mut all = Vec::new();
    for step in &plan.steps {
        match &step.kind {
            StepKind::Convolution(call) => {
                let source = super::convolution::source_of(plan, call)?;
                all.push((source, &Architecture::DECLARED[..]));
            }
            StepKind::Kernel(call) => {
                let KernelOp::Composite(op, regions) = &call.op else { continue };
                let Some(kernel) = find(op.name()) else { continue };
                if let Sources::Of(sources) = kernel.sources {
                    all.extend(sources(call, op, regions)?);
                }
            }
            _ => {}
        }
    }
    Ok(all)
}
