//! The number formats that can be multiplied.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use super::kernel::{self, Kernel};

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for half::f16 {}
    impl Sealed for half::bf16 {}
}

/// A format of A and B: f32, f64, f16 or bf16.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + std::fmt::Debug + 'static {
    /// The format of sums and of the product: f64 for f64, f32 for all others.
    type Acc: Accumulator;

    /// All micro-kernels for this format on this architecture, the best first.
    #[doc(hidden)]
    fn kernels() -> &'static [Kernel<Self>];

    /// Rounds a run of sums to this format.
    #[doc(hidden)]
    fn narrow(from: &[Self::Acc], to: &mut [Self]);

    /// Converts a run of elements to the format of sums.
    #[doc(hidden)]
    fn widen(from: &[Self], to: &mut [Self::Acc]);
}

/// A format that sums are kept in.
pub trait Accumulator: Element<Acc = Self> + std::ops::AddAssign {}

impl Accumulator for f32 {}
impl Accumulator for f64 {}

impl Element for f32 {
    type Acc = f32;
    fn kernels() -> &'static [Kernel<Self>] {
        kernel::F32
    }
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
}

impl Element for f64 {
    type Acc = f64;
    fn kernels() -> &'static [Kernel<Self>] {
        kernel::F64
    }
    fn narrow(from: &[f64], to: &mut [Self]) {
        to.copy_from_slice(from);
    }
    fn widen(from: &[Self], to: &mut [f64]) {
        to.copy_from_slice(from);
    }
}

impl Element for f16 {
    type Acc = f32;
    fn kernels() -> &'static [Kernel<Self>] {
        kernel::F16
    }
    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
    }
    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }
}

impl Element for bf16 {
    type Acc = f32;
    fn kernels() -> &'static [Kernel<Self>] {
        kernel::BF16
    }
    fn narrow(from: &[f32], to: &mut [Self]) {
        // Round to nearest even in integers, which vectorise; a NaN stays one.
        for (from, to) in from.iter().zip(to) {
            let bits = from.to_bits();
            let rounded = bits.wrapping_add(0x7FFF + (bits >> 16 & 1)) >> 16;
            let quiet = bits >> 16 | 0x40;
            *to = bf16::from_bits(if from.is_nan() { quiet } else { rounded } as u16);
        }
    }
    fn widen(from: &[Self], to: &mut [f32]) {
        for (from, to) in from.iter().zip(to) {
            *to = f32::from_bits(u32::from(from.to_bits()) << 16);
        }
    }
}
