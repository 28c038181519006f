//! Which of the forms a convolution is computed in, and the packing of its weights, by the call
//! alone: the step that packs ahead and the convolution choose alike.

use half::{bf16, f16};
use overdrive_ir::plan::ConvolutionCall;
use overdrive_ir::{DType, Plan, SlotId};

use super::call::{self, Convolution};
use super::depthwise::{self, Depthwise, Product};
use super::lines::ByLines;
#[cfg(target_arch = "x86_64")]
use super::pixels::{self, Pixels};
#[cfg(target_arch = "x86_64")]
use super::scheme::{Step1, Step2};
use super::weights::{PackFilter, Packer};
#[cfg(target_arch = "x86_64")]
use super::winograd::{self, Winograd};
use crate::exec::{Format, Runnable, Unsupported};
use crate::gemm::{Element, Kernel};

/// Output channels of a group from which on a kernel for packed weights is the best: what it saves
/// on each of them, pixels pay for as they are packed.
const PAID: usize = 48;

/// The micro-kernel of a call.
pub(super) fn kernel_of<T: Format>(call: &ConvolutionCall) -> &'static Kernel<T> {
    let pixels =
        call.epilogue.0.extents[2..].iter().product::<usize>() * call.epilogue.0.extents[0];
    let outputs = call.kernel.ty.sizes()[0] / call.groups.max(1);
    if outputs >= PAID { Kernel::best_packed(pixels) } else { Kernel::best() }
}

/// What is made of a call in one of its forms.
trait Then {
    type Made;
    fn plain<T: Format>(self, call: &ConvolutionCall) -> Self::Made;
    fn depthwise<T: Product>(self, call: &ConvolutionCall) -> Self::Made;
    #[cfg(target_arch = "x86_64")]
    fn winograd<S: super::scheme::Scheme>(self, call: &ConvolutionCall) -> Self::Made;
    #[cfg(target_arch = "x86_64")]
    fn pixels(self, call: &ConvolutionCall) -> Self::Made;
}

fn choose<D: Then>(call: &ConvolutionCall, then: D) -> Option<D::Made> {
    #[cfg(target_arch = "x86_64")]
    match winograd::step_of(call) {
        _ if pixels::takes_call(call) => return Some(then.pixels(call)),
        Some(1) => return Some(then.winograd::<Step1>(call)),
        Some(_) => return Some(then.winograd::<Step2>(call)),
        None => {}
    }
    fn of<T: Product, D: Then>(call: &ConvolutionCall, then: D) -> D::Made {
        if depthwise::takes::<T>(call) { then.depthwise::<T>(call) } else { then.plain::<T>(call) }
    }
    Some(match call.input.ty.dtype {
        DType::F64 => of::<f64, D>(call, then),
        DType::F32 => of::<f32, D>(call, then),
        DType::F16 => of::<f16, D>(call, then),
        DType::BF16 => of::<bf16, D>(call, then),
        DType::I8 => of::<i8, D>(call, then),
        _ => return None,
    })
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
pub(super) fn compile_lines(
    plan: &Plan,
    call: &ConvolutionCall,
) -> Result<Box<dyn ByLines>, Unsupported> {
    struct Step<'a>(&'a Plan);
    impl Then for Step<'_> {
        type Made = Result<Box<dyn ByLines>, Unsupported>;
        fn plain<T: Format>(self, call: &ConvolutionCall) -> Self::Made {
            Ok(Box::new(Convolution::<T>::new(self.0, call)?))
        }
        fn depthwise<T: Product>(self, call: &ConvolutionCall) -> Self::Made {
            Ok(Box::new(Depthwise::<T>::new(self.0, call)?))
        }
        #[cfg(target_arch = "x86_64")]
        fn winograd<S: super::scheme::Scheme>(self, call: &ConvolutionCall) -> Self::Made {
            Ok(Box::new(Winograd::<S>::new(self.0, call)?))
        }
        #[cfg(target_arch = "x86_64")]
        fn pixels(self, call: &ConvolutionCall) -> Self::Made {
            Ok(Box::new(Pixels::new(self.0, call)?))
        }
    }
    choose(call, Step(plan)).unwrap_or_else(|| Err(refused(call)))
}

/// Whether a convolution of these types of input, kernel and output is best handed its input with
/// channels last, and hands its output on so; the strides are those of the input.
pub(crate) fn takes_channels_last(
    conv: &overdrive_ir::Convolution,
    types: [&overdrive_ir::TensorType; 3],
    strides: &[i64],
) -> bool {
    #[cfg(target_arch = "x86_64")]
    return pixels::takes(conv, types, strides);
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// Compiles the packing of a kernel for later convolutions.
pub(crate) fn compile_pack(
    call: &ConvolutionCall,
    to: SlotId,
) -> Result<Box<dyn Runnable>, Unsupported> {
    struct Pack(SlotId);
    impl Pack {
        fn step<T: Element>(self, packer: Packer<T>) -> Box<dyn Runnable> {
            Box::new(PackFilter { packer, to: self.0 })
        }
    }
    impl Then for Pack {
        type Made = Option<Box<dyn Runnable>>;
        fn plain<T: Format>(self, call: &ConvolutionCall) -> Self::Made {
            Some(self.step(call::packer::<T>(call)))
        }
        fn depthwise<T: Product>(self, _: &ConvolutionCall) -> Self::Made {
            None
        }
        #[cfg(target_arch = "x86_64")]
        fn winograd<S: super::scheme::Scheme>(self, call: &ConvolutionCall) -> Self::Made {
            Some(self.step(winograd::packer::<S>(call)))
        }
        #[cfg(target_arch = "x86_64")]
        fn pixels(self, call: &ConvolutionCall) -> Self::Made {
            Some(self.step(pixels::packer(call)))
        }
    }
    choose(call, Pack(to)).flatten().ok_or_else(|| refused(call))
}

/// The name and the bytes of a convolution's packed kernel, where it is packed at all.
pub(crate) fn packing(call: &ConvolutionCall) -> Option<(&'static str, usize)> {
    struct Bytes;
    impl Then for Bytes {
        type Made = Option<(&'static str, usize)>;
        fn plain<T: Format>(self, call: &ConvolutionCall) -> Self::Made {
            let same = call.kernel.ty.dtype == T::DTYPE
                && call.accumulate == <T::Acc as crate::exec::Named>::DTYPE;
            same.then(|| (kernel_of::<T>(call).name(), call::packer::<T>(call).bytes()))
        }
        fn depthwise<T: Product>(self, _: &ConvolutionCall) -> Self::Made {
            None
        }
        #[cfg(target_arch = "x86_64")]
        fn winograd<S: super::scheme::Scheme>(self, call: &ConvolutionCall) -> Self::Made {
            Some((S::NAME, winograd::packer::<S>(call).bytes()))
        }
        #[cfg(target_arch = "x86_64")]
        fn pixels(self, call: &ConvolutionCall) -> Self::Made {
            Some(("amx pixels by 32", pixels::packer(call).bytes()))
        }
    }
    choose(call, Bytes).flatten()
}

/// The most spans that an image is cut into.
pub(crate) fn folded_parts(call: &ConvolutionCall) -> usize {
    struct Most;
    impl Then for Most {
        type Made = usize;
        fn plain<T: Format>(self, call: &ConvolutionCall) -> Self::Made {
            call::most_spans::<T>(call)
        }
        fn depthwise<T: Product>(self, call: &ConvolutionCall) -> Self::Made {
            call.epilogue.0.extents[2]
        }
        #[cfg(target_arch = "x86_64")]
        fn winograd<S: super::scheme::Scheme>(self, call: &ConvolutionCall) -> Self::Made {
            call.epilogue.0.extents[2].div_ceil(super::scheme::OUTPUTS)
        }
        #[cfg(target_arch = "x86_64")]
        fn pixels(self, call: &ConvolutionCall) -> Self::Made {
            call.epilogue.0.extents[2]
        }
    }
    // A type that there is no form for is refused when the step is compiled.
    choose(call, Most).unwrap_or(1)
}
