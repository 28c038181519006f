//! The number formats that can be multiplied.
#![allow(unsafe_code)] // One function of AVX-512.

use std::fmt::Debug;
use std::ops::AddAssign;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::kernel::{self, Kernel};
#[cfg(target_arch = "x86_64")]
use crate::isa::InstructionSet;
use crate::loops::half::to_bf16;

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
    impl Sealed for i8 {}
    impl Sealed for i32 {}
}

/// A format of A and B: f32, f64, f16, bf16 or i8.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + Debug + 'static {
    /// The format of sums and of the product: f64 for f64, i32 for i8, f32 for all others. Sums of
    /// i8 are exact for up to 131,071 products, and wrap around beyond.
    type Acc: Accumulator;

    /// All micro-kernels for this format on this architecture, the best first.
    #[doc(hidden)]
    fn kernels() -> &'static [Kernel<Self>];
}

/// A format that sums are kept in.
pub trait Accumulator:
    sealed::Sealed + Copy + Default + Send + Sync + Debug + AddAssign + 'static
{
}

impl Accumulator for f32 {}
impl Accumulator for f64 {}
impl Accumulator for i32 {}

/// A format that sums can be rounded to.
pub(crate) trait Narrow: Element {
    /// Rounds a run of sums.
    fn narrow(from: &[Self::Acc], to: &mut [Self]);
}

/// A format whose every value `W` has too.
pub(crate) trait Widen<W>: Copy {
    /// Converts a run of elements.
    fn widen(from: &[Self], to: &mut [W]);
}

macro_rules! element {
    ($format:ty, $acc:ty, $kernels:ident) => {
        impl Element for $format {
            type Acc = $acc;
            fn kernels() -> &'static [Kernel<Self>] {
                kernel::$kernels
            }
        }
    };
}

element!(f32, f32, F32);
element!(f64, f64, F64);
element!(f16, f32, F16);
element!(bf16, f32, BF16);
element!(i8, i32, I8);

impl Narrow for f32 {
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}

impl Narrow for f64 {
    fn narrow(from: &[f64], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
}

impl Narrow for f16 {
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
}

impl Narrow for bf16 {
    fn narrow(from: &[f32], to: &mut [Self]) {
        #[cfg(target_arch = "x86_64")]
        if InstructionSet::Avx512.is_usable() {
            // SAFETY: the CPU has the instructions.
            return unsafe { super::x86::round_to_bf16(from, to) };
        }
        round_to_bf16(from, to);
    }
}

/// Rounds to nearest even.
#[inline(always)]
pub(super) fn round_to_bf16(from: &[f32], to: &mut [bf16]) {
    for (from, to) in from.iter().zip(to) {
        *to = bf16::from_bits(to_bf16(*from));
    }
}

impl Widen<f32> for f32 {
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

impl Widen<f32> for f16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
}

impl Widen<f32> for bf16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        for (from, to) in from.iter().zip(to) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }
}

impl Widen<i16> for i8 {
    fn widen(from: &[Self], to: &mut [i16]) {
        from.iter().zip(to).for_each(|(&from, to)| *to = from.into());
    }
}

impl Widen<i32> for i8 {
    fn widen(from: &[Self], to: &mut [i32]) {
        from.iter().zip(to).for_each(|(&from, to)| *to = from.into());
    }
}
