//! The number formats that can be multiplied, and the form of a micro-kernel for one;
//! `micro_kernels` has them all.

use std::fmt::Debug;
use std::ops::AddAssign;

use super::panel::{OperandLines, Panel};
use super::simd::PackedBlock;
use super::skinny::Skinny;
use crate::isa::InstructionSet;

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
    fn kernels() -> &'static [MicroKernel<Self>];
}

/// A format that sums are kept in.
pub trait Accumulator:
    sealed::Sealed + Copy + Default + Send + Sync + Debug + AddAssign + 'static
{
}

impl Accumulator for f32 {}
impl Accumulator for f64 {}
impl Accumulator for i32 {}

/// A micro-kernel: how it wants its operands packed, and the function that multiplies packed
/// blocks.
#[derive(Debug)]
pub struct MicroKernel<T: Element> {
    pub(super) name: &'static str,
    /// The instructions that the CPU must have.
    pub(super) set: InstructionSet,
    /// Panels of A: `width` is the tile's rows.
    pub(super) a: Panel,
    /// Panels of B: `width` is the tile's columns.
    pub(super) b: Panel,
    /// Bytes of a packed element.
    pub(super) packed_bytes: usize,
    pub(super) pack: unsafe fn(OperandLines<T>, Panel, *mut u8),
    pub(super) multiply: unsafe fn(&PackedBlock<T::Acc>),
    /// The skinny path, where elements need no conversion.
    pub(super) skinny: Option<unsafe fn(Skinny<T::Acc>)>,
    /// Minimum rows of A for which this kernel wins. It needs B packed ahead of time.
    pub(super) packed_for: Option<usize>,
}

impl<T: Element> MicroKernel<T> {
    /// The best kernel that may be executed here, whatever the product.
    pub fn best() -> &'static Self {
        Self::first(|kernel| kernel.packed_for.is_none())
    }

    /// The best for products of `rows` rows of A by a B that is packed once.
    pub fn best_packed(rows: usize) -> &'static Self {
        Self::first(|kernel| kernel.packed_for.is_none_or(|least| rows >= least))
    }

    fn first(suits: impl Fn(&Self) -> bool) -> &'static Self {
        let found = Self::supported().find(|kernel| suits(kernel));
        found.expect("every list ends with the portable kernel, which runs everywhere")
    }

    /// All kernels that may be executed here, the best first: those of the instruction set in force
    /// and of those before it.
    pub fn supported() -> impl Iterator<Item = &'static Self> {
        T::kernels().iter().filter(|kernel| kernel.set.is_usable())
    }

    /// The instruction set and the tile, such as `avx512 14x32`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Bytes of a packed block of `lines` lines over `k`.
    pub(super) fn block_bytes(&self, panel: Panel, lines: usize, k: usize) -> usize {
        lines.div_ceil(panel.width) * panel.len(k) * self.packed_bytes
    }
}
