//! The table of kernels, a line each, and a GPU's answers to requests to run one.

use overdrive_ir::plan::{KernelCall, KernelOp, Step, StepKind, View};
use overdrive_ir::{Call, Decline, Graph, Kernel, OpRef, Operation, Plan, Prim, TensorType};

use super::{
    attention, cast_transpose, dynamic_slice, gather, quantized_linear, reduce_window, scatter,
    sort, transfer,
};
use crate::compiler::{Architecture, KernelSource};
use crate::gemm::{self, sparse_linear};
use crate::joined;
use crate::launch::{Launch, Refusal, Site};
use crate::loops::{self, PrinterMachine};

/// Every op that has a kernel of its own here.
const KERNELS: &[NamedKernel] = &[
    attention::KERNEL,
    attention::grad::KERNEL,
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

/// A line of the table: a kernel for an op.
pub(crate) struct NamedKernel {
    /// The op's name.
    pub(crate) op: &'static str,
    /// The only architecture that it is for; `None` means all.
    pub(crate) only: Option<Architecture>,
    /// Why it does not compute these regions of the op. There is at least one region.
    pub(crate) declines_regions: fn(&[Graph]) -> Option<Decline>,
    /// Whether it hands its result to an epilogue.
    pub(crate) takes_epilogue: bool,
    /// Why it does not take this form of the op, or operands of these types.
    pub(crate) declines: fn(&Operation, &[TensorType]) -> Option<Decline>,
    /// The scratch of a composite's call in bytes, or why it does not take operands that lie so.
    pub(crate) needs: Needs,
    /// Compiles a call.
    pub(crate) compile: Compile,
    /// Sources, and their purpose.
    pub(crate) sources: Sources,
}

impl NamedKernel {
    /// A kernel of every architecture, for all forms of an op without regions.
    pub(crate) const fn new(op: &'static str, compile: Compile, sources: Sources) -> Self {
        Self {
            op,
            only: None,
            declines_regions: |_| Some(Decline::NoKernel),
            takes_epilogue: false,
            declines: |_, _| None,
            needs: |_, _, _, _| Ok(0),
            compile,
            sources,
        }
    }

    fn is_for(&self, architecture: Architecture) -> bool {
        self.only.is_none_or(|only| only == architecture)
    }
}

/// A compiled call, or why there is none.
pub(crate) type Launched = Result<Box<dyn Launch>, Refusal>;

/// How a line answers what a call of a composite needs.
pub(crate) type Needs = fn(&KernelCall, &OpRef, &[Graph], PrinterMachine) -> Result<usize, Refusal>;

/// A call of a primitive that its kernel takes, before any device has seen it. So the plan and the
/// compilation know the same.
pub(crate) trait CallShape {
    /// Scratch that it needs while it runs, in bytes.
    fn scratch_bytes(&self) -> usize {
        0
    }

    /// Makes it ready for the device of `site`.
    ///
    /// # Errors
    /// Those of the compiler and of the driver.
    fn load(self: Box<Self>, site: &Site<'_>) -> Launched;
}

/// The shape of a call, or why its kernel does not take it.
pub(crate) type Shaped = Result<Box<dyn CallShape>, Refusal>;

/// Results of a primitive; nobody reads those that are absent.
type Results<'v> = [Option<&'v View>];

/// How a line compiles a call.
#[derive(Copy, Clone)]
pub(crate) enum Compile {
    /// A composite with its regions.
    Composite(fn(&Site<'_>, &KernelCall, &OpRef, &[Graph]) -> Launched),
    /// A primitive of these operands and results; `None` for another number of them.
    Prim(fn(&Prim, &[&View], &Results<'_>) -> Option<Shaped>),
}

/// A source with the architectures that it is for.
pub(crate) type SourceByArchitecture = (KernelSource, &'static [Architecture]);

/// The printed sources of a call.
pub(crate) type PrintedCall = Result<Vec<SourceByArchitecture>, Refusal>;

/// The sources of a kernel, for compilation where there is no GPU.
#[derive(Copy, Clone)]
pub(crate) enum Sources {
    /// Representative specialisations, one of each way through the kernel.
    All(fn() -> Vec<KernelSource>),
    /// Those of a call, whose text depends on its shapes and regions.
    Of(fn(&KernelCall, &OpRef, &[Graph]) -> PrintedCall),
    /// Those of products.
    Products,
}

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
        Call::Op { op, operands, regions } => {
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

/// Sources without a device, for compilation where there is no GPU. They are representative
/// specialisations of a kernel, at least one of each way through it.
pub fn sources() -> Vec<KernelSource> {
    let of_kernel = |kernel: &NamedKernel| match kernel.sources {
        Sources::All(sources) => sources(),
        Sources::Of(_) | Sources::Products => Vec::new(),
    };
    transfer::sources().into_iter().chain(KERNELS.iter().flat_map(of_kernel)).collect()
}

/// The sources of a plan whose text depends on the shapes of a call, with the architectures that
/// they are for.
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
