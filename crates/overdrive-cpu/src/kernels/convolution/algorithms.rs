//! The table of algorithms, and the choice among them. It depends on the call alone, so that the
//! packing step and the convolution choose the same one.

use half::{bf16, f16};
use overdrive_ir::plan::ConvolutionCall;
use overdrive_ir::{Plan, SlotId};

use super::call::{self, Convolution};
use super::depthwise::{self, Depthwise, Multiplicand};
#[cfg(target_arch = "x86_64")]
use super::direct::{self, Direct};
use super::lines::ByLines;
use super::packed_weights::{PackFilter, Packer, kernel_of};
#[cfg(target_arch = "x86_64")]
use super::pixels::{self, Pixels};
#[cfg(target_arch = "x86_64")]
use super::scheme::{OUTPUTS, Scheme, Step1, Step2};
#[cfg(target_arch = "x86_64")]
use super::winograd::{self, Winograd};
use crate::exec::{Format, Named, Runnable, Unsupported};
use crate::gemm::Element;
#[cfg(target_arch = "x86_64")]
use crate::gemm::Piecewise;

type CompiledAlgorithm = Result<Box<dyn ByLines>, Unsupported>;

/// A way to compute a convolution.
struct Algorithm {
    /// Whether it takes a call that none before it takes.
    takes: fn(&ConvolutionCall) -> bool,
    compile: fn(&Plan, &ConvolutionCall) -> CompiledAlgorithm,
    /// How weights are packed ahead of time; `None` if they are read in their own layout.
    packing: Option<Packing>,
    /// The most spans that an image is cut into.
    most_spans: fn(&ConvolutionCall) -> usize,
}

struct Packing {
    /// Name and bytes of the packed form, where weights of the call's types have one.
    form: fn(&ConvolutionCall) -> Option<(&'static str, usize)>,
    compile: fn(&ConvolutionCall, SlotId) -> Box<dyn Runnable>,
}

/// The best first.
static ALGORITHMS: &[Algorithm] = &[
    #[cfg(target_arch = "x86_64")]
    PIXELS,
    #[cfg(target_arch = "x86_64")]
    direct::<f32>(),
    #[cfg(target_arch = "x86_64")]
    direct::<i8>(),
    #[cfg(target_arch = "x86_64")]
    winograd::<Step1>(),
    #[cfg(target_arch = "x86_64")]
    winograd::<Step2>(),
    depthwise::<f64>(),
    depthwise::<f32>(),
    depthwise::<f16>(),
    depthwise::<bf16>(),
    depthwise::<i8>(),
    plain::<f64>(),
    plain::<f32>(),
    plain::<f16>(),
    plain::<bf16>(),
    plain::<i8>(),
];

#[cfg(target_arch = "x86_64")]
const PIXELS: Algorithm = Algorithm {
    takes: pixels::takes_call,
    compile: |plan, call| Ok(Box::new(Pixels::new(plan, call)?)),
    packing: Some(Packing {
        form: |call| Some(("amx pixels by 32", pixels::packer(call).bytes())),
        compile: |call, to| filter(pixels::packer(call), to),
    }),
    most_spans: |call| call.epilogue.0.extents[2],
};

#[cfg(target_arch = "x86_64")]
const fn direct<T: Format + Piecewise>() -> Algorithm {
    Algorithm {
        takes: direct::takes_call::<T>,
        compile: |plan, call| Ok(Box::new(Direct::<T>::new(plan, call)?)),
        packing: Some(Packing {
            form: |call| Some(("taps by 32", direct::packer::<T>(call).bytes())),
            compile: |call, to| filter(direct::packer::<T>(call), to),
        }),
        most_spans: direct::most_bands::<T>,
    }
}

#[cfg(target_arch = "x86_64")]
const fn winograd<S: Scheme>() -> Algorithm {
    Algorithm {
        takes: |call| winograd::step_of(call) == Some(S::STRIDE),
        compile: |plan, call| Ok(Box::new(Winograd::<S>::new(plan, call)?)),
        packing: Some(Packing {
            form: |call| Some((S::NAME, winograd::packer::<S>(call).bytes())),
            compile: |call, to| filter(winograd::packer::<S>(call), to),
        }),
        most_spans: |call| call.epilogue.0.extents[2].div_ceil(OUTPUTS),
    }
}

const fn depthwise<T: Multiplicand>() -> Algorithm {
    Algorithm {
        takes: |call| call.input.ty.dtype == T::DTYPE && depthwise::takes::<T>(call),
        compile: |plan, call| Ok(Box::new(Depthwise::<T>::new(plan, call)?)),
        packing: None,
        most_spans: |call| call.epilogue.0.extents[2],
    }
}

const fn plain<T: Format>() -> Algorithm {
    Algorithm {
        takes: |call| call.input.ty.dtype == T::DTYPE,
        compile: |plan, call| Ok(Box::new(Convolution::<T>::new(plan, call)?)),
        packing: Some(Packing {
            form: |call| {
                let same =
                    call.kernel.ty.dtype == T::DTYPE && call.accumulate == <T::Acc as Named>::DTYPE;
                same.then(|| (kernel_of::<T>(call).name(), call::packer::<T>(call).bytes()))
            },
            compile: |call, to| filter(call::packer::<T>(call), to),
        }),
        most_spans: call::most_spans::<T>,
    }
}

fn filter<T: Element>(packer: Packer<T>, to: SlotId) -> Box<dyn Runnable> {
    Box::new(PackFilter { packer, to })
}

fn choose(call: &ConvolutionCall) -> Option<&'static Algorithm> {
    ALGORITHMS.iter().find(|algorithm| (algorithm.takes)(call))
}

fn refused(call: &ConvolutionCall) -> Unsupported {
    let dtype = call.input.ty.dtype;
    Unsupported::new(format!("there are no convolutions of {dtype}; convert it first"))
}

/// Compiles a convolution.
pub(crate) fn compile(
    plan: &Plan,
    call: &ConvolutionCall,
) -> Result<Box<dyn Runnable>, Unsupported> {
    Ok(compile_lines(plan, call)?)
}

/// The same for one that may be run by lines.
pub(super) fn compile_lines(plan: &Plan, call: &ConvolutionCall) -> CompiledAlgorithm {
    let algorithm = choose(call).ok_or_else(|| refused(call))?;
    (algorithm.compile)(plan, call)
}

/// Whether a convolution of these types of input, kernel and output is best with channels last, in
/// its input and in its output. The strides are those of the input.
pub(crate) fn takes_channels_last(
    conv: &overdrive_ir::Convolution,
    types: [&overdrive_ir::TensorType; 3],
    strides: &[i64],
) -> bool {
    #[cfg(target_arch = "x86_64")]
    return pixels::takes(conv, types, strides)
        || direct::takes::<f32>(conv, types, strides)
        || direct::takes::<i8>(conv, types, strides);
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Compiles the packing of a kernel for later convolutions.
pub(crate) fn compile_pack(
    call: &ConvolutionCall,
    to: SlotId,
) -> Result<Box<dyn Runnable>, Unsupported> {
    let packing = choose(call).and_then(|algorithm| algorithm.packing.as_ref());
    packing.map(|packing| (packing.compile)(call, to)).ok_or_else(|| refused(call))
}

/// The name and the bytes of a convolution's packed kernel, where it is packed at all.
pub(crate) fn packing(call: &ConvolutionCall) -> Option<(&'static str, usize)> {
    (choose(call)?.packing.as_ref()?.form)(call)
}

/// The most spans that an image is cut into.
pub(crate) fn folded_parts(call: &ConvolutionCall) -> usize {
    // A type that there is no algorithm for is refused when the step is compiled.
    choose(call).map_or(1, |algorithm| (algorithm.most_spans)(call))
}
