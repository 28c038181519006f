//! The micro-kernel in plain Rust, for CPUs that have no other: arrays that the compiler vectorises
//! as it can.
#![allow(unsafe_code)] // Raw pointers; `simd.rs` says what they point to.

use std::ops::{Add, AddAssign, Mul};

use super::simd::{PackedBlock, Simd, SimdTile, micro_kernel, sweep};
use super::skinny::{self, Skinny};

/// Columns of a portable vector: two SSE or NEON registers of f32.
const LANES: usize = 8;

/// Lanes in an array. Products and sums round separately: a fused multiply-add is a library call
/// where the CPU has no instruction for it.
#[derive(Clone, Copy)]
pub(super) struct Array<T>(std::marker::PhantomData<T>);

impl<T: Copy + Default + Add<Output = T> + Mul<Output = T> + AddAssign> Simd for Array<T> {
    type Unit = T;
    type Acc = T;
    type Vector = [T; LANES];
    const LANES: usize = LANES;
    const HEAD: bool = false;

    #[inline(always)]
    unsafe fn zero() -> Self::Vector {
        [T::default(); LANES]
    }
    #[inline(always)]
    unsafe fn load(from: *const T) -> Self::Vector {
        // SAFETY: `from` has `LANES` elements, and an array of them needs no more alignment than
        // one.
        unsafe { from.cast::<[T; LANES]>().read() }
    }
    #[inline(always)]
    unsafe fn splat(from: *const T) -> Self::Vector {
        // SAFETY: `from` has an element.
        [unsafe { *from }; LANES]
    }
    #[inline(always)]
    unsafe fn fma(a: Self::Vector, b: Self::Vector, acc: Self::Vector) -> Self::Vector {
        std::array::from_fn(|lane| acc[lane] + a[lane] * b[lane])
    }
    #[inline(always)]
    unsafe fn add_to(acc: Self::Vector, to: *mut T) {
        for (lane, value) in acc.into_iter().enumerate() {
            // SAFETY: `to` has `LANES` elements.
            unsafe { *to.add(lane) += value }
        }
    }
    #[inline(always)]
    unsafe fn store(acc: Self::Vector, to: *mut T) {
        // SAFETY: `to` has room for `LANES` elements, and an array of them needs no more alignment
        // than one.
        unsafe { to.cast::<[T; LANES]>().write(acc) }
    }
    #[inline(always)]
    unsafe fn prefetch<U>(_: *const U) {}
}

/// # Safety
/// The block is as [`PackedBlock`] says, with panels of 4 and 8.
unsafe fn portable<T: Copy + Default + Add<Output = T> + Mul<Output = T> + AddAssign>(
    block: &PackedBlock<T>,
) {
    // SAFETY: the block's panels are 4 and 8 wide, as this sweep takes them; arrays need no
    // instructions.
    unsafe {
        sweep::<Array<T>, 4, 1>(block, |tile: SimdTile<'_, Array<T>>| match tile.rows {
            1 => micro_kernel::<_, 4, 1, 1>(tile),
            2 => micro_kernel::<_, 4, 2, 1>(tile),
            3 => micro_kernel::<_, 4, 3, 1>(tile),
            _ => micro_kernel::<_, 4, 4, 1>(tile),
        });
    }
}

/// f32; see [`portable`].
///
/// # Safety
/// The block is as [`PackedBlock`] says, with panels of 4 and 8.
pub(super) unsafe fn f32_portable(block: &PackedBlock<f32>) {
    // SAFETY: the block's panels are 4 and 8 wide, as `portable` asks for.
    unsafe { portable(block) }
}

/// f64; see [`portable`].
///
/// # Safety
/// The block is as [`PackedBlock`] says, with panels of 4 and 8.
pub(super) unsafe fn f64_portable(block: &PackedBlock<f64>) {
    // SAFETY: the block's panels are 4 and 8 wide, as `portable` asks for.
    unsafe { portable(block) }
}

/// i8, widened to i32; see [`portable`].
///
/// # Safety
/// The block is as [`PackedBlock`] says, with panels of 4 and 8.
pub(super) unsafe fn i8_portable(block: &PackedBlock<i32>) {
    // SAFETY: the block's panels are 4 and 8 wide, as `portable` asks for.
    unsafe { portable(block) }
}

skinny::kernel! {
    /// Skinny GEMM of f32.
    ///
    /// # Safety
    /// The problem is as [`Skinny`] says.
    f32_portable_skinny: Array<f32>
}

skinny::kernel! {
    /// Skinny GEMM of f64.
    ///
    /// # Safety
    /// The problem is as [`Skinny`] says.
    f64_portable_skinny: Array<f64>
}
